"""All partitions that this broker owns: loading and making them, telling the coordinator of them, closing them in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

from compactd.config.errors import CompactdError, LogError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.log import PartitionLog
from compactd.storage.log_exchange import forget_origin
from compactd.workers.broker import cleaning, collector
from compactd.workers.broker.context import Sends
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.loading import Loading, LogLoading
from compactd.workers.broker.partition import Partition
from compactd.workers.cleaning_messages import (
    GroupReady,
    GroupSwapped,
    LetGo,
    LetGoDone,
    PrepareClean,
    UndoClean,
    UndoDone,
)
from compactd.workers.clock import Clock
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import (
    AssignPartitions,
    ConfigChanged,
    DirectoriesRetired,
    LogDirFailed,
    PartitionAssignment,
    PartitionsReady,
    PartitionsReleased,
    PartitionState,
    PartitionStates,
    ReleasePartitions,
)

_LOGGER = logging.getLogger(__name__)

#: Changed states are told after this long, all together.
TELL_SECONDS = 1.0
#: flush.ms is looked at this often, for topics that have it, unless log.flush.scheduler.interval.ms says how often.
FLUSH_CHECK_SECONDS = 1.0
#: Beyond this many ms a flush.ms is none.
_NEVER_MS = 1 << 60


class Partitions:
    """Belongs to the broker's loop; see `partition.Partition` for what runs in threads."""

    def __init__(self, channel: Sends, clock: Clock, executor: Executor, loading: Loading | None = None) -> None:
        self.channel = channel
        self.clock = clock
        self.executor = executor
        self.logs = LogLoading(loading or Loading(), clock, self._in_background)
        self.offline_log_dirs: set[str] = set()
        self._by_key: dict[tuple[str, int], Partition] = {}
        self._changed: set[Partition] = set()
        self._telling: asyncio.TimerHandle | None = None
        #: Partitions whose topic has a flush.ms.
        self._timed: set[Partition] = set()
        self._flushing: asyncio.TimerHandle | None = None
        self._flush_check_seconds = FLUSH_CHECK_SECONDS
        #: Called on the loop with each partition that is ready, and with each that is gone (groups and transactions).
        self.on_ready: list[Callable[[Partition], None]] = []
        self.on_gone: list[Callable[[Partition], None]] = []
        #: Called on the loop with each log dir that goes offline.
        self.on_log_dir_failed: list[Callable[[str], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def verify_transactions(self, enable: bool) -> None:
        """transaction.partition.verification.enable, of all logs."""
        self.logs.resources.verifies_transactions = enable

    # ---- for handlers

    def get(self, topic: str, partition: int) -> Partition | None:
        """The partition, if this broker owns it and has loaded it."""
        return self._by_key.get((topic, partition))

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    # ---- partition.Owner

    def touched(self, partition: Partition) -> None:
        """Its state goes to the coordinator within TELL_SECONDS."""
        self._changed.add(partition)
        if self._telling is None and not self._closing:
            self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell)

    def failed(self, partition: Partition, error: StorageIOError) -> None:
        """An I/O error takes the whole log dir offline, as in Kafka."""
        _LOGGER.error("%s: %s; the log dir %s goes offline", partition, error, partition.log_dir)
        if partition.log_dir not in self.offline_log_dirs:
            self.channel.send(LogDirFailed(log_dir=partition.log_dir, reason=str(error)))
        self.log_dir_failed(partition.log_dir)

    def log_dir_failed(self, log_dir: str) -> None:
        """Nothing of this log dir is served any more."""
        self.offline_log_dirs.add(log_dir)
        for partition in self:
            if partition.log_dir == log_dir and not partition.error:
                partition.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        for call in self.on_log_dir_failed:
            call(log_dir)

    # ---- telling

    def tell_now(self, partition: Partition) -> None:
        """Its state goes to the coordinator at once."""
        self._changed.discard(partition)
        if states := self._states([partition]):
            self.channel.send(PartitionStates(states=tuple(states)))

    def _tell(self) -> None:
        self._telling = None
        changed, self._changed = self._changed, set()
        states = self._states(partition for partition in changed if not partition.error)
        if states:
            self.channel.send(PartitionStates(states=tuple(states)))

    def _states(self, partitions: Iterable[Partition]) -> list[PartitionState]:
        found = []
        for partition in partitions:
            try:
                found.append(partition.state())
            except FileNotFoundError:  # a segment went while we looked: whoever took it tells again
                self.touched(partition)
            except StorageIOError as error:
                self.failed(partition, error)
            except CompactdError as error:
                _LOGGER.warning("the state of %s cannot be told: %s", partition, error)
        return found

    # ---- messages of the coordinator

    def received(self, message: object) -> bool:
        """Takes a message that concerns partitions; False: it does not. Slow ones go on in tasks."""
        match message:
            case AssignPartitions():
                self._start(self._assign(message))
            case ReleasePartitions():
                self._start(self._release(message))
            case ConfigChanged():
                self._configure(message.configs)
            case LogDirFailed():
                self.log_dir_failed(message.log_dir)
            case PrepareClean():
                self._start(self._prepare(message))
            case GroupReady():
                self._start(self._swap(message))
            case UndoClean():
                self._start(self._undo(message))
            case LetGo():
                self._start(self._let_go(message))
            case _:
                return False
        return True

    def _start(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOGGER.error("a bug in serving the coordinator", exc_info=task.exception())

    async def _assign(self, message: AssignPartitions) -> None:
        failed: dict[str, str] = {}
        by_dir: dict[str, list[PartitionAssignment]] = {}
        for assignment in message.partitions:
            known = self._by_key.get((assignment.topic, assignment.partition))
            if known is not None:
                known.leader_epoch = assignment.leader_epoch
            else:
                by_dir.setdefault(assignment.log_dir, []).append(assignment)
        loop = asyncio.get_running_loop()
        jobs = []
        for log_dir, assignments in by_dir.items():
            clean = log_dir in message.clean_log_dirs
            threads = self.logs.loading.threads_per_dir
            for number in range(min(threads, len(assignments))):
                share = assignments[number::threads]
                jobs.append(loop.run_in_executor(self.executor, self.logs.load_all, share, clean))
        ready = []
        for outcomes in await asyncio.gather(*jobs):
            for assignment, log, error, retired in outcomes:
                if log is not None:
                    ready.append(self._add(assignment, log))
                    if retired:
                        self.channel.send(DirectoriesRetired(topic=assignment.topic, directories=retired))
                        await loop.run_in_executor(self.executor, forget_origin, log.directory)
                    continue
                name = f"{assignment.topic}-{assignment.partition}"
                failed[name] = str(error)
                _LOGGER.error("%s was not loaded: %s", name, error)
                if isinstance(error, StorageIOError):
                    self.log_dir_error(assignment.log_dir, error)
        wanted = [self._by_key.get((each.topic, each.partition)) for each in message.partitions]
        states = self._states(each for each in wanted if each is not None)
        self.channel.send(PartitionsReady(request_id=message.request_id, states=tuple(states), failed=failed))
        for partition in ready:
            for call in self.on_ready:
                call(partition)
        collector.settle()

    def log_dir_error(self, log_dir: str, error: StorageIOError) -> None:
        """An I/O error of a log dir takes it offline."""
        if log_dir not in self.offline_log_dirs:
            self.channel.send(LogDirFailed(log_dir=log_dir, reason=str(error)))
        self.log_dir_failed(log_dir)

    def _in_background(self, task: Callable[[], None]) -> None:
        self.executor.submit(task)

    def _add(self, assignment: PartitionAssignment, log: PartitionLog) -> Partition:
        partition = Partition(self, log, assignment.log_dir, assignment.leader_epoch)
        self._by_key[assignment.topic, assignment.partition] = partition
        if assignment.log_dir in self.offline_log_dirs:
            partition.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        self._note_flush_ms(partition)
        return partition

    async def _release(self, message: ReleasePartitions) -> None:
        directories = []
        for name in message.partitions:
            topic, _, number = name.rpartition("-")
            partition = self._by_key.pop((topic, int(number)), None)
            if partition is None:
                continue
            self._forget(partition)
            target = names.delete_dir_name(partition.topic_partition)

            def let_go(log: PartitionLog, target: str = target) -> str:
                log.rename_dir(target, keep_using=False)
                log.close(orderly=False)
                return str(log.directory)

            try:
                directories.append(await partition.exclusive(let_go))
            except CompactdError as error:
                _LOGGER.error("%s could not be put aside for deletion: %s", name, error)
            partition.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.channel.send(PartitionsReleased(request_id=message.request_id, directories=tuple(directories)))

    def _forget(self, partition: Partition) -> None:
        self._changed.discard(partition)
        self._timed.discard(partition)
        for call in self.on_gone:
            call(partition)

    def _configure(self, configs: dict[str, TopicConfig]) -> None:
        for partition in self:
            config = configs.get(partition.topic_partition.topic)
            if config is not None:
                partition.log.update_config(config)
                self._note_flush_ms(partition)

    # ---- cleaning and retention

    def _owned(self, request_id: int, topic: str, number: int) -> Partition | None:
        partition = self.get(topic, number)
        if partition is None or partition.error:
            self.channel.send(
                Failed(
                    request_id=request_id,
                    error=LogError.__name__,
                    message=f"{topic}-{number} is not served by this broker",
                )
            )
            return None
        return partition

    async def _prepare(self, message: PrepareClean) -> None:
        partition = self._owned(message.request_id, message.topic, message.partition)
        if partition is None:
            return
        try:
            _check_stays(partition)
            self.channel.send(await cleaning.prepare(partition, message))
        except CompactdError as error:
            self.channel.send(_failed(message.request_id, error))

    async def _swap(self, message: GroupReady) -> None:
        partition = self.get(message.topic, message.partition)
        if partition is None or partition.error:
            answer = GroupSwapped(
                request_id=message.request_id,
                group_id=message.group_id,
                accepted=False,
                reason="the partition is not served any more",
            )
        elif partition.moving_to:
            answer = GroupSwapped(
                request_id=message.request_id,
                group_id=message.group_id,
                accepted=False,
                reason=f"it is being moved to {partition.moving_to}",
            )
        else:
            answer = await cleaning.swap(partition, message)
        self.channel.send(answer)

    async def _undo(self, message: UndoClean) -> None:
        partition = self.get(message.topic, message.partition)
        if partition is None or partition.error:
            refused = f"{message.topic}-{message.partition} is not served by this broker"
            self.channel.send(UndoDone(request_id=message.request_id, restored=(), refused=refused))
        elif partition.moving_to:
            refused = f"it is being moved to {partition.moving_to}"
            self.channel.send(UndoDone(request_id=message.request_id, restored=(), refused=refused))
        else:
            self.channel.send(await cleaning.undo(partition, message))

    async def _let_go(self, message: LetGo) -> None:
        deleted: list[str] = []
        failed: dict[str, str] = {}
        for name in message.partitions:
            topic, _, number = name.rpartition("-")
            partition = self.get(topic, int(number))
            if partition is None or partition.error:
                failed[name] = "not served by this broker"
                continue
            try:
                await partition.exclusive(lambda log: log.delete_old_segments(message.now_ms))
            except CompactdError as error:
                failed[name] = str(error)
            deleted += partition.doomed_paths()
            partition.changed()
            self.touched(partition)
        self.channel.send(LetGoDone(request_id=message.request_id, deleted=tuple(deleted), failed=failed))

    def reconfigure(self, loading: Loading) -> None:
        """From now on logs are loaded so, and producers remembered for so long."""
        if loading == self.logs.loading:
            return
        self.logs.loading = loading
        for partition in self:
            if not partition.error:
                partition.log.producers.expiration_ms = loading.producer_expiration_ms

    async def expire_producers(self) -> None:
        """Forgets producers that have been silent for producer.id.expiration.ms."""
        now_ms = self.clock.now_ms()
        for partition in self:
            if not partition.error:
                async with partition.lock:
                    partition.log.remove_expired_producers(now_ms)

    # ---- flush.ms

    def check_flushes_every(self, ms: int) -> None:
        """log.flush.scheduler.interval.ms. What Kafka takes for "never" leaves it at a second: flush.ms is kept here."""
        if 0 < ms < _NEVER_MS:
            self._flush_check_seconds = ms / 1000

    def _note_flush_ms(self, partition: Partition) -> None:
        if partition.log.config.flush_ms < _NEVER_MS:
            self._timed.add(partition)
            if self._flushing is None and not self._closing:
                self._flushing = asyncio.get_running_loop().call_later(self._flush_check_seconds, self._flush_timed)
        else:
            self._timed.discard(partition)

    def _flush_timed(self) -> None:
        self._flushing = None
        now_ms = self.clock.now_ms()
        for partition in self._timed:
            if not partition.error and partition.log.flush_due(now_ms):
                self._start(_flush(partition))
        if self._timed and not self._closing:
            self._flushing = asyncio.get_running_loop().call_later(self._flush_check_seconds, self._flush_timed)

    # ---- the end

    async def close(self) -> tuple[str, ...]:
        """Closes every log in good order; returns the log dirs in which nothing went wrong.

        The last states, with recovery points at the logs' ends, go to the coordinator before.
        """
        self._closing = True
        for timer in (self._telling, self._flushing):
            if timer is not None:
                timer.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        clean = {partition.log_dir for partition in self} - self.offline_log_dirs
        closed = await asyncio.gather(*(self._close_one(partition) for partition in self))
        states = []
        for partition, is_closed in zip(self, closed, strict=True):
            if is_closed:
                states += self._states([partition])
            else:
                clean.discard(partition.log_dir)
        if states:
            self.channel.send(PartitionStates(states=tuple(states)))
        self._by_key.clear()
        return tuple(sorted(clean))

    async def _close_one(self, partition: Partition) -> bool:
        orderly = not partition.error
        loop = asyncio.get_running_loop()
        async with partition.lock:
            try:
                await loop.run_in_executor(self.executor, lambda: partition.log.close(orderly=orderly))
            except CompactdError as error:
                _LOGGER.error("%s was not closed in good order: %s", partition, error)
                orderly = False
        return orderly


async def _flush(partition: Partition) -> None:
    try:
        await partition.flushed_to(partition.log.log_end_offset)
    except CompactdError as error:
        _LOGGER.error("%s was not flushed: %s", partition, error)


def _check_stays(partition: Partition) -> None:
    """LogError while it is on its way to another log dir: nothing is cleaned meanwhile (facts: kafka-storage 9)."""
    if partition.moving_to:
        raise LogError(path=str(partition.log.directory), detail=f"it is being moved to {partition.moving_to}")


def _failed(request_id: int, error: CompactdError) -> Failed:
    fields = {name: str(value) for name, value in error.fields.items()}
    return Failed(request_id=request_id, error=type(error).__name__, message=str(error), fields=fields)
