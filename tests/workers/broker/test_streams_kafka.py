"""Streams groups of Kafka 4.4.0 and of ours in turns on the same disks (KIP-1071), and our records as Kafka's tool reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.transactions.java_order import partition_of
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_group_kafka import Tools
from tests.workers.broker.test_groups import DELETE, commit, create, fetched, found
from tests.workers.broker.test_streams_differential import COUNTS, OURS, SETTINGS, info, subtopology, tasks

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

BEAT, DESCRIBE = 88, 89
NOT_SAID = dict.fromkeys(
    ("active_tasks", "standby_tasks", "warmup_tasks", "client_tags", "task_offsets", "task_end_offsets")
)  # fmt: skip


def beat(client: RawClient, group: str, member: str, epoch: int, **more: Any) -> Any:
    body = {"group_id": group, "member_id": member, "member_epoch": epoch, "endpoint_information_epoch": 0}
    return client.ask(BEAT, 1, body | NOT_SAID | more)


def join(client: RawClient, group: str, member: str, topology: list[dict[str, Any]], **more: Any) -> Any:
    body: dict[str, Any] = {
        "rebalance_timeout": 300_000,
        "topology": {"epoch": 0, "subtopologies": topology},
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": f"process-{member}",
        "client_tags": [{"key": "zone", "value": member}],
        "user_endpoint": {"host": member, "port": 8080},
    }
    answer = beat(client, group, member, 0, **(body | more))
    assert answer.error_code == 0, answer
    return answer


def describe(client: RawClient, group: str) -> Any:
    body = {"group_ids": [group], "include_authorized_operations": False, "include_topology_description": False}
    return client.ask(DESCRIBE, 1, body).groups[0]


def shape(topology: Any) -> list[Any]:
    """What does not depend on whether a heartbeat has looked for the topics yet."""
    return [
        (each.subtopology_id, each.source_topics, [topic.name for topic in each.state_changelog_topics])
        for each in topology.subtopologies
    ]


def settle(client: RawClient, group: str) -> Any:
    """All members say what they have, as often as it takes."""
    for _ in range(6):
        for each in describe(client, group).members:
            has = {
                "active_tasks": tasks(each.assignment.active_tasks),
                "standby_tasks": tasks(each.assignment.standby_tasks),
                "warmup_tasks": [],
            }
            answer = beat(client, group, each.member_id, each.member_epoch, instance_id=each.instance_id, **has)
            assert answer.error_code == 0, answer
    return describe(client, group)


def test_streams_groups_in_turns(log_dir: Path, fast_dir: Path, oracle_classpath: str) -> None:
    """Members, epochs, tasks and topology of one broker go on in the other, twice over; so does a group without its topics."""
    kafka = Broker(oracle_classpath, fast_dir / "kafka", [log_dir], SETTINGS)
    kafka.format()
    waiting = [subtopology("0", "not-there", state_changelog_topics=[info("never")])]

    def state(client: RawClient) -> dict[str, Any]:
        for group in ("g", "w"):
            found(client, group)
        seen = {group: describe(client, group) for group in ("g", "w")}
        return {
            "groups": {
                name: (group.group_state, group.group_epoch, group.assignment_epoch, shape(group.topology))
                for name, group in seen.items()
            },
            "members": sorted(repr(member) for group in seen.values() for member in group.members),
            "offsets": fetched(client, "g", None),
        }

    def go_on(client: RawClient, member: str) -> dict[str, Any]:
        """Another member comes, the group is settled, and an offset is committed under its epoch."""
        before = describe(client, "g").group_epoch
        join(client, "g", member, COUNTS)
        group = settle(client, "g")
        assert (group.group_state, group.group_epoch) == ("Stable", before + 1)
        given = sorted(
            (row.subtopology_id, number)
            for each in group.members
            for row in each.assignment.active_tasks
            for number in row.partitions
        )
        assert given == [(subtopology_id, number) for subtopology_id in "01" for number in range(4)]
        commit(client, "g", {("t", 0): group.group_epoch}, member, group.group_epoch)
        epoch = describe(client, "w").members[0].member_epoch
        assert [row.status_code for row in beat(client, "w", "waits", epoch).status] == [Status.MISSING_SOURCE_TOPICS]
        return state(client)

    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        for name in ("t", "app-rep", "app-store"):
            create(client, name, 4)
        found(client, "g")
        join(client, "g", "a", COUNTS, instance_id="i")
        # With an endpoint Kafka fails as long as topics are missing.
        join(client, "w", "waits", waiting, user_endpoint=None)
        before = go_on(client, "b")
    for turn in range(2):
        with CatalogueBroker([log_dir], OURS) as ours, ours.connect() as client:
            assert state(client) == before
            before = go_on(client, f"c{turn}")
        with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
            assert state(client) == before
            before = go_on(client, f"d{turn}")
    # The end of a group in one is its end in the other.
    with CatalogueBroker([log_dir], OURS) as ours, ours.connect() as client:
        assert state(client) == before
        for member in describe(client, "g").members:
            beat(client, "g", member.member_id, -1, instance_id=member.instance_id)
        assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 0
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        found(client, "g")
        assert describe(client, "g").error_code == 69
        assert fetched(client, "g", None) == {}
    assert not [line for line in kafka.complaints() if "GroupCoordinator" in line or "offsets" in line]


def test_kafkas_dump_understands_our_records(log_dir: Path, oracle_classpath: str) -> None:
    with CatalogueBroker([log_dir], OURS) as broker, broker.connect() as client:
        for name in ("t", "app-rep", "app-store"):
            create(client, name, 4)
        found(client, "g")
        join(client, "g", "a", COUNTS, instance_id="i", rack_id="r")
        join(client, "g", "b", COUNTS)
        settle(client, "g")
        beat(client, "g", "b", -1)
    segment = log_dir / f"{OFFSETS_TOPIC}-{partition_of('g', 2)}" / f"{0:020d}.log"
    dump = Tools(oracle_classpath, "").run(
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--deep-iteration",
        "--files",
        str(segment),
        bootstrap=False,
    )
    assert "isvalid: false" not in dump
    for number in (17, 19, 20, 21, 22, 23):
        assert f'"type":"{number}"' in dump or f'"type":{number}' in dump, dump
    assert "Error" not in dump
