"""Reading a live log: ranges of bytes for fetches, offsets by timestamp, aborted transactions (LocalLog.read, facts 2.8).

A fetch is answered with a file, a position and a length, so that a server can let the kernel send the bytes. The answer
starts with the first batch that ends at or above the offset asked for: inside a gap that compaction left, that is the
next batch, in the next segment if need be. As in Kafka the range may end inside a batch; clients pass over the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from compactd.config.errors import StorageIOError
from compactd.storage import files
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.timestamps import record_at_time
from compactd.storage.live_segment import LiveSegment, Located
from compactd.storage.local_log import OffsetPosition, View
from compactd.storage.open_files import OpenFile
from compactd.storage.records.batch import Batch, BatchHeader

#: How far a reader may see: to the end, to the high watermark, or to the last stable offset.
Isolation = Literal["log_end", "high_watermark", "committed"]


class Range:
    """Bytes of one file, held open until `close`: for os.pread and os.sendfile."""

    __slots__ = ("_file", "length", "position")

    def __init__(self, file: OpenFile | None, position: int, length: int) -> None:
        self._file = file
        self.position = position
        self.length = length

    def fileno(self) -> int:
        """ValueError when the range is empty or closed."""
        if self._file is None:
            raise ValueError("this range has no file")
        return self._file.fileno()

    def read(self) -> bytes:
        """The bytes; StorageIOError when they cannot be read."""
        if self._file is None or not self.length:
            return b""
        try:
            return os.pread(self._file.fileno(), self.length, self.position)
        except OSError as error:
            raise files.failed("a segment that is being read", "read", error) from error

    def read_into(self, buffer: bytearray | memoryview) -> int:
        """Reads the bytes to the front of a buffer that has room for them; returns how many. StorageIOError."""
        if self._file is None or not self.length:
            return 0
        try:
            if len(buffer) != self.length:
                buffer = memoryview(buffer)[: self.length]
            return os.preadv(self._file.fileno(), (buffer,), self.position)
        except OSError as error:
            raise files.failed("a segment that is being read", "read", error) from error

    def close(self) -> None:
        """Gives the file back; further calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def __enter__(self) -> Range:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._file is not None:
            self.close()


#: No bytes.
NOTHING = Range(None, 0, 0)


class Fetched(msgspec.Struct):
    """What a fetch gives. Close it, or leave it with `with`."""

    range: Range
    #: Base offset of the first batch; of an empty answer the offset asked for.
    first_offset: int
    segment_base: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    #: For the isolation "committed": aborted transactions that touch the range; else None.
    aborted: list[AbortedTransaction] | None = None
    #: The first batch is larger than what was asked for, and was cut.
    first_batch_incomplete: bool = False

    @property
    def length(self) -> int:
        return self.range.length

    def read(self) -> bytes:
        return self.range.read()

    def close(self) -> None:
        self.range.close()

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.range.close()


class TimestampOffset(NamedTuple):
    """An answer to a question for an offset by timestamp; -1 where there is none."""

    timestamp: int
    offset: int
    leader_epoch: int = -1


class Slice(NamedTuple):
    """Where a fetch reads; `segment` is an index into the view."""

    segment: int
    first: Located
    length: int
    #: The segment's .log, held for whoever takes this.
    file: OpenFile


def find_slice(view: View, offset: int, most_bytes: int, at_least_one: bool, upper: OffsetPosition) -> Slice | None:
    """The bytes for a fetch from `offset`, which lies in the log and below `upper`; None when there is no batch there.

    `upper`: where the reader's view ends, its position known. `at_least_one`: the first batch is given whole, however
    large. FileNotFoundError: a segment was removed since the view was taken.
    """
    segments, upper_base = view.segments, upper.segment_base
    for index in range(max(view.floor(offset), 0), len(segments)):
        segment = segments[index]
        base = segment.base_offset
        if base > upper_base:
            return None
        held = segment.acquire()
        try:
            found = segment.locate(offset, held)
        except BaseException:
            held.release()
            raise
        if found is not None:
            length = (upper.position if base == upper_base else segment.size) - found.position
            allowed = found.size if at_least_one and found.size > most_bytes else most_bytes
            length = min(length, allowed)
            return tuple.__new__(Slice, (index, found, length if length > 0 else 0, held))
        held.release()
    return None


