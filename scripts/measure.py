"""The facts of one partition for `compactd analyze`: sizes, offsets, the first reason, and what cleaning would free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compactd.config.errors import CompactdError, StorageIOError
from compactd.config.settings import CleanerConfig
from compactd.scripts.explain import Reason, first_reason, first_reason_when_rolled, policy_reason
from compactd.scripts.output import human_bytes
from compactd.scripts.plan import Planned
from compactd.storage import names
from compactd.storage.checkpoints import HIGH_WATERMARKS
from compactd.storage.cleaning.cleanable import LogToClean
from compactd.storage.cleaning.round import CleaningRound, RoundOptions, add_stats
from compactd.storage.cleaning.run import CleanOptions, dirty_range, load_partition
from compactd.storage.kernel.interface import CopyStats, Kernel
from compactd.storage.names import TopicPartition
from compactd.storage.partition import Partition
from compactd.storage.records.batch import read_batches, scan_headers
from compactd.storage.swap import pending_swap_files

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class PartitionView:
    """One row. Bytes are of .log files; what was not measured is None."""

    topic_partition: TopicPartition
    directory: Path
    reason: Reason | None
    policy: str = "-"
    policy_source: str = ""
    segments: int = 0
    bytes: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    active_bytes: int = 0
    ratio: float | None = None
    offsets: dict[str, int | None] = field(default_factory=dict)
    #: What Kafka's next clean frees (0 where none is due), and what clean --force --roll would.
    frees_next: int | None = None
    frees_forced: int | None = None
    keys: int | None = None
    records: int | None = None
    superseded: int | None = None
    tombstones: int | None = None
    tombstones_expired: int | None = None
    keyless: int | None = None
    aborted: int | None = None
    markers: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The directory's own name for those that are not live."""
        return self.directory.name

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.policy.split(",")

    @classmethod
    def of_files(cls, topic_partition: TopicPartition, directory: Path, reason: Reason) -> PartitionView:
        """A row that only counts files."""
        view = cls(topic_partition, directory, reason)
        try:
            logs = [
                p for p in directory.iterdir() if (n := names.parse_segment_name(p.name)) and str(n).endswith(".log")
            ]
            view.segments, view.bytes = len(logs), sum(p.stat().st_size for p in logs)
        except FileNotFoundError:
            view.notes.append("its files vanished while they were counted")
        return view

    def to_json(self) -> dict[str, Any]:
        """The object of `--json`; null where it does not apply or was not measured."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "directory": str(self.directory),
            "policy": self.policy,
            "policySource": self.policy_source,
            "segments": self.segments,
            "bytes": self.bytes,
            "cleanBytes": self.clean_bytes,
            "dirtyBytes": self.dirty_bytes,
            "activeBytes": self.active_bytes,
            "ratio": self.ratio,
            **{name: self.offsets.get(name) for name in _OFFSETS},
            "bytesFreedNext": self.frees_next,
            "bytesFreedForced": self.frees_forced,
            "keys": self.keys,
            "records": self.records,
            "superseded": self.superseded,
            "tombstones": self.tombstones,
            "tombstonesExpired": self.tombstones_expired,
            "keyless": self.keyless,
            "aborted": self.aborted,
            "markers": self.markers,
            "reason": None if self.reason is None else self.reason.to_json(),
            "notes": self.notes,
        }


_OFFSETS = (
    "logStartOffset", "firstRecordOffset", "logEndOffset", "highWatermark", "lastStableOffset", "checkpoint",
    "firstDirtyOffset", "firstUncleanableOffset",
)  # fmt: skip


def measure(
    planned: Planned, cleaner: CleanerConfig, now_ms: int, kernel: Kernel | None, progress: Progress
) -> PartitionView | None:
    """The row of one partition; None when its directory vanished. Damage and I/O errors end in the row's reason.

    `kernel` None: read no records. A running broker may replace segments under us: then it is tried once more.
    """
    for attempt in range(2):
        try:
            return _measure(planned, cleaner, now_ms, kernel, progress)
        except (FileNotFoundError, StorageIOError) as error:
            vanished = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
            if not planned.target.directory.exists():
                return None
            if not vanished or attempt:
                return _failed(planned, "VANISHED" if vanished else "IO", error)
        except CompactdError as error:
            return _failed(planned, "REFUSED" if error.exit_code == 3 else "FAULT", error)
    raise AssertionError("unreachable")


def _failed(planned: Planned, code: str, error: Exception) -> PartitionView:
    fields = getattr(error, "fields", {})
    numbers = {name: fields[name] for name in ("position", "base_offset", "last_offset") if name in fields}
    reason = Reason(code, str(error).rstrip("."), fields={"file": str(fields.get("path", "")), **numbers})
    view = PartitionView.of_files(planned.target.topic_partition, planned.target.directory, reason)
    view.policy, view.policy_source = _policy(planned)
    return view


def _policy(planned: Planned) -> tuple[str, str]:
    settings = planned.settings
    return ",".join(sorted(settings.config.cleanup_policy)) or "none", settings.sources["cleanup.policy"]


def _measure(
    planned: Planned, cleaner: CleanerConfig, now_ms: int, kernel: Kernel | None, progress: Progress
) -> PartitionView:
    job = planned.job
    not_compacted = policy_reason(planned.settings)
    if not_compacted is not None:
        view = PartitionView.of_files(planned.target.topic_partition, planned.target.directory, not_compacted)
        view.policy, view.policy_source = _policy(planned)
        return view
    partition = load_partition(job, now_ms)
    options = CleanOptions(now_ms, dry_run=True)
    offsets, log = dirty_range(partition, job, options)
    reason = first_reason(partition, offsets, log, now_ms)
    if reason is not None and reason.code == "ACTIVE_ONLY":
        rolled = partition.as_if_rolled()
        reason = first_reason_when_rolled(rolled, *dirty_range(rolled, job, options), now_ms) or reason
    view = PartitionView(job.topic_partition, job.directory, reason)
    view.policy, view.policy_source = _policy(planned)
    view.notes.extend(partition.notes)
    view.segments, view.bytes = len(partition.segments), partition.size
    view.clean_bytes, view.dirty_bytes = log.clean_bytes, log.cleanable_bytes
    view.active_bytes = partition.active_segment.size
    view.ratio = log.cleanable_ratio if log.total_bytes else None
    view.offsets = {
        "logStartOffset": partition.log_start_offset,
        "logEndOffset": partition.log_end_offset,
        "highWatermark": partition.high_watermark,
        "lastStableOffset": partition.last_stable_offset,
        "checkpoint": job.checkpoint,
        "firstDirtyOffset": log.first_dirty_offset,
        "firstUncleanableOffset": log.first_uncleanable_offset,
        "firstRecordOffset": _first_record_offset(partition),
    }
    view.notes.extend(_leftovers(job.directory))
    if job.high_watermark is None:
        view.notes.append(f"there is no {HIGH_WATERMARKS}, so its high watermark is taken to be the log end offset")
    if offsets.force_update_checkpoint:
        view.notes.append(
            f"its cleaner checkpoint {job.checkpoint} lies outside the log [{partition.log_start_offset}, "
            f"{partition.log_end_offset}], so all of it counts as dirty"
        )
    if kernel is not None:
        _measure_keys(view, partition, log, planned, cleaner, options, kernel, progress)
    return view


def _leftovers(directory: Path) -> list[str]:
    """What a clean leaves beside the log: files of an unfinished swap, and replaced ones that wait for their removal."""
    notes = []
    if any(not name.endswith(names.DELETED) for name in pending_swap_files(directory)):
        notes.append("a clean is under way or was interrupted here; the next start or clean finishes or drops it")
    waiting = [path for path in directory.iterdir() if path.name.endswith(names.DELETED)]
    size = sum(path.stat().st_size for path in waiting)
    if size:
        notes.append(
            f"{len(waiting)} replaced files ({human_bytes(size)}) wait as .deleted until the broker removes them"
        )
    return notes


def _measure_keys(
    view: PartitionView,
    partition: Partition,
    log: LogToClean[Partition],
    planned: Planned,
    cleaner: CleanerConfig,
    options: CleanOptions,
    kernel: Kernel,
    progress: Progress,
) -> None:
    rolled = partition.as_if_rolled() if partition.active_segment.size else partition
    _, forced = dirty_range(rolled, planned.job, replace(options, force=True, roll=True))
    freed, stats, keys, full = _freed(rolled, forced, options, cleaner, kernel, progress)
    view.frees_forced, view.keys, view.records = freed, keys, stats.messages_read
    view.superseded, view.keyless, view.aborted = stats.superseded, stats.invalid_messages_read, stats.aborted
    view.tombstones, view.tombstones_expired = stats.tombstones_read, stats.tombstones_expired
    view.markers = _markers(partition)
    if full:
        view.notes.append(
            f"the offset map holds {keys} keys and was full, so a clean takes several rounds; what they free together is "
            "more than the first one's, shown here"
        )
    if not log.wants_cleaning:
        view.frees_next = 0
    elif (forced.first_dirty_offset, forced.first_uncleanable_offset) == (
        log.first_dirty_offset,
        log.first_uncleanable_offset,
    ):
        view.frees_next = freed
    else:
        view.frees_next = _freed(partition, log, options, cleaner, kernel, progress)[0]
    if stats.tombstones_expired and not log.wants_cleaning:
        view.notes.append(
            f"{stats.tombstones_expired} expired tombstones wait for dirty data; clean --force drops them now"
        )
    if view.keyless:
        view.notes.append(
            f"{view.keyless} records without a key would be dropped by a clean; a compacted topic keeps none"
        )


def _freed(
    partition: Partition,
    log: LogToClean[Partition],
    options: CleanOptions,
    cleaner: CleanerConfig,
    kernel: Kernel,
    progress: Progress,
) -> tuple[int, CopyStats, int, bool]:
    """One round over the dirty range with nothing written: bytes freed, counts, keys in the map, whether it was full."""
    stats, freed = CopyStats(), 0
    if log.cleanable_bytes == 0:
        return 0, stats, 0, False
    memory = cleaner.dedupe_buffer_size // max(1, cleaner.threads)
    settings = RoundOptions(options.now_ms, memory, cleaner.load_factor)
    with CleaningRound(partition, log.first_dirty_offset, log.first_uncleanable_offset, settings, kernel) as cleaning:
        mapped = cleaning.build_map(progress)
        for group, result in cleaning.measure_groups(progress):
            freed += sum(segment.size for segment in group) - result.log_size
            stats = add_stats(stats, result.stats)
    return freed, stats, mapped.entries, mapped.full


def _markers(partition: Partition) -> int:
    """Control batches in the log; 0 without a look where no producer ever was transactional."""
    transactional = partition.producers.entries() or any(s.transaction_index_path.exists() for s in partition.segments)
    if not transactional:
        return 0
    return sum(h.is_control for s in partition.segments for h in scan_headers(s.log_path, 0, s.size))


def _first_record_offset(partition: Partition) -> int | None:
    """Offset of the first record that is left: compaction keeps a segment's name when its first records go."""
    for segment in partition.segments:
        for batch in read_batches(segment.log_path, 0, segment.size):
            if batch.header.record_count != 0:
                return batch.records()[0].offset
    return None
