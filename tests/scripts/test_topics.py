from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from tests.scripts.daemons import RunningDaemon

Topics = Callable[..., Result]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("topics")) as running:
        yield running


@pytest.fixture
def topics(daemon: RunningDaemon, run: Callable[..., Result]) -> Topics:
    def call(command: str, *arguments: str) -> Result:
        return run("topics", command, *arguments, "--run-dir", daemon.run_dir)

    return call


def described(topics: Topics, name: str) -> dict[str, Any]:
    result = topics("describe", name, "--json")
    assert result.exit_code == 0, result.output
    fields: dict[str, Any] = json.loads(result.stdout)
    return fields


def test_the_life_of_a_topic(daemon: RunningDaemon, topics: Topics) -> None:
    sets = ("--set", "cleanup.policy=compact", "--set", "segment.ms=7d", "--set", "segment.bytes=128MiB")
    created = topics("create", "life", "--partitions", "2", *sets)
    assert (created.exit_code, created.stdout) == (0, "topic life was created, 2 partitions\n")
    # Units are this program's: the catalogue keeps what Kafka could read.
    assert described(topics, "life")["configs"] == {
        "cleanup.policy": "compact",
        "segment.ms": "604800000",
        "segment.bytes": "134217728",
    }
    assert sorted(path.name for path in daemon.log_dir.glob("life-*")) == ["life-0", "life-1"]

    altered = topics(
        "alter", "life", "--set", "min.cleanable.dirty.ratio=0.1", "--unset", "segment.ms", "--partitions", "3"
    )
    assert (altered.exit_code, altered.stdout) == (0, "topic life has its new settings\ntopic life has 3 partitions\n")
    after = described(topics, "life")
    assert after["configs"] == {
        "cleanup.policy": "compact",
        "segment.bytes": "134217728",
        "min.cleanable.dirty.ratio": "0.1",
    }
    assert after["effective"]["segment.ms"] == "604800000"
    assert after["effective"]["min.cleanable.dirty.ratio"] == "0.1"
    assert after["partitions"][2] == {
        "partition": 2,
        "worker": "broker-0",
        "logDir": str(daemon.log_dir),
        "leaderEpoch": 0,
        "logStartOffset": 0,
        "logEndOffset": 0,
        "highWatermark": 0,
        "size": 0,
        "segments": 1,
        "notServedBecause": "",
    }

    deleted = topics("delete", "life")
    assert (deleted.exit_code, deleted.stdout) == (0, "topic life was deleted\n")
    assert topics("describe", "life").exit_code == 3


def test_what_a_person_sees_of_a_topic(topics: Topics) -> None:
    topics("create", "seen", "--set", "cleanup.policy=compact")
    (row,) = [line for line in topics("list").stdout.splitlines() if line.startswith("seen ")]
    assert row.split() == ["seen", "1", "compact", "0", "0", "B", "-"]
    lines = topics("describe", "seen").stdout.splitlines()
    assert lines[0].startswith("seen  (id ")
    assert lines[1] == "  cleanup.policy=compact"
    assert lines[3].split()[:5] == ["0", "0", "0", "0", "B"]
    everything = topics("describe", "seen", "--all").stdout
    assert "  cleanup.policy=compact\n" in everything
    assert "  retention.ms=604800000  (not its own)\n" in everything


def test_one_refusal_does_not_hide_what_became_of_the_others(topics: Topics) -> None:
    topics("create", "there")
    result = topics("create", "there", "another")
    assert result.exit_code == 3
    assert result.stdout == "topic another was created, 1 partition\n"
    assert "topic there: refused, Topic 'there' already exists (TOPIC_ALREADY_EXISTS)" in result.stderr
    gone = topics("delete", "nix", "another")
    assert gone.exit_code == 3
    assert gone.stdout == "topic another was deleted\n"
    assert "topic nix: refused, " in gone.stderr
    lines = [json.loads(line) for line in topics("delete", "nix", "there", "--json").stdout.splitlines()]
    assert sorted(lines, key=lambda line: str(line["topic"])) == [
        {
            "topic": "nix",
            "error": "UNKNOWN_TOPIC_OR_PARTITION",
            "message": "This server does not host this topic-partition.",
        },
        {"topic": "there", "error": None, "message": None, "deleted": True},
    ]


def test_scripts_may_ask_for_what_is_so_already(topics: Topics) -> None:
    assert topics("create", "twice", "--if-not-exists").stdout == "topic twice was created, 1 partition\n"
    again = topics("create", "twice", "--if-not-exists")
    assert (again.exit_code, again.stdout) == (0, "topic twice exists already\n")
    assert topics("delete", "twice").exit_code == 0
    gone = topics("delete", "twice", "--if-exists")
    assert (gone.exit_code, gone.stdout) == (0, "topic twice does not exist\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "a", "--set", "segment.byts=5"], 2, "no such setting, the nearest is segment.bytes"),
        (["create", "a", "--set", "segment.bytes=5"], 2, "must be 1048576 or more"),
        (["create", "a", "--set", "segment.bytes"], 2, "write NAME=VALUE"),
        (["create", "a", "--set", "log.retention.ms=5"], 2, "a topic's is retention.ms"),
        (["create", "a", "--set", "num.partitions=5"], 2, "which no topic has of its own"),
        (["create", "a", "--partitions", "0"], 2, "0 is not in the range x>=1"),
        (["create", "a/b"], 3, "(INVALID_TOPIC_EXCEPTION)"),
        (
            ["create", "a", "--set", "min.compaction.lag.ms=9", "--set", "max.compaction.lag.ms=8"],
            3,
            "(INVALID_CONFIG)",
        ),
        (["alter", "nix", "--set", "segment.ms=1d"], 3, "there is no such topic"),
        (["alter", "nix"], 2, "nothing to alter"),
        (["alter", "nix", "--set", "segment.ms=1d", "--unset", "segment.ms"], 2, "either --set or --unset"),
        (["describe", "nix"], 3, "there is no such topic"),
    ],
)
def test_what_is_wrong_is_said_before_anything_changes(
    topics: Topics, arguments: list[str], code: int, said: str
) -> None:
    result = topics(*arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""
    assert topics("describe", "a").exit_code == 3


def test_partitions_never_become_fewer(topics: Topics) -> None:
    topics("create", "shrunk", "--partitions", "3")
    result = topics("alter", "shrunk", "--partitions", "2")
    assert result.exit_code == 3
    assert "(INVALID_PARTITIONS). A topic's partitions can only become more." in result.stderr
