"""The daemon as a process, with fake workers that are processes too."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from compactd.config.errors import DaemonError, NotRunningError, SettingError
from compactd.coordinator.control.messages import CleanNow, Done, GetStatus, Reload, Reloaded, StopDaemon
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.coordinator.serving import Serving, until


def test_it_starts_serves_and_stops_in_the_order_of_kafka(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        status = serving.status()
        assert (status.state, status.partitions, status.offline, status.cluster_id) == ("running", 4, {}, "fake")
        names = ["broker-0", "broker-1", "cleaner-0", "deleter-0", "retention-0"]
        assert [worker.name for worker in status.workers] == names
        for name in names:
            until(lambda name=name: serving.worker(name).state == "running", name)  # type: ignore[misc]
        assert [(Path(each.path).name, each.partitions) for each in status.log_dirs] == [("d1", 2), ("d2", 2)]
        assert status.loop.turns > status.loop.slow_turns
        assert [line for line in serving.told("broker-0") if line.startswith("assign")] == [
            f"assign users-{number} new=True clean=False point=0 start=0 mark=-1" for number in (0, 2)
        ]
        assert serving.ask(CleanNow(names=("users",))) == Done(lines=("CleanNow",))
        assert serving.stop() == (0, "stopped\n")
        told = serving.told()
        order = ["cleaning stop", "cleaner-0 stop", "broker-0 stop SIGTERM asked for it", "catalogue closed"]
        assert sorted(order, key=told.index) == order
        assert told.index("broker-1 stop SIGTERM asked for it") < told.index("catalogue closed")
        for number, path in enumerate(serving.dirs):
            log_dir = LogDir(path)
            names = [TopicPartition("users", partition) for partition in (number, number + 2)]
            # What the brokers told last, as they closed.
            assert log_dir.recovery_points.read() == dict.fromkeys(names, 198)
            assert log_dir.high_watermarks.read() == dict.fromkeys(names, 199)
            assert log_dir.log_start_offsets.read() == dict.fromkeys(names, 3)
            marker = log_dir.clean_shutdown()
            assert marker is not None
            assert marker.broker_epoch == 7
            assert not (path / ".lock").exists()
        assert not serving.run_dir.exists()
        # The next start trusts what was closed.
        serving.start()
        assert serving.told("broker-0").count("assign users-0 new=False clean=True point=198 start=3 mark=199") == 1
        assert not (serving.dirs[0] / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("kind", ["broker", "cleaner", "retention", "deleter"])
def test_any_worker_may_be_killed(fast_dir: Path, kind: str) -> None:
    with Serving(fast_dir, log_retention_check_interval_ms=50) as serving:
        serving.start()
        until(lambda: [line for line in serving.told("deleter-0") if line.startswith("delete")], "retention")
        serving.kill(f"{kind}-0")
        assert serving.worker(f"{kind}-0").restarts == 1
        assert "out of memory?" in serving.worker(f"{kind}-0").last_exit
        assert any(line.startswith(f"gone {kind}-0 was killed") for line in serving.told("cleaning"))
        if kind == "broker":
            # It is given what it owns again, with the offsets that were known; the other one never notices.
            again = "assign users-0 new=False clean=False point=98 start=3 mark=99"
            until(lambda: again in serving.told("broker-0"), again)
            until(lambda: not serving.status().offline, "its partitions")
            assert not [line for line in serving.told("broker-1") if "new=False" in line]
        if kind == "deleter":
            seen = len(serving.told("deleter-0"))
            until(lambda: len(serving.told("deleter-0")) > seen, "what the deleter before had left")
        assert serving.stop()[0] == 0


def test_all_end_with_a_coordinator_that_is_killed(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        until(lambda: serving.worker("retention-0").state == "running", "the worker that sweeps up")
        workers = [worker.pid for worker in serving.status().workers]
        assert sorted(pid for pid in workers if pid) == sorted(serving.survivors())
        serving.signal(signal.SIGKILL)
        killed = time.monotonic()
        serving.ended()
        until(lambda: not serving.survivors(), "the end of the workers")
        print(f"the workers ended {1000 * (time.monotonic() - killed):.0f} ms after the coordinator")
        until(lambda: not list(serving.run_dir.glob("*.sock")), "the end of the sockets")
        with pytest.raises(NotRunningError):
            serving.ask(GetStatus())
        # Nothing is in the way of the next start, which trusts nothing.
        serving.start()
        assert [line for line in serving.told("broker-0") if "new=False clean=False" in line]
        assert serving.stop()[0] == 0


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("port-is-taken", "the port is taken"),
        ("module-is-missing", "its code cannot be loaded: No module named 'compactd.nowhere'"),
        ("bug", "failed, which is a bug: a bug on purpose, 5 times in a row"),
    ],
)
def test_a_broker_that_cannot_run_ends_the_start(fast_dir: Path, cause: str, words: str) -> None:
    (fast_dir / cause).touch()
    with Serving(fast_dir) as serving:
        serving.spawn()
        code, said = serving.ended()
        assert code == DaemonError.exit_code
        assert words in said
        assert not serving.run_dir.exists()
        assert not (serving.dirs[0] / ".lock").exists()


def test_a_second_daemon_is_refused(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        beside = fast_dir / "beside"
        beside.mkdir()
        for changes, words in (
            ({"log_dirs": [str(path) for path in serving.dirs]}, "its .lock is held"),
            (
                {"run_dir": str(serving.run_dir)},
                f"compactd is running with it already, as process {serving.status().pid}",
            ),
        ):
            with Serving(beside, **changes) as other:
                other.spawn()
                code, said = other.ended()
            assert code == 3
            assert words in said
        assert serving.status().state == "running"


def test_reload_applies_what_may_change_and_refuses_the_rest_by_name(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        # One that comes up later is welcomed with the new settings, and told nothing more.
        until(lambda: serving.worker("cleaner-0").state == "running", "cleaner-0")
        serving.write(
            log_cleaner_threads=2,
            log_cleaner_backoff_ms="1s",
            broker_workers=3,
            log_retention_ms="1d",
            topics={"users": {"cleanup.policy": "compact"}, "fresh": {"partitions": 2}},
        )
        answer = serving.ask(Reload())
        assert isinstance(answer, Reloaded)
        assert "log.cleaner.threads = 2" in answer.applied
        assert "log.cleaner.backoff.ms = 1000" in answer.applied
        # log.retention.ms is the default of a topic's setting: it reaches every topic that has none of its own.
        assert "settings of 1 topics" in answer.applied
        assert answer.refused == ("broker.workers stays 2: 3 counts from the next start on",)
        until(lambda: serving.worker("cleaner-0") and len(serving.status().workers) == 6, "the second cleaner")
        assert "settings" in serving.told("cleaning")
        until(lambda: any("log.cleaner.backoff.ms" in line for line in serving.told("cleaner-0")), "the settings")
        until(lambda: "configs fresh" in serving.told("cleaning"), "the topic of the topics section")
        assert "topic users was altered" in serving.log()
        # SIGHUP does the same; down to none, which only compactd allows.
        serving.write(log_cleaner_threads=0)
        serving.signal(signal.SIGHUP)
        until(lambda: len(serving.status().workers) == 4, "the end of the cleaners")
        # A file that can't be used changes nothing.
        serving.config.write_text("log.cleaner.treads: 2\n")
        with pytest.raises(SettingError, match=r"log\.cleaner\.threads"):
            serving.ask(Reload())
        assert serving.status().state == "running"
        serving.write()
        assert serving.stop()[0] == 0


def test_deleted_topics_are_put_away_and_come_back_under_their_name(fast_dir: Path) -> None:
    with Serving(fast_dir, log_segment_delete_delay_ms=5) as serving:
        serving.start()
        serving.delete("users")
        until(lambda: {"release users-1", "release users-3"} <= set(serving.told("broker-1")), "the owner to let go")
        until(lambda: len([1 for line in serving.told("deleter-0") if line.endswith("-delete")]) == 4, "the deleter")
        until(lambda: LogDir(serving.dirs[0]).recovery_points.read() == {}, "the checkpoints without them")
        assert serving.status().partitions == 0
        serving.create("users", 1)
        assert serving.told("broker-0")[-1] == "assign users-0 new=True clean=False point=0 start=0 mark=-1"
        assert not serving.status().offline
        # With its owner down, somebody else puts the directory away.
        pid = serving.worker("broker-0").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        serving.delete("users")
        serving.create("users", 1)
        until(lambda: not serving.status().offline, "the topic under its old name")
        assert len([path for path in serving.dirs[0].iterdir() if path.name.endswith("-delete")]) == 3
        assert serving.stop()[0] == 0


def test_a_log_dir_that_fails_goes_offline_and_the_others_go_on(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        # An I/O error of the real kind: the checkpoint's temporary file cannot be made.
        (serving.dirs[1] / "replication-offset-checkpoint.tmp").mkdir()
        serving.create("more", 2)
        until(lambda: serving.status().log_dirs[1].offline_because, "the failure")
        status = serving.status()
        assert sorted(status.offline) == ["more-1", "users-1", "users-3"]
        assert all("is offline" in reason for reason in status.offline.values())
        assert not status.log_dirs[0].offline_because
        failed = f"failed {serving.dirs[1]}"
        until(lambda: failed in serving.told("broker-0") and failed in serving.told("broker-1"), "everybody to be told")
        until(lambda: not (serving.dirs[1] / ".lock").exists(), "its lock to be given up")
        assert serving.stop()[0] == 0
        assert LogDir(serving.dirs[0]).clean_shutdown() is not None
        assert LogDir(serving.dirs[1]).clean_shutdown() is None


def test_the_dir_of_the_catalogue_takes_the_daemon_with_it(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        serving.start()
        (serving.dirs[0] / "replication-offset-checkpoint.tmp").mkdir()
        serving.create("more", 2)
        code, said = serving.ended()
        assert code == DaemonError.exit_code
        assert "it holds the catalogue" in said


def test_a_stop_is_bounded_and_what_did_not_close_gets_no_marker(fast_dir: Path) -> None:
    with Serving(fast_dir, slow_stop=1000, worker_stop_timeout_ms=1000, shutdown_timeout_ms=1500) as serving:
        serving.start()
        assert serving.ask(StopDaemon()) == Done(lines=("compactd stops",))
        assert serving.ended()[0] == 1
        assert LogDir(serving.dirs[0]).clean_shutdown() is None
        # What was known is written all the same: recovery begins there.
        assert LogDir(serving.dirs[0]).recovery_points.read()[TopicPartition("users", 0)] == 98


def test_a_second_signal_ends_all_patience(fast_dir: Path) -> None:
    with Serving(fast_dir, slow_stop=1000, worker_stop_timeout_ms=1000) as serving:
        serving.start()
        serving.signal(signal.SIGTERM)
        until(lambda: [line for line in serving.told("broker-0") if line.startswith("stop")], "the stop")
        serving.signal(signal.SIGINT)
        assert serving.ended()[0] == 1
        assert LogDir(serving.dirs[0]).clean_shutdown() is None


def test_a_closed_terminal_stops_what_it_started(fast_dir: Path) -> None:
    with Serving(fast_dir) as serving:
        terminal = serving.start_on_terminal()
        serving.signal(signal.SIGHUP)
        until(lambda: "the configuration was reloaded" in serving.log(), "a reload: the terminal is there")
        os.close(terminal)
        assert serving.ended()[0] == 0
        assert "its terminal was closed" in serving.log()


def test_a_partition_that_cannot_be_loaded_costs_only_itself(fast_dir: Path) -> None:
    with Serving(fast_dir, topics="users:2 bad:1") as serving:
        serving.start()
        assert serving.status().offline == {"bad-0": "its log is damaged"}
        # Its log dir is not known to be whole, and looked at again at the next start; the other one is.
        assert serving.stop()[0] == 1
        assert LogDir(serving.dirs[0]).clean_shutdown() is None
        assert LogDir(serving.dirs[1]).clean_shutdown() is not None


def test_a_daemon_without_topics_leaves_its_dirs_in_good_order_too(fast_dir: Path) -> None:
    with Serving(fast_dir, topics="") as serving:
        serving.start()
        assert serving.stop()[0] == 0
        assert all(LogDir(path).clean_shutdown() for path in serving.dirs)


@pytest.mark.parametrize("topics", ["", "users:4"])
def test_it_runs_when_every_broker_takes_connections(fast_dir: Path, topics: str) -> None:
    with Serving(fast_dir, topics=topics) as serving:
        serving.environment["COMPACTD_TEST_SLOW_SERVING"] = "0.3"
        serving.start()
        assert all("serving" in serving.told(name) for name in ("broker-0", "broker-1"))
