"""Consumers of both protocols in one group while brokers, or all of the daemon, are killed: everything is read, and shared."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, until
from tests.daemon.test_transactions import serving
from tests.daemon.threads import Threads

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
administration = pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")

_PARTITIONS = 6
#: Whoever joined just before a kill, and was not told so, joins again as somebody else. The broker that comes waits for the
#: first for as long as for a consumer that was there (Kafka's, too, which by default is 45 seconds), with partitions that
#: nobody reads.
_SESSIONS = {
    "group.consumer.min.session.timeout.ms": 5_000,
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
}


class Consumers(Threads):
    """Each with one consumer that commits what it read."""

    def __init__(self, daemon: Daemon, protocols: list[str]) -> None:
        super().__init__(len(protocols))
        self._daemon = daemon
        self._protocols = protocols
        self.read: set[int] = set()
        self.assigned: dict[int, set[int]] = {}

    def _run(self, number: int) -> None:
        protocol = self._protocols[number]
        settings: dict[str, Any] = {
            "bootstrap.servers": self._daemon.bootstrap,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.subscribe(["t"])
            while not self._stopping.is_set():
                self._work(consumer, number)
        finally:
            consumer.close()

    def _work(self, consumer: Any, number: int) -> None:
        messages = consumer.consume(50, 0.1)
        self.assigned[number] = {each.partition for each in consumer.assignment()}
        assert not any(each.error() is not None and each.error().fatal() for each in messages)
        found = [each for each in messages if each.error() is None]
        try:
            if found:
                consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException:
            pass  # it is read again, by whoever has the partition then
        self.read.update(int(each.value()) for each in found)

    def is_shared(self) -> bool:
        """Each partition is had once, and everybody has one."""
        had = [partition for partitions in self.assigned.values() for partition in partitions]
        return sorted(had) == list(range(_PARTITIONS)) and len(self.assigned) == len(self._protocols)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["broker", "daemon"])
def test_brokers_are_killed_while_a_group_reads(tmp_path: Path, victim: str) -> None:
    moments = random.Random(victim)
    with serving(tmp_path, 2, **_SESSIONS) as daemon:
        daemon.create_topic("t", _PARTITIONS)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": daemon.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0}
        )
        written = 0

        def write(count: int) -> None:
            nonlocal written
            for _ in range(count):
                producer.produce("t", b"%d" % written, partition=written % _PARTITIONS)
                written += 1
            assert producer.flush(PATIENCE_SECONDS) == 0

        with Consumers(daemon, ["consumer", "classic", "consumer"]) as consumers:
            write(30)
            until(lambda: len(consumers.read) == written, "the first records")
            for turn in range(3):
                time.sleep(moments.uniform(0.1, 0.5))
                if victim == "broker":
                    daemon.kill(f"broker-{turn % 2}")
                else:
                    daemon.signal(signal.SIGKILL)
                    daemon.ended()
                    until(lambda: not daemon.survivors(), "the end of its workers")
                    daemon.start()
                write(60)
                until(lambda: len(consumers.read) == written, "more records")
            until(consumers.is_shared, "everybody's share")
            admin = administration.AdminClient({"bootstrap.servers": daemon.bootstrap})
            group = admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_SECONDS)
            assert (len(group.members), group.type.name) == (3, "CONSUMER")
        assert consumers.read == set(range(written))
        daemon.stop()
