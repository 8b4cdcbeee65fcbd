"""Which part of a log can be cleaned, and how badly it wants it (LogCleanerManager, LogToClean; facts 4.3 to 4.5).

Offsets run: log start .. first_dirty .. first_uncleanable .. log end. Below first_dirty the log is clean (one record a key),
up to first_uncleanable it is dirty, above it nothing may be touched yet.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from compactd.config.settings import TopicConfig
from compactd.storage.names import TopicPartition


class CleanableSegment(Protocol):
    """What the choice asks of a segment: storage.segment.LogSegment has it, and so has what a broker tells of its own."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...
    @property
    def first_batch_timestamp(self) -> int: ...


class CleanableLog(Protocol):
    """What the choice asks of a log; the last segment is the active one."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def segments(self) -> Sequence[CleanableSegment]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


_Segment = TypeVar("_Segment", bound=CleanableSegment)
_Log = TypeVar("_Log", bound=CleanableLog)


class Blocker(enum.Enum):
    """What sets first_uncleanable_offset, nearest first."""

    ACTIVE_SEGMENT = "active segment"
    OPEN_TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class OffsetsToClean:
    """The dirty range before it is rounded to segments (LogCleanerManager.cleanableOffsets)."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    #: The checkpoint was below the log start or above the log end: it has to be written anew even if nothing is cleaned.
    force_update_checkpoint: bool
    #: Which rule set first_uncleanable_offset.
    blocker: Blocker
    #: The segment that min.compaction.lag.ms holds back, where it does.
    lagging_segment: CleanableSegment | None = None


def non_active_segments_from(partition: CleanableLog, offset: int) -> list[CleanableSegment]:
    """Closed segments from the one that contains `offset` on; none when it lies past the active segment's base."""
    active = partition.segments[-1].base_offset
    if offset > active:
        return []
    return [segment for segment in segments_between(partition.segments, offset, active) if segment.base_offset < active]


def segments_between(segments: Sequence[_Segment], first: int, end: int) -> list[_Segment]:
    """Segments from the one that contains `first` up to those with base < `end`; equal bounds give none (LogSegments.values)."""
    if first >= end:
        return []
    floor = max((s.base_offset for s in segments if s.base_offset <= first), default=first)
    return [segment for segment in segments if floor <= segment.base_offset < end]


def offsets_to_clean(
    partition: CleanableLog, checkpoint: int | None, now_ms: int, *, ignore_lag: bool = False
) -> OffsetsToClean:
    """The dirty range of a log for a checkpoint entry (None: no entry). `now_ms`: wall clock."""
    start, end = partition.log_start_offset, partition.log_end_offset
    first_dirty, forced = start if checkpoint is None else checkpoint, False
    if first_dirty < start or first_dirty > end:
        first_dirty, forced = start, True

    limits = [
        (partition.last_stable_offset, Blocker.OPEN_TRANSACTION),
        (partition.high_watermark, Blocker.HIGH_WATERMARK),
        (partition.segments[-1].base_offset, Blocker.ACTIVE_SEGMENT),
    ]
    if partition.last_stable_offset >= partition.high_watermark:
        limits.pop(0)  # no transaction is in the way: the high watermark is the limit
    lagging = None
    lag = partition.config.min_compaction_lag_ms
    if lag > 0 and not ignore_lag:
        for segment in non_active_segments_from(partition, first_dirty):
            if segment.largest_timestamp > now_ms - lag:
                lagging = segment
                limits.append((segment.base_offset, Blocker.MIN_COMPACTION_LAG))
                break
    limit, blocker = min(limits, key=lambda pair: (pair[0], pair[1] is not Blocker.ACTIVE_SEGMENT))
    return OffsetsToClean(
        first_dirty,
        max(first_dirty, limit),
        forced,
        blocker,
        lagging if blocker is Blocker.MIN_COMPACTION_LAG else None,
    )


@dataclass(frozen=True, slots=True)
class LogToClean(Generic[_Log]):
    """The scheduling facts of one log. All sizes are of whole segments in bytes; active and uncleanable bytes are in none."""

    partition: _Log
    first_dirty_offset: int
    #: Base offset of the segment that holds the first uncleanable offset: the upper bound of a round.
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    #: Ms by which the oldest dirty record exceeds max.compaction.lag.ms; 0 where it does not (KIP-354).
    compaction_delay_ms: int

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """cleanable / (clean + cleanable); 0 for a log without closed bytes."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def must_compact(self) -> bool:
        """max.compaction.lag.ms asks for it whatever the ratio."""
        return self.compaction_delay_ms > 0 and self.cleanable_bytes > 0

    @property
    def wants_cleaning(self) -> bool:
        """Whether Kafka's cleaner would pick it: must, or ratio strictly above min.cleanable.dirty.ratio."""
        return self.total_bytes > 0 and (
            self.must_compact or self.cleanable_ratio > self.partition.config.min_cleanable_dirty_ratio
        )


def upper_bound(partition: CleanableLog, first_uncleanable_offset: int) -> int:
    """first_uncleanable rounded down to a segment's base: the segment that holds it is left alone (facts 4.4)."""
    segments = non_active_segments_from(partition, first_uncleanable_offset)
    return segments[0].base_offset if segments else partition.segments[-1].base_offset


def log_to_clean(
    partition: _Log, first_dirty_offset: int, first_uncleanable_offset: int, now_ms: int
) -> LogToClean[_Log]:
    """Sizes, ratio and delay of a log for a dirty range."""
    bound = upper_bound(partition, first_uncleanable_offset)
    clean = sum(s.size for s in partition.segments if s.base_offset < first_dirty_offset)
    dirty = segments_between(partition.segments, min(first_dirty_offset, bound), bound)
    return LogToClean(
        partition,
        first_dirty_offset,
        bound,
        clean,
        sum(segment.size for segment in dirty),
        compaction_delay_ms(partition, first_dirty_offset, now_ms),
    )


def compaction_delay_ms(partition: CleanableLog, first_dirty_offset: int, now_ms: int) -> int:
    """How far the oldest dirty closed segment is past max.compaction.lag.ms, by its first batch's timestamp."""
    stamps = (s.first_batch_timestamp for s in non_active_segments_from(partition, first_dirty_offset))
    oldest = min((stamp for stamp in stamps if stamp > 0), default=2**63 - 1)
    return max(0, now_ms - max(partition.config.max_compaction_lag_ms, 0) - oldest)


def filthiest_first(logs: Iterable[LogToClean[_Log]]) -> list[LogToClean[_Log]]:
    """Logs that want cleaning, highest ratio first; a log forced by max lag does not jump the queue."""
    return sorted((log for log in logs if log.wants_cleaning), key=lambda log: -log.cleanable_ratio)
