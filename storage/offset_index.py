"""The offset index of a segment, `.index` (Kafka's OffsetIndex; facts 2.5, 2.7 and 10.4).

Entries of 8 bytes: int32 offset relative to the segment's base, int32 position in the .log of the START of the batch
whose LAST offset that is; strictly increasing. The file of an open or crashed segment is preallocated, ending in zeros.
"""

from __future__ import annotations

import operator
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from compactd.config.errors import CorruptFileError
from compactd.storage import files
from compactd.storage.time_index import LARGEST_RELATIVE, REBUILD, TimeIndex, TimeIndexBuilder

ENTRY_SIZE = 8


class OffsetIndex:
    """The entries of one offset index, read at once. Immutable."""

    def __init__(self, path: str, base_offset: int, data: bytes, file_bytes: int | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        #: Length of the file, preallocated tail and all; `data` may leave zeros at the end out.
        self.file_bytes = len(data) if file_bytes is None else file_bytes
        self._offsets, self._positions = _columns(data, self.file_bytes)
        #: Where the entries stop being strictly increasing; None in a sound index.
        self._broken_at = _first_disorder(self._offsets)
        if self._broken_at is not None:
            del self._offsets[self._broken_at :], self._positions[self._broken_at :]

    @classmethod
    def read(cls, path: files.StrPath, base_offset: int) -> OffsetIndex:
        """Reads the whole entries of the file; StorageIOError when it cannot be read.

        Kafka takes every whole entry as valid on opening, since it grows and cuts the file itself. This reader also
        meets files nobody cut: entries end before the zeros of a preallocated file, and before the first entry that
        does not increase. `check` tells what was left out.
        """
        name = os.fspath(path)
        return cls(name, base_offset, *files.read_sparse(name, LARGEST_RELATIVE))

    @classmethod
    def empty(cls, base_offset: int) -> OffsetIndex:
        """An index without entries."""
        return cls("", base_offset, b"")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(offset, position) of every entry."""
        return [
            (self.base_offset + offset, place) for offset, place in zip(self._offsets, self._positions, strict=True)
        ]

    @property
    def used_bytes(self) -> int:
        """Bytes of the valid entries: what the grouping of segments counts."""
        return len(self._offsets) * ENTRY_SIZE

    @property
    def last_entry(self) -> tuple[int, int]:
        """(offset, position) of the last entry; (base offset, 0) when there is none."""
        if not self._offsets:
            return self.base_offset, 0
        return self.base_offset + self._offsets[-1], self._positions[-1]

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or below `offset`; (base offset, 0) when there is none."""
        slot = bisect_right(self._offsets, offset - self.base_offset)
        if slot == 0:
            return self.base_offset, 0
        return self.base_offset + self._offsets[slot - 1], self._positions[slot - 1]

    def check(self, log_size: int | None = None) -> Iterator[CorruptFileError]:
        """Yields every fault. With `log_size`, also positions that are outside the .log. Zeros at the end are none."""
        if self.file_bytes % ENTRY_SIZE:
            yield self._fault(f"the length {self.file_bytes} is no multiple of {ENTRY_SIZE}", self.file_bytes)
        if self._broken_at is not None:
            yield self._fault(f"entry {self._broken_at} does not increase", self._broken_at * ENTRY_SIZE)
        previous = -1
        for number, (relative, position) in enumerate(zip(self._offsets, self._positions, strict=True)):
            if position <= previous and number:
                yield self._fault(f"entry {number} goes back to log position {position}", number * ENTRY_SIZE)
            elif position < 0 or (log_size is not None and position >= log_size):
                yield self._fault(f"entry {number} has position {position} outside the log", number * ENTRY_SIZE)
            elif relative < 0:
                yield self._fault(f"entry {number} lies below the base offset", number * ENTRY_SIZE)
            previous = position

    def _fault(self, reason: str, position: int) -> CorruptFileError:
        return CorruptFileError(path=self.path, reason=reason, position=position, advice=REBUILD)


class OffsetIndexBuilder:
    """Builds both indexes of a segment from its batches in order: when an entry is due is decided for both at once.

    A batch gets an entry when more than `interval_bytes` were written since the last one, not counting itself: so the
    first batch never gets one, and interval 0 indexes every batch but the first (LogSegment.append, facts 10.4).
    """

    def __init__(self, base_offset: int, interval_bytes: int, most_index_bytes: int = LARGEST_RELATIVE) -> None:
        self.base_offset = base_offset
        #: Last offset of the batch that first reached `max_timestamp`.
        self.offset_of_max_timestamp = base_offset
        #: Largest timestamp so far in ms; -1 while no batch had one.
        self.max_timestamp = -1
        self._interval_bytes = interval_bytes
        self._since_last_entry = 0
        self._most_entries = most_index_bytes // ENTRY_SIZE
        self._last_relative = -1
        self._entries = bytearray()
        self._times = TimeIndexBuilder(base_offset, most_index_bytes)

    @property
    def is_full(self) -> bool:
        """Whether either index lacks room for another entry: then the segment has to be rolled (facts 10.5)."""
        return len(self._entries) // ENTRY_SIZE >= self._most_entries or self._times.is_full

    def append(self, last_offset: int, max_timestamp: int, position: int, size: int) -> None:
        """Takes in the next batch: last offset, largest timestamp (ms, -1 none), position in the .log, size in bytes.

        ValueError: an entry is due and an index is full, the offset does not increase, or it is further than
        2147483647 from the base.
        """
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset
        if self._since_last_entry > self._interval_bytes:
            self._add(last_offset, position)
            self._times.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
            self._since_last_entry = 0
        self._since_last_entry += size

    def close(self) -> None:
        """Adds the closing time entry, as a roll does. Further calls change nothing."""
        self._times.maybe_append(self.max_timestamp, self.offset_of_max_timestamp, closing=True)

    def offset_index_bytes(self) -> bytes:
        """The .index of a closed segment."""
        return bytes(self._entries)

    def time_index_bytes(self) -> bytes:
        """The .timeindex of a closed segment, after `close`."""
        return bytes(self._times)

    def offset_index(self) -> OffsetIndex:
        return OffsetIndex("", self.base_offset, self.offset_index_bytes())

    def time_index(self) -> TimeIndex:
        return TimeIndex("", self.base_offset, self.time_index_bytes())

    def _add(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        if not 0 <= relative <= LARGEST_RELATIVE:
            raise ValueError(f"offset {offset} does not fit an index based at {self.base_offset}")
        if len(self._entries) // ENTRY_SIZE >= self._most_entries:
            raise ValueError(f"the index holds its {self._most_entries} entries already")
        if relative <= self._last_relative:
            raise ValueError(f"offset {offset} is not above the last entry's {self.base_offset + self._last_relative}")
        self._entries += relative.to_bytes(4, "big") + position.to_bytes(4, "big")
        self._last_relative = relative


def _columns(data: bytes, file_bytes: int) -> tuple[array[int], array[int]]:
    """Relative offsets and positions of the whole entries before the zeros at the end."""
    # No entry is all zeros: the first batch of a segment gets none, and later ones have a position above 0.
    used = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE
    whole = min(used, file_bytes - file_bytes % ENTRY_SIZE)
    numbers = array("i", data[:whole].ljust(whole, b"\0"))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers[0::2], numbers[1::2]


def _first_disorder(offsets: array[int]) -> int | None:
    """Index of the first entry that is not above the one before it."""
    increases = map(operator.lt, offsets, islice(offsets, 1, None))
    if all(increases):
        return None
    return next(slot for slot in range(1, len(offsets)) if offsets[slot] <= offsets[slot - 1])
