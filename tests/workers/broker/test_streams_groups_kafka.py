"""Streams groups on the disks of both brokers: what one wrote the other goes on with, and Kafka's tool can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.transactions.java_order import partition_of
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.streams_requests import QUICK, beat, describe, internal, owned, subtopology, topology
from tests.workers.broker.test_consumer_groups import until
from tests.workers.broker.test_group_kafka import Tools
from tests.workers.broker.test_groups import DELETE, commit, create, fetched, found

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

_STATEFUL = topology(subtopology(state_changelog_topics=[internal("app-store-changelog", cleanup_policy="compact")]))
#: Sessions outlast the change from one broker to the other.
_SETTINGS = {
    **QUICK,
    "group.streams.max.session.timeout.ms": 3_600_000,
    "group.streams.session.timeout.ms": 3_600_000,
    "group.streams.num.standby.replicas": 1,
}


def _rows(tasks: Any) -> list[dict[str, Any]]:
    return [{"subtopology_id": row.subtopology_id, "partitions": list(row.partitions)} for row in tasks]


def _settled(client: RawClient) -> Any:
    """Members say what they have until nothing changes any more."""

    def done() -> bool:
        group = describe(client)
        for member in group.members:
            has = owned(_rows(member.assignment.active_tasks), _rows(member.assignment.standby_tasks))
            answer = beat(client, member.member_id, member.member_epoch, instance_id=member.instance_id, **has)
            assert answer.error_code == 0, answer
        return bool(describe(client).group_state == "Stable")

    until(done)
    return describe(client)


def _go_on(client: RawClient, member: str) -> dict[str, Any]:
    """Another member comes, and the group is settled."""
    found(client, "g")
    epoch = describe(client).group_epoch
    beat(client, member, 0, topology=_STATEFUL)
    group = _settled(client)
    assert group.group_epoch == epoch + 1
    given = sorted(n for each in group.members for row in each.assignment.active_tasks for n in row.partitions)
    assert given == [0, 1, 2, 3]
    newest = next(each for each in group.members if each.member_id == member)
    commit(client, "g", {("t", 0): epoch}, member, newest.member_epoch)
    return _state(client)


def _state(client: RawClient) -> dict[str, Any]:
    found(client, "g")
    group = describe(client)
    return {
        "epochs": (group.group_state, group.group_epoch, group.assignment_epoch),
        "members": sorted(map(repr, group.members)),
        "topology": [each.source_topics for each in group.topology.subtopologies],
        "offsets": fetched(client, "g", None),
    }


def test_streams_groups_in_turns(log_dir: Path, fast_dir: Path, oracle_classpath: str) -> None:
    """Members, epochs, tasks and the topology of one broker go on in the other, twice over."""
    kafka = Broker(oracle_classpath, fast_dir / "kafka", [log_dir], _SETTINGS)
    kafka.format()
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        create(client, "t", 4)
        create(client, "app-store-changelog", 4)
        found(client, "g")
        tags = [{"key": "zone", "value": "z"}]
        endpoint = {"host": "h", "port": 65_535}
        beat(client, "a", 0, instance_id="i", topology=_STATEFUL, client_tags=tags, user_endpoint=endpoint)
        before = _go_on(client, "b")
    for turn in range(2):
        with CatalogueBroker([log_dir], _SETTINGS) as ours, ours.connect() as client:
            assert _state(client) == before
            before = _go_on(client, f"c{turn}")
        with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
            assert _state(client) == before
            before = _go_on(client, f"d{turn}")
    # The end of the group in one is its end in the other.
    with CatalogueBroker([log_dir], _SETTINGS) as ours, ours.connect() as client:
        assert _state(client) == before
        for member in describe(client).members:
            beat(client, member.member_id, -1, instance_id=member.instance_id)
        assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 0
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        found(client, "g")
        assert describe(client).error_code == 69
        assert fetched(client, "g", None) == {}
    assert not [line for line in kafka.complaints() if "GroupCoordinator" in line or "offsets" in line]


def test_kafkas_dump_understands_our_records(log_dir: Path, oracle_classpath: str) -> None:
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        beat(client, "a", 0)
        beat(client, "a", -1)
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
