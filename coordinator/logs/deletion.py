"""What the deleter is to remove, and when. Kept here, so that a deleter that dies forgets nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactd.coordinator.control.messages import DeleterStatus
from compactd.coordinator.interfaces import WorkerId
from compactd.workers.cleaning_messages import DeleteLater, DeleterState, KeepFiles
from compactd.workers.clock import Clock
from compactd.workers.message import Message

DELETER = WorkerId("deleter", 0)
#: How often what was removed is looked for while the deleter has more to do.
_LOOK_MS = 30_000


class Deletions:
    """The queue in front of the deleter."""

    def __init__(self, send: Callable[[WorkerId, Message], bool], clock: Clock) -> None:
        self._send = send
        self._clock = clock
        #: Path to due time (wall clock).
        self._due: dict[str, int] = {}
        self._state: DeleterState | None = None
        self._looked_ms = 0

    def later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Queues `.deleted` files or -delete directories."""
        if not paths:
            return
        due = self._clock.now_ms() + delay_ms
        self._due.update(dict.fromkeys(paths, due))
        self._send(DELETER, DeleteLater(paths=tuple(paths), due_ms=due))

    def keep(self, paths: Sequence[str]) -> None:
        """Takes paths out of the queue: they were put back."""
        for path in paths:
            self._due.pop(path, None)
        self._send(DELETER, KeepFiles(paths=tuple(paths)))

    def worker_ready(self) -> None:
        """A fresh deleter is given everything; it passes over what its predecessor removed."""
        self._state = None
        by_due: dict[int, list[str]] = {}
        for path, due in self._due.items():
            by_due.setdefault(due, []).append(path)
        for due, paths in sorted(by_due.items()):
            self._send(DELETER, DeleteLater(paths=tuple(paths), due_ms=due))

    def told(self, state: DeleterState) -> None:
        """What was due before whatever it has next was removed. A queue that is never empty must not grow for ever."""
        self._state = state
        now = self._clock.now_ms()
        if state.queued == 0:
            self._due = {path: due for path, due in self._due.items() if due > now}
        elif state.next_due_ms is not None and not state.failing and self._looked_ms + _LOOK_MS <= now:
            self._looked_ms = now
            # What was sent just now may not have reached it when it wrote this.
            gone = min(state.next_due_ms, now - _LOOK_MS)
            self._due = {path: due for path, due in self._due.items() if due >= gone}

    def status(self) -> DeleterStatus:
        state = self._state
        if state is None:
            return DeleterStatus(queued=len(self._due), next_due_ms=min(self._due.values(), default=None))
        return DeleterStatus(
            queued=state.queued,
            queued_bytes=state.queued_bytes,
            removed=state.removed,
            next_due_ms=state.next_due_ms,
        )
