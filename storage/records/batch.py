"""Record batches of every magic as they lie in a `.log` file (facts 2.1, 2.4).

A header can be read without its records; `Batch` adds the bytes, the CRC check and the records. Every length is checked
before it is used: what does not fit raises CorruptBatchError with the file, the position and the offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from compactd.config.errors import CorruptBatchError, StorageIOError
from compactd.storage.records import legacy
from compactd.storage.records.codecs import Codec, decompress
from compactd.storage.records.crc import crc32, crc32c
from compactd.storage.records.record import Record, parse_records
from compactd.storage.records.varint import MalformedError

__all__ = [
    "HEADER_SIZE",
    "Batch",
    "BatchHeader",
    "Record",
    "iter_batches",
    "read_batches",
    "read_header",
    "scan_headers",
]

#: Bytes of a V2 header; enough to read the header of any magic.
HEADER_SIZE: Final = 61
#: Base offset and length, before the bytes that the length counts.
LOG_OVERHEAD: Final = 12

_PREFIX = struct.Struct(">qi")
_V2 = struct.Struct(">qiiBIhiqqqhii")
_LEGACY = struct.Struct(">qiIBBq")

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

#: First byte that the CRC covers.
_CRC_FROM = {0: 16, 1: 16, 2: 21}
_MAX_OFFSET = (1 << 63) - 1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a batch says about itself. Offsets are absolute, times ms since the epoch, -1 for "none" as in Kafka.

    Magic 0 and 1: a plain record is a batch of one; a compressed wrapper knows only its last offset, so there
    `base_offset` equals `last_offset` and `record_count` is -1 until the records are read.
    """

    #: Byte in the file (or buffer) where the batch starts, and its bytes in all.
    position: int
    base_offset: int
    size: int
    magic: int
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    leader_epoch: int

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.magic >= 2 and self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.magic >= 2 and self.attributes & CONTROL_MASK != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.magic >= 1 and self.attributes & TIMESTAMP_TYPE_MASK != 0

    @property
    def timestamp_type(self) -> str:
        """As Kafka's tools print it: CreateTime, LogAppendTime, or NoTimestampType for magic 0."""
        if self.magic == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.is_log_append_time else "CreateTime"

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on the tombstones of the batch (or its marker) may go: KIP-534. None when not set yet."""
        if self.magic >= 2 and self.attributes & DELETE_HORIZON_MASK:
            return self.base_timestamp
        return None

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps from 2147483647 to 0. -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) & 0x7FFFFFFF

    def corrupt(
        self, path: str, reason: str, expected_crc: int | None = None, found_crc: int | None = None
    ) -> NoReturn:
        """Raises CorruptBatchError about this batch."""
        raise CorruptBatchError(
            path=path,
            position=self.position,
            base_offset=self.base_offset,
            last_offset=self.last_offset,
            reason=reason,
            expected_crc=expected_crc,
            found_crc=found_crc,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A header and exactly the bytes of its batch."""

    header: BatchHeader
    data: bytes
    path: str = ""

    @property
    def base_offset(self) -> int:
        """The first offset of the batch; decompresses a wrapper of magic 0 or 1 to find it."""
        if self.header.magic < 2 and self.header.codec:
            return self.records()[0].offset
        return self.header.base_offset

    def check(self) -> None:
        """Raises CorruptBatchError unless the bytes are as long as the header says and match its CRC."""
        header = self.header
        if len(self.data) != header.size:
            header.corrupt(self.path, f"truncated, {len(self.data)} of its {header.size} bytes are there")
        covered = memoryview(self.data)[_CRC_FROM[header.magic] :]
        found = crc32c(covered) if header.magic >= 2 else crc32(covered)
        _compare_crc(header, found, self.path)

    def records(self) -> list[Record]:
        """All records in order, offsets absolute. Raises CorruptBatchError where lengths or offsets do not add up.

        Does not compute the CRC: call check() first where the bytes may be damaged.
        """
        header = self.header
        try:
            if header.magic < 2:
                return legacy.parse_message(self.data)
            if header.record_count == 0:
                if header.size != HEADER_SIZE:
                    raise MalformedError(f"{header.size - HEADER_SIZE} bytes are left after its 0 records")
                return []
            data, position = self.data, HEADER_SIZE
            if header.codec:
                data, position = decompress(header.codec, data[HEADER_SIZE:]), 0
            return parse_records(
                data,
                position,
                count=header.record_count,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                base_timestamp=header.base_timestamp,
                append_time=header.max_timestamp if header.is_log_append_time else None,
            )
        except MalformedError as error:
            header.corrupt(self.path, str(error))


def read_header(
    buffer: bytes | bytearray | memoryview, position: int, path: str = "", *, file_position: int | None = None
) -> BatchHeader:
    """The header at `position` of `buffer`, which must hold its first HEADER_SIZE bytes, or the rest of the file.

    `file_position`: where that is in the file, when the buffer is a part of it. The header's own fields are checked,
    the CRC and the records are not. Raises CorruptBatchError, with offsets of -1 where they could not be read.
    """
    at = position if file_position is None else file_position
    available = len(buffer) - position
    if available < LOG_OVERHEAD + 5:
        _unreadable(path, at, -1, f"truncated, {max(available, 0)} bytes are left of a header")
    base_offset, length = _PREFIX.unpack_from(buffer, position)
    size, magic = length + LOG_OVERHEAD, buffer[position + 16]
    if length < legacy.MIN_ENTRY[0] - LOG_OVERHEAD:
        if not any(buffer[position : position + HEADER_SIZE]):
            _unreadable(path, at, base_offset, "truncated, only zeros where a batch should be")
        _unreadable(path, at, base_offset, f"its length field is {length}")
    if magic > 2:
        _unreadable(path, at, base_offset, f"unknown magic {magic}")
    least = HEADER_SIZE if magic == 2 else legacy.MIN_ENTRY[magic]
    if size < least:
        _unreadable(path, at, base_offset, f"its length field is {length}, too small for magic {magic}")
    if available < least:
        _unreadable(path, at, base_offset, f"truncated, {available} bytes are left of a header")
    fields = buffer[position : position + least]
    header = _read_v2(fields, at) if magic == 2 else _read_legacy(fields, at)
    if header.codec > Codec.ZSTD or (magic < 2 and header.codec == Codec.ZSTD):
        header.corrupt(path, f"unknown compression codec {header.codec} for magic {magic}")
    if not 0 <= base_offset <= header.last_offset < _MAX_OFFSET:
        header.corrupt(path, "its offsets are out of range")
    if magic == 2 and header.record_count < 0:
        header.corrupt(path, f"its record count is {header.record_count}")
    return header


