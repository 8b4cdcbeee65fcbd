"""Finding the place of a fetch: the entry of an index, and the batch behind it (facts 2.5, 2.6).

The executable specification of `storage/kernel/native/src/log/lookup.rs`.
"""

from __future__ import annotations

import struct

#: What became of a search: found; no such batch in these bytes (go on behind them, or at a header that they cut); no batch
#: header where one has to be; the first batch is not the expected one.
FOUND, GO_ON, DAMAGED, ELSEWHERE = range(4)

#: (outcome, position in the bytes, size, base offset, last offset)
Place = tuple[int, int, int, int, int]

_PREFIX = struct.Struct(">qi")
_DELTA = struct.Struct(">i")
_VALUES = {4: struct.Struct(">i"), 8: struct.Struct(">q")}
_LOG_OVERHEAD = 12
_MAGIC = 16
_LAST_DELTA = 23
_SMALLEST_ENTRY = 26
_LARGEST_OFFSET = 2**63 - 1


def floor_entry(data: bytes | bytearray, width: int, at: int, size: int, target: int, /) -> int:
    """Number of the last entry whose value is at most `target`; -1 when there is none.

    Entries are `width` bytes; the value is the big-endian integer of `size` (4 or 8) bytes from byte `at` of an entry on.
    """
    read = _VALUES[size].unpack_from
    low, high = 0, len(data) // width
    while low < high:
        middle = (low + high) >> 1
        if read(data, middle * width + at)[0] <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


def find_batch(data: bytes, left: int, offset: int, expected: int | None, /) -> Place:
    """Looks in `data`, which starts with a batch, for the first batch that ends at or above `offset`.

    `left`: bytes of the segment from there on. `expected`: the offset of the index entry that led here. The first batch ends
    there, or before where a broker older than 3.9 appended several batches at once and indexed the first by the offset of
    the last. Then nothing that ends at or above `offset` lies before it, for `offset` is not below that of the entry.
    """
    at = 0
    while True:
        if len(data) - at <= _MAGIC:
            return GO_ON, at, 0, 0, 0
        base, length = _PREFIX.unpack_from(data, at)
        size, magic, delta = length + _LOG_OVERHEAD, data[at + _MAGIC], 0
        if magic > 2:
            return DAMAGED, at, 0, 0, 0
        if magic == 2:
            if len(data) - at < _LAST_DELTA + _DELTA.size:
                return GO_ON, at, 0, 0, 0
            delta = _DELTA.unpack_from(data, at + _LAST_DELTA)[0]
        if size < _SMALLEST_ENTRY or size > left - at or base < 0 or delta < 0:
            return DAMAGED, at, 0, 0, 0
        last = min(base + delta, _LARGEST_OFFSET)
        if at == 0 and expected is not None and last > expected:
            return ELSEWHERE, 0, 0, 0, 0
        if last >= offset:
            return FOUND, at, size, base, last
        at += size
        if at >= left:
            return GO_ON, at, 0, 0, 0
