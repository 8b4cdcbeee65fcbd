"""Aborted transactions of a range of the log (UnifiedLog.collectAbortedTransactions)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.segment import LogSegment
from compactd.storage.transaction_index import collect_aborted, read_transaction_index


class AbortedTransactions:
    """The transaction indexes of one partition, each file read once; after an unclean stop what recovery would write."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._entries: dict[int, list[AbortedTransaction]] = {}
        # Where to look after a segment: most have no transaction index, and a round asks once for each of its segments.
        self._next = list(range(1, len(segments) + 1))

    def collect(self, first: int, lower: int, upper: int) -> list[AbortedTransaction]:
        """Transactions with last offset >= `lower` and first offset < `upper`, from the segment that contains `first` on."""
        return collect_aborted(self._from(max(0, bisect_right(self._bases, first) - 1)), lower, upper)

    def _from(self, position: int) -> Iterator[list[AbortedTransaction]]:
        """The indexes that have entries, of the segments from `position` on; each is read when it is asked for."""
        while position < len(self._segments):
            empty = []
            while position < len(self._segments) and not self._of(position):
                empty.append(position)
                position = self._next[position]
            for passed in empty:
                self._next[passed] = position
            if position < len(self._segments):
                yield self._of(position)
                position = self._next[position]

    def _of(self, position: int) -> list[AbortedTransaction]:
        if position not in self._entries:
            segment = self._segments[position]
            recovered = segment.unsaved_aborted
            self._entries[position] = (
                read_transaction_index(segment.transaction_index_path) if recovered is None else list(recovered)
            )
        return self._entries[position]
