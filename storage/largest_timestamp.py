"""Finds the record that has a segment's largest timestamp: the time index knows only its batch."""

from __future__ import annotations

from compactd.storage.index_lookup import start_position
from compactd.storage.records.batch import read_batches
from compactd.storage.retention import RetainedSegment
from compactd.storage.segment import LogSegment


def locate_largest_timestamp(segment: RetainedSegment) -> int | None:
    """Offset of the first record with the segment's largest timestamp; None where no record has one.

    Where the index leads nowhere it is the batch's last offset. Raises CorruptBatchError.
    """
    if not isinstance(segment, LogSegment) or segment.max_timestamp < 0:
        return None
    timestamp, last_offset = segment.time_index.last_entry
    position = start_position(segment, last_offset)
    for batch in read_batches(segment.log_path, position, segment.size):
        if batch.header.last_offset < last_offset:
            continue
        return next((record.offset for record in batch.records() if record.timestamp == timestamp), last_offset)
    return last_offset
