"""Splitting a segment whose offsets span more than 2^31 - 1 (UnifiedLog.splitOverflowedSegment; facts 5.9)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from compactd.config.errors import RefusedError, StorageIOError
from compactd.storage import files, names
from compactd.storage.names import CLEANED
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.partition import Partition
from compactd.storage.records.batch import BatchHeader, read_batches, scan_headers
from compactd.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from compactd.storage.swap import drop_cleaned, replace_segments

_COPY_CHUNK_BYTES = 1 << 20


def split_overflowed_segment(partition: Partition, base_offset: int) -> list[Path]:
    """Splits one segment of a partition: see `split_segment`."""
    return split_segment(next(s for s in partition.segments if s.base_offset == base_offset))


def split_segment(segment: LogSegment) -> list[Path]:
    """Replaces one segment by as many as its offsets need, byte for byte the same batches. Returns the `.deleted` files.

    Each new segment is based on its first batch's base offset. Crash-safe as any swap.
    RefusedError: it fits one segment. CorruptBatchError: its offsets do not increase, so the far one is damage.
    """
    parts = _parts(segment)
    if not parts or parts[-1][-1].last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET:
        raise RefusedError(
            path=segment.log_path, reason="its offsets fit one segment", advice="There is nothing to split."
        )
    bases = [_base_offset(segment, part[0]) for part in parts]
    try:
        for base, part in zip(bases, parts, strict=True):
            _write_part(segment, base, part)
    except BaseException:
        with contextlib.suppress(StorageIOError):
            drop_cleaned(segment.directory, bases)
        raise
    return replace_segments(segment.directory, bases, [segment.base_offset])


def _base_offset(segment: LogSegment, header: BatchHeader) -> int:
    """The first offset of a batch. A compressed wrapper of magic 0 or 1 tells it only when it is decompressed."""
    if header.magic == 2 or not header.codec:
        return header.base_offset
    return next(read_batches(segment.log_path, header.position, header.position + header.size)).base_offset


def _parts(segment: LogSegment) -> list[list[BatchHeader]]:
    parts: list[list[BatchHeader]] = []
    next_offset = segment.base_offset
    for header in scan_headers(segment.log_path, 0, segment.size, check_crc=True):
        if header.last_offset < next_offset:
            header.corrupt(str(segment.log_path), f"its offsets do not follow {next_offset}")
        next_offset = header.next_offset
        if not parts or header.last_offset - parts[-1][0].base_offset > MAX_RELATIVE_OFFSET:
            parts.append([])
        parts[-1].append(header)
    return parts


def _write_part(segment: LogSegment, base: int, headers: list[BatchHeader]) -> None:
    directory = segment.directory
    drop_cleaned(directory, [base])
    builder = OffsetIndexBuilder(base, segment.index_interval_bytes)
    log = directory / (names.log_name(base) + CLEANED)
    first, end = headers[0].position, headers[-1].position + headers[-1].size
    with files.create_output(log, like=segment.log_path) as output, segment.log_path.open("rb") as source:
        source.seek(first)
        while first < end and (chunk := source.read(min(_COPY_CHUNK_BYTES, end - first))):
            output.write(chunk)
            first += len(chunk)
        output.sync()
    for header in headers:
        builder.append(header.last_offset, header.max_timestamp, header.position - headers[0].position, header.size)
    builder.close()
    index = directory / (names.offset_index_name(base) + CLEANED)
    times = directory / (names.time_index_name(base) + CLEANED)
    files.write_file(index, builder.offset_index_bytes(), like=segment.log_path)
    files.write_file(times, builder.time_index_bytes(), like=segment.log_path)
    for path in (log, index, times):
        files.set_mtime_ms(path, segment.last_modified_ms)
