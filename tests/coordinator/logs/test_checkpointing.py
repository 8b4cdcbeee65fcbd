"""When checkpoints are written, with a disk that takes its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactd.coordinator.logs.checkpointing import Checkpoints
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState
from tests.coordinator.logs.test_partitions import state

PATH = Path("/d1")
A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


class Slow:
    """Frame and log dirs in one: what goes to the lane is done when the test says so."""

    def __init__(self) -> None:
        self.states: dict[TopicPartition, PartitionState] = {A0: state("a", 0), B0: state("b", 0)}
        self.online = [PATH]
        self.lane: list[tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]] = []
        self.written: list[tuple[str, list[str], list[str]]] = []
        self.failed: list[str] = []
        self.checkpoints = Checkpoints(self, self)  # type: ignore[arg-type]

    def is_online(self, path: Path) -> bool:
        return path in self.online

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        call()

    def in_lane(
        self, lane: str, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        self.lane.append((work, done, failed))

    def log_dir_failed(self, log_dir: str, reason: str) -> None:
        self.failed.append(log_dir)
        self.online.remove(Path(log_dir))

    def write_offsets(self, path: Path, states: list[PartitionState], gone: list[TopicPartition]) -> None:
        self.written.append(("offsets", [each.topic for each in states], [str(each) for each in gone]))

    def write_high_watermarks(self, path: Path, states: list[PartitionState], gone: list[TopicPartition]) -> None:
        self.written.append(("marks", [each.topic for each in states], [str(each) for each in gone]))

    def work(self, error: Exception | None = None) -> None:
        """The disk does the next thing."""
        work, done, failed = self.lane.pop(0)
        if error is not None:
            failed(error)
        else:
            done(work())


def test_a_write_that_is_not_done_is_not_begun_twice() -> None:
    slow = Slow()
    slow.checkpoints.write_offsets()
    slow.checkpoints.write_offsets()
    assert len(slow.lane) == 1
    slow.work()
    slow.checkpoints.write_offsets()
    assert len(slow.lane) == 1


def test_a_partition_deleted_during_a_write_is_taken_out_by_the_next_one_at_once() -> None:
    slow = Slow()
    slow.checkpoints.write_offsets()
    del slow.states[B0]
    slow.checkpoints.forget("/d1", [B0])
    while slow.lane:
        slow.work()
    assert slow.written == [("offsets", ["a", "b"], []), ("marks", ["a"], ["b-0"]), ("offsets", ["a"], ["b-0"])]
    # And then it is forgotten.
    slow.checkpoints.write_offsets()
    slow.work()
    assert slow.written[-1] == ("offsets", ["a"], [])


def test_a_partition_that_came_back_keeps_its_entry() -> None:
    slow = Slow()
    slow.lane.append((lambda: None, lambda _: None, lambda _: None))
    slow.checkpoints.forget("/d1", [B0])
    slow.lane.pop(0)
    while slow.lane:
        slow.work()
    assert slow.written == [("offsets", ["a", "b"], []), ("marks", ["a", "b"], [])]


def test_a_failed_write_takes_the_dir_offline_and_nothing_waits_for_it() -> None:
    slow, done = Slow(), []
    slow.checkpoints.write_offsets()
    slow.work(OSError("the disk is gone"))
    assert slow.failed == ["/d1"]
    slow.checkpoints.write_offsets()
    slow.checkpoints.write_all(lambda: done.append(True))
    assert (slow.lane, done) == ([], [True])


def test_everything_is_written_at_the_end() -> None:
    slow, done = Slow(), []
    slow.checkpoints.write_all(lambda: done.append(True))
    assert not done
    slow.work()
    assert done == [True]
    assert [what for what, _, _ in slow.written] == ["offsets", "marks"]
    slow.checkpoints.write_all(lambda: done.append(True))
    slow.work(OSError("gone"))
    assert (done, slow.failed) == ([True, True], ["/d1"])
