"""Loading a partition's log, and recovering it after an unclean stop (Kafka's LogLoader; facts 8).

Five passes over the files, then recovery from the recovery point on, then the offsets, epochs and producers. Stopped
anywhere, the next load starts over: an index that is being rebuilt is absent until it is whole, a segment is cut before
anything that relies on the cut is written, and the recovery point moves only when everything below it is on disk.

Different from Kafka on purpose:
- A batch whose offset goes back is damage like a wrong CRC (`storage.kernel.scanning`).
- A clean start looks at the last entry of each index. One that leads nowhere, and a missing `.timeindex`, are rebuilt
  from the log; Kafka would use the one and take the other as empty, so that lookups by time and retention go wrong.
- A clean start whose active segment ends in a torn batch cuts it; Kafka would append behind it.
- A damaged leader-epoch-checkpoint is rebuilt from the batches, a damaged partition.metadata is passed by.
- With no space left on the disk, what cannot be written is kept in memory and rebuilt at the next start.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from compactd.config.errors import CorruptBatchError, CorruptFileError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.scanning import SegmentScan, scan_segment
from compactd.storage.loaded_log import (
    CREATED,
    CUT,
    DELETED,
    REBUILT,
    REMOVED,
    RENAMED,
    SPLIT,
    WARNING,
    LoadAction,
    LoadedLog,
)
from compactd.storage.loading_epochs import LoadingEpochs
from compactd.storage.names import TopicPartition
from compactd.storage.partition_metadata import read_partition_metadata
from compactd.storage.producer_snapshots import ProducerSnapshots, is_no_space, list_snapshots
from compactd.storage.producers import PRODUCER_EXPIRATION_MS
from compactd.storage.segment import LogSegment, list_segments
from compactd.storage.segment_recovery import (
    has_only_zeros,
    index_tail_fault,
    keep_tail,
    rebuild_segment_files,
    transaction_index_fault,
)
from compactd.storage.split import split_segment
from compactd.storage.swap import recover_swap, segment_file_names

#: Suffix of what a repair cut off and keeps beside the log: no reader of a log dir takes such a file for anything.
KEPT = ".cut"

_INDEX_KINDS = frozenset({names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX})

_T = TypeVar("_T")
#: Called before each segment is recovered, with how many are still to do; and at the end with 0.
Recovering = Callable[[LogSegment, int], None]


def load_log(
    directory: Path,
    config: TopicConfig,
    *,
    clean_shutdown: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    now_ms: int,
    topic_partition: TopicPartition | None = None,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    keep_cut: bool = False,
    recovering: Recovering | None = None,
) -> LoadedLog:
    """Loads one topic-partition directory as a broker does at its start, and leaves it fit to be appended to.

    `clean_shutdown`: the log dir had its marker. `recovery_point`, `log_start_offset`: the checkpoints' entries, 0 where
    there is none. `keep_cut`: what recovery takes away stays beside the log under names ending in `.cut`.

    Raises CorruptBatchError, CorruptFileError or FaultError for damage that Kafka does not recover from either,
    StorageIOError, NotWritableError, RefusedError.
    """
    loader = LogLoader(
        directory,
        config,
        clean_shutdown=clean_shutdown,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        topic_partition=topic_partition,
        producer_expiration_ms=producer_expiration_ms,
        keep_cut=keep_cut,
        recovering=recovering,
    )
    return loader.load()


class _OverflowError(Exception):
    """A segment whose offsets do not fit it was met; it has to be split and the loading started over."""

    def __init__(self, segment: LogSegment, scan: SegmentScan) -> None:
        super().__init__(str(segment.log_path))
        self.segment = segment
        self.scan = scan


class LogLoader:
    """One load of one partition. Offsets absolute, times in ms."""

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        *,
        clean_shutdown: bool,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
        topic_partition: TopicPartition | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        keep_cut: bool = False,
        recovering: Recovering | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.clean_shutdown = clean_shutdown
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.now_ms = now_ms
        self.topic_partition = topic_partition or names.parse_partition_dir(directory.name).topic_partition
        self.is_deleted = directory.name.endswith(names.DELETE_DIR)
        self.producer_expiration_ms = producer_expiration_ms
        self.keep_cut = keep_cut
        self.recovering = recovering
        self.segments: list[LogSegment] = []
        self.actions: list[LoadAction] = []
        self.deleted_files: list[Path] = []
        #: Segments that must not be cut into parts again: their far batch is damage.
        self._unsplittable: set[int] = set()
        #: From this base offset on, segments are recovered after an unclean stop.
        self._recovery_floor = 0
        self._was_emptied = False

    # ---- the passes

    def load(self) -> LoadedLog:
        """Runs everything once."""
        self._check_readable()
        self._finish_swaps()
        self._drop_temporary_files()
        self.epochs = LoadingEpochs(self.directory, self._note)
        topic_id = self._read_topic_id()
        snapshots = ProducerSnapshots(self.directory, self.producer_expiration_ms)
        self._retry_on_overflow(self._load_segment_files)
        if self.is_deleted:
            return self._loaded_for_deletion(snapshots, topic_id)
        end = self._retry_on_overflow(lambda: self._recover_log(snapshots))
        self.epochs.rebuild_if_damaged(self.segments)
        recovery_point = end if self.clean_shutdown and not self._was_emptied else min(self.recovery_point, end)
        start = max(self.log_start_offset, self.segments[0].base_offset)
        self._make_active_indexes()
        self.epochs.truncate(self.log_start_offset, end)
        self.epochs.write()
        snapshots.offsets = list_snapshots(self.directory)
        snapshots.remove_stray([segment.base_offset for segment in self.segments])
        snapshots.rebuild(self.segments, start, end, self.now_ms, from_clean_shutdown=self.clean_shutdown)
        snapshots.tolerant = False
        self._tell_snapshots(snapshots)
        return LoadedLog(
            directory=self.directory,
            topic_partition=self.topic_partition,
            config=self.config,
            segments=self.segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=max(recovery_point, start),
            epochs=self.epochs.epochs,
            snapshots=snapshots,
            topic_id=topic_id,
            clean_shutdown=self.clean_shutdown,
            actions=self.actions,
            deleted_files=self.deleted_files,
        )

    def _loaded_for_deletion(self, snapshots: ProducerSnapshots, topic_id: uuid.UUID | None) -> LoadedLog:
        """A directory on its way out is not recovered (facts 7.6)."""
        if not self.segments:
            self._create_segment(0)
        self.epochs.truncate(0, 0)
        self.epochs.write()
        return LoadedLog(
            directory=self.directory,
            topic_partition=self.topic_partition,
            config=self.config,
            segments=self.segments,
            log_start_offset=self.segments[0].base_offset,
            log_end_offset=0,
            recovery_point=0,
            epochs=self.epochs.epochs,
            snapshots=snapshots,
            topic_id=topic_id,
            clean_shutdown=self.clean_shutdown,
            actions=self.actions,
            deleted_files=self.deleted_files,
        )

    def _check_readable(self) -> None:
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    if entry.is_file() and not files.layer().access(entry.path, os.R_OK):
                        raise StorageIOError(path=entry.path, action="read", reason="permission denied (EACCES)")
        except OSError as error:
            raise files.failed(self.directory, "list", error) from error

    def _finish_swaps(self) -> None:
        """Passes 1 to 4: `.deleted` and `.cleaned` go, complete `.swap` files take their sources' place."""
        done = recover_swap(self.directory)
        for name in done.removed:
            self._note(REMOVED, self.directory / name, "left over from a deletion or an unfinished clean")
        for name in done.renamed:
            self._note(RENAMED, self.directory / name, "the finished output of a clean took its place")

    def _drop_temporary_files(self) -> None:
        for path in sorted(self.directory.glob("*" + files.TEMPORARY)):
            if path.is_file():
                files.remove(path, missing_ok=True)
                self._note(REMOVED, path, "an unfinished write")

    def _load_segment_files(self) -> None:
        """Pass 5: orphaned indexes go; segments without usable indexes are recovered on the spot."""
        self.segments = []
        found = {
            segment.base_offset: segment for segment in list_segments(self.directory, self.config.index_interval_bytes)
        }
        for path in sorted(self.directory.iterdir()):
            parsed = names.parse_segment_name(path.name)
            if parsed is None or parsed.suffix:
                continue
            if parsed.kind in _INDEX_KINDS and parsed.base_offset not in found:
                files.remove(path)
                self._note(REMOVED, path, "an index without its .log")
        self._recovery_floor = max((base for base in found if base <= self.recovery_point), default=0)
        for base in sorted(found):
            segment = found[base]
            self._load_segment(segment)
            self.segments.append(segment)

    def _load_segment(self, segment: LogSegment) -> None:
        if not self.clean_shutdown and segment.base_offset >= self._recovery_floor:
            # Its indexes are rebuilt anyhow, and in order: an earlier segment may end in a torn batch.
            return
        has_index = segment.offset_index_path.exists()
        reason = transaction_index_fault(segment) if has_index else "its offset index is missing"
        if reason is not None:
            self._note(WARNING, segment.log_path, f"{reason}; the segment is recovered")
            self._recover_segment(segment)
            return
        reason = index_tail_fault(segment)
        if reason is not None:
            scan = segment.scan()
            notes = rebuild_segment_files(segment, scan, None, sync=True)
            self._note(REBUILT, segment.offset_index_path, f"{reason}; both indexes were rebuilt from the log")
            self._warn(segment, notes)

    def _recover_log(self, snapshots: ProducerSnapshots) -> int:
        """Recovers from the recovery point on after an unclean stop; returns the log end offset (facts 8.4)."""
        end = None
        if not self.clean_shutdown:
            self._recover_unflushed(snapshots)
        elif self.segments:
            end = self._cut_torn_tail()
        if self.segments:
            if end is None:
                end = self.segments[-1].next_offset()
            if end >= self.log_start_offset:
                return end
            self._empty_log(snapshots, end)
        if not self.segments:
            self._create_segment(self.log_start_offset)
            self._was_emptied = True
        return self.segments[-1].next_offset()

    def _recover_unflushed(self, snapshots: ProducerSnapshots) -> None:
        unflushed = [segment for segment in self.segments if segment.base_offset >= self._recovery_floor]
        for number, segment in enumerate(unflushed):
            if self.recovering is not None:
                self.recovering(segment, len(unflushed) - number)
            later = unflushed[number + 1 :]
            if not segment.offset_index_path.exists() or transaction_index_fault(segment) is not None:
                # Kafka recovers such a segment while it loads files (pass 5), and then finds nothing more to cut: what
                # lies behind stays.
                self._recover_segment(segment)
                continue
            if self._recover_segment(segment, partial(self._delete_behind, segment, later)) > 0:
                for gone in later:
                    self._delete_snapshot(snapshots, gone.base_offset)
                break
        if self.recovering is not None and unflushed:
            self.recovering(unflushed[-1], 0)

    def _delete_behind(self, damaged: LogSegment, later: list[LogSegment]) -> None:
        """Before a damaged segment is cut: what lies behind the damage goes first.

        Kafka cuts first. Stopped in between, its next start finds nothing damaged, and a log with a hole.
        """
        self._delete_segments(later, f"it lies behind the damage in {damaged.log_path.name}")

    def _cut_torn_tail(self) -> int | None:
        """The marker says that the log is whole: its end offset. None where its last batch was torn, and is recovered."""
        active = self.segments[-1]
        try:
            return active.next_offset()
        except CorruptBatchError as error:
            self._note(WARNING, active.log_path, f"after a clean stop: {error.reason} at byte {error.position}")
            self._recover_segment(active)
            return None

    def _empty_log(self, snapshots: ProducerSnapshots, end: int) -> None:
        reason = f"the log ends at {end}, below its log start offset {self.log_start_offset}"
        self._delete_segments(list(self.segments), reason)
        self.epochs.clear()
        snapshots.truncate_fully_and_start_at(self.log_start_offset)

    # ---- one segment

    def _recover_segment(self, segment: LogSegment, before_cut: Callable[[], None] | None = None) -> int:
        """Rebuilds what belongs to one segment from its batches, and cuts it at the first bad one. Returns bytes cut."""
        producers = ProducerSnapshots(self.directory, self.producer_expiration_ms)
        earlier = [s for s in self.segments if s.base_offset < segment.base_offset]
        known = self.segments if segment in self.segments else earlier
        producers.rebuild(known, self.log_start_offset, segment.base_offset, self.now_ms)
        scan = scan_segment(segment.log_path, segment.base_offset, self.config.index_interval_bytes)
        if scan.is_overflow and segment.base_offset not in self._unsplittable:
            raise _OverflowError(segment, scan)
        cut = self._cut(segment, scan, before_cut)
        self.epochs.assign(scan)
        aborted = self._follow_producers(producers, scan)
        sync = self.clean_shutdown or segment.base_offset < self.recovery_point
        segment.forget()
        segment.trust_indexes = True
        notes = rebuild_segment_files(segment, scan, aborted, sync=sync)
        producers.map_end_offset = max(producers.map_end_offset, scan.next_of_current)
        producers.take()
        self._tell_snapshots(producers)
        self._note(REBUILT, segment.log_path, f"indexes rebuilt from {scan.batches} batches, {scan.valid_bytes} bytes")
        self._warn(segment, notes)
        return cut

    def _cut(self, segment: LogSegment, scan: SegmentScan, before_cut: Callable[[], None] | None) -> int:
        """Cuts the `.log` behind its last good batch."""
        size = segment.log_path.stat().st_size
        cut = size - scan.valid_bytes
        if cut == 0:
            return 0
        if before_cut is not None:
            before_cut()
        reason = scan.fault.reason if scan.fault is not None else "the file ends in a part of a batch"
        if self.keep_cut and not has_only_zeros(segment.log_path, scan.valid_bytes):
            kept = keep_tail(segment.log_path, scan.valid_bytes, KEPT)
            self._note(CREATED, kept, f"the {cut} bytes that are cut from {segment.log_path.name}")
        files.truncate(segment.log_path, scan.valid_bytes)
        segment.size = scan.valid_bytes
        segment.last_modified_ms = files.mtime_ms(segment.log_path)
        self._note(CUT, segment.log_path, f"{cut} bytes from byte {scan.valid_bytes} on: {reason}")
        return cut

    def _follow_producers(self, producers: ProducerSnapshots, scan: SegmentScan) -> list[AbortedTransaction]:
        """Feeds the segment's batches to the producer state; returns the transaction index that results."""
        aborted = []
        for batch in scan.produced():
            completed = producers.state.update(batch, batch.marker)
            if completed is not None and completed.is_aborted:
                aborted.append(completed.as_aborted())
        return aborted

    def _retry_on_overflow(self, step: Callable[[], _T]) -> _T:
        """Splits segments whose offsets do not fit and starts the step over (LogLoader.retryOnOffsetOverflow)."""
        while True:
            try:
                return step()
            except _OverflowError as error:
                segment = error.segment
            try:
                deleted = split_segment(segment)
            except CorruptBatchError as damage:
                # Batches behind the far one are near again: its offset is what is damaged.
                self._unsplittable.add(segment.base_offset)
                self._note(WARNING, segment.log_path, f"not split: {damage.reason} at byte {damage.position}")
                continue
            self.deleted_files.extend(deleted)
            self._note(SPLIT, segment.log_path, f"its offsets reach further than 2147483647 from {segment.base_offset}")
            self.segments = list_segments(self.directory, self.config.index_interval_bytes)

    # ---- whole segments

    def _delete_segments(self, doomed: list[LogSegment], reason: str) -> None:
        """Takes segments out of the log, newest first, so that a stop in between leaves no hole."""
        suffix = KEPT if self.keep_cut else names.DELETED
        for segment in reversed(doomed):
            self.segments.remove(segment)
            for name in segment_file_names(segment.base_offset):
                path = self.directory / name
                if path.exists():
                    target = path.with_name(name + suffix)
                    files.rename(path, target)
                    if not self.keep_cut:
                        self.deleted_files.append(target)
            self._note(DELETED, segment.log_path, f"{segment.size} bytes: {reason}")
        if doomed:
            files.fsync_dir(self.directory)

    def _delete_snapshot(self, snapshots: ProducerSnapshots, offset: int) -> None:
        marked = snapshots.mark_for_deletion(offset, KEPT if self.keep_cut else names.DELETED)
        if marked is not None and not self.keep_cut:
            self.deleted_files.append(marked)

    def _create_segment(self, base_offset: int) -> None:
        path = self.directory / names.log_name(base_offset)
        files.write_file(path, b"")
        files.fsync_dir(self.directory)
        self.segments = [
            LogSegment(self.directory, base_offset, 0, files.mtime_ms(path), self.config.index_interval_bytes)
        ]
        self._note(CREATED, path, "the log had no segment")

    def _make_active_indexes(self) -> None:
        """The active segment always has its index files, empty ones where nothing is indexed yet."""
        active = self.segments[-1]
        if not active.trust_indexes:
            return  # they did not fit the disk; their absence tells the next start to rebuild them
        for path in (active.time_index_path, active.offset_index_path):
            if not path.exists():
                try:
                    files.write_file(path, b"", like=active.log_path, sync=False)
                except StorageIOError as error:
                    if not is_no_space(error):
                        raise
                    self._note(WARNING, path, f"not created: {error.reason}")

    def _read_topic_id(self) -> uuid.UUID | None:
        path = self.directory / names.PARTITION_METADATA
        try:
            found = read_partition_metadata(path)
        except CorruptFileError as error:
            self._note(WARNING, path, str(error))
            return None
        return None if found is None else found.topic_id

    # ---- what was done

    def _note(self, kind: str, path: Path, detail: str) -> None:
        self.actions.append(LoadAction(kind, path, detail))

    def _tell_snapshots(self, snapshots: ProducerSnapshots) -> None:
        for note in snapshots.notes:
            self._note(WARNING, self.directory, note)

    def _warn(self, segment: LogSegment, notes: list[str]) -> None:
        for note in notes:
            self._note(WARNING, segment.log_path, note)
