"""The group APIs over the wire, version by version, and what a restart remembers (facts: kafka-protocol 12, 13)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from compactd.config.settings import TopicConfig
from compactd.scripts.clean import command as clean
from compactd.storage.loader import load_log
from compactd.storage.log import Origin, PartitionLog
from compactd.storage.metadata.offsets import decode_offsets_record
from compactd.storage.names import parse_uuid
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.broker.groups.consumer.java import hash_set_capacity, listed
from compactd.workers.broker.groups.records import (
    OFFSETS_TOPIC,
    Committed,
    group_tombstone,
    offset_record,
)
from compactd.workers.broker.transactions.java_order import partition_of, string_hash
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

CREATE_TOPICS, DELETE_TOPICS = 19, 20
COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\0\0\0\0"
WAIT_SECONDS = 60.0
NOW = 1_800_000_000_000


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir]) as running:
        with running.connect() as client:
            create(client, "t", 2)
            found(client, "g")
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def create(client: RawClient, name: str, partitions: int = 1) -> uuid.UUID:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
    assert answer.topics[0].error_code == 0, answer
    identity: uuid.UUID = answer.topics[0].topic_id
    return identity


def found(client: RawClient, group: str) -> None:
    """Waits until the coordinator of a group is there and has loaded."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        answer = client.ask(FIND, 6, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]
        if answer.error_code == 0 and fetched(client, group, None, raw=True).error_code == 0:
            return
        assert time.monotonic() < end, answer
        time.sleep(0.01)


def join_body(group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 300_000,
        "rebalance_timeout": 300_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **more,
    }


def enter(client: RawClient, group: str = "g", **more: Any) -> Any:
    """The answer to a join with the id that the first one told."""
    first = client.ask(JOIN, 9, join_body(group, **more))
    if first.error_code == 0:
        return first
    assert first.error_code == 79, first
    return client.ask(JOIN, 9, join_body(group, first.member_id, **more))


def sync_body(group: str, member_id: str, generation: int, **assignments: bytes) -> dict[str, Any]:
    given = [{"member_id": member_id, "assignment": data} for data in assignments.values()]
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": given,
    }


def stable(client: RawClient, group: str = "g", assignment: bytes = b"mine") -> str:
    """A group of one; its member's id."""
    joined = enter(client, group)
    answer = client.ask(SYNC, 5, sync_body(group, joined.member_id, joined.generation_id, it=assignment))
    assert (answer.error_code, answer.assignment) == (0, assignment)
    member_id: str = joined.member_id
    return member_id


