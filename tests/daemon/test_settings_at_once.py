"""Settings that clients change while the daemon runs: they count at once, and after a restart; pauses outlast one, too."""

from __future__ import annotations

from pathlib import Path

from compactd.coordinator.control.messages import Done, GetStatus, Pause, Resume, Status
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.daemon.daemons import Daemon, until
from tests.oracle.visit import Visit
from tests.oracle.world import BROKER, NODE, TOPIC, Stored, World

#: A value that a few of make a log whose clean takes a while at the slowest rate.
_LARGE = b"x" * 200_000


def serving(directory: Path) -> Daemon:
    return Daemon(
        directory,
        log_retention_check_interval_ms=200,
        log_cleaner_backoff_ms=200,
        log_cleaner_dedupe_buffer_size=16 << 20,
        log_segment_delete_delay_ms=500,
    )


def cleaners(daemon: Daemon) -> int:
    return len([worker for worker in daemon.status().workers if worker.kind == "cleaner" and worker.state == "running"])


def cleaning(daemon: Daemon) -> Status:
    answer = daemon.ask(GetStatus(all_partitions=True))
    assert isinstance(answer, Status)
    return answer


def checkpoint(daemon: Daemon, name: str) -> int:
    partition = TopicPartition(name, 0)
    return max(LogDir(path).cleaner_offsets.read().get(partition, -1) for path in daemon.dirs)


def test_retention_and_threads(tmp_path: Path) -> None:
    world = World()
    with serving(tmp_path) as daemon:
        with Visit(world, daemon.bootstrap) as visit:
            for name in ("sized", "aged"):
                visit.create(name, segment_ms=60_000, file_delete_delay_ms=500)
                visit.produce(name, {0: visit.closing_rows(3, 5)}, apart=True)
            places = ("sized", 0), ("aged", 0)
            assert visit.starts(places) == dict.fromkeys(places, 0)
            # A topic's own.
            visit.alter(TOPIC, "sized", retention_bytes="1")
            until(lambda: visit.starts(places)["sized", 0] == 4, "retention by size")
            # Everybody's: the newest record is days old, too, so the active segment is rolled and goes.
            assert visit.starts(places)["aged", 0] == 0
            visit.alter(BROKER, "", log_retention_ms="3600000")
            until(lambda: visit.starts(places) == dict.fromkeys(places, 5), "retention by time")
            world.starts = dict.fromkeys(places, 5)
            visit.alter(BROKER, NODE, log_cleaner_threads="2")
            until(lambda: cleaners(daemon) == 2, "a second cleaner")
            visit.verify()
        daemon.stop()
        daemon.start()
        until(lambda: cleaners(daemon) == 2, "both cleaners again")
        with Visit(world, daemon.bootstrap) as visit:
            visit.verify()
            visit.alter(BROKER, NODE, log_cleaner_threads="1")
            until(lambda: cleaners(daemon) == 1, "one cleaner less")
            visit.alter(BROKER, "", log_retention_ms=None)
            rows = [Stored(b"k", b"v", (), world.old_ms)]
            visit.produce("aged", {0: rows})
            visit.verify()
        daemon.stop()


def test_a_clean_is_throttled_freed_and_called_off(tmp_path: Path) -> None:
    world = World()
    with serving(tmp_path) as daemon:
        with Visit(world, daemon.bootstrap) as visit:
            visit.alter(BROKER, "", log_cleaner_io_max_bytes_per_second="50000")
            visit.create(
                "users",
                cleanup_policy="compact",
                segment_ms=60_000,
                min_cleanable_dirty_ratio=0.01,
                file_delete_delay_ms=500,
            )

            def fill() -> int:
                rows = visit.closing_rows(2, 8)
                large = [Stored(row.key, _LARGE + (row.value or b""), (), row.timestamp) for row in rows]
                visit.produce("users", {0: large}, apart=True)
                return visit.last_offset(("users", 0)) - 1

            def is_cleaned() -> bool:
                return any(job.partition == "users-0" for job in cleaning(daemon).cleaning.jobs)

            end = fill()
            until(is_cleaned, "a clean")
            # Over a megabyte at that rate takes half a minute: it is under way when its topic is compacted no more.
            assert checkpoint(daemon, "users") < end
            visit.alter(TOPIC, "users", cleanup_policy="delete")
            until(lambda: not is_cleaned(), "its end")
            assert checkpoint(daemon, "users") < end
            visit.verify()
            visit.alter(TOPIC, "users", cleanup_policy="compact")
            until(is_cleaned, "another one")
            visit.alter(BROKER, "", log_cleaner_io_max_bytes_per_second=None)
            until(lambda: checkpoint(daemon, "users") >= end, "the clean at full speed")
            visit.verify()
            assert isinstance(daemon.ask(Pause(names=("users",))), Done)
            end = fill()
        daemon.stop()
        daemon.start()
        assert cleaning(daemon).cleaning.paused == ("users",)
        blocked = until(
            lambda: [each.blocked_by for each in cleaning(daemon).cleaning.partitions if each.name == "users-0"],
            "users among the partitions",
        )
        assert blocked == ["paused by compactd pause"]
        assert checkpoint(daemon, "users") < end
        assert isinstance(daemon.ask(Resume(names=("users",))), Done)
        until(lambda: checkpoint(daemon, "users") >= end, "the clean after the pause")
        with Visit(world, daemon.bootstrap) as visit:
            visit.verify()
        daemon.stop()
