"""Rates as Kafka measures them: a sum over windows of time, and a bucket of tokens (Kafka's Rate, SampledStat, TokenBucket).

Times are milliseconds of a clock that only grows. What a client is told of its throttling is worked out from these
numbers, so windows begin, end and are forgotten exactly when Kafka's do (facts: kafka-protocol 17).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Windows:
    """quota.window.num and quota.window.size.seconds, or their controller.* twins."""

    count: int = 11
    seconds: int = 1

    @property
    def span_ms(self) -> int:
        """What was recorded longer ago than this counts no more."""
        return self.count * self.seconds * 1000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    """Something per second, over the last windows."""

    __slots__ = ("_at", "_samples", "used_ms", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._samples: list[_Sample] = []
        self._at = 0
        #: When it was recorded into last; after `windows.span_ms` it is as good as a new one.
        self.used_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        """Adds to the current window."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._at]
        if now_ms - sample.start_ms >= self.windows.seconds * 1000:
            # One more than is looked at: the oldest reaches into the span with its end.
            self._at = (self._at + 1) % (self.windows.count + 1)
            if self._at >= len(samples):
                samples.append(_Sample(now_ms))
            sample = samples[self._at]
            sample.reset(now_ms)
        sample.value += value
        sample.last_ms = self.used_ms = now_ms

    def measure(self, now_ms: int) -> tuple[float, int]:
        """(what came per second, length in ms of the time that this was taken over)

        Windows that have not been yet count as empty ones, so that a first request has the room of all of them.
        """
        span, width = self.windows.span_ms, self.windows.seconds * 1000
        total, oldest = 0.0, now_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= span:
                sample.reset(now_ms)
            total += sample.value
            oldest = min(oldest, sample.start_ms)
        elapsed = now_ms - oldest
        missing = self.windows.count - 1 - elapsed // width
        if missing > 0:
            elapsed += missing * width
        elapsed = max(elapsed, 1)
        return total / (elapsed / 1000), elapsed

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long nothing must come for the rate to be back at `limit`; 0: it is not above it."""
        rate, elapsed = self.measure(now_ms)
        if rate <= limit:
            return 0
        return java_round((rate - limit) / limit * elapsed)


class Rates(Generic[_Key]):
    """A rate for each of many: those that are as good as new ones go when there are too many."""

    __slots__ = ("_most", "_rates", "windows")

    def __init__(self, windows: Windows, most: int = 10_000) -> None:
        self.windows = windows
        self._most = most
        self._rates: dict[_Key, Rate] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, key: _Key, now_ms: int) -> Rate:
        """The rate of one, made if it is not there."""
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= self._most:
                oldest = now_ms - self.windows.span_ms
                self._rates = {key: rate for key, rate in self._rates.items() if rate.used_ms > oldest}
                # Where so many are in use, they are not gone through for each one more.
                self._most = max(self._most, 2 * len(self._rates))
            rate = self._rates[key] = Rate(self.windows)
        return rate


class TokenBucket:
    """Permits that come back at a steady rate, and are saved up to those of all windows (KIP-599)."""

    __slots__ = ("_tokens", "_updated_ms", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._tokens = 0.0
        #: So long ago that the bucket is full when it is first used.
        self._updated_ms = -(1 << 62)

    def tokens(self, limit: float, now_ms: int) -> float:
        """Permits left; below zero: so many were taken in advance."""
        passed = (now_ms - self._updated_ms) / 1000
        self._tokens = min(self._burst(limit), self._tokens + limit * passed)
        self._updated_ms = now_ms
        return self._tokens

    def record(self, value: float, limit: float, now_ms: int) -> None:
        """Takes permits, whether there are any or not."""
        self._tokens = min(self._burst(limit), self.tokens(limit, now_ms) - value)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long it takes until no permit is owed."""
        tokens = self.tokens(limit, now_ms)
        return java_round(-tokens / limit * 1000) if tokens < 0 else 0

    def is_full(self, limit: float, now_ms: int) -> bool:
        """It is as good as a new one."""
        return self.tokens(limit, now_ms) >= self._burst(limit)

    def _burst(self, limit: float) -> float:
        return self.windows.span_ms / 1000 * limit


#: The protocol's field has 32 bits.
_LONGEST_MS = (1 << 31) - 1


def java_round(value: float) -> int:
    """As Java's Math.round, held within what an answer can say."""
    return min(math.floor(value + 0.5), _LONGEST_MS) if value < _LONGEST_MS else _LONGEST_MS
