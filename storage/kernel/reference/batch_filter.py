"""What becomes of one batch in pass two (Cleaner.cleanInto and MemoryRecords.filterTo; facts 5.6, 5.7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compactd.config.errors import FaultError
from compactd.storage.kernel.interface import ActiveProducer, RoundSettings
from compactd.storage.kernel.reference.offset_map import OffsetMap
from compactd.storage.kernel.reference.transactions import CleanedTransactionMetadata
from compactd.storage.records.batch import Batch, BatchHeader, read_header
from compactd.storage.records.builder import build_batch, empty_batch
from compactd.storage.records.record import Headers, Record, wrap_long


class Kept(NamedTuple):
    """A batch of the cleaned segment."""

    data: bytes
    header: BatchHeader
    #: Offset for the segment's range check: the last retained record's in a rewritten batch, else the batch's last.
    max_offset: int


class BatchFilter:
    """Decides batch by batch, in source order. `counts` collects the fields of interface.CopyStats."""

    def __init__(
        self,
        settings: RoundSettings,
        offset_map: OffsetMap,
        transactions: CleanedTransactionMetadata,
        active_producers: Mapping[int, ActiveProducer],
        counts: Counter[str],
    ) -> None:
        self._settings = settings
        self._map = offset_map
        self._transactions = transactions
        self._active_producers = active_producers
        self._counts = counts

    def apply(self, batch: Batch, retain_legacy_tombstones: bool) -> Kept | None:
        """The batch as the cleaned segment gets it: its very bytes, rewritten, emptied; None when it is dropped.

        Raises CorruptBatchError; FaultError for a V0/V1 batch that should be emptied, which Kafka refuses as well.
        """
        header, counts = batch.header, self._counts
        counts["batches_read"] += 1
        counts["bytes_read"] += header.size
        if header.is_control:
            needless_marker = self._transactions.on_control_batch_read(batch)
            discard = needless_marker and self._horizon_passed(header)
        else:
            needless_marker = False
            discard = self._transactions.on_batch_read(header)
        retain_empty = self._is_last_of_producer(header) or header.next_offset == self._settings.high_watermark
        if discard:
            counts["markers_removed" if header.is_control else "aborted"] += header.record_count
            if not retain_empty:
                return None  # without a look at its records
        records = batch.records()
        counts["messages_read"] += len(records)
        retain_tombstones = self._retains_tombstones(header, retain_legacy_tombstones)
        retained = [] if discard else [r for r in records if header.is_control or self._retains(r, retain_tombstones)]
        if retained:
            return self._with_records(batch, len(records), retained, needless_marker)
        return self._without_records(batch) if retain_empty else None

    def _horizon_passed(self, header: BatchHeader) -> bool:
        horizon = header.delete_horizon_ms
        return horizon is not None and horizon <= self._settings.now_ms

    def _retains_tombstones(self, header: BatchHeader, retain_legacy_tombstones: bool) -> bool:
        return retain_legacy_tombstones if header.magic < 2 else not self._horizon_passed(header)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the log needs this batch to know an active producer's last sequence, or its epoch."""
        producer = self._active_producers.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        if producer.last_data_offset is not None:
            return header.last_offset == producer.last_data_offset
        return header.is_control and header.producer_epoch == producer.producer_epoch

    def _retains(self, record: Record, retain_tombstones: bool) -> bool:
        """Whether a data record stays: beyond the map, or the latest of its key and no tombstone whose time has come."""
        counts = self._counts
        is_tombstone = record.key is not None and record.value is None
        counts["tombstones_read"] += is_tombstone
        if record.offset > self._map.latest_offset:
            return True
        if record.key is None:
            counts["invalid_messages_read"] += 1
            return False
        if record.offset < self._map.get(record.key):
            counts["superseded"] += 1
            return False
        if is_tombstone and not retain_tombstones:
            counts["tombstones_expired"] += 1
            return False
        return True

    def _with_records(self, batch: Batch, read: int, retained: Sequence[Record], needless_marker: bool) -> Kept:
        header, counts = batch.header, self._counts
        counts["messages_written"] += len(retained)
        horizon = header.delete_horizon_ms
        starts_horizon = horizon is None and (needless_marker or any(r.value is None for r in retained))
        if len(retained) == read and header.magic == 2 and not starts_horizon:
            counts["batches_copied"] += 1
            counts["bytes_written"] += header.size
            return Kept(batch.data, header, header.last_offset)
        if starts_horizon:
            # Java's long: delete.retention.ms may be so large that there is no horizon.
            horizon = wrap_long(self._settings.now_ms + self._settings.delete_retention_ms)
        data = self._rewrite(batch, retained, horizon if horizon is not None and horizon >= 0 else None)
        counts["batches_rewritten"] += 1
        counts["bytes_written"] += len(data)
        return Kept(data, read_header(data, 0), retained[-1].offset)

    def _rewrite(self, batch: Batch, retained: Sequence[Record], horizon: int | None) -> bytes:
        """A V2 batch with the retained records. A V2 source keeps its span of offsets, and so of sequences."""
        header = batch.header
        is_legacy = header.magic < 2
        try:
            return build_batch(
                [r._replace(headers=_as_text(r.headers)) if r.headers else r for r in retained],
                base_offset=retained[0].offset if is_legacy else header.base_offset,
                last_offset=retained[-1].offset if is_legacy else header.last_offset,
                codec=header.codec,
                leader_epoch=header.leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
                control=header.is_control,
                log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
                delete_horizon_ms=horizon,
            )
        except ValueError as error:
            header.corrupt(batch.path, f"it cannot be rewritten: {error}")

    def _without_records(self, batch: Batch) -> Kept:
        header, counts = batch.header, self._counts
        if header.magic < 2:
            raise FaultError(
                path=batch.path,
                reason=f"the batch at byte {header.position}, last offset {header.last_offset}, has to stay without its "
                f"records as it ends at the high watermark, and magic {header.magic} has no empty batches "
                "(Kafka refuses to clean this log as well, until more is written to it)",
            )
        data = empty_batch(header)
        counts["batches_copied" if data == batch.data else "batches_emptied"] += 1
        counts["bytes_written"] += len(data)
        return Kept(data, read_header(data, 0), header.last_offset)


def _as_text(headers: Headers) -> Headers:
    """Kafka holds header keys as text: bytes that are not UTF-8 come back as replacement characters."""
    return tuple((k if isinstance(k, str) else k.decode(errors="replace"), value) for k, value in headers)
