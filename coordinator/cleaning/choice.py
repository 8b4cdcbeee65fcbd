"""What to clean next, from what the owners told of their logs: the rules of storage.cleaning over PartitionState."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from compactd.config.settings import TopicConfig
from compactd.storage.cleaning.cleanable import (
    Blocker,
    LogToClean,
    OffsetsToClean,
    log_to_clean,
    offsets_to_clean,
    upper_bound,
)
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import CleanJob
from compactd.workers.partition_messages import PartitionState, SegmentState


@dataclass(frozen=True, slots=True)
class ToldLog:
    """A log as its owner told; fills storage.cleaning.cleanable.CleanableLog."""

    topic_partition: TopicPartition
    config: TopicConfig
    segments: Sequence[SegmentState]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int

    @classmethod
    def of(cls, state: PartitionState, config: TopicConfig) -> ToldLog:
        active = SegmentState(
            base_offset=state.active_base_offset,
            size=state.active_size,
            largest_timestamp=state.active_largest_timestamp,
            first_batch_timestamp=-1,
        )
        return cls(
            TopicPartition(state.topic, state.partition),
            config,
            (*state.closed, active),
            state.log_start_offset,
            state.log_end_offset,
            state.high_watermark,
            state.last_stable_offset,
        )


@dataclass(frozen=True, slots=True)
class Weighed:
    """One partition on the scales."""

    state: PartitionState
    offsets: OffsetsToClean
    log: LogToClean[ToldLog]

    @property
    def name(self) -> str:
        return f"{self.state.topic}-{self.state.partition}"

    @property
    def rank(self) -> float:
        return self.log.cleanable_ratio


def weigh(state: PartitionState, config: TopicConfig, checkpoint: int | None, now_ms: int) -> Weighed:
    """Dirty range, ratio and delay of one partition."""
    told = ToldLog.of(state, config)
    offsets = offsets_to_clean(told, checkpoint, now_ms)
    return Weighed(
        state, offsets, log_to_clean(told, offsets.first_dirty_offset, offsets.first_uncleanable_offset, now_ms)
    )


def blocking_reason(weighed: Weighed, now_ms: int) -> tuple[str, int | None]:
    """Why a partition isn't cleaned as things stand, in words, and when time alone clears it (wall clock)."""
    log, state, config = weighed.log, weighed.state, weighed.log.partition.config
    if log.wants_cleaning:
        return "", None
    if log.cleanable_bytes:
        ratio, limit = log.cleanable_ratio, config.min_cleanable_dirty_ratio
        reason = f"dirty ratio {ratio:.3f} is not above min.cleanable.dirty.ratio {limit:g}"
        return reason, _max_lag_due(weighed)
    blocker = weighed.offsets.blocker
    if blocker is Blocker.OPEN_TRANSACTION and state.open_transaction is not None:
        producer, first = state.open_transaction
        return f"producer {producer} has a transaction open since offset {first}", None
    lagging = weighed.offsets.lagging_segment
    if blocker is Blocker.MIN_COMPACTION_LAG and lagging is not None:
        due = lagging.largest_timestamp + config.min_compaction_lag_ms
        return f"min.compaction.lag.ms holds the segment {lagging.base_offset} and what follows", due
    if blocker is Blocker.HIGH_WATERMARK:
        return f"the high watermark is at {state.high_watermark}", None
    if state.active_size:
        return "all that is dirty is in the active segment", None
    return "nothing is dirty", None


def _max_lag_due(weighed: Weighed) -> int | None:
    lag = weighed.log.partition.config.max_compaction_lag_ms
    stamps = [
        segment.first_batch_timestamp
        for segment in weighed.state.closed
        if segment.first_batch_timestamp > 0 and segment.base_offset >= weighed.log.first_dirty_offset
    ]
    return min(stamps) + lag + 1 if stamps and lag < 2**62 else None


def room_needed(weighed: Weighed, margin: int) -> int:
    """Bytes that its largest group may take at most, and a margin: groups hold up to segment.bytes, or one segment."""
    largest = max((segment.size for segment in weighed.state.closed), default=0)
    total = sum(segment.size for segment in weighed.state.closed)
    return max(largest, min(total, weighed.log.partition.config.segment_bytes)) + margin


#: Share of bytes that a clean is expected to keep where none has told yet.
EXPECTED_KEPT = 0.5


def gain(weighed: Weighed, kept: float) -> float:
    """Bytes that a clean may free for each byte it writes: what counts in a log dir that is nearly full.

    `kept`: share of the bytes read that the last clean of the partition kept.
    """
    total = weighed.log.total_bytes
    written = total * min(max(kept, 0.01), 1.0)
    return (total - written) / written if written else 0.0


def round_bounds(weighed: Weighed, told: CleanJob, checkpoint: int | None, forced: bool) -> tuple[int, int] | None:
    """First dirty and first uncleanable offset of a round, by the log as its owner has just told; None: nothing to do.

    `forced`: a person asked, so min.compaction.lag.ms does not count, and a log that is all clean is read once more.
    """
    closed = tuple(
        SegmentState(base_offset=s.base_offset, size=s.size, largest_timestamp=-1, first_batch_timestamp=-1)
        for s in told.segments
    )
    state = msgspec.structs.replace(
        weighed.state,
        log_start_offset=told.log_start_offset,
        log_end_offset=told.log_end_offset,
        high_watermark=told.high_watermark,
        last_stable_offset=told.last_stable_offset,
        active_base_offset=told.active_base_offset,
        closed=closed,
    )
    # Without timestamps there is no lag in here: what it holds back was found when the log was weighed.
    now = weigh(state, told.config, checkpoint, told.now_ms)
    first_dirty, bound = now.log.first_dirty_offset, now.log.first_uncleanable_offset
    lagging = weighed.offsets.lagging_segment
    if lagging is not None and not forced:
        bound = min(bound, upper_bound(now.log.partition, max(first_dirty, lagging.base_offset)))
    if first_dirty < bound:
        return first_dirty, bound
    if forced and told.segments and told.segments[0].base_offset < bound:
        return told.log_start_offset, bound  # expired tombstones may go
    return None
