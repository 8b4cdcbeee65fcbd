"""`compactd serve` itself, with all its processes, and what tests do to it with clients of Kafka."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaTimeoutError

from compactd.coordinator.control.messages import CleanNow, Done, GetStatus, PartitionStatus, Status
from compactd.workers.clock import write_offset
from tests.coordinator.serving import PATIENCE_SECONDS, Serving, until
from tests.ports import free_ports

# What a client says of brokers that are killed is no news here.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

_SERVE = "from compactd.scripts.main import main; main()"
#: Cleaners look twice a second, and the files that they replaced go a second later.
_QUICK = {
    "log.cleaner.backoff.ms": 300,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.cleaner.threads": 1,
    "worker.heartbeat.ms": 250,
    "worker.stop.timeout.ms": 30_000,
    "auto.create.topics.enable": False,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
}
_JAVA = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
)  # fmt: skip


class Daemon(Serving):
    """`with Daemon(directory) as daemon:` log dirs d1 and d2 below it, free ports, a clock that the test moves."""

    def __init__(self, directory: Path, **settings: object) -> None:
        clock = directory / "clock"
        write_offset(clock, 0)
        self.moved_ms = 0
        self._clock = clock
        quick = {name: value for name, value in _QUICK.items() if name.replace(".", "_") not in settings}
        workers = settings.get("broker_workers", 1)
        assert isinstance(workers, int)
        # The same when it comes back, or one of its workers does.
        listeners = f"PLAINTEXT://127.0.0.1:{free_ports(workers)[0]}"
        given = {"test.clock.file": str(clock), "broker_workers": workers, "listeners": listeners, **quick, **settings}
        super().__init__(directory, **given)

    def spawn(self) -> subprocess.Popen[str]:
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, "serve", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        return self.process

    def start(self) -> Daemon:
        """Until it says that it serves."""
        process = self.spawn()
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("Ctrl-C"):
            found = re.match(r"compactd serves Kafka clients at (.*)", line)
            if found:
                self.bootstrap = found[1].replace(" ", "")
            line = process.stdout.readline()
        assert line, self.log()
        return self

    def __enter__(self) -> Daemon:
        return self.start()

    def stop(self) -> tuple[int, str]:
        """In good order; the test fails when it was not."""
        code, said = super().stop()
        assert code == 0, self.log()
        until(lambda: not self.survivors(), "the end of its workers")
        return code, said

    def move_clock(self, milliseconds: int) -> None:
        """The time of day of every process of the daemon."""
        self.moved_ms += milliseconds
        write_offset(self._clock, self.moved_ms)

    # ---- clients

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            settings = {key.replace("_", "."): str(value) for key, value in config.items()}
            admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)])
        finally:
            admin.close()
        wanted = {f"{name}-{number}" for number in range(partitions)}
        until(lambda: wanted <= {each.name for each in self.partitions()} | self._others(), f"topic {name}")

    def _others(self) -> set[str]:
        return {path.name for log_dir in self.dirs if log_dir.is_dir() for path in log_dir.iterdir()}

    def producer(self, **options: Any) -> KafkaProducer:
        given = {"acks": "all", "retries": 1000, "max_block_ms": 60_000, "request_timeout_ms": 10_000}
        return KafkaProducer(bootstrap_servers=self.bootstrap, **{**given, **options})

    def records(self, topic: str, partition: int = 0, isolation: str = "read_uncommitted") -> list[Any]:
        """All records of a partition, read to its end offset."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, isolation_level=isolation, enable_auto_commit=False, fetch_max_wait_ms=50
        )
        try:
            there = TopicPartition(topic, partition)
            consumer.assign([there])
            consumer.seek_to_beginning(there)
            end = consumer.end_offsets([there])[there]
            found: list[Any] = []

            def read() -> bool:
                for batch in consumer.poll(200).values():
                    found.extend(batch)
                return bool(consumer.position(there) >= end)

            until(read, f"offset {end} of {topic}-{partition}")
            return found
        finally:
            consumer.close()

    # ---- what is seen of it

    def partitions(self) -> tuple[PartitionStatus, ...]:
        """Compacted partitions."""
        answer = self.ask(GetStatus(all_partitions=True))
        assert isinstance(answer, Status)
        return answer.cleaning.partitions

    def partition_status(self, name: str) -> PartitionStatus:
        return next(each for each in self.partitions() if each.name == name)

    def cleaned_up_to(self, name: str, offset: int) -> PartitionStatus:
        """Waits until a clean has reached the offset and nothing of it is under way."""

        def look() -> PartitionStatus | None:
            answer = self.ask(GetStatus(all_partitions=True))
            assert isinstance(answer, Status)
            assert not answer.cleaning.quarantine, answer.cleaning.quarantine
            if any(job.partition == name for job in answer.cleaning.jobs):
                return None
            found = next((each for each in answer.cleaning.partitions if each.name == name), None)
            return found if found is not None and found.first_dirty_offset >= offset else None

        found = until(look, f"the clean of {name} up to {offset}")
        assert found is not None
        return found

    def clean_now(self, topic: str) -> None:
        """As `compactd clean-now`, and waits until it is done."""
        ends = {each.name: each.log_end_offset for each in self.partitions() if each.name.rpartition("-")[0] == topic}
        answer = self.ask(CleanNow(names=(topic,)))
        assert isinstance(answer, Done), answer
        for name, end in ends.items():
            self.cleaned_up_to(name, end)

    def strays(self) -> list[str]:
        """Files that a finished clean, swap or deletion does not leave."""
        odd = (".cleaned", ".swap", ".tmp")
        # Unlike rglob, walk takes no offence at what goes while it looks.
        return [
            f"{where}/{name}"
            for log_dir in self.dirs
            for where, directories, names in os.walk(log_dir)
            for name in (*directories, *names)
            if name.endswith((*odd, "-delete"))
        ]

    def pids(self) -> dict[str, int]:
        return {worker.name: worker.pid for worker in self.status().workers if worker.pid is not None}


def close_producer(producer: KafkaProducer, seconds: float) -> None:
    """Ends its thread too where records are left after that time: its own `close` raises then, and goes on connecting."""
    try:
        producer.close(timeout=seconds)
    except KafkaTimeoutError:
        producer._sender.force_close()
    producer._sender.join()


def tool(classpath: str, name: str, *arguments: str, stdin: str = "", expect: int = 0) -> str:
    """Runs one of Kafka's console tools; what it printed."""
    done = subprocess.run(
        [*_JAVA, "-cp", classpath, name, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")},
    )
    assert done.returncode == expect, f"{name} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


__all__ = ["PATIENCE_SECONDS", "Daemon", "close_producer", "tool", "until"]
