"""The cleaning side of the daemon as the frame sees it: fills interfaces.CleaningPart.

Every log.cleaner.backoff.ms, and whenever something changes, idle cleaners get the filthiest logs that want cleaning.

    what is next        cleaning.queue, by the rules of cleaning.choice
    a clean's way       cleaning.jobs, one cleaning.job each
    first dirty offsets cleaning.offsets
    what is held back   cleaning.quarantine (it failed), cleaning.pauses (a person wants it so)
    a person's wishes   cleaning.control; what is shown: cleaning.status
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compactd.coordinator.cleaning import control, status
from compactd.coordinator.cleaning.jobs import CleaningJobs
from compactd.coordinator.cleaning.offsets import LANE, ByLogDir, CleanOffsets
from compactd.coordinator.cleaning.pauses import Pauses
from compactd.coordinator.cleaning.quarantine import Quarantine
from compactd.coordinator.cleaning.queue import CleaningQueue
from compactd.coordinator.control.messages import CleaningStatus, Control
from compactd.coordinator.interfaces import Frame, Timer, WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import CleanDone, CleanProgress, GroupReady
from compactd.workers.message import Message
from compactd.workers.partition_messages import PartitionState

_log = logging.getLogger(__name__)

_WATCH_MS = 5_000


class CleaningScheduler:
    """See the module. On the loop's thread; files are touched in the lane `cleaning`."""

    def __init__(self, frame: Frame, quarantine: Quarantine, pauses: Pauses) -> None:
        self.frame = frame
        self.quarantine = quarantine
        self.pauses = pauses
        self.offsets = CleanOffsets(frame)
        self.queue = CleaningQueue(frame, self.offsets, quarantine, pauses)
        self.jobs = CleaningJobs(
            frame,
            self.queue,
            self.offsets,
            quarantine,
            quarantine_changed=self.save_quarantine,
            ended=self._ended,
            consider_soon=self.consider_soon,
        )
        self._started = False
        self._stopping: Callable[[], None] | None = None
        self._soon = False
        self._ticks: Timer | None = None
        self._backoff_ms = 0

    # ---- CleaningPart

    def start(self) -> None:
        self.offsets.open()

        def read() -> ByLogDir:
            self.quarantine.load()
            self.pauses.load()
            return self.offsets.read()

        def begin(by_log_dir: ByLogDir) -> None:
            self._started = True
            self.offsets.take(by_log_dir)
            self._weigh(self.frame.states.values())
            self._tick_later(0)
            self.frame.every(_WATCH_MS, self.jobs.watch)

        self.frame.in_lane(LANE, read, begin, self._lane_failed)

    def worker_ready(self, worker: WorkerId) -> None:
        self.consider_soon()

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        if worker.kind == "broker":
            self.offsets.broker_gone()
        self.jobs.worker_gone(worker, reason)
        self.consider_soon()

    def received(self, worker: WorkerId, message: Message) -> None:
        if isinstance(message, (CleanProgress, GroupReady, CleanDone)):
            self.jobs.received(worker, message)

    def states_changed(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            job = self.jobs.running.get(TopicPartition(state.topic, state.partition)) if state.moving_to else None
            if job is not None:
                self.jobs.abort(job, f"it is being moved to {state.moving_to}")
        if self._started:
            self._weigh(states)
            self.consider_soon()

    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        where: dict[TopicPartition, Path | None] = {}
        for name in partitions:
            weighed = self.queue.gone(name)
            where[name] = None if weighed is None else Path(weighed.state.log_dir)
            self.jobs.partition_gone(name)
        if self.quarantine.remove(map(str, partitions)):
            self.save_quarantine()
        self.offsets.partitions_gone(where)

    def partition_moved(self, partition: TopicPartition, source: Path, target: Path) -> None:
        self.jobs.last.pop(partition, None)
        self.offsets.partition_moved(partition, source, target)

    def configs_changed(self, topics: Sequence[str]) -> None:
        names = set(topics)
        for job in self.jobs.running.values():
            if job.partition.topic in names and not self.frame.topic_config(job.partition.topic).compact:
                self.jobs.abort(job, "its cleanup.policy has no compact any more")
        if self._started:
            self._weigh(state for state in self.frame.states.values() if state.topic in names)
            self.consider_soon()

    def settings_changed(self) -> None:
        if self._started and self.frame.settings.cleaner.backoff_ms != self._backoff_ms:
            self._tick_later(self.frame.settings.cleaner.backoff_ms)
        self.jobs.share_throttle()
        self.consider_soon()

    def control(self, request: Control, answer: Callable[[Control], None]) -> None:
        control.handle(self, request, answer)

    def status(self, all_partitions: bool) -> CleaningStatus:
        return status.build(self, all_partitions)

    def stop(self, stopped: Callable[[], None]) -> None:
        self._stopping = stopped
        self.jobs.stop()
        self._stopped_if_idle()

    # ---- jobs begin and end

    def _tick_later(self, delay_ms: float) -> None:
        """Every log.cleaner.backoff.ms from then on."""
        if self._ticks is not None:
            self._ticks.cancel()
        self._backoff_ms = self.frame.settings.cleaner.backoff_ms
        self._ticks = self.frame.every(self._backoff_ms or 1, self._tick, first_ms=delay_ms)

    def _tick(self) -> None:
        """Lags and quarantine pass with time alone."""
        self._weigh(self.frame.states.values())
        self._consider()

    def _weigh(self, states: Iterable[PartitionState]) -> None:
        self.queue.weigh(states, self.jobs.running)

    def consider_soon(self) -> None:
        if self._started and not self._soon:
            self._soon = True
            self.frame.call_later(0, self._consider)

    def try_now(self, names: Iterable[str]) -> None:
        """Somebody says that whatever stood in their way is gone."""
        self.queue.release(names)
        self.consider_soon()

    def _consider(self) -> None:
        """Gives every idle cleaner the best there is."""
        self._soon = False
        if not self._started or self._stopping is not None or not self.frame.settings.cleaner.enable:
            return
        busy = {job.cleaner for job in self.jobs.running.values()}
        idle = [worker for worker in self.frame.workers("cleaner") if worker not in busy]
        self.queue.held_by = ""
        if not idle:
            return
        waiting = self.queue.in_order(self.jobs.running)
        for worker in idle:
            while waiting:
                name = waiting.pop(0)
                if self.queue.fits(name, self.jobs.running):
                    self.jobs.begin(name, worker)
                    break

    def _ended(self, name: TopicPartition) -> None:
        state = self.frame.states.get(name)
        if state is not None:
            self._weigh([state])
        self._stopped_if_idle()
        self.consider_soon()

    def _stopped_if_idle(self) -> None:
        if self._stopping is not None and not self.jobs.running:
            stopped, self._stopping = self._stopping, lambda: None
            stopped()

    # ---- files

    def save_quarantine(self) -> None:
        content = self.quarantine.snapshot()
        self.frame.in_lane(LANE, lambda: self.quarantine.save(content), lambda _: None, self._lane_failed)

    def save_pauses(self, saved: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """They hold at once; `saved`: they outlast a restart."""
        content = self.pauses.snapshot()
        self.frame.in_lane(LANE, lambda: self.pauses.save(content), lambda _: saved(), failed)

    def _lane_failed(self, error: Exception) -> None:
        _log.error(f"the cleaning side could not use its files: {error}")
