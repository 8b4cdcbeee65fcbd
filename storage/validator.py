"""Batches on their way into the log: what is refused, and how offsets are assigned (LogValidator, UnifiedLog; facts 10.1-10.3).

The rule is that nothing is rewritten: base offset, leader epoch and, where it has to be, timestamp type and largest
timestamp are set in the header, which for V2 lie outside what a client compressed. Records are written anew only for
another codec (compression.type), for V0 and V1 input, and for inner offsets that are not 0, 1, 2….

Stricter than Kafka on purpose: records of an uncompressed batch whose offsets are not 0, 1, 2… are numbered anew as
Kafka does in compressed batches; Kafka stores them as they are, and a log with an offset twice can't be compacted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from compactd.config.errors import (
    CorruptBatchError,
    CorruptMessageError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
)
from compactd.config.settings import TopicConfig
from compactd.storage.append_rules import AppendRules, Buffer, Validated, check_size, refuse, refuse_records
from compactd.storage.conversion import CODECS, rebuild, recompress, records_of, target_codec
from compactd.storage.kernel.validating import (
    NO_KEY,
    Admission,
    RecordError,
    make_admission,
    plain_area,
    validate_batch,
)
from compactd.storage.producer_append import Origin
from compactd.storage.records.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
    BatchHeader,
    read_header,
)
from compactd.storage.records.codecs import Codec
from compactd.storage.records.crc import crc32c

__all__ = [
    "AppendRules",
    "Buffer",
    "Validated",
    "admission_of",
    "check_records",
    "read_batches_of",
    "validate_for_leader",
    "writable",
]

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")
_INT = struct.Struct(">i")
_LEADER_EPOCH_AT, _MAGIC_AT, _CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT, _MAX_TIMESTAMP_AT, _COUNT_AT = (
    12,
    16,
    17,
    21,
    23,
    35,
    57,
)
#: Of the length field, for the smallest entry (V0 without key and value).
SMALLEST_LENGTH = 14
_KNOWN_ATTRIBUTES = CODEC_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK | DELETE_HORIZON_MASK


def admission_of(config: TopicConfig) -> Admission | None:
    """The short cut for the usual batch of a producer under these settings; None without the native kernel."""
    return make_admission(
        keys_required=config.compact,
        append_time=config.message_timestamp_type == "LogAppendTime",
        before_ms=config.message_timestamp_before_max_ms,
        after_ms=config.message_timestamp_after_max_ms,
        largest_body=config.max_decompressed_message_bytes,
        largest_batch=config.max_message_bytes,
        codec=None if config.compression_type == "producer" else int(CODECS[config.compression_type]),
    )


def read_batches_of(data: Buffer, path: str) -> list[BatchHeader]:
    """Headers of all batches of an append; positions are those in `data`.

    Bytes after the last whole batch are passed by, as a fetch may cut one off. CorruptMessageError for a header that
    cannot be one, UnsupportedCompressionTypeError.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(data)
    while end - position > _MAGIC_AT:
        length = _INT.unpack_from(data, position + 8)[0]
        magic = data[position + _MAGIC_AT]
        if length < SMALLEST_LENGTH or magic > 2:
            raise CorruptMessageError(path=path, detail=f"its length field is {length}, its magic {magic}")
        if length + LOG_OVERHEAD > end - position:
            break
        if magic == 2 and length + LOG_OVERHEAD >= HEADER_SIZE:
            _check_numbers(data, position, path)
        try:
            headers.append(read_header(data, position, path))
        except CorruptBatchError as error:
            raise CorruptMessageError(path=path, detail=error.reason) from None
        position += length + LOG_OVERHEAD
    return headers


