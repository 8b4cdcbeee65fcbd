"""Consumers of kafka-python and librdkafka in groups: rebalances, commits, restarts from what was committed, administration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.broker.catalogue_harness import CatalogueBroker

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
confluent_admin = pytest.importorskip("confluent_kafka.admin")
kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
kafka_admin = pytest.importorskip("kafka.admin")
TopicPartition = pytest.importorskip("kafka.structs").TopicPartition

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka.*", "ignore::DeprecationWarning:importlib.*")

PARTITIONS = 4
WAIT_SECONDS = 60.0
#: A kafka-python consumer that leads before it knows the topic's partitions assigns none, and stays with that: it joins
#: before its metadata has come, and counts on a broker that lets a new group wait, as brokers do.
SETTINGS = {"group.initial.rebalance.delay.ms": 500}


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], SETTINGS) as running:
        topic = confluent_admin.NewTopic("events", PARTITIONS, 1, config={"cleanup.policy": "compact"})
        admin = confluent_admin.AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([topic])["events"].result(WAIT_SECONDS)
        yield running


def produce(broker: CatalogueBroker, first: int, end: int) -> None:
    """Idempotent, so that a producer id is asked for."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(first, end):
        producer.produce("events", key=f"k{number}", value=str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_SECONDS) == 0


class Confluent:
    """A librdkafka consumer."""

    def __init__(self, broker: CatalogueBroker, group: str = "g", **settings: Any) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                **settings,
            }
        )
        self._consumer.subscribe(["events"])

    def poll(self) -> list[int]:
        messages = self._consumer.consume(100, 0.05)
        assert all(message.error() is None for message in messages), [message.error() for message in messages]
        return [int(message.value()) for message in messages]

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Python:
    """A kafka-python consumer."""

    def __init__(self, broker: CatalogueBroker, group: str = "g", **settings: Any) -> None:
        self._consumer = kafka.KafkaConsumer(
            "events",
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            **settings,
        )

    def poll(self) -> list[int]:
        return [int(each.value) for batch in self._consumer.poll(50).values() for each in batch]

    def assigned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


Consumer = Confluent | Python
KINDS = pytest.mark.parametrize("kind", [Confluent, Python])


def until(done: Callable[[], bool], *consumers: Consumer) -> list[list[int]]:
    """Polls all of them until then; what each read."""
    read: list[list[int]] = [[] for _ in consumers]
    end = time.monotonic() + WAIT_SECONDS
    while not done():
        assert time.monotonic() < end, [consumer.assigned() for consumer in consumers]
        for consumer, found in zip(consumers, read, strict=True):
            found += consumer.poll()
    return read


def read_all(consumer: Consumer, count: int) -> list[int]:
    """That many records, and no more than that."""
    found: list[int] = []
    end = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count}"
        found += consumer.poll()
    return found


@KINDS
def test_a_consumer_goes_on_from_what_it_committed(
    kind: type[Consumer], broker: CatalogueBroker, log_dir: Path
) -> None:
    produce(broker, 0, 40)
    with contextlib.closing(kind(broker)) as consumer:
        assert sorted(read_all(consumer, 40)) == list(range(40))
        consumer.commit()
    produce(broker, 40, 60)
    with contextlib.closing(kind(broker)) as consumer:
        assert sorted(read_all(consumer, 20)) == list(range(40, 60))
    with contextlib.closing(kind(broker, group="other")) as consumer:
        assert sorted(read_all(consumer, 60)) == list(range(60))


@KINDS
def test_a_consumer_goes_on_after_the_broker_was_started_again(kind: type[Consumer], log_dir: Path) -> None:
    with CatalogueBroker([log_dir], SETTINGS) as broker:
        admin = kafka_admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([kafka_admin.NewTopic("events", num_partitions=PARTITIONS, replication_factor=1)])
        admin.close()
        produce(broker, 0, 20)
        with contextlib.closing(kind(broker)) as consumer:
            assert sorted(read_all(consumer, 20)) == list(range(20))
            consumer.commit()
    with CatalogueBroker([log_dir], SETTINGS) as broker:
        produce(broker, 20, 30)
        with contextlib.closing(kind(broker)) as consumer:
            assert sorted(read_all(consumer, 10)) == list(range(20, 30))


@KINDS
def test_two_consumers_share_and_one_takes_over(kind: type[Consumer], broker: CatalogueBroker) -> None:
    whole = set(range(PARTITIONS))
    with contextlib.closing(kind(broker)) as first:
        until(lambda: first.assigned() == whole, first)
        second = kind(broker)
        until(
            lambda: (
                len(first.assigned()) == len(second.assigned()) == 2 and first.assigned() | second.assigned() == whole
            ),
            first,
            second,
        )
        produce(broker, 0, 40)
        found: list[list[int]] = [[], []]
        end = time.monotonic() + WAIT_SECONDS
        while sum(map(len, found)) < 40:
            assert time.monotonic() < end
            found[0] += first.poll()
            found[1] += second.poll()
        assert {number % PARTITIONS for number in found[0]}.isdisjoint({number % PARTITIONS for number in found[1]})
        assert sorted(found[0] + found[1]) == list(range(40))
        first.commit()
        second.commit()
        second.close()
        until(lambda: first.assigned() == whole, first)
        produce(broker, 40, 60)
        assert sorted(read_all(first, 20)) == list(range(40, 60))


