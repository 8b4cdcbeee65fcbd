"""LogSegment: one `.log` file with its indexes, as it lies on disk. Read only; nothing here opens a file for writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compactd.storage import files, names
from compactd.storage.index_lookup import start_position
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.scanning import SegmentScan, empty_scan, scan_segment
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.records.batch import BatchHeader, scan_headers
from compactd.storage.time_index import TimeIndex

#: A segment's offsets are base .. base + this (relative offsets in the indexes are signed 32 bit).
MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(slots=True)
class LogSegment:
    """One segment. Sizes in bytes, times in ms; the indexes are read when first asked for."""

    directory: Path
    base_offset: int
    #: Bytes of the .log file that hold the segment's batches.
    size: int
    #: The .log file's time, the stand-in for a timestamp where no record has one.
    last_modified_ms: int
    index_interval_bytes: int = 4096
    #: False after an unclean stop for segments at or above the recovery point: Kafka would rebuild their indexes.
    trust_indexes: bool = True
    #: Set where recovery did not write the transaction index (a full disk, or a view that changes nothing): what the file
    #: would hold.
    unsaved_aborted: tuple[AbortedTransaction, ...] | None = None
    _offset_index: OffsetIndex | None = field(default=None, repr=False)
    _time_index: TimeIndex | None = field(default=None, repr=False)
    _scan: SegmentScan | None = field(default=None, repr=False)
    _first: BatchHeader | None = field(default=None, repr=False)

    @property
    def log_path(self) -> Path:
        return self.directory / names.log_name(self.base_offset)

    @property
    def offset_index_path(self) -> Path:
        return self.directory / names.offset_index_name(self.base_offset)

    @property
    def time_index_path(self) -> Path:
        return self.directory / names.time_index_name(self.base_offset)

    @property
    def transaction_index_path(self) -> Path:
        return self.directory / names.transaction_index_name(self.base_offset)

    def existing_files(self) -> list[Path]:
        """The segment's files that exist, .log first."""
        paths = (self.log_path, self.offset_index_path, self.time_index_path, self.transaction_index_path)
        return [path for path in paths if path.exists()]

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index; rebuilt in memory where the file is missing or cannot be trusted (LogSegment.recover)."""
        if self._offset_index is None:
            if self.trust_indexes and self.offset_index_path.exists():
                self._offset_index = OffsetIndex.read(self.offset_index_path, self.base_offset)
            else:
                self._offset_index = OffsetIndex(
                    str(self.offset_index_path), self.base_offset, self.scan().offset_index
                )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index. Kafka recovers a segment whose .index is missing; a missing .timeindex alone reads as empty."""
        if self._time_index is None:
            if not self.trust_indexes or not self.offset_index_path.exists():
                self._time_index = TimeIndex(str(self.time_index_path), self.base_offset, self.scan().time_index)
            elif self.time_index_path.exists():
                self._time_index = TimeIndex.read(self.time_index_path, self.base_offset)
            else:
                self._time_index = TimeIndex.empty(self.base_offset)
        return self._time_index

    @property
    def max_timestamp(self) -> int:
        """Largest record timestamp in ms; -1 where no record has one."""
        return self.time_index.last_entry[0]

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp, or the .log's modification time where no record has one (LogSegment.largestTimestamp)."""
        largest = self.max_timestamp
        return largest if largest >= 0 else self.last_modified_ms

    @property
    def first_batch_timestamp(self) -> int:
        """Max timestamp of the first batch; -1 for an empty segment (LogSegment.getFirstBatchTimestamp)."""
        if self._first is None:
            self._first = next(self._headers(), None)
        return -1 if self._first is None else self._first.max_timestamp

    def scan(self) -> SegmentScan:
        """Reads every batch with its CRC and builds the indexes anew; stops at the first damaged batch."""
        if self._scan is None:
            if self.size == 0:  # the file may be absent
                self._scan = empty_scan(self.log_path, self.base_offset)
            else:
                self._scan = scan_segment(self.log_path, self.base_offset, self.index_interval_bytes, self.size)
        return self._scan

    def remember(self, scan: SegmentScan, aborted: tuple[AbortedTransaction, ...]) -> None:
        """Keeps rebuilt indexes in memory, because they could not be written."""
        self._scan, self.trust_indexes, self.unsaved_aborted = scan, False, aborted

    def forget(self) -> None:
        """Reads everything anew when it is next asked for: the files were changed."""
        self._offset_index = self._time_index = self._scan = self._first = None

    def next_offset(self) -> int:
        """Offset after the segment's last batch; the base offset of an empty one (LogSegment.readNextOffset)."""
        if not self.trust_indexes:
            return self.scan().next_offset
        position = start_position(self, self.base_offset + MAX_RELATIVE_OFFSET)
        if self.size > position:
            scan = scan_segment(
                self.log_path, self.base_offset, self.index_interval_bytes, self.size, False, start_position=position
            )
            if scan.fault is None:
                return scan.next_offset
        last = None
        for last in self._headers(position):  # noqa: B007
            pass
        return self.base_offset if last is None else last.next_offset

    def _headers(self, position: int = 0, check_crc: bool = False) -> Iterator[BatchHeader]:
        """Headers of the segment's batches from `position` on; none for an empty segment, whose file may be absent."""
        if self.size == 0:
            return iter(())
        return scan_headers(self.log_path, position, self.size, check_crc=check_crc)


def list_segments(directory: Path, index_interval_bytes: int = 4096) -> list[LogSegment]:
    """The plain `.log` files of a partition directory as segments in offset order; suffixed files are not segments."""
    segments = []
    for path in directory.iterdir():
        name = names.parse_segment_name(path.name)
        if name is None or name.kind != names.LOG or name.suffix:
            continue
        try:
            size = path.stat().st_size
            modified = files.mtime_ms(path)
        except FileNotFoundError:
            continue  # a running broker removed it between the listing and here
        segments.append(LogSegment(directory, name.base_offset, size, modified, index_interval_bytes))
    return sorted(segments, key=lambda segment: segment.base_offset)
