"""The transactional ids that this broker coordinates: those whose partition of `__transaction_state` it owns.

A request is planned by `transaction`, its record written by `shard`, its markers by `markers`. What the client is told is
true by then, but for the markers: Kafka answers EndTxn before they are written. Here the answer waits for them a little,
so that the next transaction mostly finds its way clear.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from compactd.config.errors import CompactdError
from compactd.storage.names import TopicPartition
from compactd.workers.broker.context import Context
from compactd.workers.broker.coordinating import Coordinator
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.produce import Transactions
from compactd.workers.broker.transactions.claims import Claims, Opened, Verdict, by_producer, verdict_on
from compactd.workers.broker.transactions.counts import TransactionCounts
from compactd.workers.broker.transactions.decisions import find_decisions
from compactd.workers.broker.transactions.gate import Gate
from compactd.workers.broker.transactions.hanging import Hanging
from compactd.workers.broker.transactions.markers import Marker, MarkerWriter
from compactd.workers.broker.transactions.producer_ids import ProducerIds
from compactd.workers.broker.transactions.records import TRANSACTION_TOPIC
from compactd.workers.broker.transactions.shard import Shard
from compactd.workers.broker.transactions.transaction import (
    EPOCH_BUMPS,
    NO_ID,
    NO_PRODUCER,
    Producer,
    ProducerIdNeeded,
    State,
    TopicPartitionKey,
    Transaction,
    TransactionError,
    Transition,
)
from compactd.workers.broker.turns import Turns

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Bytes of an id that a record's key has room for.
_LONGEST_ID = 32_767
#: How long whoever asks first waits for a new topic to be ready.
_READY_SECONDS = 5.0
#: The answer to EndTxn waits for the markers no longer than this.
_MARKER_SECONDS = 0.1
#: Pauses before markers that could not be written are tried again: the first, doubled up to the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: A marker that is refused so will never be written: a newer producer or coordinator has been there.
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class TransactionCoordinator(Coordinator[Shard]):
    """`context.part(TransactionCoordinator)` has it."""

    topic = TRANSACTION_TOPIC

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        #: Transactions whose markers are being written.
        self._finishing: dict[str, asyncio.Task[None]] = {}
        self._markers = context.part(MarkerWriter)
        context.part(Transactions).gate = Gate(context, self)
        self._hanging = Hanging(context, self)
        context.partitions.verify_transactions(context.config.transaction_partition_verification_enable)
        self.begin()
        context.spawn(self._abort_timed_out())
        context.spawn(self._forget_expired())

    def _made(self, partition: Partition) -> Shard:
        return Shard(self.context, partition, self._prepared)

    def _refusal(self, code: ErrorCode) -> TransactionError:
        return TransactionError(code)

    def _topic_shape(self) -> tuple[int, Sequence[tuple[str, str]]]:
        config = self.context.config
        return config.transaction_state_log_num_partitions, (
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        )

    def worker_of(self, transactional_id: str) -> int | None:
        """The broker that coordinates an id; None: nobody does now."""
        number = self.partition_of(transactional_id)
        known = None if number is None else self.context.image.partition(TRANSACTION_TOPIC, number)
        return known.worker if known is not None and known.online else None

    def _known(self, transactional_id: str) -> tuple[Shard, Transaction]:
        shard = self.shard(transactional_id)
        transaction = shard.by_id.get(transactional_id)
        if transaction is None:
            raise TransactionError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return shard, transaction

    async def _created(self) -> None:
        # The client comes at once: it should not find a coordinator that is still loading.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_SECONDS):
                await self._all_ready()

    async def _all_ready(self) -> None:
        topic = self.context.image.topic(TRANSACTION_TOPIC)
        for number, partition in topic.partitions.items() if topic is not None else ():
            while partition.worker == self.context.worker and number not in self._shards:
                self._arrived.clear()
                await self._arrived.wait()
            if number in self._shards:
                await self._shards[number].loaded.wait()

    # ---- requests; all raise TransactionError

    async def initialize(self, transactional_id: str, timeout_ms: int, expected: Producer | None) -> Producer:
        """InitProducerId: the producer id and epoch to go on with. An open transaction is aborted, and the client asks again."""
        if not 0 < timeout_ms <= self.context.config.transaction_max_timeout_ms:
            raise TransactionError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        shard = self.shard(transactional_id)
        if len(transactional_id.encode("utf-8", "replace")) > _LONGEST_ID:
            raise TransactionError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if transactional_id not in shard.by_id:
            producer_id = await self._new_id()
            shard = self.shard(transactional_id)
            now_ms = self.context.clock.now_ms()
            shard.by_id.setdefault(transactional_id, Transaction(transactional_id, producer_id, timeout_ms, now_ms))

        def plan(transaction: Transaction, spare_id: int | None) -> Transition | None:
            return transaction.initialize(timeout_ms, self.context.clock.now_ms(), expected, spare_id)

        shard, transaction, to = await self._planned(transactional_id, plan)
        if to is None:
            await self.abort(transactional_id)
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        await shard.write(transaction, to)
        _LOGGER.info("transactional id %s: producer %d, epoch %d", transactional_id, to.producer_id, to.epoch)
        return Producer(to.producer_id, to.epoch)

    async def add(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartitionKey], client_version: int
    ) -> None:
        """Partitions join the transaction."""
        _check_id(transactional_id)
        shard, transaction = self._known(transactional_id)
        to = transaction.add(*producer, partitions, client_version, self.context.clock.now_ms())
        if to is not None:
            await shard.write(transaction, to)

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartitionKey]
    ) -> Mapping[TopicPartitionKey, ErrorCode]:
        """Whether each partition is in the transaction."""
        _check_id(transactional_id)
        _, transaction = self._known(transactional_id)
        known = transaction.verify(*producer)
        return {key: ErrorCode.NONE if key in known else ErrorCode.TRANSACTION_ABORTABLE for key in partitions}

    async def end(self, transactional_id: str, producer: Producer, commit: bool, client_version: int) -> Producer:
        """EndTxn: what the client goes on with."""
        _check_id(transactional_id)
        known = NO_PRODUCER

        def plan(transaction: Transaction, spare_id: int | None) -> Transition | None:
            nonlocal known
            known = Producer(transaction.producer_id, transaction.epoch)
            now_ms = self.context.clock.now_ms()
            return transaction.end(*producer, commit, client_version, now_ms, spare_id)

        shard, transaction, to = await self._planned(transactional_id, plan)
        if to is None:
            return known
        await shard.write(transaction, to)
        finishing = self._finishing.get(transactional_id)
        if finishing is not None:
            await asyncio.wait({finishing}, timeout=_MARKER_SECONDS)
        return Producer(to.producer_id, to.epoch) if to.next_producer_id == NO_ID else Producer(to.next_producer_id, 0)

    async def abort(self, transactional_id: str) -> None:
        """Ends the open transaction without its producer, which is fenced."""
        version = self.shard(transactional_id).transaction_version

        def plan(transaction: Transaction, spare_id: int | None) -> Transition | None:
            return transaction.fence(version, self.context.clock.now_ms(), spare_id)

        shard, transaction, to = await self._planned(transactional_id, plan)
        assert to is not None
        try:
            await shard.write(transaction, to)
        except TransactionError:
            transaction.failed_fence = version < EPOCH_BUMPS
            raise

    async def claims(self, opened: Sequence[Opened]) -> Claims:
        """What becomes of transactions that partitions have open; those that no record tells of any more are taken in."""
        wanted = by_producer(opened)
        known: dict[int, tuple[Shard, Transaction]] = {}
        turns = Turns()
        for shard in self:
            for transaction in list(shard.by_id.values()):
                await turns.others()
                if transaction.producer_id in wanted:
                    known[transaction.producer_id] = shard, transaction
        found: dict[Opened, Verdict] = {}
        for producer_id, (shard, transaction) in known.items():
            rows = wanted[producer_id]
            if not shard.holds(transaction):
                found |= dict.fromkeys(rows, Verdict.LATER)
                continue
            found |= {each: verdict_on(transaction, each) for each in rows}
            lost = [each for each in rows if found[each] is Verdict.ADOPT]
            if lost:
                found |= dict.fromkeys(lost, Verdict.LATER)
                await self._adopt(shard, transaction, lost)
        past = [each for each in opened if found.get(each, Verdict.UNKNOWN) is Verdict.UNKNOWN]
        found |= await self._decided(past)
        verdicts = tuple(found.get(each, Verdict.UNKNOWN) for each in opened)
        return Claims(verdicts=verdicts, complete=self._is_complete())

    async def _decided(self, opened: Sequence[Opened]) -> dict[Opened, Verdict]:
        """Of transactions that are over: as their markers would have it, which some partitions have lost."""
        markers = {Producer(each.producer_id, each.epoch + 1) for each in opened}
        chunk = self.context.config.transaction_state_log_load_buffer_size
        found: dict[Producer, bool] = {}
        for shard in self if markers else ():
            log = shard.partition.log
            try:
                found |= await self.context.in_thread(lambda log=log: find_decisions(log, chunk, markers))  # type: ignore[misc]
            except CompactdError as error:
                _LOGGER.warning("%s: how transactions ended can not be read: %s", shard.partition, error)
        return {
            each: Verdict.COMMIT if found[marker] else Verdict.ABORT
            for each in opened
            if (marker := Producer(each.producer_id, each.epoch + 1)) in found
        }

    async def _adopt(self, shard: Shard, transaction: Transaction, lost: Sequence[Opened]) -> None:
        epoch = max(each.epoch for each in lost)
        goes_on = transaction.state is State.ONGOING and transaction.epoch == epoch
        try:
            to = transaction.adopt(epoch, [each.key for each in lost], self.context.clock.now_ms())
            await shard.write(transaction, to)
            if not goes_on:
                await self.abort(transaction.transactional_id)
        except TransactionError as error:
            _LOGGER.info("transactional id %s: what is open is left for later: %s", transaction.transactional_id, error)
            return
        _LOGGER.warning(
            "transactional id %s: the record of its transaction in %s was lost; %s",
            transaction.transactional_id, ", ".join(str(TopicPartition(*each.key)) for each in lost),
            "it goes on" if goes_on else "it is aborted, and its producer locked out",
        )  # fmt: skip

    def _is_complete(self) -> bool:
        """Every partition of this broker is loaded, and all of it was understood."""
        topic = self.context.image.topic(TRANSACTION_TOPIC)
        ours = (
            [number for number, each in topic.partitions.items() if each.worker == self.context.worker] if topic else []
        )
        ready = {shard.number for shard in self if shard.is_understood}
        return ready.issuperset(ours)

    async def _planned(
        self, transactional_id: str, plan: Callable[[Transaction, int | None], _T]
    ) -> tuple[Shard, Transaction, _T]:
        """Plans, and plans again with a fresh producer id where one is needed."""
        spare_id = None
        while True:
            shard, transaction = self._known(transactional_id)
            try:
                return shard, transaction, plan(transaction, spare_id)
            except ProducerIdNeeded:
                spare_id = await self._new_id()

    async def _new_id(self) -> int:
        try:
            return await self.context.part(ProducerIds).next()
        except (CompactdError, TimeoutError):
            # As Kafka, while it has no block yet: producers ask again.
            raise TransactionError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from None

    # ---- the end of a transaction

    def _prepared(self, shard: Shard, transaction: Transaction) -> None:
        """Its fate is in the log: the rest happens by itself.

        From here on nobody else plans anything: the state that is to come stands as pending, as in Kafka.
        """
        transaction.pending = _completed(transaction)
        task = self.context.spawn(self._finish(shard, transaction))
        self._finishing[transaction.transactional_id] = task
        task.add_done_callback(lambda _: self._finished(transaction.transactional_id, task))

    def _finished(self, transactional_id: str, task: asyncio.Task[None]) -> None:
        if self._finishing.get(transactional_id) is task:
            del self._finishing[transactional_id]

    async def _finish(self, shard: Shard, transaction: Transaction) -> None:
        """Writes markers until all are written, and then the last record; gives up when the shard does."""
        pause = _FIRST_PAUSE
        while shard.holds(transaction):
            if transaction.partitions:
                await self._mark(shard, transaction)
            elif await self._complete(shard, transaction):
                return
            if transaction.partitions and shard.holds(transaction):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _mark(self, shard: Shard, transaction: Transaction) -> None:
        marker = Marker(
            transaction.producer_id,
            transaction.epoch,
            transaction.state is State.PREPARE_COMMIT,
            shard.coordinator_epoch,
            transaction.client_version,
            transaction.partitions,
            decided_ms=transaction.update_ms,
        )
        errors = await self._markers.write(marker)
        done = []
        for key, error in errors.items():
            if error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                # A partition that is gone needs none.
                done.append(key)
            elif error in _FENCED:
                _LOGGER.warning(
                    "transactional id %s: %s-%d takes no marker of producer %d, epoch %d: %s",
                    transaction.transactional_id, *key, marker.producer_id, marker.producer_epoch, error.name,
                )  # fmt: skip
                done.append(key)
            else:
                _LOGGER.info(
                    "transactional id %s: the marker for %s-%d is tried again: %s",
                    transaction.transactional_id, *key, error.name,
                )  # fmt: skip
        transaction.marked(done)

    async def _complete(self, shard: Shard, transaction: Transaction) -> bool:
        try:
            await shard.write(transaction, transaction.finish(self.context.clock.now_ms()))
        except TransactionError as error:
            if error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                _LOGGER.warning(
                    "transactional id %s is left in state %s: %s",
                    transaction.transactional_id, transaction.state.title, error.code.name,
                )  # fmt: skip
                return True
            transaction.pending = _completed(transaction)
            await asyncio.sleep(_LONGEST_PAUSE)
            return False
        self.context.part(TransactionCounts).ended(committed=transaction.state is State.COMPLETE_COMMIT)
        return True

    # ---- time

    async def _abort_timed_out(self) -> None:
        while True:
            await asyncio.sleep(self.context.config.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000)
            now_ms = self.context.clock.now_ms()
            turns = Turns()
            for shard in self:
                for transaction in list(shard.by_id.values()):
                    await turns.others()
                    if shard.holds(transaction) and transaction.is_timed_out(now_ms):
                        await self._time_out(transaction)

    async def _time_out(self, transaction: Transaction) -> None:
        _LOGGER.info(
            "transactional id %s: its transaction is older than %d ms and is aborted",
            transaction.transactional_id, transaction.timeout_ms,
        )  # fmt: skip
        try:
            await self.abort(transaction.transactional_id)
            self.context.part(TransactionCounts).timed_out += 1
        except TransactionError as error:
            _LOGGER.info("transactional id %s was not aborted: %s", transaction.transactional_id, error.code.name)

    async def _forget_expired(self) -> None:
        while True:
            config = self.context.config
            await asyncio.sleep(config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000)
            now_ms = self.context.clock.now_ms()
            for shard in self:
                await shard.forget(now_ms, config.transactional_id_expiration_ms)


def _completed(transaction: Transaction) -> State:
    return State.COMPLETE_COMMIT if transaction.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise TransactionError(ErrorCode.INVALID_REQUEST)
