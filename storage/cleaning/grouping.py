"""Which source segments become one cleaned segment (Cleaner.groupSegmentsBySize, facts 5.5)."""

from __future__ import annotations

from collections.abc import Sequence

from compactd.storage.segment import MAX_RELATIVE_OFFSET, LogSegment


def group_segments(
    segments: Sequence[LogSegment], segment_bytes: int, index_bytes: int, upper_bound_offset: int
) -> list[list[LogSegment]]:
    """Greedy groups, in order. All sizes are those before cleaning; the first segment of a group is taken unconditionally.

    `segments`: the round's segments, those with base < end offset. `upper_bound_offset`: the round's first uncleanable offset.
    """
    groups: list[list[LogSegment]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for position, segment in enumerate(segments):
        group = groups[-1] if groups else None
        following = segments[position + 1].base_offset if position + 1 < len(segments) else upper_bound_offset
        log_bytes += segment.size
        offset_index_bytes += segment.offset_index.used_bytes
        time_index_bytes += segment.time_index.used_bytes
        fits = (
            group is not None
            and log_bytes <= segment_bytes
            and offset_index_bytes <= index_bytes
            and time_index_bytes <= index_bytes
            # The next base bounds this segment's last offset without reading it: an index may be empty or sparse.
            and (segment.size == 0 or following - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET)
        )
        if group is not None and fits:
            group.append(segment)
        else:
            groups.append([segment])
            log_bytes = segment.size
            offset_index_bytes = segment.offset_index.used_bytes
            time_index_bytes = segment.time_index.used_bytes
    return groups


def largest_group_bytes(groups: Sequence[Sequence[LogSegment]]) -> int:
    """Room that the round needs at most at one time: the .log and index bytes of its largest group."""
    return max(
        (sum(s.size + s.offset_index.used_bytes + s.time_index.used_bytes for s in group) for group in groups),
        default=0,
    )
