"""Writing a live log's last segment: batches, index entries at Kafka's points, the closed form (LogSegment, LocalLog.roll).

An append that fails half-way is taken back: the file ends again where it ended before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from compactd.config.errors import CompactdError, OffsetOverflowError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.files import Output
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.validating import Admission, AppendedBatch, append_batch
from compactd.storage.live_segment import Home, LiveSegment, Resources
from compactd.storage.open_files import OpenFile
from compactd.storage.records.batch import BatchHeader
from compactd.storage.time_index import LARGEST_RELATIVE
from compactd.storage.transaction_index import encode_transaction

#: A time before all others.
_NEVER = -(2**63)
#: Appends use the open file without telling; now and then they do, so that it stays among the recently used ones.
_TOUCH_EVERY = 64


def create_segment(home: Home, base_offset: int, config: TopicConfig, resources: Resources, now_ms: int) -> LiveSegment:
    """Makes an empty `.log`, at full size where preallocate says so. Index files follow when there is something in them.

    Files of that name that lie around are removed first, as Kafka does; an old index must not describe the new log.
    """
    segment = LiveSegment(home, base_offset, config, resources, size=0, created_ms=now_ms)
    for name in segment.existing_files():
        files.remove(f"{home.path}/{name}", missing_ok=True)
    output = files.open_append(segment.path(names.log_name), 0)
    try:
        if config.preallocate:
            output.truncate(config.segment_bytes)
    except StorageIOError:
        output.close()
        raise
    segment.keep_open(output)
    segment.offsets.begin()
    segment.times.begin()
    segment.set_aborted(())
    return segment


class ActiveSegment:
    """The one segment of a log that is written. Only the log's owner uses it."""

    __slots__ = (
        "_appends",
        "_config",
        "_file",
        "_fresh_until",
        "_last_fitting",
        "bytes_since_last_entry",
        "indexes_full",
        "segment",
    )

    def __init__(self, segment: LiveSegment) -> None:
        self.segment = segment
        #: In memory only: after a start and after a truncation it begins at 0 (facts 10.4).
        self.bytes_since_last_entry = 0
        self.indexes_full = segment.offsets.is_full or segment.times.is_full
        self._last_fitting = segment.base_offset + LARGEST_RELATIVE
        #: Under the settings `_config` no batch with a timestamp up to this one makes the segment roll by time.
        self._fresh_until = _NEVER
        self._config: TopicConfig | None = None
        #: The open file of the last append; it may have been closed since.
        self._file: OpenFile | None = None
        self._appends = 0

    def must_roll(
        self, config: TopicConfig, incoming_bytes: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> bool:
        """Whether the incoming batches belong in a new segment (LogSegment.shouldRoll; facts 10.5).

        `max_timestamp`, `last_offset`: of the incoming batches; -1 for a timestamp they don't have.
        """
        segment = self.segment
        size = segment.size
        if size > config.segment_bytes - incoming_bytes or self.indexes_full:
            return True
        if not segment.base_offset <= last_offset <= self._last_fitting:
            return True
        if size == 0 or (max_timestamp <= self._fresh_until and config is self._config):
            return False
        first = segment.first_timestamp()
        longest = longest_ms(config) - segment.roll_jitter_ms
        self._config, self._fresh_until = config, first + longest if first >= 0 else _NEVER
        return (max_timestamp - first if first >= 0 else now_ms - segment.created_ms) > longest

    def append(self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader]) -> None:
        """Writes whole batches behind the last one; `batches` are their headers in order (positions are not used).

        OffsetOverflowError: the last one does not fit the segment. StorageIOError: nothing was appended.
        """
        self._write(data, batches[-1].last_offset)
        for batch in batches:
            self._note(batch.last_offset, batch.max_timestamp, batch.size)

    def append_batch(
        self,
        admission: Admission,
        data: bytearray | memoryview,
        next_offset: int,
        leader_epoch: int,
        now_ms: int,
        config: TopicConfig,
        known: tuple[int, int, int] | None,
        in_transaction: bool = False,
    ) -> AppendedBatch | None:
        """`Admission.admit`, and where nothing speaks against it `append_one` in the same call: the last field tells.

        Written are batches without a producer id, or that are the next of the producer `known` (its id, epoch, next
        sequence), transactional if it is `in_transaction`, of which the settings seen last say that the segment takes
        them. None as for `Admission.admit`. StorageIOError: nothing was appended.
        """
        file = self._file
        if append_batch is not None and file is not None and config is self._config and files.is_direct():
            segment = self.segment
            position = segment.size
            file.writing = True
            try:
                # Every so many appends, and for the first one of a segment, the long way.
                if not file.closing and self._appends < _TOUCH_EVERY and position and not self.indexes_full:
                    found = append_batch(
                        admission, data, next_offset, leader_epoch, now_ms, file.fileno(),
                        config.segment_bytes - position, self._last_fitting, self._fresh_until, known, in_transaction,
                    )  # fmt: skip
                    if found is not None and found[6]:
                        last_offset, max_timestamp, size = found[0], found[1], len(data)
                        self._appends += 1
                        if max_timestamp > segment.largest[0]:
                            segment.largest = (max_timestamp, last_offset)
                        if self.bytes_since_last_entry > segment.index_interval_bytes:
                            self._index(last_offset, position)
                        self.bytes_since_last_entry += size
                        segment.size = position + size
                    return found
            except OSError as error:
                self._take_back(file, position)
                raise files.failed(segment.path(names.log_name), "write", error) from error
            finally:
                file.writing = False
        admitted = admission.admit(data, next_offset, leader_epoch, now_ms)
        return None if admitted is None else (*admitted, False)

    def append_one(self, data: bytearray | memoryview, size: int, last_offset: int, max_timestamp: int) -> int:
        """`append` of a single batch that `must_roll` let pass; returns the segment's new size.

        The same as `append`, written out: this is what a broker does all day.
        """
        file = self._file
        if file is not None:
            file.writing = True
        if file is None or file.closing or self._appends == _TOUCH_EVERY:
            file = self._opened()
        self._appends += 1
        segment = self.segment
        position = segment.size
        try:
            file.output.write(data)  # type: ignore[union-attr]  # it was opened for writing
        except StorageIOError:
            self._take_back(file, position)
            raise
        finally:
            file.writing = False
        if position == 0:
            segment.note_first_timestamp(max_timestamp)
        if max_timestamp > segment.largest[0]:
            segment.largest = (max_timestamp, last_offset)
        if self.bytes_since_last_entry > segment.index_interval_bytes:
            self._index(last_offset, position)
        self.bytes_since_last_entry += size
        segment.size = position = position + size
        return position

    def _write(self, data: bytes | bytearray | memoryview, last_offset: int) -> None:
        """The first half of an append: the bytes. Readers see them once `_note` was called for each batch."""
        segment = self.segment
        if last_offset > self._last_fitting:
            raise OffsetOverflowError(
                path=segment.path(names.log_name), offset=last_offset, base_offset=segment.base_offset, source=0
            )
        file = self._opened()
        try:
            assert file.output is not None
            file.output.write(data)
        except StorageIOError:
            self._take_back(file, segment.size)
            raise
        finally:
            file.writing = False

    def _opened(self) -> OpenFile:
        """The file, open for writing and marked as written to; counts as used just now."""
        if self._file is not None:
            self._file.writing = False
        held = self.segment.acquire_writable()
        held.writing = True
        held.release()
        self._file, self._appends = held, 0
        return held

    def _note(self, last_offset: int, max_timestamp: int, size: int) -> None:
        """The second half, for one batch: timestamps, index entries where they are due, size (LogSegment.append)."""
        segment = self.segment
        position = segment.size
        if position == 0:
            segment.note_first_timestamp(max_timestamp)
        if max_timestamp > segment.largest[0]:
            segment.largest = (max_timestamp, last_offset)
        if self.bytes_since_last_entry > segment.index_interval_bytes:
            self._index(last_offset, position)
        self.bytes_since_last_entry += size
        segment.size = position + size

    def _index(self, last_offset: int, position: int) -> None:
        """Adds the entries of the batch at `position`."""
        segment = self.segment
        segment.offsets.append(last_offset, position)
        segment.times.maybe_append(*segment.largest)
        self.indexes_full = segment.offsets.is_full or segment.times.is_full
        self.bytes_since_last_entry = 0

    def _take_back(self, held: OpenFile, size: int) -> None:
        with contextlib.suppress(CompactdError):
            assert held.output is not None
            held.output.truncate(size)
            held.output.seek(size)

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Appends to the transaction index, which is made with its first entry."""
        added = tuple(transactions)
        if not added:
            return
        known = self.segment.aborted()
        content = b"".join(encode_transaction(each) for each in added)
        with files.open_append(
            self.segment.path(names.transaction_index_name), len(known) * len(content) // len(added)
        ) as output:
            output.write(content)
        self.segment.set_aborted(known + added)

    def close_form(self, config: TopicConfig) -> None:
        """Brings the files to the form of a closed segment: last time entry, both indexes as long as their entries, no
        preallocated tail (LogSegment.onBecomeInactiveSegment). More may be appended all the same.
        """
        segment = self.segment
        segment.times.maybe_append(*segment.largest, closing=True)
        segment.offsets.write_out()
        segment.times.write_out()
        if config.preallocate:
            held = segment.acquire_writable()
            try:
                assert held.output is not None
                held.output.truncate(segment.size)
            finally:
                held.release()

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cuts batches that end at or above `offset`, index entries and aborted transactions too (LogSegment.truncateTo)."""
        segment = self.segment
        found = segment.locate(offset)
        largest_known = segment.largest[0] >= 0
        segment.offsets.truncate_to(offset)
        segment.times.truncate_to(offset)
        self._truncate_aborted(offset)
        if found is not None:
            # Readers go no further before the bytes leave.
            segment.size = found.position
            held = segment.acquire_writable()
            try:
                assert held.output is not None
                held.output.truncate(found.position)
                held.output.seek(found.position)
            finally:
                held.release()
        self._file, self._fresh_until = None, _NEVER
        if segment.size == 0:
            segment.created_ms = now_ms
            segment.note_first_timestamp(None)
        self.bytes_since_last_entry = 0
        self.indexes_full = segment.offsets.is_full or segment.times.is_full
        if largest_known:
            segment.largest = self._largest_left()

    def _truncate_aborted(self, offset: int) -> None:
        known = self.segment.aborted()
        kept = tuple(each for each in known if each.last_offset < offset)
        if len(kept) < len(known):
            size = sum(len(encode_transaction(each)) for each in kept)
            files.truncate(self.segment.path(names.transaction_index_name), size)
            self.segment.set_aborted(kept)

    def _largest_left(self) -> tuple[int, int]:
        """The last time entry, or what the batches after it hold (LogSegment.readLargestTimestamp)."""
        largest = self.segment.times.last_entry
        _, position = self.segment.offsets.lookup(largest[1])
        for header in self.segment.headers(position):
            if header.max_timestamp > largest[0]:
                largest = (header.max_timestamp, header.last_offset)
        return largest