def _check_numbers(data: Buffer, position: int, path: str) -> None:
    """What a V2 header may not say, so that the answer is the one that Kafka gives to a producer."""
    codec = data[position + _ATTRIBUTES_AT + 1] & CODEC_MASK
    if codec > Codec.ZSTD:
        raise UnsupportedCompressionTypeError(path=path, detail=f"its compression codec {codec} is unknown")
    delta = _INT.unpack_from(data, position + _LAST_DELTA_AT)[0]
    count = _INT.unpack_from(data, position + _COUNT_AT)[0]
    if delta < 0 or count < 0:
        raise InvalidRecordError(
            path=path, detail=f"its last offset delta is {delta}, its count {count}", record_errors=()
        )


def validate_for_leader(data: Buffer, headers: Sequence[BatchHeader], rules: AppendRules) -> Validated:
    """Checks what a producer or coordinator sent and gives it offsets from `rules.next_offset` on.

    A bytearray, or a memoryview of one, is changed in place; bytes are copied. Raises MessageTooLargeError,
    CorruptMessageError, InvalidRecordError, InvalidTimestampError.
    """
    config = rules.config
    for header in headers:
        if header.magic == 2 and rules.origin is Origin.CLIENT and header.base_offset != 0:
            refuse(rules, f"its base offset is {header.base_offset}, a producer's has to be 0")
        check_size(header.size, rules)
    first = headers[0]
    if first.magic < 2 or len(headers) > 1:
        return _validate_many(data, headers, rules)
    max_timestamp, consecutive = check_records(data, first, rules)
    target = target_codec(config, first.codec)
    if consecutive and (target == first.codec or (first.is_control and not first.codec)):
        return _assign_in_place(data, first, max_timestamp, rules)
    batch = Batch(first, bytes(data[: first.size]), rules.path)
    area = None
    if not first.is_log_append_time and first.delete_horizon_ms is None:
        area = plain_area(batch.data, first.codec, first.record_count)
    if area is not None:
        return recompress(area, first, max_timestamp, target, rules)
    return rebuild([batch], rules, target)


def check_records(data: Buffer, header: BatchHeader, rules: AppendRules) -> tuple[int, bool]:
    """Checks one V2 batch whole: (largest record timestamp, whether its offsets are 0, 1, 2…)."""
    config = rules.config
    append_time = header.max_timestamp if header.is_log_append_time else None
    create_time = config.message_timestamp_type != "LogAppendTime"
    earliest, latest = _SMALLEST, _LARGEST
    if create_time:
        earliest = max(rules.now_ms - config.message_timestamp_before_max_ms, _SMALLEST)
        latest = min(rules.now_ms + config.message_timestamp_after_max_ms, _LARGEST)
    if len(data) != header.size:
        data = memoryview(data)[header.position : header.position + header.size]
    try:
        sound, max_timestamp, consecutive, errors = validate_batch(
            data,
            header.crc,
            header.attributes & CODEC_MASK,
            header.record_count,
            header.base_timestamp,
            append_time,
            config.compact,
            earliest,
            latest,
            config.max_decompressed_message_bytes,
        )
    except ValueError as error:
        _check_header(header, rules)
        refuse(rules, str(error))
    if not sound:
        raise CorruptMessageError(path=rules.path, detail=f"the stored CRC {header.crc:#010x} is not that of its bytes")
    _check_header(header, rules)
    if append_time is not None and not errors and (not create_time or append_time == -1):
        errors = [(index, 0, append_time) for index in range(header.record_count)]
    if errors:
        refuse_records(errors, earliest, latest, rules)
    if header.base_offset != 0:
        consecutive = False
    return max_timestamp, consecutive


