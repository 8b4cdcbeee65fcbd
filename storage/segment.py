"""LogSegment: one `.log` file with its indexes, as it lies on disk. Read only; nothing here opens a file for writing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CorruptBatchError
from compactd.storage import files, names
from compactd.storage.offset_index import OffsetIndex, OffsetIndexBuilder
from compactd.storage.records.batch import BatchHeader, scan_headers
from compactd.storage.time_index import TimeIndex

#: A segment's offsets are base .. base + this (relative offsets in the indexes are signed 32 bit).
MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What reading every batch header of a segment found: what Kafka's LogSegment.recover would rebuild."""

    #: Bytes of whole, valid batches from the start of the file.
    valid_bytes: int
    next_offset: int
    max_timestamp: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    #: The index files' contents.
    offset_index_bytes: bytes
    time_index_bytes: bytes
    #: Why reading stopped before the end of the file; None where it did not.
    fault: CorruptBatchError | None


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
                self._offset_index = self.scan().offset_index
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index. Kafka recovers a segment whose .index is missing; a missing .timeindex alone reads as empty."""
        if self._time_index is None:
            if not self.trust_indexes or not self.offset_index_path.exists():
                self._time_index = self.scan().time_index
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
        """Reads every batch header with its CRC and builds the indexes anew; stops at the first damaged batch."""
        if self._scan is None:
            builder = OffsetIndexBuilder(self.base_offset, self.index_interval_bytes)
            valid, next_offset, fault = 0, self.base_offset, None
            try:
                for header in self._headers(check_crc=True):
                    if not next_offset <= header.last_offset <= self.base_offset + MAX_RELATIVE_OFFSET:
                        fault = _out_of_order(self.log_path, header, next_offset)
                        break
                    builder.append(header.last_offset, header.max_timestamp, header.position, header.size)
                    valid, next_offset = header.position + header.size, header.next_offset
            except CorruptBatchError as error:
                fault = error
            builder.close()
            self._scan = SegmentScan(
                valid_bytes=valid,
                next_offset=next_offset,
                max_timestamp=builder.max_timestamp,
                offset_index=builder.offset_index(),
                time_index=builder.time_index(),
                offset_index_bytes=builder.offset_index_bytes(),
                time_index_bytes=builder.time_index_bytes(),
                fault=fault,
            )
        return self._scan

    def next_offset(self) -> int:
        """Offset after the segment's last batch; the base offset of an empty one (LogSegment.readNextOffset)."""
        if not self.trust_indexes:
            return self.scan().next_offset
        _, position = self.offset_index.last_entry
        last = None
        for last in self._headers(position):  # noqa: B007
            pass
        return self.base_offset if last is None else last.next_offset

    def _headers(self, position: int = 0, check_crc: bool = False) -> Iterator[BatchHeader]:
        """Headers of the segment's batches from `position` on; none for an empty segment, whose file may be absent."""
        if self.size == 0:
            return iter(())
        return scan_headers(self.log_path, position, self.size, check_crc=check_crc)


def _out_of_order(path: Path, header: BatchHeader, expected: int) -> CorruptBatchError:
    return CorruptBatchError(
        path=str(path),
        position=header.position,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        reason=f"its last offset is not between {expected} and the segment's last possible offset",
        expected_crc=None,
        found_crc=None,
    )


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
