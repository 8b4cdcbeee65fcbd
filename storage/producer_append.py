"""What producers may append: epochs, sequences, duplicates, transaction markers (ProducerAppendInfo; KIP-98, KIP-890, KIP-1228).

One append is checked whole before anything is written, and taken into the log's ProducerState only once it was:

    changes = ProducerChanges(state, origin, path)
    for header in headers:
        duplicate = changes.add(header, marker)
    ...write...
    completed = changes.apply()
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum

from compactd.config.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from compactd.storage.producers import (
    BATCHES_TO_RETAIN,
    BatchMetadata,
    CompletedTransaction,
    ProducedBatch,
    ProducerEntry,
    ProducerState,
    java_hash,
)
from compactd.storage.records.control import ControlRecordType, EndTransactionMarker

NO_EPOCH = -1
NO_SEQUENCE = -1
_LARGEST_EPOCH = 32767
_LARGEST_SEQUENCE = 2**31 - 1


class Origin(Enum):
    """Who appends: it decides which rules hold (Kafka's AppendOrigin)."""

    #: A producer: everything is checked.
    CLIENT = "client"
    #: The group or transaction coordinator of this broker: sequences are not checked.
    COORDINATOR = "coordinator"
    #: A leader's log, copied: what it holds was checked there.
    REPLICATION = "replication"


class ProducerChanges:
    """The effect of one append on the producers, checked, and not yet part of their state."""

    __slots__ = (
        "_completed",
        "_entries",
        "_origin",
        "_path",
        "_started",
        "_state",
        "_transaction_version",
        "_verifies",
    )

    def __init__(
        self, state: ProducerState, origin: Origin, path: str, transaction_version: int = 0, verifies: bool = False
    ) -> None:
        """`transaction_version`: of the request that writes a marker; 2 asks for a new epoch (KIP-1228).

        `verifies`: the first batch of a transaction must have been verified (KIP-890).
        """
        self._state = state
        self._origin = origin
        self._path = path
        self._transaction_version = transaction_version
        self._verifies = verifies
        self._entries: dict[int, ProducerEntry] = {}
        #: (producer id, first offset)
        self._started: list[tuple[int, int]] = []
        #: (producer id, first offset, marker's offset, aborted)
        self._completed: list[tuple[int, int, int, bool]] = []

    def duplicate(self, batch: ProducedBatch) -> BatchMetadata | None:
        """The batch, one of the producer's last five, of which a client's batch is a repetition."""
        entry = self._state.get(batch.producer_id)
        if entry is None or entry.producer_epoch != batch.producer_epoch:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        for known in entry.batches:
            if known.last_sequence == last and known.first_sequence == first:
                return known
        return None

    def add(self, batch: ProducedBatch, marker: EndTransactionMarker | None = None) -> None:
        """Checks the next batch with a producer id; offsets in `batch` are those it will have.

        `marker`: of a control batch; None for one whose record was cleaned away. Raises InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTransactionStateError, TransactionCoordinatorFencedError.
        """
        current = self._state.get(batch.producer_id)
        updated = self._entries.get(batch.producer_id)
        if updated is None:
            updated = _without_batches(current, batch.producer_id)
        if batch.is_control and marker is None:
            # It says nothing, and yet Kafka then knows its producer by name.
            self._entries[batch.producer_id] = updated
            return
        if marker is not None and batch.is_control:
            self._mark(updated, batch, marker)
        else:
            if batch.is_transactional and self._origin is not Origin.REPLICATION:
                self._check_verified(current, batch)
            self._data(updated, current, batch)
        self._entries[batch.producer_id] = updated
        if batch.is_transactional:
            self._forget_verification(batch)

    def apply(self) -> list[CompletedTransaction]:
        """Takes everything into the state; returns the transactions that ended, in order.

        The last stable offset of each counts transactions that the same append began: as in Kafka, where a follower's
        append of many batches may so note a later one than recovery finds batch by batch.
        """
        state = self._state
        for updated in self._in_kafkas_order():
            entry = state.get(updated.producer_id)
            if entry is None:
                state.put(updated)
                continue
            if entry.producer_epoch != updated.producer_epoch:
                entry.batches.clear()
                entry.producer_epoch = updated.producer_epoch
            entry.batches.extend(updated.batches)
            entry.coordinator_epoch = updated.coordinator_epoch
            entry.last_timestamp = updated.last_timestamp
            entry.current_txn_first_offset = updated.current_txn_first_offset
        for producer_id, first_offset in self._started:
            state.ongoing_txns[first_offset] = producer_id
        return [state.complete(*each) for each in self._completed]

    def _in_kafkas_order(self) -> list[ProducerEntry]:
        """A Java HashMap's, which decides in which order new producers stand in one bucket of the snapshot's."""
        entries = list(self._entries.values())
        if len(entries) > 1:
            size = 16
            while len(entries) > size * 3 // 4:
                size *= 2
            entries.sort(key=lambda entry: java_hash(entry.producer_id) & (size - 1))
        return entries

    def _data(self, updated: ProducerEntry, current: ProducerEntry | None, batch: ProducedBatch) -> None:
        self._check_epoch(updated, batch, transaction_version=0)
        if self._origin is Origin.CLIENT:
            self._check_sequence(updated, current, batch)
        if updated.producer_epoch != batch.producer_epoch:
            updated.batches.clear()
            updated.producer_epoch = batch.producer_epoch
        delta = batch.last_offset - batch.base_offset
        updated.batches.append(BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp))
        updated.last_timestamp = batch.max_timestamp
        if updated.current_txn_first_offset is not None:
            if not batch.is_transactional:
                raise InvalidTransactionStateError(
                    path=self._path,
                    producer_id=batch.producer_id,
                    offset=batch.base_offset,
                    detail=f"it is in a transaction since offset {updated.current_txn_first_offset}, and the batch is not",
                )
        elif batch.is_transactional:
            updated.current_txn_first_offset = batch.base_offset
            self._started.append((batch.producer_id, batch.base_offset))

    def _mark(self, updated: ProducerEntry, batch: ProducedBatch, marker: EndTransactionMarker) -> None:
        self._check_epoch(updated, batch, self._transaction_version)
        if updated.coordinator_epoch > marker.coordinator_epoch and self._origin is not Origin.REPLICATION:
            raise TransactionCoordinatorFencedError(
                path=self._path,
                producer_id=batch.producer_id,
                offset=batch.base_offset,
                detail=f"its coordinator's epoch is {marker.coordinator_epoch}, the last seen is {updated.coordinator_epoch}",
            )
        if updated.current_txn_first_offset is not None:
            aborted = marker.type == ControlRecordType.ABORT
            self._completed.append((batch.producer_id, updated.current_txn_first_offset, batch.base_offset, aborted))
        if updated.producer_epoch != batch.producer_epoch:
            updated.batches.clear()
            updated.producer_epoch = batch.producer_epoch
        updated.coordinator_epoch = marker.coordinator_epoch
        updated.current_txn_first_offset = None
        # A control batch has one record: its timestamp is the batch's largest.
        updated.last_timestamp = batch.max_timestamp

    def _check_verified(self, current: ProducerEntry | None, batch: ProducedBatch) -> None:
        """The first batch of a transaction is only let in when its coordinator knows that the transaction is here."""
        state = self._state
        if state.in_transaction(batch.producer_id, batch.producer_epoch):
            return
        if current is not None and batch.producer_epoch < current.producer_epoch:
            raise InvalidProducerEpochError(
                path=self._path,
                producer_id=batch.producer_id,
                offset=batch.base_offset,
                detail=f"its epoch {batch.producer_epoch} is below the last seen, {current.producer_epoch}",
            )
        asked = state.verifications.get(batch.producer_id)
        if self._verifies and (asked is None or not asked.verified):
            raise InvalidTransactionStateError(
                path=self._path,
                producer_id=batch.producer_id,
                offset=batch.base_offset,
                detail="the batch is not part of a transaction that is open here",
            )

    def _forget_verification(self, batch: ProducedBatch) -> None:
        """From here on the log itself tells whether the transaction is open.

        Kept over the marker of a transaction whose successor, with the epoch that the marker has, is being verified.
        """
        asked = self._state.verifications.get(batch.producer_id)
        if asked is not None and not (asked.bumps_epoch and batch.is_control and batch.producer_epoch == asked.epoch):
            del self._state.verifications[batch.producer_id]

    def _check_epoch(self, updated: ProducerEntry, batch: ProducedBatch, transaction_version: int) -> None:
        epoch, current = batch.producer_epoch, updated.producer_epoch
        if epoch > current or (epoch == current and transaction_version < 2):
            return
        if epoch == current and (updated.current_txn_first_offset is None or epoch == _LARGEST_EPOCH):
            return  # the marker's retry: its transaction is over
        if self._origin is Origin.REPLICATION:
            return
        compared = "not above" if transaction_version >= 2 else "below"
        raise InvalidProducerEpochError(
            path=self._path,
            producer_id=batch.producer_id,
            offset=batch.base_offset,
            detail=f"its epoch {epoch} is {compared} the last seen, {current}",
        )

    def _check_sequence(self, updated: ProducerEntry, current: ProducerEntry | None, batch: ProducedBatch) -> None:
        first = batch.base_sequence
        asked = self._state.verifications.get(batch.producer_id)
        if asked is not None:
            is_new = current is None or not current.batches
            limit = 0 if asked.bumps_epoch and is_new else asked.lowest_sequence
            if first > limit:
                raise OutOfOrderSequenceError(
                    path=self._path,
                    producer_id=batch.producer_id,
                    offset=batch.base_offset,
                    detail=f"its first sequence is {first}, {limit} has to come before it",
                )
        if batch.producer_epoch != updated.producer_epoch:
            # A new epoch starts at 0, unless nothing at all is known of the producer.
            if first == 0 or updated.producer_epoch == NO_EPOCH:
                return
            wanted = f"a new epoch ({batch.producer_epoch} after {updated.producer_epoch}) has to start with sequence 0"
        else:
            if current is None or current.producer_epoch == NO_EPOCH:
                return
            if updated.batches:
                last = updated.last_sequence
            elif batch.producer_epoch == current.producer_epoch:
                last = current.last_sequence
            else:
                last = NO_SEQUENCE
            if first == last + 1 or (first == 0 and last == _LARGEST_SEQUENCE):
                return
            wanted = f"the last sequence is {last}"
        raise OutOfOrderSequenceError(
            path=self._path,
            producer_id=batch.producer_id,
            offset=batch.base_offset,
            detail=f"its first sequence is {first}, {wanted}",
        )


