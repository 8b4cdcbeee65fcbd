"""A live log dir of a log manager with everything that is in it, and the removal of a directory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CompactdError
from compactd.storage import files
from compactd.storage.log import PartitionLog
from compactd.storage.log_copy import LogCopy
from compactd.storage.log_dir_session import LogDirSession
from compactd.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class DoomedDir:
    """A `-delete` directory that waits for its time."""

    directory: Path
    due_ms: int


@dataclass(slots=True)
class ManagedDir:
    """A live log dir and its logs."""

    session: LogDirSession
    directory_id: uuid.UUID | None
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    #: Copies on their way here from other dirs.
    futures: dict[TopicPartition, LogCopy] = field(default_factory=dict)
    strays: list[Path] = field(default_factory=list)
    doomed: list[DoomedDir] = field(default_factory=list)
    #: Logs that could not be loaded, each with the reason; they are nobody's until a person looked at them.
    faulty: dict[TopicPartition, CompactdError] = field(default_factory=dict)
    #: Every log was loaded: only then may the dir be marked as cleanly stopped.
    loaded: bool = False

    @property
    def path(self) -> Path:
        return self.session.path

    @property
    def log_count(self) -> int:
        return len(self.logs) + len(self.futures)


def remove_tree(directory: Path) -> None:
    """Removes a directory with everything in it; what is gone already is passed by. StorageIOError."""
    if not directory.exists():
        return
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            files.remove(path, missing_ok=True)
    files.remove_dir(directory)
