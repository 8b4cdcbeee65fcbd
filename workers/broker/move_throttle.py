"""Holding the copies of moved partitions to replica.alter.log.dirs.io.max.bytes.per.second (KIP-73, KIP-113)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: No limit, as Kafka writes it.
UNLIMITED = float((1 << 63) - 1)
#: A copy that is held back looks at the rate, and at whether it is to go on, at least this often.
_SLICE_SECONDS = 0.25
#: At a low rate a piece is what may be copied in this time, but not less than a page.
_PIECE_SECONDS = 0.1
_LEAST_PIECE = 4096


class MoveThrottle:
    """One rate for all copies of a broker. On its loop. `rate`: bytes per second, asked for each time."""

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        #: Bytes that were copied ahead of the rate, at a time in monotonic seconds.
        self._ahead = 0.0
        self._at = time.monotonic()
        self._woken = asyncio.Event()

    def chunk(self, most: int) -> int:
        """How much to copy at a time."""
        return int(min(most, max(self._rate() * _PIECE_SECONDS, _LEAST_PIECE)))

    async def passed(self, count: int, check: Callable[[], None]) -> None:
        """Counts bytes, and waits until the rate allows for more. `check` is called between slices; it may raise.

        At a rate of 0 nothing is copied until there is another one.
        """
        self._settle()
        self._ahead += count
        while self._ahead > 0:
            rate = self._rate()
            await self.pause(min(self._ahead / rate, _SLICE_SECONDS) if rate > 0 else _SLICE_SECONDS)
            check()
            self._settle()

    def _settle(self) -> None:
        now = time.monotonic()
        self._ahead = max(self._ahead - self._rate() * (now - self._at), 0.0)
        self._at = now

    async def pause(self, seconds: float) -> None:
        """Waits, or until `wake`."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Everybody who waits looks up."""
        self._woken.set()
        self._woken.clear()
