"""Handlers that go through many things give others a turn now and then: there is one loop, and all clients share it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

_T = TypeVar("_T")

#: So long a handler may hold the loop.
_HELD_SECONDS = 0.005


class Turns:
    """`turns = Turns()`, and `await turns.others()` after each thing."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = time.perf_counter() + _HELD_SECONDS

    async def others(self) -> None:
        """Lets others run if they have waited for long enough."""
        if time.perf_counter() > self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + _HELD_SECONDS


async def in_turns(things: Iterable[_T]) -> AsyncIterator[_T]:
    """`async for thing in in_turns(things)`: others run in between if they have waited for long enough."""
    turns = Turns()
    for thing in things:
        await turns.others()
        yield thing