def _check_header(header: BatchHeader, rules: AppendRules) -> None:
    """What a client's header may say (LogValidator.validateBatch)."""
    if rules.origin is not Origin.CLIENT:
        return
    if header.magic == 2:
        span = header.last_offset - header.base_offset + 1
        if header.record_count <= 0:
            refuse(rules, f"its record count is {header.record_count}")
        if span != header.record_count:
            refuse(
                rules,
                f"its offsets {header.base_offset} to {header.last_offset} do not fit its {header.record_count} records",
            )
    if header.is_control:
        refuse(rules, "clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        refuse(rules, f"its producer {header.producer_id} has the sequence {header.base_sequence}")


def _assign_in_place(data: Buffer, header: BatchHeader, max_timestamp: int, rules: AppendRules) -> Validated:
    """Sets offsets and epoch, and type and largest timestamp where they differ; only then is there a new CRC."""
    buffer = writable(data, header.size)
    base = rules.next_offset
    _BASE_OFFSET.pack_into(buffer, 0, base)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_AT, rules.leader_epoch)
    append_time = rules.config.message_timestamp_type == "LogAppendTime"
    if append_time:
        max_timestamp = rules.now_ms
    crc, attributes = header.crc, header.attributes
    if header.is_log_append_time != append_time or header.max_timestamp != max_timestamp:
        attributes &= _KNOWN_ATTRIBUTES & ~TIMESTAMP_TYPE_MASK
        attributes |= TIMESTAMP_TYPE_MASK if append_time else 0
        _ATTRIBUTES.pack_into(buffer, _ATTRIBUTES_AT, attributes)
        _MAX_TIMESTAMP.pack_into(buffer, _MAX_TIMESTAMP_AT, max_timestamp)
        crc = crc32c(memoryview(buffer)[_ATTRIBUTES_AT:])
        _CRC.pack_into(buffer, _CRC_AT, crc)
    assigned = BatchHeader(
        0,
        base,
        header.size,
        2,
        crc,
        attributes,
        base + header.last_offset - header.base_offset,
        header.base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        rules.leader_epoch,
    )
    return Validated(buffer, [assigned], max_timestamp, rules.now_ms if append_time else -1)


def writable(data: Buffer, size: int) -> bytearray | memoryview:
    """The batch where it can be stamped: in place where the caller's memory allows it, else a copy."""
    if isinstance(data, bytearray) and len(data) == size:
        return data
    if isinstance(data, memoryview) and not data.readonly:
        return data[:size]
    return bytearray(data[:size])


def _validate_many(data: Buffer, headers: Sequence[BatchHeader], rules: AppendRules) -> Validated:
    """V0 and V1 input, which may be several entries; it becomes one V2 batch."""
    first = headers[0]
    source = next((header.codec for header in reversed(headers) if header.codec), 0)
    batches = []
    for header in headers:
        batch = Batch(header, bytes(data[header.position : header.position + header.size]), rules.path)
        try:
            batch.check()
        except CorruptBatchError as error:
            raise CorruptMessageError(path=rules.path, detail=error.reason) from None
        batches.append(batch)
    if len(headers) > 1 and (first.magic == 2 or source):
        refuse(rules, f"it holds {len(headers)} batches where one is allowed")
    if any(header.magic != first.magic for header in headers):
        refuse(rules, "its batches have different magic numbers")
    for batch in batches:
        _check_header(batch.header, rules)
        _check_legacy_records(batch, rules)
    return rebuild(batches, rules, target_codec(rules.config, source))


def _check_legacy_records(batch: Batch, rules: AppendRules) -> None:
    """Keys and timestamps of V0 and V1 records, as `check_records` does for V2."""
    config = rules.config
    create_time = config.message_timestamp_type != "LogAppendTime"
    earliest = rules.now_ms - config.message_timestamp_before_max_ms
    latest = rules.now_ms + config.message_timestamp_after_max_ms
    errors: list[RecordError] = []
    for index, record in enumerate(records_of(batch, rules)):
        if config.compact and record.key is None:
            errors.append((index, NO_KEY, record.timestamp))
        elif create_time and record.timestamp != -1:
            if not earliest <= record.timestamp <= latest:
                errors.append((index, 0, record.timestamp))
        elif batch.header.is_log_append_time:
            errors.append((index, 0, record.timestamp))
    if errors:
        refuse_records(errors, earliest, latest, rules)
