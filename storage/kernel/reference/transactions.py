"""Which batches belong to aborted transactions, and which markers are still needed (CleanedTransactionMetadata, facts 5.4).

Each pass has its own tracker, and feeds it every batch in offset order. In pass two one tracker sees all groups of the
round, so a transaction may span segments and groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.records.batch import Batch, BatchHeader
from compactd.storage.records.control import ControlRecordType, parse_control_key
from compactd.storage.records.varint import MalformedError


class _Ongoing:
    """An aborted transaction whose marker was not met yet."""

    __slots__ = ("batch_seen", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.batch_seen = False


class CleanedTransactionMetadata:
    """State of all transactions up to the batch that was read last."""

    def __init__(self) -> None:
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._added = 0
        self._aborted: dict[int, _Ongoing] = {}
        self._committed: set[int] = set()
        #: Entries of the transaction index of the segment being written.
        self.cleaned_index: list[AbortedTransaction] = []

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Entries of the transaction indexes. The same one may be added again, for the next segment that it touches."""
        for transaction in transactions:
            heapq.heappush(self._upcoming, (transaction.first_offset, self._added, transaction))
            self._added += 1

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Whether the records of a data batch are to be discarded: they belong to an aborted transaction."""
        self._begin_aborted_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._aborted.get(header.producer_id)
        if ongoing is None:
            self._committed.add(header.producer_id)
            return False
        ongoing.batch_seen = True
        return True

    def on_control_batch_read(self, batch: Batch) -> bool:
        """Whether a marker has become needless: no batch of its transaction was seen in this round.

        Seen means read from a source segment, be it dropped now or empty since long. An ABORT that is still needed goes
        into `cleaned_index`. Control records that are not transaction markers are always needed.
        """
        header = batch.header
        self._begin_aborted_up_to(header.last_offset)
        records = batch.records()
        if not records:
            return True  # cleaned before: only the batch was kept, for its producer
        try:
            kind = parse_control_key(records[0].key)
        except MalformedError as error:
            header.corrupt(batch.path, str(error))
        if kind is ControlRecordType.ABORT:
            ongoing = self._aborted.pop(header.producer_id, None)
            if ongoing is not None and ongoing.batch_seen:
                self.cleaned_index.append(ongoing.transaction)
                return False
            return True
        if kind is ControlRecordType.COMMIT:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        return False

    def _begin_aborted_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            transaction = heapq.heappop(self._upcoming)[2]
            self._aborted.setdefault(transaction.producer_id, _Ongoing(transaction))
