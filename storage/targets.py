"""From the paths a person names to the partitions behind them: log dirs, or single topic-partition dirs of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CompactdError, CorruptFileError, RefusedError, UsageError
from compactd.storage import names
from compactd.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
)
from compactd.storage.names import TopicPartition


@dataclass(slots=True)
class LogDirState:
    """What a log dir's own files say. A file that cannot be read degrades to "no entries", with a note (facts 8.1)."""

    path: Path
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: None where replication-offset-checkpoint does not exist.
    high_watermarks: dict[TopicPartition, int] | None = None
    clean_shutdown: bool = False
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> LogDirState:
        state = cls(path, clean_shutdown=(path / names.CLEAN_SHUTDOWN).exists())
        state.cleaner_offsets = state._entries(CLEANER_OFFSETS, "every log counts as dirty from its start")
        state.recovery_points = state._entries(RECOVERY_POINTS, "every log counts as not flushed")
        state.log_start_offsets = state._entries(LOG_START_OFFSETS, "logs start at their first segment")
        if (path / HIGH_WATERMARKS).exists():
            state.high_watermarks = state._entries(HIGH_WATERMARKS, "the high watermark counts as the log start")
        return state

    def _entries(self, name: str, consequence: str) -> dict[TopicPartition, int]:
        if not (self.path / name).exists():
            return {}
        try:
            return OffsetCheckpoint(self.path / name).read()
        except CorruptFileError as error:
            self.notes.append(f"{error} Until then {consequence}.")
            return {}


@dataclass(frozen=True, slots=True)
class PartitionTarget:
    """One live topic-partition directory."""

    topic_partition: TopicPartition
    directory: Path
    log_dir: LogDirState


@dataclass(slots=True)
class Targets:
    """Everything that a list of paths leads to."""

    log_dirs: list[LogDirState] = field(default_factory=list)
    partitions: list[PartitionTarget] = field(default_factory=list)
    #: Directories that were named or found and are not touched, with the reason.
    refused: list[RefusedError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_targets(paths: Sequence[Path]) -> Targets:
    """Raises UsageError for a path that is neither a log dir nor a topic-partition dir.

    In a log dir, `-delete`, `-future` and `-stray` directories and KRaft's metadata log are passed over; named themselves
    they are refused.
    """
    targets = Targets()
    states: dict[Path, LogDirState] = {}
    seen: set[Path] = set()

    def state_of(log_dir: Path) -> LogDirState:
        if log_dir not in states:
            states[log_dir] = LogDirState.read(log_dir)
            targets.log_dirs.append(states[log_dir])
            targets.notes.extend(states[log_dir].notes)
        return states[log_dir]

    for named in paths:
        path = named.resolve()
        if not path.is_dir():
            raise UsageError(detail=f"{named} is not a directory; name a log dir or a topic-partition dir")
        if is_partition_dir(path):
            _add(targets, path, state_of(path.parent), seen, named=True)
        elif is_log_dir(path):
            state = state_of(path)
            for child in sorted(p for p in path.iterdir() if p.is_dir() and p.name != names.REMOTE_LOG_INDEX_CACHE):
                _add(targets, child, state, seen, named=False)
        else:
            raise UsageError(
                detail=f"{named} is neither a log dir (no meta.properties and no topic-partition dir in it) "
                "nor a topic-partition dir"
            )
    _refuse_duplicates(targets)
    return targets


def is_partition_dir(path: Path) -> bool:
    """Its name reads as topic-partition and it holds segment files, or at least no directory of its own."""
    try:
        names.parse_partition_dir(path.name)
    except CompactdError:
        return False
    children = list(path.iterdir())
    return any(names.parse_segment_name(c.name) for c in children) or not (
        (path / names.META_PROPERTIES).exists() or any(c.is_dir() for c in children)
    )


def is_log_dir(path: Path) -> bool:
    """It has meta.properties, a checkpoint, or a topic-partition dir in it."""
    marks = (names.META_PROPERTIES, CLEANER_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS)
    if any((path / mark).exists() for mark in marks):
        return True
    return any(child.is_dir() and is_partition_dir(child) for child in path.iterdir())


def _add(targets: Targets, path: Path, state: LogDirState, seen: set[Path], *, named: bool) -> None:
    if path in seen:
        return
    seen.add(path)
    try:
        parsed = names.parse_partition_dir(path.name)
    except CompactdError:
        targets.notes.append(
            f"{path}: not a topic-partition dir; Kafka refuses to start on a log dir that holds it. Move it elsewhere."
        )
        return
    reason = advice = None
    if parsed.state != "live":
        reason = {
            "delete": "the partition is being deleted",
            "future": "the replica is still being moved here from another log dir",
            "stray": "the broker set the partition aside as not its own",
        }[parsed.state]
        advice = f"Clean the live directory of {parsed.topic_partition}; rename this one if it was set aside wrongly."
    elif parsed.topic_partition.topic == names.CLUSTER_METADATA_TOPIC:
        reason = "KRaft's metadata log is not compacted by keys but by snapshots"
        advice = "Leave it to the controller."
    if reason is None:
        targets.partitions.append(PartitionTarget(parsed.topic_partition, path, state))
    elif named:
        targets.refused.append(RefusedError(path=path, reason=reason, advice=advice))


def _refuse_duplicates(targets: Targets) -> None:
    """One partition live in two log dirs: Kafka does not start ("Duplicate log directories"), and nobody can say which is right."""
    by_name: dict[TopicPartition, list[PartitionTarget]] = {}
    for target in targets.partitions:
        by_name.setdefault(target.topic_partition, []).append(target)
    for twins in by_name.values():
        if len(twins) == 1 or len({t.log_dir.path.name for t in twins}) < 1:
            continue
        if not _one_broker(twins):
            continue
        for twin in twins:
            others = ", ".join(str(t.directory) for t in twins if t is not twin)
            targets.partitions.remove(twin)
            targets.refused.append(
                RefusedError(
                    path=twin.directory,
                    reason=f"the same partition is also at {others}",
                    advice="Kafka does not start on such log dirs; set the older one aside first.",
                )
            )


def _one_broker(twins: Sequence[PartitionTarget]) -> bool:
    """Whether the log dirs belong to one broker (same node and cluster); copies of several brokers may hold the same partition."""
    owners = set()
    for twin in twins:
        meta = twin.log_dir.path / names.META_PROPERTIES
        if not meta.exists():
            return False
        lines = meta.read_text(errors="replace").splitlines()
        owners.add(tuple(sorted(line for line in lines if line.startswith(("cluster.id", "node.id", "broker.id")))))
    return len(owners) == 1
