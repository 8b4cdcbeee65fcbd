"""`compactd clean`: every option, what is refused, what the reports say, several processes, interruption."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from compactd.config.errors import StorageIOError
from compactd.scripts import demo_logs
from compactd.scripts.clean_workers import Stop, Throttle, threads_for
from compactd.storage import names
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.cleaning.round import CleaningRound
from compactd.storage.kernel import reference_kernel
from compactd.storage.kernel.interface import KernelRound, RoundSettings
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from compactd.storage.records.batch import read_batches
from compactd.storage.swap import replace_segments
from tests.scripts.helpers import NOW, Broker, batch, json_lines, picture

Run = Callable[..., Result]
Real = Callable[..., "subprocess.CompletedProcess[str]"]

#: Exactly what the issue asks for, and what is there beside it.
FIELDS = {
    "topic", "partition", "firstDirtyOffset", "firstUncleanableOffset", "nextDirtyOffset", "rounds", "bytesBefore",
    "bytesAfter", "bytesRead", "bytesWritten", "messagesRead", "messagesWritten", "invalidMessagesRead", "mapEntries",
    "seconds", "indexSeconds", "outcome", "reason",
}  # fmt: skip

COMPACT = ("--set", "cleanup.policy=compact", "--now", NOW)


def clean(run: Run, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = run("clean", "--json", *arguments)
    assert result.exit_code == code, result.stderr
    return json_lines(result.stdout)


def records(directory: Path) -> list[tuple[int, str | None, str | None]]:
    """(offset, key, value) of everything in the partition's live segments."""
    return [
        (r.offset, None if r.key is None else r.key.decode(), None if r.value is None else r.value.decode())
        for log in sorted(directory.glob("*.log"))
        for b in read_batches(log)
        if not b.header.is_control
        for r in b.records()
    ]


def checkpoint(log_dir: Path) -> dict[str, int]:
    return {str(key): offset for key, offset in OffsetCheckpoint(log_dir / CLEANER_OFFSETS).read().items()}


def stray_files(log_dir: Path) -> list[str]:
    return [p.name for p in log_dir.rglob("*") if p.name.endswith((".cleaned", ".swap", ".tmp", ".lock"))]


@pytest.fixture
def dirty(broker: Broker) -> Path:
    """t-0: two closed segments with two of three records superseded, and one record in the active segment."""
    broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"), ("b", "1"))]], active=[batch(3, ("a", "3"))])
    return broker.stop()


