"""A finished copy takes the place of its log: two renames in two log dirs, and what a start makes of one alone.

How the copy is made, and what each step leaves: storage.log_copy. The copy carries a note of where it comes from until its
origin is out of the way and whoever removes that knows of it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from compactd.config.errors import CompactdError, StorageIOError
from compactd.storage import files, names
from compactd.storage.log import PartitionLog
from compactd.storage.names import TopicPartition

#: In a complete copy until what it was made of is out of the way: that one's directory.
MOVED_FROM = ".moved-from"
_LONGEST_PATH = 4096


def exchange(log: PartitionLog, moved: PartitionLog, *, recorded: bool) -> StorageIOError | None:
    """A finished copy that was loaded takes the log's place; the log's directory becomes a `-delete` one.

    `recorded`: the catalogue says that the partition lies in the copy's dir; a start in the middle then knows what to do,
    whatever comes first. Else the copy gets its name first: two directories of one name are told apart by its note, which
    stays until `forget_origin`. Returns the error of the log's own dir, which keeps nobody from going on with the copy.
    Raises StorageIOError, with the log in place as before, where the copy can't be renamed.
    """
    plain = str(log.topic_partition)
    problem = _retire(log) if recorded else None
    try:
        moved.rename_dir(plain)
    except StorageIOError:
        if recorded and problem is None:
            log.rename_dir(plain)
        raise
    return problem if recorded else _retire(log)


def _retire(log: PartitionLog) -> StorageIOError | None:
    try:
        log.rename_dir(names.delete_dir_name(log.topic_partition))
    except StorageIOError as error:
        return error
    return None


def forget_origin(directory: Path) -> None:
    """The move is over, and whoever removes what was moved knows of it: the note goes, unless that still has its name.

    One that stays, because its disk fails just now, is removed by the next start.
    """
    with contextlib.suppress(CompactdError):
        if not is_copy(directory):
            return
        origin = origin_of(directory)
        if origin is None or not origin.exists():
            files.remove(directory / MOVED_FROM, missing_ok=True)
            files.fsync_dir(directory)


def is_copy(directory: Path) -> bool:
    """Whether it says of itself that it is a complete copy of another one."""
    return os.path.exists(f"{directory}/{MOVED_FROM}")  # noqa: PTH110  once for each partition of a start


def origin_of(directory: Path) -> Path | None:
    """The directory that this one is a complete copy of; None: it is none, or the move is long over."""
    if not is_copy(directory):
        return None
    text = files.read_file(directory / MOVED_FROM, _LONGEST_PATH)
    return Path(os.fsdecode(text)) if text else None


def future_copies(log_dir: Path) -> dict[TopicPartition, list[Path]]:
    """The `-future` directories of a log dir by partition. StorageIOError."""
    return directories_named(log_dir, names.FUTURE_DIR)


def directories_named(log_dir: Path, suffix: str) -> dict[TopicPartition, list[Path]]:
    """Partitions' directories of a log dir whose names end so, by partition. StorageIOError."""
    found: dict[TopicPartition, list[Path]] = {}
    try:
        with os.scandir(log_dir) as entries:
            there = sorted(entry.name for entry in entries if entry.name.endswith(suffix) and entry.is_dir())
    except OSError as error:
        raise files.failed(log_dir, "list", error) from error
    for name in there:
        found.setdefault(names.parse_partition_dir(name).topic_partition, []).append(log_dir / name)
    return found


def finish_interrupted(directory: Path) -> list[Path]:
    """Finishes the exchange of a partition that belongs to `directory`, the plain name in its log dir.

    For a start that finds the catalogue naming that log dir. Returns the `-delete` directories of what was moved, until
    `forget_origin`; none where no move was interrupted. StorageIOError where the copy can't be used; an origin that can't
    be renamed stays.
    """
    partition = names.parse_partition_dir(directory.name).topic_partition
    if directory.exists():
        origin = origin_of(directory)
        if origin is None:
            return []
    else:
        complete = [(path, origin_of(path)) for path in future_copies(directory.parent).get(partition, ())]
        copy, origin = next(((path, origin) for path, origin in complete if origin is not None), (None, None))
        if copy is None or origin is None:
            return []
        _set_aside(origin, partition)
        files.rename(copy, directory)
        files.fsync_dir(directory.parent)
    return _set_aside(origin, partition)


def _set_aside(origin: Path, partition: TopicPartition) -> list[Path]:
    """The origin's `-delete` directories, itself made one of them where it still has its name."""
    with contextlib.suppress(CompactdError):
        if origin.exists():
            files.rename(origin, origin.with_name(names.delete_dir_name(partition)))
            files.fsync_dir(origin.parent)
    return sorted(origin.parent.glob(f"{origin.name}.*{names.DELETE_DIR}"))
