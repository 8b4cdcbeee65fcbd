"""Aborted transactions of a range of the log, out of the segments' transaction indexes (UnifiedLog.collectAbortedTransactions)."""

from __future__ import annotations

from collections.abc import Sequence

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.segment import LogSegment
from compactd.storage.transaction_index import read_transaction_index


class AbortedTransactions:
    """The transaction indexes of one partition, each file read once."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._entries: dict[int, list[AbortedTransaction]] = {}

    def of_segment(self, segment: LogSegment) -> list[AbortedTransaction]:
        if segment.base_offset not in self._entries:
            path = segment.transaction_index_path
            self._entries[segment.base_offset] = read_transaction_index(path) if path.exists() else []
        return self._entries[segment.base_offset]

    def collect(self, first: int, lower: int, upper: int) -> list[AbortedTransaction]:
        """Transactions with last offset >= `lower` and first offset < `upper`, from the segment that contains `first` on.

        An entry whose last stable offset is at or above `upper` ends the search: no later one can begin below it (facts 2.8).
        """
        floor = max((s.base_offset for s in self._segments if s.base_offset <= first), default=first)
        found = []
        for segment in self._segments:
            if segment.base_offset < floor:
                continue
            for entry in self.of_segment(segment):
                if entry.last_offset >= lower and entry.first_offset < upper:
                    found.append(entry)
                if entry.last_stable_offset >= upper:
                    return found
        return found
