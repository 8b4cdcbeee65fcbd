from __future__ import annotations

from compactd.coordinator.deletion import DELETER, Deletions
from compactd.coordinator.interfaces import WorkerId
from compactd.workers.clock import Clock
from compactd.workers.messages import DeleteLater, DeleterState, KeepFiles, Message


class StoppedClock(Clock):
    def __init__(self) -> None:
        self.now = 1000

    def now_ms(self) -> int:
        return self.now


class Outbox:
    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.sent: list[Message] = []
        self.deletions = Deletions(self.send, self.clock)

    def send(self, worker: WorkerId, message: Message) -> bool:
        assert worker == DELETER
        self.sent.append(message)
        return True


def test_a_fresh_deleter_gets_what_the_one_before_had_left() -> None:
    box = Outbox()
    box.deletions.later(["a", "b"], 500)
    box.deletions.later(["c"], 100)
    box.deletions.later([], 100)
    box.deletions.keep(["b"])
    assert box.sent == [
        DeleteLater(paths=("a", "b"), due_ms=1500),
        DeleteLater(paths=("c",), due_ms=1100),
        KeepFiles(paths=("b",)),
    ]
    assert (box.deletions.status().queued, box.deletions.status().next_due_ms) == (2, 1100)
    box.sent.clear()
    box.deletions.worker_ready()
    assert box.sent == [DeleteLater(paths=("c",), due_ms=1100), DeleteLater(paths=("a",), due_ms=1500)]


def test_what_was_removed_is_forgotten() -> None:
    box = Outbox()
    box.deletions.later(["a"], 500)
    box.deletions.later(["b"], 5000)
    box.clock.now = 2000
    box.deletions.told(DeleterState(queued=1, queued_bytes=7, removed=1, next_due_ms=6000))
    assert box.deletions.status().queued_bytes == 7
    box.deletions.told(DeleterState(queued=0, queued_bytes=0, removed=1))
    box.sent.clear()
    box.deletions.worker_ready()
    assert box.sent == [DeleteLater(paths=("b",), due_ms=6000)]
