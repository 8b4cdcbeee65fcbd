"""What the configurations accept and refuse; expected results are those of Kafka 4.4.0's LogConfig and KafkaConfig."""

from __future__ import annotations

from typing import Any

import pytest

from compactd.config.errors import SettingError
from compactd.config.settings import CleanerConfig, StorageConfig, TopicConfig, nearest_name

LONG_MAX = (1 << 63) - 1


def topic(name: str, value: object) -> TopicConfig:
    return TopicConfig.from_strings({name: value}, units=False)


def test_defaults_are_kafkas() -> None:
    config = TopicConfig.from_strings({})
    assert config == TopicConfig()
    assert config.cleanup_policy == {"delete"}
    assert (config.delete, config.compact) == (True, False)
    assert config.segment_bytes == 1 << 30
    assert config.retention_ms == config.segment_ms == 604_800_000
    assert config.max_compaction_lag_ms == LONG_MAX
    assert config.min_cleanable_dirty_ratio == 0.5


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("compact", {"compact"}),
        ("compact,delete", {"compact", "delete"}),
        (" compact , delete ", {"compact", "delete"}),
        ("delete,delete,compact", {"compact", "delete"}),
        ("", set()),
        ("  ", set()),
    ],
)
def test_cleanup_policies_that_kafka_accepts(text: str, policy: set[str]) -> None:
    assert topic("cleanup.policy", text).cleanup_policy == policy


@pytest.mark.parametrize("text", ["Compact", "COMPACT,delete", ",", "compact,", "compact;delete", "compact delete"])
def test_cleanup_policies_that_kafka_refuses(text: str) -> None:
    with pytest.raises(SettingError, match=r"cleanup\.policy"):
        topic("cleanup.policy", text)


def test_a_policy_in_the_wrong_case_is_shown_in_the_right_one() -> None:
    with pytest.raises(SettingError, match="write compact"):
        topic("cleanup.policy", "Compact")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("retention.ms", "0", "retention_ms", 0),
        ("retention.ms", "-1", "retention_ms", -1),
        ("retention.ms", "+5", "retention_ms", 5),
        ("retention.ms", " 7 ", "retention_ms", 7),
        ("retention.ms", "9223372036854775807", "retention_ms", LONG_MAX),
        ("retention.bytes", "-9223372036854775808", "retention_bytes", -LONG_MAX - 1),
        ("min.cleanable.dirty.ratio", ".5", "min_cleanable_dirty_ratio", 0.5),
        ("min.cleanable.dirty.ratio", "1", "min_cleanable_dirty_ratio", 1.0),
        ("min.cleanable.dirty.ratio", "-0.0", "min_cleanable_dirty_ratio", 0.0),
        ("min.cleanable.dirty.ratio", "0.5d", "min_cleanable_dirty_ratio", 0.5),
        ("min.cleanable.dirty.ratio", "1e-1", "min_cleanable_dirty_ratio", 0.1),
        ("preallocate", "TRUE", "preallocate", True),
        ("preallocate", " false ", "preallocate", False),
        ("segment.bytes", "1048576", "segment_bytes", 1 << 20),
        ("internal.segment.bytes", "100", "segment_bytes", 100),
        ("compression.gzip.level", "-1", "compression_gzip_level", -1),
        ("compression.type", " gzip ", "compression_type", "gzip"),
        ("message.timestamp.type", "LogAppendTime", "message_timestamp_type", "LogAppendTime"),
    ],
)
def test_values_that_kafka_accepts(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(topic(name, text), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "1e3"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", ""),
        ("retention.ms", "7d"),
        ("retention.ms", "9" * 100_000),
        ("min.cleanable.dirty.ratio", "1.0000001"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("preallocate", "yes"),
        ("preallocate", ""),
        ("segment.bytes", "14"),
        ("segment.bytes", "2147483648"),
        ("index.interval.bytes", "2147483648"),
        ("index.interval.bytes", "-1"),
        ("segment.index.bytes", "3"),
        ("segment.ms", "0"),
        ("max.compaction.lag.ms", "0"),
        ("max.decompressed.message.bytes", "2147483640"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.zstd.level", "23"),
        ("compression.type", "none"),
        ("compression.type", "GZIP"),
        ("message.timestamp.type", "createtime"),
        ("no.such", "x"),
    ],
)
def test_values_that_kafka_refuses(name: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        topic(name, text)
    assert caught.value.fields["name"] == name
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "0x1p-1"])
def test_numbers_that_kafka_lets_through_but_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SettingError):
        topic("min.cleanable.dirty.ratio", text)


