"""Requests begun without their connection's task behave as if the task had run them from the start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from compactd.workers.broker.arrivals import Arrivals
from compactd.workers.broker.begun import Begun, begin


async def _in_turn(
    work: Callable[[], Awaitable[Any]], meanwhile: Callable[[asyncio.Task[Any]], None] = lambda _: None
) -> tuple[bool, asyncio.Task[Any]]:
    """Begins the work while the task that it is for waits; `meanwhile` comes before the task goes on. (ended at once, task)"""
    loop = asyncio.get_running_loop()
    handed: asyncio.Future[Any] = loop.create_future()

    async def serve() -> Any:
        found = await handed
        return await found if isinstance(found, Begun) else found

    task = loop.create_task(serve())
    await asyncio.sleep(0)
    ended: list[bool] = []

    def call() -> None:
        found = begin(work(), task)  # type: ignore[arg-type]
        ended.append(not isinstance(found, Begun))
        handed.set_result(found)
        meanwhile(task)

    loop.call_soon(call)
    await asyncio.wait([task])
    return ended[0], task


def test_what_never_waits_ends_at_once() -> None:
    async def work() -> int:
        return 7

    at_once, task = asyncio.run(_in_turn(work))
    assert at_once and task.result() == 7


def test_what_waits_goes_on_in_the_task_and_is_the_tasks_from_the_start() -> None:
    seen: list[Any] = []

    async def work() -> str:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return await asyncio.get_running_loop().run_in_executor(None, lambda: "from a thread")

    at_once, task = asyncio.run(_in_turn(work))
    assert not at_once and task.result() == "from a thread"
    assert seen == [task, task]


def test_a_timeout_that_begins_without_the_task_ends_the_wait() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "late"
        return "never"

    _, task = asyncio.run(_in_turn(work))
    assert task.result() == "late" and task.cancelling() == 0


def test_errors_reach_whoever_runs_the_work() -> None:
    async def at_once() -> None:
        raise LookupError("early")

    async def later() -> None:
        await asyncio.sleep(0)
        raise LookupError("late")

    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    found: list[BaseException] = []

    def call() -> None:
        try:
            begin(at_once(), task)
        except LookupError as error:
            found.append(error)

    loop.call_soon(call)
    loop.run_until_complete(task)
    loop.close()
    assert str(found[0]) == "early"
    _, task = asyncio.run(_in_turn(later))
    assert str(task.exception()) == "late"


@pytest.mark.parametrize("when", ["before it goes on", "while it waits"])
def test_a_cancelled_task_cancels_the_work(when: str) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("tidied up")
            raise

    def cancel(task: asyncio.Task[Any]) -> None:
        if when == "while it waits":
            task.get_loop().call_later(0.001, task.cancel)

    async def run() -> asyncio.Task[Any]:
        if when == "while it waits":
            return (await _in_turn(work, cancel))[1]
        begun: list[Any] = []

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: begun.append(begin(work(), task)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            begun[0].cancel()
            await begun[0]

        task = asyncio.get_running_loop().create_task(serve())
        await asyncio.wait([task])
        return task

    task = asyncio.run(run())
    assert task.cancelled() and seen == ["cancelled", "tidied up"]


def test_what_came_of_it_already_is_told_by_the_await() -> None:
    async def run() -> None:
        assert await Begun("answer") == "answer"
        ended: Begun[str] = Begun(error=LookupError("gone"))
        with pytest.raises(LookupError, match="gone"):
            await ended

    asyncio.run(run())


def test_arrivals_tell_who_is_ready_and_forget_who_was_taken_out_meanwhile() -> None:
    async def run() -> list[str]:
        told: list[str] = []
        done = asyncio.get_running_loop().create_future()

        def served() -> None:
            told.append("served")
            if not done.done():
                done.set_result(None)

        arrivals = Arrivals(asyncio.get_running_loop(), served)
        pairs = [socket.socketpair() for _ in range(3)]
        try:
            for number, (ours, _) in enumerate(pairs[:2]):

                def call(number: int = number) -> None:
                    # Whoever is told first takes the other out.
                    told.append(f"told, {arrivals.is_telling}")
                    arrivals.remove(pairs[1 - number][0].fileno())
                    pairs[number][0].recv(1)

                arrivals.add(ours.fileno(), call)
            for _, theirs in pairs:
                theirs.send(b"x")
            await done
            assert not arrivals.is_telling
        finally:
            arrivals.close()
            for pair in pairs:
                for each in pair:
                    each.close()
        return told

    assert asyncio.run(run()) == ["told, True", "served"]
