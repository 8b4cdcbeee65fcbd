"""What `compactd serve` refuses before anything runs, and how other commands find a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.config.errors import NotRunningError, UsageError
from compactd.coordinator.control.messages import ChangeCatalogue, GetStatus, Status
from compactd.coordinator.control.socket import ControlClient, ControlServer
from compactd.coordinator.loop import Loop
from compactd.coordinator.run_dir import RunDir, default_run_dir
from compactd.scripts import running
from compactd.storage.log_dir import LogDir
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, to_raw


@pytest.fixture(autouse=True)
def _own_places(fast_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(fast_dir))
    monkeypatch.setattr("compactd.coordinator.run_dir._shared", lambda: fast_dir / "shared")
    monkeypatch.chdir(fast_dir)


def test_settings_are_checked_first(run: Callable[..., Result], fast_dir: Path) -> None:
    config = fast_dir / "compactd.yaml"
    config.write_text("log.dirs: a\nlog.cleaner.treads: 2\n")
    result = run("serve", "--config", config)
    assert result.exit_code == 2
    assert "compactd.yaml:2" in result.stderr
    assert "the nearest is log.cleaner.threads" in result.stderr
    assert run("serve", "--set", "listeners=SSL://:1").exit_code == 2
    assert run("serve", "--config", fast_dir / "nowhere").exit_code == 2
    assert sorted(path.name for path in fast_dir.iterdir()) == ["compactd.yaml"]


def test_a_log_dir_in_use_is_refused_and_nothing_stays_behind(run: Callable[..., Result], fast_dir: Path) -> None:
    (fast_dir / "d1").mkdir()
    with LogDir(fast_dir / "d1").lock():
        result = run("serve", "--set", f"log.dirs={fast_dir / 'd1'}")
    assert result.exit_code == 3
    assert "its .lock is held" in result.stderr
    assert sorted(path.name for path in fast_dir.iterdir()) == ["d1"]


def test_what_has_no_effect_is_told_and_what_would_be_missed_is_refused(
    run: Callable[..., Result], fast_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (fast_dir / "d1").mkdir()
    config = fast_dir / "server.properties"
    lines = f"log.dirs={fast_dir / 'd1'}\nnum.io.threads=8\nbackground.threads=4\n"
    config.write_text(lines)
    with LogDir(fast_dir / "d1").lock():  # it gets no further
        told = run("serve", "--config", config)
    assert told.exit_code == 3
    log = capfd.readouterr().err
    assert "server.properties:2: num.io.threads: a Kafka setting that has no effect here: requests" in log
    assert "server.properties:3: background.threads: a Kafka setting that has no effect here" in log
    config.write_text(f"{lines}offsets.topic.replication.factor=3\n")
    refused = run("serve", "--config", config)
    assert refused.exit_code == 2
    assert "server.properties:4: setting offsets.topic.replication.factor = '3'" in refused.stderr
    assert list((fast_dir / "d1").iterdir()) == []


def test_a_run_dir_inside_a_log_dir_is_refused(run: Callable[..., Result], fast_dir: Path) -> None:
    result = run("serve", "--set", f"log.dirs={fast_dir}", "--set", f"run.dir={fast_dir}/run")
    assert result.exit_code == 3
    assert "foreign directory" in result.stderr


def test_commands_find_the_daemon(fast_dir: Path) -> None:
    with pytest.raises(NotRunningError, match="compactd serve"):
        running.connect(None, None)
    config = fast_dir / "compactd.yaml"
    config.write_text(f"log.dirs: {fast_dir / 'one'}\n")
    loop = Loop()
    with RunDir(default_run_dir(fast_dir / "one"), []) as one:
        server = ControlServer(loop, one.control_socket, lambda request, answer: None)
        # By its settings, by its directory, or because it is the only one.
        for arguments in ((config, None), (None, one.path), (None, None)):
            with running.connect(*arguments) as client:
                assert client.run_dir == one.path
        with RunDir(default_run_dir(fast_dir / "two"), []) as two:
            with pytest.raises(UsageError, match="2 daemons are running") as refused:
                running.connect(None, None)
            assert str(two.path) in str(refused.value)
            with running.connect(config, None) as client:
                assert client.run_dir == one.path
        server.close()
    loop.close()


def _status(client: ControlClient, wanted: Callable[[Status], bool]) -> Status:
    end = time.monotonic() + 60
    while True:
        answer = client.ask(GetStatus())
        assert isinstance(answer, Status)
        if wanted(answer):
            return answer
        assert time.monotonic() < end, answer
        time.sleep(0.05)


def test_it_serves_in_earnest(fast_dir: Path) -> None:
    command = [sys.executable, "-m", "compactd.scripts", "serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    with (
        open(fast_dir / "log", "wb") as log,
        subprocess.Popen(command, cwd=fast_dir, stdout=subprocess.PIPE, stderr=log, text=True) as daemon,
    ):
        try:
            assert daemon.stdout is not None
            first = daemon.stdout.readline()
            assert first.startswith("compactd serves Kafka clients at 127.0.0.1:"), (fast_dir / "log").read_text()
            said = list(iter(daemon.stdout.readline, "Ctrl-C stops it in good order.\n"))
            with running.connect(None, None) as client:
                topics = CreateTopics(topics=(NewTopic(name="users", num_partitions=3),))
                client.ask(ChangeCatalogue(operation="create_topics", arguments=to_raw(topics)))
                status = _status(client, lambda status: not status.offline)
                assert (status.topics, status.partitions) == (1, 3)
                (broker,) = [worker for worker in status.workers if worker.kind == "broker"]
                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGKILL)
                _status(client, lambda status: bool(status.offline) or status.workers[0].restarts > 0)
                status = _status(client, lambda status: not status.offline)
                assert status.workers[0].address == broker.address
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, (fast_dir / "log").read_text()
    assert any("compactd status --watch" in line for line in said)
    lines = [json.loads(line) for line in (fast_dir / "log").read_text().splitlines()]
    assert {line["process"] for line in lines} >= {"coordinator"}
    log_dir = LogDir(fast_dir / "data" / "d1")
    assert log_dir.clean_shutdown() is not None
    assert len(log_dir.recovery_points.read()) == 3
    assert not (log_dir.path / ".lock").exists()
