"""The cleaner's checkpoints over all log dirs: where the last clean of each partition ended (LogCleanerManager; facts 4.8)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from compactd.config.errors import CompactdError, CorruptFileError
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.names import TopicPartition


class CleanerCheckpoints:
    """cleaner-offset-checkpoint of each log dir that is online. One writer at a time; every write is atomic and fsynced."""

    def __init__(self, log_dirs: Iterable[Path]) -> None:
        self._lock = threading.RLock()
        self._files = {log_dir: OffsetCheckpoint(log_dir / CLEANER_OFFSETS) for log_dir in log_dirs}
        #: Files that could not be read when they were last asked, with the reason.
        self.faults: dict[Path, CompactdError] = {}

    @property
    def log_dirs(self) -> list[Path]:
        return list(self._files)

    def all_offsets(self) -> dict[TopicPartition, int]:
        """First dirty offsets of all partitions. A file that cannot be read has none, and is noted in `faults`: its logs
        count as dirty from their start, which costs work and loses nothing."""
        return {name: offset for entries in self.by_log_dir().values() for name, offset in entries.items()}

    def by_log_dir(self) -> dict[Path, dict[TopicPartition, int]]:
        """As `all_offsets`, each log dir's own."""
        with self._lock:
            return {log_dir: self._read(log_dir) for log_dir in self._files}

    def update(
        self,
        log_dir: Path,
        hosted: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
        remove: Iterable[TopicPartition] = (),
    ) -> None:
        """Sets and removes entries, and drops those of partitions that are not `hosted` (on any log dir) any more.

        Nothing happens for a log dir that is offline. Raises StorageIOError when the file cannot be written.
        """
        with self._lock:
            if log_dir not in self._files:
                return
            entries = {tp: offset for tp, offset in self._read(log_dir).items() if tp in hosted}
            for topic_partition in remove:
                entries.pop(topic_partition, None)
            self._files[log_dir].write({**entries, **(offsets or {})})

    def truncate(
        self, log_dir: Path, hosted: Collection[TopicPartition], topic_partition: TopicPartition, offset: int
    ) -> None:
        """A compacted log was cut: its entry is lowered to `offset`, the base of its active segment, if it was larger."""
        with self._lock:
            entry = self._read(log_dir).get(topic_partition) if log_dir in self._files else None
            if entry is not None and entry > offset:
                self.update(log_dir, hosted, {topic_partition: offset})

    def move(
        self, topic_partition: TopicPartition, source: Path, target: Path, hosted: Collection[TopicPartition]
    ) -> None:
        """The partition moved to another log dir (alterCheckpointDir): so does its entry, where there is one.

        The new one is written first: stopped in between, both are there and say the same.
        """
        with self._lock:
            offset = self._read(source).get(topic_partition) if source in self._files else None
            if offset is not None:
                self.update(target, hosted, {topic_partition: offset})
                self.update(source, hosted, remove=[topic_partition])

    def forget(self, log_dir: Path) -> None:
        """The log dir failed (handleLogDirFailure): its file is neither read nor written any more."""
        with self._lock:
            self._files.pop(log_dir, None)
            self.faults.pop(log_dir, None)

    def _read(self, log_dir: Path) -> dict[TopicPartition, int]:
        try:
            entries = self._files[log_dir].read()
        except CorruptFileError as error:
            self.faults[log_dir] = error
            return {}
        self.faults.pop(log_dir, None)
        return entries
