"""Quotas with Kafka's own tools: kafka-configs prints the same on both brokers, and producers are held to what it sets."""

from __future__ import annotations

import re

import pytest

from tests.integration.servers import Server, until
from tests.integration.tools import Tools
from tests.integration.transcript import Transcript, assert_same

pytestmark = pytest.mark.kafka

_ENTITIES: tuple[tuple[str, ...], ...] = (
    ("--entity-type", "users", "--entity-name", "ann"),
    ("--entity-type", "users", "--entity-default"),
    ("--entity-type", "clients", "--entity-name", "app one"),
    ("--entity-type", "clients", "--entity-default"),
    ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-name", "app"),
    ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-default"),
    ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default"),
    ("--entity-type", "ips", "--entity-name", "10.1.2.3"),
    ("--entity-type", "ips", "--entity-default"),
)
_RATES = "producer_byte_rate=1000000,consumer_byte_rate=2000000,request_percentage=250.5,controller_mutation_rate=10"


def quotas(script: Transcript) -> None:
    """ConfigCommand for users, clients, both, and addresses."""

    def config(*arguments: str) -> None:
        script.run("ConfigCommand", *arguments, ordered=False)

    def settled(of: tuple[str, ...], *, there: bool) -> None:
        """Brokers hear of a change a little after the tool has ended."""
        until(
            lambda: ("_rate" in script.tools.run(script.server, "ConfigCommand", "--describe", *of)) is there,
            "the change",
        )

    for of in _ENTITIES:
        change = "connection_creation_rate=100000" if "ips" in of else _RATES
        config("--alter", *of, "--add-config", change)
        settled(of, there=True)
        config("--describe", *of)
    for kinds in (("users",), ("clients",), ("ips",), ("users", "clients")):
        config("--describe", *(part for kind in kinds for part in ("--entity-type", kind)))
    user, address = _ENTITIES[0], _ENTITIES[7]
    for of, change in (
        (user, "producer_byte_rate=fast"), (user, "producer_byte_rate=0"), (user, "consumer_byte_rate=1.5"),
        (user, "no_such_rate=1"), (user, "connection_creation_rate=1"), (address, "connection_creation_rate=-1"),
        (address, "producer_byte_rate=1"),
        (("--entity-type", "ips", "--entity-name", "no address"), "connection_creation_rate=1"),
    ):  # fmt: skip
        script.fails("ConfigCommand", "--alter", *of, "--add-config", change)
    for of in _ENTITIES:
        gone = "connection_creation_rate" if "ips" in of else re.sub(r"=[\d.]+", "", _RATES)
        config("--alter", *of, "--delete-config", gone)
        settled(of, there=False)
        config("--describe", *of)


def test_the_tool_says_the_same(pair: tuple[Server, Server], tools: Tools) -> None:
    kafka, ours = (Transcript(server, tools) for server in pair)
    quotas(kafka)
    quotas(ours)
    assert_same(kafka, ours)


def test_a_producer_is_held_to_its_rate(server: Server, tools: Tools) -> None:
    of = ("--entity-type", "clients", "--entity-name", "held")
    server.create("held", 1)
    tools.run(server, "ConfigCommand", "--alter", *of, "--add-config", "producer_byte_rate=100000")
    until(lambda: "producer_byte_rate" in tools.run(server, "ConfigCommand", "--describe", *of), "the quota")
    # 1,000,000 bytes have room in ten windows; what is above them has to be waited for, at 100,000 a second.
    done = tools.ran(
        None, "ProducerPerformance", "--topic", "held", "--num-records", "1300", "--record-size", "1000",
        "--throughput", "-1", "--command-property", f"bootstrap.servers={server.bootstrap}", "client.id=held",
        "batch.size=16384", "linger.ms=0", "--print-metrics",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "1300 records sent" in done.out
    throttled = re.search(r"produce-throttle-time-max:\{client-id=held\}\s*:\s*([\d.]+)", done.out)
    assert throttled is not None, done.out
    assert float(throttled[1]) > 0
    tools.run(server, "ConfigCommand", "--alter", *of, "--delete-config", "producer_byte_rate")
