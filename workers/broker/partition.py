"""One partition that this broker owns: its log, who may change it when, and who waits for it.

Everything here runs on the broker's loop. The log is changed under `lock`: small appends at once on the loop, everything
that may take longer (large appends, fsyncs, swaps, deletions) in a thread while the lock is held. Reads need no lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Literal, Protocol, TypeVar

from compactd.config.errors import CompactdError, LogOfflineError, StorageIOError
from compactd.storage.log import Appended, Origin, PartitionLog
from compactd.storage.names import TopicPartition
from compactd.storage.validator import Buffer
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.clock import Clock
from compactd.workers.partition_messages import PartitionState, SegmentState

_T = TypeVar("_T")

#: Appends of this size and above go to a thread: checking and writing them would hold the loop for a millisecond or so.
LARGE_APPEND = 256 << 10


class Watcher(Protocol):
    """A fetch that waits for data."""

    def appended(self, size: int) -> None:
        """So many bytes came, which it may or may not be allowed to see yet."""

    def changed(self) -> None:
        """Look again: a segment was rolled, a transaction ended, the start moved, the partition went away."""


class Owner(Protocol):
    """What a partition tells the set of partitions."""

    @property
    def executor(self) -> Executor: ...
    @property
    def clock(self) -> Clock: ...
    def touched(self, partition: Partition) -> None:
        """Its state has changed."""

    def failed(self, partition: Partition, error: StorageIOError) -> None:
        """Its log dir had an I/O error."""


class Partition:
    """Offsets absolute, times ms."""

    def __init__(self, owner: Owner, log: PartitionLog, log_dir: str, leader_epoch: int) -> None:
        self.owner = owner
        self.log = log
        self.log_dir = log_dir
        self.leader_epoch = leader_epoch
        self.topic_partition: TopicPartition = log.topic_partition
        #: Why nobody is served any more; NONE while it is.
        self.error = ErrorCode.NONE
        self.lock = asyncio.Lock()
        self.watchers: set[Watcher] = set()
        #: The log dir that a copy is being made in (see `moves`); "": it stays where it is.
        self.moving_to = ""
        #: What the last round of cleaning replaced, for undo (see `cleaning`).
        self.last_clean: Any = None
        self._flush: asyncio.Task[None] | None = None
        self._closed: tuple[Any, tuple[SegmentState, ...]] = (None, ())

    def __str__(self) -> str:
        return str(self.topic_partition)

    # ---- changing the log

    async def append(
        self,
        data: Buffer,
        *,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
        wait_for_disk: bool = True,
    ) -> Appended:
        """Appends batches as leader and lets consumers see them. Returns when the topic's flush settings are met.

        `data` that can be written to is changed in place. Raises LogError and its kind, StorageIOError.
        """
        if len(data) < LARGE_APPEND and not self.lock.locked():
            done = self.append_now(data, origin, transaction_version)
        else:
            done = await asyncio.shield(
                asyncio.ensure_future(self._append_in_thread(data, origin, transaction_version))
            )
        if done.flush_due and wait_for_disk:
            await self.flushed_to(done.last_offset + 1)
        return done

    async def _append_in_thread(self, data: Buffer, origin: Origin, transaction_version: int) -> Appended:
        async with self.lock:
            done = await self._in_thread(lambda: self._write(data, origin, transaction_version))
            self._appended(done, len(data))
            return done

    def append_now(self, data: Buffer, origin: Origin = Origin.CLIENT, transaction_version: int = 0) -> Appended:
        """As `append`, at once; only while `lock` is free. `Appended.flush_due`: await `flushed_to` before answering."""
        done = self._write(data, origin, transaction_version)
        self._appended(done, len(data))
        return done

    async def append_marker(
        self,
        kind: Literal["commit", "abort"],
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        transaction_version: int = 1,
    ) -> Appended:
        """Ends a producer's transaction here."""
        async with self.lock:
            self._check()
            try:
                done = self.log.append_marker(
                    kind,
                    producer_id,
                    producer_epoch,
                    coordinator_epoch=coordinator_epoch,
                    leader_epoch=self.leader_epoch,
                    now_ms=self.owner.clock.now_ms(),
                    transaction_version=transaction_version,
                )
            except (StorageIOError, LogOfflineError) as error:
                self._noticed(error)
                raise
            self._appended(done, 0)
        self.changed()
        if done.flush_due:
            await self.flushed_to(done.last_offset + 1)
        return done

    async def exclusive(self, work: Callable[[PartitionLog], _T]) -> _T:
        """Runs `work` on the log in a thread, alone. Goes on to its end even if the caller is cancelled."""

        async def run() -> _T:
            async with self.lock:
                self._check()
                return await self._in_thread(lambda: work(self.log))

        return await asyncio.shield(asyncio.ensure_future(run()))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """To be called with the lock held, in a task that nobody cancels: the lock outlasts the thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.owner.executor, work)
        except (StorageIOError, LogOfflineError) as error:
            self._noticed(error)
            raise

    def _write(self, data: Buffer, origin: Origin, transaction_version: int) -> Appended:
        if self.error:
            self._check()
        try:
            return self.log.append_as_leader(
                data,
                leader_epoch=self.leader_epoch,
                now_ms=self.owner.clock.now_ms(),
                origin=origin,
                transaction_version=transaction_version,
            )
        except (StorageIOError, LogOfflineError) as error:
            if not self.lock.locked():  # else this is a thread, and who waits for it tells the owner
                self._noticed(error)
            raise

    def _noticed(self, error: StorageIOError | LogOfflineError) -> None:
        """Tells the owner of an I/O error, also of one that a background flush met before."""
        cause = error if isinstance(error, StorageIOError) else self.log.failure
        if cause is not None and not self.error:
            self.owner.failed(self, cause)

    def _check(self) -> None:
        if self.error:
            raise LogOfflineError(path=self.log_dir, detail="its log dir is offline")

    def _appended(self, done: Appended, size: int) -> None:
        log = self.log
        if not done.flush_due:
            before = log.last_stable_offset if self.watchers else 0
            log.update_high_watermark(log.local.end.offset)
            if self.watchers:
                self._tell(size, before)
        self.owner.touched(self)

    def _tell(self, size: int, stable_before: int) -> None:
        if not self.watchers:
            return
        moved_far = self.log.last_stable_offset - stable_before > 0 and not size
        for watcher in tuple(self.watchers):
            if moved_far:
                watcher.changed()
            else:
                watcher.appended(size)

    def changed(self) -> None:
        """Has everybody who waits look again."""
        for watcher in tuple(self.watchers):
            watcher.changed()

    # ---- the disk

    async def flushed_to(self, offset: int) -> None:
        """Waits until everything below `offset` is on disk: one fsync for as many appends as wait. StorageIOError."""
        while self.log.recovery_point < min(offset, self.log.log_end_offset):
            if self._flush is None or self._flush.done():
                self._flush = asyncio.get_running_loop().create_task(self._flush_once())
            await asyncio.shield(self._flush)

    async def _flush_once(self) -> None:
        now_ms = self.owner.clock.now_ms
        async with self.lock:
            self._check()
            log = self.log
            job = log.flush_job()
        if job is not None:
            failure: StorageIOError | None = None
            try:
                await until_done(asyncio.get_running_loop().run_in_executor(self.owner.executor, job.run))
            except StorageIOError as error:
                failure = error
            async with self.lock:
                log.flushed(job, now_ms(), failure)
            if log is not self.log:
                return  # it was moved to another log dir meanwhile, and is on disk there
            if failure is not None:
                self._noticed(failure)
                raise failure
        before = self.log.last_stable_offset
        if self.log.high_watermark < self.log.recovery_point:
            self.log.update_high_watermark(self.log.recovery_point)
        if self.log.last_stable_offset > before:
            self.changed()
        self.owner.touched(self)

    def moved(self, log: PartitionLog, log_dir: str) -> None:
        """The partition lies in another log dir from now on, all of it on disk. Called with the lock held."""
        log.update_high_watermark(log.log_end_offset)
        log.update_config(self.log.config)  # it may have changed since the copy was loaded
        self.log, self.log_dir, self.moving_to = log, log_dir, ""
        self.last_clean = None
        self._closed = (None, ())
        self.changed()

    # ---- what others see

    def state(self) -> PartitionState:
        """For the coordinator. May read files the first time a closed segment is looked at."""
        log = self.log
        view = log.view
        offsets = log.offsets()
        if self._closed[0] is not view:
            self._closed = (view, tuple(_segment_state(segment) for segment in view.segments[:-1]))
        producers = log.producers
        unstable = log.first_unstable_offset
        open_transaction = None
        if unstable is not None:
            first = min(producers.ongoing_txns, default=None)
            if first is not None:
                open_transaction = (producers.ongoing_txns[first], first)
        active = view.segments[-1]
        return PartitionState(
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            log_dir=self.log_dir,
            log_start_offset=offsets.log_start,
            log_end_offset=offsets.log_end,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable,
            recovery_point=log.recovery_point,
            active_base_offset=active.base_offset,
            active_size=active.size,
            active_largest_timestamp=active.largest_timestamp,
            closed=self._closed[1],
            open_transaction=open_transaction,
            moving_to=self.moving_to,
        )

    def doomed_paths(self) -> list[str]:
        """Paths of `.deleted` files that the log handed out since the last call: the deleter's from now on."""
        doomed, self.log.local.doomed = self.log.local.doomed, []
        return [f"{self.log.local.directory}/{name}" for each in doomed for name in each.names]

    def fail(self, error: ErrorCode) -> None:
        """Serves nobody any more."""
        self.error = error
        self.changed()


def _segment_state(segment: Any) -> SegmentState:
    return SegmentState(
        base_offset=segment.base_offset,
        size=segment.size,
        largest_timestamp=segment.largest_timestamp,
        first_batch_timestamp=segment.first_batch_timestamp,
    )


async def until_done(future: asyncio.Future[_T]) -> _T:
    """Waits to the end, also over a cancellation, which is raised afterwards."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done():
                break
            cancelled = True
        except CompactdError:
            break
    if cancelled:
        raise asyncio.CancelledError
    return future.result()
