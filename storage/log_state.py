"""What a live log knows: its segments, offsets, watermarks, epochs, producers and topic id (Kafka's UnifiedLog)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from compactd.config.errors import InconsistentTopicIdError, LogError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.active_segment import create_segment
from compactd.storage.kernel.interface import ActiveProducer
from compactd.storage.kernel.validating import Admission
from compactd.storage.live_segment import Home, LiveSegment, Resources
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.local_log import Background, LocalLog, OffsetPosition, View
from compactd.storage.partition_metadata import read_partition_metadata, write_partition_metadata
from compactd.storage.producers import ProducerEntry, ProducerState

#: Makes a named tuple of a tuple, in half the time that its class needs.
_new = tuple.__new__


class LogOffsets(NamedTuple):
    """A log's offsets at one moment."""

    log_start: int
    last_stable: int
    high_watermark: int
    log_end: int


class LogState:
    """The base of PartitionLog. Offsets absolute, sizes bytes, times ms."""

    def __init__(
        self,
        loaded: LoadedLog,
        *,
        now_ms: int,
        resources: Resources | None = None,
        high_watermark: int | None = None,
        topic_id: uuid.UUID | None = None,
        background: Background | None = None,
        group_commit: bool = False,
        sole_replica: bool = False,
    ) -> None:
        """`high_watermark`: the checkpoint's entry, kept within the log; None: the log start offset, as in Kafka.

        `background`: runs fsyncs of rolled segments (default: at once). `group_commit`: appends never flush by
        themselves; `Appended.flush_due` and `flush_due` tell when to. `sole_replica`: the high watermark is the log's end
        and goes along with every append. `topic_id`: of the cluster's metadata.
        InconsistentTopicIdError when partition.metadata has another one.
        """
        self.topic_partition = loaded.topic_partition
        self.home = Home(os.fspath(loaded.directory))
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        self.snapshots.moved(lambda: Path(self.home.path))
        self.snapshots.tolerant = False
        self.group_commit = group_commit
        resources = resources or Resources()
        segments = _live_segments(loaded, self.home, resources, now_ms)
        self.local = LocalLog(
            self.home, loaded.config, segments, loaded.log_end_offset, loaded.recovery_point, resources, background
        )
        self.local.schedule_removal([path.name for path in loaded.deleted_files], now_ms)
        self.log_start_offset = loaded.log_start_offset
        self.last_flush_ms = now_ms
        self._epochs_changed = False
        self._closed = False
        #: The short cut for producers' batches, and the settings that it was made for.
        self._admission: Admission | None = None
        self._admission_config: TopicConfig | None = None
        #: Whose next batch may take the short cut, too.
        self._last_producer: ProducerEntry | None = None
        self._high_watermark = OffsetPosition(loaded.log_start_offset)
        self._first_unstable: OffsetPosition | None = None
        #: By isolation: a mark and where it lies in the files.
        self._placed: dict[str, tuple[OffsetPosition, OffsetPosition]] = {}
        self.topic_id = loaded.topic_id
        #: It was loaded after an orderly stop: nothing of its end can have been lost.
        self.was_clean = loaded.clean_shutdown
        self._topic_id_unsaved = False
        if topic_id is not None:
            self.assign_topic_id(topic_id)
        self._note_first_unstable()
        self.sole_replica = sole_replica
        if sole_replica:
            self.update_high_watermark(self.log_end_offset)
        elif high_watermark is not None:
            self.update_high_watermark(high_watermark)

    @property
    def config(self) -> TopicConfig:
        return self.local.config

    def update_config(self, config: TopicConfig) -> TopicConfig:
        """Takes new settings at once; returns those of before. Index size and jitter hold for segments yet to come."""
        before, self.local.config = self.local.config, config
        return before

    @property
    def directory(self) -> Path:
        return Path(self.home.path)

    @property
    def view(self) -> View:
        """The segments, as a reader takes them."""
        return self.local.view

    @property
    def segments(self) -> tuple[LiveSegment, ...]:
        return self.local.view.segments

    @property
    def active_segment(self) -> LiveSegment:
        return self.local.active.segment

    @property
    def producers(self) -> ProducerState:
        return self.snapshots.state

    @property
    def log_end_offset(self) -> int:
        return self.local.end.offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk: what recovery-point-offset-checkpoint notes."""
        return self.local.recovery_point

    @property
    def high_watermark(self) -> int:
        return self._high_watermark.offset

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest transaction that is open or not below the high watermark; never below log start."""
        unstable = self._first_unstable
        return None if unstable is None else unstable.offset

    @property
    def last_stable_offset(self) -> int:
        """Up to (exclusive) where every transaction is decided; never above the high watermark."""
        unstable, high_watermark = self._first_unstable, self._high_watermark.offset
        return high_watermark if unstable is None else min(unstable.offset, high_watermark)

    @property
    def size(self) -> int:
        """Bytes of all .log files' batches."""
        return self.local.size

    @property
    def failure(self) -> StorageIOError | None:
        """The I/O error after which the log takes no more changes."""
        return self.local.failure

    def offsets(self) -> LogOffsets:
        """All offsets at one moment."""
        unstable, high_watermark = self._first_unstable, self._high_watermark.offset
        stable = high_watermark if unstable is None else min(unstable.offset, high_watermark)
        return _new(LogOffsets, (self.log_start_offset, stable, high_watermark, self.local.end.offset))

    def active_producers(self, now_ms: int) -> dict[int, ActiveProducer]:
        """Producers that have not expired, as the cleaner asks for them."""
        return self.producers.active_producers(now_ms)

    def describe(self) -> dict[str, Any]:
        """The state as the commands' JSON has it."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "logStartOffset": self.log_start_offset,
            "logEndOffset": self.log_end_offset,
            "lastStableOffset": self.last_stable_offset,
            "highWatermark": self.high_watermark,
            "segments": [
                {"baseOffset": s.base_offset, "size": s.size, "largestTimestamp": s.largest_timestamp}
                for s in self.segments
            ],
        }

    # ---- watermarks

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, kept within the log; returns it. Transactions that it passed count as stable."""
        end = self.local.end
        if offset >= end.offset:
            self._high_watermark = end
        elif offset < self.log_start_offset:
            self._high_watermark = OffsetPosition(self.log_start_offset)
        else:
            self._high_watermark = OffsetPosition(offset)
        producers = self.snapshots.state
        if producers.unreplicated_txns:
            producers.raise_high_watermark(self._high_watermark.offset)
        if producers.ongoing_txns or producers.unreplicated_txns:
            self._note_first_unstable()
        else:
            self._first_unstable = None
        return self._high_watermark.offset

    def _follow_log_end(self) -> None:
        """The log's end moved without data: a high watermark that is there moves with it."""
        if self._high_watermark.offset >= self.log_end_offset:
            self.update_high_watermark(self.log_end_offset)

    def _note_first_unstable(self) -> None:
        producers = self.producers
        if not producers.ongoing_txns and not producers.unreplicated_txns:
            self._first_unstable = None
            return
        first = producers.first_unstable_offset()
        if first is None:
            self._first_unstable = None
        else:
            self._first_unstable = OffsetPosition(max(first, self.log_start_offset))

    # ---- kept in files beside the segments

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Notes the topic's id; the file is written before the first append. InconsistentTopicIdError for another one."""
        if self.topic_id is not None:
            if self.topic_id != topic_id:
                raise InconsistentTopicIdError(
                    path=self.home.path, found=names.uuid_text(self.topic_id), wanted=names.uuid_text(topic_id)
                )
            return
        self.topic_id = topic_id
        self._topic_id_unsaved = read_partition_metadata(self.directory / names.PARTITION_METADATA) is None

    def _save_topic_id(self) -> None:
        if self._topic_id_unsaved and self.topic_id is not None:
            write_partition_metadata(self.directory / names.PARTITION_METADATA, self.topic_id)
            self._topic_id_unsaved = False

    def _write_epochs(self) -> None:
        try:
            self.epochs.write(self.directory / names.LEADER_EPOCH_CHECKPOINT)
        except StorageIOError as error:
            self.local.failed(error)
            raise
        self._epochs_changed = False

    def _check_open(self) -> None:
        if self._closed:
            raise LogError(path=self.home.path, detail="the log is closed")
        self.local.check()


def _live_segments(loaded: LoadedLog, home: Home, resources: Resources, now_ms: int) -> list[LiveSegment]:
    segments = []
    for each in loaded.segments:
        segment = LiveSegment(home, each.base_offset, loaded.config, resources, size=each.size, created_ms=now_ms)
        if each.unsaved_aborted is not None:
            # A full disk kept recovery from writing what belongs to the segment.
            scan = each.scan()
            segment.set_aborted(each.unsaved_aborted)
            segment.offsets.begin(scan.offset_index)
            segment.times.begin(scan.time_index)
        segments.append(segment)
    return segments or [create_segment(home, loaded.log_end_offset, loaded.config, resources, now_ms)]
