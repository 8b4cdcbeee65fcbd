"""Two log dirs, one of which fails: its partitions answer with Kafka's error, everything on the other is served on."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from compactd.workers.broker.errors import ErrorCode
from tests.daemon.daemons import Daemon, until
from tests.workers.broker.batches import batch, fetch, produce
from tests.workers.broker.harness import RawClient

ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35
_PARTITIONS = 4


def connect(daemon: Daemon) -> RawClient:
    """A daemon without partitions says that it serves a moment before its broker listens."""

    def attempt() -> RawClient | None:
        with contextlib.suppress(ConnectionRefusedError):
            return RawClient(int(daemon.bootstrap.rsplit(":", 1)[1]))
        return None

    found = until(attempt, "a connection")
    assert found is not None
    return found


class Split:
    """A topic whose partitions lie on both log dirs; `bad` are those on d2."""

    def __init__(self, daemon: Daemon, client: RawClient) -> None:
        self.daemon, self.client = daemon, client
        daemon.create_topic("users", _PARTITIONS, cleanup_policy="compact", segment_ms=1000)
        self.bad = [number for number in range(_PARTITIONS) if (daemon.dirs[1] / f"users-{number}").is_dir()]
        self.good = [number for number in range(_PARTITIONS) if (daemon.dirs[0] / f"users-{number}").is_dir()]
        assert len(self.bad) == len(self.good) == _PARTITIONS // 2
        self.written: dict[int, list[bytes]] = {number: [] for number in range(_PARTITIONS)}

    def write(self, partition: int, value: bytes) -> int:
        """The error code of a produce request with acks=all."""
        answer = produce(self.client, batch([value]), "users", partition)
        if not answer.error_code:
            self.written[partition].append(value)
        return int(answer.error_code)

    def verify(self) -> None:
        """Once d2 is offline."""
        (dir_status,) = [each for each in self.daemon.status().log_dirs if each.path == str(self.daemon.dirs[1])]
        assert dir_status.offline_because
        offline = self.daemon.status().offline
        assert set(offline) == {f"users-{number}" for number in self.bad}
        for number in self.bad:
            assert self.write(number, b"late") == ErrorCode.KAFKA_STORAGE_ERROR
            assert fetch(self.client, 0, "users", partition=number).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for number in self.good:
            assert self.write(number, b"still served") == 0
            assert [record.value for record in self.daemon.records("users", number)] == self.written[number]
        # What comes new is put where there is a disk.
        self.daemon.create_topic("more", 2)
        assert all((self.daemon.dirs[0] / f"more-{number}").is_dir() for number in range(2))
        assert {worker.state for worker in self.daemon.status().workers} == {"running"}


def test_a_disk_that_is_gone(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, connect(daemon) as client:
        split = Split(daemon, client)
        for number in range(_PARTITIONS):
            assert split.write(number, b"first") == 0
        (tmp_path / "d2").rename(tmp_path / "unplugged")
        until(lambda: daemon.status().offline, "the failure of d2")
        split.verify()
        # A stop in good order but for what could not be closed: it says so, and the good dir has its marker.
        daemon.signal(signal.SIGTERM)
        code, _ = daemon.ended()
        assert code in (0, 1) and (tmp_path / "d1" / ".kafka_cleanshutdown").exists()
        assert not (tmp_path / "unplugged" / ".kafka_cleanshutdown").exists()
        (tmp_path / "unplugged").rename(tmp_path / "d2")
        # With the disk back everything is there again.
        daemon.start()
        for number in range(_PARTITIONS):
            assert [record.value for record in daemon.records("users", number)] == split.written[number]
        daemon.stop()


def test_a_disk_that_is_full(tmp_path: Path, small_disk: Path) -> None:
    with Daemon(tmp_path) as daemon, connect(daemon) as client:
        split = Split(daemon, client)
        for number in range(_PARTITIONS):
            assert split.write(number, b"first") == 0
        code = 0
        for _ in range(20):
            code = split.write(split.bad[0], os.urandom(500_000))
            if code:
                break
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        until(lambda: daemon.status().offline, "the failure of d2")
        split.verify()
        daemon.signal(signal.SIGTERM)
        daemon.ended()
        assert (tmp_path / "d1" / ".kafka_cleanshutdown").exists()


def test_a_dir_that_could_not_be_used_from_the_start(tmp_path: Path) -> None:
    """Clients are told so, also by a broker that started after it had failed; nothing is moved there."""
    (tmp_path / "d2").write_text("no directory")
    with Daemon(tmp_path) as daemon:
        daemon.create_topic("users", 1)
        for _ in range(2):
            with connect(daemon) as client:
                told = client.ask(DESCRIBE_LOG_DIRS, 4, {"topics": None}).results
                assert {each.log_dir: int(each.error_code) for each in told} == {
                    str(daemon.dirs[0]): 0,
                    str(daemon.dirs[1]): ErrorCode.KAFKA_STORAGE_ERROR,
                }
                rows = [{"path": str(daemon.dirs[1]), "topics": [{"name": "users", "partitions": [0]}]}]
                moved = client.ask(ALTER_REPLICA_LOG_DIRS, 2, {"dirs": rows}).results[0].partitions[0]
                assert moved.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            daemon.kill("broker-0")
            until(lambda: not daemon.status().offline, "its partitions")
        daemon.signal(signal.SIGTERM)
        daemon.ended()
