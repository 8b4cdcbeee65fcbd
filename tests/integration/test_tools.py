"""Kafka's command-line tools: the same commands on both brokers have to print the same."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.differences import LEFT_OUT_FEATURES
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Run, Tools
from tests.integration.transcript import Transcript, assert_same

pytestmark = pytest.mark.kafka
_NOW = int(time.time() * 1000)

Scenario = Callable[[Transcript], None]


def topics(script: Transcript) -> None:
    """TopicCommand."""

    def topic(*arguments: str, **more: bool) -> str:
        return script.run("TopicCommand", *arguments, **more)

    def refused(*arguments: str) -> None:
        script.fails("TopicCommand", *arguments)

    topic(
        "--create", "--topic", "tt-one", "--partitions", "2", "--config", "cleanup.policy=compact",
        "--config", "segment.ms=600000",
    )  # fmt: skip
    topic("--create", "--topic", "tt.two")
    topic("--create", "--topic", "tt-three", "--replica-assignment", "1,1,1")
    topic("--create", "--topic", "tt-one", "--if-not-exists")
    for arguments in (
        ("tt-one",), ("bad name",), ("tt-x", "--partitions", "0"), ("tt-x", "--replication-factor", "2"), ("..",),
        ("tt-x", "--config", "cleanup.policy=shred"), ("tt-x", "--config", "no.such=1"), ("x" * 250,), ("tt_two",),
        ("tt-x", "--config", "retention.ms=-2"), ("tt-x", "--replica-assignment", "1,7"),
        ("tt-x", "--replica-assignment", "1:1"), ("tt-x", "--config", "remote.storage.enable=true"),
    ):  # fmt: skip
        refused("--create", "--topic", *arguments)
    wait_for_leaders(script, ("tt-one", 2), ("tt.two", 3), ("tt-three", 3))
    topic("--describe", "--topic", "tt-one")
    topic("--describe", "--topic", "tt.*", ordered=False)
    refused("--describe", "--topic", "tt-none")
    topic("--describe", "--topic", "tt-none", "--if-exists")
    topic("--describe", "--topic", "tt-.*", "--topics-with-overrides", ordered=False)
    for kind in (
        "under-replicated-partitions", "unavailable-partitions", "under-min-isr-partitions", "at-min-isr-partitions",
    ):  # fmt: skip
        topic("--describe", "--topic", "tt.*", f"--{kind}", ordered=False)
    found = topic("--describe", "--topic", "tt-three")
    topic_id = found.split("TopicId: ")[1].split()[0]
    topic("--describe", "--topic-id", topic_id)
    refused("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAABQ")
    topic("--alter", "--topic", "tt-one", "--partitions", "4")
    for arguments in (
        ("tt-one", "--partitions", "4"), ("tt-one", "--partitions", "3"), ("tt-none", "--partitions", "2"),
        ("tt-one", "--partitions", "5", "--replica-assignment", "1,1,1,1,9"),
    ):  # fmt: skip
        refused("--alter", "--topic", *arguments)
    topic("--alter", "--topic", "tt-none", "--partitions", "2", "--if-exists")
    topic("--alter", "--topic", "tt-three", "--partitions", "4", "--replica-assignment", "1,1,1,1")
    wait_for_leaders(script, ("tt-one", 4), ("tt-three", 4))
    topic("--describe", "--topic", "tt-.*", ordered=False)
    topic("--delete", "--topic", "tt-one")
    refused("--delete", "--topic", "tt-none")
    topic("--delete", "--topic", "tt-none", "--if-exists")
    topic("--delete", "--topic", "tt.two")
    topic("--delete", "--topic", "tt-three")
    until(lambda: "tt" not in script.tools.run(script.server, "TopicCommand", "--list", "--topic", "tt.*"), "their end")
    topic("--list", "--topic", "tt.*")


def wait_for_leaders(script: Transcript, *counts: tuple[str, int]) -> None:
    """Topics are there before their leaders are."""

    def led() -> bool:
        shown = script.tools.run(script.server, "TopicCommand", "--describe")
        lines = [line for line in shown.splitlines() if "Leader: 1" in line]
        return all(sum(f"Topic: {name}\t" in line for line in lines) == count for name, count in counts)

    until(led, f"leaders of {counts}")


def configs(script: Transcript) -> None:
    """ConfigCommand, topics and brokers and groups."""

    def config(*arguments: str, ordered: bool = False, ignored: str | None = None) -> str:
        return script.run("ConfigCommand", *arguments, ordered=ordered, ignored=ignored)

    script.server.create("tc", 1, retention_ms=100_000)
    of = ("--entity-type", "topics", "--entity-name", "tc")
    config("--describe", *of)
    config("--describe", *of, "--all")
    for change in (
        ("--add-config", "cleanup.policy=[compact,delete],segment.ms=700000"), ("--delete-config", "retention.ms"),
        ("--add-config", "retention.ms=5000000", "--delete-config", "segment.ms"),
    ):  # fmt: skip
        config("--alter", *of, *change)
        script.settle()
        config("--describe", *of)
    for change in (
        ("--add-config", "cleanup.policy=shred"), ("--add-config", "no.such=1"), ("--add-config", "segment.bytes=13"),
        ("--add-config", "min.cleanable.dirty.ratio=1.5"), ("--add-config", "retention.ms=soon"),
    ):  # fmt: skip
        script.fails("ConfigCommand", "--alter", *of, *change)
    config("--describe", "--entity-type", "topics")
    script.fails(
        "ConfigCommand", "--alter", "--entity-type", "topics", "--entity-name", "none", "--add-config", "segment.ms=1"
    )
    brokers = (("--entity-type", "brokers", "--entity-default"), ("--entity-type", "brokers", "--entity-name", "1"))
    for which in brokers:
        config("--alter", *which, "--add-config", "log.retention.ms=77777777,log.cleaner.threads=1")
        script.settle()
        config("--describe", *which)
        for change in (
            "log.retention.ms=soon", "node.id=3",
            "log.roll.jitter.ms=-1",
        ):  # fmt: skip
            script.fails("ConfigCommand", "--alter", *which, "--add-config", change)
        config("--alter", *which, "--delete-config", "log.retention.ms,log.cleaner.threads")
        script.settle()
        config("--describe", *which)
    group = ("--entity-type", "groups", "--entity-name", "g1")
    config("--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    script.settle()
    config("--describe", *group)
    script.fails("ConfigCommand", "--alter", *group, "--add-config", "consumer.session.timeout.ms=1")
    script.fails("ConfigCommand", "--alter", *group, "--add-config", "no.such=1")
    config("--describe", "--entity-type", "groups")
    config("--alter", *group, "--delete-config", "consumer.session.timeout.ms")


def offsets(script: Transcript) -> None:
    """GetOffsetShell and DeleteRecordsCommand."""
    script.server.create("to", 2)
    script.server.create("to-compact", 1, cleanup_policy="compact")
    for topic, partitions in (("to", 2), ("to-compact", 1)):
        messages = [
            Message(b"v", b"%d" % number, timestamp=_NOW - 5000 + 1000 * (number % 5), partition=number % partitions)
            for number in range(12)
        ]
        Librdkafka().produce(script.server, topic, messages)
    for when in ("-1", "-2", "-3", "-4", "-5", "latest", "earliest", "max-timestamp", "1", str(_NOW - 3500), str(_NOW)):
        script.run("GetOffsetShell", "--topic", "to", "--time", when)
    script.run("GetOffsetShell", "--topic-partitions", "to.*:1-3")
    script.run("GetOffsetShell", "--topic", "to", "--partitions", "1")
    script.run("GetOffsetShell", "--topic-partitions", "to:0,to-compact:0")
    script.fails("GetOffsetShell", "--topic", "to-none")
    delete = script.server.log_dirs[0].parent / "delete.json"
    for topic, partition, offset in (
        ("to", 0, 2), ("to", 1, -1), ("to", 0, 99), ("to", 0, 1), ("to-compact", 0, 1),
    ):  # fmt: skip
        row = {"topic": topic, "partition": partition, "offset": offset}
        delete.write_text(json.dumps({"version": 1, "partitions": [row]}))
        done = script.tools.ran(script.server, "DeleteRecordsCommand", "--offset-json-file", str(delete))
        script.note("DeleteRecordsCommand", (topic, str(partition), str(offset)), done, True)
    script.run("GetOffsetShell", "--topic", "to", "--time", "-2")
    script.run("GetOffsetShell", "--topic", "to", "--time", "-1")


def cluster(script: Transcript) -> None:
    """ClusterTool and other views of the cluster."""
    for command in ("cluster-id", "list-endpoints"):
        where = ("--bootstrap-server", script.server.bootstrap)
        done = script.tools.ran(None, "ClusterTool", command, *where)
        assert done.code == 0, done.err
        script.note("ClusterTool", (command,), done, True)


def consoles(script: Transcript) -> None:
    """ConsoleProducer and ConsoleConsumer, with what they can show."""
    script.server.create("con", 2)
    script.server.create("con-one", 1)
    script.server.create("con-keys", 1, cleanup_policy="compact")
    line = (
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:",
        "--reader-property", "parse.headers=true", "--reader-property", "null.marker=NULL",
    )  # fmt: skip
    keyed = ("--topic", "con", *line)
    lines = "".join(f"h1:a,h2:NULL\tk{number}:v{number}\n" for number in range(20))
    script.run("ConsoleProducer", *keyed, given=lines)
    # Where a record without a key goes is chance, but for a topic of one partition.
    script.run("ConsoleProducer", "--topic", "con-one", *line, given="NULL\tNULL:NULL\n" * 2)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        script.run("ConsoleProducer", *keyed, "--compression-codec", codec, given="h1:b\tk1:again\n")
    for more in (
        ("--sync",),
        ("--request-required-acks", "0"),
        ("--request-required-acks", "1"),
        ("--batch-size", "1"),
    ):
        script.run("ConsoleProducer", *keyed, *more, given="h1:c\tk2:once more\n")
    until(lambda: sum(script.server.offsets("con", number) for number in (0, 1)) == 28, "records without acks")
    shown = (
        "--formatter-property", "print.key=true", "--formatter-property", "print.headers=true",
        "--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true",
        "--formatter-property", "null.literal=NOTHING",
    )  # fmt: skip
    read = ("consumer.ConsoleConsumer", "--topic", "con", "--timeout-ms", "60000", *shown)
    script.run(*read, "--from-beginning", "--max-messages", "28", ordered=False)
    script.run("consumer.ConsoleConsumer", "--topic", "con-one", *shown, "--from-beginning", "--max-messages", "2")
    for number in (0, 1):
        count = str(script.server.offsets("con", number) - 3)
        script.run(*read, "--partition", str(number), "--offset", "3", "--max-messages", count)
        script.run(
            *read,
            "--partition",
            str(number),
            "--offset",
            "earliest",
            "--max-messages",
            "3",
            "--isolation-level",
            "read_committed",
        )
    script.run(
        "consumer.ConsoleConsumer", "--include", "con-.*|con", "--from-beginning", "--max-messages", "30", ordered=False
    )
    # A record without a key: the tool prints what the broker says, and goes on.
    for topic, given in (("con-keys", "keyless\n"), ("con", "x" * 1_050_000 + "\n")):
        done = script.tools.ran(
            script.server,
            "ConsoleProducer",
            "--topic",
            topic,
            "--command-property",
            "max.request.size=2000000",
            given=given,
        )
        script.note("ConsoleProducer", ("refused by", topic), done, True)
        assert done.err, "nothing was said of the refused record"
    done = script.tools.ran(
        script.server, "consumer.ConsoleConsumer", "--topic", "con-none", "--from-beginning", "--timeout-ms", "2000"
    )
    script.note("ConsoleConsumer", ("of no topic",), done, True)


def groups(script: Transcript) -> None:
    """ConsumerGroupCommand, on a group that ended and on one that reads."""

    def group(*arguments: str, ordered: bool = False) -> str:
        return script.run("consumer.group.ConsumerGroupCommand", *arguments, ordered=ordered)

    def refused(*arguments: str) -> None:
        done = script.tools.ran(script.server, "consumer.group.ConsumerGroupCommand", *arguments)
        script.note("ConsumerGroupCommand", arguments, done, False)

    script.server.create("tg", 2)
    messages = [Message(b"v%d" % n, timestamp=_NOW - 9000 + 1000 * (n // 2), partition=n % 2) for n in range(20)]
    Librdkafka().produce(script.server, "tg", messages)
    read = ("consumer.ConsoleConsumer", "--topic", "tg", "--from-beginning", "--group", "g-tool")
    script.run(*read, "--max-messages", "20", "--timeout-ms", "60000", ordered=False)
    of = ("--group", "g-tool")
    group("--list")
    group("--list", "--state")
    group("--list", "--type")
    for what in (("--offsets",), ("--members",), ("--members", "--verbose"), ("--state",)):
        group("--describe", *of, *what)
        refused("--describe", "--group", "g-none", *what)
    reset = ("--reset-offsets", *of, "--topic")
    for how in (
        ("--to-earliest",), ("--to-latest",), ("--to-offset", "3"), ("--to-offset", "99"), ("--shift-by", "-4"),
        ("--to-datetime", "2100-01-01T00:00:00.000"), ("--by-duration", "PT0S"), ("--to-current",),
    ):  # fmt: skip
        group(*reset, "tg", *how, "--dry-run")
    group(*reset, "tg:1", "--to-offset", "5", "--execute")
    group(*reset, "tg", "--to-earliest", "--export", "--dry-run")
    group("--describe", *of)
    refused(*reset, "tg-none", "--to-earliest", "--execute")
    # One that reads.
    running = script.tools.start(script.server, *read, "--timeout-ms", "90000")
    until(
        lambda: (
            "Stable"
            in script.tools.run(script.server, "consumer.group.ConsumerGroupCommand", "--describe", *of, "--state")
        ),
        "a member",
    )
    until(lambda: "v19" in running.said(), "what it reads")
    group("--describe", *of, "--members", "--verbose")
    group("--describe", *of, "--state")
    group("--list", "--state", "stable")
    for arguments in (
        ("--delete", *of), (*reset, "tg", "--to-earliest", "--execute"), ("--delete-offsets", *of, "--topic", "tg"),
        ("--delete-offsets", *of, "--topic", "tg-none"), ("--delete", "--group", "g-none"),
    ):  # fmt: skip
        refused(*arguments)
    running.interrupt()
    running.result()
    until(
        lambda: (
            "Empty"
            in script.tools.run(script.server, "consumer.group.ConsumerGroupCommand", "--describe", *of, "--state")
        ),
        "no member",
    )
    group("--delete-offsets", *of, "--topic", "tg:0")
    group("--describe", *of)
    script.run("GroupsCommand", "--list", ordered=False)
    group("--delete", *of)
    refused("--delete", *of)
    refused("--describe", *of)


def log_dirs(script: Transcript) -> None:
    """LogDirsCommand: where partitions lie is each broker's own affair, how large they are is not."""
    script.server.create("tl", 4)
    messages = [Message(b"v" * 100, timestamp=_NOW, partition=number % 3) for number in range(30)]
    for message in messages:
        Librdkafka().produce(script.server, "tl", [message])
    for arguments in (("--topic-list", "tl"), ("--topic-list", "tl,tl-none", "--broker-list", "1")):
        told = script.tools.run(script.server, "LogDirsCommand", "--describe", *arguments)
        found = json.loads(next(line for line in told.splitlines() if line.startswith("{")))
        assert [broker["broker"] for broker in found["brokers"]] == [1]
        dirs = found["brokers"][0]["logDirs"]
        assert sorted(each["logDir"] for each in dirs) == sorted(map(str, script.server.log_dirs))
        assert all(each["error"] is None for each in dirs)
        rows = sorted((row for each in dirs for row in each["partitions"]), key=lambda row: row["partition"])
        done = Run(0, "\n".join(json.dumps({**row, "keys": sorted(dirs[0])}) for row in rows), "")
        script.note("LogDirsCommand", arguments, done, True)
    script.fails("LogDirsCommand", "--describe", "--broker-list", "7")


