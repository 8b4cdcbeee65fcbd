from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from rich.console import Console

from compactd.coordinator.control.messages import (
    CleaningStatus,
    DeleterStatus,
    JobStatus,
    LogDirStatus,
    LoopStatus,
    PartitionStatus,
    QuarantineStatus,
    Status,
    WorkerStatus,
)
from compactd.scripts.status_screen import screen_of
from compactd.scripts.status_view import to_json, view_of
from tests.scripts.daemons import RunningDaemon

Run = Callable[..., Result]

COMPACTD = (sys.executable, "-m", "compactd.scripts")

#: 2026-01-01T00:00:00Z.
NOW = 1_767_225_600_000

JOB = JobStatus(
    partition="users-0",
    worker="cleaner-0",
    phase="copying",
    bytes_total=4_000_000,
    bytes_read=1_000_000,
    bytes_written=400_000,
    records_read=12_345,
    bytes_per_second=52_340_000.0,
    records_per_second=612_345.6,
    map_fill=0.42,
    seconds_left=75.4,
)
DIRTY = PartitionStatus(
    name="users-1",
    log_dir="/d1",
    log_start_offset=0,
    log_end_offset=900,
    size=3 << 20,
    segments=4,
    dirty_ratio=0.48,
    dirty_bytes=1 << 20,
    blocked_by="the dirty ratio is 0.480, and has to be above 0.500",
)
LAGGING = PartitionStatus(
    name="orders-2",
    log_dir="/d1",
    log_start_offset=0,
    log_end_offset=900,
    size=5000,
    segments=2,
    dirty_ratio=0.91,
    dirty_bytes=4500,
    blocked_by="min.compaction.lag.ms keeps records of the last hour",
    clears_at_ms=NOW + 185_000,
)
PLAIN = PartitionStatus(name="events-0", log_dir="/d1", log_start_offset=5, log_end_offset=9, size=77, segments=1)
SET_ASIDE = QuarantineStatus(
    partition="users-3",
    since_ms=NOW - 60_000,
    retry_at_ms=NOW + 300_000,
    attempts=2,
    error="CorruptBatchError",
    reason="its CRC does not match",
    fields={"path": "/d1/users-3/00000000000000000000.log", "position": "4096"},
)


def status(**changes: object) -> Status:
    fields: dict[str, object] = {
        "version": "0.1.0",
        "pid": 4711,
        "state": "running",
        "up_seconds": 7200.0,
        "now_ms": NOW,
        "cluster_id": "abc",
        "node_id": 1,
        "topics": 3,
        "partitions": 1,
        "offline": {},
        "workers": (
            WorkerStatus(
                name="broker-0", kind="broker", number=0, state="running", phase="serving", pid=5, address="h:9"
            ),
            WorkerStatus(name="cleaner-0", kind="cleaner", number=0, state="running", phase="cleaning", pid=6),
        ),
        "log_dirs": (LogDirStatus(path="/d1", partitions=1, free_bytes=3 << 30, total_bytes=12 << 30),),
        "cleaning": CleaningStatus(jobs=(JOB,), partitions=(PLAIN, DIRTY, LAGGING)),
        "deleter": DeleterStatus(queued=2, queued_bytes=2048, removed=7, next_due_ms=NOW + 61_000),
        "loop": LoopStatus(turns=1000, slow_turns=1, slowest_ms=123.4, slowest="Catalogue.change", busy_seconds=36.0),
        **changes,
    }
    return Status(**fields)  # type: ignore[arg-type]


def sections(shown: Status, most: int | None = 20) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {section.title: section.rows for section in view_of(shown, most).sections}


def test_the_dirtiest_come_first_with_the_reason_and_when_it_clears() -> None:
    assert sections(status())["Partitions by dirty ratio"] == (
        ("orders-2", "0.910", "4.4 KiB", "4.9 KiB", "2", LAGGING.blocked_by, "in 3 min 5 s"),
        ("users-1", "0.480", "1.0 MiB", "3.0 MiB", "4", DIRTY.blocked_by, "-"),
    )


def test_all_lists_partitions_that_are_not_compacted_too() -> None:
    rows = sections(status(), None)["Partitions by dirty ratio"]
    assert rows[-1] == ("events-0", "-", "-", "77 B", "1", "its topic is not compacted", "-")
    assert len(rows) == 3


def test_a_log_without_a_ratio_says_why_too() -> None:
    active = msgspec.structs.replace(PLAIN, name="new-0", blocked_by="all that is dirty is in the active segment")
    rows = sections(status(cleaning=CleaningStatus(partitions=(active, PLAIN))))["Partitions by dirty ratio"]
    assert rows == (("new-0", "-", "0 B", "77 B", "1", "all that is dirty is in the active segment", "-"),)


