"""Batches written anew on their way into the log: another codec, V0 and V1 input, odd offsets (LogValidator; facts 10.3)."""

from __future__ import annotations

from collections.abc import Sequence

from compactd.config.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError
from compactd.config.settings import TopicConfig
from compactd.storage.append_rules import AppendRules, Validated, check_size, refuse
from compactd.storage.kernel.validating import compress_area
from compactd.storage.records.batch import (
    HEADER_SIZE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
    BatchHeader,
    read_header,
)
from compactd.storage.records.builder import assemble_batch, build_batch
from compactd.storage.records.codecs import DEFAULT_LEVELS, Codec, compress, decompress
from compactd.storage.records.record import Record, parse_records
from compactd.storage.records.varint import MalformedError

#: Values of compression.type that name a codec.
CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD, "uncompressed": Codec.NONE}


def target_codec(config: TopicConfig, source: int) -> int:
    """The codec that compression.type asks for; "producer" keeps the source's."""
    return source if config.compression_type == "producer" else int(CODECS[config.compression_type])


def records_of(batch: Batch, rules: AppendRules) -> list[Record]:
    """The records of a batch whose CRC was checked; their offsets mean nothing yet."""
    header = batch.header
    try:
        if header.magic < 2:
            return batch.records()
        area, position = batch.data, HEADER_SIZE
        if header.codec:
            area, position = decompress(header.codec, batch.data[HEADER_SIZE:]), 0
        return parse_records(
            area,
            position,
            count=header.record_count,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            base_timestamp=header.base_timestamp,
            append_time=header.max_timestamp if header.is_log_append_time else None,
            any_offsets=True,
        )
    except CorruptBatchError as error:
        raise InvalidRecordError(path=rules.path, detail=error.reason, record_errors=()) from None
    except MalformedError as error:
        raise InvalidRecordError(path=rules.path, detail=str(error), record_errors=()) from None


def rebuild(batches: Sequence[Batch], rules: AppendRules, codec: int) -> Validated:
    """All records as one V2 batch of `codec` (LogValidator.buildRecordsAndAssignOffsets)."""
    config, first = rules.config, batches[0].header
    append_time = rules.now_ms if config.message_timestamp_type == "LogAppendTime" else None
    records: list[Record] = []
    for batch in batches:
        for record in records_of(batch, rules):
            records.append(record._replace(offset=rules.next_offset + len(records)))
    if not records:
        refuse(rules, "it has no records")
    if any(record.timestamp < -1 for record in records):
        raise InvalidTimestampError(path=rules.path, detail="it has negative timestamps", record_errors=())
    data = build_batch(
        records,
        base_offset=rules.next_offset,
        codec=codec,
        leader_epoch=rules.leader_epoch,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        transactional=first.is_transactional,
        log_append_time_ms=append_time,
        level=compression_level(config, codec),
    )
    header = read_header(data, 0, rules.path)
    check_size(header.size, rules)
    return Validated(data, [header], header.max_timestamp, -1 if append_time is None else append_time, converted=True)


def recompress(area: bytes, source: BatchHeader, max_timestamp: int, codec: int, rules: AppendRules) -> Validated:
    """`rebuild` for the usual case: encoded anew the records would be the same bytes, only the codec is another."""
    config = rules.config
    append_time = rules.now_ms if config.message_timestamp_type == "LogAppendTime" else None
    level = compression_level(config, codec)
    body = None
    if level is None or level == DEFAULT_LEVELS[Codec(codec)]:
        body = compress_area(codec, area)
    data = assemble_batch(
        compress(codec, area, level=level) if body is None else body,
        base_offset=rules.next_offset,
        leader_epoch=rules.leader_epoch,
        attributes=codec
        | (source.attributes & TRANSACTIONAL_MASK)
        | (0 if append_time is None else TIMESTAMP_TYPE_MASK),
        last_offset_delta=source.record_count - 1,
        base_timestamp=source.base_timestamp,
        max_timestamp=max_timestamp if append_time is None else append_time,
        producer_id=source.producer_id,
        producer_epoch=source.producer_epoch,
        base_sequence=source.base_sequence,
        count=source.record_count,
    )
    header = read_header(data, 0, rules.path)
    check_size(header.size, rules)
    return Validated(data, [header], header.max_timestamp, -1 if append_time is None else append_time, converted=True)


def compression_level(config: TopicConfig, codec: int) -> int | None:
    """The level that the topic sets for the codec of its compression.type; None for those without levels."""
    return {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }.get(Codec(codec))