def commit(
    client: RawClient,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    member_id: str = "",
    generation: int = -1,
    version: int = 9,
    **more: Any,
) -> dict[tuple[str, int], int]:
    """Errors by partition."""
    partitions: dict[str, list[Any]] = {}
    for (topic, partition), offset in offsets.items():
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "m", **more}
        partitions.setdefault(topic, []).append(row)
    topics = [{"name": topic, "partitions": rows} for topic, rows in partitions.items()]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": topics,
    }
    answer = client.ask(COMMIT, version, body)
    return {(topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions}


def fetched(client: RawClient, group: str, topics: Any, version: int = 9, raw: bool = False, **more: Any) -> Any:
    """Offsets by partition."""
    answer = client.ask(FETCH, version, {"groups": [{"group_id": group, "topics": topics}], **more}).groups[0]
    if raw:
        return answer
    assert answer.error_code == 0
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


# ---- FindCoordinator


def test_the_coordinators_topic_is_made_as_kafka_makes_it(broker: CatalogueBroker, client: RawClient) -> None:
    topic = broker.catalogue.image.topics[OFFSETS_TOPIC]
    assert len(topic.partitions) == 2
    assert broker.catalogue.image.topic_configs(OFFSETS_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_in_every_version(broker: CatalogueBroker, client: RawClient, version: int) -> None:
    if version < 4:
        answer = client.ask(FIND, version, {"key": "g", "key_type": 0} if version else {"key": "g"})
        assert getattr(answer, "error_message", "NONE") == "NONE"
    else:
        answer = client.ask(FIND, version, {"key_type": 0, "coordinator_keys": ["g", ""]}).coordinators[0]
        assert (answer.key, answer.error_message) == ("g", "")
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "127.0.0.1", broker.port)


@pytest.mark.parametrize(("version", "kind", "error"), [(6, 2, 35), (5, 2, 42), (6, 9, 42), (4, -1, 42)])
def test_coordinators_that_are_not_here(client: RawClient, version: int, kind: int, error: int) -> None:
    answer = client.ask(FIND, version, {"key_type": kind, "coordinator_keys": ["g"]}).coordinators[0]
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (error, -1, "", -1)
    # Kafka says nothing of a type that it knows.
    assert bool(answer.error_message) == ((version, kind) != (5, 2))


# ---- membership


@pytest.mark.parametrize("version", range(10))
def test_join_and_leave_in_every_version(client: RawClient, version: int) -> None:
    body = join_body("g")
    if version == 0:
        del body["rebalance_timeout"]
    first = client.ask(JOIN, version, body)
    if version >= 4:
        assert first.error_code == 79
        first = client.ask(JOIN, version, {**body, "member_id": first.member_id})
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.leader == first.member_id and first.member_id.startswith("raw-")
    assert [each.metadata for each in first.members] == [SUBSCRIPTION]
    assert getattr(first, "protocol_type", "consumer") == "consumer"
    heartbeat = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
    assert client.ask(HEARTBEAT, min(version, 4), heartbeat).error_code == 0
    sync = sync_body("g", first.member_id, 1, it=b"x")
    sync_version = min(version, 5)
    if sync_version < 5:
        del sync["protocol_type"], sync["protocol_name"]
    assert client.ask(SYNC, sync_version, sync).assignment == b"x"
    leave_version = min(version, 5)
    who = {"member_id": first.member_id}
    left = client.ask(LEAVE, leave_version, {"group_id": "g", **({"members": [who]} if leave_version >= 3 else who)})
    assert left.error_code == 0
    assert client.ask(HEARTBEAT, 4, heartbeat).error_code == 25


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, 24),
        ({"session_timeout": 5_999}, 26),
        ({"session_timeout": 1_800_001}, 26),
        ({"member_id": "nobody"}, 25),
        ({"protocols": []}, 23),
    ],
)
def test_joins_that_are_refused(client: RawClient, change: dict[str, Any], error: int) -> None:
    answer = client.ask(JOIN, 9, {**join_body("g"), **change})
    assert (answer.error_code, answer.generation_id, answer.members) == (error, -1, ())
    assert answer.protocol_type is None and answer.protocol_name is None
    assert client.ask(JOIN, 5, {**join_body("g"), **change}).protocol_name == ""


def test_a_join_that_fails_leaves_an_empty_group_behind(client: RawClient) -> None:
    found(client, "left")
    client.ask(JOIN, 9, {**join_body("left"), "protocols": []})
    assert [(each.group_id, each.group_state) for each in client.ask(LIST, 5, {}).groups] == [("left", "Empty")]


def test_two_members_and_one_more(broker: CatalogueBroker, client: RawClient) -> None:
    first = stable(client)
    answers: dict[str, Any] = {}

    def second_joins() -> None:
        with broker.connect() as other:
            answers["joined"] = joined = enter(other)
            answers["synced"] = other.ask(SYNC, 5, sync_body("g", joined.member_id, joined.generation_id))

    thread = threading.Thread(target=second_joins)
    thread.start()
    heartbeat = {"group_id": "g", "generation_id": 1, "member_id": first}
    end = time.monotonic() + WAIT_SECONDS
    while client.ask(HEARTBEAT, 4, heartbeat).error_code != 27:
        assert time.monotonic() < end
        time.sleep(0.01)
    joined = client.ask(JOIN, 9, join_body("g", first))
    assert (joined.generation_id, joined.leader, len(joined.members)) == (2, first, 2)
    other = next(each.member_id for each in joined.members if each.member_id != first)
    body = sync_body("g", first, 2)
    body["assignments"] = [
        {"member_id": first, "assignment": b"one"},
        {"member_id": other, "assignment": b"two"},
    ]
    assert client.ask(SYNC, 5, body).assignment == b"one"
    thread.join(WAIT_SECONDS)
    assert answers["joined"].members == ()
    assert answers["synced"].assignment == b"two"
    described = client.ask(DESCRIBE, 6, {"groups": ["g"]}).groups[0]
    assert {each.member_id: each.member_assignment for each in described.members} == {first: b"one", other: b"two"}


