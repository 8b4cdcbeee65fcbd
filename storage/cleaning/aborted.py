"""Aborted transactions of a range of the log (UnifiedLog.collectAbortedTransactions)."""

from __future__ import annotations

from collections.abc import Sequence

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.segment import LogSegment
from compactd.storage.transaction_index import collect_aborted, read_transaction_index


class AbortedTransactions:
    """The transaction indexes of one partition, each file read once; after an unclean stop what recovery would write."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._entries: dict[int, list[AbortedTransaction]] = {}

    def collect(self, first: int, lower: int, upper: int) -> list[AbortedTransaction]:
        """Transactions with last offset >= `lower` and first offset < `upper`, from the segment that contains `first` on."""
        floor = max((s.base_offset for s in self._segments if s.base_offset <= first), default=first)
        indexes = (self._of(segment) for segment in self._segments if segment.base_offset >= floor)
        return collect_aborted(indexes, lower, upper)

    def _of(self, segment: LogSegment) -> list[AbortedTransaction]:
        if segment.base_offset not in self._entries:
            recovered = segment.unsaved_aborted
            self._entries[segment.base_offset] = (
                read_transaction_index(segment.transaction_index_path) if recovered is None else list(recovered)
            )
        return self._entries[segment.base_offset]
