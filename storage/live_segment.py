"""One segment of a live log, as readers see it: `.log`, indexes and aborted transactions, whatever the files' names are.

The log's owner writes (storage.active_segment); any thread reads up to `size`, the bytes of whole batches. A segment that
is swapped out or deleted keeps working for those who still have it: its files are found under their new names, and an
open descriptor outlives them (Kafka's LogSegment; facts 1.6, 2.5 to 2.8).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

from compactd.config.errors import CorruptBatchError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.lookup import DAMAGED, ELSEWHERE, FOUND, find_batch, locate_batch
from compactd.storage.live_index import IndexCache, LiveOffsetIndex, LiveTimeIndex
from compactd.storage.names import LARGEST_OFFSET
from compactd.storage.open_files import OpenFile, OpenFiles, Slot
from compactd.storage.records.batch import HEADER_SIZE, Batch, BatchHeader, read_header
from compactd.storage.time_index import LARGEST_RELATIVE
from compactd.storage.transaction_index import read_transaction_index

#: Read at once when looking for a batch: the default distance of index entries and a header.
_LOOK = 4096 + HEADER_SIZE
_GLANCE = 128
_LARGE_BATCH = 2048
_SCAN = 1 << 18


#: Makes a file name of base offset and suffix: names.log_name and its like.
NameOf = Callable[[int, str], str]


class Home:
    """A partition's directory: one object for all its segments, so that a rename reaches them all at once."""

    __slots__ = ("lock", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        #: Held while a name is changed, and while a file is opened by its name: so that nobody opens what has just been
        #: renamed, or the file that took over a name.
        self.lock = threading.RLock()


@dataclass(slots=True)
class Resources:
    """What all partitions of a process share."""

    files: OpenFiles = field(default_factory=OpenFiles)
    indexes: IndexCache = field(default_factory=IndexCache)
    #: transaction.partition.verification.enable: the first batch of a transaction has to be verified (KIP-890).
    verifies_transactions: bool = False


class Located(NamedTuple):
    """Where a batch lies."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class LiveSegment:
    """Offsets are absolute, sizes and positions bytes, times ms."""

    def __init__(
        self,
        home: Home,
        base_offset: int,
        config: TopicConfig,
        resources: Resources,
        *,
        size: int,
        created_ms: int,
        suffix: str = "",
    ) -> None:
        self.home = home
        self.base_offset = base_offset
        self.suffix = suffix
        #: Bytes of whole batches: readers go no further.
        self.size = size
        #: When this object was made: stands in for a first timestamp when it is decided whether to roll.
        self.created_ms = created_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.roll_jitter_ms = _jitter(config)
        index_bytes, cache = config.segment_index_bytes, resources.indexes
        self.offsets = LiveOffsetIndex(base_offset, index_bytes, self._offset_index_path, home.lock, cache)
        self.times = LiveTimeIndex(base_offset, index_bytes, self._time_index_path, home.lock, cache)
        self.resources = resources
        self._slot = Slot()
        #: Bytes to read when looking for a batch: where batches are large, only a header is of use.
        self._look = _LOOK
        #: (largest timestamp, last offset of the batch that first reached it); None: not read from the time index yet.
        self._largest: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self._aborted: tuple[AbortedTransaction, ...] | None = None

    def __repr__(self) -> str:
        return f"LiveSegment({self.path(names.log_name)}, size={self.size})"

    # ---- names

    def path(self, name: NameOf) -> str:
        """Path of the segment's file that `name` (names.log_name, names.offset_index_name…) makes, as it is called now."""
        return f"{self.home.path}/{name(self.base_offset, self.suffix)}"

    @property
    def log_path(self) -> Path:
        return Path(self._log_path())

    @property
    def offset_index(self) -> LiveOffsetIndex:
        return self.offsets

    def _log_path(self) -> str:
        return self.path(names.log_name)

    def _offset_index_path(self) -> str:
        return self.path(names.offset_index_name)

    def _time_index_path(self) -> str:
        return self.path(names.time_index_name)

    def existing_files(self) -> list[str]:
        """Names, without suffix, of the segment's files that exist; the .log first."""
        makers = (names.log_name, names.offset_index_name, names.time_index_name, names.transaction_index_name)
        return [make(self.base_offset) for make in makers if os.path.exists(self.path(make))]  # noqa: PTH110

    def change_suffix(self, suffix: str) -> None:
        """Renames every file of the segment; readers find them under either name. StorageIOError."""
        with self.home.lock:
            for name in self.existing_files():
                files.rename(f"{self.home.path}/{name}{self.suffix}", f"{self.home.path}/{name}{suffix}")
            self.suffix = suffix

    # ---- the open file

    def acquire(self) -> OpenFile:
        """The .log open for reading, held: release it. FileNotFoundError when it was removed; StorageIOError."""
        return self.resources.files.acquire(self._slot, self._open)

    def acquire_writable(self) -> OpenFile:
        """The .log open for writing behind `size`, held. StorageIOError, also when the file is shorter than it was left."""
        return self.resources.files.acquire(self._slot, self._open_writable, writable=True)

    def keep_open(self, output: files.Output) -> None:
        """Takes over the descriptor with which the .log was made."""
        self.resources.files.acquire(
            self._slot, lambda: OpenFile(self.resources.files, output.fileno(), output), writable=True
        ).release()

    def close(self) -> None:
        """Closes what is open once nobody holds it; the segment can be read again all the same."""
        self.resources.files.forget(self._slot)
        self.offsets.close()
        self.times.close()

    def _open(self) -> OpenFile:
        with self.home.lock:
            path = self._log_path()
            try:
                return OpenFile(self.resources.files, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                raise
            except OSError as error:
                raise files.failed(path, "open", error) from error

    def _open_writable(self) -> OpenFile:
        output = files.open_existing(self._log_path())
        found = os.fstat(output.fileno()).st_size
        if found < self.size:
            output.close()
            raise StorageIOError(
                path=output.path, action="open", reason=f"it has {found} bytes where {self.size} were written", errno=0
            )
        output.seek(self.size)
        return OpenFile(self.resources.files, output.fileno(), output)

    # ---- timestamps

    @property
    def largest(self) -> tuple[int, int]:
        """(largest record timestamp or -1, last offset of the batch that first reached it)."""
        if self._largest is None:
            self._largest = self.times.last_entry
        return self._largest

    @largest.setter
    def largest(self, value: tuple[int, int] | None) -> None:
        self._largest = value

    @property
    def max_timestamp(self) -> int:
        """Largest record timestamp; -1 where no record has one."""
        return self.largest[0]

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, or the .log's modification time where no record has one."""
        largest = self.largest[0]
        return largest if largest >= 0 else self.last_modified_ms

    @property
    def last_modified_ms(self) -> int:
        return files.mtime_ms(self._log_path())

    def note_first_timestamp(self, timestamp: int | None) -> None:
        """The owner wrote the first batch, or (None) emptied the segment."""
        self._first_timestamp = timestamp

    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch; -1 when it has none, or the segment no batch."""
        if self._first_timestamp is None:
            header = next(self.headers(0, self.size), None)
            if header is None:
                return -1
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    @property
    def first_batch_timestamp(self) -> int:
        """As the choice of what to compact counts: largest value where there is none (LogSegment.getFirstBatchTimestamp)."""
        found = self.first_timestamp()
        return found if found >= 0 else LARGEST_OFFSET

    # ---- aborted transactions

    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The segment's transaction index. CorruptFileError, StorageIOError."""
        if self._aborted is None:
            self._aborted = tuple(read_transaction_index(self.path(names.transaction_index_name), self.base_offset))
        return self._aborted

    def set_aborted(self, entries: tuple[AbortedTransaction, ...]) -> None:
        """What the owner has made of the index."""
        self._aborted = entries

    # ---- batches

    def fits(self, offset: int) -> bool:
        """Whether the indexes can express the offset."""
        return 0 <= offset - self.base_offset <= LARGEST_RELATIVE

    def locate(self, offset: int, held: OpenFile | None = None) -> Located | None:
        """The first batch that ends at or above `offset`; None when there is none in this segment.

        An index entry is believed only if a batch is where it says that ends no later than it says; else the segment is
        searched from its start. `held`: the .log, where the caller has it open. Raises CorruptBatchError,
        FileNotFoundError (removed), StorageIOError.
        """
        if held is None:
            held = self.acquire()
            try:
                return self.locate(offset, held)
            finally:
                held.release()
        if locate_batch is not None:
            entries = self.offsets.entries_for(offset)
            place = locate_batch(entries, self.base_offset, offset, held.fileno(), self.size, self._look)
            if place is not None:
                self._look = _GLANCE if place[1] >= _LARGE_BATCH else _LOOK
                return tuple.__new__(Located, place)
        expected, position = self.offsets.lookup(offset)
        if 0 < position < self.size:
            try:
                found = self._search(held, position, offset, expected)
            except CorruptBatchError:
                found = _NOT_THERE
            if found is not _NOT_THERE:
                return found
        return self._search(held, 0, offset, None)

    def _search(self, held: OpenFile, position: int, offset: int, expected: int | None) -> Located | None:
        fd, end = held.fileno(), self.size
        while position < end:
            data = self._pread(fd, self._look, position)
            outcome, at, size, base, last = find_batch(data, end - position, offset, expected)
            self._look = _GLANCE if max(at, size) >= _LARGE_BATCH else _LOOK
            if outcome == FOUND:
                return Located(position + at, size, base, last)
            if outcome == ELSEWHERE:
                return _NOT_THERE
            if outcome == DAMAGED or at == 0:
                self._damaged(data[at:], position + at)
            position, expected = position + at, None
        return None

    def headers(self, position: int = 0, limit: int | None = None) -> Iterator[BatchHeader]:
        """Headers of the batches from byte `position` on. Raises CorruptBatchError, FileNotFoundError, StorageIOError."""
        end = self.size if limit is None else min(limit, self.size)
        if position >= end:
            return
        held = self.acquire()
        try:
            data, at = b"", 0
            while position < end:
                if len(data) - at < HEADER_SIZE:
                    data, at = self._pread(held.fileno(), _SCAN, position), 0
                header = read_header(data, at, self._log_path(), file_position=position)
                if header.size > end - position:
                    header.corrupt(
                        self._log_path(), f"truncated, {end - position} of its {header.size} bytes are there"
                    )
                yield header
                position += header.size
                at += header.size
        finally:
            held.release()

    def batch(self, header: BatchHeader) -> Batch:
        """The whole batch of a header that `headers` gave."""
        held = self.acquire()
        try:
            return Batch(header, self._pread(held.fileno(), header.size, header.position), self._log_path())
        finally:
            held.release()

    def read(self, position: int, length: int) -> bytes:
        """Bytes of the .log."""
        held = self.acquire()
        try:
            return self._pread(held.fileno(), length, position)
        finally:
            held.release()

    def _pread(self, fd: int, length: int, position: int) -> bytes:
        try:
            return os.pread(fd, length, position)
        except OSError as error:
            raise files.failed(self._log_path(), "read", error) from error

    def _damaged(self, data: bytes, position: int) -> NoReturn:
        """Raises CorruptBatchError with what is wrong with the batch."""
        path = self._log_path()
        header = read_header(data[:HEADER_SIZE], 0, path, file_position=position)
        header.corrupt(path, f"its {header.size} bytes reach over the end of the segment")


#: No batch ends where the index said.
_NOT_THERE = Located(-1, -1, -1, -1)


def _jitter(config: TopicConfig) -> int:
    """Drawn once for each segment, so that the segments of many partitions do not roll at the same moment."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return random.randrange(most) if most > 0 else 0