def test_what_an_unknown_group_answers(client: RawClient) -> None:
    assert client.ask(HEARTBEAT, 4, {"group_id": "none", "generation_id": 1, "member_id": "m"}).error_code == 25
    assert client.ask(SYNC, 5, sync_body("none", "m", 1)).error_code == 25
    left = client.ask(LEAVE, 5, {"group_id": "none", "members": [{"member_id": "m"}]})
    assert (left.error_code, left.members[0].error_code) == (0, 25)
    assert client.ask(LEAVE, 2, {"group_id": "none", "member_id": "m"}).error_code == 25
    for api, body in (
        (HEARTBEAT, {"group_id": "", "generation_id": 1, "member_id": "m"}),
        (LEAVE, {"group_id": "", "members": []}),
        (OFFSET_DELETE, {"group_id": "", "topics": []}),
    ):
        assert client.ask(api, 0 if api == OFFSET_DELETE else 4, body).error_code == 24


def test_sync_v5_names_its_protocol(client: RawClient) -> None:
    joined = enter(client)
    body = {**sync_body("g", joined.member_id, 1), "protocol_name": None}
    assert client.ask(SYNC, 5, body).error_code == 23
    assert client.ask(SYNC, 4, sync_body("g", joined.member_id, 7) | {"protocol_type": None}).error_code == 22