def _read_v2(fields: bytes | bytearray | memoryview, position: int) -> BatchHeader:
    (
        base_offset,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _V2.unpack_from(fields)
    return BatchHeader(
        position,
        base_offset,
        length + LOG_OVERHEAD,
        magic,
        crc,
        attributes,
        base_offset + last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
        leader_epoch,
    )


def _read_legacy(fields: bytes | bytearray | memoryview, position: int) -> BatchHeader:
    offset, length, crc, magic, attributes, timestamp = _LEGACY.unpack_from(fields)
    if magic == 0:
        timestamp = -1
    size, count = length + LOG_OVERHEAD, -1 if attributes & CODEC_MASK else 1
    return BatchHeader(
        position, offset, size, magic, crc, attributes, offset, timestamp, timestamp, -1, -1, -1, count, -1
    )


def _unreadable(path: str, position: int, base_offset: int, reason: str) -> NoReturn:
    raise CorruptBatchError(
        path=path,
        position=position,
        base_offset=base_offset,
        last_offset=-1,
        reason=reason,
        expected_crc=None,
        found_crc=None,
    )


def _compare_crc(header: BatchHeader, found: int, path: str) -> None:
    if found != header.crc:
        header.corrupt(path, f"its CRC is {header.crc:#010x} and its bytes give {found:#010x}", header.crc, found)


def iter_batches(data: bytes | memoryview, position: int = 0, path: str = "") -> Iterator[Batch]:
    """The batches of a buffer from `position` to its end. Raises CorruptBatchError at one that is cut off."""
    while position < len(data):
        header = read_header(data, position, path)
        if header.size > len(data) - position:
            header.corrupt(path, f"truncated, {len(data) - position} of its {header.size} bytes are there")
        yield Batch(header, bytes(data[position : position + header.size]), path)
        position += header.size


def read_batches(path: str | Path, position: int = 0, limit: int | None = None) -> Generator[Batch, None, None]:
    """The batches of a file from byte `position` to byte `limit` (default: its end), one in memory at a time.

    CRCs are not checked here: see Batch.check. Raises CorruptBatchError (a torn tail's reason says "truncated"),
    StorageIOError.
    """
    name = str(path)
    try:
        with open(path, "rb", buffering=_CHUNK) as file:
            for header, head in _walk(file, name, position, limit):
                rest = file.read(header.size - len(head))
                if len(rest) != header.size - len(head):
                    header.corrupt(name, f"truncated, {len(head) + len(rest)} of its {header.size} bytes are there")
                yield Batch(header, head + rest, name)
    except OSError as error:
        raise StorageIOError(path=name, action="reading", reason=error.strerror or str(error)) from error


def scan_headers(
    path: str | Path, position: int = 0, limit: int | None = None, check_crc: bool = False
) -> Iterator[BatchHeader]:
    """The headers of a file's batches from byte `position` to byte `limit` (default: its end), in bounded memory.

    `check_crc`: read the bodies too, and raise CorruptBatchError where a CRC does not match.
    Raises CorruptBatchError (a torn tail's reason says "truncated"), StorageIOError.
    """
    name = str(path)
    try:
        with open(path, "rb", buffering=_CHUNK if check_crc else 1 << 13) as file:
            for header, head in _walk(file, name, position, limit):
                if check_crc:
                    _check_crc(file, header, head, name)
                yield header
    except OSError as error:
        raise StorageIOError(path=name, action="reading", reason=error.strerror or str(error)) from error


def _walk(file: BinaryIO, path: str, position: int, limit: int | None) -> Iterator[tuple[BatchHeader, bytes]]:
    """Each header with the bytes that were read of its batch; the file then stands just behind those bytes."""
    file.seek(0, 2)
    end = file.tell() if limit is None else min(limit, file.tell())
    file.seek(position)
    while position < end:
        head = file.read(min(HEADER_SIZE, end - position))
        header = read_header(head, 0, path, file_position=position)
        if header.size > end - position:
            header.corrupt(path, f"truncated, {end - position} of its {header.size} bytes are there")
        if header.size < len(head):
            head = head[: header.size]
            file.seek(position + header.size)
        yield header, head
        position += header.size
        file.seek(position)


def _check_crc(file: BinaryIO, header: BatchHeader, head: bytes, path: str) -> None:
    checksum = crc32c if header.magic >= 2 else crc32
    found = checksum(head[_CRC_FROM[header.magic] :])
    left = header.size - len(head)
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            header.corrupt(path, f"truncated, {header.size - left} of its {header.size} bytes are there")
        found = checksum(chunk, found)
        left -= len(chunk)
    _compare_crc(header, found, path)
