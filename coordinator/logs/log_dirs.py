"""The log dirs as the coordinator holds them: locks, checkpoints, the marker of a clean stop, failure (facts 1.3 to 1.5, 9).

Decisions happen on the loop's thread. Everything that touches a disk is done by methods that say so, each in the lane of its
log dir: a disk that hangs then keeps neither the coordinator nor the other dirs from going on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactd.config.errors import CompactdError, LogDirLockedError, RefusedError
from compactd.coordinator.control.messages import LogDirStatus
from compactd.storage import files, names
from compactd.storage.log_dir_session import LogDirSession
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Segment:
    base_offset: int


@dataclass(frozen=True, slots=True)
class _Checkpointed:
    """A partition's state as the checkpoints ask for it."""

    topic_partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    segments: tuple[_Segment, ...]


@dataclass(frozen=True, slots=True)
class FoundDirs:
    """The partition directories of one log dir."""

    live: frozenset[TopicPartition]
    #: Paths of `-delete` directories.
    deleted: tuple[str, ...]


class LogDirs:
    """All entries of log.dirs. `open` takes the locks; `release` gives them back."""

    def __init__(self, paths: Sequence[str]) -> None:
        #: In the order of log.dirs; real paths.
        self.paths = [Path(path) for path in paths]
        #: Why a dir is offline, in words.
        self.offline: dict[Path, str] = {}
        self._sessions: dict[Path, LogDirSession] = {}
        self._high_watermarks: dict[Path, dict[TopicPartition, int]] = {}
        self._space: dict[Path, tuple[int, int]] = {}
        self._not_loaded: set[Path] = set()

    def open(self) -> None:
        """Makes and locks them. A dir that can't be used is offline from the start.

        LogDirLockedError: somebody else uses one. RefusedError: a dir is listed twice, or none can be used.
        """
        for path in self.paths:
            if self.paths.count(path) > 1:
                raise RefusedError(path=path, reason="log.dirs lists it twice", advice="List every dir once.")
        try:
            for path in self.paths:
                self._open(path)
        except BaseException:
            self.release()
            raise
        if not self._sessions:
            why = "; ".join(self.offline.values()).rstrip(".")
            raise RefusedError(path=self.paths[0], reason=f"no log dir can be used: {why}", advice="Mend one at least.")

    @property
    def online(self) -> list[Path]:
        return [path for path in self.paths if path in self._sessions and path not in self.offline]

    def is_online(self, path: str | Path) -> bool:
        return Path(path) in self._sessions and Path(path) not in self.offline

    def stopped_cleanly(self, path: str | Path) -> bool:
        """The dir's logs need no recovery: its broker stopped in good order before this start."""
        session = self._sessions.get(Path(path))
        return session is not None and session.clean

    def offsets(self, log_dir: str, partition: TopicPartition) -> tuple[int, int, int]:
        """Recovery point, log start offset and high watermark (-1: not known) of the checkpoints."""
        path = Path(log_dir)
        session = self._sessions.get(path)
        if session is None:
            return 0, 0, -1
        return (
            session.recovery_points.get(partition, 0),
            session.log_start_offsets.get(partition, 0),
            self._high_watermarks.get(path, {}).get(partition, -1),
        )

    def fail(self, path: Path, reason: str) -> bool:
        """Takes a dir offline. False: it was already, or is none of ours."""
        session = self._sessions.get(path)
        if session is None or path in self.offline:
            return False
        self.offline[path] = reason
        session.failed = True
        return True

    def note_not_loaded(self, path: Path) -> None:
        """A log of this dir is not open: the dir must not be marked as stopped in good order."""
        self._not_loaded.add(path)

    def not_loaded(self, path: Path) -> bool:
        return path in self._not_loaded

    def status(self, partitions: Mapping[str, int], cordoned: Collection[str]) -> tuple[LogDirStatus, ...]:
        """`partitions`: how many lie in each."""
        return tuple(
            LogDirStatus(
                path=str(path),
                partitions=partitions.get(str(path), 0),
                free_bytes=self._space.get(path, (0, 0))[0],
                total_bytes=self._space.get(path, (0, 0))[1],
                offline_because=self.offline.get(path, ""),
                cordoned="*" in cordoned or str(path) in cordoned,
            )
            for path in self.paths
        )

    # ---- in the dir's lane

    def begin_use(self, path: Path) -> FoundDirs:
        """From now on a crash counts as an unclean stop. What lies there. StorageIOError, RefusedError."""
        session = self._sessions[path]
        session.forget_marker()
        self._high_watermarks[path] = session.read_high_watermarks()
        for note in session.notes:
            _log.warning(note)
        session.notes.clear()
        found = [each for each in session.log_dir.partition_dirs() if not each.is_cluster_metadata]
        return FoundDirs(
            frozenset(each.topic_partition for each in found if each.state == "live"),
            tuple(str(path / each.name) for each in found if each.state == "delete"),
        )

    def write_offsets(self, path: Path, states: Iterable[PartitionState], gone: Iterable[TopicPartition]) -> None:
        """Recovery points and log start offsets. Entries of partitions that are not loaded stay, those of `gone` go."""
        session = self._sessions[path]
        for partition in gone:
            session.recovery_points.pop(partition, None)
            session.log_start_offsets.pop(partition, None)
        session.write_checkpoints([_checkpointed(state) for state in states], whole_dir=False)

    def write_high_watermarks(
        self, path: Path, states: Iterable[PartitionState], gone: Iterable[TopicPartition]
    ) -> None:
        """Written only when one moved."""
        before = self._high_watermarks.get(path, {})
        entries = dict(before)
        for partition in gone:
            entries.pop(partition, None)
        entries |= {TopicPartition(state.topic, state.partition): state.high_watermark for state in states}
        if entries != before:
            self._sessions[path].log_dir.high_watermarks.write(entries)
            self._high_watermarks[path] = entries

    def write_marker(self, path: Path, broker_epoch: int) -> None:
        """Says that every log of the dir was closed in good order: the last thing that is written."""
        self._sessions[path].log_dir.write_clean_shutdown(broker_epoch)

    def look_at_space(self, path: Path) -> None:
        """Free and total bytes, for status."""
        found = os.statvfs(path)
        self._space[path] = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def release_one(self, path: Path) -> None:
        """Gives the lock of a failed dir up, as Kafka does."""
        self._sessions[path].release()

    def release(self) -> None:
        """Gives all locks up."""
        for session in self._sessions.values():
            session.release()

    # ---- inside

    def _open(self, path: Path) -> None:
        try:
            if not path.exists():
                _make(path)
            if not path.is_dir():
                raise RefusedError(path=path, reason="a log dir has to be a directory", advice="Name another one.")
            files.check_writable(path)
            self._sessions[path] = LogDirSession.begin(path)
        except LogDirLockedError:
            raise
        except CompactdError as error:
            self.offline[path] = str(error)
            _log.error(f"log dir {path} is offline: {error}")


def _make(path: Path) -> None:
    """With the directories above it, each of them durable."""
    for directory in reversed([path, *(parent for parent in path.parents if not parent.exists())]):
        files.make_dir(directory)


def mark_deleted(directory: Path, partition: TopicPartition) -> Path:
    """Renames a partition's directory to its `-delete` name, where its owner is not there to do so. StorageIOError."""
    target = directory.with_name(names.delete_dir_name(partition))
    files.rename(directory, target)
    files.fsync_dir(directory.parent)
    return target


def _checkpointed(state: PartitionState) -> _Checkpointed:
    first = state.closed[0].base_offset if state.closed else state.active_base_offset
    return _Checkpointed(
        TopicPartition(state.topic, state.partition),
        state.log_start_offset,
        state.log_end_offset,
        state.recovery_point,
        (_Segment(first),),
    )
