"""Whether a producer may write to partitions in its transaction: asked before the first batch of each (KIP-890; protocol 15.5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from compactd.config.errors import CompactdError
from compactd.storage.producers import Verification
from compactd.workers.broker.api_keys import PRODUCE
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.peers import PeerError, Peers
from compactd.workers.broker.requests import RequestHeader
from compactd.workers.broker.transactions.open_at_load import OpenAtLoad
from compactd.workers.broker.transactions.partition_errors import PartitionErrors
from compactd.workers.broker.transactions.transaction import Producer, TopicPartitionKey, TransactionError

if TYPE_CHECKING:
    from compactd.workers.broker.transactions.coordinator import TransactionCoordinator

_LOGGER = logging.getLogger(__name__)

_OPERATION = "transaction_partitions"

#: First versions of Produce and of TxnOffsetCommit that know TRANSACTION_ABORTABLE, and that leave adding to the broker.
_KNOWS_ABORTABLE = {True: 11, False: 4}
_ADDS = {True: 12, False: 5}

#: What a client that adds nothing itself is of, as far as the coordinator is concerned.
_CLIENT_VERSION = 2


class Asked(msgspec.Struct, frozen=True):
    """Of the coordinator: add partitions to a producer's transaction, or only tell whether they are in it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    partitions: tuple[TopicPartitionKey, ...]


class Gate:
    """Fills produce.TransactionGate."""

    def __init__(self, context: Context, coordinator: TransactionCoordinator) -> None:
        self._context = context
        self._coordinator = coordinator
        self._open = context.part(OpenAtLoad)
        context.part(Peers).serve(_OPERATION, Asked, self._asked)

    async def __call__(
        self,
        header: RequestHeader,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[TopicPartitionKey],
        sequences: Sequence[int] = (),
    ) -> Mapping[TopicPartitionKey, ErrorCode]:
        """Errors of the partitions of this broker that may not be written to; those it does not have are left out."""
        config = self._context.config
        produces = header.api_key == PRODUCE
        adds = header.version >= _ADDS[produces]
        if not adds and not config.transaction_partition_verification_enable:
            return {}
        wanted = dict(zip(partitions, sequences or [-1] * len(partitions), strict=True))
        clock = self._context.clock
        # The transaction before often ends just now: cheaper to wait here than to have the data sent again.
        patience = config.add_partitions_to_txn_retry_backoff_max_ms / 1000 if adds and produces else 0
        end = clock.monotonic() + patience
        while True:
            errors, waiting = self._begin(wanted, producer_id, producer_epoch, adds)
            if waiting:
                keys = tuple(waiting)
                asked = Asked(transactional_id, producer_id, producer_epoch, adds, keys)
                answers = await self._ask(asked)
                for key, (partition, verification) in waiting.items():
                    error = _told(answers[key], header.version >= _KNOWS_ABORTABLE[produces])
                    if error:
                        errors[key] = error
                        if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                            # Anybody may ask with numbers out of the air: they would pile up.
                            partition.log.unknown_producer(producer_id, verification)
                    else:
                        partition.log.verified(producer_id, verification)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in errors.values() or clock.monotonic() >= end:
                break
            await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)
        return errors

    def _begin(
        self, wanted: Mapping[TopicPartitionKey, int], producer_id: int, epoch: int, adds: bool
    ) -> tuple[dict[TopicPartitionKey, ErrorCode], dict[TopicPartitionKey, tuple[Partition, Verification]]]:
        """Errors of partitions that know better already, and those about which the coordinator has to be asked."""
        errors: dict[TopicPartitionKey, ErrorCode] = {}
        waiting: dict[TopicPartitionKey, tuple[Partition, Verification]] = {}
        now_ms = self._context.clock.now_ms()
        for key, sequence in wanted.items():
            partition = self._context.partitions.get(*key)
            if partition is None or partition.error:
                continue
            try:
                asked = partition.log.start_verification(producer_id, epoch, sequence, bumps_epoch=adds, now_ms=now_ms)
            except CompactdError as error:
                errors[key] = error_of(error)
                continue
            if asked is None:
                continue
            if self._open.find(key, producer_id) is not None:
                # Whatever it begins now, its marker would end that as well.
                errors[key] = ErrorCode.CONCURRENT_TRANSACTIONS
            else:
                waiting[key] = partition, asked
        return errors, waiting

    async def _ask(self, asked: Asked) -> Mapping[TopicPartitionKey, ErrorCode]:
        """Of whoever coordinates the id."""
        worker = self._coordinator.worker_of(asked.transactional_id)
        if worker is None:
            return dict.fromkeys(asked.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if worker == self._context.worker:
            return await self._decide(asked)
        try:
            answer = await self._context.part(Peers).ask(worker, _OPERATION, asked, PartitionErrors)
        except PeerError as error:
            _LOGGER.info("transactional id %s: %s", asked.transactional_id, error)
            return dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)
        return answer.by_partition()

    async def _decide(self, asked: Asked) -> Mapping[TopicPartitionKey, ErrorCode]:
        producer = Producer(asked.producer_id, asked.producer_epoch)
        try:
            if not asked.adds:
                return self._coordinator.verify(asked.transactional_id, producer, asked.partitions)
            await self._coordinator.add(asked.transactional_id, producer, asked.partitions, _CLIENT_VERSION)
        except TransactionError as error:
            return dict.fromkeys(asked.partitions, error.code)
        return dict.fromkeys(asked.partitions, ErrorCode.NONE)

    async def _asked(self, asked: Asked) -> PartitionErrors:
        return PartitionErrors.of(await self._decide(asked))


def _told(error: ErrorCode, knows_abortable: bool) -> ErrorCode:
    """What the coordinator says, as the client may hear it (AddPartitionsToTxnManager)."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error
