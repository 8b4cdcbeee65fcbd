"""Groups where not all is well: other owners, logs that load, dirs that fail, disks that must be waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.storage import files
from compactd.storage.names import parse_uuid
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.transactions.java_order import partition_of
from compactd.workers.partition_messages import LogDirFailed, PartitionsReleased, PartitionState, ReleasePartitions
from tests.workers.broker.harness import NODE_ID, InProcessBroker, RawClient
from tests.workers.broker.test_groups import commit, enter, fetched, join_body, stable, sync_body
from tests.workers.broker.test_partitions import _NoWrites

FIND, JOIN, HEARTBEAT, SYNC, DESCRIBE, LIST, DELETE = 10, 11, 12, 14, 15, 16, 42
QUICK = {"group.initial.rebalance.delay.ms": 0}
WAIT_SECONDS = 60.0


@pytest.fixture
def dirs(fast_dir: Path) -> list[Path]:
    made = [fast_dir / "good", fast_dir / "bad"]
    for each in made:
        each.mkdir()
    return made


@pytest.fixture
def broker(dirs: list[Path]) -> Iterator[InProcessBroker]:
    """The groups lie in the second dir."""
    with InProcessBroker(dirs, QUICK) as running:
        running.create("t", 2)
        running.create(OFFSETS_TOPIC, 1, log_dir=str(dirs[1]), cleanup_policy="compact")
        yield running


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        until_loaded(connected)
        yield connected


def until_loaded(client: RawClient) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while fetched(client, "g", None, raw=True).error_code == 14:
        assert time.monotonic() < end
        time.sleep(0.005)


class Parked:
    """A member that waits for a rebalance which does not end."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._broker = broker
        self.answer: Any = None
        self._thread = threading.Thread(target=self._join)
        self._thread.start()
        end = time.monotonic() + WAIT_SECONDS
        while not self._is_waiting():
            assert time.monotonic() < end
            time.sleep(0.005)

    def _is_waiting(self) -> bool:
        def look(context: Any) -> bool:
            groups = [shard.group("g") for shard in context.part(GroupCoordinator)]
            return any(group is not None and group._parked() for group in groups)

        return bool(self._broker.in_loop(look))

    def _join(self) -> None:
        with self._broker.connect() as client:
            self.answer = enter(client)

    def error(self) -> int:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return int(self.answer.error_code)


def test_a_group_is_coordinated_by_the_owner_of_its_partition(dirs: list[Path]) -> None:
    with InProcessBroker(dirs, QUICK, nodes=2) as broker:
        broker.create("t", 2)
        broker.create(OFFSETS_TOPIC, 2, others={1: 1}, cleanup_policy="compact")
        groups = {partition_of(name, 2): name for name in ("a", "b", "c")}
        with broker.connect() as client:
            answer = client.ask(FIND, 6, {"key_type": 0, "coordinator_keys": [groups[0], groups[1]]})
            assert [(each.node_id, each.port) for each in answer.coordinators] == [
                (NODE_ID, broker.port),
                (NODE_ID + 1_000_000, broker.port + 1),
            ]
            here, there = groups[0], groups[1]
            end = time.monotonic() + WAIT_SECONDS
            while commit(client, here, {("t", 0): 1}) != {("t", 0): 0}:
                assert time.monotonic() < end
            assert commit(client, there, {("t", 0): 1}) == {("t", 0): 16}
            assert fetched(client, there, None, raw=True).error_code == 16
            assert client.ask(JOIN, 9, join_body(there)).error_code == 16
            assert client.ask(HEARTBEAT, 4, {"group_id": there, "generation_id": 1, "member_id": "m"}).error_code == 16
            assert client.ask(SYNC, 5, sync_body(there, "m", 1)).error_code == 16
            assert client.ask(DESCRIBE, 5, {"groups": [there]}).groups[0].error_code == 16
            assert client.ask(DELETE, 2, {"groups_names": [there]}).results[0].error_code == 16
            assert [each.group_id for each in client.ask(LIST, 5, {}).groups] == [here]


def test_without_its_topic_nothing_is_coordinated(dirs: list[Path]) -> None:
    with InProcessBroker(dirs, QUICK) as broker, broker.connect() as client:
        broker.create("t", 2)
        assert commit(client, "g", {("t", 0): 1}) == {("t", 0): 16}
        assert client.ask(LIST, 5, {}).groups == ()
        row = client.ask(9, 1, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}).topics[0]
        assert [(each.error_code, each.committed_offset) for each in row.partitions] == [(16, -1)]


