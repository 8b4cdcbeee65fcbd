"""Passes on what brokers ask each other (workers.broker.peers), and answers for one that is gone."""

from __future__ import annotations

from collections.abc import Callable

from compactd.coordinator.interfaces import WorkerId
from compactd.workers.message import Message
from compactd.workers.messages import PeerAnswer, PeerRequest


class PeerRelay:
    """On the loop's thread. `send` is Supervisor.send."""

    def __init__(self, send: Callable[[WorkerId, Message], bool]) -> None:
        self._send = send
        #: Who was asked, to the questions that are open there: asker and number.
        self._open: dict[WorkerId, set[tuple[int, int]]] = {}

    def pass_on(self, message: PeerRequest | PeerAnswer, sender: WorkerId) -> None:
        """A message of a broker to another one."""
        question = (message.asker, message.number)
        if isinstance(message, PeerAnswer):
            questions = self._open.get(sender, set())
            if question in questions:
                questions.remove(question)
                self._send(_broker(message.asker), message)
            return
        target = _broker(message.worker)
        if self._send(target, message):
            self._open.setdefault(target, set()).add(question)
        else:
            self._refuse(question, f"{target} is not there")

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """Its questions are of no use any more, and those to it get no answer."""
        for questions in self._open.values():
            questions.difference_update([each for each in questions if _broker(each[0]) == worker])
        for question in self._open.pop(worker, set()):
            self._refuse(question, f"{worker} {reason}")

    def _refuse(self, question: tuple[int, int], why: str) -> None:
        asker, number = question
        self._send(_broker(asker), PeerAnswer(asker=asker, number=number, error=why))


def _broker(number: int) -> WorkerId:
    return WorkerId("broker", number)
