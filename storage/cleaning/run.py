"""Cleaning one partition of a stopped broker from start to end: checks, interrupted swaps, rounds, swaps, leftovers.

The caller holds the log dir's lock, so this process is the log's owner and swaps by itself. No processes and no clock
here: `scripts.clean` chooses, spreads jobs over processes and writes the checkpoint files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compactd.config.errors import CompactdError, OffsetOverflowError, RefusedError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.cleaning.cleanable import (
    LogToClean,
    OffsetsToClean,
    log_to_clean,
    offsets_to_clean,
)
from compactd.storage.cleaning.round import CleanedGroup, CleaningRound, RoundOptions, add_stats
from compactd.storage.kernel.interface import CopyStats, Kernel, Progress
from compactd.storage.names import TopicPartition
from compactd.storage.partition import Partition
from compactd.storage.roll import roll_active_segment
from compactd.storage.split import split_overflowed_segment
from compactd.storage.swap import pending_swap_files, recover_swap, replace_segments

#: A safety net, not a limit anyone meets: each round maps at least one key.
_MOST_SPLITS = 10_000


@dataclass(frozen=True, slots=True)
class CleanOptions:
    """What a person may ask of one clean. Offsets absolute, times in ms."""

    now_ms: int
    force: bool = False
    roll: bool = False
    once: bool = False
    dry_run: bool = False
    kafka_map: bool = False
    first_dirty_offset: int | None = None
    uncleanable_offset: int | None = None
    map_memory_bytes: int = 128 << 20
    map_load_factor: float = 0.9
    #: Threads that work on a partition, the calling one included.
    threads: int = 1
    #: Replaced files go as soon as their swap is durable, so that a clean needs no more room than its largest group.
    remove_replaced: bool = False


@dataclass(frozen=True, slots=True)
class CleanJob:
    """One partition to clean, with what its log dir's files say of it. Plain data: it crosses process borders."""

    topic_partition: TopicPartition
    directory: Path
    config: TopicConfig
    #: Entry of cleaner-offset-checkpoint; None: no entry.
    checkpoint: int | None
    #: From replication-offset-checkpoint or --high-watermark; None: the log end offset.
    high_watermark: int | None
    log_start_offset: int = 0
    clean_shutdown: bool = True
    recovery_point: int = 0


@dataclass(slots=True)
class PartitionReport:
    """What became of one partition. Bytes are of .log files, the active segment included."""

    topic_partition: TopicPartition
    directory: Path
    first_dirty_offset: int = -1
    first_uncleanable_offset: int = -1
    next_dirty_offset: int = -1
    rounds: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    stats: CopyStats = field(default_factory=CopyStats)
    map_entries: int = 0
    map_capacity: int = 0
    seconds: float = 0.0
    index_seconds: float = 0.0
    groups: int = 0
    unchanged_groups: int = 0
    #: "cleaned", "measured" (dry run), "clean" (nothing to do), "refused", "faulty" or "failed" (I/O).
    outcome: str = "clean"
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    #: `.deleted` files that this clean left behind.
    deleted: list[Path] = field(default_factory=list)
    #: Worst exit code of this partition (config.errors).
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """One JSON object, names as in Kafka's own vocabulary, camel case."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "firstDirtyOffset": self.first_dirty_offset,
            "firstUncleanableOffset": self.first_uncleanable_offset,
            "nextDirtyOffset": self.next_dirty_offset,
            "rounds": self.rounds,
            "bytesBefore": self.bytes_before,
            "bytesAfter": self.bytes_after,
            "bytesRead": self.stats.bytes_read,
            "bytesWritten": self.stats.bytes_written,
            "messagesRead": self.stats.messages_read,
            "messagesWritten": self.stats.messages_written,
            "invalidMessagesRead": self.stats.invalid_messages_read,
            "mapEntries": self.map_entries,
            "seconds": round(self.seconds, 6),
            "indexSeconds": round(self.index_seconds, 6),
            "outcome": self.outcome,
            "reason": self.reason,
            "directory": str(self.directory),
            "groups": self.groups,
            "unchangedGroups": self.unchanged_groups,
            "superseded": self.stats.superseded,
            "aborted": self.stats.aborted,
            "tombstonesRead": self.stats.tombstones_read,
            "tombstonesExpired": self.stats.tombstones_expired,
            "markersRemoved": self.stats.markers_removed,
            "notes": self.notes,
        }


def load_partition(job: CleanJob, now_ms: int) -> Partition:
    """The job's partition as it lies on disk, nothing changed."""
    return Partition.load(
        job.directory,
        job.config,
        topic_partition=job.topic_partition,
        log_start_offset=job.log_start_offset,
        high_watermark=job.high_watermark,
        clean_shutdown=job.clean_shutdown,
        recovery_point=job.recovery_point,
        now_ms=now_ms,
    )


