"""Partitions moved between log dirs by a whole daemon: compacted ones under load, and workers killed on the way."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from compactd.storage.checkpoints import CLEANER_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from compactd.storage.names import FUTURE_DIR, TopicPartition
from tests.daemon.daemons import Daemon, until
from tests.daemon.load import Load
from tests.daemon.test_kills import look_after, serving
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_moves import alter

_PARTITIONS = 2


def create_topics(daemon: Daemon) -> None:
    """What is moved or replaced goes soon."""
    common = {"segment_ms": 300, "file_delete_delay_ms": 500, "flush_messages": 1}
    daemon.create_topic("users", _PARTITIONS, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, **common)
    daemon.create_topic("events", _PARTITIONS, retention_ms=-1, **common)


def place_of(daemon: Daemon, name: str) -> Path | None:
    """The log dir that holds a partition, if it is one and nothing is on its way."""
    found = [log_dir for log_dir in daemon.dirs if (log_dir / name).is_dir()]
    copies = [path for log_dir in daemon.dirs for path in log_dir.glob(f"{name}.*{FUTURE_DIR}")]
    return found[0] if len(found) == 1 and not copies else None


def move(daemon: Daemon, name: str, log_dir: Path) -> int:
    """The error code; -1 where the broker is not there just now."""
    topic, _, number = name.rpartition("-")
    try:
        with RawClient(int(daemon.bootstrap.rsplit(":", 1)[1])) as client:
            return alter(client, str(log_dir), topic, int(number))
    except OSError:
        return -1


def other(daemon: Daemon, log_dir: Path) -> Path:
    return next(each for each in daemon.dirs if each != log_dir)


def names() -> list[str]:
    return [f"{topic}-{number}" for topic in ("users", "events") for number in range(_PARTITIONS)]


def entries(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    return OffsetCheckpoint(log_dir / name).read()


def test_compacted_partitions_move_under_load(tmp_path: Path) -> None:
    """Cleaned before, not meanwhile, and after; nothing lost; checkpoints go along."""
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 200, "the load")
            for _ in range(3):
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    target = other(daemon, source)
                    assert move(daemon, name, target) == 0
                    until(lambda name=name, target=target: place_of(daemon, name) == target, f"{name} in {target}")  # type: ignore[misc]
                sofar = load.acknowledged_so_far()
                until(lambda sofar=sofar: load.acknowledged_so_far() > sofar + 50, "more acknowledgements")  # type: ignore[misc]
        daemon.clean_now("users")
        places = {name: place_of(daemon, name) for name in names()}
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)
    for name, place in places.items():
        assert place is not None
        topic, _, number = name.rpartition("-")
        partition = TopicPartition(topic, int(number))
        for log_dir in daemon.dirs:
            assert (partition in entries(log_dir, RECOVERY_POINTS)) == (log_dir == place)
            if topic == "users":
                assert (partition in entries(log_dir, CLEANER_OFFSETS)) == (log_dir == place)
    # What lies where is what the next start finds.
    with daemon:
        load.verify(_PARTITIONS)
        assert {name: place_of(daemon, name) for name in names()} == places
        daemon.stop()


@pytest.mark.parametrize("seed", range(3))
def test_the_broker_is_killed_on_the_way(tmp_path: Path, seed: int) -> None:
    """At moments from the first byte of the copy to the removal of what was moved; one place in the end, all there."""
    moments = random.Random(seed)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(4):
                wanted = {}
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    wanted[name] = other(daemon, source)
                for name, target in wanted.items():
                    move(daemon, name, target)
                pid = daemon.pids()["broker-0"]
                time.sleep(moments.uniform(0, 0.12))
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: daemon.pids().get("broker-0", pid) != pid, "another broker")  # type: ignore[misc]
                for name in names():
                    until(lambda name=name: place_of(daemon, name), f"one place of {name}")  # type: ignore[misc]
                sofar = load.acknowledged_so_far()
                until(lambda sofar=sofar: load.acknowledged_so_far() > sofar, "more acknowledgements")  # type: ignore[misc]
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)


def test_the_daemon_is_killed_on_the_way(tmp_path: Path) -> None:
    moments = random.Random(1)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(3):
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    move(daemon, name, other(daemon, source))
                time.sleep(moments.uniform(0, 0.15))
                daemon.signal(signal.SIGKILL)
                daemon.ended()
                until(lambda: not daemon.survivors(), "the end of its workers")
                daemon.start()
                for name in names():
                    until(lambda name=name: place_of(daemon, name), f"one place of {name}")  # type: ignore[misc]
                sofar = load.acknowledged_so_far()
                until(lambda sofar=sofar: load.acknowledged_so_far() > sofar, "more acknowledgements")  # type: ignore[misc]
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)
