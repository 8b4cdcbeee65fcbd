"""Kafka Streams 4.4.0 on both brokers: exactly once through crashes, and its state back from changelogs that were cleaned."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.jvm import Jvm
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Tools

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

_MAIN = "org.apache.kafka.storage.internals.log.OracleCounter"
PARTITIONS = 2
WORDS = [f"word{number}" for number in range(11)]
NAMES = {b"k%d" % number: b"name %d" % number for number in range(5)}
_WINDOW_MS = 10_000


class World:
    """An application's topics, its instances, and what it ought to have made of what was written."""

    def __init__(self, server: Server, classpath: str, home: Path, application: str, start: int) -> None:
        self.server, self.application = server, application
        self._classpath, self._home = classpath, home
        self._lines = itertools.count()
        self._start = start
        self.counts: Counter[str] = Counter()
        self.windows: Counter[str] = Counter()
        self.joined: list[tuple[str, str]] = []
        for name in ("lines", "counts", "windows", "joined"):
            server.create(f"{application}-{name}", PARTITIONS)
        server.create(f"{application}-names", 1, cleanup_policy="compact")
        names = [Message(value, key=key, partition=0) for key, value in NAMES.items()]
        Librdkafka().produce(server, f"{application}-names", names)

    def instance(self, name: str) -> Jvm:
        """One that was never there before: it has to restore all state from the changelogs."""
        state = self._home / f"state-{name}"
        shutil.rmtree(state, ignore_errors=True)
        return Jvm(
            self._classpath, _MAIN, self._home, name,
            {
                "application.id": self.application,
                "client.id": name,
                "bootstrap.servers": self.server.bootstrap,
                "state.dir": state,
                "processing.guarantee": "exactly_once_v2",
                "num.standby.replicas": 1,
                "num.stream.threads": 1,
                "commit.interval.ms": 100,
                "statestore.cache.max.bytes": 0,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "transaction.timeout.ms": 10_000,
                "repartition.purge.interval.ms": 1000,
                # Of every topic that the application makes.
                "topic.segment.ms": 200,
                "topic.min.cleanable.dirty.ratio": 0.01,
            },
        )  # fmt: skip

    def write(self, count: int) -> None:
        """So many lines, each of some words, a tenth of a second apart by their timestamps."""
        messages = []
        for number in itertools.islice(self._lines, count):
            words = [WORDS[(number * 5 + more * more) % len(WORDS)] for more in range(3)]
            key, timestamp, line = b"k%d" % (number % 7), self._start + number * 100, " ".join(words)
            messages.append(Message(line.encode(), key=key, timestamp=timestamp, partition=number % PARTITIONS))
            self.counts.update(words)
            self.windows.update(f"{word}@{timestamp // _WINDOW_MS * _WINDOW_MS}" for word in words)
            if key in NAMES:
                self.joined.append((key.decode(), f"{NAMES[key].decode()}: {line}"))
        assert all(isinstance(each, int) for each in Librdkafka().produce(self.server, self._topic("lines"), messages))

    def _topic(self, name: str) -> str:
        return f"{self.application}-{name}"

    def _committed(self, name: str) -> list[tuple[str, str]]:
        found = Librdkafka().consume(self.server, self._topic(name), isolation="read_committed")
        return [((record.key or b"").decode(), (record.value or b"").decode()) for record in found]

    def is_done(self) -> bool:
        """Everything was counted: each word once for each time it was written, never back and never twice."""
        for name, wanted in (("counts", self.counts), ("windows", self.windows)):
            seen: dict[str, list[int]] = defaultdict(list)
            for key, value in self._committed(name):
                seen[key].append(int(value))
            for key, values in seen.items():
                assert values == list(range(1, len(values) + 1)), f"{name}: {key} was counted {values}"
                assert len(values) <= wanted[key], f"{name}: {key} was counted {values}, written {wanted[key]} times"
            if {key: len(values) for key, values in seen.items()} != wanted:
                return False
        return sorted(self._committed("joined")) == sorted(self.joined)

    def held(self, *instances: Jvm) -> dict[str, int]:
        """What interactive queries say, of all instances together."""
        pairs = [pair.split("=") for each in instances for pair in each.ask("COUNTS").split()[1:]]
        return {word: int(count) for word, count in pairs}

    def changelog(self, store: str) -> str:
        return self._topic(f"{store}-changelog")

    def is_cleaned(self, store: str) -> bool:
        """Its changelog has fewer records than were written to it, one for each count."""
        written = sum(self.counts.values())
        return len(Librdkafka().consume(self.server, self.changelog(store))) < written


def test_an_application_lives_through_crashes_and_cleaned_changelogs(
    server: Server, tools: Tools, oracle_classpath: str, tmp_path: Path, topic: str
) -> None:
    world = World(server, oracle_classpath, tmp_path, topic, int(time.time() * 1000) - 600_000)
    with ExitStack() as running:
        first, second = (running.enter_context(world.instance(name)) for name in ("first", "second"))
        world.write(60)
        for each in (first, second):
            each.told("STATE RUNNING")
        until(world.is_done, "the counts of two instances")
        first.kill()
        world.write(60)
        until(world.is_done, "the counts of the one that is left")
        assert world.held(second) == world.counts
        second.kill()
    for store, policy in (("total", "compact"), ("windowed", "compact,delete")):
        told = tools.run(server, "TopicCommand", "--describe", "--topic", world.changelog(store))
        assert f"cleanup.policy={policy}," in told
        until(lambda store=store: world.is_cleaned(store), f"a clean of the changelog of {store}")
    with world.instance("third") as third:
        world.write(60)
        third.told("STATE RUNNING")
        restored = sum(int(line.split()[2]) for line in third.lines if line.startswith("RESTORED total"))
        assert restored > 0
        until(world.is_done, "the counts on top of what was restored")
        assert world.held(third) == world.counts
        third.finish()
        assert "CLOSED" in third.lines
    for each in range(PARTITIONS):
        # What was counted is no longer needed, and Streams had it deleted.
        assert server.offsets(f"{topic}-words-repartition", each, -2) > 0
    group = lambda: tools.run(server, "consumer.group.ConsumerGroupCommand", "--describe", "--group", topic, "--state")  # noqa: E731
    until(lambda: "Empty" in group(), "the end of its group")
    told = tools.run(server, "StreamsResetter", "--application-id", topic, "--input-topics", f"{topic}-lines")
    assert all(f"Topic: {topic}-lines Partition: {each} Offset: 0" in told for each in range(PARTITIONS))
    left = lambda: tools.run(server, "TopicCommand", "--list", "--topic", f"{topic}-.*").split()  # noqa: E731
    until(lambda: not [name for name in left() if name.endswith(("changelog", "repartition"))], "the end of its topics")
