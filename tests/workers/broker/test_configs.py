"""DescribeConfigs and its kin over the wire, with a real catalogue behind them (facts: kafka-protocol 10)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.messages import SetLoggerLevels
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

CREATE, DESCRIBE, ALTER, INCREMENT, LIST = 19, 32, 33, 44, 74
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, REMOVE, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC_SOURCE, DYNAMIC, DYNAMIC_DEFAULT, STATIC, DEFAULT, LOGGER_SOURCE, METRICS_SOURCE, GROUP_SOURCE = range(1, 9)


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], {"num.partitions": 3}) as running:
        with running.connect() as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            configs = [{"name": "retention.ms", "value": "100000"}]
            client.ask(CREATE, 7, {"topics": [{**topic, "configs": configs}], "timeout": 10_000})
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def described(client: RawClient, kind: int, name: str, keys: Any = None, version: int = 4, **more: bool) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    body = {"resources": [resource], "include_synonyms": True, **more}
    return client.ask(DESCRIBE, version, body).results[0]


def values(client: RawClient, kind: int, name: str, keys: Any = None) -> dict[str, tuple[str | None, int]]:
    """Value and source by name."""
    answer = described(client, kind, name, keys)
    assert answer.error_code == 0, answer
    return {each.name: (each.value, each.config_source) for each in answer.configs}


def synonyms(client: RawClient, kind: int, name: str, key: str) -> list[tuple[str, str | None, int]]:
    (entry,) = described(client, kind, name, [key]).configs
    return [(each.name, each.value, each.source) for each in entry.synonyms]


def change(
    client: RawClient, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, **more: bool
) -> tuple[int, str | None]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (answer,) = client.ask(INCREMENT, version, {"resources": [resource], "validate_only": False, **more}).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return int(answer.error_code), answer.error_message


def test_a_topic_has_every_setting_that_kafka_has(client: RawClient) -> None:
    entries = {each.name: each for each in described(client, TOPIC, "t").configs}
    assert len(entries) == 37
    assert list(entries) == sorted(entries)
    assert not any(each.read_only or each.is_sensitive for each in entries.values())
    expected = {  # as 4.4.0 answered
        "cleanup.policy": ("delete", 7),
        "compression.type": ("producer", 2),
        "flush.messages": ("9223372036854775807", 5),
        "flush.ms": ("9223372036854775807", 5),
        "follower.replication.throttled.replicas": ("", 7),
        "local.retention.ms": ("-2", 5),
        "max.message.bytes": ("1048588", 3),
        "message.timestamp.type": ("CreateTime", 2),
        "min.cleanable.dirty.ratio": ("0.5", 6),
        "preallocate": ("false", 1),
        "remote.copy.lag.bytes": ("-1", 5),
        "remote.storage.enable": ("false", 1),
        "segment.bytes": ("1073741824", 3),
        "segment.index.bytes": ("10485760", 3),
        "segment.ms": ("604800000", 5),
        "unclean.leader.election.enable": ("false", 1),
    }
    assert {name: (entries[name].value, entries[name].config_type) for name in expected} == expected
    assert {entries[name].config_source for name in expected} == {DEFAULT}


def test_synonyms_are_those_that_kafka_tells(client: RawClient) -> None:
    assert synonyms(client, TOPIC, "t", "retention.ms") == [("retention.ms", "100000", TOPIC_SOURCE)]
    assert synonyms(client, TOPIC, "t", "segment.ms") == []
    assert synonyms(client, TOPIC, "t", "flush.ms") == []
    assert synonyms(client, TOPIC, "t", "cleanup.policy") == [("log.cleanup.policy", "delete", DEFAULT)]
    assert synonyms(client, TOPIC, "t", "remote.copy.lag.ms") == [("log.remote.copy.lag.ms", "0", DEFAULT)]
    assert change(client, BROKER, "", ("log.retention.ms", SET, "77777")) == (0, None)
    assert change(client, BROKER, "1", ("log.retention.ms", SET, "66666")) == (0, None)
    below = [
        ("log.retention.ms", "66666", DYNAMIC),
        ("log.retention.ms", "77777", DYNAMIC_DEFAULT),
        ("log.retention.hours", "168", DEFAULT),
    ]
    assert synonyms(client, TOPIC, "t", "retention.ms") == [("retention.ms", "100000", TOPIC_SOURCE), *below]
    assert synonyms(client, BROKER, "1", "log.retention.ms") == below
    assert change(client, TOPIC, "t", ("retention.ms", REMOVE, None)) == (0, None)
    assert values(client, TOPIC, "t", ["retention.ms"]) == {"retention.ms": ("66666", DYNAMIC)}


def test_keys_documentation_and_old_versions(client: RawClient) -> None:
    assert set(values(client, TOPIC, "t", ["retention.ms", "no.such"])) == {"retention.ms"}
    assert len(values(client, TOPIC, "t", [])) == 37
    (entry,) = described(client, TOPIC, "t", ["cleanup.policy"], include_documentation=True).configs
    assert "compact keeps the newest of each key" in entry.documentation
    (entry,) = described(client, TOPIC, "t", ["cleanup.policy"]).configs
    assert entry.documentation is None
    for version in (1, 2, 3):
        answer = described(client, TOPIC, "t", ["retention.ms"], version=version)
        assert [(each.name, each.value, len(each.synonyms)) for each in answer.configs] == [
            ("retention.ms", "100000", 1)
        ]
    body = {"resources": [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms"]}]}
    assert client.ask(DESCRIBE, 4, body).results[0].configs[0].synonyms == ()


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", 3), (TOPIC, "bad name", 17), (TOPIC, "", 17), (BROKER, "7", 42), (BROKER, "x", 42),
        (LOGGER, "", 42), (LOGGER, "7", 42), (GROUP, "", 42), (METRICS, "", 42), (3, "x", 42),
    ],
)  # fmt: skip
def test_resources_that_are_not_there(client: RawClient, kind: int, name: str, error: int) -> None:
    answer = described(client, kind, name)
    assert (answer.error_code, answer.resource_type, answer.resource_name, answer.configs) == (error, kind, name, ())
    assert answer.error_message is not None


def test_the_broker_tells_all_that_it_goes_by(broker: CatalogueBroker, client: RawClient) -> None:
    entries = {each.name: each for each in described(client, BROKER, "1").configs}
    assert list(entries) == sorted(entries)
    assert (entries["num.partitions"].value, entries["num.partitions"].config_source) == ("3", STATIC)
    assert entries["num.partitions"].read_only
    assert entries["log.dirs"].value == broker.log_dirs[0]
    assert (entries["log.roll.ms"].value, entries["log.roll.ms"].config_source) == (None, DEFAULT)
    assert (entries["log.roll.hours"].value, entries["log.roll.hours"].config_type) == ("168", 3)
    assert not entries["log.cleaner.threads"].read_only
    assert "internal.segment.bytes" not in entries and "test.clock.file" not in entries
    assert [(each.name, each.value, each.source) for each in entries["num.partitions"].synonyms] == [
        ("num.partitions", "3", STATIC),
        ("num.partitions", "1", DEFAULT),
    ]
    assert described(client, BROKER, "", version=4).error_code == 0


def test_what_is_set_for_all_brokers(client: RawClient) -> None:
    change(client, BROKER, "", ("log.cleaner.threads", SET, "2"), ("of.a.plugin", SET, "x"))
    found = values(client, BROKER, "")
    assert found["log.cleaner.threads"] == ("2", DYNAMIC_DEFAULT)
    # What nobody knows may be a secret.
    assert found["of.a.plugin"] == (None, DYNAMIC_DEFAULT)
    assert values(client, BROKER, "1")["of.a.plugin"] == (None, DYNAMIC_DEFAULT)
    (entry,) = described(client, BROKER, "1", ["of.a.plugin"]).configs
    assert entry.is_sensitive and entry.read_only
    change(client, BROKER, "", ("log.cleaner.threads", REMOVE, None), ("of.a.plugin", REMOVE, None))
    assert not {"log.cleaner.threads", "of.a.plugin"} & set(values(client, BROKER, ""))


def test_groups_loggers_and_metrics(client: RawClient) -> None:
    groups = values(client, GROUP, "any")
    assert len(groups) == 21
    assert groups["consumer.session.timeout.ms"] == ("45000", DEFAULT)
    assert change(client, GROUP, "any", ("consumer.session.timeout.ms", SET, "50000")) == (0, None)
    assert values(client, GROUP, "any")["consumer.session.timeout.ms"] == ("50000", GROUP_SOURCE)
    assert synonyms(client, GROUP, "any", "consumer.session.timeout.ms") == [
        ("consumer.session.timeout.ms", "50000", GROUP_SOURCE),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    assert values(client, METRICS, "m") == {
        "interval.ms": ("300000", DEFAULT), "match": ("", DEFAULT), "metrics": ("", DEFAULT),
    }  # fmt: skip
    assert change(client, METRICS, "m", ("interval.ms", SET, "1000")) == (0, None)
    assert values(client, METRICS, "m")["interval.ms"] == ("1000", METRICS_SOURCE)


def test_settings_are_changed_one_by_one(client: RawClient) -> None:
    for version in (0, 1):
        assert change(client, TOPIC, "t", ("retention.ms", SET, "5"), version=version) == (0, None)
        assert values(client, TOPIC, "t", ["retention.ms"]) == {"retention.ms": ("5", TOPIC_SOURCE)}
        assert change(client, TOPIC, "t", ("retention.ms", REMOVE, None), version=version) == (0, None)
        assert values(client, TOPIC, "t", ["retention.ms"]) == {"retention.ms": ("604800000", DEFAULT)}
    assert change(client, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == (0, None)
    assert values(client, TOPIC, "t", ["cleanup.policy"]) == {"cleanup.policy": ("delete,compact", TOPIC_SOURCE)}
    assert change(client, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == (0, None)
    assert values(client, TOPIC, "t", ["cleanup.policy"]) == {"cleanup.policy": ("compact", TOPIC_SOURCE)}
    assert change(client, TOPIC, "t", ("retention.ms", SET, "7"), validate_only=True) == (0, None)
    assert values(client, TOPIC, "t", ["retention.ms"])["retention.ms"][1] == DEFAULT


def test_levels_of_loggers_count_at_once(broker: CatalogueBroker, client: RawClient) -> None:
    above, below = "compactd.storage", "compactd.storage.log"
    before = values(client, LOGGER, "1")
    assert {source for _, source in before.values()} == {LOGGER_SOURCE}
    assert before.keys() >= {"root", above, below, "compactd.workers.broker.asking"}
    assert change(client, LOGGER, "1", (above, SET, "DEBUG"), validate_only=True) == (0, None)
    assert values(client, LOGGER, "1") == before
    try:
        assert change(client, LOGGER, "1", (above, SET, "TRACE"), (below, SET, "FATAL")) == (0, None)
        after = values(client, LOGGER, "1")
        assert (after[above][0], after[below][0], after["compactd.storage.log_flushing"][0]) == (
            "TRACE",
            "FATAL",
            "TRACE",
        )
        assert logging.getLogger(above).isEnabledFor(5) and not logging.getLogger(below).isEnabledFor(logging.ERROR)
        # The other processes hear of it.
        told = broker.channel.wait_for(lambda message: isinstance(message, SetLoggerLevels))
        assert told.levels == {above: "TRACE", below: "FATAL"}
        assert change(client, LOGGER, "1", (below, REMOVE, None)) == (0, None)
        assert values(client, LOGGER, "1")[below] == ("TRACE", LOGGER_SOURCE)
        # All of a resource's changes, or none.
        assert change(client, LOGGER, "1", (above, SET, "INFO"), ("no.such", SET, "INFO"))[0] == 40
        assert values(client, LOGGER, "1")[above] == ("TRACE", LOGGER_SOURCE)
    finally:
        change(client, LOGGER, "1", (above, REMOVE, None), (below, REMOVE, None))
    assert values(client, LOGGER, "1") == before


@pytest.mark.parametrize(
    ("kind", "name", "one", "error"),
    [
        (LOGGER, "1", ("root", SET, "debug"), 40),
        (LOGGER, "1", ("no.such", SET, "DEBUG"), 40),
        (LOGGER, "1", ("root", REMOVE, None), 42),
        (LOGGER, "1", ("root", APPEND, "DEBUG"), 42),
        (LOGGER, "", ("root", SET, "DEBUG"), 42),
        (LOGGER, "7", ("root", SET, "DEBUG"), 42),
        (BROKER, "1", ("listeners", SET, "PLAINTEXT://:1"), 42),
        (BROKER, "1", ("metric.reporters", SET, "x"), 42),
        (TOPIC, "t", ("no.such", SET, "1"), 40),
        (TOPIC, "t", ("retention.ms", SET, "soon"), 40),
        (TOPIC, "t", ("retention.ms", SET, None), 42),
        (TOPIC, "t", ("retention.ms", APPEND, "1"), 40),
        (TOPIC, "none", ("retention.ms", SET, "1"), 3),
        (TOPIC, "", ("retention.ms", SET, "1"), 42),
        (BROKER, "7", ("log.retention.ms", SET, "1"), 42),
        (BROKER, "1", ("node.id", SET, "1"), 42),
        (GROUP, "g", ("no.such", SET, "1"), 40),
        (3, "x", ("a", SET, "1"), 42),
    ],
)
def test_changes_that_are_refused(client: RawClient, kind: int, name: str, one: Any, error: int) -> None:
    code, message = change(client, kind, name, one)
    assert code == error
    assert message


def test_a_resource_that_is_named_twice_is_refused_twice(client: RawClient) -> None:
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "1"}],
    }
    answer = client.ask(INCREMENT, 1, {"resources": [resource, resource], "validate_only": False})
    assert [int(each.error_code) for each in answer.responses] == [42, 42]


@pytest.mark.parametrize("version", range(3))
def test_the_old_way_replaces_everything(client: RawClient, version: int) -> None:
    configs = [{"name": "segment.ms", "value": "99"}]
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    assert client.ask(ALTER, version, {**body, "validate_only": True}).responses[0].error_code == 0
    assert values(client, TOPIC, "t", ["retention.ms"])["retention.ms"] == ("100000", TOPIC_SOURCE)
    assert client.ask(ALTER, version, body).responses[0].error_code == 0
    found = values(client, TOPIC, "t", ["segment.ms", "retention.ms"])
    assert found == {"segment.ms": ("99", TOPIC_SOURCE), "retention.ms": ("604800000", DEFAULT)}


def test_what_has_settings_is_listed(client: RawClient) -> None:
    def listed(version: int = 1, *kinds: int) -> set[tuple[int, str]]:
        answer = client.ask(LIST, version, {"resource_types": kinds} if version else {})
        assert answer.error_code == 0
        return {(getattr(each, "resource_type", METRICS), each.resource_name) for each in answer.config_resources}

    assert listed() == {(LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")}
    change(client, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    change(client, METRICS, "m", ("interval.ms", SET, "1000"))
    assert listed() == {(LOGGER, "1"), (BROKER, "1"), (TOPIC, "t"), (GROUP, "g"), (METRICS, "m")}
    assert listed(1, GROUP, TOPIC) == {(TOPIC, "t"), (GROUP, "g")}
    assert listed(0) == {(METRICS, "m")}
    change(client, METRICS, "m", ("interval.ms", REMOVE, None))
    assert listed(0) == set()
    assert client.ask(LIST, 1, {"resource_types": [3]}).error_code == 35
