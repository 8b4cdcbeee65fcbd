"""The cleaning side of the daemon: what is cleaned next, by whom, what came of it. Fills interfaces.CleaningPart.

Every log.cleaner.backoff.ms, and whenever something changes, idle cleaners get the filthiest logs that want cleaning. A job
goes: the owner describes the log (PrepareClean, CleanJob) -> a cleaner works (CleanProgress) -> each group goes to the owner
and back (GroupReady, GroupSwapped) -> CleanDone -> the checkpoint is written. At every point somebody may die: a cleaner's
job is given to another, an owner's is given up; the checkpoint is written last, so that a clean is at worst done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from compactd.config.errors import CompactdError
from compactd.coordinator import cleaning_control, cleaning_status
from compactd.coordinator.cleaning_choice import EXPECTED_KEPT, Weighed, gain, room_needed, round_bounds, weigh
from compactd.coordinator.cleaning_job import Job
from compactd.coordinator.control_messages import CleaningStatus, Control
from compactd.coordinator.interfaces import Frame, Timer, WorkerId
from compactd.coordinator.pauses import EVERYTHING, Pauses
from compactd.coordinator.quarantine import Quarantine
from compactd.coordinator.requests import WORKER_GONE
from compactd.coordinator.retention import queue_deleted
from compactd.storage import files
from compactd.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import (
    AbortClean,
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    GroupReady,
    GroupSwapped,
    PrepareClean,
)
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import PartitionState

_log = logging.getLogger(__name__)

LANE = "cleaning"
#: With less than this share of its file system free, a log dir is cleaned by what frees most for what it writes.
TIGHT_SHARE = 0.1
_PREPARE_MS = 30_000
_SWAP_MS = 60_000
_WATCH_MS = 5_000
#: A log whose clean came to nothing is left alone for so long: what stood in its way mostly still does.
_HOLD_MS = 1_000
#: A log on which so many cleaners died one after the other is set aside, or the others would never get their turn.
_MOST_LOSSES = 3


class CleaningScheduler:
    """See the module. On the loop's thread; files are touched in the lane `cleaning`."""

    def __init__(self, frame: Frame, quarantine: Quarantine, pauses: Pauses) -> None:
        self.frame = frame
        self.quarantine = quarantine
        self.pauses = pauses
        self.offsets: dict[TopicPartition, int] = {}
        self.jobs: dict[TopicPartition, Job] = {}
        self.weighed: dict[TopicPartition, Weighed] = {}
        self.forced: set[TopicPartition] = set()
        #: `.deleted` files of each partition's last clean, and where it began: what undo needs.
        self.last: dict[TopicPartition, tuple[tuple[str, ...], int]] = {}
        #: Share of the bytes read that each partition's last clean kept.
        self._kept: dict[TopicPartition, float] = {}
        self._checkpoints = CleanerCheckpoints(())
        self._started = False
        self._stopping: Callable[[], None] | None = None
        self._soon = False
        self._ticks: Timer | None = None
        self._backoff_ms = 0
        self.held_by = ""
        #: Monotonic seconds until which a log is left alone.
        self._held: dict[TopicPartition, float] = {}
        #: How many cleaners died in a row while they had a log.
        self._losses: dict[TopicPartition, int] = {}
        #: Log end offsets of jobs: a state that ends before is older than the clean, and says nothing about its checkpoint.
        self._ends: dict[TopicPartition, int] = {}

    # ---- CleaningPart

    def start(self) -> None:
        self._checkpoints = CleanerCheckpoints(self.frame.online_log_dirs())

        def read() -> dict[Path, dict[TopicPartition, int]]:
            self.quarantine.load()
            self.pauses.load()
            return self._checkpoints.by_log_dir()

        def begin(by_dir: dict[Path, dict[TopicPartition, int]]) -> None:
            for path, fault in self._checkpoints.faults.items():
                _log.warning(f"the logs of {path} count as dirty from their start: {fault}")
            self._started = True
            self._take_checkpoints(by_dir)
            self._weigh(self.frame.states.values())
            self._tick_later(0)
            self.frame.every(_WATCH_MS, self._watch)

        self.frame.in_lane(LANE, read, begin, self._lane_failed)

    def _take_checkpoints(self, by_dir: dict[Path, dict[TopicPartition, int]]) -> None:
        """Each partition's entry; those that an interrupted move left in the dir that it lay in before go where it is."""
        self.offsets = {name: offset for entries in by_dir.values() for name, offset in entries.items()}
        where = {name: Path(state.log_dir) for name, state in self.frame.states.items()}
        for log_dir, entries in by_dir.items():
            astray = [name for name in entries if where.get(name, log_dir) != log_dir]
            for name in astray:
                self.offsets[name] = by_dir.get(where[name], {}).get(name, entries[name])
                self.write_checkpoint(where[name], {name: self.offsets[name]})
            if astray:
                self.write_checkpoint(log_dir, {}, remove=astray)

    def worker_ready(self, worker: WorkerId) -> None:
        self.consider_soon()

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        if worker.kind == "broker":
            # What it had not flushed may be gone with it: its logs may end earlier than they did.
            self._ends.clear()
        for job in list(self.jobs.values()):
            if job.cleaner == worker:
                self._lost(job, f"{worker} {reason}")
            elif job.owner == worker:
                self.abort(job, f"{worker}, which owns the log, {reason}")
        self.consider_soon()

    def received(self, worker: WorkerId, message: Message) -> None:
        if not isinstance(message, (CleanProgress, GroupReady, CleanDone)):
            return
        job = next((job for job in self.jobs.values() if job.request_id == message.request_id), None)
        if job is None or job.cleaner != worker:
            return
        job.heard = self.frame.clock.monotonic()
        if isinstance(message, CleanProgress):
            job.told(message, job.heard)
        elif isinstance(message, GroupReady):
            self._swap(job, message)
        else:
            self._done(job, message)

    def states_changed(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            job = self.jobs.get(TopicPartition(state.topic, state.partition)) if state.moving_to else None
            if job is not None:
                self.abort(job, f"it is being moved to {state.moving_to}")
        if self._started:
            self._weigh(states)
            self.consider_soon()

    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        by_dir: dict[Path, list[TopicPartition]] = {}
        for name in partitions:
            weighed = self.weighed.pop(name, None)
            if weighed is not None:
                by_dir.setdefault(Path(weighed.state.log_dir), []).append(name)
            self.forced.discard(name)
            self.last.pop(name, None)
            self._kept.pop(name, None)
            self.offsets.pop(name, None)
            self._losses.pop(name, None)
            self._ends.pop(name, None)
            if name in self.jobs:
                self.jobs[name].gone = True
                self.abort(self.jobs[name], "the partition is gone")
        if self.quarantine.remove(map(str, partitions)):
            self.save_quarantine()
        online = {str(path) for path in self.frame.online_log_dirs()}
        for log_dir, gone in by_dir.items():
            if str(log_dir) not in online:
                self._checkpoints.forget(log_dir)
            else:
                self.write_checkpoint(log_dir, {}, remove=gone)

    def partition_moved(self, partition: TopicPartition, source: Path, target: Path) -> None:
        self.last.pop(partition, None)
        offset = self.offsets.get(partition)
        if offset is None:
            return
        # The new entry first: stopped in between, both are there and say the same.
        self.write_checkpoint(target, {partition: offset})
        if str(source) in {str(path) for path in self.frame.online_log_dirs()}:
            self.write_checkpoint(source, {}, remove=[partition])

    def configs_changed(self, topics: Sequence[str]) -> None:
        names = set(topics)
        for job in self.jobs.values():
            if job.partition.topic in names and not self.frame.topic_config(job.partition.topic).compact:
                self.abort(job, "its cleanup.policy has no compact any more")
        if self._started:
            self._weigh(state for state in self.frame.states.values() if state.topic in names)
            self.consider_soon()

    def settings_changed(self) -> None:
        if self._started and self.frame.settings.cleaner.backoff_ms != self._backoff_ms:
            self._tick_later(self.frame.settings.cleaner.backoff_ms)
        self._share_throttle()
        self.consider_soon()

    def control(self, request: Control, answer: Callable[[Control], None]) -> None:
        cleaning_control.handle(self, request, answer)

    def status(self, all_partitions: bool) -> CleaningStatus:
        return cleaning_status.build(self, all_partitions)

    def stop(self, stopped: Callable[[], None]) -> None:
        self._stopping = stopped
        for job in list(self.jobs.values()):
            self.abort(job, "compactd stops")
        self._stopped_if_idle()

    # ---- choice

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
        now, corrected = self.frame.clock.now_ms(), {}
        for state in states:
            name = TopicPartition(state.topic, state.partition)
            config = self.frame.topic_config(state.topic)
            if not config.compact:
                self.weighed.pop(name, None)
                continue
            weighed = weigh(state, config, self._checkpoint(name, state), now)
            self.weighed[name] = weighed
            if weighed.offsets.force_update_checkpoint and name not in self.jobs:
                corrected[name] = weighed
        for name, weighed in corrected.items():
            first = weighed.offsets.first_dirty_offset
            if not weighed.log.partition.config.delete:
                _log.warning(
                    f"the cleaner checkpoint of {name}, {self.offsets.get(name)}, lies outside its log "
                    f"[{weighed.state.log_start_offset}, {weighed.state.log_end_offset}]: it is {first} now"
                )
            self.offsets[name] = first
            self.write_checkpoint(Path(weighed.state.log_dir), {name: first})

    def consider_soon(self) -> None:
        if self._started and not self._soon:
            self._soon = True
            self.frame.call_later(0, self._consider)

    def _checkpoint(self, name: TopicPartition, state: PartitionState) -> int | None:
        offset, end = self.offsets.get(name), self._ends.get(name)
        if end is None or offset is None:
            return offset
        if state.log_end_offset >= end:
            del self._ends[name]
            return offset
        return min(offset, state.log_end_offset)

    def try_now(self, names: Iterable[str]) -> None:
        """Somebody says that whatever stood in their way is gone."""
        wanted = set(names)
        self._held = {name: until for name, until in self._held.items() if str(name) not in wanted}
        self.consider_soon()

    def _consider(self) -> None:
        """Gives every idle cleaner the best there is."""
        self._soon = False
        if not self._started or self._stopping is not None or not self.frame.settings.cleaner.enable:
            return
        busy = {job.cleaner for job in self.jobs.values()}
        idle = [worker for worker in self.frame.workers("cleaner") if worker not in busy]
        self.held_by = ""
        if not idle:
            return
        queue = self._queue()
        for worker in idle:
            while queue:
                name = queue.pop(0)
                if self._fits(self.weighed[name]):
                    self._begin(name, worker)
                    break

    def _queue(self) -> list[TopicPartition]:
        """Partitions to clean, those that a person asked for first, then the filthiest."""
        now, moment = self.frame.clock.now_ms(), self.frame.clock.monotonic()
        self._held = {name: until for name, until in self._held.items() if until > moment}
        free = [
            (name, weighed)
            for name, weighed in self.weighed.items()
            if name not in self.jobs
            and name not in self._held
            and not weighed.state.moving_to
            and not self.is_paused(name)
            and (name in self.forced or (weighed.log.wants_cleaning and not self.quarantine.holds(str(name), now)))
        ]
        tight = {log_dir for log_dir in {weighed.state.log_dir for _, weighed in free} if _is_tight(log_dir)}

        def order(pair: tuple[TopicPartition, Weighed]) -> tuple[bool, bool, float]:
            name, weighed = pair
            if weighed.state.log_dir in tight:
                return name not in self.forced, False, -gain(weighed, self._kept.get(name, EXPECTED_KEPT))
            return name not in self.forced, True, -weighed.rank

        free.sort(key=order)
        return [name for name, _ in free if self.frame.owner_of(name) is not None]

    def _fits(self, weighed: Weighed) -> bool:
        margin = self.frame.settings.daemon.cleaner_free_space_margin
        # What running cleans may still take is not free.
        taken = sum(
            room_needed(self.weighed[name], 0)
            for name, job in self.jobs.items()
            if job.log_dir == weighed.state.log_dir and name in self.weighed
        )
        needed = room_needed(weighed, margin) + taken
        try:
            free = files.free_bytes(weighed.state.log_dir)
        except CompactdError as error:
            self.held_by = str(error)
            return False
        if free < needed:
            self.held_by = (
                f"{weighed.name} waits for space: a clean needs {needed:,} bytes in {weighed.state.log_dir}, "
                f"{free:,} are free"
            )
            return False
        return True

    # ---- a job

    def _begin(self, name: TopicPartition, cleaner: WorkerId) -> None:
        owner = self.frame.owner_of(name)
        if owner is None:
            return
        weighed, forced = self.weighed[name], name in self.forced
        job = Job(name, cleaner, owner, self.frame.next_request_id(), weighed.state.log_dir, forced)
        job.heard = self.frame.clock.monotonic()
        self.jobs[name] = job
        prepare = PrepareClean(request_id=job.request_id, topic=name.topic, partition=name.partition, roll=forced)
        self.frame.ask(owner, prepare, lambda message: self._prepared(job, message), _PREPARE_MS)

    def _prepared(self, job: Job, message: Message) -> None:
        if self.jobs.get(job.partition) is not job:
            return
        if not isinstance(message, CleanJob):
            reason = message.message if isinstance(message, Failed) else "an odd answer"
            _log.warning(f"{job.partition} is not cleaned now: {reason}")
            if not (isinstance(message, Failed) and message.error == WORKER_GONE):
                self._asked_for(job)
            self._end_idle(job)
            return
        if job.aborting:
            self._end_idle(job)
            return
        weighed = self.weighed.get(job.partition)
        bounds = round_bounds(weighed, message, self.offsets.get(job.partition), job.forced) if weighed else None
        if bounds is None:
            self._asked_for(job)
            self._end_idle(job)
            return
        cleaner = self.frame.settings.cleaner
        self._ends[job.partition] = message.log_end_offset
        job.job = msgspec.structs.replace(
            message,
            first_dirty_offset=bounds[0],
            first_uncleanable_offset=bounds[1],
            map_memory_bytes=cleaner.dedupe_buffer_size // max(1, cleaner.threads),
            map_load_factor=cleaner.load_factor,
            bytes_per_second=self._share(),
            threads=self._threads(),
        )
        if not self.frame.send(job.cleaner, job.job):
            self._end(job)
            return
        self._share_throttle()

    def _swap(self, job: Job, ready: GroupReady) -> None:
        if job.aborting:
            # A partition that is gone may have a namesake by now.
            answer = GroupSwapped(
                request_id=ready.request_id, group_id=ready.group_id, accepted=False, reason=job.aborting
            )
            self.frame.send(job.cleaner, answer)
            return
        job.swapping = True

        def answered(message: Message) -> None:
            job.swapping, job.heard = False, self.frame.clock.monotonic()
            if isinstance(message, GroupSwapped):
                answer = message
                if message.deleted:
                    job.deleted.extend(message.deleted)
                    queue_deleted(self.frame, message.deleted)
            else:
                reason = message.message if isinstance(message, Failed) else "an odd answer"
                answer = GroupSwapped(
                    request_id=ready.request_id, group_id=ready.group_id, accepted=False, reason=reason, unknown=True
                )
            self.frame.send(job.cleaner, answer)

        self.frame.ask(job.owner, ready, answered, _SWAP_MS)

    def _done(self, job: Job, done: CleanDone) -> None:
        name = job.partition
        if job.gone:
            self._end(job)
            return
        self._losses.pop(name, None)
        if done.outcome == "cleaned" and job.job is not None:
            self.last[name] = (tuple(job.deleted), job.job.first_dirty_offset)
            if read := done.stats.get("bytes_read"):
                self._kept[name] = done.stats.get("bytes_written", read) / read
            self.offsets[name] = done.next_dirty_offset
            if done.next_dirty_offset >= job.job.first_uncleanable_offset:
                self._asked_for(job)
            if self.quarantine.remove([str(name)]):
                self.save_quarantine()
            self.write_checkpoint(Path(job.log_dir), {name: done.next_dirty_offset}, then=lambda: self._end(job))
            return
        if done.outcome == "aborted":
            _log.info(f"the clean of {name} was given up: {done.reason}")
        else:
            self._asked_for(job)
            entry = self.quarantine.add(
                str(name), self.frame.clock.now_ms(), done.fields.get("error", done.outcome), done.reason, done.fields
            )
            _log.error(
                f"{name} is set aside after failure {entry.attempts} and tried again later "
                f"(compactd retry {name} does so now): {done.reason}",
                extra={"fields": {"partition": str(name), **done.fields}},
            )
            self.save_quarantine()
            if done.outcome == "failed" and done.fields.get("io") == "5":
                self.frame.log_dir_failed(job.log_dir, done.reason)
        self._end_idle(job)

    def _lost(self, job: Job, reason: str) -> None:
        """Its cleaner died. Once may be chance; a log that ends whoever reads it must not end all cleaning."""
        name = job.partition
        losses = self._losses[name] = 0 if self._stopping is not None else self._losses.get(name, 0) + 1
        if losses < _MOST_LOSSES or job.gone:
            _log.warning(f"the clean of {name} is lost, it will be begun anew: {reason}")
        else:
            del self._losses[name]
            self.forced.discard(name)
            self.quarantine.add(
                str(name), self.frame.clock.now_ms(), "CleanerLostError", f"{losses} cleaners died on it: {reason}", {}
            )
            _log.error(
                f"{name} is set aside and tried again later (compactd retry {name} does so now): "
                f"{losses} cleaners died on it, the last one: {reason}",
                extra={"fields": {"partition": str(name)}},
            )
            self.save_quarantine()
        self._end(job)

    def abort(self, job: Job, reason: str) -> None:
        if not job.aborting:
            job.aborting = reason
            if job.job is not None:
                self.frame.send(job.cleaner, AbortClean(request_id=job.request_id, reason=reason))

    def _asked_for(self, job: Job) -> None:
        """What a person asked for is done. One who asked when the job had begun already wants more than that."""
        if job.forced:
            self.forced.discard(job.partition)

    def _end_idle(self, job: Job) -> None:
        """It came to nothing: the next try is not at once."""
        self._held[job.partition] = self.frame.clock.monotonic() + _HOLD_MS / 1000
        self.frame.call_later(_HOLD_MS + 1, self.consider_soon)
        self._end(job)

    def _end(self, job: Job) -> None:
        if self.jobs.get(job.partition) is job:
            del self.jobs[job.partition]
        state = self.frame.states.get(job.partition)
        if state is not None:
            self._weigh([state])
        self._share_throttle()
        self._stopped_if_idle()
        self.consider_soon()

    def _watch(self) -> None:
        """A cleaner that tells nothing of its job is replaced: its process may beat and still be stuck."""
        limit = self.frame.settings.daemon.cleaner_job_timeout_ms / 1000
        for job in list(self.jobs.values()):
            if job.job is not None and not job.swapping and self.frame.clock.monotonic() - job.heard > limit:
                job.heard = self.frame.clock.monotonic()
                self.frame.restart_worker(
                    job.cleaner, f"told nothing of the clean of {job.partition} for {limit:.0f} s"
                )

    def _stopped_if_idle(self) -> None:
        if self._stopping is not None and not self.jobs:
            stopped, self._stopping = self._stopping, lambda: None
            stopped()

    def _threads(self) -> int:
        """Of the job that begins now: its cleaner's own, and its share of those of cleaners that have nothing to do."""
        jobs = max(1, len(self.jobs))
        idle = len(self.frame.workers("cleaner")) - jobs
        return max(1, min(1 + idle // jobs, os.cpu_count() or 1))

    # ---- throttle

    def _share(self) -> float:
        running = sum(1 for job in self.jobs.values() if job.job is not None)
        return self.frame.settings.cleaner.io_max_bytes_per_second / max(1, running)

    def _share_throttle(self) -> None:
        """log.cleaner.io.max.bytes.per.second holds for all cleaners together."""
        share = CleanThrottle(bytes_per_second=self._share())
        for job in self.jobs.values():
            if job.job is not None:
                self.frame.send(job.cleaner, share)

    # ---- files

    def write_checkpoint(
        self,
        log_dir: Path,
        offsets: dict[TopicPartition, int],
        remove: Sequence[TopicPartition] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        hosted = set(self.frame.states) | set(self.offsets)

        def failed(error: Exception) -> None:
            self.frame.log_dir_failed(str(log_dir), str(error))
            if then is not None:
                then()

        self.frame.in_lane(
            LANE,
            lambda: self._checkpoints.update(log_dir, hosted, offsets, remove),
            lambda _: then() if then is not None else None,
            failed,
        )

    def save_quarantine(self) -> None:
        content = self.quarantine.snapshot()
        self.frame.in_lane(LANE, lambda: self.quarantine.save(content), lambda _: None, self._lane_failed)

    def save_pauses(self, saved: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """They hold at once; `saved`: they outlast a restart."""
        content = self.pauses.snapshot()
        self.frame.in_lane(LANE, lambda: self.pauses.save(content), lambda _: saved(), failed)

    def _lane_failed(self, error: Exception) -> None:
        _log.error(f"the cleaning side could not use its files: {error}")

    def is_paused(self, name: TopicPartition) -> bool:
        return bool(self.pauses.names & {EVERYTHING, name.topic, str(name)})


def _is_tight(log_dir: str) -> bool:
    """Whether a log dir runs short of space; one that does not answer is not chosen by it."""
    try:
        return files.free_share(log_dir) < TIGHT_SHARE
    except CompactdError:
        return False
