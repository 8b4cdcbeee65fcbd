"""Kafka's tools for log dirs, reassignments, elections, features and the quorum print the same on both brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Run, Tools
from tests.integration.transcript import Transcript, assert_same

pytestmark = pytest.mark.kafka

_REASSIGN = "reassign.ReassignPartitionsCommand"
Scenario = Callable[[Transcript, Path], None]


def moves(script: Transcript, home: Path) -> None:
    """kafka-reassign-partitions with log dirs, held to a rate, verified until done; kafka-log-dirs tells where all lies."""
    topic, count = "tm", 3
    script.server.create(topic, count)
    for number in range(count):
        values = [Message(b"%d" % number * 500, partition=number) for _ in range(20)]
        Librdkafka().produce(script.server, topic, values)
    path = home / "plan.json"
    file = ("--reassignment-json-file", str(path))
    first = script.server.log_dirs[0]
    # Where a new partition lies depends on what else a broker holds: all begin in one directory.
    _plan(path, topic, count, first)
    script.tools.run(script.server, _REASSIGN, *file, "--execute")
    until(lambda: _lies(script, topic) == [first.name] * count, f"{topic} in {first}")
    for target in (*script.server.log_dirs, first):
        _plan(path, topic, count, target)
        script.run(_REASSIGN, *file, "--execute", "--replica-alter-log-dirs-throttle", "100000000", ignored=str(path))
        until(lambda target=target: _lies(script, topic) == [target.name] * count, f"{topic} in {target}")  # type: ignore[misc]
        done = script.tools.ran(script.server, _REASSIGN, *file, "--verify")
        script.note(_REASSIGN, ("--verify",), done, ordered=False)
        script.settle()
        script.run("ConfigCommand", "--describe", "--entity-type", "brokers", "--entity-name", "1", ordered=False)
        assert [message.value for message in Librdkafka().consume(script.server, topic)].count(b"1" * 500) == 20
    script.run(_REASSIGN, "--list")
    bad = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [7], "log_dirs": ["any"]}]}
    for change in (
        {"replicas": [7]}, {"topic": "tm-none"}, {"partition": 99}, {"log_dirs": ["/nowhere"]}, {"replicas": []},
        {"replicas": [1, 1], "log_dirs": ["any", "any"]},
    ):  # fmt: skip
        row = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": ["any"], **change}
        (home / "bad.json").write_text(json.dumps({**bad, "partitions": [row]}))
        done = script.tools.ran(
            script.server,
            _REASSIGN,
            "--reassignment-json-file",
            str(home / "bad.json"),
            "--execute",
            "--timeout",
            "300",
        )
        script.note(_REASSIGN, ("--execute", str(change)), _first_line_of_errors(done), ordered=False)
    row = {"topic": topic, "partition": 0, "replicas": [1]}
    (home / "cancel.json").write_text(json.dumps({"version": 1, "partitions": [row]}))
    script.run(_REASSIGN, "--reassignment-json-file", str(home / "cancel.json"), "--cancel")


def _plan(path: Path, topic: str, count: int, target: Path) -> None:
    """All partitions into one directory."""
    rows = [
        {"topic": topic, "partition": number, "replicas": [1], "log_dirs": [str(target)]} for number in range(count)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))


def _first_line_of_errors(done: Run) -> Run:
    """Without the stack trace."""
    lines = [line for line in (done.out + done.err).splitlines() if not line.startswith(("\t", "Caused by"))]
    return Run(done.code, "\n".join(lines), "")


def _lies(script: Transcript, topic: str) -> list[str]:
    told = script.tools.run(script.server, "LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
    return [
        Path(each["logDir"]).name + ("-future" if row["isFuture"] else "")
        for each in found["brokers"][0]["logDirs"]
        for row in each["partitions"]
    ]


def elections(script: Transcript, _home: Path) -> None:
    """LeaderElectionCommand: there is nothing to elect."""
    script.server.create("te", 2)
    for kind in ("preferred", "unclean"):
        script.run("LeaderElectionCommand", "--election-type", kind, "--all-topic-partitions")
        script.run("LeaderElectionCommand", "--election-type", kind, "--topic", "te", "--partition", "0")
        script.fails("LeaderElectionCommand", "--election-type", kind, "--topic", "te-none", "--partition", "0")


def features(script: Transcript, _home: Path) -> None:
    """FeatureCommand: what can be, what is, up and down, and what is refused. Share groups are not served here."""
    unserved = r"Feature: share\.version"
    script.run("FeatureCommand", "describe", ordered=False, ignored=unserved + r"|SupportedMinVersion.*Epoch")
    for arguments in (
        ("upgrade", "--feature", "group.version=1"), ("downgrade", "--feature", "group.version=0"),
        ("upgrade", "--feature", "group.version=1"), ("upgrade", "--metadata", "4.4-IV2"),
        ("downgrade", "--feature", "transaction.version=1", "--dry-run"),
        ("disable", "--feature", "group.version", "--dry-run"),
        ("upgrade", "--release-version", "4.4", "--dry-run"),
        ("version-mapping", "--release-version", "4.0"),
        ("feature-dependencies", "--feature", "eligible.leader.replicas.version=1"),
    ):  # fmt: skip
        done = script.tools.ran(script.server, "FeatureCommand", *arguments)
        script.note("FeatureCommand", arguments, done, ordered=False)
        if "--dry-run" not in arguments:
            until(lambda: script.tools.ran(script.server, "FeatureCommand", "describe").code == 0, "an answer")
    for arguments in (
        ("upgrade", "--feature", "group.version=7"), ("upgrade", "--feature", "no.such=1"),
        ("downgrade", "--metadata", "4.0-IV0"), ("downgrade", "--metadata", "4.3-IV0", "--unsafe"),
        ("upgrade", "--feature", "group.version=0"), ("downgrade", "--feature", "nonsense"),
    ):  # fmt: skip
        done = script.tools.ran(script.server, "FeatureCommand", *arguments)
        assert done.code != 0
        script.note("FeatureCommand", arguments, Run(done.code, done.out + done.err, ""), ordered=False)


def quorum(script: Transcript, _home: Path) -> None:
    """MetadataQuorumCommand; offsets, epochs and times are each broker's own, and compactd has no controller listener."""
    status = script.run(
        "MetadataQuorumCommand", "describe", "--status", ignored=r"Epoch|HighWatermark|ClusterId|CurrentVoters"
    )
    assert '"id": 1' in next(line for line in status.splitlines() if line.startswith("CurrentVoters"))
    done = script.tools.ran(script.server, "MetadataQuorumCommand", "describe", "--replication")
    rows = [line.split() for line in done.out.splitlines() if line.strip()]
    assert len(rows) == 2 and rows[1][0] == "1" and rows[1][3] == "0", done.out
    script.note(
        "MetadataQuorumCommand", ("--replication",), Run(done.code, "\n".join([*rows[0], rows[1][-1]]), ""), True
    )


SCENARIOS: tuple[Scenario, ...] = (moves, elections, features, quorum)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tools_say_the_same(
    scenario: Scenario, kafka_server: Server, compactd_server: Server, tools: Tools, tmp_path: Path
) -> None:
    kafka, ours = (Transcript(server, tools) for server in (kafka_server, compactd_server))
    scenario(kafka, tmp_path)
    scenario(ours, tmp_path)
    assert_same(kafka, ours)
