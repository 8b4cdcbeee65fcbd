"""Values of settings are taken and refused as Kafka takes and refuses them, with its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.settings import DaemonConfig
from compactd.config.units import java_double
from compactd.coordinator.catalogue.config_rules import (
    broker_error,
    client_metrics_error,
    group_error,
    topic_error,
)
from compactd.coordinator.catalogue.config_tables import (
    CLUSTER_RULES,
    PER_BROKER_RULES,
    STATIC_BROKER_NAMES,
    TOPIC_RULES,
)
from compactd.coordinator.catalogue.group_rules import limits_error

DATA = Path(__file__).parents[2] / "data"
CASES = [
    line.split("\t")
    for line in (DATA / "kafka-4.4.0-config-errors.tsv").read_text().splitlines()
    if not line.startswith("#")
]
#: Where we are stricter on purpose: NaN is no number, and there is no tiered storage to turn on.
STRICTER = {("min.cleanable.dirty.ratio", "NaN"), ("remote.storage.enable", "TRUE ")}


def alone(name: str, value: str) -> str | None:
    return topic_error({name: value}, lambda _: None)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES}))
def test_topic_settings_one_by_one(name: str) -> None:
    for setting, value, answer in CASES:
        if setting == name:
            found = alone(name, value)
            if (name, value) in STRICTER:
                assert answer == "ok"
                assert found is not None
            else:
                assert (value, found) == (value, None if answer == "ok" else answer)


def test_every_topic_setting_of_kafka_is_known() -> None:
    assert set(TOPIC_RULES) == {name for name, _, _ in CASES} | {"internal.segment.bytes"}
    assert alone("nonsense", "1") == "Unknown topic config name: nonsense"
    assert alone("internal.segment.bytes", "100") is None


def test_settings_that_contradict_each_other() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    text = "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    assert topic_error(lags, lambda _: None) == text
    assert topic_error({"min.compaction.lag.ms": "10"}, {"max.compaction.lag.ms": "5"}.get) == text
    assert topic_error({"max.compaction.lag.ms": "5"}, {"min.compaction.lag.ms": "10"}.get) == text
    assert topic_error({"max.compaction.lag.ms": "5"}, lambda _: None) is None
    assert topic_error({"retention.ms": "1"}, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}.get) is None


@pytest.mark.parametrize(
    "name,value,per_broker,for_all",
    [
        ("log.cleaner.threads", "x", *["Invalid value x for configuration log.cleaner.threads: Not a number of type INT"] * 2),
        ("log.cleaner.threads", "-1", *["Invalid value -1 for configuration log.cleaner.threads: Value must be at least 0"] * 2),
        ("log.cleaner.threads", "2", None, None),
        ("nonsense.key", "1", None, None),
        ("node.id", "3", *["Cannot update these configs dynamically: [node.id]"] * 2),
        ("log.retention.hours", "5", *["Cannot update these configs dynamically: [log.retention.hours]"] * 2),
        ("listeners", "PLAINTEXT://:1", None,
         "Cannot update these configs at default cluster level, broker id must be specified: [listeners]"),
        ("cordoned.log.dirs", "/x", None,
         "Cannot update these configs at default cluster level, broker id must be specified: [cordoned.log.dirs]"),
        ("log.retention.ms", "abc", *["Invalid value abc for configuration log.retention.ms: Not a number of type LONG"] * 2),
        ("log.retention.ms", "-7", None, None),
        ("ssl.keystore.type", "JKS",
         *["These security configs can be dynamically updated only per-listener using the listener prefix: "
           "[ssl.keystore.type]"] * 2),
        ("listener.name.plaintext.ssl.keystore.type", "JKS", None,
         "Cannot update these configs at default cluster level, broker id must be specified: "
         "[listener.name.plaintext.ssl.keystore.type]"),
        ("listener.name.plaintext.max.connections", "5", None, None),
        ("listener.name.plaintext.max.connections", "x",
         *["Invalid value x for configuration max.connections: Not a number of type INT"] * 2),
        ("unclean.leader.election.enable", "maybe",
         *["Invalid value maybe for configuration unclean.leader.election.enable: Expected value to be either true or false"] * 2),
        ("leader.replication.throttled.rate", "-5",
         *["Invalid value -5 for configuration leader.replication.throttled.rate: Value must be at least 0"] * 2),
        ("min.insync.replicas", "0", *["Invalid value 0 for configuration min.insync.replicas: Value must be at least 1"] * 2),
    ],
)  # fmt: skip
def test_broker_settings(name: str, value: str, per_broker: str | None, for_all: str | None) -> None:
    assert broker_error({name: value}, True) == per_broker
    assert broker_error({name: value}, False) == for_all


def test_broker_settings_are_dynamic_or_not_as_in_kafka() -> None:
    table = [line.split("\t") for line in (DATA / "kafka-4.4.0-settings.tsv").read_text().splitlines()]
    modes = {row[1]: row[6] for row in table if row[0] == "broker"}
    for name, mode in modes.items():
        assert (name in CLUSTER_RULES or name in PER_BROKER_RULES) == (mode == "dynamic"), name
        assert (name in STATIC_BROKER_NAMES) == (mode == "static"), name
    assert not set(CLUSTER_RULES) & set(PER_BROKER_RULES)


def test_group_settings() -> None:
    assert group_error({"consumer.session.timeout.ms": "50000"}) is None
    assert group_error({"consumer.session.timeout.ms": "0"}) == (
        "Invalid value 0 for configuration consumer.session.timeout.ms: Value must be at least 1"
    )
    assert group_error({"retention.ms": "1"}) == "Unknown group config name: retention.ms"


@pytest.mark.parametrize(
    "name,value,expected",
    [
        (
            "interval.ms",
            "5",
            (True, "Invalid value 5 for interval.ms, interval must be between 100 and 3600000 (1 hour)"),
        ),
        ("interval.ms", "x", (False, "Invalid value x for configuration interval.ms: Not a number of type INT")),
        ("interval.ms", "100", None),
        ("metrics", "a,b", None),
        ("match", "client_id=a.*", None),
        ("match", "x", (False, "Illegal client matching pattern: x")),
        ("match", "client_id=(", (False, "Illegal client matching pattern: client_id=(")),
        ("match", "nope=1", (False, "Illegal client matching pattern: nope=1")),
        ("nope", "1", (True, "Unknown client metrics configuration: nope")),
    ],
)
def test_client_metrics(name: str, value: str, expected: tuple[bool, str] | None) -> None:
    assert client_metrics_error({name: value}) == expected


@pytest.mark.parametrize(
    "number,text",
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (2.5, "2.5"), (-131073.0, "-131073.0"), (9999999.0, "9999999.0"),
        (1e7, "1.0E7"), (9.9999999999e10, "9.9999999999E10"), (9.223372036854776e18, "9.223372036854776E18"),
        (0.001, "0.001"), (0.0001, "1.0E-4"), (-1.5e-9, "-1.5E-9"), (float("inf"), "Infinity"), (-float("inf"), "-Infinity"),
    ],
)  # fmt: skip
def test_numbers_are_shown_as_java_shows_them(number: float, text: str) -> None:
    assert java_double(number) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "1"),
        ("consumer.assignment.interval.ms", "15001"),
        ("share.delivery.count.limit", "11"),
        ("streams.num.standby.replicas", "3"),
        ("streams.task.offset.interval.ms", "1"),
        ("streams.assignor.name", "mine"),
        ("streams.rack.aware.assignment.tags", "zone, rack,zone"),
        ("errors.deadletterqueue.topic.name", "__letters"),
    ],
)
def test_settings_of_a_group_keep_to_the_limits_of_the_broker(name: str, value: str) -> None:
    fault = limits_error({name: value}, DaemonConfig())
    assert fault is not None and fault.startswith(name)


def test_a_group_may_go_to_the_limits() -> None:
    daemon = DaemonConfig(group_consumer_min_session_timeout_ms=6000, group_consumer_min_heartbeat_interval_ms=2000)
    least = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "2000"}
    assert limits_error(least, daemon) is None
    assert limits_error({**least, "consumer.heartbeat.interval.ms": "6000"}, daemon) == (
        "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    )
    assert limits_error({}, DaemonConfig()) is None
