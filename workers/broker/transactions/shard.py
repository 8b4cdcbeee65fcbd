"""One partition of `__transaction_state` and its transactional ids: written to the log first, then true."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

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
from compactd.workers.broker.coordinating import CoordinatorShard, Phase
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.transactions.loading import load
from compactd.workers.broker.transactions.records import encode_tombstone, encode_transition
from compactd.workers.broker.transactions.transaction import State, Transaction, TransactionError, Transition
from compactd.workers.broker.turns import Turns

_LOGGER = logging.getLogger(__name__)

#: Ids forgotten with one batch.
_TOMBSTONES = 256
#: Bytes of UTF-8 that a character may take.
_MOST_PER_CHARACTER = 4

TRANSACTION_VERSION = "transaction.version"


class Shard(CoordinatorShard):
    """Belongs to the broker's loop. `prepared` is called with each transaction whose markers are to be written."""

    def __init__(
        self, context: Context, partition: Partition, prepared: Callable[[Shard, Transaction], object]
    ) -> None:
        super().__init__(context, partition)
        self.by_id: dict[str, Transaction] = {}
        #: No record was passed over.
        self.is_understood = True
        self._prepared = prepared

    def _refusal(self, code: ErrorCode) -> TransactionError:
        return TransactionError(code)

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
        self.by_id, self.is_understood = loaded.by_id, not loaded.unknown
        self.phase = Phase.READY
        self.loaded.set()
        for transaction in list(self.by_id.values()):
            transaction.may_be_behind = not self.partition.log.was_clean
            if transaction.state.is_prepared:
                self._prepared(self, transaction)

    def _clear(self) -> None:
        self.by_id = {}

    # ---- what is there

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

    async def forget(self, now_ms: int, expiration_ms: int) -> None:
        """Writes tombstones of ids that nobody has used for so long, and lets them go."""

        def is_old(each: Transaction | None) -> TypeGuard[Transaction]:
            return each is not None and self.holds(each) and each.is_expired(now_ms, expiration_ms)

        turns = Turns()
        ids = list(self.by_id)
        for first in range(0, len(ids), _TOMBSTONES):
            await turns.others()
            # Each is asked just before: while others were written its client may have come back.
            found = (self.by_id.get(each) for each in ids[first : first + _TOMBSTONES])
            for some in self._fitting([each for each in found if is_old(each)]):
                if not await self._forget([each for each in some if is_old(each)]):
                    return

    def _fitting(self, transactions: Sequence[Transaction]) -> Iterator[Sequence[Transaction]]:
        """In parts whose tombstones fit a batch of the log."""
        limit = self.partition.log.config.max_message_bytes // 2
        some: list[Transaction] = []
        size = 0
        for each in transactions:
            needed = len(each.transactional_id) * _MOST_PER_CHARACTER
            if some and size + needed > limit:
                yield some
                some, size = [], 0
            some.append(each)
            size += needed
        if some:
            yield some

    async def _forget(self, doomed: Sequence[Transaction]) -> bool:
        if not doomed:
            return True
        for each in doomed:
            each.pending = State.DEAD
        try:
            await self._append([encode_tombstone(each.transactional_id) for each in doomed])
        except TransactionError as error:
            _LOGGER.warning("%s: expired transactional ids are left for later: %s", self.partition, error)
            return False
        finally:
            for each in doomed:
                each.pending = None
        for each in doomed:
            if self.holds(each):
                del self.by_id[each.transactional_id]
        return True

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
