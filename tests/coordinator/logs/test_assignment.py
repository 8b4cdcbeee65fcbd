"""Assignment and release against a daemon that only writes down what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactd.config.settings import TopicConfig
from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.logs.assignment import Assignment
from compactd.coordinator.logs.partitions import Changes, Partitions
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import AssignPartitions, PartitionsReady, PartitionsReleased, ReleasePartitions
from tests.coordinator.logs.test_partitions import state, topic, update

BROKER = WorkerId("broker", 0)


class FakeDaemon:
    """Every part of the daemon that Assignment touches, in one object. Questions stay open until `answer`."""

    def __init__(self, log_dir: Path) -> None:
        self.partitions = Partitions()
        self.supervisor = self.cleaning = self.dirs = self.startup = self.checkpoints = self
        self.log_dir = str(log_dir)
        self.offline: dict[Path, str] = {}
        self.up = True
        self.is_stopping = False
        self.served: set[WorkerId] = set()
        self.asked: list[tuple[Any, Callable[[Message], None]]] = []
        self.deleted: list[str] = []
        self.delays: set[int] = set()
        self.assignment = Assignment(self)  # type: ignore[arg-type]

    def ready(self, kind: str) -> list[WorkerId]:
        return [BROKER] if self.up else []

    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        return

    def is_online(self, path: object) -> bool:
        return Path(str(path)) not in self.offline

    def stopped_cleanly(self, path: object) -> bool:
        return True

    def offsets(self, log_dir: str, partition: TopicPartition) -> tuple[int, int, int]:
        return 1, 2, 3

    def topic_config(self, name: str) -> TopicConfig:
        return TopicConfig()

    def directory_delay_ms(self) -> int:
        return 1500

    def next_request_id(self) -> int:
        return len(self.asked) + 1

    def ask(self, worker: WorkerId, request: Any, answered: Callable[[Message], None], timeout_ms: int | None) -> None:
        self.asked.append((request, answered))

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        call()

    def in_lane(
        self, lane: str, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        done(work())

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        self.deleted += paths
        self.delays.add(delay_ms)

    def forget(self, log_dir: str, partitions: Sequence[TopicPartition]) -> None:
        return

    def take_states(self, states: Sequence[Any]) -> None:
        self.partitions.loaded(states)

    # ---- for the tests

    def update(self, change: CatalogueUpdate, then: Callable[[], None] | None = None) -> Changes:
        changes = self.partitions.apply(change, new=True)
        self.assignment.release(changes.release)
        self.assignment.assign(changes.assign, then)
        return changes

    def topic(self, topic_id: str, count: int = 1) -> CatalogueUpdate:
        """Topic t with `count` partitions of worker 0, in place of any before."""
        made = topic("t", topic_id, count * 2, self.log_dir)
        even = tuple(place for place in made.partitions if place.worker == 0)
        whole = type(made)(name="t", topic_id=topic_id, partitions=even, configs={})
        return update(whole, deleted=("t",))

    def answer(self, number: int) -> None:
        """The owner's answer to a question: done."""
        request, answered = self.asked[number]
        if isinstance(request, AssignPartitions):
            states = tuple(state(part.topic, part.partition, part.log_dir) for part in request.partitions)
            answered(PartitionsReady(request_id=request.request_id, states=states))
        else:
            assert isinstance(request, ReleasePartitions)
            directories = tuple(f"{name}-delete" for name in request.partitions)
            answered(PartitionsReleased(request_id=request.request_id, directories=directories))

    @property
    def kinds(self) -> list[str]:
        return [type(request).__name__ for request, _ in self.asked]


def test_then_comes_when_everything_is_loaded(tmp_path: Path) -> None:
    daemon, done = FakeDaemon(tmp_path), []
    daemon.update(daemon.topic("1", 450), lambda: done.append(True))
    # In pieces, so that the loop turns in between.
    assert [len(request.partitions) for request, _ in daemon.asked] == [200, 200, 50]
    (first, *_) = daemon.asked[0][0].partitions
    assert (first.recovery_point, first.log_start_offset, first.high_watermark, first.is_new) == (1, 2, 3, True)
    assert daemon.asked[0][0].clean_log_dirs == (daemon.log_dir,)
    for number in range(3):
        assert not done
        daemon.answer(number)
    assert done == [True]
    assert len(daemon.partitions.states) == 450


def test_nothing_to_assign_is_done_at_once_and_so_is_what_nobody_can_serve(tmp_path: Path) -> None:
    daemon, done = FakeDaemon(tmp_path), []
    daemon.assignment.assign([], lambda: done.append(1))
    daemon.offline[tmp_path] = "it burnt"
    daemon.update(daemon.topic("1"), lambda: done.append(2))
    assert "it burnt" in daemon.partitions.offline()["t-0"]
    daemon.offline.clear()
    daemon.up = False
    daemon.update(daemon.topic("2"), lambda: done.append(3))
    assert (done, daemon.asked) == ([1, 2, 3], [])


def test_a_name_comes_back_only_when_its_directory_is_out_of_the_way(tmp_path: Path) -> None:
    daemon, done = FakeDaemon(tmp_path), []
    daemon.update(daemon.topic("1"))
    daemon.answer(0)
    daemon.update(daemon.topic("2"), lambda: done.append(2))
    assert daemon.kinds == ["AssignPartitions", "ReleasePartitions"]
    # Deleted and created once more meanwhile: the directory that is there is the first topic's, and its owner's business.
    (tmp_path / "t-0").mkdir()
    daemon.update(daemon.topic("3"), lambda: done.append(3))
    assert (tmp_path / "t-0").is_dir()
    assert daemon.kinds == ["AssignPartitions", "ReleasePartitions"]
    daemon.answer(1)
    assert daemon.deleted == ["t-0-delete"]
    assert daemon.delays == {1500}, "what goes for all topics: the topic's own setting is gone with it"
    assert daemon.kinds == ["AssignPartitions", "ReleasePartitions", "AssignPartitions"]
    assert daemon.asked[2][0].partitions[0].topic_id == "3"
    daemon.answer(2)
    assert sorted(done) == [2, 3]


def test_without_its_owner_a_directory_is_put_away_by_the_coordinator(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    daemon.update(daemon.topic("1"))
    daemon.answer(0)
    (tmp_path / "t-0").mkdir()
    daemon.update(update(deleted=("t",)))
    daemon.asked[1][1](Failed(request_id=2, error="WorkerGone", message="it died"))
    assert not (tmp_path / "t-0").exists()
    assert [Path(path).parent for path in daemon.deleted] == [tmp_path]
    assert daemon.partitions.releasing == set()


def test_a_late_answer_counts(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    daemon.update(daemon.topic("1", 2))
    daemon.asked[0][1](Failed(request_id=1, error="Timeout", message="slow"))
    assert not daemon.partitions.states
    late = PartitionsReady(request_id=1, states=(state("t", 0, daemon.log_dir),), failed={"t-2": "damaged"})
    daemon.assignment.loaded(late)
    assert daemon.partitions.offline() == {"t-2": "damaged"}


def test_a_broker_that_served_before_recovers(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    daemon.update(daemon.topic("1"))
    daemon.answer(0)
    daemon.partitions.owner_gone(BROKER)
    daemon.served.add(BROKER)
    daemon.assignment.assign(daemon.partitions.of(BROKER))
    again = daemon.asked[1][0]
    assert again.clean_log_dirs == ()
    (part,) = again.partitions
    assert (part.recovery_point, part.high_watermark, part.is_new) == (9, 9, False)
