"""kill -9 of each kind of process at random moments under load: nothing that was acknowledged is lost, the rest goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, close_producer, until
from tests.daemon.load import Load

_PARTITIONS = 2
_KILLS = 3


def serving(directory: Path) -> Daemon:
    return Daemon(
        directory,
        log_flush_interval_messages=1,
        log_retention_check_interval_ms=500,
    )


def create_topics(daemon: Daemon) -> None:
    daemon.create_topic(
        "users",
        _PARTITIONS,
        cleanup_policy="compact",
        segment_ms=300,
        min_cleanable_dirty_ratio=0.01,
        file_delete_delay_ms=500,
        flush_messages=1,
    )
    daemon.create_topic("events", _PARTITIONS, retention_ms=-1, segment_ms=1000, flush_messages=1)


def look_after(daemon: Daemon, load: Load) -> None:
    """After the harm: all there, all clean, nothing left over, and a stop in good order."""
    load.verify(_PARTITIONS)
    status = daemon.status()
    assert status.state == "running" and not status.offline and not status.cleaning.quarantine
    until(lambda: not list(daemon.directory.rglob("*.deleted")), "the removal of replaced files")
    assert not daemon.strays()
    daemon.stop()
    assert not daemon.strays()


@pytest.mark.parametrize("worker", ["broker-0", "cleaner-0", "deleter-0", "retention-0"])
def test_a_worker_is_killed_under_load(tmp_path: Path, worker: str) -> None:
    moments = random.Random(worker)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(_KILLS):
                time.sleep(moments.uniform(0.1, 0.8))
                before = daemon.pids()
                daemon.kill(worker)
                after = daemon.pids()
                # The others never notice.
                assert {name: pid for name, pid in after.items() if name != worker} == {
                    name: pid for name, pid in before.items() if name != worker
                }
                load.goes_on()
        assert daemon.worker(worker).restarts == _KILLS
        look_after(daemon, load)


def test_the_coordinator_is_killed_under_load(tmp_path: Path) -> None:
    moments = random.Random(5)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(2):
                time.sleep(moments.uniform(0.3, 1.5))
                daemon.signal(signal.SIGKILL)
                daemon.ended()
                # Its workers end with it: the next one must not share the logs with them.
                until(lambda: not daemon.survivors(), "the end of its workers")
                daemon.start()
                load.goes_on()
        look_after(daemon, load)


def test_a_cleaner_that_is_stopped_in_its_tracks_is_replaced(tmp_path: Path) -> None:
    with Daemon(tmp_path, worker_timeout_ms=4000, worker_heartbeat_ms=200, worker_stop_timeout_ms=500) as daemon:
        create_topics(daemon)
        before = daemon.pids()["cleaner-0"]
        os.kill(before, signal.SIGSTOP)
        until(lambda: (now := daemon.worker("cleaner-0")).pid != before and now.state == "running", "another cleaner")
        producer = daemon.producer()
        try:
            for number in range(200):
                producer.send("users", key=b"k%d" % (number % 7), value=b"%d" % number)
            producer.flush(PATIENCE_SECONDS)
        finally:
            close_producer(producer, 5)
        daemon.clean_now("users")
        latest = {record.key: record.value for part in range(_PARTITIONS) for record in daemon.records("users", part)}
        assert latest == {b"k%d" % (number % 7): b"%d" % number for number in range(193, 200)}
        daemon.stop()
