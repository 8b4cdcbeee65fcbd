"""Work whose time on the loop is counted goes on as if it were not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from compactd.workers.broker.quotas import clients
from compactd.workers.broker.quotas.clients import TimedWork

_HEADER: Any = None


def test_only_the_time_on_the_loop_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(clients, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))

    async def others() -> None:
        now[0] += 1000

    async def work() -> str:
        now[0] += 5
        # While it waits, time is others'.
        await asyncio.create_task(others())
        now[0] += 7
        assert timed.so_far_ns() == 12
        await asyncio.sleep(0)
        now[0] += 1
        return "done"

    async def run() -> str:
        return await timed

    timed = TimedWork(_HEADER, work())
    assert asyncio.run(run()) == "done"
    assert timed.spent_ns == 13


def test_errors_and_cancellation_pass_through() -> None:
    caught = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            caught.append("cancelled")
            await asyncio.sleep(0)
            raise

    async def recovers() -> int:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(ValueError("y"))
        try:
            await failed
        except ValueError:
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
            return 7
        return 0

    async def run() -> None:
        with pytest.raises(KeyError):
            await TimedWork(_HEADER, fails())
        assert await TimedWork(_HEADER, recovers()) == 7

        async def outer() -> None:
            await TimedWork(_HEADER, waits())

        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await TimedWork(_HEADER, asyncio.sleep(60))

    asyncio.run(run())
    assert caught == ["cancelled"]


def test_work_that_is_given_up_is_closed() -> None:
    closed = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    steps = TimedWork(_HEADER, work()).__await__()

    async def begin() -> None:
        next(steps)

    asyncio.run(begin())
    steps.close()
    assert closed == [True]
