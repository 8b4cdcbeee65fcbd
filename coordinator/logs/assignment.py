"""Partitions given to their brokers, and directories of deleted topics put away.

A broker that comes back is given what it owns, with the offsets it was known to have reached: recovery begins there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.logs.checkpointing import lane_of
from compactd.coordinator.logs.log_dirs import mark_deleted
from compactd.coordinator.logs.partitions import Entry
from compactd.storage.names import TopicPartition
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import (
    AssignPartitions,
    PartitionAssignment,
    PartitionsReady,
    PartitionsReleased,
    ReleasePartitions,
)

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon

_log = logging.getLogger(__name__)

#: Partitions in one message: a broker tells of each message when it has loaded all of it.
_CHUNK = 200
#: An owner that takes longer to let a deleted partition go has other trouble; its directory is then put away by us.
_RELEASE_TIMEOUT_MS = 30_000


class _Countdown:
    """Calls `then` once everything that was counted in is done."""

    def __init__(self, then: Callable[[], None] | None) -> None:
        self._left = 1
        self._then = then

    def add(self) -> None:
        self._left += 1

    def done(self) -> None:
        self._left -= 1
        if self._left == 0 and self._then is not None:
            self._then()


class Assignment:
    """See the module. On the loop's thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: Waits for a directory of the same name to be put away.
        self._waiting: dict[TopicPartition, list[Callable[[], None]]] = {}
        #: Messages that are still to be made, one a turn of the loop: there may be very many partitions.
        self._queue: deque[Callable[[], None]] = deque()

    def assign(
        self, entries: Iterable[Entry], then: Callable[[], None] | None = None, timeout_ms: int | None = None
    ) -> None:
        """Gives partitions to their owners; `then` when each is loaded, or can't be, or its owner is not there."""
        countdown = _Countdown(then)
        by_owner: dict[WorkerId, list[Entry]] = {}
        for entry in entries:
            if entry.name in self._daemon.partitions.releasing:
                countdown.add()
                self._wait(entry.name, countdown)
            elif self._can_be_served(entry):
                by_owner.setdefault(entry.owner, []).append(entry)
        for owner, owned in by_owner.items():
            for start in range(0, len(owned), _CHUNK):
                countdown.add()
                self._queue.append(partial(self._send, owner, owned[start : start + _CHUNK], countdown, timeout_ms))
        if self._queue:
            self._send_next()
        countdown.done()

    def release(self, entries: Sequence[Entry]) -> None:
        """Their topics were deleted: the owner closes the logs and renames the directories, the deleter removes them."""
        if not entries:
            return
        daemon = self._daemon
        daemon.cleaning.partitions_gone([entry.name for entry in entries])
        # One that still waited for its predecessor's directory has made none of its own.
        waited = [entry for entry in entries if entry.name in daemon.partitions.releasing]
        for entry in waited:
            self._wake(entry.name)
        entries = [entry for entry in entries if entry not in waited]
        daemon.partitions.releasing.update(entry.name for entry in entries if entry.place.log_dir)
        by_owner: dict[WorkerId, list[Entry]] = {}
        for entry in entries:
            by_owner.setdefault(entry.owner, []).append(entry)
        for owner, owned in by_owner.items():
            there = [entry for entry in owned if entry.is_assigned and daemon.dirs.is_online(entry.place.log_dir)]
            for entry in owned:
                if entry not in there:
                    self._put_away(entry)
            if there:
                self._ask_for_release(owner, there)

    def give_up(self) -> None:
        """Whatever waits, waits no more."""
        for name in list(self._waiting):
            self._wake(name)

    # ---- inside

    def _send_next(self) -> None:
        if self._queue:
            self._queue.popleft()()
        if self._queue:
            self._daemon.call_later(0, self._send_next)

    def _can_be_served(self, entry: Entry) -> bool:
        dirs, log_dir = self._daemon.dirs, entry.place.log_dir
        if not log_dir:
            entry.offline = "no log dir that is online holds it"
        elif not dirs.is_online(log_dir):
            entry.offline = f"its log dir {log_dir} is offline: {dirs.offline.get(Path(log_dir), 'not in log.dirs')}"
        else:
            entry.offline = ""
        return not entry.offline

    def _send(self, owner: WorkerId, entries: list[Entry], countdown: _Countdown, timeout_ms: int | None) -> None:
        daemon = self._daemon
        # Some may have been deleted meanwhile.
        entries = [entry for entry in entries if daemon.partitions.entries.get(entry.name) is entry]
        if not entries or owner not in daemon.supervisor.ready("broker"):
            # Given to it when it is back.
            countdown.done()
            return
        for entry in entries:
            entry.is_assigned = True
        dirs = sorted({entry.place.log_dir for entry in entries})
        request = AssignPartitions(
            request_id=daemon.next_request_id(),
            partitions=tuple(self._assignment(entry) for entry in entries),
            # What was served once in this run has been written to: it is recovered, whatever the marker said.
            clean_log_dirs=tuple(
                log_dir
                for log_dir in dirs
                if daemon.dirs.stopped_cleanly(log_dir) and owner not in daemon.startup.served
            ),
        )

        def answered(answer: Message) -> None:
            self.loaded(answer)
            countdown.done()

        daemon.ask(owner, request, answered, timeout_ms)

    def _assignment(self, entry: Entry) -> PartitionAssignment:
        daemon = self._daemon
        known = daemon.partitions.states.get(entry.name)
        if known is None:
            point, start, mark = daemon.dirs.offsets(entry.place.log_dir, entry.name)
        else:
            point, start, mark = known.recovery_point, known.log_start_offset, known.high_watermark
        return PartitionAssignment(
            topic=entry.name.topic,
            partition=entry.name.partition,
            topic_id=entry.topic_id,
            log_dir=entry.place.log_dir,
            config=daemon.topic_config(entry.name.topic),
            leader_epoch=entry.place.leader_epoch,
            is_new=entry.is_new,
            recovery_point=point,
            log_start_offset=start,
            high_watermark=mark,
        )

    def loaded(self, answer: Message) -> None:
        """What came of an assignment, in time or not."""
        daemon = self._daemon
        if isinstance(answer, PartitionsReady):
            daemon.take_states(answer.states)
            for name, reason in answer.failed.items():
                _log.error(f"{name} could not be loaded: {reason}")
                topic, _, number = name.rpartition("-")
                daemon.partitions.failed(TopicPartition(topic, int(number)), reason)
        elif isinstance(answer, Failed):
            _log.warning(f"partitions were not loaded yet: {answer.message}")

    def _ask_for_release(self, owner: WorkerId, entries: list[Entry]) -> None:
        daemon = self._daemon
        request = ReleasePartitions(
            request_id=daemon.next_request_id(), partitions=tuple(str(entry.name) for entry in entries)
        )

        def answered(answer: Message) -> None:
            if isinstance(answer, PartitionsReleased):
                daemon.delete_later(answer.directories, daemon.directory_delay_ms())
                for entry in entries:
                    self._released(entry)
                return
            reason = answer.message if isinstance(answer, Failed) else f"it answered {type(answer).__name__}"
            _log.warning(f"{owner} did not let deleted partitions go, they are put away without it: {reason}")
            for entry in entries:
                self._put_away(entry)

        daemon.ask(owner, request, answered, _RELEASE_TIMEOUT_MS)

    def _put_away(self, entry: Entry) -> None:
        """Without its owner: it is down, or never had it."""
        daemon = self._daemon
        log_dir = Path(entry.place.log_dir)
        directory = log_dir / str(entry.name)
        if not entry.place.log_dir or not daemon.dirs.is_online(log_dir):
            self._released(entry)
            return
        delay = daemon.directory_delay_ms()

        def done(marked: Path | None) -> None:
            if marked is not None:
                daemon.delete_later((str(marked),), delay)
            self._released(entry)

        def failed(error: Exception) -> None:
            daemon.log_dir_failed(str(log_dir), str(error))
            self._released(entry)

        daemon.in_lane(
            lane_of(log_dir),
            lambda: mark_deleted(directory, entry.name) if directory.is_dir() else None,
            done,
            failed,
        )

    def _released(self, entry: Entry) -> None:
        daemon = self._daemon
        daemon.partitions.releasing.discard(entry.name)
        if entry.place.log_dir:
            daemon.checkpoints.forget(entry.place.log_dir, [entry.name])
        self._wake(entry.name)

    def _wake(self, name: TopicPartition) -> None:
        for go_on in self._waiting.pop(name, ()):
            go_on()

    def _wait(self, name: TopicPartition, countdown: _Countdown) -> None:
        def go_on() -> None:
            entry = self._daemon.partitions.entries.get(name)
            if entry is None or entry.is_assigned or self._daemon.is_stopping:
                countdown.done()
            else:
                self.assign([entry], countdown.done)

        self._waiting.setdefault(name, []).append(go_on)
