"""The cleans that are under way: leased to a cleaner, talked over with the owner of the log, given up, ended.

A job goes: the owner describes the log (PrepareClean, CleanJob) -> a cleaner works (CleanProgress) -> each group goes to the
owner and back (GroupReady, GroupSwapped) -> CleanDone -> the checkpoint is written. At every point somebody may die: a
cleaner's job is given to another, an owner's is given up; the checkpoint is written last, so that a clean is at worst done
again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from compactd.coordinator.cleaning.choice import round_bounds
from compactd.coordinator.cleaning.job import Job
from compactd.coordinator.cleaning.offsets import CleanOffsets
from compactd.coordinator.cleaning.quarantine import Quarantine
from compactd.coordinator.cleaning.queue import CleaningQueue
from compactd.coordinator.interfaces import Frame, WorkerId
from compactd.coordinator.logs.retention import queue_deleted
from compactd.coordinator.processes.requests import WORKER_GONE
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

_log = logging.getLogger(__name__)

_PREPARE_MS = 30_000
_SWAP_MS = 60_000
#: A log on which so many cleaners died one after the other is set aside, or the others would never get their turn.
_MOST_LOSSES = 3


class CleaningJobs:
    """See the module. On the loop's thread."""

    def __init__(
        self,
        frame: Frame,
        queue: CleaningQueue,
        offsets: CleanOffsets,
        quarantine: Quarantine,
        quarantine_changed: Callable[[], None],
        ended: Callable[[TopicPartition], None],
        consider_soon: Callable[[], None],
    ) -> None:
        """`ended` is called for each job, whatever came of it, once its cleaner is free; `consider_soon` when another log may
        be cleaned."""
        self._frame = frame
        self._queue = queue
        self._offsets = offsets
        self._quarantine = quarantine
        self._quarantine_changed = quarantine_changed
        self._ended = ended
        self._consider_soon = consider_soon
        self.running: dict[TopicPartition, Job] = {}
        #: `.deleted` files of each partition's last clean, and where it began: what undo needs.
        self.last: dict[TopicPartition, tuple[tuple[str, ...], int]] = {}
        #: How many cleaners died in a row while they had a log.
        self._losses: dict[TopicPartition, int] = {}
        self._stopping = False

    # ---- what happens

    def begin(self, name: TopicPartition, cleaner: WorkerId) -> None:
        owner = self._frame.owner_of(name)
        if owner is None:
            return
        weighed, forced = self._queue.weighed[name], name in self._queue.forced
        job = Job(name, cleaner, owner, self._frame.next_request_id(), weighed.state.log_dir, forced)
        job.heard = self._frame.clock.monotonic()
        self.running[name] = job
        prepare = PrepareClean(request_id=job.request_id, topic=name.topic, partition=name.partition, roll=forced)
        self._frame.ask(owner, prepare, lambda message: self._prepared(job, message), _PREPARE_MS)

    def received(self, worker: WorkerId, message: CleanProgress | GroupReady | CleanDone) -> None:
        """From a cleaner. What is said of a job that another has by now counts for nothing."""
        job = next((job for job in self.running.values() if job.request_id == message.request_id), None)
        if job is None or job.cleaner != worker:
            return
        job.heard = self._frame.clock.monotonic()
        if isinstance(message, CleanProgress):
            job.told(message, job.heard)
        elif isinstance(message, GroupReady):
            self._swap(job, message)
        else:
            self._done(job, message)

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        for job in list(self.running.values()):
            if job.cleaner == worker:
                self._lost(job, f"{worker} {reason}")
            elif job.owner == worker:
                self.abort(job, f"{worker}, which owns the log, {reason}")

    def partition_gone(self, name: TopicPartition) -> None:
        self.last.pop(name, None)
        self._losses.pop(name, None)
        if name in self.running:
            self.running[name].gone = True
            self.abort(self.running[name], "the partition is gone")

    def abort(self, job: Job, reason: str) -> None:
        """It ends when its cleaner, or the owner that prepares it, has said so."""
        if not job.aborting:
            job.aborting = reason
            if job.job is not None:
                self._frame.send(job.cleaner, AbortClean(request_id=job.request_id, reason=reason))

    def stop(self) -> None:
        self._stopping = True
        for job in list(self.running.values()):
            self.abort(job, "compactd stops")

    def watch(self) -> None:
        """A cleaner that tells nothing of its job is replaced: its process may beat and still be stuck."""
        limit = self._frame.settings.daemon.cleaner_job_timeout_ms / 1000
        for job in list(self.running.values()):
            if job.job is not None and not job.swapping and self._frame.clock.monotonic() - job.heard > limit:
                job.heard = self._frame.clock.monotonic()
                self._frame.restart_worker(
                    job.cleaner, f"told nothing of the clean of {job.partition} for {limit:.0f} s"
                )

    # ---- the way of a job

    def _prepared(self, job: Job, message: Message) -> None:
        if self.running.get(job.partition) is not job:
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
        weighed = self._queue.weighed.get(job.partition)
        checkpoint = self._offsets.known.get(job.partition)
        bounds = round_bounds(weighed, message, checkpoint, job.forced) if weighed else None
        if bounds is None:
            self._asked_for(job)
            self._end_idle(job)
            return
        cleaner = self._frame.settings.cleaner
        self._offsets.clean_began(job.partition, message.log_end_offset)
        job.job = msgspec.structs.replace(
            message,
            first_dirty_offset=bounds[0],
            first_uncleanable_offset=bounds[1],
            map_memory_bytes=cleaner.dedupe_buffer_size // max(1, cleaner.threads),
            map_load_factor=cleaner.load_factor,
            bytes_per_second=self._share(),
            threads=self._threads(),
        )
        if not self._frame.send(job.cleaner, job.job):
            self._end(job)
            return
        self.share_throttle()

    def _swap(self, job: Job, ready: GroupReady) -> None:
        if job.aborting:
            # A partition that is gone may have a namesake by now.
            answer = GroupSwapped(
                request_id=ready.request_id, group_id=ready.group_id, accepted=False, reason=job.aborting
            )
            self._frame.send(job.cleaner, answer)
            return
        job.swapping = True

        def answered(message: Message) -> None:
            job.swapping, job.heard = False, self._frame.clock.monotonic()
            if isinstance(message, GroupSwapped):
                answer = message
                if message.deleted:
                    job.deleted.extend(message.deleted)
                    queue_deleted(self._frame, message.deleted)
            else:
                reason = message.message if isinstance(message, Failed) else "an odd answer"
                answer = GroupSwapped(
                    request_id=ready.request_id, group_id=ready.group_id, accepted=False, reason=reason, unknown=True
                )
            self._frame.send(job.cleaner, answer)

        self._frame.ask(job.owner, ready, answered, _SWAP_MS)

    def _done(self, job: Job, done: CleanDone) -> None:
        name = job.partition
        if job.gone:
            self._end(job)
            return
        self._losses.pop(name, None)
        if done.outcome == "cleaned" and job.job is not None:
            self.last[name] = (tuple(job.deleted), job.job.first_dirty_offset)
            if read := done.stats.get("bytes_read"):
                self._queue.kept[name] = done.stats.get("bytes_written", read) / read
            if done.next_dirty_offset >= job.job.first_uncleanable_offset:
                self._asked_for(job)
            if self._quarantine.remove([str(name)]):
                self._quarantine_changed()
            self._offsets.set(name, Path(job.log_dir), done.next_dirty_offset, then=lambda: self._end(job))
            return
        if done.outcome == "aborted":
            _log.info(f"the clean of {name} was given up: {done.reason}")
        else:
            self._asked_for(job)
            entry = self._quarantine.add(
                str(name), self._frame.clock.now_ms(), done.fields.get("error", done.outcome), done.reason, done.fields
            )
            _log.error(
                f"{name} is set aside after failure {entry.attempts} and tried again later "
                f"(compactd retry {name} does so now): {done.reason}",
                extra={"fields": {"partition": str(name), **done.fields}},
            )
            self._quarantine_changed()
            if done.outcome == "failed" and done.fields.get("io") == "5":
                self._frame.log_dir_failed(job.log_dir, done.reason)
        self._end_idle(job)

    def _lost(self, job: Job, reason: str) -> None:
        """Its cleaner died. Once may be chance; a log that ends whoever reads it must not end all cleaning."""
        name = job.partition
        losses = self._losses[name] = 0 if self._stopping else self._losses.get(name, 0) + 1
        if losses < _MOST_LOSSES or job.gone:
            _log.warning(f"the clean of {name} is lost, it will be begun anew: {reason}")
        else:
            del self._losses[name]
            self._queue.forced.discard(name)
            self._quarantine.add(
                str(name), self._frame.clock.now_ms(), "CleanerLostError", f"{losses} cleaners died on it: {reason}", {}
            )
            _log.error(
                f"{name} is set aside and tried again later (compactd retry {name} does so now): "
                f"{losses} cleaners died on it, the last one: {reason}",
                extra={"fields": {"partition": str(name)}},
            )
            self._quarantine_changed()
        self._end(job)

    def _asked_for(self, job: Job) -> None:
        """What a person asked for is done. One who asked when the job had begun already wants more than that."""
        if job.forced:
            self._queue.forced.discard(job.partition)

    def _end_idle(self, job: Job) -> None:
        """It came to nothing: the next try is not at once."""
        self._frame.call_later(self._queue.hold(job.partition), self._consider_soon)
        self._end(job)

    def _end(self, job: Job) -> None:
        if self.running.get(job.partition) is job:
            del self.running[job.partition]
        self.share_throttle()
        self._ended(job.partition)

    # ---- what they share

    def _threads(self) -> int:
        """Of the job that begins now: its cleaner's own, and its share of those of cleaners that have nothing to do."""
        jobs = max(1, len(self.running))
        idle = len(self._frame.workers("cleaner")) - jobs
        return max(1, min(1 + idle // jobs, os.cpu_count() or 1))

    def _share(self) -> float:
        running = sum(1 for job in self.running.values() if job.job is not None)
        return self._frame.settings.cleaner.io_max_bytes_per_second / max(1, running)

    def share_throttle(self) -> None:
        """log.cleaner.io.max.bytes.per.second holds for all cleaners together."""
        share = CleanThrottle(bytes_per_second=self._share())
        for job in self.running.values():
            if job.job is not None:
                self._frame.send(job.cleaner, share)
