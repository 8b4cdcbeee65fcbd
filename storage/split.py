"""Splitting a segment whose offsets span more than 2^31 - 1 (UnifiedLog.splitOverflowedSegment; facts 5.9)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from compactd.config.errors import CorruptFileError, RefusedError, StorageIOError
from compactd.storage import files, names
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.names import CLEANED
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.partition import Partition
from compactd.storage.records.batch import BatchHeader, read_batches, scan_headers
from compactd.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from compactd.storage.swap import drop_cleaned, replace_segments
from compactd.storage.transaction_index import encode_transaction, read_transaction_index

_COPY_CHUNK_BYTES = 1 << 20


def split_overflowed_segment(partition: Partition, base_offset: int) -> list[Path]:
    """Splits one segment of a partition: see `split_segment`."""
    return split_segment(next(s for s in partition.segments if s.base_offset == base_offset))


def split_segment(segment: LogSegment) -> list[Path]:
    """Replaces one segment by as many as its offsets need, byte for byte the same batches. Returns the `.deleted` files.

    Each new segment is based on its first batch's base offset, and has the aborted transactions whose markers it holds; Kafka
    loses these. Where the source has no offset index, or a damaged transaction index, the parts get no offset index either,
    so that whoever loads them recovers them. Crash-safe as any swap.
    RefusedError: it fits one segment. CorruptBatchError: its offsets do not increase, so the far one is damage.
    """
    parts = _parts(segment)
    if not parts or parts[-1][-1].last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET:
        raise RefusedError(
            path=segment.log_path, reason="its offsets fit one segment", advice="There is nothing to split."
        )
    bases = [_base_offset(segment, part[0]) for part in parts]
    aborted = _aborted(segment)
    try:
        for base, part in zip(bases, parts, strict=True):
            _write_part(segment, base, part, aborted)
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


def _aborted(segment: LogSegment) -> Sequence[AbortedTransaction] | None:
    """The segment's transaction index; None where it has to be recovered."""
    if segment.unsaved_aborted is not None:
        return segment.unsaved_aborted
    if not segment.offset_index_path.exists():
        return None
    try:
        return read_transaction_index(segment.transaction_index_path, segment.base_offset)
    except CorruptFileError:
        return None


def _write_part(
    segment: LogSegment, base: int, headers: list[BatchHeader], aborted: Sequence[AbortedTransaction] | None
) -> None:
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
    contents = {names.time_index_name(base): builder.time_index_bytes()}
    if aborted is not None:
        contents[names.offset_index_name(base)] = builder.offset_index_bytes()
        first_offset, last_offset = headers[0].base_offset, headers[-1].last_offset
        entries = [encode_transaction(entry) for entry in aborted if first_offset <= entry.last_offset <= last_offset]
        if entries:
            contents[names.transaction_index_name(base)] = b"".join(entries)
    for name, content in contents.items():
        files.write_file(directory / (name + CLEANED), content, like=segment.log_path)
        files.set_mtime_ms(directory / (name + CLEANED), segment.last_modified_ms)
    files.set_mtime_ms(log, segment.last_modified_ms)
