"""TxnOffsetCommit: offsets that wait for the marker of their transaction (facts: kafka-protocol 15.7)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.produce import Transactions
from compactd.workers.broker.requests import RequestHeader
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import FETCH, commit, create, enter, fetched, found, stable

TXN_OFFSET_COMMIT, DELETE_GROUPS = 28, 42
PRODUCER = 4711
#: The log takes what the gate lets in.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


class Gate:
    """In place of the transaction coordinator: says what the test tells it to say."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.asked: list[tuple[int, str, int, int, list[tuple[str, int]]]] = []

    async def __call__(
        self,
        header: RequestHeader,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[tuple[str, int]],
        sequences: Sequence[int] = (),
    ) -> Mapping[tuple[str, int], ErrorCode]:
        self.asked.append((header.version, transactional_id, producer_id, producer_epoch, partitions))
        return dict.fromkeys(partitions, self.error) if self.error else {}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def broker(log_dir: Path, gate: Gate) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], UNVERIFIED) as running:
        put_gate(running, gate)
        with running.connect() as client:
            create(client, "t", 2)
            found(client, "g")
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def put_gate(broker: CatalogueBroker, gate: Gate) -> None:
    def put(context: Context) -> None:
        context.part(Transactions).gate = gate

    broker.in_loop(put)


def txn_commit(
    client: RawClient,
    offset: int,
    *,
    version: int = 5,
    group: str = "g",
    topic: Any = "t",
    partition: int = 0,
    **more: Any,
) -> int:
    """The error of one partition's commit."""
    named = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic}
    row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "m"}
    body = {
        "transactional_id": "x",
        "group_id": group,
        "producer_id": PRODUCER,
        "producer_epoch": 0,
        "topics": [{**named, "partitions": [row]}],
        **more,
    }
    answer = client.ask(TXN_OFFSET_COMMIT, version, body)
    (answered,) = answer.topics
    if version >= 6:
        assert answered.topic_id == topic
    else:
        assert answered.name == topic
    (only,) = answered.partitions
    assert only.partition_index == partition
    return int(only.error_code)


def end(broker: CatalogueBroker, commit: bool, group: str = "g", producer_id: int = PRODUCER, epoch: int = 0) -> None:
    """The transaction coordinator writes its marker, and tells the group coordinator."""

    async def mark(context: Context) -> None:
        number = context.part(GroupCoordinator).partition_of(group)
        assert number is not None
        partition = context.partitions.get(OFFSETS_TOPIC, number)
        assert partition is not None
        await partition.append_marker("commit" if commit else "abort", producer_id, epoch, coordinator_epoch=0)
        await context.part(GroupCoordinator).transaction_marker(number, producer_id, commit)

    broker.in_loop(mark)


