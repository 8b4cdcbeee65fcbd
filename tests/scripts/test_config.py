from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from compactd.config.table import SETTINGS

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The default log dir is a relative one.
    monkeypatch.chdir(tmp_path)


def lines(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {each["name"]: each for each in map(json.loads, result.stdout.splitlines())}


def test_every_setting_is_shown_once_with_its_default(run: Run) -> None:
    shown = lines(run("config", "--json"))
    assert set(shown) == {setting.name for setting in SETTINGS if not setting.hidden}
    for setting in SETTINGS:
        if not setting.hidden:
            entry = shown[setting.name]
            assert entry["source"] == "default"
            assert entry["meaning"] == setting.description
            assert set(entry) == {
                "name", "brokerNames", "scope", "value", "default", "source", "type", "unit", "range", "dynamic", "meaning",
            }  # fmt: skip
    assert shown["log.dirs"]["value"] == ["data/d1"]
    assert shown["retention.ms"]["value"] == 604_800_000


def test_values_say_which_line_they_come_from(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "compactd.yaml"
    file.write_text(
        f"log.dirs: {tmp_path / 'd1'}\n"
        "log.segment.bytes: 128MiB\n"
        "topics:\n"
        "  users:\n"
        "    cleanup.policy: compact\n"
        "    partitions: 3\n"
    )
    plain = lines(run("config", file, "--set", "log.cleaner.threads=3", "--changed", "--json"))
    assert {name: (entry["value"], entry["source"]) for name, entry in plain.items()} == {
        "segment.bytes": (128 << 20, "compactd.yaml:2"),
        "log.dirs": ([str(tmp_path / "d1")], "compactd.yaml:1"),
        "log.cleaner.threads": (3, "--set"),
    }
    users = lines(run("config", "--config", file, "--topic", "users", "--changed", "--json"))
    assert users["cleanup.policy"]["value"] == ["compact"]
    assert users["cleanup.policy"]["source"] == "compactd.yaml:5"


def test_every_setting_is_shown_as_it_was_given(run: Run) -> None:
    # The one whose configuration has another name for it.
    (row,) = lines(run("config", "--set", "log.cleaner.io.buffer.load.factor=0.5", "--changed", "--json")).values()
    assert row["value"] == 0.5


def test_what_has_no_effect_is_shown_with_the_reason(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path}/d1\nnum.io.threads=8\nbackground.threads=4\n")
    result = run("config", file, "--changed")
    assert result.exit_code == 0
    told = result.stdout.partition("Given, but not used")[2]
    assert "num.io.threads" in told
    assert "whose number is broker.workers" in told
    assert "background.threads" in told
    file.write_text("transaction.two.phase.commit.enable=true\n")
    refused = run("config", file)
    assert refused.exit_code == 2
    assert "server.properties:1" in refused.stderr
    assert "two-phase commit cannot be had" in refused.stderr


def test_a_person_reads_a_table(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path}/d1\nlog.retention.hours=24\nlog.segmnt.bytes=5\n")
    result = run("config", file, "--changed")
    assert result.exit_code == 0
    title, head, row = result.stdout.splitlines()[:3]
    assert title == "Topics, unless they have their own"
    assert head.split() == ["setting", "value", "source", "meaning"]
    assert row.split("  ")[0] == "retention.ms"
    assert "86400000 (1d)" in row
    assert "server.properties:2" in row
    assert "warning: server.properties:3: log.segmnt.bytes is not used" in result.stderr
    assert "did you mean log.segment.bytes?" in result.stderr
    assert run("config", "--changed").stdout == "every setting has its default\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "log.segmnt.bytes=5"], "the nearest is log.segment.bytes"),
        (["--set", "num.partitions=0"], "must be 1 or more"),
        (["--topic", "nix"], "no topic 'nix' in the file or the catalogue"),
        (["a.yaml", "--config", "b.yaml"], "give the file once"),
        (["a.yaml"], "a.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_ends_with_2(run: Run, arguments: list[str], said: str) -> None:
    result = run("config", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
