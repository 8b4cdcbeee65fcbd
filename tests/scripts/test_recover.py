"""`compactd recover`: what it mends, what it says, what it refuses, and what the next start finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.storage import names
from compactd.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
)
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.scripts.helpers import NOW, Broker, batch, json_lines, picture

Run = Callable[..., Result]
FIELDS = {
    "topic", "partition", "logStartOffset", "logEndOffset", "lastStableOffset", "highWatermark", "recoveryPoint",
    "segments", "actions", "done", "notes", "directory", "outcome",
}  # fmt: skip


@pytest.fixture
def killed(broker: Broker) -> Path:
    """A broker killed while it appended: no marker, a torn batch, a preallocated index, recovery points behind."""
    directory = broker.partition(
        "t-0", [[batch(0, ("a", "1"), ("b", "1"))]], active=[batch(2, ("a", "2")), batch(3, ("c", "1"))]
    )
    broker.partition("u-1", [], active=[batch(0, ("x", "1"))])
    path = broker.stop()
    (path / names.CLEAN_SHUTDOWN).unlink()
    LogDir(path).recovery_points.write({TopicPartition("t", 0): 2})
    with (directory / names.log_name(2)).open("ab") as file:
        file.write(batch(4, ("d", "1"))[:-7])
    (directory / names.offset_index_name(2)).write_bytes(bytes(4096))
    return path


def test_a_killed_broker(run: Run, killed: Path) -> None:
    done = run("recover", "--json", killed)
    assert done.exit_code == 0, done.output
    first, second = json_lines(done.stdout)
    assert set(first) == FIELDS
    assert (first["topic"], first["partition"], first["logStartOffset"], first["logEndOffset"]) == ("t", 0, 0, 4)
    assert [segment["baseOffset"] for segment in first["segments"]] == [0, 2]
    assert [action["kind"] for action in first["actions"]].count("cut") == 1
    assert second["logEndOffset"] == 1
    log_dir = LogDir(killed)
    assert log_dir.clean_shutdown() is not None
    assert log_dir.recovery_points.read() == {TopicPartition("t", 0): 4, TopicPartition("u", 1): 1}
    assert (killed / "t-0" / names.offset_index_name(2)).stat().st_size < 100
    assert not (killed / names.LOCK).exists()


def test_recovering_again_changes_no_log(run: Run, killed: Path) -> None:
    assert run("recover", killed).exit_code == 0
    before = picture(killed / "t-0")
    text = run("recover", killed)
    assert text.exit_code == 0
    assert "in order" in text.stdout
    assert picture(killed / "t-0") == before


def test_it_says_what_it_cut(run: Run, killed: Path) -> None:
    text = run("recover", killed).stdout
    assert "cut" in text
    assert f"{names.log_name(2)}: " in text and "truncated" in text


def test_options_are_of_one_partition(run: Run, killed: Path) -> None:
    for option in ("--recovery-point", "--log-start-offset"):
        assert run("recover", option, 0, killed).exit_code == 2
    done = run("recover", "--json", "--log-start-offset", 3, killed / "t-0")
    assert done.exit_code == 0, done.output
    assert json_lines(done.stdout)[0]["logStartOffset"] == 3
    assert LogDir(killed).log_start_offsets.read() == {TopicPartition("t", 0): 3}
    assert LogDir(killed).clean_shutdown() is None, "the other partition of this dir was not looked at"


def test_clean_and_unclean_override_the_marker(run: Run, killed: Path) -> None:
    whole = killed / "u-1" / names.log_name(0)
    LogDir(killed).recovery_points.write({TopicPartition("u", 1): 1})
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    whole.write_bytes(bytes(data))
    assert json_lines(run("recover", "--json", "--clean", killed / "u-1").stdout)[0]["logEndOffset"] == 1
    done = json_lines(run("recover", "--json", "--unclean", "--recovery-point", 0, killed / "u-1").stdout)
    assert done[0]["logEndOffset"] == 0


def test_a_log_below_its_start_is_emptied(run: Run, killed: Path) -> None:
    OffsetCheckpoint(killed / LOG_START_OFFSETS).write({TopicPartition("t", 0): 90})
    done = json_lines(run("recover", "--json", killed).stdout)
    assert (done[0]["logStartOffset"], done[0]["logEndOffset"]) == (90, 90)


def test_checkpoints_beyond_the_log_are_put_right(run: Run, killed: Path) -> None:
    name = TopicPartition("t", 0)
    LogDir(killed).high_watermarks.write({name: 5})
    LogDir(killed).cleaner_offsets.write({name: 5})
    done = run("recover", killed)
    assert OffsetCheckpoint(killed / HIGH_WATERMARKS).read() == {name: 4}
    assert OffsetCheckpoint(killed / CLEANER_OFFSETS).read() == {name: 0}
    assert "lies beyond the log's end" in done.stderr


def test_damaged_checkpoints_cost_their_entries_only(run: Run, killed: Path) -> None:
    (killed / RECOVERY_POINTS).write_bytes(b"aa")
    (killed / (RECOVERY_POINTS + ".tmp")).write_bytes(b"half")
    done = run("recover", killed)
    assert done.exit_code == 0
    assert "malformed" in done.stderr
    assert OffsetCheckpoint(killed / RECOVERY_POINTS).read() == {TopicPartition("t", 0): 4, TopicPartition("u", 1): 1}
    assert not list(killed.glob("*.tmp"))


def test_a_held_lock_is_refused(run: Run, killed: Path) -> None:
    before = picture(killed)
    with LogDir(killed).lock():
        done = run("recover", killed)
    assert done.exit_code == 3
    assert "lock" in done.stderr
    assert {name: state for name, state in picture(killed).items() if name != names.LOCK} == before


def test_set_aside_dirs_are_refused_by_name_and_passed_by_in_a_log_dir(run: Run, killed: Path) -> None:
    aside = killed / ("s-0." + "a" * 32 + "-stray")
    shutil.copytree(killed / "u-1", aside)
    assert run("recover", aside).exit_code == 3
    assert len(json_lines(run("recover", "--json", killed).stdout)) == 2


def test_a_copy_of_a_partition_gets_no_checkpoints(run: Run, killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed / "t-0", tmp_path / "backup" / "t-0")
    done = run("recover", "--unclean", "--now", NOW, tmp_path / "backup" / "t-0")
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["t-0"]


def test_a_start_without_the_partition_next_to_an_unreadable_one(run: Run, killed: Path) -> None:
    """One partition that cannot be mended keeps its dir from being marked, not the others from being recovered."""
    with (killed / "u-1" / names.log_name(0)).open("wb") as file:
        file.truncate(2**31)
    done = run("recover", "--json", killed)
    assert done.exit_code == 1
    assert [report["outcome"] for report in json_lines(done.stdout)] == ["done", "failed"]
    assert LogDir(killed).clean_shutdown() is None
