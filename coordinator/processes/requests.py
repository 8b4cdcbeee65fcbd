"""Questions to workers that wait for their answers. Each gets one, if need be that the worker is gone or too slow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from compactd.coordinator.interfaces import Timer, WorkerId
from compactd.coordinator.loop import Loop
from compactd.workers.message import Message
from compactd.workers.messages import Failed

WORKER_GONE = "WorkerGone"
TIMEOUT = "Timeout"


@dataclass(slots=True)
class _Pending:
    worker: WorkerId
    answered: Callable[[Message], None]
    timer: Timer | None


class Requests:
    """The questions that are open, by request_id. Ids are never used twice."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}

    def next_id(self) -> int:
        return next(self._ids)

    def expect(
        self, worker: WorkerId, request_id: int, answered: Callable[[Message], None], timeout_ms: int | None
    ) -> None:
        """`answered` gets the first message of `worker` with this id, or a Failed made here."""
        timer = None
        if timeout_ms is not None:
            timer = self._loop.call_later(timeout_ms / 1000, lambda: self._time_out(request_id, timeout_ms))
        self._pending[request_id] = _Pending(worker, answered, timer)

    def answer(self, worker: WorkerId, message: Message) -> bool:
        """Hands a message over if somebody waits for it. Whether."""
        request_id = getattr(message, "request_id", None)
        pending = self._pending.get(request_id) if request_id is not None else None
        if pending is None or pending.worker != worker or request_id is None:
            return False
        self._take(request_id).answered(message)
        return True

    def refuse(self, request_id: int, reason: str) -> None:
        """It could not be sent: answers at the next turn, so that an asker is never answered before `ask` returns."""
        self._loop.call_later(0, lambda: self._fail(request_id, WORKER_GONE, reason))

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """Answers everything that it was asked."""
        for request_id in [number for number, pending in self._pending.items() if pending.worker == worker]:
            self._fail(request_id, WORKER_GONE, reason)

    def _time_out(self, request_id: int, timeout_ms: int) -> None:
        pending = self._pending.get(request_id)
        if pending is not None:
            self._fail(request_id, TIMEOUT, f"{pending.worker} did not answer within {timeout_ms} ms")

    def _fail(self, request_id: int, error: str, message: str) -> None:
        if request_id in self._pending:
            self._take(request_id).answered(Failed(request_id=request_id, error=error, message=message))

    def _take(self, request_id: int) -> _Pending:
        pending = self._pending.pop(request_id)
        if pending.timer is not None:
            pending.timer.cancel()
        return pending
