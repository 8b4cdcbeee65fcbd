"""One partition's live log: append, read, roll, flush, truncate, retain, swap (Kafka's UnifiedLog; facts 5.9, 7, 10).

    log = PartitionLog(load_log(directory, config, ...), now_ms=now)
    done = log.append_as_leader(batch, leader_epoch=0, now_ms=now)
    if done.flush_due: log.flush()          # one fsync for as many appends as there are
    with log.read(done.first_offset, 1 << 20) as fetched: ...

One owner (a thread or a process) changes a log; any thread may read at any time, and neither waits for the other.
Time is given, never taken. An append is acknowledged by its return; it survives a crash of the process then, and a power
cut once a flush covered it. After an I/O error in a change the log refuses further ones (LogOfflineError) until it was
loaded anew: what is on disk may be less than what is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactd.config.errors import OffsetOutOfRangeError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files
from compactd.storage.live_segment import LiveSegment, Resources
from compactd.storage.loader import load_log
from compactd.storage.local_log import OffsetPosition
from compactd.storage.log_appending import Appended, LogAppending
from compactd.storage.log_reading import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from compactd.storage.log_state import LogOffsets
from compactd.storage.producer_append import Origin
from compactd.storage.producers import PRODUCER_EXPIRATION_MS
from compactd.storage.reader import Fetched, TimestampOffset
from compactd.storage.retention import RetentionState, plan_retention

__all__ = [
    "EARLIEST_LOCAL_TIMESTAMP",
    "EARLIEST_TIMESTAMP",
    "LATEST_TIMESTAMP",
    "MAX_TIMESTAMP",
    "Appended",
    "Fetched",
    "LogOffsets",
    "Origin",
    "PartitionLog",
    "Resources",
    "TimestampOffset",
]

_LOGGER = logging.getLogger(__name__)


class PartitionLog(LogAppending):
    """See the module. Offsets absolute, sizes bytes, times ms."""

    @classmethod
    def create(
        cls,
        directory: Path,
        config: TopicConfig,
        *,
        now_ms: int,
        log_start_offset: int = 0,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        **options: Any,
    ) -> PartitionLog:
        """Makes the directory of a new partition, and its log. `options`: those of the constructor.

        StorageIOError when there is something already.
        """
        files.make_dir(directory)
        loaded = load_log(
            directory,
            config,
            clean_shutdown=True,
            recovery_point=log_start_offset,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            producer_expiration_ms=producer_expiration_ms,
        )
        if config.preallocate:
            files.truncate(loaded.active_segment.log_path, config.segment_bytes)
        return cls(loaded, now_ms=now_ms, **options)

    # ---- the start of the log

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raises the log start offset (DeleteRecords, or segments went); returns whether it moved.

        OffsetOutOfRangeError above the high watermark. Segments below it go with the next retention run.
        """
        self._check_open()
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                path=self.home.path,
                offset=offset,
                detail=f"may not start above its high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.local.recovery_point = max(self.local.recovery_point, offset)
        self._epochs_changed |= self.epochs.truncate_from_start(offset)
        self.snapshots.raise_log_start(offset)
        self._note_first_unstable()
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Applies retention once: log start, size, time; returns how many segments went (facts 7).

        Their files are named `.deleted` until `remove_due`, and readers that hold them read on.
        """
        self._check_open()
        state = RetentionState(self.log_start_offset, self.log_end_offset, self.high_watermark, now_ms)
        plan = plan_retention(self.segments, self.config, state)
        gone = self.segments[: len(plan.deletions)]
        for segment, deletion in zip(gone, plan.deletions, strict=True):
            _LOGGER.info(
                "%s: segment %d goes by the rule of %s (size %d, largest timestamp %d)",
                self.home.path,
                segment.base_offset,
                deletion.rule,
                segment.size,
                segment.largest_timestamp,
            )
        return self.delete_segments(gone, now_ms)

    @property
    def retention_size_percent(self) -> int:
        """Size in percent of retention.bytes; 0 where that is off (Kafka's metric RetentionSizeInPercent)."""
        limit = self.config.retention_bytes
        return self.size * 100 // limit if limit > 0 else 0

    def delete_segments(self, gone: Sequence[LiveSegment], now_ms: int) -> int:
        """Deletes the log's oldest segments; returns how many were asked for (UnifiedLog.deleteSegments; facts 7.4).

        When all go, a new active segment is rolled first, so that the log end offset stays.
        """
        self._check_open()
        if not gone:
            return 0
        asked = len(gone)
        leaving = list(gone)
        if asked == len(self.segments) and self.roll(now_ms=now_ms).base_offset == leaving[-1].base_offset:
            leaving.pop()
        if leaving:
            following = self.view.floor(leaving[-1].base_offset) + 1
            self.maybe_increment_log_start_offset(self.segments[following].base_offset)
            self.local.remove_segments(leaving, now_ms)
        self._delete_snapshots([segment.base_offset for segment in leaving], now_ms)
        return asked

    def _delete_snapshots(self, bases: Sequence[int], now_ms: int) -> None:
        marked = [self.snapshots.mark_for_deletion(base) for base in bases]
        self.local.schedule_removal([path.name for path in marked if path is not None], now_ms)

    def remove_due(self, now_ms: int) -> int:
        """Removes `.deleted` files whose delay is over; returns how many."""
        return self.local.remove_due(now_ms)

    def remove_expired_producers(self, now_ms: int) -> list[int]:
        """Forgets producers that have not written for producer.id.expiration.ms; returns their ids."""
        return self.producers.expire(now_ms)

    # ---- truncation

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drops every batch that ends at or above `offset`; returns whether there was one (UnifiedLog.truncateTo).

        Afterwards the recovery-point checkpoint has to be written before anything is appended: it may lie above the end.
        """
        self._check_open()
        if offset < 0:
            raise ValueError(f"a log cannot be truncated to offset {offset}")
        if offset < self.high_watermark:
            _LOGGER.warning(
                "%s: truncating to %d, below the high watermark %d", self.home.path, offset, self.high_watermark
            )
        if offset >= self.log_end_offset:
            self._epochs_changed |= self.epochs.truncate_from_end(self.log_end_offset)
            return False
        if self.segments[0].base_offset > offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        self._high_watermark = OffsetPosition(min(self.high_watermark, offset))
        gone = self.local.truncate_to(offset, now_ms)
        self._delete_snapshots(gone, now_ms)
        self._epochs_changed |= self.epochs.truncate_from_end(offset)
        self.log_start_offset = min(offset, self.log_start_offset)
        self._rebuild_producers(offset, now_ms)
        self._follow_log_end()
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """Drops everything; the log now starts, empty, at `offset`."""
        self._check_open()
        self._high_watermark = OffsetPosition(min(self.high_watermark, offset))
        self.local.truncate_fully(offset, now_ms)
        self.epochs.entries.clear()
        self._write_epochs()
        self.snapshots.truncate_fully_and_start_at(offset)
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self._rebuild_producers(offset, now_ms)
        self.update_high_watermark(self.log_end_offset)

    def _rebuild_producers(self, offset: int, now_ms: int) -> None:
        # Kafka forgets transactions whose marker the high watermark has not passed when it rebuilds, and from the next
        # append on takes them for stable; those whose marker is still in the log are remembered here.
        unreplicated = {
            first: last
            for first, last in self.producers.unreplicated_txns.items()
            if self.high_watermark <= last < offset
        }
        try:
            self.snapshots.rebuild(self.segments, self.log_start_offset, offset, now_ms)
        except StorageIOError as error:
            self.local.failed(error)
            raise
        self.producers.unreplicated_txns.update(unreplicated)
        self._note_first_unstable()

    # ---- swap

    def replace_segments(self, new_bases: Sequence[int], old_bases: Sequence[int], now_ms: int) -> None:
        """Puts finished `.cleaned` segments in the place of closed ones, crash-safe, under readers (facts 5.9).

        LogError: the active segment is among the old ones. StorageIOError: load the log anew to finish the swap.
        """
        self._check_open()
        vanished = self.local.replace_segments(new_bases, old_bases, now_ms)
        for base in vanished:
            if base in self.snapshots.offsets:
                self.snapshots.offsets.remove(base)
        # Positions in the old files mean nothing in the new ones.
        self._high_watermark = OffsetPosition(self._high_watermark.offset)
        self.update_high_watermark(self.high_watermark)

    # ---- topic id, directory, end of life

    def take_over(self, before: PartitionLog) -> None:
        """This is a full copy of `before`, which nobody changes any more: what only memory holds of it goes on here."""
        self.snapshots.state = before.snapshots.state
        segment, known = self.active_segment, before.active_segment
        segment.created_ms, segment.roll_jitter_ms = known.created_ms, known.roll_jitter_ms
        self.last_flush_ms = before.last_flush_ms
        self._note_first_unstable()
        self.update_high_watermark(before.high_watermark)

    def rename_dir(self, name: str, *, keep_using: bool = True) -> None:
        """Gives the directory another name in its log dir, durably. Readers go on.

        `keep_using` False: the partition is being deleted; its epochs and its topic id are forgotten.
        """
        self._save_topic_id()
        try:
            self.local.rename(name)
        except StorageIOError as error:
            self.local.failed(error)
            raise
        if not keep_using:
            self.epochs.entries.clear()

    def save(self) -> None:
        """Writes what waits to be written: epochs after a truncation, the topic id."""
        self._check_open()
        self._save_topic_id()
        if self._epochs_changed:
            self._write_epochs()

    def close(self, orderly: bool = True) -> None:
        """Closes the log; further calls do nothing. Readers that hold files keep them.

        `orderly`: leaves the files as a broker's orderly stop does, all durable: afterwards the log dir may get its
        clean-shutdown marker. Not orderly: as they are, for a log that failed or whose directory went away.
        """
        if self._closed:
            return
        try:
            if orderly:
                self._check_open()
                self.save()
                self.local.close_form()
                job = self.local.flush_job(self.log_end_offset, whole_active=True)
                if job is not None:
                    self.local.run(job)
                self.snapshots.take()
        except StorageIOError as error:
            self.local.failed(error)
            raise
        finally:
            self._closed = True
            self.local.close()

    def delete(self) -> None:
        """Removes the directory and everything in it (UnifiedLog.delete): for one renamed to `-delete`, or a move's source."""
        self._closed = True
        self.epochs.entries.clear()
        self.local.delete()
