"""Which segments retention takes, by which rule and when, and what holds the others (UnifiedLog.deleteOldSegments; facts 7).

Pure: nothing here touches a file. The rules run one after the other, each to its end, oldest segment first:
1. log start: the next segment's base lies at or below the log start offset (every policy);
2. size: the log has more than retention.bytes without the segment (policy delete);
3. time: now - largest timestamp > retention.ms, strictly (policy delete).
A segment goes only when all older ones go and the high watermark has reached its end. The active segment goes too, unless
it is empty: then a new one is rolled first. A timestamp in the future keeps its segment, and with it every younger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compactd.config.settings import TopicConfig

#: Rules, as reports name them.
LOG_START = "log start"
SIZE = "size"
TIME = "time"

#: What holds a segment.
HELD_BY_HIGH_WATERMARK = "high watermark"
HELD_BY_OLDER_SEGMENT = "older segment"
HELD_BY_FUTURE_TIMESTAMP = "future timestamp"
HELD_BY_EMPTY_ACTIVE = "empty active segment"
HELD_BY_POLICY = "cleanup.policy"
HELD_BY_SETTINGS = "retention.ms and retention.bytes"
NOT_DUE = "not due yet"

#: Warnings about timestamps.
FUTURE = "FUTURE_TIMESTAMP"
LIKE_SECONDS = "TIMESTAMP_LOOKS_LIKE_SECONDS"
LIKE_MICROSECONDS = "TIMESTAMP_LOOKS_LIKE_MICROSECONDS"
LIKE_NANOSECONDS = "TIMESTAMP_LOOKS_LIKE_NANOSECONDS"

#: As milliseconds these are in 1970 to 1973 and from the year 5138 on; as seconds or microseconds they are of our time.
_SECONDS = range(10**8, 10**11)
_MICROSECONDS = range(10**14, 10**17)


class RetainedSegment(Protocol):
    """What the rules ask of a segment; LogSegment and LiveSegment have it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def largest_timestamp(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionState:
    """A log at the moment it is looked at. Offsets absolute, times ms."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """One segment that goes."""

    base_offset: int
    #: LOG_START, SIZE or TIME.
    rule: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What one run of retention does."""

    deletions: tuple[Deletion, ...]
    #: Every segment goes, so a new active one has to be rolled at the log end offset first.
    roll: bool
    #: The log start offset afterwards.
    log_start_offset: int


def plan_retention(segments: Sequence[RetainedSegment], config: TopicConfig, state: RetentionState) -> RetentionPlan:
    """Applies the three rules in their order to a log's segments (oldest first, at least one)."""
    left = list(segments)
    deletions: list[Deletion] = []
    start = state.log_start_offset
    rolled = False
    for rule in (LOG_START, SIZE, TIME) if config.delete else (LOG_START,):
        predicate = _predicate(rule, left, config, state, start)
        if predicate is None or not left:
            continue
        count = _prefix(left, state, predicate)
        deletions += [Deletion(segment.base_offset, rule) for segment in left[:count]]
        del left[:count]
        if count:
            start = max(start, left[0].base_offset if left else state.log_end_offset)
        rolled = rolled or not left
    return RetentionPlan(tuple(deletions), rolled, start)


Predicate = Callable[[int], bool]


def _prefix(segments: Sequence[RetainedSegment], state: RetentionState, predicate: Predicate) -> int:
    """How many of the oldest segments qualify, up to the first that does not (UnifiedLog.deletableSegments)."""
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if state.high_watermark < _upper(segments, number, state) or not predicate(number):
            return number
        if is_last and segment.size == 0:
            return number
    return len(segments)


def _upper(segments: Sequence[RetainedSegment], number: int, state: RetentionState) -> int:
    return segments[number + 1].base_offset if number + 1 < len(segments) else state.log_end_offset


def _predicate(
    rule: str, segments: Sequence[RetainedSegment], config: TopicConfig, state: RetentionState, start: int
) -> Predicate | None:
    """The rule as a question about the n-th segment, to be asked in order; None where the rule is off."""
    if rule == LOG_START:
        return lambda number: number + 1 < len(segments) and segments[number + 1].base_offset <= start
    if rule == SIZE:
        size = sum(segment.size for segment in segments)
        if config.retention_bytes < 0 or size < config.retention_bytes:
            return None
        excess = size - config.retention_bytes
        taken = [0]

        def too_large(number: int) -> bool:
            if taken[0] + segments[number].size > excess:
                return False
            taken[0] += segments[number].size
            return True

        return too_large
    if config.retention_ms < 0:
        return None
    return lambda number: state.now_ms - segments[number].largest_timestamp > config.retention_ms


@dataclass(frozen=True, slots=True)
class TimestampWarning:
    """A timestamp that is probably not what its writer meant."""

    #: FUTURE, LIKE_SECONDS, LIKE_MICROSECONDS or LIKE_NANOSECONDS.
    code: str
    base_offset: int
    #: Of the record, or the last of its batch where only that is known; None: the segment's file time.
    offset: int | None
    timestamp: int
    text: str


@dataclass(frozen=True, slots=True)
class SegmentExplanation:
    """One segment's lot."""

    base_offset: int
    size: int
    #: Largest timestamp that counts for it, and whether it is only the file's modification time.
    largest_timestamp: int
    is_file_time: bool
    #: The rule that takes it now; None: it stays.
    rule: str | None
    #: When the time rule takes it if nothing is appended or changed, in ms since the epoch; None: never, or not by time.
    due_ms: int | None
    #: Why it stays; None where it goes.
    held_by: str | None
    #: The whole story in a sentence.
    text: str


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """What retention does to a log and why."""

    plan: RetentionPlan
    segments: tuple[SegmentExplanation, ...]
    warnings: tuple[TimestampWarning, ...] = field(default=())


def explain_retention(
    segments: Sequence[RetainedSegment],
    config: TopicConfig,
    state: RetentionState,
    locate: Callable[[RetainedSegment], int | None] | None = None,
) -> RetentionExplanation:
    """For each segment: which rule takes it and when, or what holds it.

    `locate`: the offset of the record with the segment's largest timestamp, for the warnings.
    """
    plan = plan_retention(segments, config, state)
    rules = {deletion.base_offset: deletion.rule for deletion in plan.deletions}
    explained: list[SegmentExplanation] = []
    blocker: SegmentExplanation | None = None
    due_before: int | None = 0
    for number, segment in enumerate(segments):
        rule = rules.get(segment.base_offset)
        own_due = _due(segment, config, state, is_last=number == len(segments) - 1)
        due = None if own_due is None or due_before is None else max(own_due, due_before)
        if rule is not None:
            # What goes now keeps nothing behind it waiting.
            due, held_by, text = None, None, _taken(rule, segment, config, state)
        elif blocker is not None:
            held_by = HELD_BY_OLDER_SEGMENT
            text = f"stays at least as long as segment {blocker.base_offset}, which {blocker.text}"
        else:
            held_by, text = _held(segments, number, config, state, due)
        if rule is None:
            due_before = due
        one = SegmentExplanation(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp,
            segment.max_timestamp < 0,
            rule,
            due,
            held_by,
            text,
        )
        if rule is None and blocker is None:
            blocker = one
        explained.append(one)
    return RetentionExplanation(plan, tuple(explained), _warnings(segments, state, locate))


def timestamp_warning(
    base_offset: int, timestamp: int, now_ms: int, offset: int | None = None
) -> TimestampWarning | None:
    """What is odd about a segment's largest timestamp; None for nothing."""
    where = f"offset {offset}" if offset is not None else f"segment {base_offset}"
    if timestamp in _SECONDS:
        text = f"{where} has timestamp {timestamp}, which looks like seconds: read as ms it is {_span(now_ms - timestamp)} old"
        return TimestampWarning(LIKE_SECONDS, base_offset, offset, timestamp, text)
    if timestamp <= now_ms:
        return None
    code, what = FUTURE, ""
    if timestamp in _MICROSECONDS:
        code, what = LIKE_MICROSECONDS, ", which looks like microseconds"
    elif timestamp >= _MICROSECONDS.stop:
        code, what = LIKE_NANOSECONDS, ", which looks like nanoseconds"
    text = f"{where} has timestamp {timestamp}{what}: {_span(timestamp - now_ms)} in the future, retention waits for it"
    return TimestampWarning(code, base_offset, offset, timestamp, text)


def _warnings(
    segments: Sequence[RetainedSegment],
    state: RetentionState,
    locate: Callable[[RetainedSegment], int | None] | None,
) -> tuple[TimestampWarning, ...]:
    found = []
    for segment in segments:
        if segment.size == 0 or timestamp_warning(segment.base_offset, segment.largest_timestamp, state.now_ms) is None:
            continue
        offset = locate(segment) if locate is not None and segment.max_timestamp >= 0 else None
        warning = timestamp_warning(segment.base_offset, segment.largest_timestamp, state.now_ms, offset)
        if warning is not None:
            found.append(warning)
    return tuple(found)


def _due(segment: RetainedSegment, config: TopicConfig, state: RetentionState, *, is_last: bool) -> int | None:
    """When the time rule would take the segment on its own."""
    if not config.delete or config.retention_ms < 0 or (is_last and segment.size == 0):
        return None
    return segment.largest_timestamp + config.retention_ms + 1


def _taken(rule: str, segment: RetainedSegment, config: TopicConfig, state: RetentionState) -> str:
    if rule == LOG_START:
        return f"goes now: all of it lies below the log start offset {state.log_start_offset}"
    if rule == SIZE:
        return (
            f"goes now: without its {segment.size} bytes the log still has retention.bytes = {config.retention_bytes}"
        )
    age = state.now_ms - segment.largest_timestamp
    of = "its file's time" if segment.max_timestamp < 0 else "its largest timestamp"
    return f"goes now: {of} is {_span(age)} old, more than retention.ms = {config.retention_ms}"


def _held(
    segments: Sequence[RetainedSegment], number: int, config: TopicConfig, state: RetentionState, due: int | None
) -> tuple[str, str]:
    """Why the oldest remaining segment stays: (what holds it, a sentence)."""
    segment = segments[number]
    upper = _upper(segments, number, state)
    is_last = number == len(segments) - 1
    if is_last and segment.size == 0:
        return HELD_BY_EMPTY_ACTIVE, "stays: it is the active segment, and empty"
    if not config.delete:
        return HELD_BY_POLICY, "stays: cleanup.policy has no delete, so only the log start offset takes segments"
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return HELD_BY_SETTINGS, "stays: neither retention.ms nor retention.bytes is set"
    if state.high_watermark < upper:
        return (
            HELD_BY_HIGH_WATERMARK,
            f"stays: it ends at {upper}, above the high watermark {state.high_watermark}",
        )
    reasons = []
    if config.retention_ms >= 0:
        if segment.largest_timestamp > state.now_ms:
            ahead = segment.largest_timestamp - state.now_ms
            return (
                HELD_BY_FUTURE_TIMESTAMP,
                f"stays: its largest timestamp {segment.largest_timestamp} is {_span(ahead)} in the future",
            )
        reasons.append(f"retention.ms takes it in {_span((due or 0) - state.now_ms)}")
    if config.retention_bytes >= 0:
        size = sum(each.size for each in segments[number:])
        missing = config.retention_bytes + segment.size - size
        reasons.append(f"retention.bytes takes it when the log has grown by {max(missing, 0)} bytes")
    return NOT_DUE, "stays: " + "; ".join(reasons)


def _span(ms: int) -> str:
    """A length of time in its two largest units; whole ms below a second."""
    for unit, length, smaller, smaller_length in (
        ("d", 86_400_000, "h", 3_600_000),
        ("h", 3_600_000, "min", 60_000),
        ("min", 60_000, "s", 1000),
        ("s", 1000, "ms", 1),
    ):
        if ms >= length:
            rest = ms % length // smaller_length
            return f"{ms // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{ms} ms"
