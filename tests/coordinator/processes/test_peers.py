"""What brokers ask each other goes through the coordinator, which answers for those that are gone."""

from __future__ import annotations

import msgspec

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.processes.peers import PeerRelay
from compactd.workers.message import Message
from compactd.workers.messages import PeerAnswer, PeerRequest

_RAW = msgspec.Raw(msgspec.msgpack.encode(None))


class Sent:
    """A supervisor whose workers may be away."""

    def __init__(self) -> None:
        self.away: set[WorkerId] = set()
        self.messages: list[tuple[int, Message]] = []

    def send(self, worker: WorkerId, message: Message) -> bool:
        if worker in self.away:
            return False
        self.messages.append((worker.number, message))
        return True

    def taken(self) -> list[tuple[int, Message]]:
        taken, self.messages = self.messages, []
        return taken


def broker(number: int) -> WorkerId:
    return WorkerId("broker", number)


def request(asker: int, number: int, worker: int) -> PeerRequest:
    return PeerRequest(asker=asker, number=number, worker=worker, operation="o", arguments=_RAW)


def test_questions_and_answers_find_their_way() -> None:
    sent = Sent()
    relay = PeerRelay(sent.send)
    asked = request(0, 7, 2)
    relay.pass_on(asked, broker(0))
    assert sent.taken() == [(2, asked)]
    answer = PeerAnswer(asker=0, number=7, results=_RAW)
    relay.pass_on(answer, broker(2))
    assert sent.taken() == [(0, answer)]
    # Nobody waits for a second one.
    relay.pass_on(answer, broker(2))
    assert sent.taken() == []
    # It was answered: the end of who did so is nobody's concern.
    relay.worker_gone(broker(2), "was killed")
    assert sent.taken() == []


def test_who_is_not_there_is_answered_for() -> None:
    sent = Sent()
    relay = PeerRelay(sent.send)
    sent.away.add(broker(2))
    relay.pass_on(request(0, 1, 2), broker(0))
    assert sent.taken() == [(0, PeerAnswer(asker=0, number=1, error="broker-2 is not there"))]


def test_who_dies_over_a_question_is_answered_for() -> None:
    sent = Sent()
    relay = PeerRelay(sent.send)
    for asker, number, worker in ((0, 1, 2), (1, 1, 2), (0, 2, 1), (2, 5, 0)):
        relay.pass_on(request(asker, number, worker), broker(asker))
    sent.taken()
    relay.worker_gone(broker(2), "was killed")
    assert sorted(sent.taken(), key=lambda each: each[0]) == [
        (0, PeerAnswer(asker=0, number=1, error="broker-2 was killed")),
        (1, PeerAnswer(asker=1, number=1, error="broker-2 was killed")),
    ]
    # What it asked itself is forgotten: its successor counts anew.
    relay.worker_gone(broker(0), "was killed")
    assert sent.taken() == []
    relay.pass_on(PeerAnswer(asker=0, number=2, results=_RAW), broker(1))
    relay.worker_gone(broker(1), "was killed")
    assert sent.taken() == []
