"""Which keys lose their last value when retention takes segments of a compacted log (policy compact,delete)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactd.storage.kernel import active_kernel
from compactd.storage.kernel.interface import RoundSettings, SourceSegment
from compactd.storage.records.batch import read_batches
from compactd.storage.segment import LogSegment

#: More than this is not read: the warning is a courtesy, and has to be quick.
MOST_BYTES = 256 << 20
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LostKeys:
    """Keys whose only value lies in segments that go."""

    count: int
    #: The first few, in log order.
    examples: tuple[bytes, ...]


def lost_keys(segments: Sequence[LogSegment], doomed: Sequence[int], log_end_offset: int) -> LostKeys | None:
    """Keys with a value in the segments at the bases `doomed` (the oldest ones) and no record in the others.

    None: too much to look at. Raises CorruptBatchError where a batch that has to be read is damaged.
    """
    if not doomed:
        return LostKeys(0, ())
    gone = [segment for segment in segments if segment.base_offset in set(doomed)]
    left = [segment for segment in segments if segment.base_offset not in set(doomed)]
    if sum(segment.size for segment in segments) > MOST_BYTES:
        return None
    last: dict[bytes, bool] = {}
    for segment in gone:
        for batch in read_batches(segment.log_path, 0, segment.size):
            batch.check()
            if batch.header.is_control:
                continue
            for record in batch.records():
                if record.key is not None:
                    last[record.key] = record.value is not None
    alive = [key for key, has_value in last.items() if has_value]
    if left and alive:
        start = left[0].base_offset
        settings = RoundSettings(start, log_end_offset, 0, 0, 4096)
        sources = [
            SourceSegment(str(segment.log_path), segment.base_offset, segment.size, following)
            for segment, following in zip(left, [*(s.base_offset for s in left[1:]), log_end_offset], strict=True)
            if segment.size
        ]
        cleaning = active_kernel().begin_round(settings)
        try:
            if cleaning.build_map(sources, ()).full:
                return None
            alive = [key for key in alive if not cleaning.contains(key)]
        finally:
            cleaning.close()
    return LostKeys(len(alive), tuple(alive[:_SHOWN]))
