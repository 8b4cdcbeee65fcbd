from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.errors import CompactdError, SettingError, UsageError
from compactd.config.load import load_file, parse_sets


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


BROKER = """\
# a real broker's file
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:9092
listener.name.internal.ssl.key.password=hunter2
log.dirs=/var/lib/kafka/d1,\\
   /var/lib/kafka/d2
log.segment.bytes=1048576
log.retention.hours=48
zookeeper.connect=localhost:2181
retention.ms=5
log.segmnt.bytes=7
log.segment.bytes=2097152
my.own.plugin=x
"""


def test_a_brokers_file_gives_its_storage_settings_and_lists_the_rest(tmp_path: Path) -> None:
    settings = load_file(write(tmp_path, "server.properties", BROKER))
    assert {name: entry.source for name, entry in settings.broker.items()} == {
        "node.id": "server.properties:3",
        "listeners": "server.properties:4",
        "listener.name.internal.ssl.key.password": "server.properties:5",
        "log.dirs": "server.properties:6",
        "log.segment.bytes": "server.properties:13",
        "log.retention.hours": "server.properties:9",
    }
    assert settings.broker["log.dirs"].values == {"log_dirs": ("/var/lib/kafka/d1", "/var/lib/kafka/d2")}
    assert settings.broker["log.retention.hours"].values == {"retention_ms": 48 * 3_600_000}
    assert not settings.every_topic
    assert not settings.topics


def test_nothing_of_a_brokers_file_is_dropped_silently(tmp_path: Path) -> None:
    settings = load_file(write(tmp_path, "server.properties", BROKER))
    unused = {entry.name: entry for entry in settings.unused}
    known = ("process.roles", "zookeeper.connect")
    assert [name for name, entry in unused.items() if not entry.unknown] == [*known, "log.segment.bytes"]
    assert "removed in 4.0" in unused["zookeeper.connect"].reason
    assert "log.retention.ms" in unused["retention.ms"].reason
    assert "did you mean log.segment.bytes" in unused["log.segmnt.bytes"].reason
    assert unused["my.own.plugin"].unknown
    assert "line 13" in unused["log.segment.bytes"].reason
    assert "hunter2" not in repr(settings)


def test_a_brokers_file_is_read_without_units_and_faults_have_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, "server.properties", "a.b=c\nlog.segment.bytes=128MiB\n")
    with pytest.raises(SettingError, match=r"server\.properties:2.*without a unit"):
        load_file(path)


def test_retention_in_a_brokers_file(tmp_path: Path) -> None:
    for text, expected in (
        ("log.retention.ms=-5", -1),
        ("log.retention.hours=-1", -1),
        ("log.retention.minutes=3", 180_000),
    ):
        settings = load_file(write(tmp_path, "server.properties", text))
        (entry,) = settings.broker.values()
        assert entry.values == {"retention_ms": expected}
    with pytest.raises(SettingError, match="1 or more, or negative for off"):
        load_file(write(tmp_path, "server.properties", "log.retention.ms=0"))


def test_the_flush_scheduler_interval_feeds_two_settings(tmp_path: Path) -> None:
    settings = load_file(write(tmp_path, "server.properties", "log.flush.scheduler.interval.ms=77"))
    (entry,) = settings.broker.values()
    assert entry.values == {"flush_ms": 77, "log_flush_scheduler_interval_ms": 77}


YAML = """\
log.segment.bytes: 2MiB      # a broker-level default
log.retention.hours: 7d
cleanup.policy: [compact]
log.cleaner.threads: 2
topics:
  users:
    retention.ms: 1d
    preallocate: yes
    cleanup.policy: []
  empty:
"""


