"""Looks for keys that have two records in the clean section of a compacted log, with the cleaning kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactd.storage.kernel import active_kernel
from compactd.storage.kernel.interface import AbortedTransaction, RoundSettings, SourceSegment
from compactd.storage.records.batch import read_batches
from compactd.storage.segment import LogSegment

_EXAMPLES = 3
#: Bytes that are read again to find examples.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class DuplicateKeys:
    """Records that a later one of the clean section supersedes."""

    count: int
    #: (key, offset of a superseded record, offset of a later one)
    examples: tuple[tuple[bytes, int, int], ...] = ()


def duplicate_keys(
    segments: Sequence[LogSegment], aborted: Sequence[AbortedTransaction], end_offset: int
) -> DuplicateKeys:
    """`segments`: those that lie wholly below the cleaner's checkpoint. Raises CorruptBatchError."""
    if not segments:
        return DuplicateKeys(0)
    sources = []
    for segment, following in zip(segments, [*(s.base_offset for s in segments[1:]), end_offset], strict=True):
        of_segment = tuple(e for e in aborted if e.first_offset < following and e.last_offset >= segment.base_offset)
        sources.append(
            SourceSegment(str(segment.log_path), segment.base_offset, segment.size, following, aborted=of_segment)
        )
    # Horizons lie in the future of the year 0: no tombstone expires.
    settings = RoundSettings(segments[0].base_offset, end_offset, 0, 0, 4096)
    cleaning = active_kernel().begin_round(settings)
    try:
        if cleaning.build_map(sources, aborted).full:
            return DuplicateKeys(0)
        count = sum(cleaning.clean_group([source], {}, None).stats.superseded for source in sources)
    finally:
        cleaning.close()
    return DuplicateKeys(count, _examples(segments) if count else ())


def _examples(segments: Sequence[LogSegment]) -> tuple[tuple[bytes, int, int], ...]:
    seen: dict[bytes, int] = {}
    found: list[tuple[bytes, int, int]] = []
    read = 0
    for segment in segments:
        for batch in read_batches(segment.log_path, 0, segment.size):
            read += batch.header.size
            if read > _MOST_BYTES:
                return tuple(found)
            if batch.header.is_control:
                continue
            for record in batch.records():
                if record.key is None:
                    continue
                if record.key in seen:
                    found.append((record.key, seen[record.key], record.offset))
                    if len(found) == _EXAMPLES:
                        return tuple(found)
                seen[record.key] = record.offset
    return tuple(found)