def test_consumers_of_two_libraries_share_a_group(broker: CatalogueBroker) -> None:
    """Both know range and roundrobin."""
    settings = {"partition.assignment.strategy": "range"}
    with contextlib.closing(Confluent(broker, **settings)) as first, contextlib.closing(Python(broker)) as second:
        until(lambda: len(first.assigned()) == len(second.assigned()) == 2, first, second)
        produce(broker, 0, 40)
        found: list[int] = []
        end = time.monotonic() + WAIT_SECONDS
        while len(found) < 40:
            assert time.monotonic() < end
            found += first.poll() + second.poll()
        assert sorted(found) == list(range(40))


def test_a_cooperative_group(broker: CatalogueBroker) -> None:
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    with (
        contextlib.closing(Confluent(broker, **settings)) as first,
        contextlib.closing(Confluent(broker, **settings)) as second,
    ):
        until(
            lambda: (
                len(first.assigned()) == len(second.assigned()) == 2
                and first.assigned() | second.assigned() == set(range(PARTITIONS))
            ),
            first,
            second,
        )


def test_a_static_member_comes_back_to_its_partitions(broker: CatalogueBroker) -> None:
    whole = set(range(PARTITIONS))
    first, second = (Confluent(broker, **{"group.instance.id": f"i{number}"}) for number in (1, 2))
    until(lambda: len(first.assigned()) == 2 and first.assigned() | second.assigned() == whole, first, second)
    before = second.assigned()
    second.close()  # a static member does not leave
    second = Confluent(broker, **{"group.instance.id": "i2"})
    until(lambda: second.assigned() == before, first, second)
    group = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    described = group.describe_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    assert {member.group_instance_id for member in described.members} == {"i1", "i2"}
    first.close()
    second.close()


def test_what_administrators_see_and_change(broker: CatalogueBroker) -> None:
    produce(broker, 0, 20)
    client = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    consumer = Confluent(broker)
    read_all(consumer, 20)
    consumer.commit()
    listed = client.list_consumer_groups().result(WAIT_SECONDS)
    assert [(each.group_id, each.state.name) for each in listed.valid] == [("g", "STABLE")]
    described = client.describe_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    (member,) = described.members
    assert {each.partition for each in member.assignment.topic_partitions} == set(range(PARTITIONS))
    request = [confluent_kafka.ConsumerGroupTopicPartitions("g")]
    offsets = client.list_consumer_group_offsets(request)["g"].result(WAIT_SECONDS)
    assert {each.partition: each.offset for each in offsets.topic_partitions} == dict.fromkeys(range(PARTITIONS), 5)
    with pytest.raises(confluent_kafka.KafkaException, match="not empty"):
        client.delete_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    consumer.close()
    back = [confluent_kafka.TopicPartition("events", 0, 2)]
    altered = [confluent_kafka.ConsumerGroupTopicPartitions("g", back)]
    client.alter_consumer_group_offsets(altered)["g"].result(WAIT_SECONDS)
    with contextlib.closing(Confluent(broker)) as consumer:
        assert sorted(read_all(consumer, 3)) == [8, 12, 16]
    client.delete_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    assert not client.list_consumer_groups().result(WAIT_SECONDS).valid
    client.delete_topics(["events"])["events"].result(WAIT_SECONDS)
    assert "events" not in client.list_topics(timeout=WAIT_SECONDS).topics


def test_kafka_pythons_administrator(broker: CatalogueBroker) -> None:
    admin = kafka_admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([kafka_admin.NewTopic("more", num_partitions=1, replication_factor=1)])
        admin.create_partitions({"more": kafka_admin.NewPartitions(total_count=3)})
        produce(broker, 0, 8)
        with contextlib.closing(Python(broker, group="p")) as consumer:
            read_all(consumer, 8)
            consumer.commit()
            assert "p" in str(admin.list_groups())
        assert "more" in admin.list_topics()
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResourceType.TOPIC, "events")
        assert "compact" in str(admin.describe_configs([resource]))
        assert TopicPartition("events", 0) in _offsets(admin, "p")
        admin.delete_topics(["more"])
        assert "more" not in admin.list_topics()
    finally:
        admin.close()


def _offsets(admin: Any, group: str) -> Any:
    found = admin.list_group_offsets(group)
    return found.get(group, found)