def dirty_range(
    partition: Partition, job: CleanJob, options: CleanOptions
) -> tuple[OffsetsToClean, LogToClean[Partition]]:
    """What this clean would take on: Kafka's range, or the one that the options ask for."""
    checkpoint = job.checkpoint if options.first_dirty_offset is None else options.first_dirty_offset
    offsets = offsets_to_clean(partition, checkpoint, options.now_ms, ignore_lag=options.force)
    if options.uncleanable_offset is not None:
        wanted = min(options.uncleanable_offset, offsets.first_uncleanable_offset)
        offsets = replace(offsets, first_uncleanable_offset=max(offsets.first_dirty_offset, wanted))
    log = log_to_clean(partition, offsets.first_dirty_offset, offsets.first_uncleanable_offset, options.now_ms)
    if options.force and options.first_dirty_offset is None and log.cleanable_bytes == 0 and log.clean_bytes:
        # Nothing is dirty, yet a clean was asked for: expired tombstones may go. Read everything as dirty.
        offsets = replace(offsets, first_dirty_offset=partition.log_start_offset)
        log = log_to_clean(partition, partition.log_start_offset, log.first_uncleanable_offset, options.now_ms)
    return offsets, log


def check_partition_writable(partition: Partition) -> None:
    """Raises NotWritableError for the first file that may not be replaced, before anything is changed."""
    files.check_writable(partition.directory)
    for segment in partition.segments:
        for path in segment.existing_files():
            files.check_writable(path)


def clean_partition(
    job: CleanJob,
    options: CleanOptions,
    kernel: Kernel,
    timer: Callable[[], float],
    progress: Progress | None = None,
    on_checkpoint: Callable[[int], None] | None = None,
) -> PartitionReport:
    """Cleans one partition and reports; faults, refusals and I/O errors of this partition end in its report, not in a raise.

    `timer`: seconds, monotonic. `on_checkpoint` is called after each round with the next dirty offset, once the round's
    files are in place.
    """
    report = PartitionReport(job.topic_partition, job.directory)
    started = timer()
    try:
        _clean(job, options, kernel, timer, progress, on_checkpoint or (lambda _: None), report)
    except CompactdError as error:
        report.exit_code = error.exit_code
        report.outcome = {1: "faulty", 3: "refused", 4: "failed"}.get(error.exit_code, "failed")
        report.reason = str(error)
        with contextlib.suppress(OSError):
            report.bytes_after = sum(p.stat().st_size for p in job.directory.glob("*.log"))
        if isinstance(error, StorageIOError) and report.deleted:
            kept = sum(path.stat().st_size for path in report.deleted if path.exists())
            report.notes.append(
                f"{len(report.deleted)} replaced files ({kept} bytes) take room as .deleted; without a delay each would "
                "go as soon as it is replaced"
            )
    report.seconds = timer() - started
    return report


def _clean(
    job: CleanJob,
    options: CleanOptions,
    kernel: Kernel,
    timer: Callable[[], float],
    progress: Progress | None,
    on_checkpoint: Callable[[int], None],
    report: PartitionReport,
) -> None:
    _leftovers(job.directory, options.dry_run, report)
    partition = load_partition(job, options.now_ms)
    report.notes.extend(partition.notes)
    report.bytes_before = report.bytes_after = partition.size
    if not options.dry_run:
        check_partition_writable(partition)
    if options.roll and not options.dry_run and partition.active_segment.size:
        roll_active_segment(partition)
        partition = load_partition(job, options.now_ms)
    elif options.roll and partition.active_segment.size:
        partition = partition.as_if_rolled()

    for _ in range(_MOST_SPLITS):
        try:
            _rounds(partition, job, options, kernel, timer, progress, on_checkpoint, report)
            return
        except OffsetOverflowError as overflow:
            # Kafka splits the source, gives this round up and begins again (facts 5.9).
            if options.dry_run:
                raise
            _replaced(split_overflowed_segment(partition, overflow.base_offset), options, report)
            report.notes.append(f"segment {overflow.base_offset} spanned more than 2^31 offsets and was split")
            partition = load_partition(job, options.now_ms)
    raise RefusedError(path=job.directory, reason="splitting its segments does not end", advice="Report this log.")


