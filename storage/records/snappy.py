"""A snappy block encoder that finds the matches which libsnappy 1.1.10 finds, as Kafka's snappy-java carries it.

Any encoder would be read by everybody; this one is here so that rewritten batches get Kafka's bytes. The format: the
length of the data as a varint, then literals and copies from what was already written.
"""

from __future__ import annotations

_HASH_MULTIPLIER = 0x1E35A7BD
_MIN_TABLE = 1 << 8
_MAX_TABLE = 1 << 14
#: No match is looked for in the last bytes of a block.
_MARGIN = 15


def compress_block(data: bytes) -> bytes:
    """One raw block. Raises ValueError beyond 65536 bytes, where libsnappy would begin another fragment."""
    if len(data) > 1 << 16:
        raise ValueError(f"{len(data)} bytes are more than one fragment")
    out = bytearray()
    length = len(data)
    while length > 0x7F:
        out.append((length & 0x7F) | 0x80)
        length >>= 7
    out.append(length)
    copied_up_to = 0
    for start, distance, length in _matches(data):
        _put_literal(out, data[copied_up_to:start])
        _put_copy(out, distance, length)
        copied_up_to = start + length
    _put_literal(out, data[copied_up_to:])
    return bytes(out)


def _matches(data: bytes) -> list[tuple[int, int, int]]:
    """Start, distance back and length of each copy."""
    found: list[tuple[int, int, int]] = []
    limit = len(data) - _MARGIN
    if limit < 0:
        return found
    mask = min(max(_MIN_TABLE, 1 << (len(data) - 1).bit_length()), _MAX_TABLE) - 1
    #: The last position whose 4 bytes have this hash. Positions that share a hash push one another out.
    table = [0] * (mask + 1)

    def exchange(position: int) -> tuple[int, bytes]:
        four = data[position : position + 4]
        slot = (int.from_bytes(four, "little") * _HASH_MULTIPLIER & 0xFFFFFFFF) >> 18 & mask
        candidate, table[slot] = table[slot], position
        return candidate, four

    at = 1
    while True:
        # Byte by byte at first; after 32 positions in vain every second, then every third...
        patience = 32
        while True:
            step = patience >> 5
            patience += step
            if at + step > limit:
                return found
            candidate, four = exchange(at)
            if data[candidate : candidate + 4] == four:
                break
            at += step
        while True:
            length = 4 + _common(data, candidate + 4, at + 4)
            found.append((at, at - candidate, length))
            at += length
            if at >= limit:
                return found
            exchange(at - 1)
            candidate, four = exchange(at)
            if data[candidate : candidate + 4] != four:
                break
        at += 1


def _common(data: bytes, earlier: int, later: int) -> int:
    """How many bytes from `earlier` on equal those from `later` on."""
    length, end = 0, len(data) - later
    while (
        length + 16 <= end
        and data[earlier + length : earlier + length + 16] == data[later + length : later + length + 16]
    ):
        length += 16
    while length < end and data[earlier + length] == data[later + length]:
        length += 1
    return length


def _put_literal(out: bytearray, data: bytes) -> None:
    if not data:
        return
    length = len(data) - 1
    if length < 60:
        out.append(length << 2)
    elif length < 1 << 8:
        out += bytes((60 << 2, length))
    else:
        out += bytes((61 << 2, length & 0xFF, length >> 8))
    out += data


def _put_copy(out: bytearray, distance: int, length: int) -> None:
    """Copies of 64 bytes, and what is left of at least 4 in one or two more."""
    while length >= 68:
        _put_long_copy(out, distance, 64)
        length -= 64
    if length > 64:
        _put_long_copy(out, distance, 60)
        length -= 60
    if length < 12 and distance < 2048:
        out += bytes(((distance >> 8 << 5) | (length - 4 << 2) | 1, distance & 0xFF))
    else:
        _put_long_copy(out, distance, length)


def _put_long_copy(out: bytearray, distance: int, length: int) -> None:
    out += bytes((length - 1 << 2 | 2, distance & 0xFF, distance >> 8))
