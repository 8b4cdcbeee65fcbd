"""Where to begin to read a segment for an offset: the offset index says, and is believed only as far as the `.log` bears it out.

An entry names the start of a batch and the offset at which that batch ends (facts 2.5). Brokers before 3.9 wrote one entry
for all batches that were appended together, by a follower or by the cleaner: the start of the first, the end of the last. Both
kinds lead to a batch that ends at or below the entry's offset, and nothing that ends above lies before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compactd.config.errors import CorruptBatchError
from compactd.storage import files
from compactd.storage.records.batch import HEADER_SIZE, read_header


class OffsetLookup(Protocol):
    """An offset index, read or live."""

    def lookup(self, offset: int) -> tuple[int, int]: ...


class IndexedSegment(Protocol):
    """What the lookup asks of a segment; LogSegment and LiveSegment have it."""

    @property
    def size(self) -> int: ...
    @property
    def log_path(self) -> Path: ...
    @property
    def offset_index(self) -> OffsetLookup: ...


def start_position(segment: IndexedSegment, offset: int) -> int:
    """A byte from which on every batch of the segment that ends at or above `offset` is met; 0 where the index misleads."""
    entry, position = segment.offset_index.lookup(offset)
    return position if leads_to_batch(segment, entry, position) else 0


def leads_to_batch(segment: IndexedSegment, entry_offset: int, position: int) -> bool:
    """Whether an index entry can be believed. StorageIOError where the `.log` cannot be read."""
    if not 0 < position < segment.size:
        return position == 0
    try:
        with segment.log_path.open("rb", buffering=0) as file:
            file.seek(position)
            front = file.read(HEADER_SIZE)
    except OSError as error:
        raise files.failed(segment.log_path, "read", error) from error
    try:
        header = read_header(front, 0, file_position=position)
    except CorruptBatchError:
        return False
    return header.last_offset <= entry_offset and position + header.size <= segment.size
