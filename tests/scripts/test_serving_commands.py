"""The commands against compactd serve as it is, cleaners and all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.coordinator.serving import until
from tests.scripts.daemons import RunningDaemon

Run = Callable[..., Result]


def test_a_day_with_the_commands(run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"user{number % 10}:{number}\n" for number in range(1000)))
    with RunningDaemon(tmp_path, real=True, log_cleaner_threads=1, log_cleaner_backoff_ms=50) as daemon:

        def compactd(*arguments: object) -> str:
            result = run(*arguments, "--run-dir", daemon.run_dir)
            assert result.exit_code == 0, result.output
            return result.stdout

        def users(where: str = "partitions") -> list[dict[str, Any]]:
            cleaning = json.loads(compactd("status", "--all", "--json"))["cleaning"]
            found: list[dict[str, Any]] = [each for each in cleaning[where] if "users-0" in each.values()]
            return found

        def records() -> list[str]:
            return compactd("consume", "users", "--from-beginning", "--until-end", "--keys").splitlines()

        compactd("topics", "create", "users", "--set", "cleanup.policy=compact")
        compactd("produce", "users", "--key-separator", ":", "--file", lines)
        until(lambda: users()[0]["size"], "the size of the log")
        assert users()[0]["blockedBy"] == "all that is dirty is in the active segment"
        assert len(records()) == 1000

        assert compactd("clean-now", "users") == "users-0 is cleaned next\n"
        until(lambda: len(records()) == 10, "the clean")
        assert sorted(records()) == [f"user{number}\t{990 + number}" for number in range(10)]
        described = json.loads(compactd("topics", "describe", "users", "--json"))
        assert described["partitions"][0]["logEndOffset"] == 1000

        until(lambda: not users("jobs"), "the end of the clean")
        compactd("pause", "users")
        assert users()[0]["blockedBy"] == "paused by compactd pause"
        assert "are back" in compactd("undo", "users-0")
        assert len(records()) == 1000
        compactd("resume", "users")
        compactd("resume", "users-0")
        compactd("clean-now", "users-0")
        until(lambda: len(records()) == 10, "the clean after the undo")

        shown = json.loads(run("config", daemon.config, "--topic", "users", "--json").stdout.splitlines()[0])
        assert (shown["name"], shown["value"]) == ("cleanup.policy", ["compact"])
        assert shown["source"].startswith("__cluster_metadata-0 ")
        assert compactd("stop").startswith("compactd (pid ")
