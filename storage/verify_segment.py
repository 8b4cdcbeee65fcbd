"""Checks one segment: every batch of its `.log`, and every entry of its indexes against the batches. Reads only.

An index entry is right when a broker could have written it: it names the start of a batch and that batch's last offset
(or a timestamp that was the largest up to its batch). Which batches have entries is not checked: that depends on when the
broker was restarted.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CorruptBatchError, CorruptFileError
from compactd.storage.findings import FAULT, NOTE, Finding
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.scanning import SegmentScan, scan_segment
from compactd.storage.names import TopicPartition
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.records.batch import LOG_OVERHEAD, scan_headers
from compactd.storage.segment import LogSegment
from compactd.storage.segment_recovery import has_only_zeros
from compactd.storage.time_index import TimeIndex
from compactd.storage.transaction_index import read_transaction_index

#: Damaged batches of one file that are listed; a file with more is damaged as a whole.
MOST_FAULTS = 100

_CUT = "recovery cuts the segment here and deletes all later segments"
_REBUILD = "recovery rebuilds it from the .log"
_PREFIX = struct.Struct(">qi")


@dataclass(slots=True)
class SegmentCheck:
    """A checked segment: what was found, and what the checks of the whole log need of it."""

    segment: LogSegment
    #: Of the batches up to the first damaged one.
    scan: SegmentScan
    findings: list[Finding] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.scan.fault is None


def check_segment(
    segment: LogSegment, name: TopicPartition, *, is_active: bool, is_flushed: bool, is_closed: bool
) -> SegmentCheck:
    """`is_flushed`: an unclean stop cannot have torn it. `is_closed`: its indexes must be in their trimmed form."""
    # With interval 0 the scan's indexes have an entry for every batch but the first.
    scan = scan_segment(segment.log_path, segment.base_offset, 0, segment.size)
    check = SegmentCheck(segment, scan)
    check.findings.extend(_batch_faults(segment, scan, name, is_active=is_active, is_flushed=is_flushed))
    if scan.fault is None or scan.is_overflow:
        batches = _Batches(segment, scan)
        check.findings.extend(_offset_index_faults(segment, batches, name, is_closed=is_closed))
        check.findings.extend(_time_index_faults(segment, batches, name, is_closed=is_closed))
    try:
        check.aborted = read_transaction_index(segment.transaction_index_path, segment.base_offset)
    except CorruptFileError as error:
        check.findings.append(
            Finding(
                FAULT,
                "TRANSACTION_INDEX",
                segment.transaction_index_path,
                error.reason,
                error.position,
                repair="a start recovers the segment",
                topic_partition=name,
            )
        )
    return check


class _Batches:
    """Start and last offset of every batch of a segment, and where its largest timestamp rose."""

    def __init__(self, segment: LogSegment, scan: SegmentScan) -> None:
        self.offsets, self.positions = _columns(scan.offset_index)
        # Not the first batch either where it is the one that lies too far.
        first = next(scan_headers(segment.log_path, 0, segment.size), None) if scan.batches else None
        times = TimeIndex("", segment.base_offset, scan.time_index)
        #: (timestamp, last offset of the batch that first reached it)
        self.rises = times.entries
        if first is not None:
            self.offsets.insert(0, first.last_offset - segment.base_offset)
            self.positions.insert(0, 0)
            if first.max_timestamp >= 0 and (not self.rises or self.rises[0][1] > first.last_offset):
                self.rises.insert(0, (first.max_timestamp, first.last_offset))

    def position_of(self, relative: int) -> int | None:
        """Where the batch with this last offset starts; None where no batch ends there."""
        slot = bisect_left(self.offsets, relative)
        return self.positions[slot] if slot < len(self.offsets) and self.offsets[slot] == relative else None

    def has_start(self, position: int) -> bool:
        """Whether a batch starts at this byte."""
        slot = bisect_left(self.positions, position)
        return slot < len(self.positions) and self.positions[slot] == position

    def largest_up_to(self, offset: int, base_offset: int) -> int | None:
        """Largest timestamp of the batches up to the one that holds `offset`; None where there is no such batch."""
        slot = bisect_left(self.offsets, offset - base_offset)
        if slot == len(self.offsets):
            return None
        last = base_offset + self.offsets[slot]
        rise = bisect_right(self.rises, last, key=lambda entry: entry[1])
        return self.rises[rise - 1][0] if rise else -1


def _batch_faults(
    segment: LogSegment, scan: SegmentScan, name: TopicPartition, *, is_active: bool, is_flushed: bool
) -> Iterator[Finding]:
    """Every damaged batch: after one whose length can be believed, reading goes on behind it."""
    path, found = segment.log_path, 0
    fault: CorruptBatchError | None = scan.fault
    overflow = scan.is_overflow
    while fault is not None:
        found += 1
        at_end = is_active and not is_flushed
        if overflow:
            code, repair = "OFFSET_OVERFLOW", "an unclean start splits the segment"
        elif "truncated" in fault.reason:
            code, repair = "TORN_BATCH", _CUT if not at_end else "the next start cuts it off"
        else:
            code, repair = "CORRUPT_BATCH", _CUT
        yield Finding(
            FAULT,
            code,
            path,
            f"offsets {fault.base_offset} to {fault.last_offset}: {fault.reason}",
            fault.position,
            fault.base_offset if fault.base_offset >= 0 else None,
            repair,
            name,
        )
        following = _behind(path, fault, segment.size)
        if following is None:
            return
        if found == MOST_FAULTS:
            yield Finding(NOTE, "MORE_FAULTS", path, "more damage follows; it is not listed", topic_partition=name)
            return
        rest = scan_segment(path, segment.base_offset, 1 << 30, segment.size, start_position=following)
        fault, overflow = rest.fault, rest.is_overflow
        if rest.is_overflow:
            return  # the batches behind one that lies too far do so as well


def _behind(path: Path, fault: CorruptBatchError, size: int) -> int | None:
    """Where the batch after a damaged one starts; None where its length cannot be believed."""
    if fault.expected_crc is None and "follow" not in fault.reason and "too far" not in fault.reason:
        return None
    with path.open("rb") as file:
        file.seek(fault.position)
        _, length = _PREFIX.unpack(file.read(_PREFIX.size))
    following: int = fault.position + LOG_OVERHEAD + length
    return following if following < size else None


def _offset_index_faults(
    segment: LogSegment, batches: _Batches, name: TopicPartition, *, is_closed: bool
) -> Iterator[Finding]:
    path = segment.offset_index_path

    def fault(detail: str, position: int | None = None, offset: int | None = None) -> Finding:
        return Finding(FAULT, "OFFSET_INDEX", path, detail, position, offset, _REBUILD, name)

    if not path.exists():
        if segment.size:
            yield Finding(
                FAULT, "MISSING_INDEX", path, "the offset index is missing", repair="a start recovers the segment",
                topic_partition=name,
            )  # fmt: skip
        return
    index = OffsetIndex.read(path, segment.base_offset)
    # Entries of brokers before 3.9 may lead to an earlier batch than the one that ends there (storage.index_lookup).
    for error in index.check(segment.size):
        yield fault(error.reason, error.position)
    for number, (offset, position) in enumerate(index.entries):
        expected = batches.position_of(offset - segment.base_offset)
        if expected is None:
            yield fault(f"entry {number}: no batch ends at offset {offset}", number * 8, offset)
        elif position > expected or not batches.has_start(position):
            yield fault(
                f"entry {number}: the batch that ends at offset {offset} starts at byte {expected}, not {position}",
                number * 8,
                offset,
            )
    yield from _untrimmed(path, index.used_bytes, name, is_closed=is_closed)


def _time_index_faults(
    segment: LogSegment, batches: _Batches, name: TopicPartition, *, is_closed: bool
) -> Iterator[Finding]:
    path = segment.time_index_path

    def fault(detail: str, position: int | None = None, offset: int | None = None) -> Finding:
        return Finding(FAULT, "TIME_INDEX", path, detail, position, offset, _REBUILD, name)

    if not path.exists():
        if segment.size and batches.rises:
            detail = "the time index is missing: lookups by time and retention go wrong"
            yield Finding(FAULT, "MISSING_INDEX", path, detail, repair=_REBUILD, topic_partition=name)
        return
    index = TimeIndex.read(path, segment.base_offset)
    for error in index.check():
        yield fault(error.reason, error.position)
    for number, (timestamp, offset) in enumerate(index.entries):
        largest = batches.largest_up_to(offset, segment.base_offset)
        if largest is None:
            yield fault(f"entry {number}: the segment has no offset {offset}", number * 12, offset)
        elif largest != timestamp:
            detail = f"entry {number}: the largest timestamp up to offset {offset} is {largest}, not {timestamp}"
            yield fault(detail, number * 12, offset)
    largest_of_all = batches.rises[-1][0] if batches.rises else -1
    if is_closed and index.last_entry[0] < largest_of_all:
        detail = f"it ends at timestamp {index.last_entry[0]}, the segment's largest is {largest_of_all}"
        yield fault(detail)
    yield from _untrimmed(path, index.used_bytes, name, is_closed=is_closed)


def _untrimmed(path: Path, used: int, name: TopicPartition, *, is_closed: bool) -> Iterator[Finding]:
    """Zeros behind the entries, as a preallocated index has them; other bytes there are faults of their own."""
    size = path.stat().st_size
    if is_closed and size >= used + 8 and has_only_zeros(path, used):
        detail = f"{size - used} bytes follow its entries: it was not cut when its segment was closed"
        yield Finding(FAULT, "INDEX_NOT_TRIMMED", path, detail, used, repair=_REBUILD, topic_partition=name)


def _columns(data: bytes) -> tuple[array[int], array[int]]:
    numbers = array("i", data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers[0::2], numbers[1::2]