def test_equals_come_by_size_then_number_and_empty_ones_only_where_all_are_asked_for() -> None:
    partitions = tuple(
        msgspec.structs.replace(PLAIN, name=name, size=size, blocked_by="nothing is dirty")
        for name, size in (("a-10", 5), ("a-9", 5), ("empty-0", 0), ("large-0", 9))
    )
    shown = status(cleaning=CleaningStatus(partitions=partitions))
    assert [row[0] for row in sections(shown)["Partitions by dirty ratio"]] == ["large-0", "a-9", "a-10"]
    assert [row[0] for row in sections(shown, None)["Partitions by dirty ratio"]][-1] == "empty-0"
    notes = [note for section in view_of(status(cleaning=CleaningStatus())).sections for note in section.notes]
    assert notes[0] == "no compacted topic has records"


def test_what_is_left_out_is_counted() -> None:
    (section,) = [each for each in view_of(status(), 1).sections if each.title.startswith("Partitions")]
    assert [row[0] for row in section.rows] == ["orders-2"]
    assert section.notes == ("and 1 less dirty ones: --all lists them",)


def test_a_running_clean_shows_rates_map_and_time_left() -> None:
    assert sections(status())["Cleaning now"] == (
        ("cleaner-0", "users-0", "copying", "25.0 %", "52.3", "612,346", "42 %", "585.9 KiB", "1 min 15 s"),
    )
    assert sections(status())["Processes"][1][:2] == ("cleaner-0", "copying users-0")


def test_quarantine_names_file_place_and_cause_and_raises_an_alarm() -> None:
    view = view_of(status(cleaning=CleaningStatus(quarantine=(SET_ASIDE,))))
    (section,) = [each for each in view.sections if each.title == "Quarantine"]
    assert section.rows == (
        (
            "users-3",
            "2025-12-31T23:59:00Z",
            "2",
            "in 5 min",
            "/d1/users-3/00000000000000000000.log at byte 4096",
            "its CRC does not match",
        ),
    )
    assert view.alarms == ("1 partition in quarantine",)


def test_trouble_is_said_first() -> None:
    broken = status(
        offline={"users-0": "its log dir /d2 is offline: I/O error", "users-1": "broker-0 is loading it"},
        log_dirs=(
            LogDirStatus(path="/d2", partitions=1, free_bytes=0, total_bytes=0, offline_because="I/O error"),
            LogDirStatus(path="/d3", partitions=1, free_bytes=1, total_bytes=4, cordoned=True),
        ),
        workers=(
            WorkerStatus(name="cleaner-0", kind="cleaner", number=0, state="given up", last_exit="died of signal 9"),
            WorkerStatus(name="broker-0", kind="broker", number=0, state="running", phase="idle", silent_seconds=8.0),
        ),
        cleaning=CleaningStatus(paused=("users",), held_by="tasks wait for I/O 80 % of the time"),
    )
    view = view_of(broken)
    assert view.alarms == (
        "log dir /d2 is offline: I/O error",
        "cleaner-0 is given up: died of signal 9",
        "2 partitions are not served",
    )
    found = sections(broken)
    assert found["Not served"][0] == ("users-0", "its log dir /d2 is offline: I/O error")
    assert [row[-1] for row in found["Log dirs"]] == ["offline: I/O error", "online, cordoned"]
    assert [row[1] for row in found["Processes"]] == ["given up", "idle, silent for 8.0 s"]
    notes = [note for section in view.sections for note in section.notes]
    assert "paused: users; `compactd resume` goes on" in notes
    assert "no clean is begun: tasks wait for I/O 80 % of the time" in notes


def test_moves_are_told() -> None:
    assert sections(status(moves={"users-1": "/d2", "users-0": "/d3"}))["On their way"] == (
        ("users-0", "/d3"),
        ("users-1", "/d2"),
    )


def test_the_rest_tells_of_the_deleter_and_of_the_loop() -> None:
    notes = view_of(status()).sections[-1].notes
    assert notes == (
        "deleter: 2 files queued, 2.0 KiB, next in 1 min 1 s; 7 removed",
        "coordinator: 1,000 turns, 1 of them over 100 ms, slowest 123 ms (Catalogue.change), busy 0.5 %",
    )