def test_a_group_is_remembered_across_a_restart(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        member = stable(client)
        assert commit(client, "g", {("t", 0): 42}, member, 1) == {("t", 0): 0}
        assert commit(client, "simple", {("t", 1): 7}) == {("t", 1): 0}
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        found(client, "g")
        found(client, "simple")
        assert client.ask(HEARTBEAT, 4, {"group_id": "g", "generation_id": 1, "member_id": member}).error_code == 0
        described = client.ask(DESCRIBE, 6, {"groups": ["g"]}).groups[0]
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        assert [(each.client_id, each.client_host, each.member_assignment) for each in described.members] == [
            ("raw", "/127.0.0.1", b"mine")
        ]
        assert fetched(client, "g", None) == {("t", 0): 42}
        assert fetched(client, "simple", None) == {("t", 1): 7}
        left = client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": member}]})
        assert left.members[0].error_code == 0
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        found(client, "g")
        assert client.ask(DESCRIBE, 6, {"groups": ["g"]}).groups[0].group_state == "Empty"


# ---- offsets


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_version(broker: CatalogueBroker, client: RawClient, version: int) -> None:
    topic_id = parse_uuid(broker.catalogue.image.topics["t"].topic_id)
    rows = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": None}]
    topic = {"topic_id": topic_id, "partitions": rows} if version >= 10 else {"name": "t", "partitions": rows}
    body: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
    if version <= 4:
        body["retention_time"] = -1
    if version >= 6:
        rows[0]["committed_leader_epoch"] = 3
    answer = client.ask(COMMIT, version, body).topics[0]
    assert answer.partitions[0].error_code == 0
    row = fetched(client, "g", [{"name": "t", "partition_indexes": [0]}], raw=True).topics[0].partitions[0]
    assert (row.committed_offset, row.metadata, row.committed_leader_epoch) == (5, "", 3 if version >= 6 else -1)


@pytest.mark.parametrize("version", range(1, 11))
def test_fetches_in_every_version(broker: CatalogueBroker, client: RawClient, version: int) -> None:
    topic_id = parse_uuid(broker.catalogue.image.topics["t"].topic_id)
    commit(client, "g", {("t", 1): 6})
    named = {"topic_id": topic_id} if version >= 10 else {"name": "t"}
    asked = [{**named, "partition_indexes": [0, 1]}]
    if version >= 8:
        answer = client.ask(FETCH, version, {"groups": [{"group_id": "g", "topics": asked}]}).groups[0]
        everything = client.ask(FETCH, version, {"groups": [{"group_id": "g", "topics": None}]}).groups[0]
    else:
        answer = client.ask(FETCH, version, {"group_id": "g", "topics": asked})
        everything = client.ask(FETCH, version, {"group_id": "g", "topics": None}) if version >= 2 else None
    topic = answer.topics[0]
    assert (topic.topic_id if version >= 10 else topic.name) == (topic_id if version >= 10 else "t")
    assert [(each.committed_offset, each.metadata, each.error_code) for each in topic.partitions] == [
        (-1, "", 0),
        (6, "m", 0),
    ]
    assert getattr(answer, "error_code", 0) == 0
    if everything is not None:
        assert [each.partition_index for each in everything.topics[0].partitions] == [1]


def test_commits_that_are_refused(client: RawClient) -> None:
    assert commit(client, "g", {("t", 0): 1, ("t", 9): 1, ("none", 0): 1}) == {
        ("t", 0): 0, ("t", 9): 3, ("none", 0): 3,
    }  # fmt: skip
    assert commit(client, "unknown", {("t", 0): 1}, "m", 3) == {("t", 0): 69}
    assert commit(client, "unknown", {("t", 0): 1}, "m", 3, version=8) == {("t", 0): 22}
    assert commit(client, "g", {("t", 0): 1}, committed_metadata="x" * 4096) == {("t", 0): 0}
    assert commit(client, "g", {("t", 0): 1}, committed_metadata="x" * 4097) == {("t", 0): 12}
    member = stable(client)
    assert commit(client, "g", {("t", 0): 1}) == {("t", 0): 25}
    assert commit(client, "g", {("t", 0): 1}, "nobody", 1) == {("t", 0): 25}
    assert commit(client, "g", {("t", 0): 1, ("t", 9): 1}, member, 7) == {("t", 0): 22, ("t", 9): 3}
    assert commit(client, "g", {("t", 0): 1}, member, 7, committed_metadata="x" * 4097) == {("t", 0): 22}
    assert commit(client, "g", {("t", 0): 8}, member, 1) == {("t", 0): 0}
    unknown = {"topic_id": uuid.uuid4(), "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    body = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": member, "topics": [unknown]}
    assert client.ask(COMMIT, 10, body).topics[0].partitions[0].error_code == 100
    groups = [{"group_id": "g", "topics": [{"topic_id": unknown["topic_id"], "partition_indexes": [0]}]}]
    row = client.ask(FETCH, 10, {"groups": groups}).groups[0].topics[0].partitions[0]
    assert (row.error_code, row.committed_offset) == (100, -1)


def test_a_commit_that_does_not_fit_into_a_batch_is_refused_whole(client: RawClient) -> None:
    create(client, "wide", 400)
    text = "x" * 4096
    many = {("wide", number): 1 for number in range(300)}
    assert set(commit(client, "g", many, committed_metadata=text).values()) == {-1}
    assert fetched(client, "g", None) == {}
    assert commit(client, "g", {("wide", 0): 1}, committed_metadata=text) == {("wide", 0): 0}


def test_offsets_of_a_deleted_topic_are_gone_and_those_of_its_successor_stay(
    broker: CatalogueBroker, client: RawClient
) -> None:
    create(client, "doomed")
    commit(client, "g", {("doomed", 0): 5, ("t", 0): 6})
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "doomed"}], "timeout": 10_000})
    end = time.monotonic() + WAIT_SECONDS
    while fetched(client, "g", None) != {("t", 0): 6}:
        assert time.monotonic() < end
        time.sleep(0.01)
    create(client, "doomed")
    assert commit(client, "g", {("doomed", 0): 9}) == {("doomed", 0): 0}
    assert fetched(client, "g", None) == {("t", 0): 6, ("doomed", 0): 9}
    assert client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "t"}], "timeout": 10_000}).responses[0].error_code == 0
    while fetched(client, "g", None) != {("doomed", 0): 9}:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_deleting_offsets(client: RawClient) -> None:
    def delete(group: str, *partitions: tuple[str, int]) -> Any:
        topics = [{"name": topic, "partitions": [{"partition_index": each}]} for topic, each in partitions]
        return client.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": topics})

    create(client, "other")
    commit(client, "g", {("t", 0): 1, ("other", 0): 2})
    assert delete("unknown", ("t", 0)).error_code == 69
    member = stable(client)
    answer = delete("g", ("t", 0), ("other", 0), ("t", 9))
    assert answer.error_code == 0
    assert [each.partitions[0].error_code for each in answer.topics] == [86, 0, 3]
    assert fetched(client, "g", None) == {("t", 0): 1}
    client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": member}]})
    assert delete("g", ("t", 0)).topics[0].partitions[0].error_code == 0
    assert fetched(client, "g", None) == {}