def offset(client: RawClient, group: str = "g", stable: bool = False) -> tuple[int, int]:
    """Offset and error of t-0."""
    asked = {"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = client.ask(FETCH, 9, {"groups": [asked], "require_stable": stable})
    (row,) = answer.groups[0].topics[0].partitions
    return int(row.committed_offset), int(row.error_code)


@pytest.mark.parametrize("version", range(6))
def test_an_offset_counts_when_its_transaction_is_committed(
    broker: CatalogueBroker, client: RawClient, gate: Gate, version: int
) -> None:
    commit(client, "g", {("t", 0): 3})
    assert txn_commit(client, 8, version=version) == 0
    number = broker.in_loop(lambda context: context.part(GroupCoordinator).partition_of("g"))
    assert gate.asked == [(version, "x", PRODUCER, 0, [(OFFSETS_TOPIC, number)])]
    assert offset(client) == (3, 0)
    assert offset(client, stable=True) == (-1, 88)
    end(broker, True)
    assert offset(client, stable=True) == (8, 0)


def test_an_offset_of_an_aborted_transaction_never_counts(broker: CatalogueBroker, client: RawClient) -> None:
    commit(client, "g", {("t", 0): 3})
    assert txn_commit(client, 8) == 0
    end(broker, False)
    assert offset(client, stable=True) == (3, 0)


def test_a_later_plain_commit_stays(broker: CatalogueBroker, client: RawClient) -> None:
    assert txn_commit(client, 8) == 0
    commit(client, "g", {("t", 0): 3})
    end(broker, True)
    assert offset(client, stable=True) == (3, 0)


def test_topics_by_id(broker: CatalogueBroker, client: RawClient) -> None:
    topic_id = uuid.UUID(bytes=_id(broker, "t"))
    assert txn_commit(client, 8, version=6, topic=topic_id) == 0
    assert txn_commit(client, 8, version=6, topic=uuid.uuid4()) == 100
    assert txn_commit(client, 8, version=6, topic=topic_id, partition=9) == 3
    end(broker, True)
    assert offset(client) == (8, 0)


def _id(broker: CatalogueBroker, topic: str) -> bytes:
    return bytes(broker.in_loop(lambda context: context.image.topics[topic].topic_id.bytes))


@pytest.mark.parametrize(
    ("error", "told"),
    [(48, 48), (120, 120), (47, 47), (49, 49), (51, 51), (19, 15), (7, 15), (13, 14), (6, 16), (56, 16)],
)
def test_the_gate_has_a_say(client: RawClient, gate: Gate, error: int, told: int) -> None:
    gate.error = ErrorCode(error)
    assert txn_commit(client, 8) == told
    gate.error = ErrorCode.NONE
    assert offset(client, stable=True) == (-1, 0)


def test_who_may_commit(client: RawClient) -> None:
    member = stable(client)
    # Nothing of membership, as clients before KIP-447: always.
    assert txn_commit(client, 1) == 0
    assert txn_commit(client, 1, member_id=member, generation_id=1) == 0
    assert txn_commit(client, 1, member_id=member, generation_id=7) == 22
    assert txn_commit(client, 1, member_id="who", generation_id=1) == 25
    assert txn_commit(client, 1, member_id=member, group_instance_id="i", generation_id=1) == 25
    assert txn_commit(client, 1, group="nobody", generation_id=3) == 22
    assert txn_commit(client, 1, group="nobody") == 0
    assert txn_commit(client, 1, group="") == 24
    assert txn_commit(client, 1, topic="unknown") == 3


def test_a_member_may_commit_while_the_group_rebalances(client: RawClient) -> None:
    joined = enter(client)
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assert txn_commit(client, 1, **who) == 0  # plain commits are refused with 27
    assert commit(client, "g", {("t", 0): 1}, joined.member_id, joined.generation_id) == {("t", 0): 27}


def test_an_unknown_group_has_a_code_of_its_own(broker: CatalogueBroker, client: RawClient) -> None:
    topic_id = uuid.UUID(bytes=_id(broker, "t"))
    assert txn_commit(client, 1, version=6, topic=topic_id, group="nobody", generation_id=3) == 69


def test_an_old_epoch_is_fenced_by_the_log(broker: CatalogueBroker, client: RawClient) -> None:
    assert txn_commit(client, 1, producer_epoch=3) == 0
    end(broker, True, epoch=3)
    assert txn_commit(client, 2, producer_epoch=2) == 47
    assert offset(client, stable=True) == (1, 0)
    # The shard goes on.
    assert commit(client, "g", {("t", 0): 5}) == {("t", 0): 0}


def test_too_much_metadata_is_refused_for_its_partition(client: RawClient) -> None:
    rows = [
        {"partition_index": number, "committed_offset": 1, "committed_metadata": "m" * size}
        for number, size in ((0, 4096), (1, 4097))
    ]
    body = {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": PRODUCER,
        "producer_epoch": 0,
        "topics": [{"name": "t", "partitions": rows}],
    }
    answer = client.ask(TXN_OFFSET_COMMIT, 5, body)
    assert [each.error_code for each in answer.topics[0].partitions] == [0, 12]


def test_what_was_pending_is_pending_after_a_restart(log_dir: Path) -> None:
    gate = Gate()
    with CatalogueBroker([log_dir], UNVERIFIED) as running:
        put_gate(running, gate)
        with running.connect() as client:
            create(client, "t", 2)
            found(client, "g")
            commit(client, "g", {("t", 0): 3})
            assert txn_commit(client, 8) == 0
            assert txn_commit(client, 9, producer_id=12) == 0
            end(running, True, producer_id=12)
    with CatalogueBroker([log_dir]) as running, running.connect() as client:
        found(client, "g")
        assert offset(client) == (9, 0)
        assert offset(client, stable=True) == (-1, 88)
        end(running, True)
        assert offset(client, stable=True) == (9, 0)  # the newer one


def test_a_deleted_group_forgets_what_is_pending(broker: CatalogueBroker, client: RawClient) -> None:
    assert txn_commit(client, 8) == 0
    answer = client.ask(DELETE_GROUPS, 3, {"groups_names": ["g", "g", "other"]})
    told = [(each.group_id, each.error_code, each.error_message) for each in answer.results]
    assert told == [("g", 0, None), ("other", 69, None)]
    end(broker, True)
    assert fetched(client, "g", None) == {}
