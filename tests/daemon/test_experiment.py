"""The experiment that shows what log compaction does, with Kafka's own console tools: a topic, six records, a tombstone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon, tool

pytestmark = pytest.mark.kafka

_TOPIC = "compact-test"
_RECORDS = """user1:{"name":"Alice","age":25}
user2:{"name":"Bob","age":30}
user1:{"name":"Alice","age":26}
user3:{"name":"Charlie","age":35}
user2:{"name":"Bob","age":31}
user1:{"name":"Alice","age":27}
"""
_MINUTE = 60_000


class Experiment:
    def __init__(self, daemon: Daemon, classpath: str) -> None:
        self.daemon = daemon
        self.classpath = classpath
        self.end = 0

    def create(self) -> None:
        tool(
            self.classpath, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.daemon.bootstrap,
            "--create", "--topic", _TOPIC, "--partitions", "1", "--replication-factor", "1",
            "--config", "cleanup.policy=compact",
            "--config", "segment.ms=60000",
            "--config", "min.cleanable.dirty.ratio=0.1",
            "--config", "delete.retention.ms=60000",
        )  # fmt: skip

    def produce(self, lines: str) -> None:
        """`key:value` lines; a value NULL is none."""
        tool(
            self.classpath, "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", self.daemon.bootstrap,
            "--topic", _TOPIC,
            "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=:",
            "--reader-property", "null.marker=NULL",
            stdin=lines,
        )  # fmt: skip
        self.end += len(lines.splitlines())

    def roll(self) -> None:
        """More than segment.ms later somebody writes: the segment before is closed, and cleaned."""
        self.daemon.move_clock(_MINUTE + 1000)
        before = self.end
        self.produce(f"tick:{before}\n")
        self.daemon.cleaned_up_to(f"{_TOPIC}-0", before)

    def consume(self) -> dict[str, str]:
        """Key to value, from the beginning; a user that comes twice fails the test."""
        count = len(self.daemon.records(_TOPIC))
        read = tool(
            self.classpath, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", self.daemon.bootstrap,
            "--topic", _TOPIC, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000",
            "--formatter-property", "print.key=true",
            "--formatter-property", "key.separator=:",
        )  # fmt: skip
        found: dict[str, str] = {}
        for line in read.splitlines():
            key, _, value = line.partition(":")
            if key.startswith("user"):
                assert key not in found, read
                found[key] = value
        return found


def test_the_experiment(tmp_path: Path, oracle_classpath: str) -> None:
    # Records get the time of the daemon's clock, which the test moves: the tools' own clock stands still for it.
    with Daemon(tmp_path, log_message_timestamp_type="LogAppendTime") as daemon:
        experiment = Experiment(daemon, oracle_classpath)
        experiment.create()
        experiment.produce(_RECORDS)
        experiment.roll()
        latest = {
            "user1": '{"name":"Alice","age":27}',
            "user2": '{"name":"Bob","age":31}',
            "user3": '{"name":"Charlie","age":35}',
        }
        assert experiment.consume() == latest

        experiment.produce("user3:NULL\n")
        experiment.roll()
        # Whoever was away has a minute from now on to see that it was deleted.
        assert experiment.consume() == {**latest, "user3": "null"}

        experiment.roll()
        del latest["user3"]
        assert experiment.consume() == latest
        # Offsets have gaps, and reading goes over them to the end.
        offsets = [record.offset for record in daemon.records(_TOPIC)]
        assert offsets == sorted(set(offsets)) and offsets[0] > 0 and offsets[-1] == experiment.end - 1
        assert not daemon.strays()
        daemon.stop()
