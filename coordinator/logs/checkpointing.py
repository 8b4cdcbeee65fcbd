"""The coordinator's checkpoints: recovery points, log start offsets and high watermarks of all log dirs, by the clock (facts 7.5).

A dir that is still busy with a write is passed over: the next turn brings newer offsets anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from compactd.coordinator.interfaces import Frame, Timer
from compactd.coordinator.logs.log_dirs import LogDirs
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState

_OFFSETS, _MARKS = "offsets", "high watermarks"

_Gone = dict[str, list[TopicPartition]]
_Write = Callable[[Path, list[PartitionState], list[TopicPartition]], None]


def lane_of(path: Path) -> str:
    """Name of the lane in which a log dir's files are written."""
    return f"log-dir {path}"


class Checkpoints:
    """See the module. On the loop's thread."""

    def __init__(self, frame: Frame, dirs: LogDirs) -> None:
        self._frame = frame
        self._dirs = dirs
        self._timers: list[Timer] = []
        self._busy: set[tuple[Path, str]] = set()
        #: Entries still to be taken out of a dir's files: of partitions that were deleted or moved.
        self._gone: dict[tuple[Path, str], set[TopicPartition]] = {}

    def start(self) -> None:
        storage, daemon = self._frame.settings.storage, self._frame.settings.daemon
        first = storage.log_initial_task_delay_ms
        # Both offsets are written together, as often as the more frequent of the two asks for.
        offsets = min(
            storage.log_flush_offset_checkpoint_interval_ms, storage.log_flush_start_offset_checkpoint_interval_ms
        )
        marks = daemon.replica_high_watermark_checkpoint_interval_ms
        self._timers = [
            self._frame.every(max(offsets, 1), self.write_offsets, first_ms=first),
            self._frame.every(marks, self.write_high_watermarks, first_ms=marks),
            self._frame.every(10_000, self.look_at_space, first_ms=0),
        ]

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def forget(self, log_dir: str, partitions: Iterable[TopicPartition]) -> None:
        """They lie there no more; written soon, as in Kafka (facts 7.6)."""
        for what in (_OFFSETS, _MARKS):
            self._gone.setdefault((Path(log_dir), what), set()).update(partitions)
        self._frame.call_later(0, self.write_offsets)
        self._frame.call_later(0, self.write_high_watermarks)

    def write_offsets(self) -> None:
        self._write(_OFFSETS, self._dirs.write_offsets)

    def write_high_watermarks(self) -> None:
        self._write(_MARKS, self._dirs.write_high_watermarks)

    def write_all(self, done: Callable[[], None]) -> None:
        """Everything, for an orderly stop; `done` once, whatever failed."""
        left = len(self._dirs.online)
        if left == 0:
            done()
            return

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for path in self._dirs.online:
            states = self._of(path)
            gone = {what: sorted(self._gone.get((path, what), ())) for what in (_OFFSETS, _MARKS)}

            def work(path: Path = path, states: list[PartitionState] = states, gone: _Gone = gone) -> None:
                self._dirs.write_offsets(path, states, gone[_OFFSETS])
                self._dirs.write_high_watermarks(path, states, gone[_MARKS])

            def failed(error: Exception, path: Path = path) -> None:
                self._frame.log_dir_failed(str(path), str(error))
                one_done()

            self._frame.in_lane(lane_of(path), work, lambda _: one_done(), failed)

    def look_at_space(self) -> None:
        for path in self._dirs.online:
            self._in_lane(path, "space", partial(self._dirs.look_at_space, path))

    def _write(self, what: str, write: _Write) -> None:
        for path in self._dirs.online:
            self._write_one(path, what, write)

    def _write_one(self, path: Path, what: str, write: _Write) -> None:
        if (path, what) in self._busy or not self._dirs.is_online(path):
            return
        states, gone = self._of(path), sorted(self._gone.get((path, what), ()))

        def written() -> None:
            left = self._gone.get((path, what), set())
            left.difference_update(gone)
            if left:
                # Deleted while the file was being written.
                self._write_one(path, what, write)

        self._in_lane(path, what, partial(write, path, states, gone), written)

    def _in_lane(
        self, path: Path, what: str, work: Callable[[], None], then: Callable[[], None] = lambda: None
    ) -> None:
        if (path, what) in self._busy:
            return
        self._busy.add((path, what))

        def done(_: None) -> None:
            self._busy.discard((path, what))
            then()

        def failed(error: Exception) -> None:
            self._busy.discard((path, what))
            self._frame.log_dir_failed(str(path), str(error))

        self._frame.in_lane(lane_of(path), work, done, failed)

    def _of(self, path: Path) -> list[PartitionState]:
        """A partition that was deleted and made again has its own entry again."""
        states = [state for state in self._frame.states.values() if state.log_dir == str(path)]
        back = {TopicPartition(state.topic, state.partition) for state in states}
        for what in (_OFFSETS, _MARKS):
            self._gone.get((path, what), set()).difference_update(back)
        return states
