"""A Kafka broker and its clients on log dirs that compactd cleaned: every key has the value it had before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.oracle.broker import Broker
from tests.oracle.driver import Answer, Oracle, record

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

#: Small segments, so that there is something to clean in each topic.
_SMALL = {"internal.segment.bytes": 20_000, "segment.index.bytes": 65536, "file.delete.delay.ms": 1000}
TOPICS: dict[str, dict[str, object]] = {
    "users": {"cleanup.policy": "compact", **_SMALL},
    "payments": {"cleanup.policy": "compact", **_SMALL},
    "prices": {"cleanup.policy": "compact", "compression.type": "zstd", **_SMALL},
    "sessions": {"cleanup.policy": "compact,delete", "delete.retention.ms": 0, **_SMALL},
    "orders": {"cleanup.policy": "delete", **_SMALL},
}
Records = dict[tuple[str, int, int], tuple[Any, ...]]


@dataclass(frozen=True)
class Stopped:
    """The log dirs of a broker after an orderly stop, and what its clients read before."""

    log_dirs: list[Path]
    #: Topic, partition and offset to timestamp, key, value, headers.
    committed: Records
    group_offsets: dict[str, int]


@pytest.fixture(scope="module")
def stopped(
    oracle_classpath: str, _oracle_process: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stopped]:
    """A broker that clients used for a while, with its cleaner off."""
    home = tmp_path_factory.mktemp("broker")
    log_dirs = [home / "d1", home / "d2"]
    broker = Broker(oracle_classpath, home, log_dirs, {"log.cleaner.enable": "false"})
    broker.format()
    with broker:
        _use(_oracle_process, broker.bootstrap)
        committed = _read(_oracle_process, broker.bootstrap)
        offsets = _oracle_process.request("groupOffsets", bootstrap=broker.bootstrap, group="readers")["offsets"]
    yield Stopped(log_dirs, committed, offsets)
    shutil.rmtree(home)


@pytest.mark.parametrize("options", [(), ("--roll", "--force")], ids=["as Kafka would", "all of it"])
def test_broker_serves_cleaned_log_dirs(
    oracle: Oracle, oracle_classpath: str, stopped: Stopped, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log_dirs = [shutil.copytree(path, tmp_path / path.name) for path in stopped.log_dirs]
    reports = _clean(log_dirs, options)
    cleaned = {report["topic"] for report in reports if report["outcome"] == "cleaned"}
    assert cleaned >= {"users", "payments", "prices", "sessions"}
    assert sum(r["bytesAfter"] for r in reports) < sum(r["bytesBefore"] for r in reports)
    _serves(oracle, oracle_classpath, tmp_path, log_dirs, stopped)


def test_killed_broker_serves_cleaned_log_dirs(
    oracle: Oracle, oracle_classpath: str, stopped: Stopped, tmp_path: Path
) -> None:
    """Killed with a transaction open: preallocated indexes, no clean shutdown, checkpoints behind the log."""
    log_dirs = [shutil.copytree(path, tmp_path / path.name) for path in stopped.log_dirs]
    settings = {"log.cleaner.enable": "false"}
    with Broker(oracle_classpath, tmp_path, log_dirs, settings) as broker:
        random = Random(8)
        for topic in ("users", "sessions", "orders", "prices"):
            oracle.request("produce", bootstrap=broker.bootstrap, records=_some(random, topic, 300))
        oracle.request(
            "produce",
            bootstrap=broker.bootstrap,
            config={"transactional.id": "killed", "transaction.timeout.ms": "600000"},
            records=_some(random, "payments", 50),
            close=False,
        )
        committed = _read(oracle, broker.bootstrap)
        broker.kill()
    oracle.reset()
    assert not any((log_dir / ".kafka_cleanshutdown").exists() for log_dir in log_dirs)
    reports = _clean(log_dirs, ())
    assert {r["topic"] for r in reports if r["outcome"] == "cleaned"} >= {"users", "payments", "prices", "sessions"}
    before = replace(stopped, log_dirs=log_dirs, committed=committed)
    _serves(oracle, oracle_classpath, tmp_path, log_dirs, before)


def _serves(oracle: Oracle, classpath: str, home: Path, log_dirs: list[Path], stopped: Stopped) -> None:
    """A broker starts on the log dirs and gives its clients what it gave them before."""
    # Kafka's own cleaner runs on, on what compactd left.
    with Broker(classpath, home, log_dirs, {"log.cleaner.backoff.ms": 200}) as broker:
        after = _read(oracle, broker.bootstrap)
        offsets = oracle.request("groupOffsets", bootstrap=broker.bootstrap, group="readers")["offsets"]
        # It takes new records as well.
        oracle.request("produce", bootstrap=broker.bootstrap, records=[{"topic": "users", **record(b"new", b"1")}])
    assert broker.complaints() == []

    assert _latest(after) == _latest(stopped.committed)
    assert {place: stopped.committed[place] for place in after} == after
    assert _count(after, "users") < _count(stopped.committed, "users")
    assert _count(after, "orders") == _count(stopped.committed, "orders")
    assert offsets == stopped.group_offsets
    leftovers = [path.name for log_dir in log_dirs for path in log_dir.rglob("*") if _is_leftover(path.name)]
    assert leftovers == []


def _use(oracle: Oracle, bootstrap: str) -> None:
    topics = [{"name": name, "partitions": 2, "config": _text(config)} for name, config in TOPICS.items()]
    oracle.request("createTopics", bootstrap=bootstrap, topics=topics)
    random = Random(7)
    codecs = {"users": "lz4", "sessions": "snappy", "orders": "gzip", "prices": "none"}
    for number in range(12):
        for topic, codec in codecs.items():
            config = {"compression.type": codec, "linger.ms": "20"}
            oracle.request("produce", bootstrap=bootstrap, config=config, records=_some(random, topic, 250))
        oracle.request(
            "produce",
            bootstrap=bootstrap,
            config={"transactional.id": f"payer-{number % 2}", "linger.ms": "20"},
            records=_some(random, "payments", 120),
            end="abort" if number % 3 == 1 else "commit",
        )
        oracle.request(
            "commitOffsets",
            bootstrap=bootstrap,
            group="readers",
            offsets=[{"topic": topic, "partition": p, "offset": number * 3 + p} for topic in TOPICS for p in range(2)],
        )


def _some(random: Random, topic: str, count: int) -> list[Answer]:
    records = []
    for _ in range(count):
        key = b"key-%d" % random.randrange(60)
        value = None if random.random() < 0.05 else random.randbytes(20) + b"." * random.randrange(100)
        headers = [("trace", key)] if random.random() < 0.2 else []
        records.append({"topic": topic, "partition": random.randrange(2), **record(key, value, headers=headers)})
    return records


def _text(config: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in config.items()}


def _read(oracle: Oracle, bootstrap: str) -> Records:
    answer = oracle.request("consume", bootstrap=bootstrap, topics=list(TOPICS))
    return {
        (r["topic"], r["partition"], r["offset"]): (r["ts"], r["key"], r["value"], tuple(map(tuple, r["headers"])))
        for r in answer["records"]
    }


def _latest(records: Records) -> dict[tuple[str, int, str], tuple[Any, ...]]:
    """The newest record of every key, without the keys whose newest record is a tombstone: those may go or stay."""
    latest: dict[tuple[str, int, str], tuple[Any, ...]] = {}
    for (topic, partition, _), (ts, key, value, headers) in sorted(records.items()):
        latest[topic, partition, key] = (ts, value, headers)
    return {place: content for place, content in latest.items() if content[1] is not None}


def _count(records: Records, topic: str) -> int:
    return sum(place[0] == topic for place in records)


def _clean(log_dirs: list[Path], options: tuple[str, ...]) -> list[Answer]:
    command = [sys.executable, "-m", "compactd.scripts", "clean", "--json", "--delete-delay", "0", *options]
    done = subprocess.run([*command, *map(str, log_dirs)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def _is_leftover(name: str) -> bool:
    return name.endswith((".cleaned", ".swap", "-stray")) or name == ".lock"