def follows_on(
    state: ProducerState, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> ProducerEntry | None:
    """The producer's entry, if a client's batch is just the next one of it: nothing more to check.

    In the transaction that it has open here, or outside of any if it has none: the first batch of one is another matter.
    """
    entry = state.get(producer_id)
    if entry is None or transactional != is_in_transaction(entry) or entry.producer_epoch != producer_epoch:
        return None
    if not entry.batches or base_sequence != entry.batches[-1].last_sequence + 1:
        return None
    return entry


def next_of(state: ProducerState, entry: ProducerEntry) -> tuple[int, int, int] | None:
    """(id, epoch, first sequence) of the batch that would follow on; None where there is none."""
    if not entry.batches or state.get(entry.producer_id) is not entry:
        return None
    return entry.producer_id, entry.producer_epoch, entry.batches[-1].last_sequence + 1


def is_in_transaction(entry: ProducerEntry) -> bool:
    """Whether the producer has one open here."""
    return entry.current_txn_first_offset is not None


def note_batch(entry: ProducerEntry, base_sequence: int, base_offset: int, last_offset: int, timestamp: int) -> None:
    """Takes in a batch that `follows_on`, once it is in the log."""
    delta = last_offset - base_offset
    entry.batches.append(BatchMetadata((base_sequence + delta) & _LARGEST_SEQUENCE, last_offset, delta, timestamp))
    entry.last_timestamp = timestamp


def _without_batches(entry: ProducerEntry | None, producer_id: int) -> ProducerEntry:
    if entry is None:
        return ProducerEntry(producer_id)
    return replace(entry, batches=deque(maxlen=BATCHES_TO_RETAIN))