# ---- administration


def test_groups_are_listed_by_state_and_type(client: RawClient) -> None:
    stable(client)
    commit(client, "simple", {("t", 0): 1})
    everything = {each.group_id: each for each in client.ask(LIST, 5, {}).groups}
    assert {(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in everything.values()} == {
        ("g", "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
    }
    for body, expected in (
        ({"states_filter": ["STABLE"]}, ["g"]),
        ({"states_filter": ["nonsense"]}, []),
        ({"types_filter": ["Classic"], "states_filter": ["empty"]}, ["simple"]),
        ({"types_filter": ["consumer"]}, []),
    ):
        assert [each.group_id for each in client.ask(LIST, 5, body).groups] == expected
    assert len(client.ask(LIST, 0, {}).groups) == 2


def test_groups_are_described(client: RawClient) -> None:
    member = stable(client)
    for version in range(7):
        body = {"groups": ["g", "none"], **({"include_authorized_operations": True} if version >= 3 else {})}
        known, unknown = client.ask(DESCRIBE, version, body).groups
        assert (known.group_state, known.protocol_type, known.protocol_data) == ("Stable", "consumer", "range")
        assert [each.member_id for each in known.members] == [member]
        assert known.members[0].member_metadata == SUBSCRIPTION
        assert (unknown.group_state, unknown.error_code) == ("Dead", 69 if version >= 6 else 0)
        assert getattr(known, "authorized_operations", 3400) == 3400


def test_groups_are_deleted_with_all_that_they_committed(broker: CatalogueBroker, client: RawClient) -> None:
    member = stable(client)
    commit(client, "g", {("t", 0): 5}, member, 1)
    commit(client, "simple", {("t", 1): 5})
    answer = client.ask(DELETE, 2, {"groups_names": ["g", "simple", "none"]})
    assert [(each.group_id, each.error_code) for each in answer.results] == [("g", 68), ("simple", 0), ("none", 69)]
    client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": member}]})
    assert client.ask(DELETE, 2, {"groups_names": ["g"]}).results[0].error_code == 0
    assert client.ask(LIST, 5, {}).groups == ()
    assert fetched(client, "g", None) == {}


def state_batches(broker: CatalogueBroker) -> list[list[str]]:
    """Of each batch of `__consumer_offsets` that holds tombstones only: the groups that they are of."""
    found = []
    for number in range(2):
        with broker.partition(OFFSETS_TOPIC, number).log.read(0, 1 << 24, "log_end") as read:
            for each in iter_batches(read.read()):
                records = each.records()
                if all(record.value is None for record in records):
                    keys = [decode_offsets_record(record.key or b"", None)["key"] for record in records]
                    found.append([key["group"] for key in keys])
    return found


def test_groups_of_one_partition_are_deleted_with_one_batch(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"offsets.topic.num.partitions": 2}) as broker, broker.connect() as client:
        create(client, "t", 2)
        groups = [f"g{number}" for number in range(10)]
        for group in groups:
            found(client, group)
            commit(client, group, {("t", 0): 5, ("t", 1): 6})
        member = stable(client, "busy")
        asked = ["g3", "none", *groups, "busy", "g3"]
        answer = client.ask(DELETE, 2, {"groups_names": asked})
        assert [(each.group_id, each.error_code) for each in answer.results] == [
            ("g3", 0), ("none", 69), *((group, 0) for group in groups if group != "g3"), ("busy", 68),
        ]  # fmt: skip
        here = [[each for each in dict.fromkeys(asked) if partition_of(each, 2) == n] for n in range(2)]
        ordered = [listed(ids, string_hash, hash_set_capacity(len(ids))) for ids in here]
        expected = [[each for each in ids for _ in range(3) if each in groups] for ids in ordered]
        assert state_batches(broker) == expected
        assert [each.group_id for each in client.ask(LIST, 5, {}).groups] == ["busy"]
        assert client.ask(HEARTBEAT, 4, {"group_id": "busy", "generation_id": 1, "member_id": member}).error_code == 0


def test_groups_that_fit_no_batch_together_are_deleted_one_by_one(broker: CatalogueBroker, client: RawClient) -> None:
    """Kafka deletes none of them."""
    text = "t" * 249
    create(client, text)
    groups = [f"{number}-" + "g" * 20_000 for number in range(3)]
    for group in groups:
        assert commit(client, group, {(text, 0): 1}) == {(text, 0): 0}

    def limit(size: int) -> None:
        for partition in broker.in_loop(lambda context: list(context.partitions)):
            if partition.topic_partition.topic == OFFSETS_TOPIC:
                config = msgspec.structs.replace(partition.log.config, max_message_bytes=size)
                broker.in_loop(lambda _, log=partition.log, config=config: log.update_config(config))

    # Each takes 40,000 bytes and more, for the group and for what it committed.
    limit(50_000)
    answer = client.ask(DELETE, 2, {"groups_names": groups})
    assert [each.error_code for each in answer.results] == [0, 0, 0]
    assert client.ask(LIST, 5, {}).groups == ()
    assert commit(client, groups[0], {(text, 0): 1}) == {(text, 0): 0}
    limit(30_000)
    assert client.ask(DELETE, 2, {"groups_names": groups[:1]}).results[0].error_code == -1
    assert [each.group_id for each in client.ask(LIST, 5, {}).groups] == groups[:1]


# ---- time


def expiring(log_dir: Path) -> CatalogueBroker:
    return CatalogueBroker(
        [log_dir], {"offsets.retention.minutes": 10, "offsets.retention.check.interval.ms": 20}
    )  # fmt: skip


def test_offsets_expire_when_nobody_needs_them(log_dir: Path) -> None:
    with expiring(log_dir) as broker, broker.connect() as client:
        create(client, "t", 2)
        create(client, "other")
        for group in ("g", "simple", "explicit"):
            found(client, group)
        member = stable(client)
        commit(client, "g", {("t", 0): 5, ("other", 0): 6}, member, 1)
        commit(client, "simple", {("t", 0): 5})
        rows = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
        body = {
            "group_id": "explicit",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time": 3_600_000,
        }
        client.ask(COMMIT, 2, {**body, "topics": [{"name": "t", "partitions": rows}]})
        broker.clock.moved_ms = 599_000
        time.sleep(0.1)
        assert fetched(client, "simple", None) == {("t", 0): 5}
        broker.clock.moved_ms = 700_000
        end = time.monotonic() + WAIT_SECONDS
        while fetched(client, "simple", None) or len(fetched(client, "g", None)) > 1:
            assert time.monotonic() < end
            time.sleep(0.02)
        # What is read, and what was to be kept for longer.
        assert fetched(client, "g", None) == {("t", 0): 5}
        assert fetched(client, "explicit", None) == {("t", 0): 7}
        assert {each.group_id for each in client.ask(LIST, 5, {}).groups} == {"g", "explicit"}
        client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": member}]})
        time.sleep(0.1)
        assert fetched(client, "g", None) == {("t", 0): 5}  # it became empty just now
        broker.clock.moved_ms = 7_000_000
        while client.ask(LIST, 5, {}).groups:
            assert time.monotonic() < end
            time.sleep(0.02)
    with expiring(log_dir) as broker, broker.connect() as client:
        found(client, "g")
        assert client.ask(LIST, 5, {}).groups == ()


def test_a_log_that_cannot_be_understood_has_no_coordinator(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
    key, _ = offset_record("g", "t", 0, Committed(1))
    write(log_dir, "g", [(key, b"\0\x63")])
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        end = time.monotonic() + WAIT_SECONDS
        while fetched(client, "g", None, raw=True).error_code != 16:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert client.ask(HEARTBEAT, 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}).error_code == 16
        assert client.ask(JOIN, 9, join_body("g")).error_code == 16
        assert commit(client, "g", {("t", 0): 1}) == {("t", 0): 16}


def test_offsets_that_a_transaction_holds_are_unstable(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        commit(client, "g", {("t", 0): 1})
    more = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    write(log_dir, "g", [offset_record("g", "t", 0, Committed(9))], **more)
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        found(client, "g")
        asked = [{"name": "t", "partition_indexes": [0]}]
        assert fetched(client, "g", asked) == {("t", 0): 1}
        row = fetched(client, "g", asked, raw=True, require_stable=True).topics[0].partitions[0]
        assert (row.error_code, row.committed_offset) == (88, -1)


def test_the_end_of_a_group_that_another_broker_wrote_is_understood(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        commit(client, "g", {("t", 0): 1})
    write(log_dir, "g", [offset_record("g", "t", 0, None), group_tombstone("g")])
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        found(client, "g")
        assert client.ask(LIST, 5, {}).groups == ()


def write(log_dir: Path, group: str, records: list[tuple[bytes, bytes | None]], **more: Any) -> None:
    """Appends to a group's partition (of two) while no broker runs."""
    directory = log_dir / f"{OFFSETS_TOPIC}-{partition_of(group, 2)}"
    numbered = [Record(offset, NOW, key, value) for offset, (key, value) in enumerate(records)]
    loaded = load_log(
        directory, TopicConfig(), clean_shutdown=True, recovery_point=0, log_start_offset=0, now_ms=NOW
    )  # fmt: skip
    log = PartitionLog(loaded, now_ms=NOW)
    batch = bytearray(build_batch(numbered, base_offset=0, **{"base_sequence": 0, **more}))
    log.append_as_leader(batch, leader_epoch=log.epochs.latest_epoch or 0, now_ms=NOW, origin=Origin.COORDINATOR)
    log.close()


def test_what_compaction_leaves_says_the_same(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        for group in ("g", "simple", "gone"):
            found(client, group)
        for number in range(50):
            commit(client, "simple", {("t", 0): number, ("t", 1): 2 * number})
            commit(client, "gone", {("t", 0): number})
        member = stable(client)
        commit(client, "g", {("t", 0): 5}, member, 1)
        client.ask(DELETE, 2, {"groups_names": ["gone"]})
        before = {group: fetched(client, group, None) for group in ("g", "simple", "gone")}
    paths = [str(log_dir / f"{OFFSETS_TOPIC}-{partition}") for partition in range(2)]
    sizes = [sum(each.stat().st_size for each in Path(path).glob("*.log")) for path in paths]
    command = ["--force", "--roll", "--delete-delay", "0", "--set", "delete.retention.ms=0", *paths]
    # Twice: what ends a group stays for one more round.
    for _ in range(2):
        done = CliRunner().invoke(clean, command)
        assert done.exit_code == 0, done.output
    after = [sum(each.stat().st_size for each in Path(path).glob("*.log")) for path in paths]
    assert sum(after) < sum(sizes) / 5
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        for group in ("g", "simple", "gone"):
            found(client, group)
        assert {group: fetched(client, group, None) for group in before} == before
        assert {each.group_id: each.group_state for each in client.ask(LIST, 5, {}).groups} == {
            "g": "Stable",
            "simple": "Empty",
        }
