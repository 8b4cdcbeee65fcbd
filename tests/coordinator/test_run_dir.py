from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from compactd.config.errors import NotRunningError, RefusedError
from compactd.coordinator import run_dir
from compactd.coordinator.run_dir import RunDir, check_running, default_run_dir, find_run_dir
from compactd.workers.process import sweep

_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


def test_it_is_private_held_by_one_and_gone_afterwards(fast_dir: Path) -> None:
    path = fast_dir / "a" / "run"
    with RunDir(path, [str(fast_dir / "log")]) as held:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        held.control_socket.touch()
        assert check_running(path) == os.getpid()
        with pytest.raises(RefusedError, match=f"running with it already, as process {os.getpid()}"):
            RunDir(path, [])
        # Whoever sweeps up after a dead coordinator leaves a living one alone.
        assert not sweep(path)
        assert held.control_socket.exists()
    assert not path.exists()
    held.close()
    with pytest.raises(NotRunningError):
        check_running(path)


def test_sockets_of_a_dead_coordinator_are_swept_away(fast_dir: Path) -> None:
    for name in ("coordinator.lock", "workers.sock", "control.sock"):
        (fast_dir / name).touch()
    assert sweep(fast_dir)
    assert [path.name for path in fast_dir.iterdir()] == ["coordinator.lock"]
    assert not sweep(fast_dir / "nowhere")


def test_a_new_coordinator_waits_for_the_workers_of_the_one_before(
    fast_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fast_dir / "run"
    path.mkdir(0o700)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path / "workers.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        worker.stdout.readline()
        monkeypatch.setattr(run_dir, "WAIT_SECONDS", 0.05)
        with pytest.raises(RefusedError, match="still alive, and may still write"):
            RunDir(path, [])
        monkeypatch.setattr(run_dir, "WAIT_SECONDS", 30.0)
        worker.stdin.close()
        RunDir(path, []).close()


def test_what_is_not_private_or_lies_in_a_log_dir_is_refused(fast_dir: Path) -> None:
    log_dir = fast_dir / "log"
    log_dir.mkdir()
    (fast_dir / "link").symlink_to(log_dir)
    for path in (log_dir / "run", fast_dir / "link" / "run"):
        with pytest.raises(RefusedError, match="keeps Kafka from starting"):
            RunDir(path, [str(log_dir)])
    assert list(log_dir.iterdir()) == []
    open_one = fast_dir / "open"
    open_one.mkdir(0o755)
    open_one.chmod(0o755)
    for path in (open_one, fast_dir / "link"):
        with pytest.raises(RefusedError, match="mode 0700"):
            RunDir(path, [])
    with pytest.raises(RefusedError, match="shorter path"):
        RunDir(fast_dir / ("x" * 100), [])


def test_a_directory_with_other_things_in_it_stays(fast_dir: Path) -> None:
    path = fast_dir / "run"
    path.mkdir(0o700)
    (path / "mine").touch()
    RunDir(path, []).close()
    assert [each.name for each in path.iterdir()] == ["mine"]


def test_the_default_is_one_place_for_each_first_log_dir(fast_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    one, other = default_run_dir(fast_dir / "a"), default_run_dir(fast_dir / "b")
    assert one != other
    assert one.parent == Path(f"/tmp/compactd-{os.geteuid()}")
    (fast_dir / "link").symlink_to(fast_dir / "a")
    assert default_run_dir(fast_dir / "link") == one
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(fast_dir))
    assert default_run_dir(fast_dir / "a").parent == fast_dir
    assert find_run_dir("somewhere", ["x"]) == Path.cwd() / "somewhere"
    assert find_run_dir("", [str(fast_dir / "a")]) == default_run_dir(fast_dir / "a")
    assert run_dir.running_dirs() == []
    with RunDir(default_run_dir(fast_dir / "a"), []) as held:
        assert run_dir.running_dirs() == [held.path]
