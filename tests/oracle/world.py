"""What there ought to be in the log dirs, whoever serves them: topics, records, offsets, producers, settings.

A test takes a `World` from one broker to the next. At each it looks at everything (`verify`), then changes something of
everything (`change`), by the same client whichever broker answers, and writes down what it did.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.workers.broker.harness import RawClient

T = TypeVar("T")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Nothing here takes as long.
PATIENCE_SECONDS = 60.0
DAY_MS = 86_400_000
_STEP_MS = 3_600_000
_QUIET: dict[str, str | int | float | bool] = {
    "log_level": 0,
    "socket.timeout.ms": 20_000,
    "broker.address.family": "v4",
}
_SOON = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)

#: Kinds of resources that have settings, and sources of a setting's value.
TOPIC, BROKER = 2, 4
NODE = "1"
_SOURCE_TOPIC, _SOURCE_NODE, _SOURCE_CLUSTER = 1, 2, 3

Place = tuple[str, int]


def until(ask: Callable[[], T], what: str) -> T:
    """Asks again and again until the answer is true; the test fails when it never is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.05)
    return answer


def insist(ask: Callable[[], T]) -> T:
    """What is asked, once the broker has got over what passes by itself."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _SOON or time.monotonic() > end:
                raise
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was written. `timestamp`: ms."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


@dataclass(slots=True)
class Topic:
    """A topic that is there. `configs`: those of its own."""

    topic_id: str
    partitions: int
    configs: dict[str, str]


@dataclass(slots=True)
class RawProducer:
    """An idempotent producer that goes on where it was, over the heads of brokers: id, epoch and sequence are its own."""

    producer_id: int
    epoch: int
    sequence: int = 0
    #: Its last batch, and the offset that it got.
    last: bytes = b""
    last_offset: int = -1


@dataclass
class World:
    """See the module. Begins as an empty cluster."""

    topics: dict[str, Topic] = field(default_factory=dict)
    records: dict[Place, dict[int, Stored]] = field(default_factory=lambda: defaultdict(dict))
    #: Offsets that hold something no reader of committed records sees: aborted records, markers.
    hidden: dict[Place, set[int]] = field(default_factory=lambda: defaultdict(set))
    #: Where a log begins.
    starts: dict[Place, int] = field(default_factory=dict)
    #: group to partition to (offset, metadata).
    offsets: dict[str, dict[Place, tuple[int, str]]] = field(default_factory=dict)
    #: Dynamic settings of the node and of all ("").
    broker_configs: dict[str, dict[str, str]] = field(default_factory=lambda: {"": {}, NODE: {}})
    producer: RawProducer | None = None
    stage: int = 0
    #: Time of records whose segments are to be closed: an hour further with each.
    old_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 - 5 * DAY_MS)


class Visit:
    """`with Visit(world, bootstrap) as visit:` the clients of one stay at a broker."""

    def __init__(self, world: World, bootstrap: str) -> None:
        self.world = world
        self.bootstrap = bootstrap
        self._options: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, **_QUIET}
        self._producers: dict[str, Producer] = {}

    def __enter__(self) -> Visit:
        self.admin = AdminClient(self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._producers.clear()
        del self.admin

    # ---- looking

    def verify(self) -> None:
        """Everything that the world holds is there, and nothing else."""
        self._verify_topics()
        self._verify_configs()
        self._verify_starts()
        self._verify_records()
        self._verify_offsets()

    def _verify_topics(self) -> None:
        world = self.world

        def look() -> dict[str, tuple[str, int, set[int]]]:
            listed = [name for name in self.admin.list_topics(timeout=20).topics if not name.startswith("__")]
            assert sorted(listed) == sorted(world.topics)
            described = self.admin.describe_topics(TopicCollection(listed))
            found = {name: insist(future.result) for name, future in described.items()}
            return {
                name: (
                    str(topic.topic_id),
                    len(topic.partitions),
                    {-1 if part.leader is None else part.leader.id for part in topic.partitions},
                )
                for name, topic in found.items()
            }

        expected = {name: (topic.topic_id, topic.partitions, {1}) for name, topic in world.topics.items()}
        # A broker that listens may still be taking up its partitions.
        until(lambda: not world.topics or {-1} not in [row[2] for row in look().values()], "leaders")
        assert look() == expected

    def _verify_configs(self) -> None:
        for name, topic in self.world.topics.items():
            found = {
                key: value for key, (value, source) in self.configs(TOPIC, name).items() if source == _SOURCE_TOPIC
            }
            assert found == topic.configs, f"{name}: {found}"
        for name, source in (("", _SOURCE_CLUSTER), (NODE, _SOURCE_NODE)):
            found = {key: value for key, (value, of) in self.configs(BROKER, name).items() if of == source}
            # A cluster with ELR has a minimum of its own from its first start on.
            found.pop("min.insync.replicas", None)
            assert found == self.world.broker_configs[name], f"{name!r}: {found}"

    def configs(self, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
        """Name to value and source."""
        body = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
        with self.raw() as client:
            (answer,) = client.ask(32, 4, body).results
        assert not answer.error_code, answer
        return {entry.name: (entry.value, int(entry.config_source)) for entry in answer.configs}

    def raw(self) -> RawClient:
        """A connection that sends what it is told."""
        return RawClient(int(self.bootstrap.rpartition(":")[2]))

    def _verify_starts(self) -> None:
        if self.world.starts:
            assert self.starts(self.world.starts) == self.world.starts

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset of each log."""
        return self._list_offsets(places, OffsetSpec.earliest())

    def _list_offsets(self, places: Iterable[Place], spec: OffsetSpec, **more: Any) -> dict[Place, int]:
        def ask() -> dict[Place, int]:
            asked = {TopicPartition(*place): spec for place in places}
            futures = self.admin.list_offsets(asked, request_timeout=20, **more)
            return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}

        return insist(ask)

    def _verify_records(self) -> None:
        world = self.world
        places = [(name, number) for name, topic in world.topics.items() for number in range(topic.partitions)]
        committed = self.read(places, "read_committed")
        for place in places:
            expected = {
                offset: record
                for offset, record in world.records[place].items()
                if offset >= world.starts.get(place, 0) and offset not in world.hidden[place]
            }
            found = committed[place]
            if "compact" in world.topics[place[0]].configs.get("cleanup.policy", ""):
                # A clean keeps at least the last of each key, as it is, and nothing that was not written.
                assert found.items() <= expected.items(), place
                assert _latest(found) == _latest(expected), place
            else:
                assert found == expected, place

    def read(self, places: Iterable[Place], isolation: str) -> dict[Place, dict[int, Stored]]:
        """All records of partitions, by offset, to their ends."""
        found: dict[Place, dict[int, Stored]] = {place: {} for place in places}
        consumer = Consumer(
            {
                **self._options,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
            }
        )
        try:
            consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in found])
            ended: set[Place] = set()
            end = time.monotonic() + PATIENCE_SECONDS
            while len(ended) < len(found):
                assert time.monotonic() < end, f"the ends of {set(found) - ended} were not reached"
                for message in consumer.consume(1000, timeout=0.2):
                    self._take(message, found, ended)
        finally:
            consumer.close()
        return found

    def _take(self, message: Message, found: dict[Place, dict[int, Stored]], ended: set[Place]) -> None:
        error = message.error()
        topic, partition = message.topic(), message.partition()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                assert topic is not None and partition is not None
                ended.add((topic, partition))
            elif error.code() not in _SOON:
                raise KafkaException(error)
            return
        assert topic is not None and partition is not None
        offset = message.offset()
        assert offset is not None
        headers: Any = message.headers() or ()
        found[topic, partition][offset] = Stored(
            message.key(),
            message.value(),
            tuple(headers),
            message.timestamp()[1],
        )

    def _verify_offsets(self) -> None:
        for group, expected in self.world.offsets.items():
            assert self.committed(group) == expected, group

    def committed(self, group: str) -> dict[Place, tuple[int, str]]:
        """A group's committed offsets, with what was written to them."""

        def ask() -> dict[Place, tuple[int, str]]:
            (future,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
            rows = future.result(20).topic_partitions
            for row in rows:
                if row.error is not None:
                    raise KafkaException(row.error)
            return {(row.topic, row.partition): (row.offset, row.metadata or "") for row in rows}

        return insist(ask)

    # ---- changing

    def create(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Makes a topic. `configs`: settings with underscores for dots."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        made = NewTopic(name, partitions, 1, config=settings)
        insist(lambda: self.admin.create_topics([made])[name].result(20))
        described = insist(lambda: self.admin.describe_topics(TopicCollection([name]))[name].result(20))
        self.world.topics[name] = Topic(str(described.topic_id), partitions, settings)

    def delete(self, name: str) -> None:
        insist(lambda: self.admin.delete_topics([name])[name].result(20))
        topic = self.world.topics.pop(name)
        for number in range(topic.partitions):
            for known in (self.world.records, self.world.starts, self.world.hidden):
                known.pop((name, number), None)

    def grow(self, name: str, partitions: int) -> None:
        insist(lambda: self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(20))
        self.world.topics[name].partitions = partitions

    def alter(self, kind: int, name: str, **changes: str | None) -> None:
        """Sets settings (underscores for dots), or deletes those that are None; of a topic, of the node, or of all ("")."""
        given = {key.replace("_", "."): value for key, value in changes.items()}
        rows = [
            {"name": key, "value": value, "config_operation": 1 if value is None else 0} for key, value in given.items()
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        with self.raw() as client:
            (answer,) = client.ask(44, 1, {"resources": [resource], "validate_only": False}).responses
        assert not answer.error_code, answer
        known = self.world.topics[name].configs if kind == TOPIC else self.world.broker_configs[name]
        for key, value in given.items():
            known.pop(key, None)
            if value is not None:
                known[key] = value

    def produce(
        self,
        topic: str,
        records: Mapping[int, Iterable[Stored]],
        codec: str = "none",
        transaction: str | None = None,
        commit: bool = True,
        apart: bool = False,
        leave_open: bool = False,
    ) -> None:
        """Partition to the records that it gets, by one idempotent producer; in one transaction where that has a name.

        `apart`: a batch for each. `leave_open`: the transaction is not ended; whoever takes its name next aborts it.
        """
        producer = self._producer(codec, transaction)
        # What it knows of the topic may be older than the partition.
        until(lambda: set(records) <= set(producer.list_topics(topic, 20).topics[topic].partitions), f"all of {topic}")
        written: list[tuple[Place, int, Stored]] = []
        if transaction is not None:
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
        for number, rows in records.items():
            for stored in rows:

                def told(
                    error: KafkaError | None, message: Message, number: int = number, stored: Stored = stored
                ) -> None:
                    assert error is None, error
                    offset = message.offset()
                    assert offset is not None
                    written.append(((topic, number), offset, stored))

                insist(
                    lambda number=number, stored=stored, told=told: producer.produce(  # type: ignore[misc]
                        topic,
                        value=stored.value,
                        key=stored.key,
                        partition=number,
                        on_delivery=told,
                        timestamp=stored.timestamp,
                        headers=list(stored.headers),
                    )
                )
                if apart:
                    assert producer.flush(PATIENCE_SECONDS) == 0
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert len(written) == sum(map(len, map(list, records.values())))
        if transaction is not None:
            if leave_open:
                pass
            elif commit:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
        for place, offset, stored in written:
            self.world.records[place][offset] = stored
            if transaction is not None and (leave_open or not commit):
                self.world.hidden[place].add(offset)

    def _producer(self, codec: str, transaction: str | None) -> Producer:
        """One for each codec, which lasts as long as the visit; each for a transaction."""
        options: dict[str, Any] = {
            **self._options,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
        if transaction is not None:
            return Producer({**options, "transactional.id": transaction})
        if codec not in self._producers:
            self._producers[codec] = Producer(options)
        return self._producers[codec]

    def produce_raw(self, topic: str) -> None:
        """One more batch of the producer that outlives brokers; its last one again is known as sent already."""
        with self.raw() as client:
            producer = self.world.producer
            if producer is None:
                ids = until(lambda: self._producer_id(client), "a producer id")
                producer = self.world.producer = RawProducer(ids.producer_id, ids.producer_epoch)
            elif producer.last:
                assert self._send_raw(client, topic, producer.last) == (0, producer.last_offset)
            now_ms = time.time_ns() // 1_000_000
            rows = [Record(number, now_ms, b"seq", b"%d" % (producer.sequence + number)) for number in range(3)]
            producer.last = build_batch(
                rows,
                base_offset=0,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
            )
            code, producer.last_offset = self._send_raw(client, topic, producer.last)
            assert code == 0, code
            for row in rows:
                self.world.records[topic, 0][producer.last_offset + row.offset] = Stored(
                    row.key, row.value, (), row.timestamp
                )
            producer.sequence += len(rows)

    @staticmethod
    def _producer_id(client: RawClient) -> Any:
        answer = client.ask(22, 5, {"transactional_id": None, "transaction_timeout": 1000})
        return answer if not answer.error_code else None

    def _send_raw(self, client: RawClient, topic: str, batch: bytes) -> tuple[int, int]:
        """(error, base offset), once the partition leads."""
        row = {"index": 0, "records": batch}
        body = {"acks": -1, "timeout": 20_000, "topic_data": [{"name": topic, "partition_data": [row]}]}
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            (answer,) = client.ask(0, 9, body).responses[0].partition_responses
            if int(answer.error_code) not in (3, 5, 6) or time.monotonic() > end:
                return int(answer.error_code), answer.base_offset
            time.sleep(0.05)

    def commit(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commits offsets of a group without members."""
        consumer = Consumer({**self._options, "group.id": group, "enable.auto.commit": False})
        try:
            rows = [
                TopicPartition(topic, number, offset, metadata)
                for (topic, number), (offset, metadata) in offsets.items()
            ]
            for row in insist(lambda: consumer.commit(offsets=rows, asynchronous=False)) or ():
                assert row.error is None, row.error
        finally:
            consumer.close()
        self.world.offsets.setdefault(group, {}).update(offsets)

    def join(self, group: str, topic: str, protocol: str) -> None:
        """One member of a group reads all of a topic to its end, commits that, and leaves. `protocol`: classic, consumer."""
        options: dict[str, Any] = {
            **self._options, "group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "enable.partition.eof": True,
        }  # fmt: skip
        consumer = Consumer(options)
        partitions, ended = self.world.topics[topic].partitions, set()
        try:
            consumer.subscribe([topic])

            def read() -> bool:
                for message in consumer.consume(1000, timeout=0.2):
                    if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                return len(ended) == partitions

            until(read, f"the ends of {topic} for a member of {group}")
            rows = insist(lambda: consumer.commit(asynchronous=False)) or ()
        finally:
            consumer.close()
        known = self.world.offsets.setdefault(group, {})
        for row in rows:
            assert row.error is None, row.error
            known[row.topic, row.partition] = (row.offset, known.get((row.topic, row.partition), (0, ""))[1])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        where = TopicPartition(topic, partition, before)
        (future,) = insist(lambda: self.admin.delete_records([where])).values()
        assert insist(lambda: future.result(20)).low_watermark == before
        self.world.starts[topic, partition] = before

    def delete_group(self, group: str) -> None:
        insist(lambda: self.admin.delete_consumer_groups([group])[group].result(20))
        del self.world.offsets[group]

    def last_offset(self, place: Place) -> int:
        """Log end offset of a partition."""
        return self._list_offsets([place], OffsetSpec.latest(), isolation_level=IsolationLevel.READ_UNCOMMITTED)[place]

    # ---- records with meaning

    def rows(self, codec: str, count: int = 4) -> list[Stored]:
        """Records of every shape."""
        stage, now_ms = self.world.stage, time.time_ns() // 1_000_000
        shapes: tuple[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], ...] = (
            (None, b"no key", ()),
            (b"", b"", (("empty", b""),)),
            (b"no value", None, (("null", None), ("twice", b"1"), ("twice", b"2"))),
            (f"{codec}-{stage}".encode(), b"x" * 5000, (("stage", b"%d" % stage),)),
        )
        return [Stored(*shapes[number % 4], now_ms + number) for number in range(count)]

    def closing_rows(self, keys: int, count: int) -> list[Stored]:
        """Records an hour apart: each closes the segment before, where segment.ms is less."""
        made = []
        for number in range(count):
            self.world.old_ms += _STEP_MS
            key = f"key-{number % keys}".encode()
            made.append(Stored(key, f"{self.world.stage}-{number}".encode(), (), self.world.old_ms))
        return made


def _latest(records: Mapping[int, Stored]) -> dict[bytes | None, tuple[int, Stored]]:
    """Key to its last record; keys whose last record is a tombstone are not there."""
    found = {record.key: (offset, record) for offset, record in sorted(records.items())}
    return {key: entry for key, entry in found.items() if entry[1].value is not None}
