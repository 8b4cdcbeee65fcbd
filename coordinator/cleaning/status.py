"""The cleaning side at one moment, for `compactd status` and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.coordinator.cleaning.choice import Weighed, blocking_reason
from compactd.coordinator.control.messages import CleaningStatus, PartitionStatus

if TYPE_CHECKING:
    from compactd.coordinator.cleaning.scheduler import CleaningScheduler


def build(cleaning: CleaningScheduler, all_partitions: bool) -> CleaningStatus:
    """From what is known already; filthiest first."""
    now = cleaning.frame.clock.now_ms()
    partitions = [_partition(cleaning, weighed, now) for weighed in cleaning.queue.weighed.values()]
    if not all_partitions:
        partitions = [p for p in partitions if p.dirty_bytes or p.blocked_by.startswith(("set aside", "paused"))]
    partitions.sort(key=lambda p: (-(p.dirty_ratio or 0.0), p.name))
    return CleaningStatus(
        jobs=tuple(job.status() for job in cleaning.jobs.running.values()),
        partitions=tuple(partitions),
        quarantine=cleaning.quarantine.status(),
        paused=tuple(sorted(cleaning.pauses.names)),
        held_by=cleaning.queue.held_by,
    )


def _partition(cleaning: CleaningScheduler, weighed: Weighed, now: int) -> PartitionStatus:
    state, log, name = weighed.state, weighed.log, weighed.log.partition.topic_partition
    blocked, clears = blocking_reason(weighed, now)
    entry = cleaning.quarantine.get(weighed.name)
    if name in cleaning.jobs.running:
        blocked, clears = "", None
    elif cleaning.queue.is_paused(name):
        blocked, clears = "paused by compactd pause", None
    elif entry is not None and now < entry.retry_at_ms:
        blocked, clears = f"set aside: {entry.reason}", entry.retry_at_ms
    return PartitionStatus(
        name=weighed.name,
        log_dir=state.log_dir,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        size=sum(segment.size for segment in state.closed) + state.active_size,
        segments=len(state.closed) + 1,
        dirty_ratio=log.cleanable_ratio if log.total_bytes else None,
        dirty_bytes=log.cleanable_bytes,
        first_dirty_offset=log.first_dirty_offset,
        blocked_by=blocked,
        clears_at_ms=clears,
    )
