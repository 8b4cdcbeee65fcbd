"""Kafka 4.4.0's own tools on groups and settings, its dump of our `__consumer_offsets`, and turns with a real broker."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.transactions.java_order import partition_of
from tests.oracle.broker import Broker
from tests.workers.broker.batches import batch
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import commit, create, fetched, found, stable

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PRODUCE = 0


class Tools:
    """Kafka's command line tools, at a broker."""

    def __init__(self, classpath: str, bootstrap: str) -> None:
        self._classpath, self._bootstrap = classpath, bootstrap

    def run(self, tool: str, *arguments: str, bootstrap: bool = True) -> str:
        """Standard output of a tool that has to succeed."""
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, tool]
        where = ["--bootstrap-server", self._bootstrap] if bootstrap else []
        done = subprocess.run(
            [*java, *where, *arguments], capture_output=True, text=True, check=False, timeout=120
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def groups(self, *arguments: str) -> str:
        return self.run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *arguments)

    def console(self, topic: str, group: str, count: int) -> list[str]:
        out = self.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--topic", topic, "--group", group, "--max-messages", str(count), "--timeout-ms", "60000"),
            *("--command-property", "auto.offset.reset=earliest"),
        )
        return sorted(out.split())


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir]) as running:
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


@pytest.fixture
def tools(oracle_classpath: str, broker: CatalogueBroker) -> Tools:
    return Tools(oracle_classpath, broker.bootstrap)


def produce(client: RawClient, topic: str, partition: int, *values: str) -> None:
    records = batch([value.encode() for value in values])
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    body = {"transactional_id": None, "acks": -1, "timeout": 9000, "topic_data": data}

    def produced() -> bool:
        error = int(client.ask(PRODUCE, 9, body).responses[0].partition_responses[0].error_code)
        assert error in (0, 3, 6)  # a topic that was made just now
        return error == 0

    until(produced)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def rows(table: str) -> list[list[str]]:
    """Lines of a tool's table, without its head."""
    return [line.split() for line in table.splitlines() if line.strip() and not line.startswith(("GROUP ", "Consumer"))]


def test_the_console_consumer_goes_on_in_its_group(client: RawClient, tools: Tools) -> None:
    create(client, "t", 2)
    produce(client, "t", 0, "a", "b")
    produce(client, "t", 1, "c")
    assert tools.console("t", "console", 3) == ["a", "b", "c"]
    produce(client, "t", 1, "d")
    assert tools.console("t", "console", 1) == ["d"]
    assert fetched(client, "console", None) == {("t", 0): 2, ("t", 1): 2}


def test_the_group_tool_lists_describes_resets_and_deletes(client: RawClient, tools: Tools) -> None:
    create(client, "t", 2)
    produce(client, "t", 0, "a", "b", "c")
    found(client, "g")
    # Version 0: one topic, two partitions, no user data.
    assignment = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + bytes(4) + b"\0\0\0\1" + b"\xff\xff\xff\xff"
    member = stable(client, "g", assignment)
    commit(client, "g", {("t", 0): 1}, member, 1)
    listed = tools.groups("--list", "--state")
    assert ["g", "Classic", "Stable"] in rows(listed) or ["g", "Stable"] in rows(listed), listed
    members = tools.groups("--describe", "--group", "g", "--members")
    (row,) = [row for row in rows(members) if row[0] == "g"]
    assert row[-1] == "2", members
    assert row[1] == member and row[2] == "/127.0.0.1"
    client.ask(13, 5, {"group_id": "g", "members": [{"member_id": member}]})
    (row,) = [row for row in rows(tools.groups("--describe", "--group", "g")) if row[0] == "g"]
    assert row[1:6] == ["t", "0", "1", "3", "2"]  # topic, partition, committed, end, lag
    tools.groups("--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--execute")
    assert fetched(client, "g", None) == {("t", 0): 3, ("t", 1): 0}
    tools.groups("--delete-offsets", "--group", "g", "--topic", "t:1")
    assert fetched(client, "g", None) == {("t", 0): 3}
    tools.groups("--delete", "--group", "g")
    assert client.ask(16, 5, {}).groups == ()


