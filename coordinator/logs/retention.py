"""When retention is looked at: the retention worker decides, the owner lets go of segments, the deleter removes them.

Every log.retention.check.interval.ms; a look that takes longer than that is not begun twice (facts 7.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from compactd.coordinator.interfaces import Frame, Timer, WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import CheckRetention, LetGo, LetGoDone, RetentionDecided
from compactd.workers.message import Message
from compactd.workers.messages import Failed

_log = logging.getLogger(__name__)

#: Partitions in one question: encoding more would hold the loop up.
_CHUNK = 500
#: A decision, or an owner that lets go, takes longer only where something is wrong.
_TIMEOUT_MS = 120_000


class RetentionSchedule:
    """See the module."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._timer: Timer | None = None
        self._open = 0

    def start(self) -> None:
        storage = self._frame.settings.storage
        self._timer = self._frame.every(
            storage.log_retention_check_interval_ms, self.look, first_ms=storage.log_initial_task_delay_ms
        )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Asks about every partition that is loaded, unless the look before has not ended."""
        workers = self._frame.workers("retention")
        if self._open or not workers:
            return
        names = iter(list(self._frame.states))
        self._ask_next(workers[0], lambda: list(islice(names, _CHUNK)))

    def _ask_next(self, worker: WorkerId, take: Callable[[], list[TopicPartition]]) -> None:
        chunk = take()
        if not chunk or self._timer is None:
            return
        states = tuple(state for name in chunk if (state := self._frame.states.get(name)) is not None)
        configs = {topic: self._frame.topic_config(topic) for topic in {state.topic for state in states}}
        request = CheckRetention(
            request_id=self._frame.next_request_id(), states=states, configs=configs, now_ms=self._frame.clock.now_ms()
        )
        self._open += 1

        def decided(answer: Message) -> None:
            self._open -= 1
            if isinstance(answer, RetentionDecided):
                self._let_go(answer)
            elif isinstance(answer, Failed):
                _log.warning(f"retention was not decided: {answer.message}")
            self._ask_next(worker, take)

        self._frame.ask(worker, request, decided, _TIMEOUT_MS)

    def _let_go(self, decided: RetentionDecided) -> None:
        by_owner: dict[WorkerId, list[str]] = {}
        for name in decided.due:
            owner = self._frame.owner_of(_partition(name))
            if owner is not None:
                by_owner.setdefault(owner, []).append(name)
        for owner, partitions in by_owner.items():
            self._open += 1
            request = LetGo(
                request_id=self._frame.next_request_id(),
                partitions=tuple(partitions),
                now_ms=self._frame.clock.now_ms(),
            )
            self._frame.ask(owner, request, self._let_go_done, _TIMEOUT_MS)

    def _let_go_done(self, answer: Message) -> None:
        self._open -= 1
        if isinstance(answer, LetGoDone):
            for name, reason in answer.failed.items():
                _log.error(f"retention of {name} failed: {reason}")
            queue_deleted(self._frame, answer.deleted)
        elif isinstance(answer, Failed):
            _log.warning(f"retention was not applied: {answer.message}")


def queue_deleted(frame: Frame, paths: tuple[str, ...]) -> None:
    """Queues `.deleted` files, each after the file.delete.delay.ms of its topic."""
    by_delay: dict[int, list[str]] = {}
    for path in paths:
        topic = path.rsplit("/", 2)[-2].rsplit("-", 1)[0]
        by_delay.setdefault(frame.topic_config(topic).file_delete_delay_ms, []).append(path)
    for delay, group in by_delay.items():
        frame.delete_later(group, delay)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))
