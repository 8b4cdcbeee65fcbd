"""Zig-zag LEB128 integers as in RecordBatch V2 records (Kafka's ByteUtils, facts 2.2).

An int32 takes at most 5 bytes and an int64 at most 10; bits beyond the type's width are dropped, as Kafka drops them.
"""

from __future__ import annotations

_SINGLE = [bytes((n,)) for n in range(0x80)]


class MalformedError(ValueError):
    """Bytes that do not follow their format. The text becomes the reason of a CorruptBatchError."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The int32 at `position` and the position after it. Raises MalformedError."""
    return _read(data, position, 5, 0xFFFFFFFF)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """The int64 at `position` and the position after it. Raises MalformedError."""
    return _read(data, position, 10, 0xFFFFFFFFFFFFFFFF)


def _read(data: bytes, position: int, most: int, mask: int) -> tuple[int, int]:
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        value, shift = byte & 0x7F, 7
        for at in range(position + 1, position + most):
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= mask
                return (value >> 1) ^ -(value & 1), at + 1
            shift += 7
    except IndexError:
        raise MalformedError("a variable-length integer runs past the end") from None
    raise MalformedError(f"a variable-length integer is longer than {most} bytes")


def write_varint(value: int) -> bytes:
    """Encodes an int32 or an int64: the bytes are the same. Raises ValueError beyond int64."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit 64 bits")
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _SINGLE[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
