from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactd.config.errors import SettingError
from compactd.config.flat import flatten, unflatten
from compactd.coordinator.configuration import (
    CatalogueConfigs,
    Configuration,
    TopicConfigs,
    changed_names,
    given_now,
    keep_static,
    settings_text,
)
from compactd.workers.messages import GivenSettings

_YAML = """
log.dirs: [a, b]
cordoned.log.dirs: b
log.cleaner.threads: 0
log.retention.ms: 2d
topics:
  users: {partitions: 3, cleanup.policy: compact, segment.bytes: 4MiB}
  plain: {}
"""


def configuration(tmp_path: Path, text: str = _YAML, *sets: str) -> Configuration:
    path = tmp_path / "compactd.yaml"
    path.write_text(text)
    return Configuration(sets, path)


def test_log_dirs_are_real_paths_and_there_is_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    settings = configuration(tmp_path).resolve(None)
    root = os.path.realpath(tmp_path)
    assert settings.storage.log_dirs == (f"{root}/a", f"{root}/b")
    assert settings.storage.cordoned_log_dirs == (f"{root}/b",)
    assert Configuration((), None).resolve(None).storage.log_dirs == (f"{root}/data/d1",)
    assert Configuration(("log.dir=link/x",), None).resolve(None).storage.log_dirs == (f"{root}/x",)


