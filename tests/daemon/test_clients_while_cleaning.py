"""Clients at full speed on partitions that cleaners clean at the same time: no error, and every key's latest value."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

_PARTITIONS = 2
_KEYS = 500
_SECONDS = 4.0


def was_cleaned(daemon: Daemon) -> bool:
    return "cleaned users-" in daemon.log()


def test_an_idempotent_producer_and_a_consumer_of_librdkafka(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.create_topic(
            "users", _PARTITIONS, cleanup_policy="compact", segment_ms=300, min_cleanable_dirty_ratio=0.01
        )
        errors: list[Any] = []
        latest: dict[bytes, bytes] = {}
        stopping = threading.Event()
        seen = [0]

        def consume() -> None:
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": daemon.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
            )
            consumer.subscribe(["users"])
            last: dict[int, int] = {}
            while not stopping.is_set():
                for message in consumer.consume(1000, 0.1):
                    if message.error():
                        errors.append(message.error())
                    elif message.offset() <= last.get(message.partition(), -1):
                        errors.append(f"offset {message.offset()} again")
                    else:
                        last[message.partition()] = message.offset()
                        seen[0] += 1
            consumer.close()

        reading = threading.Thread(target=consume)
        reading.start()
        try:
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": daemon.bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
            )

            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    latest[message.key()] = message.value()

            number, end = 0, time.monotonic() + _SECONDS
            latest_end = end + PATIENCE_SECONDS
            while time.monotonic() < end or (not was_cleaned(daemon) and time.monotonic() < latest_end):
                number += 1
                try:
                    producer.produce("users", b"%d" % number, b"key-%d" % (number % _KEYS), on_delivery=delivered)
                except BufferError:
                    producer.poll(0.1)
                producer.poll(0)
            assert producer.flush(60) == 0
            until(lambda: seen[0] > _KEYS, "records at the consumer")
        finally:
            stopping.set()
            reading.join()
        assert not errors, errors[:3]
        assert len(latest) == _KEYS
        status = daemon.status()
        assert not status.cleaning.quarantine and {worker.restarts for worker in status.workers} == {0}
        assert was_cleaned(daemon), "nothing was cleaned beside it"
        daemon.clean_now("users")
        there = [(record.key, record.value) for part in range(_PARTITIONS) for record in daemon.records("users", part)]
        assert len(there) == _KEYS and dict(there) == latest
        assert not daemon.strays()
        daemon.stop()