def test_internal_segment_bytes_wins_and_the_other_is_checked_all_the_same() -> None:
    config = TopicConfig.from_strings({"segment.bytes": "2097152", "internal.segment.bytes": "100"})
    assert (config.segment_bytes, config.internal_segment_bytes) == (100, 100)
    with pytest.raises(SettingError, match=r"segment\.bytes = '14'"):
        TopicConfig.from_strings({"segment.bytes": "14", "internal.segment.bytes": "100"})
    with pytest.raises(SettingError):
        topic("internal.segment.bytes", "0")


def test_the_lags_may_meet_but_not_cross() -> None:
    assert (
        TopicConfig.from_strings({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 10}).min_compaction_lag_ms == 10
    )
    with pytest.raises(SettingError, match=r"max\.compaction\.lag\.ms, which is 9"):
        TopicConfig.from_strings({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 9})


def test_units_where_they_are_allowed() -> None:
    config = TopicConfig.from_strings({"retention.ms": "7d", "segment.bytes": "128MiB", "preallocate": True})
    assert (config.retention_ms, config.segment_bytes, config.preallocate) == (604_800_000, 128 << 20, True)
    with pytest.raises(SettingError, match="whole number"):
        TopicConfig.from_strings({"flush.messages": "7d"})


def test_values_may_be_plain_python_values() -> None:
    config = TopicConfig.from_strings({"cleanup.policy": ["compact", "delete"], "min.cleanable.dirty.ratio": 0.1})
    assert config.compact
    assert config.delete
    assert config.min_cleanable_dirty_ratio == 0.1


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"the nearest is cleanup\.policy"):
        topic("cleanup.polcy", "compact")
    with pytest.raises(SettingError, match=r"docs/settings\.md"):
        topic("qqqq", "1")
    assert nearest_name("min_cleanable_dirty_ratio", ("min.cleanable.dirty.ratio",)) == "min.cleanable.dirty.ratio"


def test_cleaner_defaults_and_limits() -> None:
    config = CleanerConfig.from_strings({})
    assert config == CleanerConfig()
    assert (config.dedupe_buffer_size, config.io_buffer_size, config.load_factor) == (128 << 20, 512 << 10, 0.9)
    assert (config.enable, config.threads, config.backoff_ms) == (True, 1, 15_000)
    assert (
        CleanerConfig.from_strings({"log.cleaner.io.max.bytes.per.second": "50MiB/s"}).io_max_bytes_per_second
        == 50 << 20
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.threads", "-1"),
        ("log.cleaner.dedupe.buffer.size", "1048576"),
        ("log.cleaner.dedupe.buffer.size", "0"),
        ("log.cleaner.io.buffer.load.factor", "0"),
        ("log.cleaner.io.buffer.load.factor", "1.1"),
        ("log.cleaner.io.max.bytes.per.second", "0"),
        ("log.cleaner.io.max.bytes.per.second", "-1"),
        ("log.cleaner.enable", "1"),
        ("log.segment.bytes", "1048576"),
    ],
)
def test_cleaner_values_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        CleanerConfig.from_strings({name: value})
    assert caught.value.fields["name"] == name


def test_the_dedupe_buffer_is_counted_per_thread_and_its_limit_can_be_lifted() -> None:
    values = {"log.cleaner.dedupe.buffer.size": "2MiB", "log.cleaner.threads": "2"}
    with pytest.raises(SettingError, match="each of 2 cleaner threads"):
        CleanerConfig.from_strings(values)
    assert CleanerConfig.from_strings(values, any_buffer_size=True).dedupe_buffer_size == 2 << 20


def test_log_dirs_wins_over_log_dir_and_is_a_list() -> None:
    config = StorageConfig.from_strings({"log.dirs": " /a , /b ", "log.dir": "/c"})
    assert config.log_dirs == ("/a", "/b")
    assert StorageConfig.from_strings({"log.dir": "/x,/y"}).log_dirs == ("/x", "/y")
    assert StorageConfig.from_strings({"log.dirs": "/a,/a"}).log_dirs == ("/a",)
    for value in ("", "/a,,/b"):
        with pytest.raises(SettingError, match=r"log\.dirs"):
            StorageConfig.from_strings({"log.dirs": value})


def test_cordoned_dirs_must_be_log_dirs() -> None:
    assert StorageConfig.from_strings({"log.dirs": "/a", "cordoned.log.dirs": "*"}).cordoned_log_dirs == ("*",)
    assert StorageConfig.from_strings({"log.dirs": "/a,/b", "cordoned.log.dirs": "/b"}).cordoned_log_dirs == ("/b",)
    with pytest.raises(SettingError, match="/zz"):
        StorageConfig.from_strings({"log.dirs": "/a", "cordoned.log.dirs": "/zz"})
