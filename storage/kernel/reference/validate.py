"""One pass over a V2 batch on its way into the log: CRC, every length, keys, timestamps, offsets (facts 10.1, 10.2).

The executable specification of `storage/kernel/native/src/log/validate.rs`, and what validates where Rust was not there.
"""

from __future__ import annotations

from compactd.storage.records.batch import HEADER_SIZE
from compactd.storage.records.codecs import decompress
from compactd.storage.records.crc import crc32c
from compactd.storage.records.record import wrap_long
from compactd.storage.records.varint import MalformedError, read_varint, read_varlong

#: Kinds of errors of single records.
NO_KEY = 1
TIMESTAMP = 2
#: Faulty records of a batch that are named.
MOST_ERRORS = 100_000

#: (record index, NO_KEY or TIMESTAMP, the record's timestamp in ms)
RecordError = tuple[int, int, int]
#: (whether the CRC matches, largest timestamp in ms or -1, whether the offset deltas are 0, 1, 2…, errors)
Summary = tuple[bool, int, bool, list[RecordError]]


def validate_batch(
    batch: bytes | bytearray | memoryview,
    crc: int,
    codec: int,
    count: int,
    base_timestamp: int,
    append_time: int | None,
    keys_required: bool,
    earliest: int,
    latest: int,
    largest_body: int,
    /,
) -> Summary:
    """Checks one whole V2 batch whose header fields the caller has read (crc to append_time).

    `append_time`: timestamp of every record of a LogAppendTime batch, else None.
    `earliest`, `latest`: inclusive range of timestamps; -1 is always allowed.
    `largest_body`: largest length of one record, looked at in compressed batches only (max.decompressed.message.bytes).
    After MOST_ERRORS faulty records the rest is not looked at: the batch is refused anyway.
    Where the CRC does not match nothing else is looked at. Raises ValueError for records that do not fit their lengths.
    """
    view = memoryview(batch)
    if len(view) < HEADER_SIZE:
        raise MalformedError("it is shorter than a batch header")
    if crc32c(view[21:]) != crc:
        return False, -1, False, []
    area = bytes(view[HEADER_SIZE:])
    if codec:
        area = decompress(codec, area)
    at, largest, consecutive = 0, -1, True
    errors: list[RecordError] = []
    for index in range(count):
        start = at
        try:
            at, length, timestamp_delta, offset_delta, has_key = _read(area, at)
        except MalformedError as error:
            raise MalformedError(f"record {index} of {count}: {error}") from None
        if codec and at - start > largest_body and length > largest_body:
            raise MalformedError(f"record {index} of {count} has {length} bytes, more than {largest_body}")
        timestamp = wrap_long(base_timestamp + timestamp_delta) if append_time is None else append_time
        consecutive = consecutive and offset_delta == index
        if keys_required and not has_key:
            errors.append((index, NO_KEY, timestamp))
        elif timestamp != -1 and not earliest <= timestamp <= latest:
            errors.append((index, TIMESTAMP, timestamp))
        largest = max(largest, timestamp)
        if len(errors) == MOST_ERRORS:
            return True, largest, consecutive, errors
    if at != len(area):
        raise MalformedError(f"{len(area) - at} bytes are left after its {count} records")
    return True, largest, consecutive, errors


def _read(area: bytes, at: int) -> tuple[int, int, int, int, bool]:
    """(end, length, timestamp delta, offset delta, whether it has a key) of the record at `at`."""
    length, start = read_varint(area, at)
    if length < 0:
        raise MalformedError("the length of a record is negative")
    end = start + length
    if end > len(area):
        raise MalformedError("a record reaches over the end of its batch")
    timestamp_delta, at = read_varlong(area, start + 1)
    offset_delta, at = read_varint(area, at)
    key_length, at = read_varint(area, at)
    value_length, at = read_varint(area, at + max(key_length, 0))
    header_count, at = read_varint(area, at + max(value_length, 0))
    if header_count < 0:
        raise MalformedError("the header count of a record is negative")
    for _ in range(header_count):
        name_length, at = read_varint(area, at)
        if name_length < 0:
            raise MalformedError("the key of a record header is null")
        content_length, at = read_varint(area, at + name_length)
        at += max(content_length, 0)
        if at > end:
            break
    if at != end:
        raise MalformedError("the fields of a record do not fill its length")
    return end, length, timestamp_delta, offset_delta, key_length >= 0