def test_the_topics_section_goes_into_the_catalogue_and_counts_no_more_after_that(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    users, plain = given.topics
    assert (users.name, users.partitions) == ("users", 3)
    assert users.configs == {"cleanup.policy": "compact", "segment.bytes": str(4 << 20)}
    assert (plain.partitions, plain.configs) == (None, {})
    config = given.topic_config({"cleanup.policy": "delete"}, None)
    assert (config.compact, config.retention_ms) == (False, 2 * 86_400_000)


@pytest.mark.parametrize("count", ["0", "-1", "x", "100001", "1.5", "٣"])
def test_a_number_of_partitions_is_checked_with_its_line(tmp_path: Path, count: str) -> None:
    with pytest.raises(SettingError, match=r"compactd\.yaml:2.*partitions"):
        configuration(tmp_path, f"topics:\n  users: {{partitions: {count}}}\n")


def test_dynamic_settings_hide_those_of_the_start_as_in_kafka(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    catalogue = CatalogueConfigs(1, broker_configs={"": {"log.cleaner.backoff.ms": "5", "log.cleaner.threads": "7"}})
    settings = given.resolve(catalogue)
    assert (settings.cleaner.backoff_ms, settings.cleaner.threads) == (5, 7)
    assert given.resolve(CatalogueConfigs(1)).cleaner.threads == 0
    # Under any of its names; what only a restart can change, and what was stored for another node, hides nothing.
    text = "log.retention.hours: 5\nnum.partitions: 3\nlog.segment.bytes: 2MiB\n"
    given = configuration(tmp_path, text, "log.retention.minutes=7")
    stored = {"1": {"log.retention.ms": "9", "num.partitions": "4"}, "2": {"log.segment.bytes": "3000000"}}
    catalogue = CatalogueConfigs(1, broker_configs=stored)
    config = given.topic_config({}, catalogue)
    assert (config.retention_ms, config.segment_bytes) == (9, 2 << 20)
    assert given.resolve(catalogue).daemon.num_partitions == 3


def test_what_does_not_hold_together_costs_no_more_than_itself(tmp_path: Path) -> None:
    stored = {
        "": {"log.retention.bytes": "-1", "log.segment.bytes": "2000000", "log.cleaner.min.compaction.lag.ms": "100"},
        "1": {"log.preallocate": "x"},
    }
    resolver = TopicConfigs(configuration(tmp_path), CatalogueConfigs(1, broker_configs=stored))
    good = resolver.of("good", {})
    # Stored values that Kafka takes, or that a later version of it stored.
    assert (good.segment_bytes, good.min_compaction_lag_ms, good.preallocate) == (2_000_000, 100, False)
    bad = resolver.of("bad", {"max.compaction.lag.ms": "5", "segment.bytes": "few", "retention.bytes": "7"})
    # The longest lag can't be shorter than the least.
    assert (bad.min_compaction_lag_ms, bad.max_compaction_lag_ms) == (100, 100)
    assert (bad.retention_bytes, bad.segment_bytes) == (7, 2_000_000)
    assert list(resolver.faults) == ["good", "bad"]
    assert resolver.of("one", {"segment.ms": "5"}) is resolver.of("two", {"segment.ms": "5"})


def test_a_stored_setting_that_is_no_good_keeps_no_other_from_counting(tmp_path: Path) -> None:
    stored = {
        "": {"log.cleaner.backoff.ms": "5", "log.cleaner.io.buffer.load.factor": "2", "background.threads": "none"}
    }
    settings, faults = configuration(tmp_path).resolve_stored(CatalogueConfigs(1, broker_configs=stored))
    assert (settings.cleaner.backoff_ms, settings.cleaner.load_factor, settings.storage.background_threads) == (
        5,
        0.9,
        10,
    )
    assert len(faults) == 2
    stored = {"1": {"log.cleaner.backoff.ms": "5", "log.cleaner.threads": "700"}}
    given = configuration(tmp_path, "log.dirs: a\n")
    settings, faults = given.resolve_stored(CatalogueConfigs(1, broker_configs=stored))
    assert (settings.cleaner.backoff_ms, settings.cleaner.threads, len(faults)) == (5, 1, 1)


def test_what_may_change_and_what_may_not(tmp_path: Path) -> None:
    before = configuration(tmp_path).resolve(None)
    after = configuration(
        tmp_path, _YAML.replace("threads: 0", "threads: 3") + "node.id: 9\nlog.level: debug\n"
    ).resolve(None)
    apply, refuse = changed_names(before, after)
    assert apply == {"log.cleaner.threads": "3", "log.level": "debug"}
    assert refuse == {"node.id": ("1", "9")}
    kept = keep_static(before, after)
    assert (kept.daemon.node_id, kept.cleaner.threads, kept.daemon.log_level) == (1, 3, "debug")
    assert kept.storage == before.storage


def test_settings_travel_as_text(tmp_path: Path) -> None:
    settings = configuration(tmp_path).resolve(None)
    flat = settings_text(settings)
    assert flat["log.cleaner.io.buffer.load.factor"] == "0.9"
    assert "advertised.listeners" not in flat
    assert flatten(*unflatten(flat)) == flat
    assert unflatten({"something.else": "1"}) == unflatten({})


def test_what_was_given_is_told_as_it_was_written_but_without_units(tmp_path: Path) -> None:
    text = "log.retention.hours: 2\nlog.roll.ms: 3h\nlog.cleanup.policy: [compact, delete]\nnum.partitions: 4\n"
    text += "retention.ms: 2d\nlog.segment.bytes: 2MiB\nlog.dirs: /d1\n"
    given = configuration(
        tmp_path, text, "log.roll.ms=5000", "log.preallocate=true", "log.retention.minutes=-1", "cleanup.policy=compact"
    )
    assert given.given == GivenSettings(
        broker={
            "log.retention.hours": "2",
            "log.roll.ms": "5000",
            "log.cleanup.policy": "compact,delete",
            "num.partitions": "4",
            "log.segment.bytes": "2097152",
            "log.dirs": "/d1",
            "log.preallocate": "true",
            "log.retention.minutes": "-1",
        },
        topics={"retention.ms": "172800000", "cleanup.policy": "compact"},
    )


def test_what_only_a_restart_changes_is_told_as_it_is(tmp_path: Path) -> None:
    before = configuration(tmp_path, "log.dirs: a\nnum.partitions: 4\nlog.retention.ms: 5\n").given
    after = configuration(
        tmp_path, "log.dirs: b\nauto.create.topics.enable: false\nlog.roll.ms: 6\nretention.ms: 7\n"
    ).given
    assert given_now(before, after) == GivenSettings(
        broker={"log.dirs": "a", "num.partitions": "4", "log.roll.ms": "6"}, topics={"retention.ms": "7"}
    )
