"""Consumer groups (KIP-848) over the wire: the heartbeats of facts kafka-protocol 14, and what the log holds after them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compactd.scripts.clean import command as clean
from compactd.storage.metadata.offsets import decode_offsets_record
from compactd.workers.broker.context import Context
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import (
    DELETE,
    DELETE_TOPICS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    SYNC,
    commit,
    create,
    fetched,
    found,
    join_body,
    stable,
)

BEAT, DESCRIBE_CONSUMERS = 68, 69
QUICK = {
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], QUICK) as running:
        with running.connect() as client:
            create(client, "t", 4)
            create(client, "u", 2)
            found(client, "g")
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def beat(client: RawClient, member: str, epoch: int, *, group: str = "g", version: int = 1, **more: Any) -> Any:
    body: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch, "topic_partitions": None}
    if epoch == 0:
        body |= {"rebalance_timeout": 300_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return client.ask(BEAT, version, body | more)


def owned(broker: CatalogueBroker, **topics: list[int]) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id(broker, name), "partitions": partitions} for name, partitions in topics.items()]


def topic_id(broker: CatalogueBroker, name: str) -> uuid.UUID:
    found: uuid.UUID = broker.in_loop(lambda context: context.image.topics[name].topic_id)
    return found


def told(answer: Any) -> tuple[int, dict[int, int] | list[int] | None]:
    """Epoch, and the partitions of the one topic; None: as before."""
    assert answer.error_code == 0, answer
    if answer.assignment is None:
        return answer.member_epoch, None
    return answer.member_epoch, sorted(p for row in answer.assignment.topic_partitions for p in row.partitions)


def log_of(broker: CatalogueBroker, group: str = "g") -> list[tuple[str, Any, Any]]:
    """The records of the group's partition: type, member or expression, value."""

    def read(context: Context) -> list[tuple[int, bytes, bytes | None]]:
        number = context.part(GroupCoordinator).partition_of(group)
        assert number is not None
        partition = context.partitions.get(OFFSETS_TOPIC, number)
        assert partition is not None
        from compactd.storage.records.batch import iter_batches  # noqa: PLC0415

        with partition.log.read(0, 1 << 20, "log_end") as fetched_:
            data = fetched_.read()
        return [
            (batch.header.base_offset, record.key or b"", record.value)
            for batch in iter_batches(data)
            for record in batch.records()
        ]

    rows = []
    for _, key, value in broker.in_loop(read):
        decoded = decode_offsets_record(key, value)
        fields = decoded["key"]
        if fields.get("groupId", fields.get("group")) == group:
            who = fields.get("memberId", fields.get("regularExpression"))
            rows.append((int.from_bytes(key[:2], "big"), who, decoded["value"]))
    return rows


def types(rows: list[tuple[int, Any, Any]]) -> list[Any]:
    """Types, negative those of tombstones."""
    return [number if value is not None else -number for number, _, value in rows]


def describe(client: RawClient, group: str = "g") -> Any:
    return client.ask(DESCRIBE_CONSUMERS, 1, {"group_ids": [group], "include_authorized_operations": False}).groups[0]


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_members_share_a_topic(broker: CatalogueBroker, client: RawClient) -> None:
    """The trace of facts 14.3."""
    assert told(beat(client, "a", 0)) == (2, [0, 1, 2, 3])
    assert told(beat(client, "b", 0)) == (3, [])
    assert told(beat(client, "a", 2)) == (2, [0, 1])
    assert describe(client).group_state == "Reconciling"
    assert told(beat(client, "b", 3)) == (3, None)
    assert told(beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1]))) == (3, None)
    assert told(beat(client, "b", 3)) == (3, [2, 3])
    assert describe(client).group_state == "Stable"
    left = beat(client, "b", -1)
    assert (left.error_code, left.member_epoch, left.assignment) == (0, -1, None)
    assert told(beat(client, "a", 3)) == (4, [0, 1, 2, 3])