def test_the_topic_and_config_tools(client: RawClient, tools: Tools) -> None:
    topics, configs = "org.apache.kafka.tools.TopicCommand", "org.apache.kafka.tools.ConfigCommand"
    tools.run(topics, "--create", "--topic", "made", "--partitions", "2", "--config", "cleanup.policy=compact")
    tools.run(topics, "--alter", "--topic", "made", "--partitions", "3")
    described = tools.run(topics, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described and "cleanup.policy=compact" in described
    topic = ("--entity-type", "topics", "--entity-name", "made")
    tools.run(configs, "--alter", *topic, "--add-config", "retention.ms=5,segment.ms=99")
    tools.run(configs, "--alter", *topic, "--delete-config", "segment.ms")
    shown = tools.run(configs, "--describe", *topic)
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=5" in shown and "segment.ms" not in shown
    assert "{DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, DEFAULT_CONFIG:log.cleanup.policy=delete}" in shown
    everything = tools.run(configs, "--describe", "--all", *topic)
    assert len(re.findall(r"(?m)^\s+[a-z0-9.]+=", everything)) == 37
    broker = tools.run(configs, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert "offsets.topic.num.partitions=2" in broker
    tools.run(configs, "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=9")
    assert "log.retention.ms=9" in tools.run(configs, "--describe", "--entity-type", "brokers", "--entity-default")
    tools.run(topics, "--delete", "--topic", "made")
    assert "made" not in tools.run(topics, "--list")


def test_kafkas_dump_understands_our_records(log_dir: Path, oracle_classpath: str) -> None:
    with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        member = stable(client)
        commit(client, "g", {("t", 0): 7, ("t", 1): 8}, member, 1)
        client.ask(13, 5, {"group_id": "g", "members": [{"member_id": member}]})
        topic_id = broker.catalogue.image.topics["t"].topic_id
        assert client.ask(42, 2, {"groups_names": ["g"]}).results[0].error_code == 0
    segment = log_dir / f"{OFFSETS_TOPIC}-{partition_of('g', 2)}" / f"{0:020d}.log"
    dump = Tools(oracle_classpath, "").run(
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--deep-iteration",
        "--files",
        str(segment),
        bootstrap=False,
    )
    payloads = re.findall(r"key: (\{.*?\}) payload: (.*)", dump)
    assert len(payloads) == len(re.findall(r"(?m)^\| offset: ", dump)) == 8, dump
    kinds = [re.findall(r'"type":"?(\w+)', key)[0] for key, _ in payloads]
    assert kinds == ["2", "2", "1", "1", "2", "1", "1", "2"]
    assert "isvalid: false" not in dump
    text = dump.replace(" ", "")
    assert f'"topicId":"{topic_id}"' in text
    assert f'"memberId":"{member}"' in text and '"clientHost":"/127.0.0.1"' in text
    assert [payload for _, payload in payloads[-3:]] == ["<DELETE>"] * 3 or all(
        "null" in payload or "DELETE" in payload.upper() for _, payload in payloads[-3:]
    )


def test_kafka_and_we_take_turns_on_a_group(log_dir: Path, fast_dir: Path, oracle_classpath: str) -> None:
    confluent: Any = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    kafka = Broker(oracle_classpath, fast_dir / "kafka", [log_dir])
    kafka.format()
    with kafka:
        with RawClient(int(kafka.bootstrap.split(":")[1])) as client:
            until(lambda: int(client.ask(19, 7, _topics("t")).topics[0].error_code) in (0, 36))
            produce(client, "t", 0, "a", "b", "c")
        consumer = confluent.Consumer(_consumer(kafka.bootstrap, **{"group.instance.id": "static"}))
        consumer.subscribe(["t"])
        assert len(consumer.consume(3, 60)) == 3
        consumer.commit(asynchronous=False)
        consumer.close()  # a static member stays
    with CatalogueBroker([log_dir]) as ours:
        with ours.connect() as client:
            until(lambda: bool(fetched(client, "g", None, raw=True).error_code == 0))
            assert fetched(client, "g", None) == {("t", 0): 3}
            group = client.ask(15, 6, {"groups": ["g"]}).groups[0]
            assert (group.group_state, [each.group_instance_id for each in group.members]) == ("Stable", ["static"])
            produce(client, "t", 0, "d", "e")
        consumer = confluent.Consumer(_consumer(ours.bootstrap, **{"group.instance.id": "static"}))
        consumer.subscribe(["t"])
        assert [each.value() for each in consumer.consume(1, 60)] == [b"d"]
        consumer.commit(asynchronous=False)
        consumer.close()
    with kafka:
        consumer = confluent.Consumer(_consumer(kafka.bootstrap, **{"group.instance.id": "static"}))
        consumer.subscribe(["t"])
        assert [each.value() for each in consumer.consume(1, 60)] == [b"e"]
        consumer.commit(asynchronous=False)
        consumer.close()
        described = Tools(oracle_classpath, kafka.bootstrap).groups("--describe", "--group", "g")
        assert [row[1:6] for row in rows(described) if row[0] == "g"] == [["t", "0", "5", "5", "0"]]
    assert not [line for line in kafka.complaints() if "GroupCoordinator" in line or "offsets" in line]


def _topics(name: str) -> dict[str, Any]:
    return {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}], "timeout": 10_000}


def _consumer(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **more,
    }
