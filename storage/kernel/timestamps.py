"""The record of a batch that a lookup by time asks for: found natively where that was built, by plain Python where it was not.

The native search of a batch that decompresses to gigabytes holds a window of it, no more.
"""

from __future__ import annotations

from compactd.storage.kernel.validating import find_timestamp
from compactd.storage.records.batch import Batch


def record_at_time(batch: Batch, timestamp: int, first_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the first record at or above `first_offset` whose timestamp is at least `timestamp`.

    None: the batch has none. CorruptBatchError. The CRC is not looked at.
    """
    header = batch.header
    if find_timestamp is not None and header.magic == 2:
        append_time = header.max_timestamp if header.is_log_append_time else None
        first_delta = first_offset - header.base_offset
        arguments = (header.codec, header.record_count, header.base_timestamp, append_time, timestamp, first_delta)
        try:
            found = find_timestamp(batch.data, *arguments)
        except ValueError:
            pass  # told below with file, position and offsets
        else:
            return None if found is None else (header.base_offset + found[0], found[1])
    return search(batch, timestamp, first_offset)


def search(batch: Batch, timestamp: int, first_offset: int) -> tuple[int, int] | None:
    """The twin in plain Python."""
    for record in batch.records():
        if record.timestamp >= timestamp and record.offset >= first_offset:
            return record.offset, record.timestamp
    return None
