"""Reads the batches of a source segment, every one checked before anybody looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from compactd.config.errors import CorruptBatchError
from compactd.storage.kernel.interface import Progress, SourceSegment
from compactd.storage.records.batch import Batch, read_batches

#: Bytes read between two calls of the progress callback.
PROGRESS_BYTES = 4 << 20


class Meter:
    """Counts bytes, and tells the progress callback now and then."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._read = 0
        self._written = 0

    def add(self, read: int, written: int = 0) -> None:
        self._read += read
        self._written += written
        if self._read >= PROGRESS_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._progress is not None and (self._read or self._written):
            self._progress(self._read, self._written)
        self._read = self._written = 0


def read_source(source: SourceSegment, start_position: int = 0) -> Iterator[Batch]:
    """The batches of a segment from `start_position` on, in bounded memory.

    Raises CorruptBatchError where the CRC or a length is wrong, where the file is shorter than `size`, and where offsets
    do not increase or are not this segment's: the CRC of a V2 batch does not cover its base offset.
    """
    previous = source.base_offset - 1
    end = start_position
    for batch in read_batches(source.path, start_position, source.size):
        batch.check()
        header = batch.header
        if not previous < header.base_offset <= header.last_offset < source.next_offset:
            header.corrupt(source.path, f"its offsets are not between {previous + 1} and {source.next_offset - 1}")
        yield batch
        previous = header.last_offset
        end = header.position + header.size
    if end < source.size:
        _raise_truncated(source, end, previous)


def _raise_truncated(source: SourceSegment, end: int, previous: int) -> NoReturn:
    raise CorruptBatchError(
        path=source.path,
        position=end,
        base_offset=previous + 1,
        last_offset=-1,
        reason=f"truncated, the file ends here and had {source.size} bytes before",
        expected_crc=None,
        found_crc=None,
    )