def test_the_first_batch_and_the_last(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    rows = log_of(broker)
    assert types(rows) == [5, 3, 7, 6, 8]
    values = dict(zip(types(rows), [value for _, _, value in rows], strict=True))
    assert values[3]["epoch"] == 2 and values[3]["metadataHash"] != 0
    assert values[6]["assignmentEpoch"] == 2 and values[6]["assignmentTimestamp"] > 0
    assert (values[8]["memberEpoch"], values[8]["previousMemberEpoch"], values[8]["state"]) == (2, 0, 0)
    assert values[8]["assignedPartitions"][0]["assignmentEpochs"] == [2, 2, 2, 2]
    assert values[5]["classicMemberMetadata"] is None
    beat(client, "a", -1)
    rows = log_of(broker)[5:]
    assert types(rows) == [-8, -7, -5, 3, 6]
    assert rows[3][2] == {"epoch": 3, "metadataHash": 0}
    assert rows[4][2] == {"assignmentEpoch": 3, "assignmentTimestamp": 0}
    assert describe(client).group_state == "Empty"
    answer = client.ask(DELETE, 3, {"groups_names": ["g"]})
    assert answer.results[0].error_code == 0
    assert types(log_of(broker)[10:]) == [-6, -4, -3]
    assert describe(client).error_code == 69


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"member_id": ""}, 42),
        ({"group_id": ""}, 42),
        ({"group_id": "  "}, 42),
        ({"instance_id": ""}, 42),
        ({"rack_id": ""}, 42),
        ({"rebalance_timeout": -1}, 42),
        ({"topic_partitions": None}, 42),
        ({"topic_partitions": [{"topic_id": uuid.uuid4(), "partitions": [0]}]}, 42),
        ({"subscribed_topic_names": None}, 42),
        ({"member_epoch": -2, "rebalance_timeout": -1}, 42),
        ({"member_epoch": -3}, 42),
        ({"server_assignor": "sticky"}, 112),
        ({"member_epoch": 5, "rebalance_timeout": -1, "topic_partitions": None}, 69),
        ({"member_epoch": -1}, 69),
        ({"subscribed_topic_regex": "a**"}, 128),
        ({"subscribed_topic_regex": "(?=t)"}, 128),
    ],
)
def test_what_is_refused(client: RawClient, change: Mapping[str, Any], error: int) -> None:
    answer = beat(client, "a", 0, **change)
    assert answer.error_code == error
    assert answer.error_message


def test_members_that_are_fenced(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    assert beat(client, "who", 2).error_code == 25
    assert beat(client, "a", 3).error_code == 110
    assert beat(client, "a", 1).error_code == 110
    # The answer with epoch 2 was lost: the one before is as good, with what it has.
    assert told(beat(client, "a", 0)) == (2, [0, 1, 2, 3])
    beat(client, "b", 0)
    beat(client, "a", 2)
    beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1]))
    assert told(beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1]))) == (3, None)
    assert beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1, 2])).error_code == 110
    assert beat(client, "a", 2).error_code == 110


def test_old_clients_are_given_an_id(client: RawClient) -> None:
    answer = beat(client, "", 0, version=0)
    assert answer.error_code == 0 and len(answer.member_id) == 22
    assert told(beat(client, answer.member_id, 2, version=0)) == (2, None)


def test_a_full_request_is_told_everything(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    full = {"rebalance_timeout": 300_000, "subscribed_topic_names": ["t"]}
    assert told(beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1, 2, 3]), **full)) == (2, [0, 1, 2, 3])


def test_a_changed_subscription(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    # What it does not subscribe to any more is taken at once; what is new comes when that was given back.
    assert told(beat(client, "a", 2, subscribed_topic_names=["u"])) == (2, [])
    assert told(beat(client, "a", 2, topic_partitions=[])) == (3, [0, 1])
    assert describe(client).members[0].subscribed_topic_names == ("u",)


def test_topics_that_come_and_grow_and_go(broker: CatalogueBroker, client: RawClient) -> None:
    assert told(beat(client, "a", 0, subscribed_topic_names=["later"])) == (2, [])
    create(client, "later", 2)
    until(lambda: told(beat(client, "a", describe(client).members[0].member_epoch))[1] == [0, 1])
    client.ask(
        37, 3, {"topics": [{"name": "later", "count": 3, "assignments": None}], "timeout": 9000, "validate_only": False}
    )
    until(lambda: told(beat(client, "a", describe(client).members[0].member_epoch))[1] == [0, 1, 2])
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "later", "topic_id": None}], "timeout": 9000})
    until(lambda: beat(client, "a", describe(client).members[0].member_epoch).assignment is not None)
    assert describe(client).members[0].assignment.topic_partitions == ()


