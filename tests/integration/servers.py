"""The two brokers that every test of this suite runs against: `compactd serve` itself, and Apache Kafka 4.4.0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.daemon.daemons import Daemon
from tests.oracle.broker import Broker
from tests.workers.broker.harness import RawClient

LIST_OFFSETS, METADATA, FIND_COORDINATOR, CREATE_TOPICS = 2, 3, 10, 19
#: Nothing here takes as long.
PATIENCE_SECONDS = 90.0
T = TypeVar("T")

#: What both are started with, beyond what the two starters set alike (small internal topics, no automatic topics).
SETTINGS: dict[str, object] = {
    "num.partitions": 3,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.backoff.ms": 300,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.initial.task.delay.ms": 500,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "log.cleaner.threads": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    # Groups without members and offsets are forgotten at the next look: each broker's own ten minutes, lest lists differ.
    "offsets.retention.check.interval.ms": 86_400_000,
    "log.index.size.max.bytes": 65536,
}


def until(ask: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Asks until the answer is true; the test fails when it never is."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.05)
    return answer


@dataclass(frozen=True)
class Server:
    """A broker that listens."""

    name: str
    bootstrap: str
    log_dirs: tuple[Path, ...]

    @property
    def port(self) -> int:
        return int(self.bootstrap.rsplit(":", 1)[1])

    @property
    def is_kafka(self) -> bool:
        return self.name == "kafka"

    def connect(self) -> RawClient:
        """Frames by hand."""
        return RawClient(self.port)

    def create(self, topic: str, partitions: int = 1, **config: object) -> None:
        """Makes a topic, settings with underscores for dots, and waits until its partitions lead."""
        configs = [{"name": name.replace("_", "."), "value": str(value)} for name, value in config.items()]
        row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        with self.connect() as client:
            made = client.ask(CREATE_TOPICS, 7, {"topics": [row], "timeout": 30_000}).topics[0]
            assert made.error_code == 0, made
            until(lambda: self._leads(client, topic, partitions), f"leaders of {topic}")

    def _leads(self, client: RawClient, topic: str, partitions: int) -> bool:
        told = client.ask(METADATA, 9, {"topics": [{"name": topic}]}).topics[0].partitions
        if len(told) != partitions or any(each.error_code != 0 for each in told):
            return False
        # Kafka tells its metadata before the partitions have taken the lead, and the other way round.
        return all(self._offset(topic, number, -1, 0).error_code == 0 for number in range(partitions))

    def connect_to_leader(self, topic: str, partition: int) -> RawClient:
        """compactd's workers are brokers of their own."""
        with self.connect() as client:
            told = client.ask(METADATA, 9, {"topics": [{"name": topic}]})
        leader = next(each.leader_id for each in told.topics[0].partitions if each.partition_index == partition)
        return RawClient(next(each.port for each in told.brokers if each.node_id == leader))

    def connect_to_coordinator(self, group: str) -> RawClient:
        with self.connect() as client:
            found = client.ask(FIND_COORDINATOR, 3, {"key": group, "key_type": 0})
        assert found.error_code == 0, found
        return RawClient(found.port)

    def _offset(self, topic: str, partition: int, timestamp: int, isolation: int) -> Any:
        row = {"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}
        with self.connect_to_leader(topic, partition) as client:
            answer = client.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": isolation, "topics": [row]})
        return answer.topics[0].partitions[0]

    def offsets(self, topic: str, partition: int = 0, timestamp: int = -1, isolation: int = 0) -> int:
        """ListOffsets: -1 the end, -2 the start."""
        found = self._offset(topic, partition, timestamp, isolation)
        assert found.error_code == 0, found
        offset: int = found.offset
        return offset

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Where a partition lies."""
        found = [path for log_dir in self.log_dirs if (path := log_dir / f"{topic}-{partition}").is_dir()]
        assert len(found) == 1, f"{topic}-{partition} lies in {found}"
        return found[0]


@contextmanager
def compactd(directory: Path, **more: object) -> Iterator[Server]:
    """`compactd serve` with all its processes; it has to stop in good order. `more`: settings with underscores for dots."""
    directory.mkdir()
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()} | more
    with Daemon(directory, **settings) as daemon:
        yield Server("compactd", daemon.bootstrap, tuple(daemon.dirs))
        daemon.stop()


@contextmanager
def kafka(classpath: str, directory: Path) -> Iterator[Server]:
    """Kafka, broker and controller in one process."""
    directory.mkdir()
    log_dirs = (directory / "d1", directory / "d2")
    broker = Broker(classpath, directory, log_dirs, SETTINGS)
    broker.format()
    with broker:
        yield Server("kafka", broker.bootstrap, log_dirs)