def test_json_has_everything_in_camel_case() -> None:
    shown = to_json(status(offline={"a_b-0": "why"}, cleaning=CleaningStatus(jobs=(JOB,), quarantine=(SET_ASIDE,))))
    assert json.loads(json.dumps(shown)) == shown
    assert set(shown) == {
        "version", "pid", "state", "upSeconds", "nowMs", "clusterId", "nodeId", "topics", "partitions", "offline",
        "workers", "logDirs", "cleaning", "deleter", "loop", "metrics", "moves",
    }  # fmt: skip
    # Names of partitions and of an error's fields are data.
    assert shown["offline"] == {"a_b-0": "why"}
    assert shown["cleaning"]["quarantine"][0]["fields"] == SET_ASIDE.fields
    assert shown["cleaning"]["jobs"][0] == {
        "partition": "users-0",
        "worker": "cleaner-0",
        "phase": "copying",
        "bytesTotal": 4_000_000,
        "bytesRead": 1_000_000,
        "bytesWritten": 400_000,
        "recordsRead": 12_345,
        "bytesPerSecond": 52_340_000.0,
        "recordsPerSecond": 612_345.6,
        "mapFill": 0.42,
        "secondsLeft": 75.4,
    }


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_the_screen_fits_the_terminal(width: int, height: int) -> None:
    many = tuple(msgspec.structs.replace(DIRTY, name=f"users-{number}") for number in range(500))
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True)
    shown = screen_of(status(cleaning=CleaningStatus(jobs=(JOB,), partitions=many)), console, False)
    lines = console.render_lines(shown, pad=False)
    text = ["".join(segment.text for segment in line) for line in lines]
    assert len(text) <= height
    assert all(len(line) <= width for line in text)
    assert "compactd 0.1.0 is running" in text[0]
    assert any(line.startswith("cleaner-0") and "52.3" in line for line in text)
    assert sum(line.startswith("users-") for line in text) >= 3
    assert any("Ctrl-C ends this" in line for line in text)


# ---- with a daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("status")) as running:
        yield running


def test_status_of_a_running_daemon(daemon: RunningDaemon, run: Run) -> None:
    daemon.cleaning(CleaningStatus(partitions=(DIRTY, LAGGING), quarantine=(SET_ASIDE,)))
    result = run("status", "--run-dir", daemon.run_dir)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("compactd ")
    assert " is running, up " in lines[0]
    assert lines[1] == "! 1 partition in quarantine"
    assert any(line.startswith("broker-0") and daemon.address in line for line in lines)
    assert any(line.startswith("orders-2") and LAGGING.blocked_by in line for line in lines)
    assert any(line.startswith(str(daemon.log_dir)) and line.endswith("online") for line in lines)
    asked = json.loads(run("status", "--config", daemon.config, "--json").stdout)
    assert asked["state"] == "running"
    assert [worker["name"] for worker in asked["workers"]] == ["broker-0", "deleter-0", "retention-0"]


@pytest.mark.parametrize("ends", ["Ctrl-C", "the daemon"])
def test_watch_leaves_the_terminal_as_it_was(tmp_path: Path, ends: str) -> None:
    with RunningDaemon(tmp_path) as daemon:
        daemon.cleaning(CleaningStatus(jobs=(JOB,)))
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [*COMPACTD, "status", "--watch", "--interval", "0.1", "--run-dir", daemon.run_dir],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        )
        os.close(slave)
        shown = b""
        try:
            end = time.monotonic() + 60
            while shown.count(b"users-0") < 3:
                assert time.monotonic() < end, shown
                shown += _read(master)
            if ends == "Ctrl-C":
                process.send_signal(signal.SIGINT)
            else:
                assert daemon.process is not None
                daemon.process.terminate()
            while process.poll() is None:
                assert time.monotonic() < end, shown
                shown += _read(master)
            while chunk := _read(master):
                shown += chunk
        finally:
            process.kill()
            process.wait()
            os.close(master)
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")
    after = shown[shown.index(b"\x1b[?1049l") :]
    if ends == "Ctrl-C":
        assert process.returncode == 0
        assert b"compactd" not in after
    else:
        assert process.returncode == 3
        assert b"no compactd is running there" in after


def _read(descriptor: int) -> bytes:
    """What is there within a second; nothing when the other end is closed."""
    if not select.select([descriptor], [], [], 1)[0]:
        return b""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_watch_in_a_pipe_is_a_line_each_time(daemon: RunningDaemon) -> None:
    process = subprocess.Popen(
        [*COMPACTD, "status", "--watch", "--json", "--interval", "0.1", "--run-dir", daemon.run_dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said == ""
    assert second["nowMs"] > first["nowMs"]


def test_no_daemon_is_said_in_words(run: Run, tmp_path: Path) -> None:
    result = run("status", "--run-dir", tmp_path / "none")
    assert result.exit_code == 3
    assert result.stderr == (
        f"compactd: {tmp_path}/none: no compactd is running there. "
        "Start one with `compactd serve`, or name its --run-dir or --config.\n"
    )