def performance(script: Transcript) -> None:
    """ProducerPerformance and ConsumerPerformance move what they are told to; their figures are the machine's."""
    script.server.create("perf", 2)
    count = "5000"
    for codec in ("none", "lz4"):
        done = script.tools.ran(
            None, "ProducerPerformance", "--topic", "perf", "--num-records", count, "--record-size", "200",
            "--throughput", "-1", "--command-property", f"bootstrap.servers={script.server.bootstrap}",
            f"compression.type={codec}",
        )  # fmt: skip
        assert done.code == 0 and f"{count} records sent" in done.out, done.err + done.out
    assert sum(script.server.offsets("perf", number) for number in (0, 1)) == 10_000
    told = script.tools.run(
        script.server,
        "ConsumerPerformance",
        "--topic",
        "perf",
        "--num-records",
        "10000",
        "--timeout",
        "60000",
        "--group",
        "perf",
    )
    row = dict(zip(told.splitlines()[0].split(", "), told.splitlines()[1].split(", "), strict=True))
    script.note(
        "ConsumerPerformance", (), Run(0, f"{row['data.consumed.in.nMsg']} {row['data.consumed.in.MB']}", ""), True
    )


def features(script: Transcript) -> None:
    """FeatureCommand and MetadataQuorumCommand."""
    left_out = "|".join(re.escape(name) for name in LEFT_OUT_FEATURES)
    own = rf"{left_out}|kraft\.version"  # its line ends with the epoch, as all of them do
    told = script.tools.run(script.server, "FeatureCommand", "describe")
    lines = [re.sub(r"Epoch: \d+", "Epoch: <n>", line) for line in told.splitlines() if not re.search(left_out, line)]
    script.note("FeatureCommand", ("describe",), Run(0, "\n".join(lines), ""), False)
    script.run("FeatureCommand", "version-mapping", "--release-version", "4.4-IV2", ignored=own)
    for arguments in (
        ("upgrade", "--feature", "transaction.version=2"), ("upgrade", "--feature", "no.such=1", "--dry-run"),
        ("downgrade", "--feature", "transaction.version=1", "--dry-run"),
        ("downgrade", "--feature", "group.version=0", "--dry-run"), ("upgrade", "--feature", "group.version=9", "--dry-run"),
        ("upgrade", "--release-version", "4.4-IV2", "--dry-run"), ("disable", "--feature", "group.version", "--dry-run"),
    ):  # fmt: skip
        done = script.tools.ran(script.server, "FeatureCommand", *arguments)
        kept = [line for line in done.lines if not re.search(left_out, line)]
        script.note("FeatureCommand", arguments, Run(done.code, "\n".join(kept), ""), False)
    for what in ("--status", "--replication"):
        told = script.tools.run(script.server, "MetadataQuorumCommand", "describe", what)
        lines = [script.plain(line) for line in told.splitlines() if "Voters" not in line]
        # A Kafka on a machine that does much else may elect itself again.
        lines = [re.sub(r"\b\d\d+|(?<=LeaderEpoch:)\s*\d+", "<n>", line) for line in lines]
        script.note(
            "MetadataQuorumCommand", (what,), Run(0, "\n".join(" ".join(line.split()) for line in lines), ""), True
        )