@dataclass(slots=True)
class FlushJob:
    """What has to be fsynced so that the log is durable up to `offset`. `run` may be called in any thread.

    It holds the files open: neither an append nor a swap, a deletion or a rename of the directory comes in its way.
    """

    #: The recovery point once it is done.
    offset: int
    logs: list[OpenFile] = field(default_factory=list)
    #: Indexes, transaction indexes, producer snapshots.
    others: list[Output] = field(default_factory=list)
    #: The directory, if files were made in it.
    directory: str | None = None
    #: What the files belong to.
    segments: list[LiveSegment] = field(default_factory=list)
    #: Of the log, when the job was made.
    generation: int = 0
    #: Files made in the directory by then.
    made: int = 0

    def run(self) -> None:
        """Fsyncs everything. StorageIOError: what was acknowledged may be lost, and the log must not go on."""
        for held in self.logs:
            assert held.output is not None
            held.output.sync()
        for output in self.others:
            output.sync()
        if self.directory is not None:
            files.fsync_dir(self.directory)

    def close(self) -> None:
        """Gives the files back."""
        for held in self.logs:
            held.release()
        for output in self.others:
            with contextlib.suppress(StorageIOError):
                output.close()
        self.logs, self.others = [], []


def files_to_sync(segment: LiveSegment) -> tuple[OpenFile, list[Output]]:
    """The segment's files, written out and open, for a FlushJob."""
    segment.offsets.write_out()
    segment.times.write_out()
    others: list[Output] = []
    held = segment.acquire_writable()
    try:
        paths = [segment.path(names.offset_index_name), segment.path(names.time_index_name)]
        if segment.aborted():
            paths.append(segment.path(names.transaction_index_name))
        for path in paths:
            others.append(files.open_existing(path))
    except BaseException:
        held.release()
        for output in others:
            output.close()
        raise
    return held, others


def longest_ms(config: TopicConfig) -> int:
    """How long a segment may go on: segment.ms, or less where max.compaction.lag.ms wants it cleaned earlier."""
    if config.max_compaction_lag_ms < config.segment_ms and config.compact:
        return config.max_compaction_lag_ms
    return config.segment_ms
