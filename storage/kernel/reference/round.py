"""The two passes over one partition (Cleaner.doClean's core; facts 5.2, 5.4 to 5.8, 5.11)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from compactd.config.errors import FaultError, StorageIOError
from compactd.storage.kernel.interface import (
    AbortedTransaction,
    ActiveProducer,
    CopyStats,
    GroupResult,
    MapResult,
    OutputFile,
    Progress,
    RoundSettings,
    SourceSegment,
)
from compactd.storage.kernel.reference.batch_filter import BatchFilter, Kept
from compactd.storage.kernel.reference.index_builder import SegmentIndexBuilder
from compactd.storage.kernel.reference.offset_map import OffsetMap
from compactd.storage.kernel.reference.reader import Meter, read_source
from compactd.storage.kernel.reference.transactions import CleanedTransactionMetadata
from compactd.storage.records.batch import Batch

MAX_SEGMENT_BYTES = 0x7FFFFFFF

_ABORTED = struct.Struct(">hqqqq")
_CHUNK = 1 << 20


class ReferenceRound:
    """Fills `interface.KernelRound`."""

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._map = OffsetMap(settings.map_memory_bytes, settings.map_load_factor, settings.kafka_map)
        #: Of pass two, all groups.
        self._transactions = CleanedTransactionMetadata()

    def build_map(
        self, sources: Sequence[SourceSegment], aborted: Sequence[AbortedTransaction], progress: Progress | None = None
    ) -> MapResult:
        """Pass one: the latest offset of every key in the dirty segments, until all are read or the map is full."""
        self._map.clear()
        transactions = CleanedTransactionMetadata()
        transactions.add_aborted(aborted)
        meter = Meter(progress)
        messages = size = 0
        full = False
        for source in sources:
            for batch in read_source(source, source.start_position):
                size += batch.header.size
                read, full = self._map_batch(batch, transactions)
                messages += read
                meter.add(batch.header.size)
                if full:
                    break
                if batch.header.last_offset >= self._settings.first_dirty_offset:
                    self._map.latest_offset = batch.header.last_offset
            if full:
                break
            # Offsets may be missing at the end of a segment: there is nothing to clean in the gap.
            self._map.latest_offset = source.next_offset - 1
        meter.flush()
        return MapResult(
            latest_offset=self._map.latest_offset,
            messages_read=messages,
            bytes_read=size,
            entries=len(self._map),
            capacity=self._map.capacity,
            slots=self._map.slots,
            full=full,
        )

    def _map_batch(self, batch: Batch, transactions: CleanedTransactionMetadata) -> tuple[int, bool]:
        """Messages read, and whether the map was full before the end of the batch."""
        header = batch.header
        if header.is_control:
            transactions.on_control_batch_read(batch)
            return 1, False
        if transactions.on_batch_read(header):
            return header.record_count, False
        records = batch.records()
        for index, record in enumerate(records):
            if record.key is not None and record.offset >= self._settings.first_dirty_offset:
                if self._map.is_full:
                    return index, True
                self._map.put(record.key, record.offset)
        return len(records), False

    def clean_group(
        self,
        group: Sequence[SourceSegment],
        active_producers: Mapping[int, ActiveProducer],
        output: OutputFile | None,
        progress: Progress | None = None,
    ) -> GroupResult:
        """Pass two: one cleaned segment out of the group's sources."""
        counts: Counter[str] = Counter()
        batch_filter = BatchFilter(self._settings, self._map, self._transactions, active_producers, counts)
        index = SegmentIndexBuilder(group[0].base_offset, self._settings.index_interval_bytes)
        log = _GroupLog(group, output)
        meter = Meter(progress)
        self._transactions.cleaned_index = []
        for number, source in enumerate(group):
            self._transactions.add_aborted(source.aborted)
            for batch in read_source(source):
                kept = batch_filter.apply(batch, source.retain_legacy_tombstones)
                if kept is not None:
                    index.relative(kept.max_offset, source.path, number)
                    index.append(kept.header, log.size, source.path, number)
                meter.add(batch.header.size, log.put(batch, kept))
        meter.flush()
        offset_index, time_index = index.finish(group[-1].path, len(group) - 1)
        return GroupResult(
            log_size=log.size,
            offset_index=offset_index,
            time_index=time_index,
            transaction_index=b"".join(map(_transaction_entry, self._transactions.cleaned_index)),
            unchanged=log.unchanged,
            stats=CopyStats(**counts),
        )

    def verify(self, sources: Sequence[SourceSegment], progress: Progress | None = None) -> None:
        """Reads every batch, CRC and offsets checked, and nothing more."""
        meter = Meter(progress)
        for source in sources:
            for batch in read_source(source, source.start_position):
                meter.add(batch.header.size)
        meter.flush()

    def contains(self, key: bytes) -> bool:
        """Whether pass one mapped the key."""
        return key in self._map

    def close(self) -> None:
        """Forgets the map."""
        self._map.clear()


def _transaction_entry(transaction: AbortedTransaction) -> bytes:
    """34 bytes of a transaction index, version 0 (facts 2.8)."""
    return _ABORTED.pack(
        0,
        transaction.producer_id,
        transaction.first_offset,
        transaction.last_offset,
        transaction.last_stable_offset,
    )


class _GroupLog:
    """The cleaned `.log`. As long as a lone source comes out byte for byte, nothing is written; then the start is copied."""

    def __init__(self, group: Sequence[SourceSegment], output: OutputFile | None) -> None:
        self.size = 0
        self.unchanged = len(group) == 1
        self._source = group[0]
        self._output = output

    def put(self, batch: Batch, kept: Kept | None) -> int:
        """Appends what was kept of a source batch, and returns the bytes written to the output."""
        if self.unchanged and kept is not None and kept.data == batch.data:
            self.size += len(kept.data)
            return 0
        written = self._copy_start() if self.unchanged else 0
        self.unchanged = False
        if kept is None:
            return written
        if self.size + len(kept.data) > MAX_SEGMENT_BYTES:
            reason = f"its cleaned segment would pass {MAX_SEGMENT_BYTES} bytes; lower segment.bytes"
            raise FaultError(path=self._source.path, reason=reason)
        if self._output is not None:
            self._output.write(kept.data)
        self.size += len(kept.data)
        return written + len(kept.data)

    def _copy_start(self) -> int:
        """The batches so far, which all were kept as they are."""
        if self._output is None or self.size == 0:
            return self.size
        left = self.size
        try:
            with open(self._source.path, "rb") as source:
                while left and (chunk := source.read(min(left, _CHUNK))):
                    self._output.write(chunk)
                    left -= len(chunk)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageIOError(path=self._source.path, action="reading", reason=reason) from error
        return self.size
