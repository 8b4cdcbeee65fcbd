"""The coordinator's one thread: sockets, timers, and what other threads hand over, each handled in turn and never for long.

A turn is everything between two waits. Those above SLOW_SECONDS are counted with what took the time, for status: nothing
that takes long belongs here, it goes to a lane (a thread of its own that works off what it is given, in order).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import zmq

from compactd.coordinator.control.messages import LoopStatus

T = TypeVar("T")

_log = logging.getLogger(__name__)

SLOW_SECONDS = 0.1
#: Longest wait, so that a lost wake-up is never for ever.
_LONGEST_WAIT_SECONDS = 60.0

Call = Callable[[], None]


class LoopTimer:
    """A call that is due at some time; `period` None: once."""

    __slots__ = ("call", "due", "period")

    def __init__(self, due: float, period: float | None, call: Call) -> None:
        self.due = due
        self.period = period
        self.call: Call | None = call

    def cancel(self) -> None:
        """Not called any more. Harmless when it was called already."""
        self.call = None


class Loop:
    """Runs until `stop`. All methods but `call_soon_threadsafe` belong to the thread that runs it."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._sources: dict[object, Call] = {}
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._order = itertools.count()
        self._handed: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, zmq.POLLIN)
        self._lanes: dict[str, _Lane] = {}
        self._running = False
        self._turns = 0
        self._slow_turns = 0
        self._slowest = 0.0
        self._slowest_what = ""
        self._busy = 0.0

    # ---- what is waited for

    def add_source(self, source: zmq.Socket[bytes] | int, call: Call) -> None:
        """`call` whenever the socket or descriptor is readable."""
        self._sources[source] = call
        self._poller.register(source, zmq.POLLIN)

    def remove_source(self, source: zmq.Socket[bytes] | int) -> None:
        """Not waited for any more. Nothing happens when it wasn't."""
        if self._sources.pop(source, None) is not None:
            self._poller.unregister(source)

    def call_later(self, seconds: float, call: Call) -> LoopTimer:
        return self._add(LoopTimer(time.monotonic() + seconds, None, call))

    def every(self, seconds: float, call: Call, first: float | None = None) -> LoopTimer:
        """At a fixed rate; times that were missed are not made up for."""
        due = time.monotonic() + (seconds if first is None else first)
        return self._add(LoopTimer(due, max(seconds, 0.001), call))

    def call_soon_threadsafe(self, call: Call) -> None:
        """From any thread: `call` in one of the next turns."""
        self._handed.append(call)
        # A lane may outlive a loop that was closed: nobody is there to be woken.
        with contextlib.suppress(OSError, OverflowError):
            os.eventfd_write(self._wake, 1)

    def in_lane(
        self, name: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Runs `work` in the thread called `name`, in the order asked, then `done` or `failed` here."""

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self.call_soon_threadsafe(partial(failed, error))
            else:
                self.call_soon_threadsafe(partial(done, result))

        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        lane.put(run)

    # ---- running

    def run(self) -> None:
        """Until `stop`. An error of a call is logged, and the loop goes on."""
        self._running = True
        while self._running:
            ready = self._poller.poll(self._wait_ms())
            begun = time.monotonic()
            self._turn(ready)
            took = time.monotonic() - begun
            self._turns += 1
            self._busy += took
            if took > SLOW_SECONDS:
                self._slow_turns += 1

    def stop(self) -> None:
        """Ends `run` after this turn."""
        self._running = False

    def close(self, lane_seconds: float = 5.0) -> None:
        """Ends the lanes: each finishes what it does, for so long at most."""
        for lane in self._lanes.values():
            lane.put(None)
        end = time.monotonic() + lane_seconds
        for lane in self._lanes.values():
            lane.join(max(0.0, end - time.monotonic()))
        self._lanes.clear()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def status(self) -> LoopStatus:
        return LoopStatus(
            turns=self._turns,
            slow_turns=self._slow_turns,
            slowest_ms=round(self._slowest * 1000, 3),
            slowest=self._slowest_what,
            busy_seconds=round(self._busy, 3),
        )

    # ---- inside

    def _add(self, timer: LoopTimer) -> LoopTimer:
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def _wait_ms(self) -> int:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if self._handed:
            return 0
        due = self._timers[0][0] - time.monotonic() if self._timers else _LONGEST_WAIT_SECONDS
        # Rounded up: a poll that ends a moment too early would turn once more for nothing.
        return math.ceil(max(0.0, min(due, _LONGEST_WAIT_SECONDS)) * 1000)

    def _turn(self, ready: list[tuple[object, int]]) -> None:
        for source, _event in ready:
            if source == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif (call := self._sources.get(source)) is not None:
                self._call(call)
        for _ in range(len(self._handed)):
            self._call(self._handed.popleft())
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is None:
                continue
            call = timer.call
            if timer.period is not None:
                missed = max(0.0, now - timer.due) // timer.period
                timer.due += (missed + 1) * timer.period
                self._add(timer)
            self._call(call)

    def _call(self, call: Call) -> None:
        begun = time.monotonic()
        try:
            call()
        except Exception:
            _log.exception(f"{_name(call)} failed; the coordinator goes on")
        took = time.monotonic() - begun
        if took > self._slowest:
            self._slowest, self._slowest_what = took, _name(call)
        if took > SLOW_SECONDS:
            _log.warning(f"a turn of the coordinator took {took * 1000:.0f} ms in {_name(call)}")


class _Lane:
    """A thread that works off a queue. Daemonic: what hangs in a dead disk must not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._thread.start()

    def put(self, work: Call | None) -> None:
        self._queue.put(work)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def _name(call: Call) -> str:
    if isinstance(call, partial):
        return _name(call.func)
    return getattr(call, "__qualname__", type(call).__name__).replace(".<locals>.<lambda>", "").replace("<locals>.", "")
