"""The retention worker: which partitions have something to let go of, by what their owners told."""

from __future__ import annotations

from compactd.config.settings import TopicConfig
from compactd.workers.cleaning_messages import CheckRetention, RetentionDecided
from compactd.workers.clock import Clock
from compactd.workers.messages import Stop
from compactd.workers.partition_messages import PartitionState, SegmentState
from compactd.workers.retention import decide, run
from tests.logs import replace_config
from tests.workers.scripted_channel import ScriptedChannel

_NOW = 1_700_000_000_000
_DELETE = TopicConfig(cleanup_policy=frozenset({"delete"}))


def state(topic: str = "events", partition: int = 0, **fields: object) -> PartitionState:
    """Two closed segments of 100 bytes and ten records, a day and an hour old, and an active one of this moment."""
    given: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "log_dir": "/d1",
        "log_start_offset": 0,
        "log_end_offset": 25,
        "high_watermark": 25,
        "last_stable_offset": 25,
        "recovery_point": 0,
        "active_base_offset": 20,
        "active_size": 50,
        "active_largest_timestamp": _NOW,
        "closed": (
            SegmentState(
                base_offset=0, size=100, largest_timestamp=_NOW - 86_400_000, first_batch_timestamp=_NOW - 86_400_000
            ),
            SegmentState(
                base_offset=10, size=100, largest_timestamp=_NOW - 3_600_000, first_batch_timestamp=_NOW - 3_600_000
            ),
        ),
    }
    return PartitionState(**{**given, **fields})  # type: ignore[arg-type]


def due(config: TopicConfig, **fields: object) -> dict[str, str]:
    return decide((state(**fields),), {"events": config}, _NOW)


def test_by_time() -> None:
    assert not due(replace_config(_DELETE, retention_ms=86_400_000))
    assert set(due(replace_config(_DELETE, retention_ms=86_399_999))) == {"events-0"}


def test_by_size() -> None:
    keep = replace_config(_DELETE, retention_ms=-1)
    assert not due(replace_config(keep, retention_bytes=250))
    assert not due(replace_config(keep, retention_bytes=151))
    assert set(due(replace_config(keep, retention_bytes=150))) == {"events-0"}


def test_by_the_start_of_the_log_whatever_the_policy() -> None:
    compact = TopicConfig(cleanup_policy=frozenset({"compact"}))
    assert not due(compact, log_start_offset=9)
    assert set(due(compact, log_start_offset=10)) == {"events-0"}


def test_a_compacted_topic_keeps_what_is_old() -> None:
    assert not due(TopicConfig(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1))


def test_both_policies() -> None:
    both = TopicConfig(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=7_200_000)
    assert set(due(both)) == {"events-0"}


def test_nothing_above_the_high_watermark() -> None:
    old = replace_config(_DELETE, retention_ms=1)
    assert not due(old, high_watermark=9)
    assert set(due(old, high_watermark=10)) == {"events-0"}


def test_the_rules_say_which_of_them_it_was() -> None:
    rules = {
        due(replace_config(_DELETE, retention_ms=1))["events-0"],
        due(replace_config(_DELETE, retention_ms=-1, retention_bytes=1))["events-0"],
        due(replace_config(_DELETE, retention_ms=-1), log_start_offset=10)["events-0"],
    }
    assert len(rules) == 3


def test_the_body_answers_each_question_and_ends_at_stop() -> None:
    channel = ScriptedChannel()
    configs = {"events": replace_config(_DELETE, retention_ms=1), "kept": replace_config(_DELETE, retention_ms=-1)}
    states = (state(partition=3), state(topic="kept"), state(topic="kept", partition=1))
    channel.put(
        CheckRetention(request_id=4, states=states, configs=configs, now_ms=_NOW),
        CheckRetention(request_id=5, states=(), configs={}, now_ms=_NOW),
    )
    assert run(channel, Clock()) is None  # type: ignore[arg-type]
    first, second = channel.of(RetentionDecided)
    assert first.request_id == 4 and set(first.due) == {"events-3"}
    assert second == RetentionDecided(request_id=5, due={})
    assert channel.phases[:2] == ["deciding for 3 partitions", "idle"]


def test_a_stop_that_waits_behind_nothing_ends_it() -> None:
    channel = ScriptedChannel()
    channel.put(Stop(reason="now"))
    assert run(channel, Clock()) is None  # type: ignore[arg-type]
    assert not channel.sent
