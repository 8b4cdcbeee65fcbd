"""One record, and its encoding inside a RecordBatch V2 (facts 2.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from compactd.storage.records.varint import MalformedError, read_varint, read_varlong, write_varint

#: Header keys are UTF-8; they are read as bytes, so that a rewrite gives back what was there.
Headers = tuple[tuple[str | bytes, bytes | None], ...]

NULL_LENGTH = write_varint(-1)


class Record(NamedTuple):
    """A record at an absolute offset. Timestamps are ms since the epoch, -1 for none; a None value is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def wrap_long(value: int) -> int:
    """`value` in 64 bits, as Java's long arithmetic would leave it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The record area of a batch, uncompressed. Record attributes are always 0."""
    out = bytearray()
    for record in records:
        body = bytearray(b"\x00")
        body += write_varint(wrap_long(record.timestamp - base_timestamp))
        body += write_varint(record.offset - base_offset)
        _put(body, record.key)
        _put(body, record.value)
        body += write_varint(len(record.headers))
        for key, value in record.headers:
            _put(body, key.encode() if isinstance(key, str) else key)
            _put(body, value)
        out += write_varint(len(body))
        out += body
    return bytes(out)


def _put(body: bytearray, data: bytes | None) -> None:
    if data is None:
        body += NULL_LENGTH
    else:
        body += write_varint(len(data))
        body += data


def parse_records(
    data: bytes,
    position: int,
    *,
    count: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    append_time: int | None,
    any_offsets: bool = False,
) -> list[Record]:
    """The `count` records from `position` to the end of `data`, which is decompressed.

    `append_time`: timestamp of every record of a LogAppendTime batch, else None.
    `any_offsets`: offsets are not looked at, for a batch whose records are about to be numbered anew.
    Raises MalformedError for lengths that do not add up, for offsets that do not increase or leave the batch's range,
    and for bytes that are left at the end.
    """
    records: list[Record] = []
    previous = base_offset - 1
    for index in range(count):
        length, start = read_varint(data, position)
        end = start + length
        if length < 0 or end > len(data):
            raise MalformedError(
                f"record {index} of {count} has length {length} where {len(data) - start} bytes are left"
            )
        delta, at = read_varlong(data, start + 1)
        step, at = read_varint(data, at)
        key, at = _take(data, at, end, "key")
        value, at = _take(data, at, end, "value")
        headers, at = _take_headers(data, at, end)
        if at != end:
            raise MalformedError(f"record {index} of {count} has length {length} and fields of {at - start} bytes")
        offset = base_offset + step
        if not any_offsets and not previous < offset <= last_offset:
            raise MalformedError(
                f"record {index} of {count} has offset {offset}, which is not between {previous + 1} and {last_offset}"
            )
        timestamp = wrap_long(base_timestamp + delta) if append_time is None else append_time
        records.append(Record(offset, timestamp, key, value, headers))
        previous, position = offset, end
    if position != len(data):
        raise MalformedError(f"{len(data) - position} bytes are left after its {count} records")
    return records


def _take(data: bytes, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if length > end - at:
        raise MalformedError(f"a record's {what} has length {length} where {max(end - at, 0)} bytes are left")
    return data[at : at + length], at + length


def _take_headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at)
    if count == 0:
        return (), at
    if not 0 <= count <= end - at:
        raise MalformedError(f"a record has {count} headers where {max(end - at, 0)} bytes are left")
    headers: list[tuple[str | bytes, bytes | None]] = []
    for _ in range(count):
        key, at = _take(data, at, end, "header key")
        if key is None:
            raise MalformedError("a record's header has no key")
        value, at = _take(data, at, end, "header value")
        headers.append((key, value))
    return tuple(headers), at