def test_cleans_what_is_dirty_and_writes_the_checkpoint(run: Run, dirty: Path) -> None:
    (report,) = clean(run, *COMPACT, dirty)
    assert report.keys() >= FIELDS
    assert records(dirty / "t-0") == [(1, "a", "2"), (2, "b", "1"), (3, "a", "3")]
    assert checkpoint(dirty) == {"t-0": 3}
    assert stray_files(dirty) == []
    expected = {
        "topic": "t", "partition": 0, "firstDirtyOffset": 0, "firstUncleanableOffset": 3, "nextDirtyOffset": 3,
        "rounds": 1, "messagesRead": 3, "messagesWritten": 2, "invalidMessagesRead": 0, "mapEntries": 2,
        "outcome": "cleaned", "reason": "",
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert report["bytesAfter"] < report["bytesBefore"]
    assert report["bytesRead"] > report["bytesWritten"] > 0
    assert report["seconds"] >= report["indexSeconds"] >= 0


def test_the_report_says_where_settings_came_from(run: Run, dirty: Path, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("broker.id=1\nlog.cleaner.delete.retention.ms=5000\n")
    (report,) = clean(run, *COMPACT, "--config", config, dirty)
    assert report["settings"]["cleanup.policy"] == {"value": "compact", "source": "--set"}
    assert report["settings"]["delete.retention.ms"] == {"value": 5000, "source": "server.properties:2"}
    assert report["settings"]["min.cleanable.dirty.ratio"] == {"value": 0.5, "source": "default"}


def test_for_people(run: Run, dirty: Path) -> None:
    result = run("clean", *COMPACT, dirty)
    assert result.exit_code == 0
    heading, row, *rest = result.stdout.splitlines()
    assert heading.split()[:4] == ["partition", "from", "to", "rounds"]
    assert row.split()[:4] == ["t-0", "0", "3", "1"]
    assert "cleanup.policy = compact of t: from --set." in rest
    assert any(line.startswith("Cleaned 1 of 1 partitions: ") for line in rest)
    assert rest[-1].endswith(
        "wait as .deleted until the broker starts; --delete-delay 0 removes each as soon as it is replaced."
    )


def test_a_second_clean_has_nothing_to_do(run: Run, dirty: Path) -> None:
    clean(run, *COMPACT, "--delete-delay", 0, dirty)
    before = picture(dirty)
    (report,) = clean(run, *COMPACT, dirty)
    assert report["outcome"] == "skipped" and report["reason"].startswith("ACTIVE_ONLY: ")
    assert (report["rounds"], report["firstDirtyOffset"], report["nextDirtyOffset"]) == (0, 3, 3)
    assert picture(dirty) == before


def test_delete_policy_is_left_alone(run: Run, dirty: Path) -> None:
    before = picture(dirty)
    (report,) = clean(run, "--force", "--roll", dirty)
    assert report["outcome"] == "skipped"
    assert report["reason"].startswith("POLICY: cleanup.policy is delete (from default)")
    assert picture(dirty) == before
    assert "name the log dir that holds it with --metadata" in run("clean", dirty).stderr


def test_ratio_and_force(run: Run, broker: Broker) -> None:
    """1000 bytes clean and 1000 dirty are not enough: the ratio must be above the limit."""
    pair = batch(0, ("a", "x" * 100))
    broker.partition("t-0", [[pair], [batch(1, ("a", "x" * 100))]])
    path = broker.stop()
    OffsetCheckpoint(path / CLEANER_OFFSETS).write({TopicPartition("t", 0): 1})
    (report,) = clean(run, *COMPACT, path)
    assert report["outcome"] == "skipped"
    assert report["reason"].startswith("RATIO: dirty ratio 0.5000 is not above min.cleanable.dirty.ratio 0.5")
    (report,) = clean(run, *COMPACT, "--set", "min.cleanable.dirty.ratio=0.49", "--dry-run", path)
    assert report["outcome"] == "measured"
    (report,) = clean(run, *COMPACT, "--force", path)
    assert report["outcome"] == "cleaned"
    assert records(path / "t-0") == [(1, "a", "x" * 100)]


def test_min_lag_and_force(run: Run, dirty: Path) -> None:
    lag = ("--set", "min.compaction.lag.ms=2h")
    (report,) = clean(run, *COMPACT, *lag, dirty)
    assert report["outcome"] == "skipped" and report["reason"].startswith("MIN_LAG: ")
    (report,) = clean(run, *COMPACT, *lag, "--force", dirty)
    assert report["outcome"] == "cleaned"


def test_now_decides_what_is_old_enough(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", None), ("b", "1"))]])
    path = broker.stop()
    clean(run, *COMPACT, path)
    assert records(path / "t-0") == [(1, "a", None), (2, "b", "1")]
    day = 86_400_000
    clean(run, "--set", "cleanup.policy=compact", "--force", "--now", NOW + day - 1, path)
    assert records(path / "t-0") == [(1, "a", None), (2, "b", "1")]
    (report,) = clean(run, "--set", "cleanup.policy=compact", "--force", "--now", NOW + day, path)
    assert records(path / "t-0") == [(2, "b", "1")]
    assert report["tombstonesExpired"] == 1


def test_roll_closes_the_active_segment_first(run: Run, dirty: Path) -> None:
    (report,) = clean(run, *COMPACT, "--roll", dirty)
    assert report["nextDirtyOffset"] == 4
    assert records(dirty / "t-0") == [(2, "b", "1"), (3, "a", "3")]
    assert (dirty / "t-0" / names.log_name(4)).read_bytes() == b""
    assert checkpoint(dirty) == {"t-0": 4}


def test_roll_of_a_log_with_an_active_segment_only(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [], active=[batch(0, ("a", "1")), batch(1, ("a", "2"))])
    path = broker.stop()
    (report,) = clean(run, *COMPACT, path)
    assert report["reason"].startswith("ACTIVE_ONLY")
    clean(run, *COMPACT, "--roll", path)
    assert records(path / "t-0") == [(1, "a", "2")]


def test_first_dirty_and_uncleanable_offset(run: Run, broker: Broker) -> None:
    segments = [[batch(n, ("a", str(n)))] for n in range(4)]
    directory = broker.partition("t-0", segments)
    path = broker.stop()
    (report,) = clean(run, *COMPACT, "--uncleanable-offset", 2, directory)
    assert (report["firstUncleanableOffset"], report["nextDirtyOffset"]) == (2, 2)
    assert records(directory) == [(1, "a", "1"), (2, "a", "2"), (3, "a", "3")]
    (report,) = clean(run, *COMPACT, "--first-dirty-offset", 3, directory)
    assert (report["firstDirtyOffset"], report["nextDirtyOffset"]) == (3, 4)
    assert records(directory) == [(3, "a", "3")]
    assert checkpoint(path) == {"t-0": 4}


@pytest.mark.parametrize("option", ["--first-dirty-offset", "--uncleanable-offset", "--high-watermark"])
def test_offsets_are_of_one_partition(run: Run, broker: Broker, option: str) -> None:
    for name in ("t-0", "t-1"):
        broker.partition(name, [[batch(0, ("a", "1"))]])
    result = run("clean", *COMPACT, option, 0, broker.stop())
    assert result.exit_code == 2
    assert "one partition" in result.stderr


def test_offsets_outside_the_log_are_wrong_usage(run: Run, dirty: Path) -> None:
    result = run("clean", *COMPACT, "--first-dirty-offset", 99, dirty / "t-0")
    assert result.exit_code == 2
    assert "--first-dirty-offset 99: the log of t-0 runs from 0 to 4" in result.stderr
    assert stray_files(dirty) == []


def test_high_watermark_limits_and_is_overridden(run: Run, broker: Broker) -> None:
    directory = broker.partition("t-0", [[batch(n, ("a", str(n)))] for n in range(3)])
    path = broker.stop()
    LogDir(path).high_watermarks.write({TopicPartition("t", 0): 1})
    (report,) = clean(run, *COMPACT, path)
    assert report["firstUncleanableOffset"] == 1
    (report,) = clean(run, *COMPACT, "--high-watermark", 3, directory)
    assert report["firstUncleanableOffset"] == 3
    assert records(directory) == [(2, "a", "2")]


def test_without_high_watermarks_the_log_end_counts_and_the_report_says_so(run: Run, dirty: Path) -> None:
    (dirty / "replication-offset-checkpoint").unlink()
    (report,) = clean(run, *COMPACT, dirty)
    assert report["outcome"] == "cleaned"
    assert any("replication-offset-checkpoint" in note and "log end offset" in note for note in report["notes"])


def test_delete_delay(run: Run, broker: Broker) -> None:
    for name in ("t-0", "t-1"):
        broker.partition(name, [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))]])
    path = broker.stop()
    clean(run, *COMPACT, path / "t-0")
    assert len(list((path / "t-0").glob("*.deleted"))) >= 3
    clean(run, *COMPACT, "--delete-delay", 0, path / "t-1")
    assert not list((path / "t-1").glob("*.deleted"))


