"""Retention's rules and their explanation, on made-up segments: the reports A3, A10, A11, A49 and the fixed properties."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.settings import TopicConfig
from compactd.storage import retention
from compactd.storage.retention import (
    Deletion,
    RetentionState,
    explain_retention,
    plan_retention,
    timestamp_warning,
)

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_767_225_600_000


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size: int
    max_timestamp: int
    file_time: int = 0

    @property
    def largest_timestamp(self) -> int:
        return self.max_timestamp if self.max_timestamp >= 0 else self.file_time


def config(policy: str = "delete", ms: int = -1, size: int = -1) -> TopicConfig:
    return TopicConfig.from_strings({"cleanup.policy": policy, "retention.ms": ms, "retention.bytes": size})


def state(end: int, now: int = NOW, start: int = 0, watermark: int | None = None) -> RetentionState:
    return RetentionState(start, end, end if watermark is None else watermark, now)


def test_a3_age_is_strict_and_counts_from_the_largest_timestamp() -> None:
    segments = [Segment(0, 100, 50 * 60_000), Segment(10, 10, HOUR)]
    rules = config(ms=HOUR)
    assert plan_retention(segments, rules, state(20, now=100 * 60_000)).deletions == ()
    assert plan_retention(segments, rules, state(20, now=110 * 60_000)).deletions == ()
    taken = plan_retention(segments, rules, state(20, now=110 * 60_000 + 1))
    assert (taken.deletions, taken.roll, taken.log_start_offset) == ((Deletion(0, "time"),), False, 10)


def test_a3_retention_bytes_alone_never_takes_the_active_segment() -> None:
    assert plan_retention([Segment(0, 500, 0)], config(size=100), state(5)).deletions == ()
    assert plan_retention([Segment(0, 500, 0)], config(size=0), state(5)).roll


def test_a3_time_takes_the_active_segment_and_rolls() -> None:
    plan = plan_retention([Segment(0, 500, NOW - 3)], config(ms=1), state(5))
    assert (plan.deletions, plan.roll, plan.log_start_offset) == ((Deletion(0, "time"),), True, 5)


def test_a49_age_of_exactly_retention_ms_is_kept() -> None:
    segments = [Segment(0, 1, NOW - DAY), Segment(1, 1, NOW)]
    explained = explain_retention(segments, config(ms=DAY), state(2))
    assert explained.plan.deletions == ()
    assert explained.segments[0].due_ms == NOW + 1


def test_what_goes_now_keeps_nothing_behind_it_waiting() -> None:
    segments = [Segment(0, 10, NOW), Segment(1, 10, NOW - DAY), Segment(2, 10, NOW)]
    explained = explain_retention(segments, config(ms=4 * DAY), state(3, start=1))
    assert [(each.rule, each.due_ms) for each in explained.segments] == [
        ("log start", None), (None, NOW + 3 * DAY + 1), (None, NOW + 4 * DAY + 1)
    ]  # fmt: skip


def test_a10_a_timestamp_in_the_future_holds_everything() -> None:
    segments = [Segment(0, 10, NOW * 1000), Segment(1, 10, NOW - 10 * DAY), Segment(2, 0, -1)]
    explained = explain_retention(segments, config(ms=DAY), state(2), lambda _segment: 0)
    assert explained.plan.deletions == ()
    assert [each.held_by for each in explained.segments] == [
        "future timestamp",
        "older segment",
        "older segment",
    ]
    assert [(w.code, w.offset, w.timestamp) for w in explained.warnings] == [
        ("TIMESTAMP_LOOKS_LIKE_MICROSECONDS", 0, NOW * 1000)
    ]


def test_a11_seconds_go_at_once_and_are_warned_of() -> None:
    explained = explain_retention([Segment(0, 10, 1_760_000_000)], config(ms=7 * DAY), state(1))
    assert [(each.base_offset, each.rule) for each in explained.segments] == [(0, "time")]
    assert explained.plan.roll
    assert [warning.code for warning in explained.warnings] == ["TIMESTAMP_LOOKS_LIKE_SECONDS"]


@pytest.mark.parametrize(
    ("timestamp", "code"),
    [
        (NOW - 1, None),
        (0, None),
        (-1, None),
        (NOW + 1, "FUTURE_TIMESTAMP"),
        (NOW // 1000, "TIMESTAMP_LOOKS_LIKE_SECONDS"),
        (NOW * 1000, "TIMESTAMP_LOOKS_LIKE_MICROSECONDS"),
        (NOW * 1_000_000, "TIMESTAMP_LOOKS_LIKE_NANOSECONDS"),
    ],
)
def test_units_are_guessed(timestamp: int, code: str | None) -> None:
    warning = timestamp_warning(0, timestamp, NOW)
    assert (warning.code if warning else None) == code


def test_what_holds_a_segment_is_named() -> None:
    one = [Segment(0, 100, NOW - 2 * DAY), Segment(5, 0, -1)]
    held = [
        (config(ms=DAY), state(5, watermark=3), "high watermark"),
        (config("compact", ms=DAY), state(5), "cleanup.policy"),
        (config(), state(5), "retention.ms and retention.bytes"),
        (config(ms=7 * DAY), state(5), "not due yet"),
        (config(ms=-1, size=200), state(5), "not due yet"),
    ]
    for settings, at, reason in held:
        assert explain_retention(one, settings, at).segments[0].held_by == reason
    empty = explain_retention(one[1:], config(ms=DAY), state(5))
    assert empty.segments[0].held_by == "empty active segment"


def test_growth_that_size_waits_for_is_told() -> None:
    explained = explain_retention([Segment(0, 60, NOW), Segment(1, 70, NOW)], config(size=100), state(2))
    assert "grown by 30 bytes" in explained.segments[0].text


def test_start_offset_frees_what_time_may_then_take() -> None:
    """testRetentionIdempotency: the start-offset rule goes first and unblocks the time rule in the same call."""
    segments = [Segment(0, 10, NOW + 100), Segment(1, 10, NOW), Segment(2, 10, NOW + 100)]
    plan = plan_retention(segments, config(ms=900), state(3, now=NOW + 901, start=1))
    assert plan.deletions == (Deletion(0, "log start"), Deletion(1, "time"))


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Segment], RetentionState, TopicConfig]:
    base, segments = 0, []
    for number in range(draw(st.integers(1, 6))):
        last = number == 5
        segments.append(
            Segment(
                base,
                draw(st.sampled_from([0, 10, 50, 100])) if not last else draw(st.sampled_from([0, 10])),
                draw(st.sampled_from([-1, NOW - 3 * DAY, NOW - DAY, NOW - DAY - 1, NOW, NOW + DAY])),
                NOW - draw(st.sampled_from([0, 2 * DAY])),
            )
        )
        base += draw(st.integers(1, 4))
    watermark = draw(st.integers(0, base))
    at = RetentionState(draw(st.integers(0, watermark)), base, watermark, NOW)
    policy = draw(st.sampled_from(["delete", "compact", "compact,delete"]))
    sizes = st.sampled_from([-1, 0, 50, 100, 200, 10_000])
    return segments, at, config(policy, draw(st.sampled_from([-1, 0, DAY, 4 * DAY])), draw(sizes))


@given(logs())
def test_the_plan_is_a_safe_prefix(drawn: tuple[list[Segment], RetentionState, TopicConfig]) -> None:
    segments, at, rules = drawn
    plan = plan_retention(segments, rules, at)
    gone = [each.base_offset for each in plan.deletions]
    assert gone == [segment.base_offset for segment in segments[: len(gone)]]
    left = segments[len(gone) :]
    assert plan.log_start_offset <= max(at.high_watermark, at.log_start_offset)
    assert plan.log_start_offset >= at.log_start_offset
    assert plan.roll == (not left)
    if left:
        assert not gone or left[0].base_offset <= at.high_watermark
    assert [each.rule for each in plan.deletions] == sorted(
        (each.rule for each in plan.deletions), key=["log start", "size", "time"].index
    )
    if not rules.delete:
        assert all(each.rule == "log start" for each in plan.deletions)
    # A second run, on what is left, does nothing.
    again = left or [Segment(at.log_end_offset, 0, -1, NOW)]
    after = RetentionState(plan.log_start_offset, at.log_end_offset, at.high_watermark, NOW)
    assert plan_retention(again, rules, after).deletions == ()


@given(logs())
def test_the_explanation_agrees_with_the_plan(drawn: tuple[list[Segment], RetentionState, TopicConfig]) -> None:
    segments, at, rules = drawn
    explained = explain_retention(segments, rules, at)
    assert explained.plan == plan_retention(segments, rules, at)
    for each in explained.segments:
        assert (each.rule is None) != (each.held_by is None)
        assert each.text
    first = next((each for each in explained.segments if each.rule is None), None)
    if first is not None and first.due_ms is not None and at.high_watermark == at.log_end_offset:
        # Time takes it at that very moment, and not a millisecond before.
        number = [segment.base_offset for segment in segments].index(first.base_offset)
        rest = segments[number:]

        def taken(now: int) -> bool:
            then = RetentionState(rest[0].base_offset, at.log_end_offset, at.high_watermark, now)
            only_time = config("delete", rules.retention_ms)
            return bool(plan_retention(rest[:1] + rest[1:], only_time, then).deletions)

        assert taken(max(first.due_ms, NOW))
        if first.due_ms > NOW:
            assert not taken(first.due_ms - 1)


def test_names_are_stable() -> None:
    assert (retention.LOG_START, retention.SIZE, retention.TIME) == ("log start", "size", "time")
