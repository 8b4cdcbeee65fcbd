"""Offset index and time index of a segment that is written batch by batch (LogSegment.append; facts 10.4, 5.8)."""

from __future__ import annotations

import struct

from compactd.config.errors import OffsetOverflowError
from compactd.storage.records.batch import BatchHeader

MAX_RELATIVE_OFFSET = 0x7FFFFFFF

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class SegmentIndexBuilder:
    """Collects entries while batches are appended at growing positions."""

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._bytes_since_entry = 0
        #: Largest timestamp so far, and the last offset of the batch that reached it first.
        self._newest = (-1, base_offset)
        self._last_timestamp = -1
        self._offsets = bytearray()
        self._times = bytearray()

    def append(self, header: BatchHeader, position: int, path: str, source: int) -> None:
        """A batch at byte `position` of the new segment; `path` and `source` are where it came from, for errors.

        Raises OffsetOverflowError when an entry's offset is too far from the base offset.
        """
        if header.max_timestamp > self._newest[0]:
            self._newest = (header.max_timestamp, header.last_offset)
        if self._bytes_since_entry > self._interval:
            self._offsets += _OFFSET_ENTRY.pack(self.relative(header.last_offset, path, source), position)
            self._append_time(path, source)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size

    def relative(self, offset: int, path: str, source: int) -> int:
        """`offset` counted from the base offset. Raises OffsetOverflowError outside 0..2147483647."""
        if not 0 <= offset - self._base_offset <= MAX_RELATIVE_OFFSET:
            raise OffsetOverflowError(path=path, offset=offset, base_offset=self._base_offset, source=source)
        return offset - self._base_offset

    def _append_time(self, path: str, source: int) -> None:
        timestamp, offset = self._newest
        if timestamp > self._last_timestamp:
            self._times += _TIME_ENTRY.pack(timestamp, self.relative(offset, path, source))
            self._last_timestamp = timestamp

    def finish(self, path: str, source: int) -> tuple[bytes, bytes]:
        """Contents of `.index` and `.timeindex`, with the closing time entry."""
        self._append_time(path, source)
        return bytes(self._offsets), bytes(self._times)
