"""compactd produce and consume beside Kafka's own console clients: with Kafka's broker, and with compactd's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.oracle.broker import Broker
from tests.scripts.daemons import RunningDaemon

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

_JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
KEYS = [f"key-{number}" for number in range(300)]


def kafka(classpath: str, tool: str, *arguments: str, said: str = "") -> str:
    command = [*_JAVA, "-cp", classpath, f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compactd(*arguments: str, said: str = "") -> str:
    command = [sys.executable, "-m", "compactd.scripts", *arguments]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def both_write_and_read(classpath: str, server: str, codecs: Sequence[str]) -> None:
    """Half of the records by either, all of them read by either."""
    create = ("--create", "--topic", "people", "--partitions", "5", "--config", "cleanup.policy=compact")
    kafka(classpath, "TopicCommand", "--bootstrap-server", server, *create)
    where = ("--bootstrap-server", server)
    for codec in codecs:
        lines = "".join(f"{key}={codec}\n" for key in KEYS)
        compactd("produce", "people", "--key-separator", "=", "--codec", codec, *where, said=lines)
    properties = ("--reader-property", "parse.key=true", "--reader-property", "key.separator==")
    lines = "".join(f"{key}=kafka\n" for key in KEYS)
    kafka(classpath, "ConsoleProducer", *where, "--topic", "people", *properties, said=lines)
    compactd("produce", "people", "--delete", KEYS[0], *where)

    count = (len(codecs) + 1) * len(KEYS) + 1
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.partition=true")
    limits = ("--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000")
    theirs = kafka(classpath, "consumer.ConsoleConsumer", *where, "--topic", "people", *shown, *limits).splitlines()
    ours = compactd("consume", "people", "--from-beginning", "--until-end", "--keys", "--offsets", *where).splitlines()
    read = []
    for line in ours:
        partition, _, _, key, value = line.split("\t")
        read.append(f"Partition:{partition}\t{key}\t{value}")
    assert len(read) == count
    assert sorted(theirs) == sorted(read)
    # A key lies in one partition, whoever wrote it: compaction would keep several values of it otherwise.
    places = {tuple(line.split("\t")[:2]) for line in read}
    assert len(places) == len(KEYS)
    assert len({partition for partition, _ in places}) == 5


def test_kafkas_broker_takes_our_clients(oracle_classpath: str, tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    broker = Broker(oracle_classpath, tmp_path / "home", [tmp_path / "d1"])
    broker.format()
    with broker:
        both_write_and_read(oracle_classpath, broker.bootstrap, ("none", "gzip", "snappy", "lz4", "zstd"))
        assert broker.complaints() == []


def test_our_broker_takes_kafkas_clients_and_ours(oracle_classpath: str, tmp_path: Path) -> None:
    with RunningDaemon(tmp_path, broker_workers=2, offsets_topic_num_partitions=1) as daemon:
        both_write_and_read(oracle_classpath, daemon.address, ("none", "zstd"))
