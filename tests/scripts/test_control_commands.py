from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.scripts.daemons import RunningDaemon

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "told", "said"),
    [
        (["clean-now", "users", "orders-3"], "CleanNow users,orders-3", "CleanNow: users, orders-3"),
        (["pause"], "Pause ", "Pause: everything"),
        (["pause", "users"], "Pause users", "Pause: users"),
        (["resume"], "Resume ", "Resume: everything"),
        (["retry", "users-0"], "Retry users-0", "Retry: users-0"),
        (["undo", "users-0"], "Undo users-0", "Undo: users-0"),
    ],
)
def test_the_daemon_is_told_and_its_words_are_printed(
    daemon: RunningDaemon, run: Run, arguments: list[str], told: str, said: str
) -> None:
    result = run(*arguments, "--run-dir", daemon.run_dir)
    assert (result.exit_code, result.stdout) == (0, f"{said}\n")
    assert daemon.told[-1] == told
    as_json = run(*arguments, "--json", "--config", daemon.config)
    assert json.loads(as_json.stdout) == {"lines": [said]}


def test_a_refusal_keeps_its_words_and_ends_with_3(daemon: RunningDaemon, run: Run) -> None:
    result = run("clean-now", "nosuch", "--run-dir", daemon.run_dir)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "compactd: nosuch: refused, there is no such topic. Look at the list.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "clean-now a",
        "pause",
        "resume",
        "retry",
        "undo a-0",
        "reload",
        "stop",
        "status",
        "topics list",
        "produce a",
        "consume a",
    ],
)
def test_without_a_daemon_each_says_so_and_ends_with_3(run: Run, tmp_path: Path, arguments: str) -> None:
    result = run(*arguments.split(), "--run-dir", tmp_path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"{tmp_path}: no compactd is running there. Start one with `compactd serve`" in result.stderr


def test_names_are_asked_for_where_all_cannot_be_meant(run: Run) -> None:
    assert run("clean-now").exit_code == 2
    assert run("undo").exit_code == 2


def test_reload_lists_what_changed_and_what_a_restart_would(daemon: RunningDaemon, run: Run) -> None:
    assert run("reload", "--run-dir", daemon.run_dir).stdout == "nothing changed\n"
    daemon.write(log_cleaner_backoff_ms=777)
    applied = run("reload", "--run-dir", daemon.run_dir)
    assert applied.exit_code == 0
    assert "log.cleaner.backoff.ms" in applied.stdout
    assert "777" in applied.stdout
    daemon.write(node_id=9)
    refused = run("reload", "--run-dir", daemon.run_dir, "--json")
    assert refused.exit_code == 3
    answer = json.loads(refused.stdout)
    assert answer["applied"] == []
    assert [line.split()[0].rstrip(":") for line in answer["refused"]] == ["node.id"]
    daemon.write(node_id=1)


def test_stop_waits_for_the_end(run: Run, tmp_path: Path) -> None:
    with RunningDaemon(tmp_path) as daemon:
        pid = daemon.status().pid
        result = run("stop", "--run-dir", daemon.run_dir)
        assert result.exit_code == 0
        assert result.stdout.startswith(f"compactd (pid {pid}) stopped in ")
        assert daemon.process is not None
        assert daemon.process.wait(60) == 0
        assert run("stop", "--run-dir", daemon.run_dir).exit_code == 3