def access(script: Transcript) -> None:
    """Quotas, passwords, metrics and ACLs, with ConfigCommand and the tools of their own."""

    def config(*arguments: str) -> None:
        script.run("ConfigCommand", *arguments, ordered=False)

    for of, change, name in (
        (("--entity-type", "users", "--entity-name", "ta"), "producer_byte_rate=1000000", "producer_byte_rate"),
        (("--entity-type", "clients", "--entity-default"), "consumer_byte_rate=5000000", "consumer_byte_rate"),
        (("--entity-type", "users", "--entity-name", "ta", "--entity-type", "clients", "--entity-name", "c"),
         "request_percentage=150", "request_percentage"),
        (("--entity-type", "ips", "--entity-name", "10.1.2.3"), "connection_creation_rate=9", "connection_creation_rate"),
        (("--entity-type", "users", "--entity-name", "tb"), "SCRAM-SHA-256=[iterations=4096,password=secret]", "SCRAM-SHA-256"),
        (("--entity-type", "client-metrics", "--entity-name", "m"), "interval.ms=1000,metrics=[a,b]", "interval.ms,metrics"),
    ):  # fmt: skip
        config("--alter", *of, "--add-config", change)
        script.settle()
        config("--describe", *of)
        config("--alter", *of, "--delete-config", name)
        script.settle()
        config("--describe", *of)
    users = ("--entity-type", "users", "--entity-name", "ta")
    for change in (
        "producer_byte_rate=0", "no_such=1", "SCRAM-SHA-256=[iterations=1,password=x]", "SCRAM-SHA-1=[password=x]",
    ):  # fmt: skip
        script.fails("ConfigCommand", "--alter", *users, "--add-config", change)
    for arguments in (
        ("--list",), ("--add", "--allow-principal", "User:x", "--operation", "Read", "--topic", "t"),
        ("--remove", "--force", "--allow-principal", "User:x", "--operation", "Read", "--topic", "t"),
    ):  # fmt: skip
        done = script.tools.ran(script.server, "AclCommand", *arguments)
        script.note("AclCommand", arguments, Run(done.code, "", done.err), True)


