"""Kafka 4.4.0's console consumer and tools on consumer groups, and such groups in turns on the same disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.transactions.java_order import partition_of
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_consumer_groups import QUICK, beat, describe, told, until
from tests.workers.broker.test_group_kafka import Tools, produce, rows
from tests.workers.broker.test_groups import commit, create, fetched, found

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

LONG = {"group.consumer.max.session.timeout.ms": 3_600_000, "group.consumer.session.timeout.ms": 3_600_000}


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], {**QUICK, **LONG}) as running:
        yield running


def test_the_console_consumer_and_the_tools(broker: CatalogueBroker, oracle_classpath: str) -> None:
    tools = Tools(oracle_classpath, broker.bootstrap)
    with broker.connect() as client:
        create(client, "t", 2)
        produce(client, "t", 0, "a", "b")
        produce(client, "t", 1, "c")

        def console(count: int, *where: str) -> list[str]:
            out = tools.run(
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *(*where, "--group", "g", "--max-messages", str(count), "--timeout-ms", "60000"),
                *("--command-property", "auto.offset.reset=earliest", "--command-property", "group.protocol=consumer"),
            )
            return sorted(out.split())

        assert console(3, "--topic", "t") == ["a", "b", "c"]
        produce(client, "t", 1, "d")
        assert console(1, "--include", "t.*") == ["d"]
        assert fetched(client, "g", None) == {("t", 0): 2, ("t", 1): 2}
        state = tools.groups("--describe", "--group", "g", "--state")
        assert "Empty" in state and "uniform" in state
        told(beat(client, "m", 0))
        members = tools.groups("--describe", "--group", "g", "--members", "--verbose")
        assert any(row[:2] == ["g", "m"] for row in rows(members)), members
        listed = tools.groups("--list", "--type", "consumer", "--state")
        assert [row[:3] for row in rows(listed)] == [["g", "Consumer", "Stable"]]
        beat(client, "m", -1)
        tools.groups("--reset-offsets", "--group", "g", "--topic", "t:0", "--to-earliest", "--execute")
        assert fetched(client, "g", None)["t", 0] == 0
        tools.groups("--delete", "--group", "g")
        assert describe(client).error_code == 69


def test_consumer_groups_in_turns(log_dir: Path, fast_dir: Path, oracle_classpath: str) -> None:
    """Members, epochs, partitions and expressions of one broker go on in the other, twice over."""
    settings = {**QUICK, **LONG}
    kafka = Broker(oracle_classpath, fast_dir / "kafka", [log_dir], {**QUICK, **LONG})
    kafka.format()

    def go_on(client: RawClient, epoch: int, member: str) -> dict[str, Any]:
        """Another member comes, and the group is settled."""
        found(client, "g")
        group = describe(client)
        assert group.error_code == 0, group
        beat(client, member, 0)
        for _ in range(4):
            for each in describe(client).members:
                has = [
                    {"topic_id": row.topic_id, "partitions": row.partitions} for row in each.assignment.topic_partitions
                ]
                now = {"topic_partitions": has, "instance_id": each.instance_id}
                answer = beat(client, each.member_id, each.member_epoch, **now)
                if answer.assignment is not None:
                    rows_ = [
                        {"topic_id": row.topic_id, "partitions": row.partitions}
                        for row in answer.assignment.topic_partitions
                    ]
                    beat(
                        client,
                        each.member_id,
                        answer.member_epoch,
                        topic_partitions=rows_,
                        instance_id=each.instance_id,
                    )
        group = describe(client)
        assert (group.group_state, group.group_epoch) == ("Stable", epoch)
        commit(client, "g", {("t", 0): epoch}, member, group.group_epoch)
        return state(client)

    def state(client: RawClient) -> dict[str, Any]:
        found(client, "g")
        found(client, "h")
        group, other = describe(client), describe(client, "h")
        return {
            "epochs": (group.group_epoch, group.assignment_epoch, other.group_epoch),
            "members": sorted(map(repr, (*group.members, *other.members))),
            "offsets": fetched(client, "g", None),
        }

    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0, instance_id="i")
        beat(client, "r", 0, group="h", subscribed_topic_names=None, subscribed_topic_regex="t|x")
        # Its expression is resolved beside.
        until(lambda: describe(client, "h").group_epoch == 2)
        beat(client, "r", 1, group="h")
        before = go_on(client, 3, "b")
    for turn in range(2):
        with CatalogueBroker([log_dir], settings) as ours, ours.connect() as client:
            assert state(client) == before
            before = go_on(client, 4 + 2 * turn, f"c{turn}")
            assert told(beat(client, "r", 2, group="h"))[0] == 2
        with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
            assert state(client) == before
            before = go_on(client, 5 + 2 * turn, f"d{turn}")
            assert told(beat(client, "r", 2, group="h"))[0] == 2
    assert not [line for line in kafka.complaints() if "GroupCoordinator" in line or "offsets" in line]


def test_kafkas_dump_understands_our_records(log_dir: Path, oracle_classpath: str) -> None:
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        beat(client, "a", 0, subscribed_topic_regex="t.*")
        until(lambda: describe(client).group_epoch == 2)
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
    for number in (3, 5, 6, 7, 8, 16):
        assert f'"type":"{number}"' in dump or f'"type":{number}' in dump, dump
    assert "Error" not in dump