@pytest.fixture
def groups(broker: Broker) -> Path:
    """Three segments of which each loses a record, and none fits a group with another."""
    broker.partition("t-0", [[batch(2 * n, (f"k{n}", "1"), (f"k{n}", "2"))] for n in range(3)])
    return broker.stop()


def test_without_a_delay_no_replaced_file_is_left_when_the_next_group_is_swapped(
    run: Run, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a clean needs no more room than its largest group, as was checked at its start."""
    left = []

    def swap(directory: Path, *bases: Any) -> list[Path]:
        left.append(sorted(directory.glob("*.deleted")))
        return replace_segments(directory, *bases)

    monkeypatch.setattr("compactd.storage.cleaning.run.replace_segments", swap)
    clean(run, *COMPACT, "--set", "internal.segment.bytes=1", "--delete-delay", 0, groups)
    assert left == [[], [], []]
    assert not list((groups / "t-0").glob("*.deleted"))


def test_a_failed_clean_says_what_room_its_replaced_files_take(
    run: Run, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CleaningRound._write_cleaned

    def write_cleaned(self: CleaningRound, group: Any, *more: Any) -> Any:
        if group[0].base_offset == 4:
            raise StorageIOError(path=str(groups), action="write", reason="no space left on the device")
        return write(self, group, *more)

    monkeypatch.setattr(CleaningRound, "_write_cleaned", write_cleaned)
    (report,) = clean(run, *COMPACT, "--set", "internal.segment.bytes=1", groups, code=4)
    size = sum(path.stat().st_size for path in (groups / "t-0").glob("*.deleted"))
    assert size and f"6 replaced files ({size} bytes) take room as .deleted" in report["notes"][-1]


def test_delete_delay_waits(run: Run, dirty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clean(run, *COMPACT, "--delete-delay", 1500, dirty)
    assert slept == [1.5]
    assert not list(dirty.rglob("*.deleted"))


def test_a_small_map_takes_rounds_until_nothing_is_dirty_or_one_with_once(run: Run, broker: Broker) -> None:
    """A map of 3 keys over 5 keys twice: Kafka's arithmetic, so the rounds end where Kafka's would."""
    keys = [*"abcde", *"abcde"]
    for name in ("t-0", "t-1"):
        broker.partition(name, [[batch(n, (key, str(n))) for n, key in enumerate(keys)]])
    path = broker.stop()
    tiny = ("--kafka-map", "--set", "log.cleaner.dedupe.buffer.size=96")
    (report,) = clean(run, *COMPACT, *tiny, "--once", path / "t-0")
    assert (report["rounds"], report["nextDirtyOffset"], report["mapEntries"]) == (1, 3, 3)
    (report,) = clean(run, *COMPACT, *tiny, path / "t-1")
    assert report["rounds"] > 1 and report["nextDirtyOffset"] == 10
    assert [r[0] for r in records(path / "t-1")] == [5, 6, 7, 8, 9]


def test_a_small_buffer_needs_kafka_map(run: Run, dirty: Path) -> None:
    result = run("clean", *COMPACT, "--set", "log.cleaner.dedupe.buffer.size=1000", dirty)
    assert result.exit_code == 2
    assert "must be more than 1 MiB" in result.stderr
    result = run("clean", *COMPACT, "--workers", 64, "--set", "log.cleaner.dedupe.buffer.size=64MiB", dirty)
    assert result.exit_code == 2
    assert "64 cleaner threads" in result.stderr


def test_dry_run_writes_nothing_and_tells_what_a_clean_would_free(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]], active=[batch(2, ("a", "3"))])
    path = broker.stop()
    before = picture(path)
    with LogDir(path).lock():  # a broker may be running
        locked = picture(path)
        (promise,) = clean(run, *COMPACT, "--dry-run", "--roll", path)
        assert picture(path) == locked
    assert picture(path).keys() == before.keys()
    assert promise["outcome"] == "measured"
    (kept,) = clean(run, *COMPACT, "--roll", path)
    assert (promise["bytesBefore"], promise["bytesAfter"]) == (kept["bytesBefore"], kept["bytesAfter"])
    assert "would free" in run("clean", *COMPACT, "--dry-run", "--force", path).stdout


def test_a_held_lock_is_refused(run: Run, dirty: Path) -> None:
    with LogDir(dirty).lock():
        for path in (dirty, dirty / "t-0"):
            result = run("clean", *COMPACT, path)
            assert result.exit_code == 3
            assert "its .lock is held" in result.stderr and "Stop it first" in result.stderr
            assert result.stdout == ""


@pytest.mark.parametrize("state", ["delete", "future", "stray"])
def test_other_states_are_refused_when_named_and_passed_by_otherwise(run: Run, broker: Broker, state: str) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    path = broker.stop()
    other = path / f"a.b-c.d-1.{'0' * 32}-{state}"
    (path / "t-0").rename(other)
    before = picture(other)
    (report,) = clean(run, *COMPACT, other, code=3)
    assert report["outcome"] == "refused"
    assert (report["topic"], report["partition"]) == ("a.b-c.d", 1)
    assert clean(run, *COMPACT, path) == []
    assert picture(other) == before


def test_a_partition_in_two_log_dirs_of_one_broker_is_refused_in_both(run: Run, tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        broker = Broker(tmp_path / name)
        broker.partition("a.b-1", [[batch(0, ("a", "1"), ("a", "2"))]])
        paths.append(broker.stop())
    reports = clean(run, *COMPACT, *paths, code=3)
    assert [(r["topic"], r["partition"], r["outcome"]) for r in reports] == [("a.b", 1, "refused")] * 2


def test_the_metadata_log_is_refused(run: Run, broker: Broker) -> None:
    directory = broker.partition("__cluster_metadata-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    broker.stop()
    (report,) = clean(run, *COMPACT, directory, code=3)
    assert report["outcome"] == "refused" and "snapshots" in report["reason"]


@pytest.mark.parametrize("entries", [(3, -5, 5, 900), (3, 7, 5, 1 << 20), (2, 140, 4, 71)])
def test_an_offset_index_that_leads_nowhere_costs_time_and_nothing_else(
    run: Run, broker: Broker, entries: tuple[int, ...]
) -> None:
    """Of a clean stop's files Kafka believes it; here it is asked where to begin to read, and the .log knows better."""
    batches = [batch(n, (f"k{n % 3}", str(n))) for n in range(6)]
    broker.partition("t-0", [batches], active=[batch(6, ("a", "3"))])
    path = broker.stop()
    index = path / "t-0" / names.offset_index_name(0)
    index.write_bytes(struct.pack(">iiii", *entries))
    (report,) = clean(run, *COMPACT, "--first-dirty-offset", 3, path)
    assert report["outcome"] == "cleaned"
    assert records(path / "t-0") == [(3, "k0", "3"), (4, "k1", "4"), (5, "k2", "5"), (6, "a", "3")]


def test_damage_stops_that_partition_only(run: Run, broker: Broker) -> None:
    bad = bytearray(batch(1, ("a", "2")))
    bad[-2] ^= 0x10
    broker.partition("bad-0", [[batch(0, ("a", "1"))], [bytes(bad)], [batch(2, ("a", "3"))]])
    broker.partition("good-0", [[batch(0, ("b", "1"))], [batch(1, ("b", "2"))]])
    path = broker.stop()
    before = picture(path / "bad-0")
    reports = {r["topic"]: r for r in clean(run, *COMPACT, path, code=1)}
    assert reports["bad"]["outcome"] == "faulty"
    for words in (names.log_name(1), "byte 0", "offsets 1 to 1", "CRC"):
        assert words in reports["bad"]["reason"]
    assert picture(path / "bad-0") == before
    assert reports["good"]["outcome"] == "cleaned"
    assert checkpoint(path) == {"good-0": 2}


def test_a_checkpoint_outside_the_log_is_corrected(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [], active=[batch(0, ("a", "1"))])
    path = broker.stop()
    OffsetCheckpoint(path / CLEANER_OFFSETS).write({TopicPartition("t", 0): 500, TopicPartition("gone", 7): 3})
    clean(run, *COMPACT, "--dry-run", path)
    assert checkpoint(path)["t-0"] == 500
    clean(run, *COMPACT, path)
    assert checkpoint(path) == {"t-0": 0, "gone-7": 3}


def test_filthiest_first_over_all_paths(run: Run, tmp_path: Path) -> None:
    paths = []
    for number, clean_segments in enumerate((2, 0, 1)):
        other = Broker(tmp_path / f"disk{number}")
        segments = [[batch(n, ("a", "x" * 100))] for n in range(clean_segments + 4)]
        other.partition(f"t{number}-0", segments)
        paths.append(other.stop())
        OffsetCheckpoint(paths[-1] / CLEANER_OFFSETS).write({TopicPartition(f"t{number}", 0): clean_segments})
    assert [r["topic"] for r in clean(run, *COMPACT, *paths)] == ["t1", "t2", "t0"]
    assert [checkpoint(path) for path in paths] == [{"t0-0": 6}, {"t1-0": 4}, {"t2-0": 5}]


def test_wrong_usage(run: Run, dirty: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["--set", "cleanup.policy"], "write NAME=VALUE"),
        (["--set", "cleanup.polcy=compact"], "the nearest is cleanup.policy"),
        (["--set", "min.cleanable.dirty.ratio=2"], "min.cleanable.dirty.ratio"),
        (["--config", str(tmp_path / "absent.yaml")], "absent.yaml"),
        (["--metadata", str(tmp_path)], "no __cluster_metadata-0"),
        (["--workers", "0"], "--workers"),
        (["--now", "-5"], "--now"),
    ):
        result = run("clean", *arguments, dirty)
        assert result.exit_code == 2, arguments
        assert words in result.stderr
    assert run("clean", tmp_path / "absent").exit_code == 2
    (tmp_path / "empty").mkdir()
    result = run("clean", tmp_path / "empty")
    assert result.exit_code == 2 and "neither a log dir" in result.stderr


