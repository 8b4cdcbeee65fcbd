from __future__ import annotations

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.logs.deletion import DELETER, Deletions
from compactd.workers.cleaning_messages import DeleteLater, DeleterState, KeepFiles
from compactd.workers.clock import Clock
from compactd.workers.message import Message


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


def test_what_was_removed_is_forgotten_also_by_a_deleter_that_is_never_done() -> None:
    box = Outbox()
    for second in range(100):
        box.deletions.later([f"f{second}"], 10_000)
        box.clock.now += 1000
        queued = min(second + 1, 10)
        next_due = max(11_000, box.clock.now + 1000)
        box.deletions.told(
            DeleterState(queued=queued, queued_bytes=1, removed=second + 1 - queued, next_due_ms=next_due)
        )
    box.sent.clear()
    box.deletions.worker_ready()
    # Not at once, and a while after the due time: never one that the deleter may not have heard of.
    paths = [path for message in box.sent if isinstance(message, DeleteLater) for path in message.paths]
    assert paths[-1] == "f99" and 10 < len(paths) < 85


def test_what_the_deleter_failed_to_remove_is_kept_for_the_next() -> None:
    box = Outbox()
    box.deletions.later(["stuck"], 500)
    box.clock.now = 500_000
    box.deletions.told(DeleterState(queued=1, queued_bytes=7, removed=0, next_due_ms=530_000, failing=1))
    box.sent.clear()
    box.deletions.worker_ready()
    assert box.sent == [DeleteLater(paths=("stuck",), due_ms=1500)]
