"""Checks what lies at the top of a log dir: identity, lock, marker, checkpoints, directories. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CorruptFileError, RefusedError
from compactd.storage import files, names
from compactd.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
)
from compactd.storage.findings import FAULT, NOTE, Finding
from compactd.storage.log_dir import LogDir, read_meta_properties
from compactd.storage.names import TopicPartition

_CHECKPOINTS = (CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS)
_SET_ASIDE = {
    "delete": "is being deleted",
    "future": "is being moved here from another log dir",
    "stray": "was set aside by the broker as not its own",
}


@dataclass(slots=True)
class LogDirCheck:
    """What was found at the top of a log dir, and what its checkpoints say."""

    path: Path
    clean_shutdown: bool
    findings: list[Finding] = field(default_factory=list)
    #: By file name; a file that cannot be read has none.
    checkpoints: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def entry(self, checkpoint: str, name: TopicPartition) -> int | None:
        return self.checkpoints.get(checkpoint, {}).get(name)


def verify_log_dir(path: Path, *, whole: bool = True) -> LogDirCheck:
    """Checks one log dir. `whole` False: only a partition of it was named, so its other directories are not looked at."""
    log_dir = LogDir(path)
    marker = log_dir.clean_shutdown()
    check = LogDirCheck(path, marker is not None)
    for name in _CHECKPOINTS:
        if (path / name).exists():
            check.checkpoints[name] = _read(check, path / name)
    try:
        read_meta_properties(path / names.META_PROPERTIES)
    except CorruptFileError as error:
        _add(check, FAULT, "META_PROPERTIES", path / names.META_PROPERTIES, error.reason, error.position)
    if marker is not None and marker.broker_epoch is None and (path / names.CLEAN_SHUTDOWN).stat().st_size:
        detail = "is no JSON with a brokerEpoch; it still counts as a clean stop"
        _add(check, FAULT, "CLEAN_SHUTDOWN", path / names.CLEAN_SHUTDOWN, detail)
    if not whole:
        return check
    if marker is None and check.checkpoints:
        detail = "was not stopped cleanly: the next start recovers every log from its recovery point on"
        _add(check, NOTE, "UNCLEAN_STOP", path, detail)
    live = _check_directories(check)
    for entry in sorted(path.glob("*" + files.TEMPORARY)):
        _add(check, NOTE, "TEMPORARY_FILE", entry, "is left over from a write that did not end")
    _check_entries(check, live)
    return check


def duplicate_partitions(checks: Sequence[tuple[TopicPartition, Path]]) -> list[Finding]:
    """Partitions that are live in two log dirs of one broker: it does not start."""
    by_name: dict[TopicPartition, list[Path]] = {}
    for name, directory in checks:
        by_name.setdefault(name, []).append(directory)
    return [
        Finding(
            FAULT,
            "DUPLICATE_PARTITION",
            directory,
            f"is also at {', '.join(str(other) for other in paths if other != directory)}",
            topic_partition=name,
        )
        for name, paths in by_name.items()
        if len(paths) > 1
        for directory in paths
    ]


def _read(check: LogDirCheck, path: Path) -> dict[TopicPartition, int]:
    try:
        return OffsetCheckpoint(path).read()
    except CorruptFileError as error:
        repair = "a start takes it as empty and writes it anew"
        _add(check, FAULT, "CHECKPOINT", path, error.reason, error.position, repair)
        return {}


def _check_directories(check: LogDirCheck) -> set[TopicPartition]:
    live = set()
    for entry in sorted(check.path.iterdir()):
        if not entry.is_dir() or entry.name == names.REMOTE_LOG_INDEX_CACHE:
            continue
        try:
            parsed = names.parse_partition_dir(entry.name)
        except RefusedError:
            _add(
                check, FAULT, "FOREIGN_DIRECTORY", entry, "is no partition's name: Kafka does not start on this log dir"
            )
            continue
        if parsed.state == "live":
            live.add(parsed.topic_partition)
            continue
        size = sum(file.stat().st_size for file in entry.iterdir() if file.is_file())
        repair = "the next start removes it" if parsed.state == "delete" else ""
        detail = f"{_SET_ASIDE[parsed.state]}: {size} bytes"
        _add(check, NOTE, f"{parsed.state.upper()}_DIRECTORY", entry, detail, repair=repair)
    return live


def _check_entries(check: LogDirCheck, live: Collection[TopicPartition]) -> None:
    for name, entries in check.checkpoints.items():
        gone = sorted(str(each) for each in entries if each not in live)
        negative = sorted(str(each) for each, offset in entries.items() if offset < 0)
        if gone:
            shown = ", ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
            _add(check, NOTE, "STALE_ENTRIES", check.path / name, f"names partitions that are not here: {shown}")
        if negative:
            _add(check, FAULT, "CHECKPOINT", check.path / name, f"has negative offsets: {', '.join(negative[:5])}")


def _add(
    check: LogDirCheck,
    severity: str,
    code: str,
    path: Path,
    detail: str,
    position: int | None = None,
    repair: str = "",
) -> None:
    check.findings.append(Finding(severity, code, path, detail, position, None, repair))
