"""Where the clean part of each log ends: in memory, and in the cleaner-offset-checkpoint of the log dir that has the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compactd.coordinator.interfaces import Frame
from compactd.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState

_log = logging.getLogger(__name__)

LANE = "cleaning"
ByLogDir = dict[Path, dict[TopicPartition, int]]


class CleanOffsets:
    """First dirty offsets. On the loop's thread, but for `read`; files are written in the lane `cleaning`."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._files = CleanerCheckpoints(())
        self.known: dict[TopicPartition, int] = {}
        #: Log end offsets of cleans: a state that ends before is older than the clean, and says nothing about its checkpoint.
        self._ends: dict[TopicPartition, int] = {}

    def open(self) -> None:
        """The log dirs are those that are online now."""
        self._files = CleanerCheckpoints(self._frame.online_log_dirs())

    def read(self) -> ByLogDir:
        """In the lane."""
        return self._files.by_log_dir()

    def take(self, by_log_dir: ByLogDir) -> None:
        """Each partition's entry; those that an interrupted move left in the dir that it lay in before go where it is."""
        for path, fault in self._files.faults.items():
            _log.warning(f"the logs of {path} count as dirty from their start: {fault}")
        self.known = {name: offset for entries in by_log_dir.values() for name, offset in entries.items()}
        where = {name: Path(state.log_dir) for name, state in self._frame.states.items()}
        for log_dir, entries in by_log_dir.items():
            astray = [name for name in entries if where.get(name, log_dir) != log_dir]
            for name in astray:
                self.known[name] = by_log_dir.get(where[name], {}).get(name, entries[name])
                self.write(where[name], {name: self.known[name]})
            if astray:
                self.write(log_dir, {}, remove=astray)

    def of(self, name: TopicPartition, state: PartitionState) -> int | None:
        """As it goes for this state of the log; None: nothing of it was cleaned yet."""
        offset, end = self.known.get(name), self._ends.get(name)
        if end is None or offset is None:
            return offset
        if state.log_end_offset >= end:
            del self._ends[name]
            return offset
        return min(offset, state.log_end_offset)

    def clean_began(self, name: TopicPartition, log_end_offset: int) -> None:
        self._ends[name] = log_end_offset

    def broker_gone(self) -> None:
        """What it had not flushed may be gone with it: its logs may end earlier than they did."""
        self._ends.clear()

    def set(self, name: TopicPartition, log_dir: Path, offset: int, then: Callable[[], None] | None = None) -> None:
        """At once in memory; `then` is called when it is written, too, or could not be."""
        self.known[name] = offset
        self.write(log_dir, {name: offset}, then=then)

    def partitions_gone(self, where: Mapping[TopicPartition, Path | None]) -> None:
        """`where`: their log dirs; None: never seen, so that there is no entry either."""
        by_log_dir: dict[Path, list[TopicPartition]] = {}
        for name, log_dir in where.items():
            self.known.pop(name, None)
            self._ends.pop(name, None)
            if log_dir is not None:
                by_log_dir.setdefault(log_dir, []).append(name)
        for log_dir, names in by_log_dir.items():
            if self._is_online(log_dir):
                self.write(log_dir, {}, remove=names)
            else:
                self._files.forget(log_dir)

    def partition_moved(self, name: TopicPartition, source: Path, target: Path) -> None:
        offset = self.known.get(name)
        if offset is None:
            return
        # The new entry first: stopped in between, both are there and say the same.
        self.write(target, {name: offset})
        if self._is_online(source):
            self.write(source, {}, remove=[name])

    def _is_online(self, log_dir: Path) -> bool:
        return str(log_dir) in {str(path) for path in self._frame.online_log_dirs()}

    def write(
        self,
        log_dir: Path,
        offsets: dict[TopicPartition, int],
        remove: Sequence[TopicPartition] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        hosted = set(self._frame.states) | set(self.known)

        def failed(error: Exception) -> None:
            self._frame.log_dir_failed(str(log_dir), str(error))
            if then is not None:
                then()

        self._frame.in_lane(
            LANE,
            lambda: self._files.update(log_dir, hosted, offsets, remove),
            lambda _: then() if then is not None else None,
            failed,
        )
