from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactd.config.errors import SettingError
from compactd.config.load import RawSettings, load_file, resolve_cleaner, resolve_storage, resolve_topic


@dataclass
class Cluster:
    """A metadata log's settings."""

    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_id: int | None = 1

    def config_source(self, kind: str, resource: str, name: str) -> str:
        return f"log ({kind} {resource or 'all'} {name})"


CLUSTER = Cluster(
    {"users": {"segment.bytes": "3000000", "cleanup.policy": "compact", "remote.storage.enable": "false"}},
    {
        "": {"log.segment.bytes": "4000000", "log.retention.ms": "-7", "log.cleaner.threads": "4"},
        "1": {"log.segment.bytes": "5000000"},
        "2": {"log.segment.bytes": "6000000"},
    },
)


def yaml(directory: Path, text: str) -> RawSettings:
    path = directory / "x.yaml"
    path.write_text(text)
    return load_file(path)


def segment_bytes(topic: str, *args: object) -> tuple[int, str]:
    resolved = resolve_topic(topic, *args)  # type: ignore[arg-type]
    return resolved.config.segment_bytes, resolved.sources["segment.bytes"]


def test_without_any_source_everything_is_default() -> None:
    resolved = resolve_topic("users")
    assert resolved.config.cleanup_policy == {"delete"}
    assert set(resolved.sources.values()) == {"default"}


def test_the_order_of_sources(tmp_path: Path) -> None:
    """Each source alone on top of all the later ones."""
    everything = "log.segment.bytes: 2100000\nsegment.bytes: 2200000\ntopics: {users: {segment.bytes: 2300000}}"
    assert segment_bytes("users", ["segment.bytes=2MiB"], yaml(tmp_path, everything), CLUSTER) == (2 << 20, "--set")
    assert segment_bytes("users", ["log.segment.bytes=2MiB"], yaml(tmp_path, everything), CLUSTER) == (2 << 20, "--set")
    assert segment_bytes("users", [], yaml(tmp_path, everything), CLUSTER) == (2_300_000, "x.yaml:3")
    assert segment_bytes("other", [], yaml(tmp_path, everything), CLUSTER) == (2_200_000, "x.yaml:2")
    broker_only = yaml(tmp_path, "log.segment.bytes: 2100000")
    assert segment_bytes("users", [], broker_only, CLUSTER) == (3_000_000, "log (topic users segment.bytes)")
    assert segment_bytes("other", [], broker_only, CLUSTER) == (2_100_000, "x.yaml:1")
    assert segment_bytes("other", [], None, CLUSTER) == (5_000_000, "log (broker 1 log.segment.bytes)")
    elsewhere = Cluster(broker_configs=CLUSTER.broker_configs, node_id=None)
    assert segment_bytes("other", [], None, elsewhere) == (4_000_000, "log (broker all log.segment.bytes)")
    assert segment_bytes("other") == (1 << 30, "default")


def test_a_topic_level_set_beats_a_broker_level_one() -> None:
    assert segment_bytes("users", ["log.segment.bytes=2MiB", "segment.bytes=3MiB"]) == (3 << 20, "--set")


def test_a_server_properties_never_overrides_what_a_topic_was_given(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.cleanup.policy=delete\nlog.segment.bytes=1048576\n")
    settings = load_file(path)
    resolved = resolve_topic("users", [], settings, CLUSTER)
    assert resolved.config.compact
    assert resolved.config.segment_bytes == 3_000_000
    assert resolve_topic("other", [], settings, CLUSTER).sources["cleanup.policy"] == "server.properties:1"


def test_of_several_broker_level_names_the_leftmost_wins_in_each_source(tmp_path: Path) -> None:
    settings = yaml(tmp_path, "log.retention.hours: 1\nlog.retention.minutes: 7\nlog.roll.hours: 2")
    resolved = resolve_topic("t", [], settings)
    assert (resolved.config.retention_ms, resolved.sources["retention.ms"]) == (420_000, "x.yaml:2")
    assert resolved.config.segment_ms == 7_200_000


def test_dynamic_broker_settings_are_read_as_kafka_reads_them() -> None:
    resolved = resolve_topic("t", [], None, CLUSTER)
    assert (resolved.config.retention_ms, resolved.sources["retention.ms"]) == (-1, "log (broker all log.retention.ms)")


def test_internal_segment_bytes_shows_in_the_source_of_segment_bytes() -> None:
    resolved = resolve_topic("users", ["internal.segment.bytes=100"], None, CLUSTER)
    assert resolved.config.segment_bytes == 100
    assert resolved.sources["segment.bytes"] == "--set (internal.segment.bytes)"


def test_names_of_the_metadata_log_without_effect_are_listed() -> None:
    resolved = resolve_topic("users", [], None, CLUSTER)
    assert resolved.unused == {"remote.storage.enable": "log (topic users remote.storage.enable)"}
    assert resolve_topic("other", [], None, CLUSTER).unused == {}


def test_a_value_of_the_metadata_log_that_does_not_parse_is_named_with_its_place() -> None:
    broken = Cluster({"users": {"retention.ms": "7d"}})
    with pytest.raises(SettingError, match=r"log \(topic users retention\.ms\): setting retention\.ms = '7d'"):
        resolve_topic("users", [], None, broken)
    assert resolve_topic("users", ["retention.ms=7d"], None, broken).config.retention_ms == 604_800_000


def test_lags_that_contradict_each_other_are_named_with_both_places() -> None:
    cluster = Cluster({"users": {"max.compaction.lag.ms": "5"}})
    with pytest.raises(SettingError, match=r"--set and log \(topic users max\.compaction\.lag\.ms\)"):
        resolve_topic("users", ["min.compaction.lag.ms=10"], None, cluster)


def test_the_cleaners_settings_and_their_sources(tmp_path: Path) -> None:
    settings = yaml(tmp_path, "log.cleaner.backoff.ms: 1s\nlog.cleaner.threads: 3")
    resolved = resolve_cleaner(["log.cleaner.threads=2"], settings, CLUSTER)
    assert (resolved.config.threads, resolved.config.backoff_ms) == (2, 1000)
    assert resolved.sources["log.cleaner.threads"] == "--set"
    assert resolved.sources["log.cleaner.backoff.ms"] == "x.yaml:1"
    assert resolved.sources["log.cleaner.enable"] == "default"
    assert resolve_cleaner(None, None, CLUSTER).config.threads == 4
    small = ["log.cleaner.dedupe.buffer.size=100"]
    with pytest.raises(SettingError, match=r"--set.*more than 1 MiB"):
        resolve_cleaner(small)
    assert resolve_cleaner(small, any_buffer_size=True).config.dedupe_buffer_size == 100


def test_the_storage_settings_and_their_sources() -> None:
    resolved = resolve_storage({"log.dir": "/a", "producer.id.expiration.ms": "2d"})
    assert (resolved.config.log_dirs, resolved.sources["log.dirs"]) == (("/a",), "--set")
    assert resolved.config.producer_id_expiration_ms == 172_800_000
    assert resolved.sources["background.threads"] == "default"