def test_while_a_partition_is_loaded_clients_are_asked_to_wait(broker: InProcessBroker, client: RawClient) -> None:
    def forget(context: Any) -> None:
        context.part(GroupCoordinator)._shards.clear()

    broker.in_loop(forget)
    assert fetched(client, "g", None, raw=True).error_code == 14
    assert client.ask(JOIN, 9, join_body("g")).error_code == 14
    # Nothing is known against this member.
    assert client.ask(HEARTBEAT, 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}).error_code == 0


def test_members_that_wait_are_told_when_the_log_dir_fails(
    dirs: list[Path], broker: InProcessBroker, client: RawClient
) -> None:  # fmt: skip
    member = stable(client)
    parked = Parked(broker)
    broker.channel.put(LogDirFailed(log_dir=str(dirs[1]), reason="test"))
    assert parked.error() == 16
    assert commit(client, "g", {("t", 0): 1}, member, 1) == {("t", 0): 16}
    assert client.ask(HEARTBEAT, 4, {"group_id": "g", "generation_id": 1, "member_id": member}).error_code == 16


def test_a_commit_that_cannot_be_written_is_refused(
    dirs: list[Path], broker: InProcessBroker, client: RawClient
) -> None:  # fmt: skip
    assert commit(client, "g", {("t", 0): 1}) == {("t", 0): 0}
    with files.replaced(_NoWrites("/bad/")):
        assert commit(client, "g", {("t", 0): 2}) == {("t", 0): 16}
        failed = broker.channel.wait_for(lambda message: isinstance(message, LogDirFailed))
    assert failed.log_dir == str(dirs[1])
    assert fetched(client, "g", None, raw=True).error_code == 16


def test_an_assignment_that_cannot_be_written_is_refused(broker: InProcessBroker, client: RawClient) -> None:
    joined = enter(client)
    with files.replaced(_NoWrites("/bad/")):
        answer = client.ask(SYNC, 5, sync_body("g", joined.member_id, 1, it=b"x"))
    assert (answer.error_code, answer.assignment) == (16, b"")


def test_members_that_wait_are_told_when_the_partition_goes(broker: InProcessBroker, client: RawClient) -> None:
    stable(client)
    parked = Parked(broker)
    broker.ask(
        ReleasePartitions(request_id=broker.next_id(), partitions=(f"{OFFSETS_TOPIC}-0",)), PartitionsReleased
    )  # fmt: skip
    assert parked.error() == 16


def test_a_broker_stops_while_members_wait(broker: InProcessBroker, client: RawClient) -> None:
    stable(client)
    with pytest.raises(ConnectionError):
        client.send(JOIN, 9, {**join_body("g"), "group_instance_id": "i1"})
        broker.in_loop(lambda _: None)
        broker.stop()
        client.receive_frame()


@pytest.fixture
def durable(dirs: list[Path]) -> Iterator[InProcessBroker]:
    """Groups that are acknowledged when they are on disk."""
    with InProcessBroker(dirs, QUICK) as running:
        running.create("t", 2)
        running.create(OFFSETS_TOPIC, 1, log_dir=str(dirs[1]), cleanup_policy="compact", flush_messages=1)
        yield running


def test_what_is_acknowledged_is_on_disk_where_the_topic_asks_for_that(durable: InProcessBroker) -> None:
    def flushed(context: Any) -> bool:
        log = context.partitions.get(OFFSETS_TOPIC, 0).log
        return bool(log.recovery_point == log.log_end_offset == log.high_watermark > 0)

    with durable.connect() as client:
        until_loaded(client)
        member = stable(client)
        assert durable.in_loop(flushed)
        assert commit(client, "g", {("t", 0): 1}, member, 1) == {("t", 0): 0}
        assert durable.in_loop(flushed)


def test_what_cannot_be_flushed_is_not_acknowledged(durable: InProcessBroker) -> None:
    with durable.connect() as client:
        until_loaded(client)
        joined = enter(client)
        with files.replaced(_NoWrites("/bad/", ("fsync",))):
            answer = client.ask(SYNC, 5, sync_body("g", joined.member_id, 1, it=b"x"))
            assert (answer.error_code, answer.assignment) == (16, b"")


