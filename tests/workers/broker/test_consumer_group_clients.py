"""Consumers of librdkafka with group.protocol=consumer: rebalances, commits, rolling upgrades (KIP-848)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.test_consumer_groups import QUICK

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

PARTITIONS = 4
WAIT_SECONDS = 60.0


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], QUICK) as running:
        make(running, "events", PARTITIONS)
        yield running


def make(broker: CatalogueBroker, topic: str, partitions: int) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_admin.NewTopic(topic, partitions, 1)])[topic].result(WAIT_SECONDS)


def produce(broker: CatalogueBroker, first: int, end: int, topic: str = "events") -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(first, end):
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_SECONDS) == 0


class Consumer:
    """`protocol`: of the group."""

    def __init__(self, broker: CatalogueBroker, protocol: str = "consumer", topic: str = "events", **more: Any) -> None:
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **more,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
            # What librdkafka's sticky one adds to an assignment would be lost: Kafka refuses to upgrade such a group.
            settings.setdefault("partition.assignment.strategy", "range")
        self.consumer = confluent_kafka.Consumer(settings)
        self.consumer.subscribe([topic])
        self.read: list[int] = []

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.05):
            assert message.error() is None, message.error()
            self.read.append(int(message.value()))

    @property
    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


def run(consumers: list[Consumer], done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not done():
        assert time.monotonic() < end, [(each.assigned, each.read) for each in consumers]
        for each in consumers:
            each.poll()


@contextlib.contextmanager
def closed(*consumers: Consumer) -> Iterator[None]:
    try:
        yield
    finally:
        for each in consumers:
            each.consumer.close()


def share(*consumers: Consumer) -> bool:
    """Everybody has something, and all is had once."""
    sets = [each.assigned for each in consumers]
    return all(sets) and sorted(number for each in sets for number in each) == list(range(PARTITIONS))


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumers_come_and_go(broker: CatalogueBroker, assignor: str) -> None:
    produce(broker, 0, 40)
    more = {"group.remote.assignor": assignor}
    first = Consumer(broker, **more)
    with closed(first):
        run([first], lambda: len(first.read) == 40)
        assert sorted(first.read) == list(range(40))
        first.consumer.commit(asynchronous=False)
        second = Consumer(broker, **more)
        with closed(second):
            run([first, second], lambda: share(first, second))
            assert len(first.assigned) == len(second.assigned) == 2
            produce(broker, 40, 80)
            run([first, second], lambda: len(first.read) + len(second.read) == 80)
            assert sorted(first.read + second.read) == list(range(80))
            first.consumer.commit(asynchronous=False)
            second.consumer.commit(asynchronous=False)
        run([first], lambda: share(first))
        produce(broker, 80, 90)
        run([first], lambda: set(range(80, 90)) <= set(first.read))


def test_a_static_consumer_finds_its_partitions_again(broker: CatalogueBroker) -> None:
    produce(broker, 0, 20)
    first = Consumer(broker, **{"group.instance.id": "one"})
    second = Consumer(broker, **{"group.instance.id": "two"})
    with closed(second):
        with closed(first):
            run([first, second], lambda: share(first, second))
            had = first.assigned
        again = Consumer(broker, **{"group.instance.id": "one"})
        with closed(again):
            run([again, second], lambda: share(again, second))
            assert again.assigned == had


def test_a_regular_expression_finds_topics_that_come(broker: CatalogueBroker) -> None:
    consumer = Consumer(broker, topic="^ev.*")
    with closed(consumer):
        produce(broker, 0, 4)
        run([consumer], lambda: len(consumer.read) == 4)
        # Looked for again at most every ten seconds.
        broker.clock.moved_ms = 11_000
        make(broker, "even", PARTITIONS)
        produce(broker, 4, 8, "even")
        run([consumer], lambda: sorted(consumer.read) == list(range(8)))


def test_a_group_is_rolled_to_the_new_protocol_and_back(broker: CatalogueBroker) -> None:
    """One consumer after the other is replaced, and nothing is read twice or not at all."""
    produce(broker, 0, 40)
    read: set[int] = set()

    def end(consumer: Consumer) -> None:
        if consumer.assigned:
            with contextlib.suppress(confluent_kafka.KafkaException):  # nothing was read since the last one
                consumer.consumer.commit(asynchronous=False)
        consumer.consumer.close()
        read.update(consumer.read)

    old = [Consumer(broker, "classic"), Consumer(broker, "classic")]
    run(old, lambda: share(*old) and sum(len(each.read) for each in old) >= 40)
    for protocol in ("consumer", "classic"):
        for _ in range(2):
            new = Consumer(broker, protocol)
            run([*old, new], lambda new=new: share(*old, new))  # type: ignore[misc]
            end(old.pop(0))
            old.append(new)
            run(old, lambda: share(*old))
    produce(broker, 40, 60)
    run(old, lambda: set(range(40, 60)) <= {number for each in old for number in each.read})
    for each in old:
        end(each)
    assert read == set(range(60))


def test_a_restart_of_the_broker_is_not_noticed(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], QUICK) as broker:
        make(broker, "events", PARTITIONS)
        produce(broker, 0, 8)
        consumer = Consumer(broker)
        with closed(consumer):
            run([consumer], lambda: len(consumer.read) == 8)
            consumer.consumer.commit(asynchronous=False)
    with CatalogueBroker([log_dir], QUICK) as broker:
        produce(broker, 8, 12)
        again = Consumer(broker)
        with closed(again):
            run([again], lambda: sorted(again.read) == list(range(8, 12)))


def test_administration(broker: CatalogueBroker) -> None:
    consumer = Consumer(broker)
    with closed(consumer):
        run([consumer], lambda: share(consumer))
        admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        listed = admin.list_consumer_groups(types={confluent_kafka.ConsumerGroupType.CONSUMER}).result(WAIT_SECONDS)
        assert [(each.group_id, each.type.name, each.state.name) for each in listed.valid] == [
            ("g", "CONSUMER", "STABLE")
        ]
        described = admin.describe_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
        assert described.type.name == "CONSUMER"
        (member,) = described.members
        assert {each.partition for each in member.assignment.topic_partitions} == set(range(PARTITIONS))
        assert {each.partition for each in member.target_assignment.topic_partitions} == set(range(PARTITIONS))
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    admin.delete_consumer_groups(["g"])["g"].result(WAIT_SECONDS)
    assert admin.list_consumer_groups().result(WAIT_SECONDS).valid == []
