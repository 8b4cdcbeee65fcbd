"""Real clients: librdkafka (confluent-kafka), kafka-python and Kafka's own console tools, against a broker in this process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.log import Origin
from tests.workers.broker.batches import batch
from tests.workers.broker.harness import InProcessBroker
from tests.workers.broker.test_partitions import _clean, _prepare, _write_segments

_SECONDS = 60.0
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Message = tuple[int, bytes | None, bytes | None]


# ---- librdkafka


@pytest.fixture
def librdkafka() -> Any:
    return pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def _read_with_librdkafka(
    librdkafka: Any, broker: InProcessBroker, topic: str, partition: int = 0, **settings: Any
) -> list[Message]:
    """From the beginning to what is the end then."""
    consumer = librdkafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **settings,
        }
    )
    found: list[Message] = []
    try:
        consumer.assign([librdkafka.TopicPartition(topic, partition, librdkafka.OFFSET_BEGINNING)])
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 1.0):
                if message.error() is None:
                    found.append((message.offset(), message.key(), message.value()))
                elif message.error().code() == librdkafka.KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise AssertionError(message.error())
        raise AssertionError(f"the end was not reached: {len(found)} messages")
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", _CODECS)
def test_librdkafka_writes_and_reads_every_codec(broker: InProcessBroker, librdkafka: Any, codec: str) -> None:
    broker.create("t", 2)
    errors: list[Any] = []
    producer = librdkafka.Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 5})
    sent: list[tuple[bytes | None, bytes | None]] = []

    def told(error: Any, _: Any) -> None:
        errors.append(error)

    for number in range(1000):
        key = None if number % 7 == 0 else b"key %d" % number
        value = b"" if number % 11 == 0 else None if number % 13 == 0 else b"value %d " % number * 20
        sent.append((key, value))
        headers = {"h": b"%d" % number, "n": None}
        producer.produce("t", key=key, value=value, partition=0, headers=headers, on_delivery=told)
    assert producer.flush(_SECONDS) == 0
    assert errors == [None] * 1000
    found = _read_with_librdkafka(librdkafka, broker, "t")
    assert [(key, value) for _, key, value in found] == sent
    assert [offset for offset, _, _ in found] == list(range(1000))
    assert _read_with_librdkafka(librdkafka, broker, "t", 1) == []


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_librdkafka_with_all_acks(broker: InProcessBroker, librdkafka: Any, acks: int) -> None:
    broker.create("t")
    producer = librdkafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": acks})
    for number in range(200):
        producer.produce("t", b"%d" % number)
    assert producer.flush(_SECONDS) == 0
    del producer
    deadline = time.monotonic() + _SECONDS
    found: list[Message] = []
    while len(found) < 200 and time.monotonic() < deadline:  # without acks they arrive when they arrive
        found = _read_with_librdkafka(librdkafka, broker, "t")
    assert [value for _, _, value in found] == [b"%d" % number for number in range(200)]


def test_librdkafka_sends_large_messages_and_is_told_what_is_too_large(
    broker: InProcessBroker, librdkafka: Any
) -> None:
    broker.create("t")
    outcomes: list[Any] = []
    settings = {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 5_000_000}
    producer = librdkafka.Producer(settings)
    for size in (900_000, 2_000_000, 10):
        producer.produce("t", b"x" * size, on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(_SECONDS)
    assert [None if error is None else error.code() for error in outcomes] == [None, 10, None]
    assert [len(value or b"") for _, _, value in _read_with_librdkafka(librdkafka, broker, "t")] == [900_000, 10]


def test_librdkafka_is_told_that_a_key_is_missing(broker: InProcessBroker, librdkafka: Any) -> None:
    broker.create("t", cleanup_policy="compact")
    outcomes: list[Any] = []
    producer = librdkafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"keyless", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(_SECONDS) == 0
    assert outcomes[0].code() == librdkafka.KafkaError.INVALID_RECORD


def test_librdkafka_reads_over_gaps_and_open_to_the_end(broker: InProcessBroker, librdkafka: Any) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    before = _read_with_librdkafka(librdkafka, broker, "t")
    assert [answer.accepted for answer in _clean(broker, _prepare(broker))] == [True]
    after = _read_with_librdkafka(librdkafka, broker, "t")
    latest = {key: (offset, key, value) for offset, key, value in before}
    assert after == sorted(latest.values())
    assert after[-1][0] == 54


def test_librdkafka_reads_what_is_committed(broker: InProcessBroker, librdkafka: Any) -> None:
    broker.create("t")
    _transactions(broker)
    assert [value for _, _, value in _read_with_librdkafka(librdkafka, broker, "t")] == [b"yes", b"plain"]
    everything = _read_with_librdkafka(librdkafka, broker, "t", **{"isolation.level": "read_uncommitted"})
    assert [value for _, _, value in everything] == [b"yes", b"no", b"plain", b"open"]


def _transactions(broker: InProcessBroker) -> None:
    """Offsets: 0 committed, 1 its marker, 2 aborted … the last one is open."""

    async def write(context: Any) -> None:
        context.partitions.verify_transactions(False)  # there is no coordinator here
        partition = context.partitions.get("t", 0)

        async def data(producer_id: int, value: bytes) -> None:
            records = batch([value], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
            await partition.append(bytearray(records), origin=Origin.COORDINATOR)

        await data(1, b"yes")
        await partition.append_marker("commit", 1, 0, coordinator_epoch=0)
        await data(2, b"no")
        await partition.append_marker("abort", 2, 0, coordinator_epoch=0)
        await partition.append(bytearray(batch([b"plain"])))
        await data(3, b"open")

    broker.in_loop(write)


# ---- kafka-python


@pytest.fixture
def kafka_python() -> Any:
    return pytest.importorskip("kafka", reason="kafka-python is not installed")


def _read_with_kafka_python(kafka: Any, broker: InProcessBroker, topic: str, count: int) -> list[Message]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=None, auto_offset_reset="none", consumer_timeout_ms=30_000
    )
    found: list[Message] = []
    try:
        assignment = kafka.TopicPartition(topic, 0)
        consumer.assign([assignment])
        consumer.seek(assignment, 0)
        while len(found) < count:
            for records in consumer.poll(1000).values():
                found += [(record.offset, record.key, record.value) for record in records]
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_python_makes_a_topic_writes_and_reads(
    broker: InProcessBroker, kafka_python: Any, codec: str | None
) -> None:
    # What is sent again, as the topic is only being made, comes behind what was sent meanwhile, were there such.
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=codec,
        enable_idempotence=False,
        acks="all",
        max_in_flight_requests_per_connection=1,
    )
    try:
        sent = [producer.send("made", key=b"k%d" % number, value=b"v" * number) for number in range(300)]
        assert [future.get(_SECONDS).offset for future in sent] == list(range(300))
    finally:
        producer.close()
    found = _read_with_kafka_python(kafka_python, broker, "made", 300)
    assert found == [(number, b"k%d" % number, b"v" * number) for number in range(300)]


def test_kafka_python_reads_over_gaps(broker: InProcessBroker, kafka_python: Any) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    _clean(broker, _prepare(broker))
    found = _read_with_kafka_python(kafka_python, broker, "t", 15)
    assert len({key for _, key, _ in found}) == 15
    assert found[-1][0] == 54


# ---- Kafka's console tools


class Tools:
    """Kafka's command-line tools on this broker."""

    def __init__(self, classpath: str, broker: InProcessBroker) -> None:
        self._classpath, self._broker = classpath, broker

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """Standard output of a tool that has to succeed."""
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        done = subprocess.run(
            [*java, f"org.apache.kafka.tools.{tool}", "--bootstrap-server", self._broker.bootstrap, *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture
def tools(oracle_classpath: str, broker: InProcessBroker) -> Iterator[Tools]:
    yield Tools(oracle_classpath, broker)


@pytest.mark.kafka
@pytest.mark.parametrize("codec", _CODECS)
def test_kafkas_console_tools_write_and_read(broker: InProcessBroker, tools: Tools, codec: str) -> None:
    broker.create("t", cleanup_policy="compact")
    lines = [f"user{number % 20}:value {number}" for number in range(500)]
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.run(
        "ConsoleProducer", "--topic", "t", *keyed, "--compression-codec", codec,
        "--command-property", "enable.idempotence=false", given="".join(f"{line}\n" for line in lines),
    )  # fmt: skip
    shown = tools.run(
        "consumer.ConsoleConsumer", "--topic", "t", "--partition", "0", "--offset", "earliest", "--max-messages", "500",
        "--timeout-ms", "60000", "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
    )  # fmt: skip
    assert shown.splitlines() == lines


@pytest.mark.kafka
def test_kafkas_tools_ask_for_offsets_records_and_log_dirs(
    broker: InProcessBroker, tools: Tools, fast_dir: Path
) -> None:
    broker.create("t", 2)
    tools.run(
        "ConsoleProducer", "--topic", "t", "--command-property", "enable.idempotence=false",
        "--command-property", "partitioner.ignore.keys=true", given="a\nb\nc\n",
    )  # fmt: skip
    ends = dict(line.rsplit(":", 1) for line in tools.run("GetOffsetShell", "--topic", "t").split())
    assert sorted(ends) == ["t:0", "t:1"]
    assert sum(map(int, ends.values())) == 3
    partition = next(name.split(":")[1] for name, end in ends.items() if end != "0")
    description = fast_dir / "delete.json"
    description.write_text(f'{{"partitions": [{{"topic": "t", "partition": {partition}, "offset": 1}}], "version": 1}}')
    deleted = tools.run("DeleteRecordsCommand", "--offset-json-file", str(description))
    assert "low_watermark: 1" in deleted
    earliest = tools.run("GetOffsetShell", "--topic-partitions", f"t:{partition}", "--time", "earliest")
    assert earliest.strip() == f"t:{partition}:1"
    assert '"partition":"t-0"' in tools.run("LogDirsCommand", "--describe")


@pytest.mark.kafka
def test_kafkas_consumer_reads_what_is_committed_and_over_gaps(broker: InProcessBroker, tools: Tools) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    assert _clean(broker, _prepare(broker))
    _transactions(broker)
    read = (
        "consumer.ConsoleConsumer",
        "--topic",
        "t",
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--timeout-ms",
        "60000",
    )
    committed = tools.run(*read, "--max-messages", "17", "--isolation-level", "read_committed").splitlines()
    assert len(committed) == 17
    assert committed[-2:] == ["yes", "plain"]
    everything = tools.run(*read, "--max-messages", "19").splitlines()
    assert everything[-4:] == ["yes", "no", "plain", "open"]
