"""A worker's channel without sockets: the test says what is answered to what, in the test's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from compactd.workers.message import Message
from compactd.workers.messages import Stop, Welcome

_M = TypeVar("_M", bound=Message)


class ScriptedChannel:
    """Fills workers.channel.Channel for a body. `answer` is called with everything the body sends, and may `put`.

    When the body waits and nothing is left, `idle` is called; by default it puts a Stop, so that no body waits for ever.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.welcome = Welcome(settings=dict(settings or {}))
        self.sent: list[Message] = []
        self.phases: list[str] = []
        self.answer: Callable[[Message], None] = lambda _: None
        self.idle: Callable[[], None] = self.stop
        self.stopping: Stop | None = None
        self._incoming: deque[Message] = deque()

    def put(self, *messages: Message) -> None:
        """To the body."""
        for message in messages:
            self._incoming.append(message)
            if isinstance(message, Stop) and self.stopping is None:
                self.stopping = message

    def stop(self) -> None:
        self.put(Stop(reason="the test is over"))

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.answer(message)

    def receive(self, timeout: float | None = None) -> Message | None:
        if not self._incoming and timeout != 0:
            self.idle()
        return self._incoming.popleft() if self._incoming else None

    def set_phase(self, phase: str) -> None:
        self.phases.append(phase)

    def of(self, kind: type[_M]) -> list[_M]:
        """What the body sent of a kind."""
        return [message for message in self.sent if isinstance(message, kind)]
