"""One partition of `__transaction_state` and its transactional ids: written to the log first, then true."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from compactd.config.errors import (
    CompactdError,
    LogOfflineError,
    MessageTooLargeError,
    RecordListTooLargeError,
    StorageIOError,
)
from compactd.storage.log import Origin
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.transactions.loading import load
from compactd.workers.broker.transactions.records import encode_tombstone, encode_transition
from compactd.workers.broker.transactions.transaction import State, Transaction, TransactionError, Transition

_LOGGER = logging.getLogger(__name__)

#: A partition that could not be loaded is tried again after this long.
_RETRY_SECONDS = 10.0
#: Ids forgotten with one batch.
_TOMBSTONES = 256

TRANSACTION_VERSION = "transaction.version"


class Phase(Enum):
    """Of a shard's life."""

    LOADING = 1
    READY = 2
    FAILED = 3
    GONE = 4


class Shard:
    """Belongs to the broker's loop. `prepared` is called with each transaction whose markers are to be written."""

    def __init__(
        self, context: Context, partition: Partition, prepared: Callable[[Shard, Transaction], object]
    ) -> None:
        self.context = context
        self.partition = partition
        self.number = partition.topic_partition.partition
        self.phase = Phase.LOADING
        self.by_id: dict[str, Transaction] = {}
        self.loaded = asyncio.Event()
        self._prepared = prepared
        partition.watchers.add(self)
        context.spawn(self._load())

    @property
    def coordinator_epoch(self) -> int:
        """Goes into markers: partitions refuse those of an older one."""
        return self.partition.leader_epoch

    # ---- its life

    async def _load(self) -> None:
        chunk = self.context.config.transaction_state_log_load_buffer_size
        try:
            loaded = await self.context.in_thread(lambda: load(self.partition.log, chunk))
        except CompactdError as error:
            _LOGGER.error("the transactions of %s can not be loaded: %s", self.partition, error)
            self._failed()
            return
        if self.phase is not Phase.LOADING:
            return
        for kind, count in loaded.unknown.items():
            _LOGGER.warning("%s: %d records of %s are passed over", self.partition, count, kind)
        self.by_id = loaded.by_id
        self.phase = Phase.READY
        self.loaded.set()
        for transaction in list(self.by_id.values()):
            if transaction.state.is_prepared:
                self._prepared(self, transaction)

    def _failed(self) -> None:
        self._give_up(Phase.FAILED)
        if not self.partition.error:
            self.context.loop.call_later(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        if self.phase is Phase.FAILED and not self.partition.error:
            self.phase = Phase.LOADING
            self.loaded.clear()
            self.context.spawn(self._load())

    def gone(self) -> None:
        """The partition is not this broker's any more."""
        self._give_up(Phase.GONE)
        self.partition.watchers.discard(self)

    def _give_up(self, phase: Phase) -> None:
        self.phase = phase
        self.by_id = {}
        self.loaded.set()

    # ---- partition.Watcher

    def appended(self, size: int) -> None:
        """Our own records."""

    def changed(self) -> None:
        """The partition may have gone offline."""
        if self.partition.error and self.phase in (Phase.LOADING, Phase.READY):
            self._give_up(Phase.FAILED)

    # ---- what is there

    def check(self) -> None:
        """TransactionError where nothing can be asked here now."""
        if self.phase is Phase.LOADING:
            raise TransactionError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.phase is not Phase.READY or self.partition.error:
            raise TransactionError(ErrorCode.NOT_COORDINATOR)

    def holds(self, transaction: Transaction) -> bool:
        """Whether this object is still the state of its id: false once the shard was given up, or the id forgotten."""
        return self.by_id.get(transaction.transactional_id) is transaction

    # ---- changes

    async def write(self, transaction: Transaction, to: Transition) -> None:
        """Appends the record of a planned transition, and makes it true; one that decides a transaction has it finished.

        TransactionError: it has not come about. What was begun goes on to its end even if the caller is cancelled.
        """
        record = encode_transition(transaction.transactional_id, to, self.transaction_version)
        transaction.pending = to.state
        error = await asyncio.shield(self.context.spawn(self._write(transaction, to, record)))
        if error:
            raise TransactionError(error)

    async def _write(self, transaction: Transaction, to: Transition, record: tuple[bytes, bytes]) -> ErrorCode:
        try:
            await self._append([record])
        except TransactionError as error:
            transaction.pending = None
            return error.code
        if not self.holds(transaction):
            return ErrorCode.NOT_COORDINATOR
        transaction.complete(to)
        if to.state.is_prepared:
            self._prepared(self, transaction)
        return ErrorCode.NONE

    @property
    def transaction_version(self) -> int:
        """The one that the cluster has finalized."""
        return self.context.image.features.get(TRANSACTION_VERSION, 0)

    async def forget(self, transactions: Iterable[Transaction]) -> None:
        """Writes tombstones, and lets the ids go."""
        doomed = list(transactions)
        for first in range(0, len(doomed), _TOMBSTONES):
            some = doomed[first : first + _TOMBSTONES]
            for each in some:
                each.pending = State.DEAD
            try:
                await self._append([encode_tombstone(each.transactional_id) for each in some])
            except TransactionError as error:
                _LOGGER.warning("%s: expired transactional ids are left for later: %s", self.partition, error)
                return
            finally:
                for each in doomed[first:]:
                    each.pending = None
            for each in some:
                if self.holds(each):
                    del self.by_id[each.transactional_id]

    async def _append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """One batch; returns when it counts. TransactionError, with the code that Kafka makes of each failure."""
        self.check()
        now_ms = self.context.clock.now_ms()
        numbered = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)]
        data = bytearray(build_batch(numbered, base_offset=0))
        try:
            await self.partition.append(data, origin=Origin.COORDINATOR)
        except (MessageTooLargeError, RecordListTooLargeError) as error:
            _LOGGER.error("%s: a transaction does not fit a record: %s", self.partition, error)
            raise TransactionError(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        except (StorageIOError, LogOfflineError) as error:
            raise TransactionError(ErrorCode.NOT_COORDINATOR) from error
        except CompactdError as error:
            _LOGGER.error("%s: transactions can not be stored: %s", self.partition, error)
            raise TransactionError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
