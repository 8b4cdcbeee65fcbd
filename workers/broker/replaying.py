"""Reads a coordinator's log from its start to its end, batch by batch. Blocks: for a thread."""

from __future__ import annotations

from collections.abc import Iterator

from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import Batch, iter_batches

_LENGTH_END = 12


def replayed(log: PartitionLog, chunk: int, start: int | None = None) -> Iterator[tuple[int, Batch]]:
    """Every batch from `start` (None: the log's) up to the log's end as it was at the call, with the first offset that
    counts of it.

    Reads `chunk` bytes at once; a batch that is larger is read whole. CorruptBatchError, StorageIOError.
    """
    offset, end = log.log_start_offset if start is None else start, log.log_end_offset
    while offset < end:
        with log.read(offset, chunk, "log_end") as fetched:
            data = fetched.read()
        whole = _whole_batches(data)
        if not whole:
            return
        for batch in iter_batches(data[:whole], path=str(log.directory)):
            if batch.header.next_offset > offset:
                yield offset, batch
                offset = batch.header.next_offset


def _whole_batches(data: bytes) -> int:
    """Bytes of `data` in front of a batch that was cut."""
    position = 0
    while position + _LENGTH_END <= len(data):
        size = int.from_bytes(data[position + 8 : position + _LENGTH_END], "big", signed=True) + _LENGTH_END
        if size <= _LENGTH_END or position + size > len(data):
            break
        position += size
    return position