def test_a_static_member_comes_back(broker: CatalogueBroker, client: RawClient) -> None:
    assert told(beat(client, "a", 0, instance_id="i")) == (2, [0, 1, 2, 3])
    assert beat(client, "b", 0, instance_id="i").error_code == 111
    assert beat(client, "b", 2, instance_id="i").error_code == 82
    assert beat(client, "a", 2, instance_id="other").error_code == 25
    left = beat(client, "a", -2, instance_id="i")
    assert (left.error_code, left.member_epoch) == (0, -2)
    assert describe(client).members[0].member_epoch == -2
    assert told(beat(client, "b", 0, instance_id="i")) == (2, [0, 1, 2, 3])
    assert types(log_of(broker)[6:]) == [-8, -7, -5, 5, 7, 8, 8]
    assert beat(client, "a", -1, instance_id="i").error_code == 82
    assert beat(client, "b", -1, instance_id="i").error_code == 0


def test_a_member_that_is_not_heard_of_is_out(log_dir: Path) -> None:
    settings = {**QUICK, "group.consumer.session.timeout.ms": 600}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
        until(lambda: describe(client).group_state == "Empty")
        assert beat(client, "a", 2).error_code == 25
        assert types(log_of(running)[5:]) == [-8, -7, -5, 3, 6]


def test_a_member_that_does_not_give_back_is_out(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0, rebalance_timeout=300)
    beat(client, "b", 0)
    assert told(beat(client, "a", 2)) == (2, [0, 1])
    until(lambda: len(describe(client).members) == 1)
    assert beat(client, "a", 2).error_code == 25
    epoch = describe(client).members[0].member_epoch
    assert told(beat(client, "b", epoch)) == (4, [0, 1, 2, 3])


def test_the_assignment_waits_for_its_interval(log_dir: Path) -> None:
    settings = {**QUICK, "group.consumer.assignment.interval.ms": 10_000}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        assert told(beat(client, "a", 0)) == (2, [0, 1, 2, 3])
        assert told(beat(client, "b", 0)) == (2, [])
        assert describe(client).group_state == "Assigning"
        running.clock.moved_ms = 11_000
        assert told(beat(client, "a", 2)) == (2, [0, 1])
        assert describe(client).assignment_epoch == 3


def test_a_group_has_room_for_so_many(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {**QUICK, "group.consumer.max.size": 1}) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
        assert beat(client, "b", 0).error_code == 81
        assert told(beat(client, "a", 2)) == (2, None)


def test_a_regular_expression(broker: CatalogueBroker, client: RawClient) -> None:
    answer = beat(client, "a", 0, subscribed_topic_names=None, subscribed_topic_regex="t|u.*")
    assert told(answer) == (1, [])
    until(lambda: told(beat(client, "a", describe(client).members[0].member_epoch))[1] == [0, 0, 1, 1, 2, 3])
    resolved = [row for row in log_of(broker) if row[0] == 16]
    assert [(who, value["topics"]) for _, who, value in resolved] == [("t|u.*", ["t", "u"])]
    # Another one with the same expression has it at once.
    assert told(beat(client, "b", 0, subscribed_topic_names=None, subscribed_topic_regex="t|u.*"))[0] == 3
    assert beat(client, "b", -1).error_code == 0
    assert beat(client, "a", -1).error_code == 0
    assert types(log_of(broker)[-6:]) == [-8, -7, -5, -16, 3, 6]


def test_offsets_of_members(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    assert commit(client, "g", {("t", 0): 5}, "a", 2) == {("t", 0): 0}
    assert commit(client, "g", {("t", 0): 5}, "a", 3) == {("t", 0): 113}
    assert commit(client, "g", {("t", 0): 5}, "a", 2, version=8) == {("t", 0): 35}
    assert commit(client, "g", {("t", 0): 5}, "who", 2) == {("t", 0): 25}
    assert commit(client, "g", {("t", 0): 5}) == {("t", 0): 25}
    # With an older epoch: what it has had since then.
    beat(client, "b", 0)
    beat(client, "a", 2)
    assert told(beat(client, "a", 2, topic_partitions=owned(broker, t=[0, 1]))) == (3, None)
    assert commit(client, "g", {("t", 0): 6}, "a", 2) == {("t", 0): 0}
    assert commit(client, "g", {("t", 0): 6, ("t", 2): 1}, "a", 2) == {("t", 0): 113, ("t", 2): 113}
    assert commit(client, "g", {("t", 2): 1}, "a", 3) == {("t", 2): 0}
    asked = {"group_id": "g", "member_id": "a", "member_epoch": 3, "topics": None}
    for change, error in (({}, 0), ({"member_epoch": 2}, 113), ({"member_id": "who"}, 25)):
        answer = client.ask(9, 9, {"groups": [{**asked, **change}], "require_stable": False})
        assert answer.groups[0].error_code == error
    delete = {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    assert client.ask(OFFSET_DELETE, 0, delete).topics[0].partitions[0].error_code == 86


def test_a_group_is_listed_and_described(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0, instance_id="i", rack_id="r", server_assignor="range")
    listed = client.ask(LIST, 5, {"states_filter": [], "types_filter": ["Consumer"]}).groups
    assert [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in listed] == [
        ("g", "consumer", "Stable", "consumer")
    ]
    assert client.ask(LIST, 5, {"states_filter": ["empty"], "types_filter": []}).groups == ()
    old = client.ask(DESCRIBE, 6, {"groups": ["g"], "include_authorized_operations": False}).groups[0]
    assert (old.error_code, old.error_message, old.group_state) == (69, "Group g is not a classic group.", "Dead")
    group = describe(client)
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (2, 2, "range")
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 2)
    assert (member.client_id, member.client_host, member.member_type) == ("raw", "/127.0.0.1", 1)
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("t",), "")
    (row,) = member.assignment.topic_partitions
    assert (row.topic_id, row.topic_name, row.partitions) == (topic_id(broker, "t"), "t", (0, 1, 2, 3))
    assert member.target_assignment == member.assignment
    assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 68


