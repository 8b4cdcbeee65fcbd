"""Builds RecordBatch V2 bytes as Kafka's MemoryRecordsBuilder does, uncompressed or with a codec's default level."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

from compactd.storage.records.batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from compactd.storage.records.codecs import compress
from compactd.storage.records.control import ControlRecordType, EndTransactionMarker, format_end_transaction
from compactd.storage.records.crc import crc32c
from compactd.storage.records.record import Record, encode_records

_PREFIX = struct.Struct(">qiiBI")
_CHECKED = struct.Struct(">hiqqqhii")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int | None = None,
    codec: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    max_timestamp: int | None = None,
    level: int | None = None,
) -> bytes:
    """One batch. Offsets are absolute and increase; they may have holes, and the span may be wider than the records.

    `last_offset`: default that of the last record, or `base_offset` without records.
    `log_append_time_ms`: makes the type LogAppendTime and this the max timestamp; the records' own timestamps are
    encoded all the same, and readers ignore them.
    `delete_horizon_ms`: takes the place of the base timestamp, and sets the flag that says so (KIP-534).
    `max_timestamp`: overrides the largest of the records' timestamps.
    `level`: of the codec; None for its default.
    Raises ValueError for offsets out of order and for timestamps below -1.
    """
    previous = base_offset - 1
    for record in records:
        if record.offset <= previous:
            raise ValueError(f"offset {record.offset} after {previous}: offsets must increase")
        if record.timestamp < -1:
            raise ValueError(f"the record at offset {record.offset} has the timestamp {record.timestamp}")
        previous = record.offset
    if last_offset is None:
        last_offset = max(previous, base_offset)
    if last_offset < previous or last_offset - base_offset > 0x7FFFFFFF:
        raise ValueError(f"last offset {last_offset} for records from {base_offset} to {previous}")
    base_timestamp = records[0].timestamp if records else -1
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    if max_timestamp is None:
        newest = max((record.timestamp for record in records), default=-1)
        max_timestamp = newest if log_append_time_ms is None else log_append_time_ms
    attributes = (
        codec
        | (TIMESTAMP_TYPE_MASK if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL_MASK if transactional else 0)
        | (CONTROL_MASK if control else 0)
        | (DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0)
    )
    return assemble_batch(
        compress(codec, encode_records(records, base_offset, base_timestamp), level=level),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )


def empty_batch(header: BatchHeader) -> bytes:
    """The 61 bytes that stand for a V2 batch without records: its offsets and sequences stay known (facts 5.7)."""
    if header.magic != 2:
        raise ValueError(f"magic {header.magic} has no empty batches")
    return assemble_batch(
        b"",
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK),
        last_offset_delta=header.last_offset - header.base_offset,
        base_timestamp=-1,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=0,
    )


def control_batch(
    kind: Literal["commit", "abort"],
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    *,
    coordinator_epoch: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch with one end-of-transaction marker (facts 2.3)."""
    marker = ControlRecordType.COMMIT if kind == "commit" else ControlRecordType.ABORT
    key, value = format_end_transaction(EndTransactionMarker(marker, coordinator_epoch))
    return build_batch(
        [Record(offset, timestamp, key, value)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def assemble_batch(
    body: bytes,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """One batch of a record area that is encoded, and compressed as `attributes` say."""
    checked = (
        _CHECKED.pack(
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        + body
    )
    size = HEADER_SIZE + len(body)
    return _PREFIX.pack(base_offset, size - LOG_OVERHEAD, leader_epoch, 2, crc32c(checked)) + checked
