"""Reading a live log, from any thread (UnifiedLog.read, fetchOffsetByTimestamp; facts 2.8, 10)."""

from __future__ import annotations

from compactd.config.errors import OffsetOutOfRangeError
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.local_log import OffsetPosition, View
from compactd.storage.log_state import LogState
from compactd.storage.reader import (
    NOTHING,
    Fetched,
    Isolation,
    Range,
    TimestampOffset,
    aborted_in,
    collect_aborted_from,
    find_slice,
    locate_offset,
    removed,
    search_max_timestamp,
    search_timestamp,
)

#: Special timestamps of ListOffsets.
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
#: How often a read starts over because a segment was removed under it.
_READ_TRIES = 5


class LogReading(LogState):
    """Adds what consumers ask. No method here changes the log."""

    def read(
        self,
        offset: int,
        most_bytes: int,
        isolation: Isolation = "high_watermark",
        at_least_one: bool = True,
    ) -> Fetched:
        """Bytes of one segment from the batch that holds `offset`, or the next one where compaction left a gap.

        `at_least_one`: the first batch is given even if it has more than `most_bytes`. OffsetOutOfRangeError: below the
        log's start or above its end. Raises CorruptBatchError, CorruptFileError, StorageIOError.
        """
        for attempt in range(_READ_TRIES):
            try:
                return self._read(offset, most_bytes, isolation, at_least_one)
            except FileNotFoundError as error:  # a segment of our view was removed meanwhile
                if attempt == _READ_TRIES - 1:
                    raise removed(self.active_segment) from error
        raise removed(self.active_segment)

    def _read(self, offset: int, most_bytes: int, isolation: Isolation, at_least_one: bool) -> Fetched:
        local = self.local
        view, end, start = local.view, local.end, self.log_start_offset
        if offset < start or offset > end.offset:
            raise OffsetOutOfRangeError(
                path=self.home.path, offset=offset, detail=f"starts at {start} and ends at {end.offset}"
            )
        mark, unstable = self._high_watermark.offset, self._first_unstable
        stable = mark if unstable is None or unstable.offset > mark else unstable.offset
        committed = isolation == "committed"
        # Mostly a reader sees up to the log's end.
        upper = end if mark >= end.offset and (stable == mark or not committed) else self._upper(view, end, isolation)
        where = find_slice(view, offset, most_bytes, at_least_one, upper) if offset < upper.offset else None
        if where is None:
            return Fetched(NOTHING, offset, upper.segment_base, start, mark, stable, [] if committed else None)
        index, first, length, file = where
        fetched = Fetched(
            Range(file, first.position, length), first.base_offset, view.bases[index], start, mark, stable,
            [] if committed else None, length < first.size,
        )  # fmt: skip
        if committed and length > 0:
            try:
                fetched.aborted = aborted_in(view, where, offset, end.offset)
            except BaseException:
                fetched.close()
                raise
        return fetched

    def _upper(self, view: View, end: OffsetPosition, isolation: Isolation) -> OffsetPosition:
        """Where a reader's view ends, with its position."""
        if isolation == "log_end":
            return end
        mark = self._high_watermark
        unstable = self._first_unstable
        if isolation == "committed" and unstable is not None and unstable.offset < mark.offset:
            mark = unstable
        if mark.offset >= end.offset:
            return end
        if mark.position >= 0:
            return mark
        # Each isolation remembers the place of its last mark for the next reader, beside the mark: only the log's owner
        # moves the mark itself. A swap makes new mark objects.
        known = self._placed.get(isolation)
        if known is not None and known[0] is mark:
            return known[1]
        found = locate_offset(view, mark.offset)
        if found.position < 0:
            return end._replace(offset=mark.offset)
        if view is self.local.view:
            self._placed[isolation] = (mark, found)
        return found

    def collect_aborted(self, first_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that touch offsets from `first_offset` to below `upper_offset`."""
        view = self.local.view
        return collect_aborted_from(view, view.floor(first_offset), first_offset, upper_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """ListOffsets: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, or the first record that is not older.

        None when no record answers. Raises CorruptBatchError, StorageIOError.
        """
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start, entries = self.log_start_offset, self.epochs.entries
            return TimestampOffset(-1, start, entries[0][0] if entries and entries[0][1] <= start else -1)
        if timestamp == LATEST_TIMESTAMP:
            epoch = self.epochs.latest_epoch
            return TimestampOffset(-1, self.log_end_offset, -1 if epoch is None else epoch)
        for _ in range(_READ_TRIES):
            try:
                if timestamp == MAX_TIMESTAMP:
                    return search_max_timestamp(self.local.view)
                return search_timestamp(self.local.view, timestamp, self.log_start_offset)
            except FileNotFoundError:
                continue
        raise removed(self.active_segment)
