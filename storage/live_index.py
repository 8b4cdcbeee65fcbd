"""Offset and time index of a segment in a live log: grown in memory, written out in pieces, looked up by readers.

A crash loses what was not written out: recovery rebuilds the indexes of every segment from the recovery point on, and a
flush writes them before it lets that point pass. So the files need no preallocation, and no mapping that a full disk or
a truncation could turn into a fault of the process. What a closed segment's files hold is byte for byte Kafka's.

One owner appends and truncates; any thread looks up. Everything a lookup reads is replaced in one assignment.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from compactd.storage import files
from compactd.storage.kernel.lookup import floor_entry
from compactd.storage.time_index import LARGEST_RELATIVE

#: Bytes of entries kept in memory for all partitions of a process, beside those not written out yet.
DEFAULT_CACHE_BYTES = 64 << 20
#: Entries are written out when so many bytes of them have gathered.
_WRITE_FROM = 1 << 16
#: One of so many lookups (and one more) moves the entries to the front of the cache.
_TELL_EVERY = 31

#: Finds the path of an index file, which renames change.
PathOf = Callable[[], str]


class _Entries(NamedTuple):
    #: What the file holds; None: not in memory.
    stored: bytes | None
    #: Bytes of whole entries in the file.
    stored_bytes: int
    #: Entries after those, not in the file yet.
    pending: bytearray


class IndexCache:
    """Forgets the least recently used indexes' entries when they take too much memory. Shared by all threads."""

    def __init__(self, most_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._lock = threading.Lock()
        self._recent: OrderedDict[LiveIndex, int] = OrderedDict()

    def used(self, index: LiveIndex, size: int) -> None:
        """`index` was read and has `size` bytes in memory."""
        with self._lock:
            self.bytes += size - self._recent.pop(index, 0)
            self._recent[index] = size
            while self.bytes > self.most_bytes and len(self._recent) > 1:
                oldest, freed = self._recent.popitem(last=False)
                self.bytes -= freed
                oldest.forget()

    def gone(self, index: LiveIndex) -> None:
        """`index` has nothing in memory any more."""
        with self._lock:
            self.bytes -= self._recent.pop(index, 0)


class LiveIndex:
    """Entries of one kind of one segment. Subclasses say what an entry is."""

    entry: struct.Struct
    #: First byte and size of both values of an entry.
    columns: tuple[tuple[int, int], tuple[int, int]]

    def __init__(
        self, base_offset: int, most_bytes: int, path: PathOf, names_lock: threading.RLock, cache: IndexCache
    ) -> None:
        """`names_lock` is held while the path is asked for and the file opened: renames hold it too."""
        self.base_offset = base_offset
        #: segment.index.bytes in whole entries.
        self.most_entries = most_bytes // self.entry.size
        self._path = path
        self._names_lock = names_lock
        self._cache = cache
        self._entries: _Entries | None = None
        #: Counts readers, of which some tell the cache that the entries are in use.
        self._turn = 0
        #: The file holds bytes that are not among the entries: it has to be cut when it is written.
        self._longer = False

    def __len__(self) -> int:
        _, size, pending = self._attached()
        return (size + len(pending)) // self.entry.size

    def begin(self, entries: bytes = b"") -> None:
        """These entries, of which none is in a file yet, whatever one of that name holds."""
        self._entries = _Entries(b"", 0, bytearray(entries))
        self._longer = True

    def all_bytes(self) -> bytes:
        """Every entry as in the file of a closed segment."""
        stored, pending = self._loaded()
        return stored + pending

    def last(self) -> tuple[int, int] | None:
        """The last entry as it is stored, offsets relative; None when there is none."""
        _, size, pending = self._attached()
        if pending:
            return self._at(pending, len(pending) // self.entry.size - 1)
        if not size:
            return None
        stored, _ = self._loaded()
        return self._at(stored, size // self.entry.size - 1)

    def forget(self) -> None:
        """Gives back the memory of the entries that are in the file."""
        found = self._entries
        if found is not None and found.stored:
            self._entries = found._replace(stored=None)

    def write_out(self, sync: bool = False) -> None:
        """Brings the file to the entries there are; makes it if it is absent. StorageIOError."""
        stored, size, pending = self._attached()
        path = self._path()
        with files.open_append(path, size) as output:
            if pending:
                output.write(pending)
            if self._longer:
                output.truncate(size + len(pending))
            if sync:
                output.sync()
        self._longer = False
        if pending:
            stored = None if stored is None else stored + pending
            self._entries = _Entries(stored, size + len(pending), bytearray())

    def close(self) -> None:
        """Nothing is asked of this index any more."""
        self._cache.gone(self)

    def _append(self, *values: int) -> None:
        _, _, pending = self._attached()
        pending += self.entry.pack(*values)
        if len(pending) >= _WRITE_FROM:
            self.write_out()

    def _cut(self, entries: int) -> None:
        """Drops every entry from number `entries` on."""
        stored, pending = self._loaded()
        keep = entries * self.entry.size
        if keep < len(stored):
            self._longer = True
            self._entries = _Entries(stored[:keep], keep, bytearray())
        else:
            self._entries = _Entries(stored, len(stored), bytearray(pending[: keep - len(stored)]))

    def _floor(self, target: int, column: int = 0) -> tuple[int, int] | None:
        """The last entry whose value in `column` is at most `target`, and None when there is none."""
        slot = self._floor_slot(target, column)
        return None if slot < 0 else self._entry(slot)

    def _entry(self, slot: int) -> tuple[int, int] | None:
        """Entry number `slot`; None when the owner truncated the index since the number was found."""
        _, size, pending = self._attached()
        width = self.entry.size
        try:
            if slot * width >= size:
                return self._at(pending, slot - size // width)
            return self._at(self._loaded()[0], slot)
        except struct.error:
            return None

    def _floor_slot(self, target: int, column: int) -> int:
        _, size, pending = self._attached()
        width = self.entry.size
        at, wide = self.columns[column]
        # Readers at the end of the log are the rule: their entry is rarely in the file.
        if pending and self.entry.unpack_from(pending)[column] <= target:
            return size // width + floor_entry(pending, width, at, wide, target)
        return floor_entry(self._loaded()[0], width, at, wide, target)

    def _at(self, data: bytes | bytearray, slot: int) -> tuple[int, int]:
        first, second = self.entry.unpack_from(data, slot * self.entry.size)
        return first, second

    def _attached(self) -> _Entries:
        """Looks at the file once: its length tells how many entries there are."""
        found = self._entries
        if found is None:
            with self._names_lock:
                try:
                    length = os.stat(self._path()).st_size  # noqa: PTH116
                except FileNotFoundError:
                    length = 0
            whole = min(length, LARGEST_RELATIVE) // self.entry.size * self.entry.size
            self._longer = whole != length
            found = self._entries = _Entries(None if whole else b"", whole, bytearray())
        return found

    def _loaded(self) -> tuple[bytes, bytearray]:
        """(entries in the file, entries that are not)"""
        found = self._attached()
        stored = found.stored
        if stored is None:
            stored = self._read(found.stored_bytes)
            if self._entries is found:  # else the owner changed it meanwhile; this reader's copy is good all the same
                self._entries = found._replace(stored=stored)
        self._cache.used(self, len(stored))
        return stored, found.pending

    def _read(self, size: int) -> bytes:
        with self._names_lock:
            return files.read_file(self._path(), LARGEST_RELATIVE)[:size]


class LiveOffsetIndex(LiveIndex):
    """Relative offset of a batch's last record to the batch's position (facts 2.5)."""

    entry = struct.Struct(">ii")
    columns = ((0, 4), (4, 4))

    @property
    def is_full(self) -> bool:
        return len(self) >= self.most_entries

    def append(self, offset: int, position: int) -> None:
        """The batch at `position` ends at `offset`. A full index stays as it is: it is a help for finding, no more."""
        if not self.is_full:
            self._append(offset - self.base_offset, position)

    def entries_for(self, offset: int) -> bytes | bytearray:
        """The entries among which the last one at or below `offset` is, in offset order; none: there is no such entry.

        Not to be held: the owner adds to them.
        """
        found = self._entries or self._attached()
        pending = found.pending
        if pending and self.base_offset + int.from_bytes(pending[:4], "big") <= offset:
            return pending
        stored = found.stored
        if stored is None or not self._turn:
            stored = self._loaded()[0]
        self._turn = (self._turn + 1) & _TELL_EVERY
        return stored

    def lookup(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or below `offset`; (base offset, 0) when there is none."""
        found = self._floor(offset - self.base_offset)
        return (self.base_offset, 0) if found is None else (self.base_offset + found[0], found[1])

    def upper_bound(self, position: int) -> int | None:
        """Offset of the first entry at or above `position` (OffsetIndex.fetchUpperBoundOffset); None when there is none."""
        found = self._entry(self._floor_slot(position - 1, 1) + 1)
        return None if found is None else self.base_offset + found[0]

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset when there is none."""
        found = self.last()
        return self.base_offset if found is None else self.base_offset + found[0]

    def truncate_to(self, offset: int) -> None:
        """Drops entries at or above `offset`."""
        self._cut(self._floor_slot(offset - self.base_offset - 1, 0) + 1)


class LiveTimeIndex(LiveIndex):
    """Largest timestamp so far to the last offset of the batch that first reached it, relative (facts 2.6)."""

    entry = struct.Struct(">qi")
    columns = ((0, 8), (8, 4))

    @property
    def is_full(self) -> bool:
        """One entry early: the last place is kept for the closing entry."""
        return len(self) >= self.most_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        found = self.last()
        return (-1, self.base_offset) if found is None else (found[0], self.base_offset + found[1])

    def maybe_append(self, timestamp: int, offset: int, closing: bool = False) -> None:
        """Adds an entry if `timestamp` is above the last one's. A full index takes only the closing entry."""
        if timestamp > self.last_entry[0] and (closing or not self.is_full):
            self._append(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or below `timestamp`; (-1, base offset) when there is none."""
        found = self._floor(timestamp)
        return (-1, self.base_offset) if found is None else (found[0], self.base_offset + found[1])

    def truncate_to(self, offset: int) -> None:
        """Drops entries at or above `offset`."""
        self._cut(self._floor_slot(offset - self.base_offset - 1, 1) + 1)
