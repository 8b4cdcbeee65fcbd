"""A request begun where it was received: most never wait, and need no task to be woken for them."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Begun(Generic[_T]):
    """The rest of what `begin` began, or what came of it: to be awaited once, by the task that it was begun for."""

    __slots__ = ("_error", "_result", "_waits_for", "_work")

    def __init__(self, result: _T | None = None, error: BaseException | None = None) -> None:
        """`result`, `error`: it has ended already."""
        self._result = result
        self._error = error
        self._work: Coroutine[Any, Any, _T] | None = None
        self._waits_for: Any = None

    def cancel(self) -> None:
        """Its await will begin with a cancellation, as that of a task that is cancelled while it waits."""
        if self._work is not None:
            self._error = asyncio.CancelledError()

    def __await__(self) -> Generator[Any, Any, _T]:
        work, sent, thrown = self._work, None, self._error
        if work is None:
            if thrown is not None:
                raise thrown
            return self._result  # type: ignore[return-value]
        waits_for = self._waits_for
        while True:
            if thrown is None:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:
                    thrown = error
            try:
                waits_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            sent, thrown = None, None


def begin(work: Coroutine[Any, Any, _T], task: asyncio.Task[Any]) -> _T | Begun[_T]:
    """Runs `work` up to where it first waits, in the name of `task`, which is waiting itself: what it returns, or else what
    `task` has to await. Raises what it raises until then. To be called by the loop."""
    loop = task.get_loop()
    _enter_task(loop, task)
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        _leave_task(loop, task)
    begun: Begun[_T] = Begun()
    begun._work, begun._waits_for = work, waits_for
    return begun
