"""One round of cleaning as Kafka's tests run it: Cleaner.doClean with any first dirty offset, any bound, any clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compactd.storage.cleaning.cleanable import upper_bound
from compactd.storage.cleaning.round import CleanedGroup, CleaningRound, RoundOptions, add_stats
from compactd.storage.kernel.interface import CopyStats, Kernel, MapResult, Progress
from compactd.storage.partition import Partition
from compactd.storage.swap import replace_segments
from tests.logs import NOW_MS
from tests.storage.cleaning.short_log import NEVER_MS, ShortLog

DELETE_RETENTION_MS = 86_400_000
#: Kafka's tests run a round at the first and, a moment more than delete.retention.ms later, at the last of all times:
#: horizons lie far beyond the real time but do not overflow.
FIRST_PASS_MS = 2**63 - 1 - DELETE_RETENTION_MS - 1
SECOND_PASS_MS = FIRST_PASS_MS + DELETE_RETENTION_MS + 1


@dataclass(frozen=True)
class Cleaned:
    """A round's outcome."""

    next_dirty: int
    stats: CopyStats
    mapped: MapResult
    #: `.deleted` files, gone already unless they were to stay.
    deleted: list[Path]


def load(
    log: ShortLog,
    *,
    now_ms: int = NOW_MS,
    high_watermark: int | None = None,
    log_start_offset: int = 0,
    expiration_ms: int = NEVER_MS,
) -> Partition:
    """The log as a start of the broker finds it. No producer expires, unless told, and the high watermark is the log end."""
    log.close()
    return Partition.load(
        log.directory,
        log.config,
        now_ms=now_ms,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        producer_expiration_ms=expiration_ms,
    )


def clean(
    log: ShortLog,
    kernel: Kernel,
    first: int = 0,
    uncleanable: int | None = None,
    *,
    now_ms: int = FIRST_PASS_MS,
    slots: int | None = None,
    load_factor: float = 0.75,
    partition: Partition | None = None,
    before_swap: Callable[[CleanedGroup], None] | None = None,
    progress: Progress | None = None,
    keep_deleted: bool = False,
    map_memory_bytes: int = 1 << 20,
) -> Cleaned:
    """One round over [first, uncleanable rounded down to a segment), groups swapped in as they come.

    `slots`: of a map with Kafka's arithmetic; else all keys have room. `uncleanable`: else the active segment's base.
    """
    partition = partition or load(log, now_ms=now_ms)
    bound = upper_bound(partition, partition.active_segment.base_offset if uncleanable is None else uncleanable)
    options = RoundOptions(
        now_ms,
        map_memory_bytes=map_memory_bytes if slots is None else 24 * slots,
        map_load_factor=load_factor,
        kafka_map=slots is not None,
    )
    stats, deleted = CopyStats(), []
    with CleaningRound(partition, first, bound, options, kernel) as cleaning:
        mapped = cleaning.build_map(progress)
        cleaning.verify_clean_section(progress)
        cleaning.check_space()
        for group in cleaning.clean_groups(progress):
            stats = add_stats(stats, group.result.stats)
            if before_swap is not None:
                before_swap(group)
            if not group.unchanged:
                deleted += replace_segments(group.directory, [group.base_offset], group.source_bases)
        next_dirty = cleaning.next_dirty_offset
    if not keep_deleted:
        for path in deleted:
            path.unlink()
    return Cleaned(next_dirty, stats, mapped, deleted)


def two_passes(log: ShortLog, kernel: Kernel, first: int = 0, uncleanable: int | None = None) -> None:
    """The same range twice, delete.retention.ms and a moment apart: the first pass sets horizons, the second removes."""
    clean(log, kernel, first, uncleanable, now_ms=FIRST_PASS_MS)
    clean(log, kernel, first, uncleanable, now_ms=SECOND_PASS_MS)