def aborted_in(view: View, where: Slice, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Aborted transactions that a consumer of these bytes has to know (LocalLog.addAbortedTransactions)."""
    segment = view.segments[where.segment]
    upper = segment.offsets.upper_bound(where.first.position + where.length)
    if upper is None:
        upper = view.bases[where.segment + 1] if where.segment + 1 < len(view.bases) else end_offset
    return collect_aborted_from(view, where.segment, offset, upper)


def collect_aborted_from(view: View, index: int, first_offset: int, upper_offset: int) -> list[AbortedTransaction]:
    """Entries that touch offsets from `first_offset` to below `upper_offset`, from the segment `index` on (facts 2.8)."""
    found: list[AbortedTransaction] = []
    for segment in view.segments[max(index, 0) :]:
        for entry in segment.aborted():
            if entry.last_offset >= first_offset and entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found
    return found


def locate_offset(view: View, offset: int) -> OffsetPosition:
    """The batch that holds the offset, or the next one; only the offset where there is none."""
    index = view.floor(offset)
    while 0 <= index < len(view.segments):
        segment = view.segments[index]
        found = segment.locate(offset)
        if found is not None:
            return OffsetPosition(offset, segment.base_offset, found.position)
        index += 1
    return OffsetPosition(offset)


def search_timestamp(view: View, timestamp: int, first_offset: int) -> TimestampOffset | None:
    """The first record at or above `first_offset` whose timestamp is at least this; in offset order, by segment.

    As in Kafka only the first segment whose largest timestamp reaches it is looked at.
    """
    for segment in view.segments:
        if segment.largest_timestamp >= timestamp:
            return _search_segment(segment, timestamp, first_offset)
    return None


def _search_segment(segment: LiveSegment, timestamp: int, first_offset: int) -> TimestampOffset | None:
    from_offset = max(segment.times.lookup(timestamp)[1], first_offset)
    for batch in _batches(segment, from_offset):
        if batch.header.max_timestamp < timestamp:
            continue
        found = record_at_time(batch, timestamp, first_offset)
        if found is not None:
            return TimestampOffset(found[1], found[0], batch.header.leader_epoch)
    return None


def search_max_timestamp(view: View) -> TimestampOffset | None:
    """The largest timestamp of the log with its offset (ListOffsets' MAX_TIMESTAMP); None when there is none."""
    best: LiveSegment | None = None
    for segment in view.segments:
        if best is None or segment.largest[0] > best.largest[0]:
            best = segment
    if best is None:
        return None
    timestamp, offset = best.largest
    for batch in _batches(best, offset):
        if batch.header.max_timestamp == timestamp:
            return _largest_record(batch)
    return None


def _largest_record(batch: Batch) -> TimestampOffset | None:
    """The first record with the batch's largest timestamp (RecordBatch.offsetOfMaxTimestamp); none in V0."""
    header = batch.header
    if header.magic == 0:
        return None
    for record in batch.records():
        if record.timestamp == header.max_timestamp:
            return TimestampOffset(header.max_timestamp, record.offset, header.leader_epoch)
    return None


def _batches(segment: LiveSegment, from_offset: int) -> Iterator[Batch]:
    """Batches from the index entry at or below the offset on; the bodies are read one at a time."""
    _, position = segment.offsets.lookup(from_offset)
    for header in _headers(segment, position):
        yield segment.batch(header)


def _headers(segment: LiveSegment, position: int) -> Iterator[BatchHeader]:
    return segment.headers(position)


def removed(segment: LiveSegment) -> StorageIOError:
    """A segment of the log is not there any more, and nobody here deleted it."""
    return StorageIOError(path=str(segment.log_path), action="open", reason="the file is gone (ENOENT)", errno=2)
