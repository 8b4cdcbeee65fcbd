"""Kafka's tools for testing, measuring and repair do the same on both brokers; those of what is left out say so plainly."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.differences import LEFT_OUT
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Run, Tools
from tests.integration.transcript import Transcript, assert_same

pytestmark = pytest.mark.kafka

Scenario = Callable[[Transcript], None]
_NOW = int(time.time() * 1000)


def _events(done: Run) -> list[dict[str, Any]]:
    """What a verifiable client tells: a JSON object a line."""
    return [json.loads(line) for line in done.lines if line.startswith("{")]


def verifiable(script: Transcript) -> None:
    """VerifiableProducer, and VerifiableConsumer of both group protocols."""
    script.server.create("vt", 2)
    for more in (("--acks", "-1", "--repeating-keys", "7"), ("--acks", "1", "--message-create-time", str(_NOW - 5000))):
        done = script.tools.ran(script.server, "VerifiableProducer", "--topic", "vt", "--max-messages", "100", *more)
        counted = Counter(each["name"] for each in _events(done))
        shown = " ".join(f"{name} {counted[name]}" for name in ("producer_send_success", "producer_send_error"))
        script.note("VerifiableProducer", more, Run(done.code, shown, done.err), True)
    for protocol in ("classic", "consumer"):
        done = script.tools.ran(
            script.server, "VerifiableConsumer", "--topic", "vt", "--group-id", f"g-verifiable-{protocol}",
            "--group-protocol", protocol, "--max-messages", "200", "--reset-policy", "earliest",
        )  # fmt: skip
        ends: dict[int, int] = {}
        for event in _events(done):
            for each in event.get("partitions", ()) if event["name"] == "records_consumed" else ():
                ends[each["partition"]] = max(each["maxOffset"], ends.get(each["partition"], 0))
        names = {each["name"] for each in _events(done)}
        shown = f"{sorted(names)} {sum(end + 1 for end in ends.values())} read"
        script.note("VerifiableConsumer", (protocol,), Run(done.code, shown, done.err), True)


def performance(script: Transcript) -> None:
    """ProducerPerformance in transactions, EndToEndLatency: what they move, not how fast."""
    script.server.create("pt", 1)
    to = ("--command-property", f"bootstrap.servers={script.server.bootstrap}")
    done = script.tools.ran(
        None, "ProducerPerformance", "--topic", "pt", "--num-records", "2000", "--record-size", "100", "--throughput",
        "-1", "--transactional-id", "perf-tx", "--transaction-duration-ms", "50", *to,
    )  # fmt: skip
    shown = "\n".join(line for line in done.lines if line.startswith("2000 records sent"))
    script.note("ProducerPerformance", ("in transactions",), Run(done.code, shown[:17], done.err), True)
    read = Librdkafka().consume(script.server, "pt", isolation="read_committed")
    assert len(read) == 2000 and {len(record.value or b"") for record in read} == {100}
    # Each transaction has a marker.
    assert script.server.offsets("pt") > 2000
    script.server.create("pe", 1)
    done = script.tools.ran(
        script.server, "EndToEndLatency", "--topic", "pe", "--num-records", "200", "--producer-acks", "all",
        "--record-size", "50", "--record-key-size", "10", "--num-headers", "2",
    )  # fmt: skip
    kinds = [re.sub(r"[\d.]+", "<n>", line) for line in done.lines if re.match("Avg|Percentiles", line)]
    script.note("EndToEndLatency", (), Run(done.code, "\n".join(kinds), done.err), True)
    assert script.server.offsets("pe") == 200


def offsets(script: Transcript) -> None:
    """GetOffsetShell, with every time that has a name, on what was cut and what is empty."""
    script.server.create("tg-one", 2)
    script.server.create("tg-two", 1)
    values = [Message(b"%d" % number, timestamp=_NOW + number * 1000, partition=0) for number in range(10)]
    Librdkafka().produce(script.server, "tg-one", values)
    for when in (
        "earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload", "-1", "-6",
        str(_NOW), str(_NOW + 4500), str(_NOW + 99_000), "soon", "-9",
    ):  # fmt: skip
        done = script.tools.ran(script.server, "GetOffsetShell", "--topic-partitions", "tg-one,tg-two", "--time", when)
        script.note("GetOffsetShell", (when,), done, True)
    script.run("GetOffsetShell", "--topic", "tg-.*", "--exclude-internal-topics")
    script.fails("GetOffsetShell", "--topic", "tg-one", "--partitions", "x")


def metrics(script: Transcript) -> None:
    """ClientMetricsCommand: subscriptions are kept, whether or not anybody takes what clients would push."""

    def subscriptions(*arguments: str) -> None:
        done = script.tools.ran(script.server, "ClientMetricsCommand", *arguments)
        script.note("ClientMetricsCommand", arguments, done, False)
        script.settle()

    subscriptions("--list")
    alter = ("--alter", "--name", "cm")
    subscriptions(*alter, "--metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer.", "--interval", "5000")
    subscriptions("--list")
    subscriptions("--describe", "--name", "cm")
    subscriptions(*alter, "--match", "client_id=[a-z]+,client_software_name=apache-kafka-java")
    subscriptions(*alter, "--match", "no_such=1")
    subscriptions(*alter, "--interval", "1")
    subscriptions("--describe")
    subscriptions("--delete", "--name", "cm")
    subscriptions("--describe", "--name", "cm")
    subscriptions("--describe", "--name", "none")


def versions(script: Transcript) -> None:
    """BrokerApiVersionsCommand: every API and its versions, but those that are left out."""
    told = script.tools.run(script.server, "BrokerApiVersionsCommand")
    out = {number for numbers in LEFT_OUT for number in numbers}
    rows = re.findall(r"\((\d+)\): (.*?)(?:\[usable|,?$)", told, re.MULTILINE)
    shown = sorted(f"{number}: {which.strip()}" for number, which in rows if int(number) not in out)
    assert len(shown) > 50
    script.note("BrokerApiVersionsCommand", (), Run(0, "\n".join(shown), ""), True)


def transactions(script: Transcript) -> None:
    """TransactionsCommand: producers of a partition, transactions by state and age, one that is ended by force."""
    script.server.create("xt", 2)
    Librdkafka().transact(script.server, "xt", [Message(b"v", partition=0)], "xt-done", True)

    def transactions_(*arguments: str) -> list[list[str]]:
        done = script.tools.ran(script.server, "TransactionsCommand", *arguments)
        rows = [re.split(r"\t|  +", line.strip()) for line in done.lines]
        # Numbers that the broker gives, and times.
        lines = [" ".join(re.sub(r"^\d{2,}$", "<n>", word) for word in row) for row in rows]
        if arguments[0] == "describe-producers":
            lines = [re.sub(r"^\S+(?= 0 0 0)", "<producer>", line) for line in lines]
        script.note("TransactionsCommand", arguments, Run(done.code, "\n".join(lines), done.err), False)
        return rows

    mine = ("--transactional-id-pattern", "xt-.*")
    until(lambda: "CompleteCommit" in script.tools.run(script.server, "TransactionsCommand", "list", *mine), "its end")
    of = ("--topic", "xt", "--partition")
    for arguments in (
        ("describe-producers", *of, "0"), ("describe-producers", *of, "1"),
        ("describe-producers", "--broker-id", "1", *of, "0"), ("list", *mine, "--duration-filter", "3600000"),
        ("find-hanging", "--broker-id", "1", "--topic", "xt"), ("find-hanging", *of, "0"), ("find-hanging",),
        ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "1"),
        ("abort", *of, "0", "--producer-id", "77", "--producer-epoch", "0", "--coordinator-epoch", "0"),
        ("abort", *of, "0", "--producer-id", "77"), ("abort", *of, "0", "--start-offset", "77"),
        ("forceTerminateTransaction", "--transactionalId", "xt-none"),
    ):  # fmt: skip
        transactions_(*arguments)
    transactions_("forceTerminateTransaction", "--transactionalId", "xt-done")


def groups(script: Transcript) -> None:
    """GroupsCommand with its filters; StreamsResetter where there is nothing to reset."""
    script.server.create("gt", 1)
    Librdkafka().produce(script.server, "gt", [Message(b"v")])
    Librdkafka().read_as_member(script.server, "gt", "gt-classic", 1)
    Librdkafka().read_as_member(script.server, "gt", "gt-consumer", 1, "consumer")
    others = r"^(?!gt-|GROUP)\S+ "
    for arguments in (
        (), ("--group-type", "classic"), ("--group-type", "consumer"), ("--protocol", "consumer"), ("--consumer",),
        ("--protocol", "connect"), ("--group-type", "no-such"),
    ):  # fmt: skip
        done = script.tools.ran(script.server, "GroupsCommand", "--list", *arguments)
        shown = "\n".join(" ".join(line.split()) for line in done.lines if not re.match(others, line))
        script.note("GroupsCommand", arguments, Run(done.code, shown, done.err), False)
    for topics in ("gt", "gt-none"):
        done = script.tools.ran(
            script.server, "StreamsResetter", "--application-id", "gt-none", "--input-topics", topics, "--force"
        )
        script.note("StreamsResetter", (topics,), done, False)
    done = script.tools.ran(
        script.server, "StreamsResetter", "--application-id", "gt-classic", "--input-topics", "gt", "--dry-run",
        "--to-datetime", "2020-01-01T00:00:00.000",
    )  # fmt: skip
    script.note("StreamsResetter", ("--dry-run",), done, False)


SCENARIOS: tuple[Scenario, ...] = (verifiable, performance, offsets, metrics, versions, transactions, groups)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tools_do_the_same(scenario: Scenario, pair: tuple[Server, Server], tools: Tools) -> None:
    kafka, ours = (Transcript(server, tools) for server in pair)
    scenario(kafka)
    scenario(ours)
    assert_same(kafka, ours)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("ClusterTool", ("unregister", "--id", "7"), "does not support the broker unregistration API"),
        ("DelegationTokenCommand", ("--describe",), "UnsupportedVersionException"),
    ],
)
def test_what_is_left_out_is_refused_in_words(
    name: str, arguments: tuple[str, ...], said: str, compactd_server: Server, tools: Tools, tmp_path: Path
) -> None:
    """A tool that needs it ends, and says what the broker lacks."""
    settings = tmp_path / "client.properties"
    settings.touch()
    where = ("--bootstrap-server", compactd_server.bootstrap)
    needed = ("--command-config", str(settings)) if name == "DelegationTokenCommand" else ()
    done = tools.ran(None, name, *arguments[:1], *where, *needed, *arguments[1:])
    assert said in done.out + done.err, done