def test_settings_from_yaml_for_one_topic(run: Run, broker: Broker, tmp_path: Path) -> None:
    for name in ("t-0", "u-0"):
        broker.partition(name, [[batch(0, ("a", "1"), ("a", "2"))]])
    config = tmp_path / "topics.yaml"
    config.write_text("topics:\n  t:\n    cleanup.policy: compact\n")
    reports = {r["topic"]: r for r in clean(run, "--config", config, "--now", NOW, broker.stop())}
    assert (reports["t"]["outcome"], reports["u"]["outcome"]) == ("cleaned", "skipped")
    assert reports["t"]["settings"]["cleanup.policy"]["source"] == "topics.yaml:3"


def many_partitions(broker: Broker) -> Path:
    for number in range(5):
        segments = [[batch(n, ("ab"[n % 2], f"{number} {n}")) for n in range(s * 10, s * 10 + 10)] for s in range(3)]
        broker.partition(f"t-{number}", segments)
    return broker.stop()


def test_several_workers_leave_the_same_bytes(compactd: Real, tmp_path: Path) -> None:
    one, three = (many_partitions(Broker(tmp_path / name)) for name in ("one", "three"))
    for path, workers in ((one, 1), (three, 3)):
        result = compactd("clean", "--json", "--workers", workers, "--delete-delay", 0, *COMPACT, path)
        assert result.returncode == 0, result.stderr
        reports = json_lines(result.stdout)
        assert sorted(r["partition"] for r in reports) == [0, 1, 2, 3, 4]
        assert {r["outcome"] for r in reports} == {"cleaned"}
        assert checkpoint(path) == {f"t-{n}": 30 for n in range(5)}
    for directory in sorted(one.glob("t-*")):
        for file in sorted(directory.iterdir()):
            if file.name != names.PARTITION_METADATA:
                assert file.read_bytes() == (three / directory.name / file.name).read_bytes(), file
    assert stray_files(one) == stray_files(three) == []