def test_groups_after_a_recovery_without_an_orderly_stop(dirs: list[Path]) -> None:
    def told(state: PartitionState) -> bool:
        return state.log_end_offset > 0

    with InProcessBroker(dirs, QUICK) as broker, broker.connect() as client:
        broker.create("t", 2)
        topic = broker.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
        until_loaded(client)
        assert commit(client, "g", {("t", 0): 17}) == {("t", 0): 0}
        assert broker.state(OFFSETS_TOPIC, told).log_end_offset == 1
        identity = topic.topic_id
    with InProcessBroker(dirs, QUICK, clean=False) as broker, broker.connect() as client:
        broker.create(OFFSETS_TOPIC, 1, topic_id=parse_uuid(identity), cleanup_policy="compact")
        until_loaded(client)
        assert fetched(client, "g", None) == {("t", 0): 17}


# ---- groups of the consumer protocol


def beat(client: RawClient, epoch: int, group: str = "g", **more: Any) -> Any:
    body: dict[str, Any] = {"group_id": group, "member_id": "m", "member_epoch": epoch, "topic_partitions": None}
    if epoch == 0:
        body |= {"rebalance_timeout": 300_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return client.ask(68, 1, body | more)


def test_a_heartbeat_that_cannot_be_written_is_refused(
    dirs: list[Path], broker: InProcessBroker, client: RawClient
) -> None:  # fmt: skip
    assert beat(client, 0).error_code == 0
    with files.replaced(_NoWrites("/bad/")):
        answer = beat(client, 2, subscribed_topic_names=[])
        assert (answer.error_code, answer.assignment) == (16, None)
        failed = broker.channel.wait_for(lambda message: isinstance(message, LogDirFailed))
    assert failed.log_dir == str(dirs[1])
    assert beat(client, 2).error_code == 16
    assert client.ask(69, 1, {"group_ids": ["g"]}).groups[0].error_code == 16


def test_a_heartbeat_while_groups_are_loaded_has_to_wait(broker: InProcessBroker, client: RawClient) -> None:
    assert beat(client, 0).error_code == 0

    def forget(context: Any) -> None:
        context.part(GroupCoordinator)._shards.clear()

    broker.in_loop(forget)
    assert beat(client, 2).error_code == 14
    assert beat(client, -1).error_code == 14


def test_consumer_groups_are_coordinated_by_the_owner_of_their_partition(dirs: list[Path]) -> None:
    with InProcessBroker(dirs, QUICK, nodes=2) as broker:
        broker.create("t", 2)
        broker.create(OFFSETS_TOPIC, 2, others={1: 1}, cleanup_policy="compact")
        groups = {partition_of(name, 2): name for name in ("a", "b", "c")}
        with broker.connect() as client:
            end = time.monotonic() + WAIT_SECONDS
            while beat(client, 0, groups[0]).error_code:
                assert time.monotonic() < end
            assert beat(client, 0, groups[1]).error_code == 16


def test_without_the_feature_there_are_no_consumer_groups(dirs: list[Path]) -> None:
    both = ({**QUICK, "group.coordinator.rebalance.protocols": "classic"}, QUICK)
    for log_dir, settings in zip(dirs, both, strict=True):
        with InProcessBroker([log_dir], settings) as broker, broker.connect() as client:
            broker.create("t", 1)
            broker.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
            until_loaded(client)

            def turn_off(context: Any) -> None:
                context.image.features = {**context.image.features, "group.version": 0}

            if "group.coordinator.rebalance.protocols" not in settings:
                assert beat(client, 0).error_code == 0
                broker.in_loop(turn_off)
            assert beat(client, 0).error_code == 35
            assert client.ask(69, 1, {"group_ids": ["g"]}).groups[0].error_code == 35


def test_a_consumer_group_whose_batch_cannot_be_flushed_is_not_acknowledged(durable: InProcessBroker) -> None:
    with durable.connect() as client:
        until_loaded(client)
        assert beat(client, 0).error_code == 0
        with files.replaced(_NoWrites("/bad/", ("fsync",))):
            assert beat(client, 2, subscribed_topic_names=[]).error_code == 16
