"""Kafka Connect 4.4.0, distributed, on both brokers: exactly once through a worker's crash, offsets kept and cleaned."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.jvm import Jvm
from tests.integration.servers import Server, until
from tests.integration.tools import Tools
from tests.ports import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

_MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
_CONNECTORS = "org.apache.kafka.storage.internals.log.OracleConnectors$"
_TEXT = "org.apache.kafka.connect.storage.StringConverter"


class Cluster:
    """Workers of one group, the file that they read and the file that they write."""

    def __init__(self, server: Server, classpath: str, home: Path, name: str) -> None:
        self.server, self.name = server, name
        self._home = home
        # Connect finds connectors by the names in these files.
        services = home / "plugins" / "META-INF" / "services"
        services.mkdir(parents=True)
        for kind, connector in (("source.Source", "Source"), ("sink.Sink", "Sink")):
            (services / f"org.apache.kafka.connect.{kind}Connector").write_text(f"{_CONNECTORS}{connector}\n")
        self._classpath = f"{home / 'plugins'}:{classpath}"
        self.source, self.target = home / "source.txt", home / "target.txt"
        self.source.touch()
        self.target.touch()
        self.written: list[str] = []

    def worker(self, name: str) -> Worker:
        port = free_ports(1)[0]
        return Worker(
            port,
            Jvm(
                self._classpath, _MAIN, self._home, name,
                {
                    "bootstrap.servers": self.server.bootstrap,
                    "group.id": self.name,
                    **{
                        f"{kind}.storage.{key}": value
                        for kind in ("config", "offset", "status")
                        for key, value in (("topic", self.topic(kind)), ("replication.factor", 1))
                    },
                    "offset.storage.partitions": 1,
                    "status.storage.partitions": 2,
                    "offset.storage.segment.ms": 200,
                    "offset.storage.min.cleanable.dirty.ratio": 0.01,
                    "key.converter": _TEXT,
                    "value.converter": _TEXT,
                    "exactly.once.source.support": "enabled",
                    "listeners": f"http://127.0.0.1:{port}",
                    "plugin.discovery": "service_load",
                    "offset.flush.interval.ms": 500,
                    "scheduled.rebalance.max.delay.ms": 500,
                    "session.timeout.ms": 6000,
                    "heartbeat.interval.ms": 500,
                    "consumer.session.timeout.ms": 6000,
                    "consumer.heartbeat.interval.ms": 500,
                    "consumer.isolation.level": "read_committed",
                },
            ),
        )  # fmt: skip

    def topic(self, kind: str) -> str:
        return f"{self.name}-{kind}"

    def write(self, count: int) -> None:
        """So many lines more."""
        more = [f"line {len(self.written) + number}" for number in range(count)]
        with self.source.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        self.written += more

    def is_sent(self) -> bool:
        """Every line is in the topic once, and came out of it."""
        found = Librdkafka().consume(self.server, self.topic("lines"), isolation="read_committed")
        seen = Counter((record.value or b"").decode() for record in found)
        assert max(seen.values(), default=1) == 1, [line for line, count in seen.items() if count > 1]
        return set(seen) == set(self.written) == set(self.target.read_text().splitlines())


class Worker:
    """One of them, and its REST API."""

    def __init__(self, port: int, process: Jvm) -> None:
        self._port, self.process = port, process

    def __enter__(self) -> Worker:
        self.process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def asked(self, method: str, path: str, body: object = None) -> Any:
        """As soon as it can: a worker that starts, or whose group changes, refuses."""
        found: list[Any] = []

        def ask() -> bool:
            self.process.check()
            try:
                found.append(self.ask(method, path, body))
            except (urllib.error.HTTPError, OSError) as error:
                assert getattr(error, "code", 409) in (404, 409, 500, 503), error
                return False
            return True

        until(ask, f"{method} {path}")
        return found[0]

    def holders(self, connector: str, tasks: int) -> set[str]:
        """Waits until so many tasks of it run; the workers that have them."""

        def look() -> set[str]:
            told = self.asked("GET", f"/connectors/{connector}/status")
            running = [task["worker_id"] for task in told["tasks"] if task["state"] == "RUNNING"]
            failed = [task for task in told["tasks"] if task["state"] == "FAILED"]
            assert not failed, failed
            return set(running) if len(running) == tasks and told["connector"]["state"] == "RUNNING" else set()

        return until(look, f"{tasks} tasks of {connector}")


def test_workers_send_every_line_once(
    server: Server, tools: Tools, oracle_classpath: str, tmp_path: Path, topic: str
) -> None:
    cluster = Cluster(server, oracle_classpath, tmp_path, topic)
    server.create(cluster.topic("lines"), 2, cleanup_policy="compact")
    with ExitStack() as running:
        first, second = (running.enter_context(cluster.worker(name)) for name in ("first", "second"))
        source = {
            "connector.class": f"{_CONNECTORS}Source",
            "file": str(cluster.source),
            "topic": cluster.topic("lines"),
        }
        source |= {"exactly.once.support": "required", "transaction.boundary": "poll"}
        sink = {"connector.class": f"{_CONNECTORS}Sink", "file": str(cluster.target), "topics": cluster.topic("lines")}
        first.asked("PUT", "/connectors/source/config", source)
        first.asked("PUT", "/connectors/sink/config", {**sink, "tasks.max": "2"})
        cluster.write(100)
        until(cluster.is_sent, "what two workers send")
        until(lambda: len(second.holders("sink", 2) | second.holders("source", 1)) == 2, "both workers with tasks")
        assert sorted(second.asked("GET", "/connectors")) == ["sink", "source"]
        cluster.write(100)
        first.process.kill()
        cluster.write(100)
        until(cluster.is_sent, "what the one that is left sends")
        second.process.stop()
    for kind in ("config", "offset", "status"):
        told = tools.run(server, "TopicCommand", "--describe", "--topic", cluster.topic(kind))
        assert "cleanup.policy=compact" in told and f"PartitionCount: {2 if kind == 'status' else 1}" in told
    # One for each transaction, all of one key.
    until(
        lambda: (
            len(Librdkafka().consume(server, cluster.topic("offset"), "read_committed")) < len(cluster.written) // 20
        ),
        "a clean of the offsets",
    )
    with cluster.worker("third") as third:
        (told,) = third.asked("GET", "/connectors/source/offsets")["offsets"]
        assert told == {"partition": {"file": str(cluster.source)}, "offset": {"sent": len(cluster.written)}}
        cluster.write(50)
        third.holders("source", 1)
        until(cluster.is_sent, "what a worker sends that begins with what the topics hold")
        third.asked("PUT", "/connectors/source/stop")
        until(lambda: third.asked("GET", "/connectors/source/status")["connector"]["state"] == "STOPPED", "its stop")
        third.asked("DELETE", "/connectors/source/offsets")
        assert third.asked("GET", "/connectors/source/offsets") == {"offsets": []}
        for connector in ("source", "sink"):
            third.asked("DELETE", f"/connectors/{connector}")
        until(lambda: third.asked("GET", "/connectors") == [], "the end of its connectors")
        third.process.stop()
