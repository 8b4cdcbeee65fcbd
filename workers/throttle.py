"""Holding a process to a rate of bytes read and written (Kafka's Throttler)."""

from __future__ import annotations

import time
from collections.abc import Callable

#: What was saved or overdrawn before this long ago counts no more.
_WINDOW_SECONDS = 0.3
#: A throttled process asks `check` at least this often whether to go on.
_SLEEP_SECONDS = 0.2


class Throttle:
    """Kafka looks at its rate once in a window of 300 ms; a window's worth at our speed is a small log, so this sleeps as
    soon as it is ahead, in slices. `rate` (bytes per second) may be changed at any time, also while it sleeps.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._seen = 0
        self._since = time.monotonic()

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, bytes_per_second: float) -> None:
        if bytes_per_second != self._rate:
            self._rate = bytes_per_second
            self._seen, self._since = 0, time.monotonic()

    def observe(self, count: int, check: Callable[[], None]) -> None:
        """Counts bytes, and sleeps until the window's rate is back at the limit."""
        self._seen += count
        while (ahead := self._since + self._seen / self._rate - time.monotonic()) > 0:
            time.sleep(min(ahead, _SLEEP_SECONDS))
            check()
        if time.monotonic() - self._since >= _WINDOW_SECONDS:
            self._seen, self._since = 0, time.monotonic()
