"""Partitions on their way to another log dir (AlterReplicaLogDirs; KIP-113, 858; facts: kafka-protocol 11, kafka-storage 9).

A move is a task: the copy follows the log, in threads, while clients write and read on. When it is level, appends wait for
the last bytes, for the record in the catalogue that says where the partition lies, and for two renames: some ten ms. Then
the copy is the log. Produces are never refused by it, and the order of records is that of the one log.

    copy behind the log      any end leaves the log as it is; the next start goes on with the copy
    appends wait             storage.log_copy tells what each further step leaves

A partition that is moved is not cleaned: the coordinator knows from its state, and this broker refuses what comes all the
same. A copy whose disk is full is given up, without taking its log dir offline; any other I/O error there does so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from compactd.config.errors import CompactdError, StorageIOError
from compactd.storage import files, names
from compactd.storage.log import PartitionLog
from compactd.storage.log_copy import CHUNK, LogCopy
from compactd.storage.log_exchange import directories_named, exchange, forget_origin
from compactd.storage.names import TopicPartition
from compactd.workers.broker.context import CatalogueRefusedError
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.move_throttle import UNLIMITED, MoveThrottle
from compactd.workers.broker.partition import until_done
from compactd.workers.catalogue_messages import AssignLogDirs, MoveReplica, MoveResults
from compactd.workers.partition_messages import DirectoriesRetired

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.partition import Partition

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Kafka's dynamic setting that holds all moves of a broker to a rate; not one of the file.
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
#: A copy that waits for space looks again after so long.
SPACE_SECONDS = 1.0
#: Bytes between two looks at the space that is left.
_LOOK_EVERY = 16 << 20
#: First metadata.version whose records tell the log dir of a partition.
_DIRECTORIES = 17


class MoveGivenUpError(CompactdError):
    """The move of {partition} to {log_dir} was given up: {reason}."""


class _Leftovers(NamedTuple):
    """Directories of an earlier run by partition: copies that were being made, and what waits for its removal."""

    copies: dict[TopicPartition, list[Path]]
    retired: dict[TopicPartition, list[Path]]


class Move:
    """One partition on its way."""

    def __init__(self, partition: Partition, log_dir: str, copy: LogCopy) -> None:
        self.partition = partition
        self.log_dir = log_dir
        self.copy = copy
        #: Why it is to end; "": it goes on.
        self.cancelled = ""
        #: Appends wait, and the exchange is under way: it is too late to cancel.
        self.is_ending = False
        self.task: asyncio.Task[None] | None = None
        #: What it waits for, said once.
        self.waits_for = ""

    def check(self) -> None:
        """MoveGivenUpError once it is cancelled."""
        if self.cancelled or self.partition.error:
            reason = self.cancelled or "the partition is offline"
            raise MoveGivenUpError(partition=str(self.partition), log_dir=self.log_dir, reason=reason)


class Moves:
    """`context.part(Moves)`: the moves of this broker's partitions. On the broker's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._partitions = context.partitions
        self._by_partition: dict[Partition, Move] = {}
        self._throttle = MoveThrottle(self._rate)
        threads = context.config.num_replica_alter_log_dirs_threads or len(context.storage.log_dirs)
        self._turns = asyncio.Semaphore(max(threads, 1))
        #: What an earlier run left; None: not looked for yet.
        self._left: asyncio.Task[_Leftovers] | None = None
        #: Partitions whose copies are to be looked for.
        self._arrived: list[Partition] = []
        self._stopping = False
        self._partitions.on_ready.append(self._ready)
        self._partitions.on_gone.append(self._gone)
        self._partitions.on_log_dir_failed.append(self._log_dir_failed)
        context.on_stop(self._stop)

    # ---- for handlers

    def of(self, partition: Partition) -> Move | None:
        """The partition's move, if there is one."""
        return self._by_partition.get(partition)

    def __iter__(self) -> Iterator[Move]:
        return iter(list(self._by_partition.values()))

    async def to(self, partition: Partition, log_dir: str) -> None:
        """Moves a partition to a log dir that is online: returns when the copy has begun.

        To where it lies: whatever move there is ends. To where it is moved already: nothing. Raises StorageIOError.
        """
        await self._leftovers()
        while (known := self._by_partition.get(partition)) is not None:
            if known.log_dir == log_dir and not known.cancelled:
                return
            await self._end(known, f"it is to lie in {log_dir}")
        if partition.log_dir != log_dir and not self._stopping:
            name = names.future_dir_name(partition.topic_partition)
            await self._begin(partition, log_dir, Path(log_dir) / name)

    # ---- life

    async def _begin(self, partition: Partition, log_dir: str, directory: Path) -> None:
        move = Move(partition, log_dir, LogCopy(partition.log, directory))
        self._by_partition[partition] = move
        partition.moving_to = log_dir
        try:
            await self._in_thread(move.copy.begin)
        except CompactdError as error:
            self._failed(move, error)
            await self._drop(move)
            raise
        self._partitions.tell_now(partition)
        _LOGGER.info("%s is moved from %s to %s", partition, partition.log_dir, log_dir)
        move.task = self._context.loop.create_task(self._run(move))

    async def _run(self, move: Move) -> None:
        """The whole move. Its end, whatever it is, is in the log."""
        try:
            await self._wait_for_space(move, move.copy.log.size)
            async with self._turns:
                await self._follow(move)
                await self._complete(move)
        except asyncio.CancelledError:
            move.copy.close()
            raise
        except CompactdError as error:
            self._failed(move, error)
            await self._drop(move)
        except Exception:
            _LOGGER.exception("a bug in moving %s to %s", move.partition, move.log_dir)
            await self._drop(move)

    async def _end(self, move: Move, reason: str) -> None:
        """Cancels a move, or waits for its end where it is too late for that."""
        move.cancelled = move.cancelled or reason
        self._throttle.wake()
        if move.task is not None:
            await asyncio.wait([move.task])
        else:
            await asyncio.sleep(0.01)  # it is just being begun, or dropped

    async def _follow(self, move: Move) -> None:
        """Until the copy is level with the log, and on disk."""
        copy, moved = move.copy, 0
        while True:
            move.check()
            count = await self._in_thread(partial(copy.step, self._throttle.chunk(CHUNK)))
            if count == 0:
                break
            moved += count
            if moved >= _LOOK_EVERY:
                moved = 0
                await self._wait_for_space(move, 0)
            await self._throttle.passed(count, move.check)
        await self._in_thread(copy.sync)
        # What came during the fsync; then little is left for the time in which appends wait.
        while await self._in_thread(partial(copy.step, CHUNK)):
            move.check()

    async def _wait_for_space(self, move: Move, needed: int) -> None:
        """`needed`: bytes that the copy will have in the end, 0 where that was looked at before."""
        margin = self._context.config.cleaner_free_space_margin
        while True:
            move.check()
            free, there = await self._in_thread(lambda: (files.free_bytes(move.log_dir), move.copy.bytes_on_disk()))
            left = max(needed - there, 0)
            if free >= left + margin:
                break
            if not move.waits_for:
                move.waits_for = f"{left + margin:,} bytes, {free:,} are free"
                _LOGGER.warning(
                    "the move of %s to %s waits for space: it needs %s", move.partition, move.log_dir, move.waits_for
                )
            await self._throttle.pause(SPACE_SECONDS)
        if move.waits_for:
            move.waits_for = ""
            _LOGGER.info("the move of %s to %s goes on", move.partition, move.log_dir)

    async def _complete(self, move: Move) -> None:
        """The copy takes the log's place."""
        partition, copy, source = move.partition, move.copy, move.partition.log_dir
        async with partition.lock:
            move.check()
            move.is_ending = True
            log = partition.log
            await self._in_thread(copy.finish)
            moved = await self._in_thread(lambda: self._partitions.logs.open_copy(copy))
            try:
                recorded = await self._record(partition, move.log_dir)
                problem = await self._exchange(move, log, moved, recorded)
            except CompactdError:
                moved.close(orderly=False)
                raise
            partition.moved(moved, move.log_dir)
            del self._by_partition[partition]
        log.close(orderly=False)
        self._partitions.tell_now(partition)
        _LOGGER.info("%s lies in %s now", partition, move.log_dir)
        if problem is not None:
            self._partitions.log_dir_error(source, problem)
            return
        self._retired(partition, [str(log.directory)])
        await self._in_thread(lambda: forget_origin(moved.directory))

    async def _exchange(
        self, move: Move, log: PartitionLog, moved: PartitionLog, recorded: bool
    ) -> StorageIOError | None:
        """See log_exchange.exchange. Where the copy can't be renamed, the catalogue is told before anything is appended."""
        try:
            return await self._in_thread(lambda: exchange(log, moved, recorded=recorded))
        except StorageIOError:
            try:
                await self._record(move.partition, move.partition.log_dir)
            except CompactdError as error:
                # A start would take the copy for the partition: nothing may come into the log that the copy does not have.
                _LOGGER.error("%s is not served any more: %s", move.partition, error)
                move.partition.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            raise

    async def _record(self, partition: Partition, log_dir: str) -> bool:
        """Has the catalogue say where the partition lies; whether its records can. MoveGivenUpError when it refuses.

        Whether it does has to be known: it is asked until it answers.
        """
        name = partition.topic_partition
        topic = self._context.image.topics.get(name.topic)
        if topic is None:
            raise MoveGivenUpError(partition=str(name), log_dir=log_dir, reason="its topic was deleted")
        asked = AssignLogDirs(
            moves=(MoveReplica(topic_id=names.uuid_text(topic.topic_id), partition=name.partition, log_dir=log_dir),)
        )
        while True:
            try:
                answer = await self._context.catalogue.change("assign_log_dirs", asked, MoveResults)
            except TimeoutError:
                _LOGGER.warning("the catalogue has not said yet whether %s may move to %s", name, log_dir)
                continue
            except CatalogueRefusedError as error:
                raise MoveGivenUpError(partition=str(name), log_dir=log_dir, reason=str(error)) from error
            (result,) = answer.results
            if result.error:
                reason = result.message or f"the catalogue answers {ErrorCode(result.error).name}"
                raise MoveGivenUpError(partition=str(name), log_dir=log_dir, reason=reason)
            return self._context.image.features.get("metadata.version", 0) >= _DIRECTORIES

    def _failed(self, move: Move, error: CompactdError) -> None:
        """Says why a move ended, and has an I/O error do what it does to a log dir."""
        if isinstance(error, MoveGivenUpError):
            _LOGGER.warning("%s", error)
            return
        _LOGGER.error("the move of %s to %s was given up: %s", move.partition, move.log_dir, error)
        if not isinstance(error, StorageIOError):
            return
        if _lies_in(error, move.log_dir):
            if getattr(error, "errno", 0) not in (errno.ENOSPC, errno.EDQUOT):
                self._partitions.log_dir_error(move.log_dir, error)
        elif _lies_in(error, move.partition.log_dir):
            self._partitions.failed(move.partition, error)

    async def _drop(self, move: Move) -> None:
        """What there is of the copy goes. Where the log's own disk failed, it is all there is, and stays."""
        move.copy.close()
        partition, directory = move.partition, move.copy.directory
        dropped: list[str] = []
        if move.log_dir not in self._partitions.offline_log_dirs and partition.error != ErrorCode.KAFKA_STORAGE_ERROR:
            dropped = await self._in_thread(lambda: _retire(directory, partition.topic_partition))
        if self._by_partition.get(partition) is move:
            del self._by_partition[partition]
            partition.moving_to = ""
        self._retired(partition, dropped)
        if not partition.error:
            self._partitions.tell_now(partition)

    def _retired(self, partition: Partition, directories: list[str]) -> None:
        if directories:
            topic = partition.topic_partition.topic
            self._partitions.channel.send(DirectoriesRetired(topic=topic, directories=tuple(directories)))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """In a thread, to its end, also over a cancellation: what it works with is closed afterwards."""
        return await until_done(self._context.loop.run_in_executor(self._context.executor, work))

    # ---- partitions that come and go

    def _ready(self, partition: Partition) -> None:
        """A start may bring very many: they are gone through together."""
        self._arrived.append(partition)
        if len(self._arrived) == 1 and not self._stopping:
            self._context.spawn(self._resume_all())

    async def _resume_all(self) -> None:
        left = await self._leftovers()
        arrived, self._arrived = self._arrived, []
        for partition in arrived:
            name = partition.topic_partition
            # Whoever made them may have been killed before he told of them.
            self._retired(partition, [str(path) for path in left.retired.pop(name, ())])
            if name in left.copies:
                await self._resume(partition, left.copies.pop(name))

    async def _resume(self, partition: Partition, copies: list[Path]) -> None:
        """Goes on with a copy that an earlier run left."""
        useless = []
        for path in copies:
            log_dir = str(path.parent)
            usable = log_dir != partition.log_dir and log_dir not in self._partitions.offline_log_dirs
            if usable and partition not in self._by_partition and not partition.error:
                try:
                    await self._begin(partition, log_dir, path)
                except CompactdError as error:
                    _LOGGER.warning("the move of %s to %s does not go on: %s", partition, log_dir, error)
            elif log_dir not in self._partitions.offline_log_dirs:
                useless += await self._in_thread(partial(_retire, path, partition.topic_partition))
        self._retired(partition, useless)

    async def _leftovers(self) -> _Leftovers:
        """What was there before this process moved anything."""
        if self._left is None:
            log_dirs = list(self._context.storage.log_dirs)
            self._left = self._context.loop.create_task(self._in_thread(lambda: _look(log_dirs)))
        return await asyncio.shield(self._left)

    def _gone(self, partition: Partition) -> None:
        """Its topic was deleted."""
        move = self._by_partition.get(partition)
        if move is not None:
            self._context.spawn(self._end(move, "its topic was deleted"))

    def _log_dir_failed(self, log_dir: str) -> None:
        for move in self:
            if move.log_dir == log_dir and not move.cancelled:
                move.cancelled = f"log dir {log_dir} is offline"

    async def _stop(self) -> None:
        """The copies stay as they are: the next start goes on with them. An exchange is carried to its end."""
        self._stopping = True
        tasks = [move.task for move in self if move.task is not None]
        for move in self:
            if not move.is_ending and move.task is not None:
                move.task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _rate(self) -> float:
        """Bytes per second that this worker's share of the limit comes to."""
        config, configs = self._context.config, self._context.image.broker_configs
        for resource in (str(config.node_id), ""):
            value = configs.get(resource, {}).get(RATE)
            if value is not None:
                return int(value) / max(config.broker_workers, 1)
        return UNLIMITED


def _retire(directory: Path, partition: TopicPartition) -> list[str]:
    """Renames what there is of a copy for deletion. A copy that can't be renamed is left to the next start."""
    if not directory.exists():
        return []
    target = directory.with_name(names.delete_dir_name(partition))
    try:
        files.rename(directory, target)
        files.fsync_dir(directory.parent)
    except StorageIOError as error:
        _LOGGER.warning("the copy %s stays for now: %s", directory, error)
        return []
    return [str(target)]


def _look(log_dirs: list[str]) -> _Leftovers:
    """In all log dirs. One that can't be listed has none."""
    found = _Leftovers({}, {})
    for log_dir in log_dirs:
        try:
            for suffix, there in ((names.FUTURE_DIR, found.copies), (names.DELETE_DIR, found.retired)):
                for partition, paths in directories_named(Path(log_dir), suffix).items():
                    there.setdefault(partition, []).extend(paths)
        except CompactdError as error:
            _LOGGER.warning("%s is not looked through for unfinished moves: %s", log_dir, error)
    return found


def _lies_in(error: StorageIOError, log_dir: str) -> bool:
    path = str(error.path)
    return path == log_dir or path.startswith(f"{log_dir}/")