def leaders(script: Transcript) -> None:
    """LeaderElectionCommand and ReassignPartitionsCommand: there is one broker to choose from."""
    script.server.create("tr", 2)
    script.run("LeaderElectionCommand", "--election-type", "preferred", "--topic", "tr", "--partition", "0")
    script.run("LeaderElectionCommand", "--election-type", "unclean", "--topic", "tr", "--partition", "1")
    script.fails("LeaderElectionCommand", "--election-type", "preferred", "--topic", "tr-none", "--partition", "0")
    plan = script.server.log_dirs[0].parent / "plan.json"

    def reassign(*arguments: str) -> None:
        done = script.tools.ran(script.server, "reassign.ReassignPartitionsCommand", *arguments)
        out = re.sub(r'"log_dirs":\["[^"]*/d[12]"\]', '"log_dirs":["<dir>"]', done.out)
        script.note("ReassignPartitionsCommand", arguments, Run(done.code, out, done.err), True)

    reassign("--list")
    plan.write_text(json.dumps({"version": 1, "topics": [{"topic": "tr"}]}))
    reassign("--generate", "--topics-to-move-json-file", str(plan), "--broker-list", "1")
    row = {"topic": "tr", "partition": 0, "replicas": [1]}
    for change in ({}, {"replicas": [1, 7]}, {"partition": 9}, {"topic": "tr-none"}):
        plan.write_text(json.dumps({"version": 1, "partitions": [{**row, **change}]}))
        reassign("--execute", "--reassignment-json-file", str(plan))
        reassign("--verify", "--preserve-throttles", "--reassignment-json-file", str(plan))
    # To the other log dir, and until it is there.
    here = script.server.partition_dir("tr", 1).parent
    other = next(log_dir for log_dir in script.server.log_dirs if log_dir != here)
    moved = {"topic": "tr", "partition": 1, "replicas": [1], "log_dirs": [str(other)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    script.tools.run(
        script.server, "reassign.ReassignPartitionsCommand", "--execute", "--reassignment-json-file", str(plan)
    )
    until((other / "tr-1").is_dir, "the partition in its other log dir")
    verify = ("reassign.ReassignPartitionsCommand", "--verify", "--reassignment-json-file", str(plan))
    until(lambda: "completed successfully" in script.tools.run(script.server, *verify), "what it says when it is there")
    told = script.tools.run(script.server, *verify)
    script.note(
        "ReassignPartitionsCommand", ("--verify a move",), Run(0, re.sub(r"\S*/d[12]", "<dir>", told), ""), True
    )


def transactions(script: Transcript) -> None:
    """TransactionsCommand."""
    script.server.create("tx", 2)
    Librdkafka().transact(script.server, "tx", [Message(b"v", partition=number) for number in (0, 1)], "tx-tool", True)

    def transactions_(*arguments: str) -> None:
        done = script.tools.ran(script.server, "TransactionsCommand", *arguments)
        lines = [re.sub(r"\b\d{2,}\b", "<n>", " ".join(line.split())) for line in done.lines]
        script.note("TransactionsCommand", arguments, Run(done.code, "\n".join(lines), done.err), True)

    # Others have used this broker as well.
    until(
        lambda: any(
            "tx-tool" in line and "CompleteCommit" in line
            for line in script.tools.run(script.server, "TransactionsCommand", "list").splitlines()
        ),
        "its end",
    )
    transactions_("describe", "--transactional-id", "tx-tool")
    transactions_("describe", "--transactional-id", "none")
    for pattern in ("tx-t.*", "none.*", "("):
        done = script.tools.ran(script.server, "TransactionsCommand", "list", "--transactional-id-pattern", pattern)
        rows = [line.split()[0] + " " + line.split()[-1] for line in done.lines]
        script.note("TransactionsCommand", ("list", pattern), Run(done.code, "\n".join(rows), done.err), True)
    transactions_("find-hanging", "--broker-id", "1")
    transactions_("abort", "--topic", "tx", "--partition", "0", "--start-offset", "0")


SCENARIOS: tuple[Scenario, ...] = (
    topics, configs, offsets, cluster, consoles, groups, log_dirs, performance, features, access, leaders, transactions
)  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tools_say_the_same(scenario: Scenario, pair: tuple[Server, Server], tools: Tools) -> None:
    kafka, ours = (Transcript(server, tools) for server in pair)
    scenario(kafka)
    scenario(ours)
    assert_same(kafka, ours)