@pytest.mark.parametrize(
    ("workers", "left", "threads"), [(1, 1, 1), (4, 9, 1), (4, 4, 1), (4, 3, 1), (4, 2, 2), (4, 1, 4), (8, 3, 2)]
)
def test_partitions_share_the_threads_of_workers_without_one(workers: int, left: int, threads: int) -> None:
    assert threads_for(workers, left) == threads


def test_an_only_partition_gets_the_threads_of_all_workers(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.partition("users-0", [[batch(0, ("a", "1")), batch(1, ("a", "2"))], [batch(2, ("b", "1"))]])
    asked: list[int] = []

    def begin(settings: RoundSettings) -> KernelRound:
        asked.append(settings.threads)
        return reference_kernel().begin_round(settings)

    kernel = type("Spy", (), {"name": "reference", "begin_round": staticmethod(begin)})
    monkeypatch.setattr("compactd.scripts.clean_workers.active_kernel", lambda: kernel)
    clean(run, "--workers", 3, "--force", *COMPACT, broker.stop())
    assert asked == [3]


def test_workers_report_damage_and_go_on(compactd: Real, broker: Broker) -> None:
    path = many_partitions(broker)
    log = path / "t-2" / names.log_name(10)
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)
    result = compactd("clean", "--json", "--workers", 2, *COMPACT, path)
    assert result.returncode == 1
    outcomes = {r["partition"]: r["outcome"] for r in json_lines(result.stdout)}
    assert outcomes == {0: "cleaned", 1: "cleaned", 2: "faulty", 3: "cleaned", 4: "cleaned"}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A log that a throttled clean is at for minutes."""
    demo_logs.write_demo(tmp_path / "large", NOW)
    return tmp_path / "large"


def _slowly(path: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Starts a clean at 5 MB/s; returns when the small log is done and the million-record one is what it is at."""
    slow = ("--set", "log.cleaner.io.max.bytes.per.second=5000000")
    command = [sys.executable, "-m", "compactd.scripts", "clean", "--json", *slow, *COMPACT, *arguments, path]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdout is not None
    (report,) = json_lines(process.stdout.readline().decode())
    assert (report["topic"], report["outcome"]) == ("compact-test", "cleaned")
    time.sleep(0.3)
    assert process.poll() is None
    return process


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_clean_leaves_the_log_as_it_was_and_gives_up_the_lock(
    large: Path, workers: int, number: signal.Signals, code: int
) -> None:
    before = picture(large / str(demo_logs.MILLION))
    process = _slowly(large, "--workers", workers)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert b"Traceback" not in errors
    assert picture(large / str(demo_logs.MILLION)) == before
    assert stray_files(large) == []


