"""Settings altered through the catalogue: each check with Kafka's code and text, and the records that are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreateTopics,
    ErrorCode,
    NewTopic,
    ResourceChange,
    ResourceResults,
    ResourceType,
)
from compactd.workers.catalogue_update import CatalogueUpdate
from tests.coordinator.catalogue.test_catalogue_topics import records
from tests.coordinator.catalogues import started

E, Op, R = ErrorCode, ConfigOperation, ResourceType


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    made = started([tmp_path / "d1", tmp_path / "d2"])
    made.apply("create_topics", CreateTopics(topics=(NewTopic(name="users", configs=(("retention.ms", "5"),)),)))
    yield made
    made.close()


def change(name: str, value: str | None = None, operation: int = Op.SET) -> ConfigChange:
    return ConfigChange(name=name, value=value, operation=operation)


def alter(
    catalogue: Catalogue, *resources: tuple[int, str, tuple[ConfigChange, ...]], **more: Any
) -> tuple[list[tuple[int, str | None]], CatalogueUpdate | None]:
    asked = tuple(ResourceChange(type=kind, name=name, configs=configs) for kind, name, configs in resources)
    results, update = catalogue.apply("alter_configs", AlterConfigs(resources=asked, **more))
    assert isinstance(results, ResourceResults)
    assert [(result.type, result.name) for result in results.results] == [(kind, name) for kind, name, _ in resources]
    return [(result.error, result.message) for result in results.results], update


@pytest.mark.parametrize(
    "kind,name,changes,code,message",
    [
        (R.TOPIC, "users", (change("a", "1"), change("a", "2")), E.INVALID_REQUEST, "Error due to duplicate config keys"),
        (R.TOPIC, "users", (change("a"), change("b")), E.INVALID_REQUEST, "Null value not supported for : a, b"),
        (99, "users", (change("a", "1"),), E.INVALID_REQUEST, "Unknown resource type 99"),
        (R.TOPIC, "", (change("retention.ms", "1"),), E.INVALID_REQUEST, "Default topic resources are not allowed."),
        (R.TOPIC, "a/b", (change("retention.ms", "1"),), E.INVALID_TOPIC_EXCEPTION,
         "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        (R.TOPIC, "ghost", (change("retention.ms", "1"),), E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'ghost' does not exist."),
        (R.TOPIC, "ghost", (change("retention.ms", "x"),), E.INVALID_CONFIG,
         "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        (R.TOPIC, "users", (change("nope", "1"),), E.INVALID_CONFIG, "Unknown topic config name: nope"),
        (R.TOPIC, "users", (change("retention.ms", "1", Op.APPEND),), E.INVALID_CONFIG,
         "Can't APPEND to key retention.ms because its type is not LIST."),
        (R.TOPIC, "users", (change("nope", "1", Op.SUBTRACT),), E.INVALID_CONFIG,
         "Can't SUBTRACT to key nope because its type is not LIST."),
        (R.TOPIC, "users", (change("cleanup.policy", "x", Op.APPEND),), E.INVALID_CONFIG,
         "Invalid value x for configuration cleanup.policy: String must be one of: compact, delete"),
        (R.TOPIC, "users", (change("retention.ms", "1", 7),), E.UNKNOWN_SERVER_ERROR, None),
        (R.TOPIC, "users", (change("retention.ms", "1" * 32768),), E.INVALID_CONFIG,
         "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."),
        (R.BROKER, "x", (change("log.retention.ms", "1"),), E.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (R.BROKER, "2", (change("log.retention.ms", "1"),), E.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2"),
        (R.BROKER, "1", (change("node.id", "3"),), E.INVALID_REQUEST, "Cannot update these configs dynamically: [node.id]"),
        (R.BROKER, "", (change("listeners", "PLAINTEXT://:1"),), E.INVALID_REQUEST,
         "Cannot update these configs at default cluster level, broker id must be specified: [listeners]"),
        (R.BROKER, "1", (change("log.cleaner.threads", "x"),), E.INVALID_REQUEST,
         "Invalid value x for configuration log.cleaner.threads: Not a number of type INT"),
        (R.BROKER, "1", (change("log.cleaner.threads", "1", 9),), E.INVALID_REQUEST, "Unknown operations type 9"),
        (R.BROKER, "1", (change("log.cleaner.threads", "1", Op.APPEND),), E.INVALID_CONFIG,
         "Config value append is not allowed for config key: log.cleaner.threads"),
        (R.BROKER, "1", (change("mystery", "1", Op.SUBTRACT),), E.INVALID_CONFIG, "Unknown config name: mystery"),
        (R.BROKER, "1", (change("cordoned.log.dirs", "/nowhere"),), E.INVALID_REQUEST,
         "Invalid value [/nowhere] for configuration cordoned.log.dirs: Invalid entry in cordoned.log.dirs: /nowhere. All "
         "cordoned log dirs must be entries of log.dirs or log.dir."),
        (R.BROKER, "1", (change("min.insync.replicas", "1"),), E.INVALID_CONFIG,
         "Broker-level min.insync.replicas cannot be altered while ELR is enabled."),
        (R.BROKER, "", (change("min.insync.replicas", None, Op.DELETE),), E.INVALID_CONFIG,
         "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."),
        (R.GROUP, "", (change("consumer.session.timeout.ms", "50000"),), E.INVALID_REQUEST,
         "Default group resources are not allowed."),
        (R.GROUP, "g", (change("nope", "1"),), E.INVALID_CONFIG, "Unknown group config name: nope"),
        (R.CLIENT_METRICS, "m", (change("interval.ms", "5"),), E.INVALID_REQUEST,
         "Invalid value 5 for interval.ms, interval must be between 100 and 3600000 (1 hour)"),
        (R.CLIENT_METRICS, "m", (change("match", "x"),), E.INVALID_CONFIG, "Illegal client matching pattern: x"),
    ],
)  # fmt: skip
def test_what_can_not_be_altered(
    catalogue: Catalogue, kind: int, name: str, changes: tuple[ConfigChange, ...], code: ErrorCode, message: str
) -> None:
    before = catalogue._log.end_offset
    assert alter(catalogue, (kind, name, changes)) == ([(code, message)], None)
    assert catalogue._log.end_offset == before


def test_each_resource_by_itself_and_all_in_one_batch(catalogue: Catalogue) -> None:
    start = catalogue._log.end_offset
    results, update = alter(
        catalogue,
        (R.TOPIC, "users", (change("segment.ms", "60000"), change("retention.ms", None, Op.DELETE))),
        (R.TOPIC, "ghost", (change("segment.ms", "60000"),)),
        (R.BROKER, "", (change("log.cleaner.threads", "2"),)),
        (R.BROKER, "1", (change("mystery.of.a.plugin", "yes"), change("log.retention.ms", "-1"))),
        (R.GROUP, "g", (change("consumer.session.timeout.ms", "50000"),)),
        (R.CLIENT_METRICS, "m", (change("metrics", "a,b"),)),
    )
    assert [code for code, _ in results] == [0, 3, 0, 0, 0, 0]
    assert len(list(catalogue._log.read(start))) == 1
    assert catalogue.image.configs == {
        (2, "users"): {"segment.ms": "60000"},
        (4, ""): {"min.insync.replicas": "1", "log.cleaner.threads": "2"},
        (4, "1"): {"mystery.of.a.plugin": "yes", "log.retention.ms": "-1"},
        (32, "g"): {"consumer.session.timeout.ms": "50000"},
        (16, "m"): {"metrics": "a,b"},
    }
    assert update is not None
    assert [(topic.name, topic.configs) for topic in update.topics] == [("users", {"segment.ms": "60000"})]
    assert update.broker_configs == {
        "": {"min.insync.replicas": "1", "log.cleaner.threads": "2"},
        "1": {"mystery.of.a.plugin": "yes", "log.retention.ms": "-1"},
    }
    _, update = alter(
        catalogue,
        (R.BROKER, "1", (change("mystery.of.a.plugin", None, Op.DELETE), change("log.retention.ms", None, Op.DELETE))),
    )
    assert update is not None
    assert update.broker_configs == {"1": {}}
    assert update.group_configs == update.client_metrics == {}
    full = catalogue.full_update()
    assert full.group_configs == {"g": {"consumer.session.timeout.ms": "50000"}}
    assert full.client_metrics == {"m": {"metrics": "a,b"}}


def test_the_same_resource_twice_is_refused_both_times(catalogue: Catalogue) -> None:
    one = (R.TOPIC, "users", (change("segment.ms", "60000"),))
    results, update = alter(catalogue, one, one)
    assert results == [(E.INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    assert update is None


def test_lists_grow_and_shrink_from_their_default(catalogue: Catalogue) -> None:
    def policy(operation: int, value: str) -> str | None:
        assert alter(catalogue, (R.TOPIC, "users", (change("cleanup.policy", value, operation),)))[0] == [(0, None)]
        return catalogue.image.topic_configs("users").get("cleanup.policy")

    assert policy(Op.APPEND, "compact") == "delete,compact"
    assert policy(Op.APPEND, "compact,delete") == "delete,compact"
    assert policy(Op.SUBTRACT, "delete") == "compact"
    assert policy(Op.SUBTRACT, "compact") == ""
    assert alter(catalogue, (R.BROKER, "1", (change("log.cleanup.policy", "compact", Op.APPEND),)))[0] == [(0, None)]
    assert catalogue.image.broker_configs(1) == {"log.cleanup.policy": "delete,compact"}


def test_what_stays_the_same_is_not_written_for_a_topic_but_is_for_a_broker(catalogue: Catalogue) -> None:
    alter(catalogue, (R.BROKER, "", (change("log.cleaner.threads", "2"),)))
    start = catalogue._log.end_offset
    same = (R.TOPIC, "users", (change("retention.ms", "5"), change("segment.ms", None, Op.DELETE)))
    results, update = alter(catalogue, same)
    assert (results, update, catalogue._log.end_offset) == ([(0, None)], None, start)
    assert alter(catalogue, (R.BROKER, "", (change("log.cleaner.threads", "2"),)))[1] is not None
    assert [kind for kind, _ in records(catalogue, start)] == ["CONFIG_RECORD"]


def test_a_new_minimum_of_replicas_clears_the_elr(catalogue: Catalogue) -> None:
    start = catalogue._log.end_offset
    alter(
        catalogue,
        (R.TOPIC, "users", (change("min.insync.replicas", "1"),)),
        (R.BROKER, "", (change("min.insync.replicas", "1"),)),
    )
    assert [(kind, data.get("topicName")) for kind, data in records(catalogue, start)] == [
        ("CONFIG_RECORD", None), ("CONFIG_RECORD", None), ("CLEAR_ELR_RECORD", "users"), ("CLEAR_ELR_RECORD", ""),
    ]  # fmt: skip


def test_the_legacy_request_replaces_everything(catalogue: Catalogue) -> None:
    alter(catalogue, (R.TOPIC, "users", (change("segment.ms", "60000"), change("flush.ms", "5"))))
    results, update = alter(catalogue, (R.TOPIC, "users", (change("flush.ms", "6"),)), incremental=False)
    assert results == [(0, None)]
    assert update is not None
    assert catalogue.image.topic_configs("users") == {"flush.ms": "6"}
    results, _ = alter(catalogue, (R.BROKER, "", (change("log.cleaner.threads", "2"),)), incremental=False)
    assert results == [(E.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.")]
    both = (change("log.cleaner.threads", "2"), change("min.insync.replicas", "1"))
    assert alter(catalogue, (R.BROKER, "", both), incremental=False)[0] == [(0, None)]
    # Operations have no meaning there, null values are refused.
    results, _ = alter(catalogue, (R.TOPIC, "users", (change("flush.ms", None, Op.DELETE),)), incremental=False)
    assert results == [(E.INVALID_REQUEST, "Null value not supported for : flush.ms")]


def test_validate_only_changes_nothing(catalogue: Catalogue) -> None:
    before = catalogue._log.end_offset
    results, update = alter(
        catalogue,
        (R.TOPIC, "users", (change("segment.ms", "60000"),)),
        (R.TOPIC, "users2", (change("segment.ms", "60000"),)),
        validate_only=True,
    )
    assert [code for code, _ in results] == [0, 3]
    assert (update, catalogue._log.end_offset) == (None, before)


def test_a_lag_is_checked_against_the_broker_s_dynamic_one(catalogue: Catalogue) -> None:
    alter(catalogue, (R.BROKER, "", (change("log.cleaner.max.compaction.lag.ms", "5"),)))
    results, _ = alter(catalogue, (R.TOPIC, "users", (change("min.compaction.lag.ms", "10"),)))
    text = "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    assert results == [(E.INVALID_CONFIG, text)]


def test_cordoned_log_dirs_take_nothing_new(catalogue: Catalogue, tmp_path: Path) -> None:
    def places(name: str) -> set[str]:
        catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name=name, num_partitions=4),)))
        found = next((topic for topic in catalogue.full_update().topics if topic.name == name), None)
        return set() if found is None else {partition.log_dir for partition in found.partitions}

    d1, d2 = str(tmp_path / "d1"), str(tmp_path / "d2")
    assert places("before") == {d1, d2}
    assert alter(catalogue, (R.BROKER, "1", (change("cordoned.log.dirs", d1),)))[0] == [(0, None)]
    assert places("after") == {d2}
    assert alter(catalogue, (R.BROKER, "1", (change("cordoned.log.dirs", "*"),)))[0] == [(0, None)]
    assert places("none") == set()
    assert alter(catalogue, (R.BROKER, "1", (change("cordoned.log.dirs", None, Op.DELETE),)))[0] == [(0, None)]
    assert places("again") == {d1}  # it has the fewest