def _leftovers(directory: Path, dry_run: bool, report: PartitionReport) -> None:
    """Deals with what an earlier clean left, as Kafka's start does; says so where it was more than `.deleted` files."""
    pending = pending_swap_files(directory)
    unfinished = [name for name in pending if not name.endswith(names.DELETED)]
    if unfinished and dry_run:
        report.notes.append("an interrupted swap lies here; a clean finishes or drops it first, as Kafka's start does")
    if not pending or dry_run:
        return
    files.check_writable(directory)
    recovery = recover_swap(directory)
    if recovery.renamed:
        report.notes.append(f"finished the swap of an interrupted clean ({len(recovery.renamed)} files)")
    elif unfinished:
        report.notes.append(f"dropped the unfinished output of an interrupted clean ({len(unfinished)} files)")


def _rounds(
    partition: Partition,
    job: CleanJob,
    options: CleanOptions,
    kernel: Kernel,
    timer: Callable[[], float],
    progress: Progress | None,
    on_checkpoint: Callable[[int], None],
    report: PartitionReport,
) -> None:
    offsets, log = dirty_range(partition, job, options)
    report.first_dirty_offset = log.first_dirty_offset
    report.first_uncleanable_offset = log.first_uncleanable_offset
    report.next_dirty_offset = offsets.first_dirty_offset
    if offsets.force_update_checkpoint and not options.dry_run:
        report.notes.append(
            f"cleaner checkpoint {job.checkpoint} lies outside the log "
            f"[{partition.log_start_offset}, {partition.log_end_offset}]; it was set to {offsets.first_dirty_offset}"
        )
        on_checkpoint(offsets.first_dirty_offset)
    known_clean = max(job.checkpoint or 0, partition.log_start_offset)
    if options.first_dirty_offset is not None and log.first_dirty_offset > known_clean:
        report.notes.append(
            f"offsets {known_clean} to {log.first_dirty_offset - 1} were taken for clean as asked; where they are not, "
            "a tombstone among them may go before what it deletes"
        )
    if log.cleanable_bytes == 0:
        report.reason = report.reason or "nothing is dirty below the first uncleanable offset"
        return
    first_dirty = log.first_dirty_offset
    round_options = RoundOptions(
        options.now_ms, options.map_memory_bytes, options.map_load_factor, options.kafka_map, options.threads
    )
    while first_dirty < log.first_uncleanable_offset:
        with CleaningRound(partition, first_dirty, log.first_uncleanable_offset, round_options, kernel) as cleaning:
            started = timer()
            mapped = cleaning.build_map(progress)
            report.index_seconds += timer() - started
            report.map_entries = max(report.map_entries, mapped.entries)
            report.map_capacity = mapped.capacity
            report.rounds += 1
            if options.dry_run:
                _measure(cleaning, report, progress)
            else:
                cleaning.verify_clean_section(progress)
                cleaning.check_space()
                for group in cleaning.clean_groups(progress):
                    _swap_in(group, options, report)
            report.next_dirty_offset = first_dirty = cleaning.next_dirty_offset
        if options.dry_run:
            report.outcome = "measured"
            if first_dirty < log.first_uncleanable_offset:
                report.notes.append(
                    f"the offset map was full at {first_dirty}: a clean takes further rounds and frees more"
                )
            return
        on_checkpoint(first_dirty)
        report.outcome = "cleaned"
        partition = load_partition(job, options.now_ms) if not options.once else partition
        report.bytes_after = sum(p.stat().st_size for p in job.directory.glob("*.log"))
        if options.once:
            return


def _swap_in(group: CleanedGroup, options: CleanOptions, report: PartitionReport) -> None:
    report.groups += 1
    report.stats = add_stats(report.stats, group.result.stats)
    if group.unchanged:
        report.unchanged_groups += 1
        return
    try:
        replaced = replace_segments(group.directory, [group.base_offset], group.source_bases)
    except StorageIOError:
        # Half-way through the renames: finish or drop the swap now as the next start would, if the disk lets us.
        with contextlib.suppress(CompactdError):
            recover_swap(group.directory)
        raise
    _replaced(replaced, options, report)


def _replaced(deleted: list[Path], options: CleanOptions, report: PartitionReport) -> None:
    """The `.deleted` files of a swap go or stay, as the options say."""
    if not options.remove_replaced:
        report.deleted.extend(deleted)
        return
    for path in deleted:
        files.remove(path, missing_ok=True)


def _measure(cleaning: CleaningRound, report: PartitionReport, progress: Progress | None) -> None:
    for group, result in cleaning.measure_groups(progress):
        report.groups += 1
        report.unchanged_groups += result.unchanged
        report.stats = add_stats(report.stats, result.stats)
        report.bytes_after += result.log_size - sum(segment.size for segment in group)