def test_workers_do_not_outlive_a_killed_parent(large: Path) -> None:
    """Its locks are free at once: no worker may touch a file after that."""
    process = _slowly(large, "--workers", 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while _members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _members(process.pid) == []


def _members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def test_a_worker_that_dies_costs_its_partition_only(large: Path) -> None:
    process = _slowly(large, "--workers", 2)
    workers = [pid for pid in _members(process.pid) if pid != process.pid and _is_worker(pid)]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    out, errors = process.communicate(timeout=120)
    (report,) = json_lines(out.decode())
    assert process.returncode == 4, errors
    assert (report["topic"], report["outcome"]) == ("million", "failed")
    assert "died with signal 9 (SIGKILL)" in report["reason"]


def _is_worker(pid: int) -> bool:
    try:
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return b"spawn_main" in command


def test_a_closed_pipe_of_json_is_quiet(broker: Broker) -> None:
    path = many_partitions(broker)
    command = [sys.executable, "-m", "compactd.scripts", "clean", "--json", *map(str, COMPACT), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert b"Traceback" not in errors
    assert stray_files(path) == []


def test_throttle_keeps_to_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    throttle = Throttle(10_000)
    for _ in range(100):
        clock[0] += 0.01
        throttle.observe(1000, lambda: None)
    assert clock[0] == pytest.approx(10.0, rel=0.1)  # 100,000 bytes at 10,000 a second


def test_stop_waits_for_a_good_place_once() -> None:
    with pytest.raises(KeyboardInterrupt), Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        stop.check()
        reached = False
    assert reached
    with pytest.raises(KeyboardInterrupt), Stop():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal must not wait")


def test_json_has_nothing_else_on_stdout(compactd: Real, dirty: Path) -> None:
    result = compactd("clean", "--json", dirty)
    assert [json.loads(line)["topic"] for line in result.stdout.splitlines()] == ["t"]
    assert result.stderr.startswith("warning: there is no __cluster_metadata-0")
