"""What `compactd recover` and `compactd retain` share: loading partitions under their log dirs' locks, and saying so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactd.config.errors import CompactdError
from compactd.scripts.output import Progress
from compactd.scripts.plan import Plan, Planned
from compactd.storage import names
from compactd.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
)
from compactd.storage.loaded_log import CUT, DELETED, LoadedLog
from compactd.storage.log_dir_session import LoadOutcome, LoadRequest, LogDirSession
from compactd.storage.segment import LogSegment

_CHECKPOINTS = (CLEANER_OFFSETS, RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)


@dataclass(slots=True)
class PlannedDir:
    """The planned partitions of one log dir."""

    path: Path
    partitions: list[Planned] = field(default_factory=list)
    #: The dir itself was named, so these are all of its live partitions.
    whole: bool = False

    @property
    def has_checkpoints(self) -> bool:
        """Whether this is a broker's log dir, and not just a directory that holds a copy of a partition."""
        return any((self.path / name).exists() for name in (names.META_PROPERTIES, *_CHECKPOINTS))


@dataclass(slots=True)
class LoadReport:
    """One partition's result."""

    planned: Planned
    high_watermark: int = -1
    log: LoadedLog | None = None
    error: CompactdError | None = None
    #: Sentences on what was done beside the load's own actions.
    done: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    def to_json(self) -> dict[str, Any]:
        """The fields that every report of a loaded log has."""
        name = self.planned.target.topic_partition
        fields: dict[str, Any] = {"topic": name.topic, "partition": name.partition}
        log = self.log
        if log is not None:
            fields |= {
                "logStartOffset": log.log_start_offset,
                "logEndOffset": log.log_end_offset,
                "lastStableOffset": log.producers.last_stable_offset(self.high_watermark, log.log_start_offset),
                "highWatermark": self.high_watermark,
                "recoveryPoint": log.recovery_point,
                "segments": [
                    {"baseOffset": s.base_offset, "size": s.size, "largestTimestamp": s.largest_timestamp}
                    for s in log.segments
                ],
                "actions": [
                    {"kind": action.kind, "path": str(action.path), "detail": action.detail} for action in log.actions
                ],
            }
        fields |= {"done": self.done, "notes": self.notes, "directory": str(self.planned.target.directory)}
        fields |= {"outcome": "failed" if self.error is not None else "done"}
        if self.error is not None:
            fields["reason"] = str(self.error)
        return fields


def planned_dirs(plan: Plan, paths: Sequence[Path]) -> list[PlannedDir]:
    """The plan's partitions by log dir, in the plan's order."""
    named = {path.resolve() for path in paths}
    dirs = {state.path: PlannedDir(state.path, whole=state.path in named) for state in plan.targets.log_dirs}
    for planned in plan.partitions:
        dirs[planned.target.log_dir.path].partitions.append(planned)
    return list(dirs.values())


@contextlib.contextmanager
def sessions(dirs: Sequence[PlannedDir], clean: bool | None) -> Iterator[list[tuple[PlannedDir, LogDirSession]]]:
    """All log dirs locked, or none: LogDirLockedError names the one that is in use."""
    with contextlib.ExitStack() as stack:
        yield [(each, stack.enter_context(LogDirSession.begin(each.path, clean=clean))) for each in dirs]


def bytes_to_recover(directory: PlannedDir, session: LogDirSession) -> int:
    """Bytes that recovery will read, for the progress bar."""
    if session.clean:
        return 0
    total = 0
    for planned in directory.partitions:
        point = session.recovery_points.get(planned.target.topic_partition, 0)
        bases = {}
        for path in planned.target.directory.glob("*.log"):
            parsed = names.parse_segment_name(path.name)
            if parsed is not None:
                bases[parsed.base_offset] = path
        floor = max((base for base in bases if base <= point), default=0)
        total += sum(path.stat().st_size for base, path in bases.items() if base >= floor)
    return total


def load_dir(
    directory: PlannedDir,
    session: LogDirSession,
    *,
    now_ms: int,
    threads: int,
    progress: Progress,
    recovery_point: int | None = None,
    log_start_offset: int | None = None,
    keep_cut: bool = False,
) -> list[LoadReport]:
    """Loads the dir's planned partitions; a report each, in order."""
    requests = [
        LoadRequest(
            planned.target.topic_partition,
            planned.target.directory,
            planned.settings.config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        for planned in directory.partitions
    ]

    def recovering(segment: LogSegment, left: int) -> None:
        if left:
            progress.advance(segment.size, f"recover {segment.directory.name}")

    outcomes = session.load(requests, now_ms=now_ms, threads=threads, keep_cut=keep_cut, recovering=recovering)
    return [_report(planned, outcome) for planned, outcome in zip(directory.partitions, outcomes, strict=True)]


def _report(planned: Planned, outcome: LoadOutcome) -> LoadReport:
    report = LoadReport(planned, log=outcome.log, error=outcome.error)
    log = outcome.log
    if log is None:
        return report
    known = planned.job.high_watermark
    if known is None:
        report.notes.append(f"there is no {HIGH_WATERMARKS}, so its high watermark is taken to be the log end offset")
        known = log.log_end_offset
    report.high_watermark = min(max(known, log.log_start_offset), log.log_end_offset)
    return report


def loss(log: LoadedLog) -> str:
    """What the load took away, in a few words; empty for nothing."""
    cuts = [action for action in log.actions if action.kind in (CUT, DELETED)]
    return "; ".join(f"{action.path.name}: {action.detail}" for action in cuts)
