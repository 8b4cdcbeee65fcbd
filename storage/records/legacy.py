"""Message sets V0 and V1: what brokers before 0.11 wrote (facts 2.4).

Every entry is a "batch" of its own: one plain record, or a wrapper whose value is a compressed message set. The CRC of
the wrapper covers the inner entries, so the CRCs of those are not looked at (Kafka does not either).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from compactd.storage.records.codecs import Codec, compress, decompress
from compactd.storage.records.crc import crc32
from compactd.storage.records.record import Record
from compactd.storage.records.varint import MalformedError

#: Offset and size, before the bytes that `size` counts.
LOG_OVERHEAD = 12
_ENTRY = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
#: Bytes from the start of the entry to the key's length.
_KEY_AT = {0: LOG_OVERHEAD + 6, 1: LOG_OVERHEAD + 14}
#: The smallest entry: no key, no value.
MIN_ENTRY = {0: LOG_OVERHEAD + 14, 1: LOG_OVERHEAD + 22}


class _Entry(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def parse_message(data: bytes) -> list[Record]:
    """The records of one whole entry, offsets absolute. Raises MalformedError."""
    outer = _parse_entry(data, 0, len(data))
    codec = outer.attributes & _CODEC_MASK
    if codec == Codec.NONE:
        return [Record(outer.offset, outer.timestamp, outer.key, outer.value)]
    if outer.value is None:
        raise MalformedError("a compressed message set without a value")
    inner = _parse_set(decompress(codec, outer.value, outer.magic))
    if not inner:
        raise MalformedError("a compressed message set without inner records")
    base = _absolute_base(outer, inner[-1].offset)
    append_time = outer.timestamp if outer.magic == 1 and outer.attributes & _LOG_APPEND_TIME else None
    records: list[Record] = []
    for entry in inner:
        if entry.attributes & _CODEC_MASK:
            raise MalformedError("a compressed message set inside another one")
        timestamp = entry.timestamp if append_time is None or entry.magic == 0 else append_time
        offset, previous = base + entry.offset, records[-1].offset if records else -1
        if offset <= previous or (offset > outer.offset and outer.offset != 0):
            raise MalformedError(f"an inner record of offset {offset} after {previous}, up to {outer.offset}")
        records.append(Record(offset, timestamp, entry.key, entry.value))
    return records


def _absolute_base(outer: _Entry, last_inner: int) -> int:
    """What is added to the inner offsets: those of V0 are absolute, those of V1 count from the first record."""
    # Some librdkafka versions left the wrapper's offset at 0, and such sets exist in logs: relative is absolute there.
    if outer.magic == 0 or outer.offset == 0:
        return 0
    if outer.offset < last_inner:
        raise MalformedError(
            f"a compressed message set of offset {outer.offset} whose last inner offset is {last_inner}"
        )
    return outer.offset - last_inner


def _parse_set(data: bytes) -> list[_Entry]:
    entries: list[_Entry] = []
    at = 0
    while at < len(data):
        if len(data) - at < LOG_OVERHEAD:
            raise MalformedError(f"{len(data) - at} bytes are left after its inner records")
        size = LOG_OVERHEAD + _LENGTH.unpack_from(data, at + 8)[0]
        entries.append(_parse_entry(data, at, at + size))
        at += size
    return entries


def _parse_entry(data: bytes, start: int, end: int) -> _Entry:
    if end - start < MIN_ENTRY[0] or end > len(data):
        raise MalformedError(f"a message of {end - start} bytes where {len(data) - start} are left")
    magic, attributes = data[start + 16], data[start + 17]
    if magic not in MIN_ENTRY or end - start < MIN_ENTRY[magic]:
        raise MalformedError(f"a message of magic {magic} and {end - start} bytes")
    (offset,) = struct.unpack_from(">q", data, start)
    (timestamp,) = struct.unpack_from(">q", data, start + 18) if magic == 1 else (-1,)
    key, at = _take(data, start + _KEY_AT[magic], end, "key")
    value, at = _take(data, at, end, "value")
    if at != end:
        raise MalformedError(f"a message has {end - at} bytes after its value")
    return _Entry(offset, magic, attributes, timestamp, key, value)


def _take(data: bytes, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    if end - at < _LENGTH.size:
        raise MalformedError(f"a message ends before its {what}")
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if length > end - at:
        raise MalformedError(f"a message's {what} has length {length} where {end - at} bytes are left")
    return data[at : at + length], at + length


def build_message(record: Record, magic: int, attributes: int = 0) -> bytes:
    """One entry. Headers do not exist in these formats; V0 has no timestamp either."""
    if magic not in MIN_ENTRY:
        raise ValueError(f"magic {magic} is not a message set's")
    body = bytes((magic, attributes))
    if magic == 1:
        body += struct.pack(">q", record.timestamp)
    for data in (record.key, record.value):
        body += _LENGTH.pack(-1) if data is None else _LENGTH.pack(len(data)) + data
    return _ENTRY.pack(record.offset, len(body) + 4) + struct.pack(">I", crc32(body)) + body


def build_message_set(
    records: Sequence[Record],
    magic: int,
    codec: int = 0,
    log_append_time_ms: int | None = None,
    inner_magic: int | None = None,
) -> bytes:
    """Records with absolute offsets as a message set: one entry each, or one wrapper when `codec` is not 0.

    `log_append_time_ms`: mark V1 entries LogAppendTime and give the wrapper (or each plain entry) this timestamp.
    `inner_magic`: another magic for the inner entries, as damaged by KAFKA-4298.
    """
    kind = _LOG_APPEND_TIME if magic == 1 and log_append_time_ms is not None else 0
    if codec == Codec.NONE:
        stamped = records if log_append_time_ms is None else [r._replace(timestamp=log_append_time_ms) for r in records]
        return b"".join(build_message(record, magic, kind) for record in stamped)
    if not records or (magic < 2 and codec == Codec.ZSTD):
        raise ValueError("a compressed message set needs records, and has no zstd")
    base = records[0].offset if magic == 1 else 0
    inner = b"".join(
        build_message(record._replace(offset=record.offset - base), magic if inner_magic is None else inner_magic)
        for record in records
    )
    newest = max(record.timestamp for record in records) if log_append_time_ms is None else log_append_time_ms
    wrapper = Record(records[-1].offset, newest, None, compress(codec, inner, magic))
    return build_message(wrapper, magic, codec | kind)
