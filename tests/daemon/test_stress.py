"""`compactd stress` and `compactd bench serve` as a person runs them, for a few seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import Daemon


def compactd(directory: Path, *arguments: str, expect: int = 0) -> list[dict[str, Any]]:
    """Runs a command in a process of its own; its JSON lines."""
    done = subprocess.run(
        [sys.executable, "-m", "compactd.scripts", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert done.returncode == expect, done.stdout + done.stderr
    assert not list(directory.glob("compactd-*")), "its data is left over"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_few_seconds_of_stress(tmp_path: Path) -> None:
    *rates, verdict = compactd(tmp_path, "stress", "--seconds", "6", "--keys", "300")
    assert len(rates) >= 2 and any(rate["written_per_second"] > 0 for rate in rates)
    assert verdict["good"] is True and verdict["faults"] == []
    assert verdict["records_written"] > 1000 and verdict["records_read"] > 1000 and verdict["passes"] > 4
    assert verdict["keys"] == 300 and verdict["reconnects"] == 0


def test_stress_while_workers_are_killed(tmp_path: Path) -> None:
    *_, verdict = compactd(tmp_path, "stress", "--seconds", "8", "--kill", "1.5", "--seed", "4")
    # Five where workers come back at once.
    assert verdict["good"] is True and sum(verdict["killed"].values()) >= 1


def test_stress_of_a_server_that_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    directory.mkdir()
    with Daemon(directory) as daemon:
        daemon.create_topic("scratch", 2, cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0.1)
        where = ["--bootstrap-server", daemon.bootstrap, "--topic", "scratch", "--codec", "gzip"]
        *_, verdict = compactd(tmp_path, "stress", "--seconds", "3", *where)
        assert verdict["good"] is True and verdict["records_written"] > 100
        # What it wrote is there; a second run does not know it.
        assert sum(len(daemon.records("scratch", number)) for number in range(2)) > 0
        assert compactd(tmp_path, "stress", "--seconds", "1", *where, expect=2) == []
        daemon.stop()


@pytest.mark.kafka
def test_idle_cost_of_both(tmp_path: Path, oracle_classpath: str) -> None:
    ours, kafka = compactd(tmp_path, "bench", "serve", "--partitions", "20", "--seconds", "1")
    assert (ours["name"], kafka["name"]) == ("compactd", "Kafka")
    assert ours["partitions"] == kafka["partitions"] == 20
    assert ours["processes"] >= 5 and kafka["processes"] == 1
    # Memory does not depend on what else this machine does.
    assert 20_000_000 < ours["pss_bytes"] < min(250_000_000, kafka["pss_bytes"])
    assert ours["first_answer_seconds"] > 0 and ours["cpu_share"] >= 0
