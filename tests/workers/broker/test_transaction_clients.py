"""Transactions of real clients: librdkafka, kafka-python, aiokafka, Kafka's own; and Kafka's command for those that hang."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.driver import Oracle, decode, encode
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.transactional import FEW, RawProducer, committed, described, group_offset, ready, settled

_SECONDS = 60.0


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    settings = {**FEW, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with CatalogueBroker([log_dir], settings) as running:
        with running.connect() as client:
            ready(client, {"t": 2, "source": 1})
        yield running


def seen(broker: CatalogueBroker, name: str = "tx") -> list[list[bytes | None]]:
    """What committed readers see of both partitions, once everything is decided."""
    with broker.connect() as client:
        settled(client, name)
        return [committed(client, "t", number) for number in range(2)]


def test_librdkafka(broker: CatalogueBroker) -> None:
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    where = {"bootstrap.servers": broker.bootstrap}
    consumer = kafka.Consumer({**where, "group.id": "g"})
    producer = kafka.Producer({**where, "transactional.id": "tx"})
    producer.init_transactions(_SECONDS)
    for turn in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("t", b"%d" % turn, partition=partition)
        offset = kafka.TopicPartition("source", 0, turn)
        producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), _SECONDS)
        (producer.abort_transaction if turn % 3 == 2 else producer.commit_transaction)(_SECONDS)
    assert seen(broker) == [[b"0", b"1", b"3", b"4"]] * 2
    assert consumer.committed([kafka.TopicPartition("source", 0)], _SECONDS)[0].offset == 4
    # Another one of the same id takes over.
    second = kafka.Producer({**where, "transactional.id": "tx"})
    second.init_transactions(_SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"late", partition=0)
    with pytest.raises(kafka.KafkaException) as caught:
        producer.commit_transaction(_SECONDS)
    assert caught.value.args[0].fatal()
    consumer.close()
    assert seen(broker) == [[b"0", b"1", b"3", b"4"]] * 2


def test_kafka_python(broker: CatalogueBroker) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="tx")
    try:
        producer.init_transactions()
        for turn in range(6):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("t", b"%d" % turn, partition=partition)
            offsets = {kafka.TopicPartition("source", 0): kafka.structs.OffsetAndMetadata(turn, "", -1)}
            producer.send_offsets_to_transaction(offsets, "g")
            (producer.abort_transaction if turn % 3 == 2 else producer.commit_transaction)()
    finally:
        producer.close()
    assert seen(broker) == [[b"0", b"1", b"3", b"4"]] * 2
    with broker.connect() as client:
        assert group_offset(client, "g", "source") == 4


def test_aiokafka(broker: CatalogueBroker) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")

    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="tx")
        await producer.start()
        try:
            for turn in range(6):
                await producer.begin_transaction()
                for partition in (0, 1):
                    await producer.send("t", b"%d" % turn, partition=partition)
                await producer.send_offsets_to_transaction({aiokafka.TopicPartition("source", 0): turn}, "g")
                await (producer.abort_transaction() if turn % 3 == 2 else producer.commit_transaction())
        finally:
            await producer.stop()

    asyncio.run(work())
    assert seen(broker) == [[b"0", b"1", b"3", b"4"]] * 2
    with broker.connect() as client:
        assert group_offset(client, "g", "source") == 4


# ---- Kafka's own


def _records(value: bytes) -> list[dict[str, Any]]:
    return [{"topic": "t", "partition": number, "key": None, "value": encode(value)} for number in range(2)]


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_kafkas_producer_and_consumer(broker: CatalogueBroker, oracle: Oracle) -> None:
    for turn in range(6):
        oracle.request(
            "produce", bootstrap=broker.bootstrap, config={"transactional.id": "tx"}, close=turn == 5,
            records=_records(b"%d" % turn), end="abort" if turn % 3 == 2 else "commit",
        )  # fmt: skip
    assert seen(broker) == [[b"0", b"1", b"3", b"4"]] * 2
    read = oracle.request("consume", bootstrap=broker.bootstrap, topics=["t"])["records"]
    assert sorted(str(decode(each["value"])) for each in read) == sorted(map(str, [b"0", b"1", b"3", b"4"] * 2))
    # It has taken a new epoch with each transaction.
    with broker.connect() as client:
        assert described(client, "tx").producer_epoch == 6


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_kafkas_consumer_and_producer_move_records_once(broker: CatalogueBroker, oracle: Oracle) -> None:
    records = [{"topic": "source", "partition": 0, "key": None, "value": encode(b"%d" % n)} for n in range(10)]
    oracle.request("produce", bootstrap=broker.bootstrap, records=records)
    move = {"bootstrap": broker.bootstrap, "topic": "source", "into": "t", "group": "g", "count": 10}
    for end in ("abort", "commit"):
        oracle.request("transform", **move, transactionalId="tx", end=end)
        found = oracle.request("groupOffsets", bootstrap=broker.bootstrap, group="g")["offsets"]
        assert found == ({"source-0": 10} if end == "commit" else {})
    assert seen(broker)[0] == [b"%d" % n for n in range(10)]


class Tool:
    """kafka-transactions.sh."""

    def __init__(self, classpath: str, broker: CatalogueBroker) -> None:
        self._classpath = classpath
        self._broker = broker

    def __call__(self, *arguments: str) -> list[list[str]]:
        """The lines of its table, without the heading."""
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "org.apache.kafka.tools.TransactionsCommand"]
        done = subprocess.run(
            [*command, "--bootstrap-server", self._broker.bootstrap, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split() for line in done.stdout.splitlines()[1:] if line.strip()]


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_kafkas_command_finds_and_ends_what_hangs(log_dir: Path, oracle_classpath: str) -> None:
    settings = {**FEW, "transaction.partition.verification.enable": "false"}
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as client:
        ready(client, {"t": 1})
        tool = Tool(oracle_classpath, broker)
        producer = RawProducer(client, "tx", False)
        assert producer.init() == 0
        assert producer.until_told(lambda: producer.add("t")) == 0
        assert producer.write("t", b"v") == 0
        rows = {row[0]: row[1:] for row in tool("list")}
        assert rows["tx"] == ["1", str(producer.producer_id), "Ongoing"]
        (row,) = tool("describe", "--transactional-id", "tx")
        assert row[0:5] == ["1", "tx", str(producer.producer_id), "0", "Ongoing"]
        assert row[-1] == "t-0"
        (row,) = tool("describe-producers", "--topic", "t", "--partition", "0")
        assert (row[0], row[1], row[3], row[-1]) == (str(producer.producer_id), "0", "0", "0")
        assert producer.end(True) == 0
        settled(client, "tx")
        # Nobody but the partition knows of this one.
        assert producer.write("t", b"hanging") == 0
        (row,) = tool("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
        assert row[:3] == ["t", "0", str(producer.producer_id)]
        start = str(broker.partition("t").log.producers.get(producer.producer_id).current_txn_first_offset)  # type: ignore[union-attr]
        assert tool("abort", "--topic", "t", "--partition", "0", "--start-offset", start) == []
        assert committed(client, "t") == [b"v"]
        # One that its coordinator knows of is ended by it.
        assert producer.send("t", b"open") == 0
        tool("forceTerminateTransaction", "--transactionalId", "tx")
        assert settled(client, "tx").transaction_state in ("CompleteAbort", "Empty")
        answer = broker.partition("t").log
        assert answer.last_stable_offset == answer.high_watermark
