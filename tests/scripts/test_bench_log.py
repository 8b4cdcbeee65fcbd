"""`compactd bench log`: every case runs and is told of, and nothing is left behind. No time is looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.config.errors import UsageError
from compactd.scripts.bench.log_cases import ALL_CASES, choose_cases
from tests.scripts.helpers import json_lines

Run = Callable[..., Result]

TINY = ("--scale", 0.001, "--repeat", 1)


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_every_case_as_json_lines(run: Run, tmp_path: Path) -> None:
    result = run("bench", "log", "--json", *TINY, "--directory", tmp_path)
    assert result.exit_code == 0, result.stderr
    header, *cases = json_lines(result.stdout)
    assert (header["type"], header["bench"], header["kafka"], header["repeat"]) == ("bench", "log", "4.4.0", 1)
    assert [case["case"] for case in cases] == [case.name for case in ALL_CASES]
    for case in cases:
        assert case["bytes"] > 0 and case["operations"] >= 1
        assert case["ratioMin"] == pytest.approx(case["kafkaSeconds"] / case["compactdSeconds"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_table(run: Run, tmp_path: Path) -> None:
    result = run("bench", "log", *TINY, "--case", "fsync each", "--directory", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "append 1 record, fsync each" in result.stdout and "append 100 records, fsync each" in result.stdout
    assert "times as fast as Kafka" in result.stdout
    assert "recover" not in result.stdout.partition("case  ")[2]


def test_cases_are_chosen_by_part_of_their_name() -> None:
    assert choose_cases(()) == ALL_CASES
    assert {case.kind for case in choose_cases(("read",))} == {"read"}
    with pytest.raises(UsageError, match="no case has 'nonsense'"):
        choose_cases(("append", "nonsense"))
