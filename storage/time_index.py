"""The time index of a segment, `.timeindex` (Kafka's TimeIndex; facts 2.6, 2.7 and 10.4).

Entries of 12 bytes: int64 timestamp in ms, int32 offset relative to the segment's base. The timestamp is the largest so
far, the offset the LAST one of the batch that first reached it. Timestamps strictly increase; a log without timestamps
has no entries.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator

from compactd.config.errors import CorruptFileError
from compactd.storage import files

ENTRY_SIZE = 12
#: Offsets in an index are at most this far from the segment's base, and index files at most this long.
LARGEST_RELATIVE = 2**31 - 1
#: Advice for a damaged offset or time index: nothing in it cannot be had from the log.
REBUILD = "Remove this segment's .index and .timeindex: Kafka rebuilds them from the .log when it next starts."

_ENTRY = struct.Struct(">qi")


class TimeIndex:
    """The entries of one time index, read at once. Immutable."""

    def __init__(self, path: str, base_offset: int, data: bytes, file_bytes: int | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        #: Length of the file, preallocated tail and all; `data` may leave zeros at the end out.
        self.file_bytes = len(data) if file_bytes is None else file_bytes
        self._timestamps: list[int] = []
        self._offsets: list[int] = []
        #: Where the entries stop increasing; None in a sound index.
        self._broken_at: int | None = None
        for timestamp, relative in _ENTRY.iter_unpack(_used(data, self.file_bytes)):
            if self._timestamps and (timestamp <= self._timestamps[-1] or relative < self._offsets[-1]):
                self._broken_at = len(self._timestamps)
                break
            self._timestamps.append(timestamp)
            self._offsets.append(relative)

    @classmethod
    def read(cls, path: files.StrPath, base_offset: int) -> TimeIndex:
        """Reads the whole entries of the file, up to preallocated zeros or the first entry that does not increase.

        StorageIOError when it cannot be read. `check` tells what was left out.
        """
        name = os.fspath(path)
        return cls(name, base_offset, *files.read_sparse(name, LARGEST_RELATIVE))

    @classmethod
    def empty(cls, base_offset: int) -> TimeIndex:
        """An index without entries, as an absent file counts."""
        return cls("", base_offset, b"")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(timestamp, offset) of every entry."""
        return [(time, self.base_offset + offset) for time, offset in zip(self._timestamps, self._offsets, strict=True)]

    @property
    def used_bytes(self) -> int:
        """Bytes of the valid entries: what the grouping of segments counts."""
        return len(self._timestamps) * ENTRY_SIZE

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or below `timestamp`; (-1, base offset) when there is none."""
        slot = bisect_right(self._timestamps, timestamp)
        if slot == 0:
            return -1, self.base_offset
        return self._timestamps[slot - 1], self.base_offset + self._offsets[slot - 1]

    def check(self) -> Iterator[CorruptFileError]:
        """Yields every fault. Zeros at the end are none."""
        if self.file_bytes % ENTRY_SIZE:
            yield self._fault(f"the length {self.file_bytes} is no multiple of {ENTRY_SIZE}", self.file_bytes)
        if self._broken_at is not None:
            yield self._fault(f"entry {self._broken_at} does not increase", self._broken_at * ENTRY_SIZE)
        if self._timestamps and self._timestamps[0] < 0:
            yield self._fault(f"entry 0 has timestamp {self._timestamps[0]}", 0)
        if self._offsets and self._offsets[0] < 0:
            yield self._fault("entry 0 lies below the base offset", 0)

    def _fault(self, reason: str, position: int) -> CorruptFileError:
        return CorruptFileError(path=self.path, reason=reason, position=position, advice=REBUILD)


class TimeIndexBuilder:
    """Grows the bytes of a time index by TimeIndex.maybeAppend's rule."""

    def __init__(self, base_offset: int, most_bytes: int = LARGEST_RELATIVE) -> None:
        self.base_offset = base_offset
        #: segment.index.bytes, rounded down to whole entries.
        self.most_entries = most_bytes // ENTRY_SIZE
        self._entries = bytearray()
        self._last_timestamp = -1
        self._last_offset = base_offset

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_SIZE

    def __bytes__(self) -> bytes:
        return bytes(self._entries)

    @property
    def is_full(self) -> bool:
        """One entry early: the last place is kept for the closing entry."""
        return len(self) >= self.most_entries - 1

    def maybe_append(self, timestamp: int, offset: int, closing: bool = False) -> None:
        """Adds an entry if `timestamp` is above the last one; an equal one changes nothing.

        ValueError: full (unless `closing`), offset or timestamp below the last entry's, or an offset that does not fit.
        """
        relative = offset - self.base_offset
        if not 0 <= relative <= LARGEST_RELATIVE:
            raise ValueError(f"offset {offset} does not fit an index based at {self.base_offset}")
        if not closing and self.is_full:
            raise ValueError(f"the index holds its {self.most_entries - 1} entries already")
        if self._entries and offset < self._last_offset:
            raise ValueError(f"offset {offset} is below the last entry's {self._last_offset}")
        if self._entries and timestamp < self._last_timestamp:
            raise ValueError(f"timestamp {timestamp} is below the last entry's {self._last_timestamp}")
        if timestamp > self._last_timestamp:
            self._entries += _ENTRY.pack(timestamp, relative)
            self._last_timestamp, self._last_offset = timestamp, offset


def _used(data: bytes, file_bytes: int) -> bytes:
    """The whole entries before the zeros at the end."""
    whole = file_bytes - file_bytes % ENTRY_SIZE
    used = min(-(-len(data.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE, whole)
    # Only a first entry may be all zeros (timestamp 0 at the base offset). Alone in a file cut to one entry it counts;
    # alone in a longer file it cannot be told from preallocated room.
    if used == 0 and whole == ENTRY_SIZE:
        used = ENTRY_SIZE
    return data[:used].ljust(used, b"\0")