def test_a_restart_remembers_everything(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
        beat(client, "b", 0, instance_id="i")
        beat(client, "a", 2)
        beat(client, "re", 0, group="h", subscribed_topic_names=None, subscribed_topic_regex="t")
        until(lambda: told(beat(client, "re", describe(client, "h").members[0].member_epoch, group="h"))[0] == 2)
        before = describe(client), describe(client, "h")
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        found(client, "g")
        found(client, "h")
        assert (describe(client), describe(client, "h")) == before
        assert told(beat(client, "a", 2, topic_partitions=owned(running, t=[0, 1]))) == (3, None)
        assert told(beat(client, "b", 3, instance_id="i")) == (3, [2, 3])
        assert told(beat(client, "re", 2, group="h")) == (2, None)


def test_what_compaction_leaves_of_a_group_says_the_same(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        create(client, "t", 4)
        for group in ("g", "gone"):
            found(client, group)
            for number in range(20):
                assert told(beat(client, f"passing-{number}", 0, group=group))[0] > 0
                assert beat(client, f"passing-{number}", -1, group=group).error_code == 0
        client.ask(DELETE, 3, {"groups_names": ["gone"]})
        epoch, partitions = told(beat(client, "a", 0))
        assert partitions == [0, 1, 2, 3]
        assert commit(client, "g", {("t", 0): 5}, "a", epoch) == {("t", 0): 0}
        before = describe(client)
        rows = len(log_of(broker)) + len(log_of(broker, "gone"))
    paths = [str(log_dir / f"{OFFSETS_TOPIC}-{partition}") for partition in range(2)]
    command = ["--force", "--roll", "--delete-delay", "0", "--set", "delete.retention.ms=0", *paths]
    # Twice: what ends a group stays for one more round.
    for _ in range(2):
        done = CliRunner().invoke(clean, command)
        assert done.exit_code == 0, done.output
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        for group in ("g", "gone"):
            found(client, group)
        assert len(log_of(broker)) + len(log_of(broker, "gone")) < rows / 10
        assert describe(client) == before
        assert fetched(client, "g", None) == {("t", 0): 5}
        assert describe(client, "gone").error_code == 69
        assert told(beat(client, "a", epoch)) == (epoch, None)
        assert [each.group_id for each in client.ask(LIST, 5, {}).groups] == ["g"]


def test_a_group_that_nobody_needs_expires(log_dir: Path) -> None:
    settings = QUICK | {"offsets.retention.minutes": 10, "offsets.retention.check.interval.ms": 20}
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as client:
        create(client, "t", 1)
        create(client, "u", 1)
        found(client, "g")
        epoch, _ = told(beat(client, "a", 0))
        assert commit(client, "g", {("t", 0): 5, ("u", 0): 6}, "a", epoch) == {("t", 0): 0, ("u", 0): 0}
        # With members: what nobody subscribes to.
        broker.clock.moved_ms = 700_000
        until(lambda: fetched(client, "g", None) == {("t", 0): 5})
        # Without: everything, and then the group.
        assert beat(client, "a", -1).error_code == 0
        until(lambda: fetched(client, "g", None) == {})
        until(lambda: describe(client).error_code == 69)
        assert client.ask(LIST, 5, {}).groups == ()
        assert types(log_of(broker))[-4:] == [-1, -6, -4, -3]


# ---- both protocols


def test_an_empty_group_changes_its_protocol(broker: CatalogueBroker, client: RawClient) -> None:
    commit(client, "g", {("t", 0): 5})
    assert told(beat(client, "a", 0)) == (2, [0, 1, 2, 3])
    assert types(log_of(broker)) == [1, -2, 5, 3, 7, 6, 8]
    assert fetched(client, "g", None)["t", 0] == 5
    beat(client, "a", -1)
    answer = client.ask(JOIN, 9, join_body("g"))
    assert answer.error_code == 79
    assert types(log_of(broker)[-4:]) == [-6, -4, -3, 2]
    assert fetched(client, "g", None)["t", 0] == 5
    listed = client.ask(LIST, 5, {"states_filter": [], "types_filter": []}).groups
    assert [(each.group_id, each.group_type) for each in listed] == [("g", "classic")]


def test_a_group_with_members_is_upgraded_and_downgraded(broker: CatalogueBroker, client: RawClient) -> None:
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3\xff\xff\xff\xff"
    old = stable(client, assignment=assignment)
    # An assignment is computed, and the old member has to give two partitions back.
    answer = beat(client, "new", 0)
    assert told(answer) == (2, [])
    assert types(log_of(broker)[2:]) == [-2, 5, 3, 7, 6, 8, 5, 3, 7, 7, 6, 8]
    described = describe(client)
    assert sorted(member.member_type for member in described.members) == [0, 1]
    classic = {"group_id": "g", "generation_id": 1, "member_id": old, "group_instance_id": None}
    assert client.ask(HEARTBEAT, 4, classic).error_code == 27
    has = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3"
    kept = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1"

    def join(metadata: bytes) -> Any:
        body = join_body("g", old, protocols=[{"name": "range", "metadata": metadata}])
        return client.ask(JOIN, 9, body)

    joined = join(has)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, "")
    sync = {
        "group_id": "g",
        "generation_id": 1,
        "member_id": old,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    answer = client.ask(SYNC, 5, {**sync, "assignments": []})
    assert answer.assignment == b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
    joined = join(kept)
    assert (joined.error_code, joined.generation_id) == (0, 2)
    assert client.ask(SYNC, 5, {**sync, "generation_id": 2, "assignments": []}).error_code == 0
    assert told(beat(client, "new", 2)) == (2, [2, 3])
    # The last member of the new protocol goes: a classic group again, which rebalances.
    assert beat(client, "new", -1).error_code == 0
    assert types(log_of(broker)[-10:]) == [-8, -8, -7, -7, -6, -5, -5, -4, -3, 2]
    listed = client.ask(LIST, 5, {"states_filter": [], "types_filter": []}).groups
    assert [(each.group_id, each.group_state, each.group_type) for each in listed] == [
        ("g", "PreparingRebalance", "classic")
    ]
    assert client.ask(HEARTBEAT, 4, {**classic, "generation_id": 2}).error_code == 27


def test_a_classic_member_leaves_a_consumer_group(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "new", 0)
    first = client.ask(JOIN, 9, join_body("g"))
    assert first.error_code == 79
    joined = client.ask(JOIN, 9, join_body("g", first.member_id))
    assert (joined.error_code, joined.protocol_name) == (0, "range")
    assert client.ask(JOIN, 9, join_body("g", protocol_type="connect")).error_code == 23
    assert client.ask(HEARTBEAT, 4, {"group_id": "g", "generation_id": 2, "member_id": "new"}).error_code == 25
    answer = client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": first.member_id}, {"member_id": "who"}]})
    assert [each.error_code for each in answer.members] == [0, 25]
    assert [member.member_id for member in describe(client).members] == ["new"]


@pytest.mark.parametrize("policy", ["DISABLED", "downgrade"])
def test_no_upgrade_where_the_policy_forbids_it(log_dir: Path, policy: str) -> None:
    settings = {**QUICK, "group.consumer.migration.policy": policy}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        stable(client)
        answer = beat(client, "new", 0)
        assert (answer.error_code, answer.error_message) == (
            69,
            "Cannot upgrade classic group g to consumer group because online upgrade is disabled.",
        )


def test_settings_of_one_group_count(broker: CatalogueBroker, client: RawClient) -> None:
    change = {"name": "consumer.heartbeat.interval.ms", "config_operation": 0, "value": "700"}
    resource = {"resource_type": 32, "resource_name": "g", "configs": [change]}
    assert client.ask(44, 1, {"resources": [resource], "validate_only": False}).responses[0].error_code == 0
    until(lambda: beat(client, "a", 0).heartbeat_interval.total_seconds() == 0.7)
    assert beat(client, "a", 0, group="h").heartbeat_interval.total_seconds() == 0.1
