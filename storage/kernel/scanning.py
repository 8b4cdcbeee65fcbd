"""Reading a segment once from its first batch: what recovery has to know of it (LogSegment.recover; facts 8.3).

Both kernels have a `scan_segment`; this module gives their results a shape and picks the native one where it was built.

Stricter than Kafka on purpose: a batch whose base offset does not lie above the batch before is damage, like one whose
CRC does not match (the CRC of a batch does not cover its base offset). Kafka takes it over where no index entry happens
to be due, and empties the whole segment where one is. An unknown magic is damage too; Kafka reads it as magic 2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactd.config.errors import CorruptBatchError, CorruptFileError
from compactd.storage import files
from compactd.storage.kernel.reference import scan as reference_scan
from compactd.storage.records.control import ControlRecordType, EndTransactionMarker

#: A segment's positions are signed 32 bit numbers.
LARGEST_SEGMENT = 2**31 - 1

_PRODUCED = struct.Struct(">QqqqqhiBhi")
_SEQUENCES = 2**31


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """One batch with a producer id, as `ProducerState.update` takes it."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    #: The transaction marker of a control batch; None for data, and for a control batch that was emptied.
    marker: EndTransactionMarker | None

    @property
    def last_sequence(self) -> int:
        """Wraps from 2147483647 to 0; -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) % _SEQUENCES


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What one pass over a segment found. Offsets absolute, times ms (-1 none)."""

    path: str
    base_offset: int
    #: Bytes of whole, valid, ordered batches from the start of the file, and their number.
    valid_bytes: int
    batches: int
    #: After the last valid batch; the base offset of an empty segment.
    next_offset: int
    max_timestamp: int
    #: Last offset of the batch that first reached `max_timestamp`.
    offset_of_max_timestamp: int
    #: Contents of the segment's closed indexes.
    offset_index: bytes
    time_index: bytes
    #: (leader epoch, base offset of the batch) wherever the epoch changes; in a sound log it only rises.
    epochs: tuple[tuple[int, int], ...]
    #: Why reading stopped before the end of the file; None where it did not.
    fault: CorruptBatchError | None
    #: The fault is an intact batch too far from the base offset: the segment has to be split (facts 5.9).
    is_overflow: bool
    #: After the last batch of magic 2, up to where there can be producers; the base offset where there is none.
    next_of_current: int = 0
    produced_bytes: bytes = b""

    def produced(self) -> Iterator[ProducedBatch]:
        """Batches of producers in log order: all from which the state follows, not all there are.

        Left out are batches that five later ones of the same producer and transaction make irrelevant.
        """
        for values in _PRODUCED.iter_unpack(self.produced_bytes):
            position, base, last, timestamp, producer, epoch, sequence, flags, kind, coordinator = values
            marker = (
                EndTransactionMarker(ControlRecordType(kind), coordinator) if flags & reference_scan.MARKED else None
            )
            yield ProducedBatch(
                position,
                base,
                last,
                timestamp,
                producer,
                epoch,
                sequence,
                bool(flags & reference_scan.TRANSACTIONAL),
                bool(flags & reference_scan.CONTROL),
                marker,
            )


def scan_segment(
    path: files.StrPath,
    base_offset: int,
    index_interval_bytes: int = 4096,
    limit: int | None = None,
    check_crc: bool = True,
    produced_from: int = 0,
    start_position: int = 0,
) -> SegmentScan:
    """Reads the batches of a `.log` from its start to byte `limit` (default: its end), in bounded memory.

    `produced_from`: batches of producers that end below this offset are left out of `produced`. `start_position`: begin at
    this batch; the indexes then found are not the segment's.

    Raises StorageIOError; CorruptFileError for a file longer than a segment can be.
    """
    name = os.fspath(path)
    try:
        size = Path(name).stat().st_size
        if size > LARGEST_SEGMENT:
            raise CorruptFileError(
                path=name,
                reason=f"the file has {size} bytes, a segment has at most {LARGEST_SEGMENT}",
                position=LARGEST_SEGMENT,
                advice="Kafka cannot open it either; it is not what its name says.",
            )
        found = _function()(name, base_offset, index_interval_bytes, limit, check_crc, produced_from, start_position)
    except OSError as error:
        raise files.failed(name, "read", error) from error
    (
        (valid, next_offset, timestamp, offset_of_max, batches, next_of_current),
        offset_index,
        time_index,
        epochs,
        produced,
        fault,
        far,
    ) = found
    return SegmentScan(
        path=name,
        base_offset=base_offset,
        valid_bytes=valid,
        batches=batches,
        next_offset=next_offset,
        max_timestamp=timestamp,
        offset_of_max_timestamp=offset_of_max,
        offset_index=offset_index,
        time_index=time_index,
        epochs=tuple((epoch, offset) for epoch, offset in epochs),
        fault=None if fault is None else _error(name, fault),
        is_overflow=far,
        next_of_current=next_of_current,
        produced_bytes=produced,
    )


def empty_scan(path: files.StrPath, base_offset: int) -> SegmentScan:
    """What a scan of an empty segment finds."""
    return SegmentScan(
        os.fspath(path), base_offset, 0, 0, base_offset, -1, base_offset, b"", b"", (), None, False, base_offset
    )


def _function() -> Callable[..., Any]:
    if os.environ.get("COMPACTD_KERNEL") != "reference":
        try:
            from compactd.storage.kernel import _native  # noqa: PLC0415

            native: Callable[..., Any] = _native.scan_segment
            return native
        except (ImportError, AttributeError):
            pass
    return reference_scan.scan_segment


def _error(path: str, fault: tuple[int, int, int, str, tuple[int, int] | None]) -> CorruptBatchError:
    position, base, last, reason, crcs = fault
    return CorruptBatchError(
        path=path,
        position=position,
        base_offset=base,
        last_offset=last,
        reason=reason,
        expected_crc=crcs[0] if crcs else None,
        found_crc=crcs[1] if crcs else None,
    )
