"""What there ought to be in the log dirs, whoever serves them: topics, records, offsets, producers, settings.

A test takes a `World` from one broker to the next. At each a `Looker` looks at everything, by the same clients whichever
broker answers; what changes it is in tests.oracle.visit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)

from tests.workers.broker.harness import RawClient

T = TypeVar("T")

#: Nothing here takes as long.
PATIENCE_SECONDS = 60.0
DAY_MS = 86_400_000
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
TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
NODE = "1"
_SOURCE_TOPIC, _SOURCE_NODE, _SOURCE_CLUSTER = 1, 2, 3
_SOURCE_OTHER = {METRICS: 7, GROUP: 8}

Place = tuple[str, int]


def until(ask: Callable[[], T], what: str) -> T:
    """Asks again and again until the answer is true; the test fails when it never is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.05)
    return answer


def settle(look: Callable[[], T], expected: T) -> None:
    """Changes reach Kafka's brokers a little later: what is seen has to be what is expected in the end."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) != expected and time.monotonic() < end:
        time.sleep(0.05)
    assert found == expected, f"found {found}, expected {expected}"


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
    #: Kind and name of a group or a subscription to metrics to its own settings.
    others: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    #: (user, key) to limit, and user to (mechanism, iterations).
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    credentials: dict[str, tuple[int, int]] = field(default_factory=dict)
    producer: RawProducer | None = None
    stage: int = 0
    #: Time of records whose segments are to be closed: an hour further with each.
    old_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 - 5 * DAY_MS)


class Looker:
    """`with Looker(world, bootstrap) as looker:` clients of one broker that look at everything."""

    def __init__(self, world: World, bootstrap: str) -> None:
        self.world = world
        self.bootstrap = bootstrap
        self._options: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, **_QUIET}

    def __enter__(self) -> Self:
        self.admin = AdminClient(self._options)
        return self

    def __exit__(self, *_: object) -> None:
        del self.admin

    # ---- looking

    def verify(self) -> None:
        """Everything that the world holds is there, and nothing else."""
        self._verify_topics()
        self._verify_configs()
        self._verify_clients()
        self._verify_starts()
        self._verify_records()
        self._verify_offsets()

    def _verify_topics(self) -> None:
        def look() -> dict[str, tuple[str, int, set[int]]]:
            listed = [
                name for name in self.admin.list_topics(timeout=PATIENCE_SECONDS).topics if not name.startswith("__")
            ]
            if not listed:
                return {}
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

        topics = self.world.topics.items()
        settle(look, {name: (topic.topic_id, topic.partitions, {1}) for name, topic in topics})

    def _verify_configs(self) -> None:
        world = self.world
        wanted: dict[tuple[int, str], tuple[int, dict[str, str]]] = {
            **{(TOPIC, name): (_SOURCE_TOPIC, topic.configs) for name, topic in world.topics.items()},
            **{(kind, name): (_SOURCE_OTHER[kind], configs) for (kind, name), configs in world.others.items()},
            (BROKER, ""): (_SOURCE_CLUSTER, world.broker_configs[""]),
            (BROKER, NODE): (_SOURCE_NODE, world.broker_configs[NODE]),
        }

        def look() -> dict[tuple[int, str], dict[str, str | None]]:
            return {
                (kind, name): {
                    key: value
                    for key, (value, of) in self.configs(kind, name).items()
                    # A cluster with ELR has a minimum of its own from its first start on.
                    if of == source and (kind, key) != (BROKER, "min.insync.replicas")
                }
                for (kind, name), (source, _) in wanted.items()
            }

        settle(look, {key: dict(configs) for key, (_, configs) in wanted.items()})

    def _verify_clients(self) -> None:
        def look() -> tuple[dict[tuple[str, str], float], dict[str, list[tuple[int, int]]]]:
            with self.raw() as client:
                entries = client.ask(48, 1, {"components": [], "strict": False}).entries
                results = client.ask(50, 0, {"users": None}).results
            limits = {(each.entity[0].entity_name, value.key): value.value for each in entries for value in each.values}
            return limits, {
                each.user: [(int(info.mechanism), info.iterations) for info in each.credential_infos]
                for each in results
            }

        settle(look, (self.world.quotas, {user: [each] for user, each in self.world.credentials.items()}))

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
            futures = self.admin.list_offsets(asked, request_timeout=PATIENCE_SECONDS, **more)
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
            rows = future.result(PATIENCE_SECONDS).topic_partitions
            for row in rows:
                if row.error is not None:
                    raise KafkaException(row.error)
            return {(row.topic, row.partition): (row.offset, row.metadata or "") for row in rows}

        return insist(ask)


def _latest(records: Mapping[int, Stored]) -> dict[bytes | None, tuple[int, Stored]]:
    """Key to its last record; keys whose last record is a tombstone are not there."""
    found = {record.key: (offset, record) for offset, record in sorted(records.items())}
    return {key: entry for key, entry in found.items() if entry[1].value is not None}
