"""Creating the internal topics of streams groups: once at a time, with a memory for what went wrong (AutoTopicCreationManager)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from compactd.workers.broker.context import CatalogueRefusedError, Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.streams.configured import InternalTopic
from compactd.workers.broker.groups.streams.internal_topics import InternalTopics
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.requests import RequestHeader
from compactd.workers.broker.security.authorizer import Operation, Resource
from compactd.workers.catalogue_messages import CreateTopics, TopicResult, TopicResults
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.streams_requests import QUICK, beat, internal, subtopology, topology
from tests.workers.broker.test_consumer_groups import until
from tests.workers.broker.test_groups import create, found

REMEMBERED_MS = 2000
MISSING: list[dict[str, Any]] = [
    {"status_code": Status.MISSING_INTERNAL_TOPICS, "status_detail": "Internal topics are missing: x"}
]


@dataclass
class Peer:
    user: str | None = None


@dataclass
class Header:
    peer: Peer = field(default_factory=Peer)
    client_id: str = "c"


HEADER = cast(RequestHeader, Header())


class World:
    """A broker's context: a clock that stands, a coordinator that answers when it is told to, and who may what."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = self
        self.catalogue = self
        self.may: Callable[[Operation, Resource, str], bool] = lambda operation, resource, name: True
        self.asked: list[CreateTopics] = []
        self.waiting: list[asyncio.Future[TopicResults]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.topics = InternalTopics(cast(Context, self))

    def monotonic(self) -> float:
        return self.now

    def part(self, kind: type[Any]) -> World:
        return self

    def allows(
        self, header: Any, operation: Operation, resource: Resource, name: str = "kafka-cluster", *, log: bool = True
    ) -> bool:
        return self.may(operation, resource, name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def change(self, operation: str, arguments: CreateTopics, results: type[TopicResults]) -> TopicResults:
        assert operation == "create_topics"
        self.asked.append(arguments)
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def create(self, *names: str, status: list[dict[str, Any]] | None = MISSING) -> list[dict[str, Any]] | None:
        missing = {name: InternalTopic(name, 3, 1, {"a": "b"}) for name in names}
        return self.topics.create(HEADER, missing, status, REMEMBERED_MS)

    async def answer(self, outcome: TopicResults | Exception) -> None:
        """The coordinator's, to the first that waits."""
        await asyncio.sleep(0)
        future = self.waiting.pop(0)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await self.tasks.pop(0)


def failed(*names: str, message: str | None = "no room") -> TopicResults:
    return TopicResults(tuple(TopicResult(name, error=ErrorCode.INVALID_REQUEST, message=message) for name in names))


def detail(status: list[dict[str, Any]] | None) -> str:
    assert status is not None and len(status) == 1 and status[0]["status_code"] == Status.MISSING_INTERNAL_TOPICS
    text: str = status[0]["status_detail"]
    return text


def in_a_loop(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = World()
        await test(world)
        for task in world.tasks:
            task.cancel()

    asyncio.run(run())


def test_topics_are_asked_for_once_at_a_time() -> None:
    async def story(world: World) -> None:
        assert world.create(status=None) is None
        assert world.create("x", "y") == MISSING
        assert world.create("y", "z") == MISSING
        await world.answer(TopicResults((TopicResult("x"), TopicResult("y"))))
        await world.answer(TopicResults((TopicResult("z"),)))
        assert [[topic.name for topic in each.topics] for each in world.asked] == [["x", "y"], ["z"]]
        first = world.asked[0].topics[0]
        assert (first.num_partitions, first.replication_factor, first.configs) == (3, 1, (("a", "b"),))
        assert world.asked[0].by is not None and world.asked[0].by.strict

    in_a_loop(story)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (failed("x"), "no room"),
        (failed("x", message=None), "The throttling quota has been exceeded."),
        (TimeoutError(), "CreateTopicsRequest to controller timed out"),
        (CatalogueRefusedError(detail="it stops"), "The coordinator could not change the catalogue: it stops."),
    ],
)
def test_what_went_wrong_is_told_and_forgotten(outcome: TopicResults | Exception, text: str) -> None:
    async def story(world: World) -> None:
        world.create("x")
        await world.answer(outcome)
        assert detail(world.create("x")) == f"Internal topics are missing: x; Creation failed: x ({text})."
        # Nobody has asked for the status, so nothing is said; and nothing is tried meanwhile.
        assert world.create("x", status=None) is None
        world.now += REMEMBERED_MS / 1000 - 0.001
        assert "failed" in detail(world.create("x"))
        assert not world.waiting and len(world.asked) == 1
        world.now += 0.002
        assert world.create("x") == MISSING
        await world.answer(TopicResults((TopicResult("x"),)))
        assert len(world.asked) == 2

    in_a_loop(story)


def test_three_errors_are_told_and_a_thousand_remembered() -> None:
    async def story(world: World) -> None:
        names = [f"t{number}" for number in range(5)]
        world.create(*names)
        await world.answer(failed(*names))
        told = detail(world.create(*names))
        assert told.count("(no room)") == 3 and told.endswith(" and 2 more.")
        world.now += 1
        many = [f"u{number}" for number in range(998)]
        world.create(*many)
        await world.answer(failed(*many))
        # The oldest went.
        assert sum(world.create(name) != MISSING for name in names) == 2

    in_a_loop(story)


def test_who_may_not_create_is_told() -> None:
    async def story(world: World) -> None:
        world.may = lambda operation, resource, name: resource is Resource.TOPIC and name == "x"
        told = detail(world.create("x", "y", "z"))
        assert told == "Internal topics are missing: x; Unauthorized to CREATE on topics y, z."
        assert detail(world.create("y", status=None)) == "Unauthorized to CREATE on topics y."
        assert MISSING[0]["status_detail"] == "Internal topics are missing: x" and not world.tasks
        world.create("x")
        await world.answer(TopicResults((TopicResult("x"),)))
        assert [topic.name for topic in world.asked[0].topics] == ["x"]

    in_a_loop(story)


def test_a_topic_that_cannot_be_made_keeps_its_group_waiting(log_dir: Any) -> None:
    """Over the wire: three copies are too many for one node; once the topic is there, the group goes on."""
    asked = topology(subtopology("0", "t", state_changelog_topics=[internal("store", replication_factor=3)]))
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        answer = beat(client, "a", 0, topology=asked)
        epoch = answer.member_epoch

        def text() -> str:
            (row,) = beat(client, "a", epoch).status
            return str(row.status_detail)

        until(
            lambda: text().startswith(
                "Internal topics are missing: store; Creation failed: store (Unable to replicate the partition 3 time(s): "
                "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered"
            )
        )
        create(client, "store", 4)
        until(lambda: beat(client, "a", 0, topology=asked).active_tasks != ())