def test_yaml_has_broker_level_topic_level_and_single_topics_settings(tmp_path: Path) -> None:
    settings = load_file(write(tmp_path, "compactd.yaml", YAML))
    assert settings.broker["log.segment.bytes"].values == {"segment_bytes": 2 << 20}
    assert settings.broker["log.retention.hours"].values == {"retention_ms": 604_800_000}
    assert settings.broker["log.cleaner.threads"].source == "compactd.yaml:4"
    assert settings.every_topic["cleanup.policy"].values == {"cleanup_policy": ("compact",)}
    users = settings.topics["users"]
    assert users["retention.ms"].values == {"retention_ms": 86_400_000}
    assert users["preallocate"].values == {"preallocate": True}
    assert users["cleanup.policy"].values == {"cleanup_policy": ()}
    assert users["cleanup.policy"].source == "compactd.yaml:9"
    assert settings.topics["empty"] == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "log.segment.byte: 3",
            "x.yaml:1: setting log.segment.byte = '3': no such setting, the nearest is log.segment.bytes",
        ),
        ("a: 1\nb: 2", "x.yaml:1"),
        ("process.roles: x", "only a broker's server.properties"),
        ("remote.storage.enable: true", "a topic-level Kafka setting"),
        ("segment.bytes: 1KiB", "must be 1048576 or more"),
        ("log.retention.hours: 90m", "whole number of 1h"),
        ("log.retention.hours: soon", "not a whole number of 1h, nor a duration such as 12h, 7d, 2w"),
        ("segment.ms: 1.5x", "unknown unit 'x'"),
        ("log: {cleaner: {threads: 2}}", "write names in full"),
        ("retention.ms:", "needs a single value"),
        ("retention.ms: {a: 1}", "needs a single value"),
        ("segment.bytes: 2000000\nsegment.bytes: 3000000", "x.yaml:2: segment.bytes is set twice, first in line 1"),
        ("topics: {users: {log.retention.ms: 4}}", "a broker-level name; a topic's is retention.ms"),
        ("topics: {users: {log.cleaner.threads: 4}}", "which no topic has of its own"),
        ("topics: {users: {retention.mss: 4}}", "the nearest is retention.ms"),
        ("topics: {'a/b': {}}", "is not a topic name"),
        ("topics: {'..': {}}", "is not a topic name"),
        ("topics: 3", "must be a mapping"),
        ("[]", "must be a mapping"),
        ("? [a]\n: 1", "a name must be plain text"),
        ("a: [1", "not valid YAML"),
        ("x: *b", "not valid YAML"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_yaml_that_is_refused_says_why_and_where(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_file(write(tmp_path, "x.yaml", text))
    assert reason in str(caught.value)


def test_an_empty_yaml_file_has_no_settings(tmp_path: Path) -> None:
    settings = load_file(write(tmp_path, "x.yaml", "# nothing\n"))
    assert not settings.broker
    assert not settings.topics


def test_the_kind_of_a_file_without_a_telling_suffix_is_seen_from_its_content(tmp_path: Path) -> None:
    assert load_file(write(tmp_path, "a.conf", "# x\nprocess.roles=y\nlog.segment.bytes=1048576\n")).unused
    assert load_file(write(tmp_path, "b.conf", "log.segment.bytes: 1MiB\n")).broker


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml: cannot be read"):
        load_file(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_file(tmp_path)
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(UsageError, match="at most"):
        load_file(huge)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".yaml", ".properties", ".conf"]))
def test_any_file_is_read_or_refused_by_name(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(data)
    try:
        load_file(path)
    except CompactdError as fault:
        assert fault.exit_code == 2


def test_sets_take_either_level_with_units_and_the_last_counts() -> None:
    settings = parse_sets(["retention.ms=1d", "retention.ms = 2d", "log.roll.hours=1", "cleanup.policy="])
    assert settings.every_topic["retention.ms"].values == {"retention_ms": 172_800_000}
    assert settings.every_topic["cleanup.policy"].values == {"cleanup_policy": ()}
    assert settings.broker["log.roll.hours"].values == {"segment_ms": 3_600_000}
    assert settings.broker["log.roll.hours"].source == "--set"
    assert parse_sets({"preallocate": True}).every_topic["preallocate"].values == {"preallocate": True}


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("retention.ms", "write NAME=VALUE"),
        ("retention.mss=1", "the nearest is retention.ms"),
        ("process.roles=broker", "only a broker's server.properties"),
        ("log.cleaner.threads=x", "whole number"),
    ],
)
def test_sets_that_are_refused(pair: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sets([pair])
    assert reason in str(caught.value)
    assert "--set" in str(caught.value)
