"""The owner's side of cleaning: the view a cleaner works from, swaps of finished groups, and undo.

A swap that is refused leaves the log as it is. An undo goes the way of a swap: the sources' `.deleted` files become
`.cleaned` ones, highest base first, and are swapped in for the cleaned segment; a crash leaves one of the two.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CompactdError, StorageIOError
from compactd.storage import files, names
from compactd.storage.live_segment import LiveSegment
from compactd.storage.log import PartitionLog
from compactd.storage.names import CLEANED, DELETED
from compactd.storage.swap import drop_stale_cleaned, segment_file_names
from compactd.workers.broker.partition import Partition
from compactd.workers.cleaning_messages import (
    ActiveProducerState,
    CleanJob,
    GroupReady,
    GroupSwapped,
    PrepareClean,
    SegmentSource,
    UndoClean,
    UndoDone,
)


@dataclass(slots=True)
class SwappedGroup:
    """One group of the last round."""

    new: LiveSegment
    #: Bases and sizes of what it replaced.
    sources: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class LastClean:
    """What the last round of cleaning replaced."""

    request_id: int
    groups: list[SwappedGroup] = field(default_factory=list)


async def prepare(partition: Partition, request: PrepareClean) -> CleanJob:
    """The partition at this moment. What the coordinator alone knows (checkpoint, memory) is left for it to fill in."""
    now_ms = partition.owner.clock.now_ms()

    def look(log: PartitionLog) -> CleanJob:
        if request.roll and log.segments[-1].size:
            log.roll(now_ms=now_ms)
        offsets = log.offsets()
        view = log.view
        return CleanJob(
            request_id=request.request_id,
            topic=request.topic,
            partition=request.partition,
            directory=str(log.directory),
            config=log.config,
            segments=tuple(
                SegmentSource(base_offset=s.base_offset, size=s.size, last_modified_ms=s.last_modified_ms)
                for s in view.segments[:-1]
            ),
            log_start_offset=offsets.log_start,
            log_end_offset=offsets.log_end,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable,
            first_dirty_offset=offsets.log_start,
            first_uncleanable_offset=view.segments[-1].base_offset,
            active_producers=tuple(
                ActiveProducerState(
                    producer_id=producer_id,
                    producer_epoch=active.producer_epoch,
                    last_data_offset=active.last_data_offset,
                )
                for producer_id, active in log.active_producers(now_ms).items()
            ),
            now_ms=now_ms,
            map_memory_bytes=0,
            map_load_factor=0.9,
            active_base_offset=view.segments[-1].base_offset,
        )

    job = await partition.exclusive(look)
    if request.roll:
        partition.owner.touched(partition)
    return job


async def swap(partition: Partition, ready: GroupReady) -> GroupSwapped:
    """Puts a finished group in the place of its sources, if they are all still there."""
    now_ms = partition.owner.clock.now_ms()
    refused = ""
    swapped: SwappedGroup | None = None

    def exchange(log: PartitionLog) -> None:
        nonlocal refused, swapped
        closed = {segment.base_offset: segment for segment in log.segments[:-1]}
        missing = [base for base in ready.source_bases if base not in closed]
        if missing:
            refused = f"its sources {', '.join(map(str, missing))} are not closed segments of the log any more"
            return
        sources = tuple((base, closed[base].size) for base in ready.source_bases)
        log.replace_segments([ready.base_offset], ready.source_bases, now_ms)
        new = next(segment for segment in log.segments if segment.base_offset == ready.base_offset)
        swapped = SwappedGroup(new, sources)

    unknown = False
    try:
        await partition.exclusive(exchange)
    except CompactdError as error:
        refused = str(error)
        # The next load finds out how far it came.
        unknown = isinstance(error, StorageIOError)
    if swapped is None:
        return GroupSwapped(
            request_id=ready.request_id, group_id=ready.group_id, accepted=False, reason=refused, unknown=unknown
        )
    last = partition.last_clean
    if not isinstance(last, LastClean) or last.request_id != ready.request_id:
        last = partition.last_clean = LastClean(ready.request_id)
    last.groups.append(swapped)
    partition.changed()
    partition.owner.touched(partition)
    return GroupSwapped(
        request_id=ready.request_id,
        group_id=ready.group_id,
        accepted=True,
        deleted=tuple(partition.doomed_paths()),
    )


async def undo(partition: Partition, request: UndoClean) -> UndoDone:
    """Puts back what the last round replaced, or says why that cannot be."""
    last = partition.last_clean
    if not isinstance(last, LastClean) or not last.groups:
        return UndoDone(request_id=request.request_id, restored=(), refused="no clean of this partition is remembered")
    now_ms = partition.owner.clock.now_ms()
    refused = ""
    restored: list[str] = []

    def put_back(log: PartitionLog) -> None:
        nonlocal refused
        refused = _hindrance(log, last.groups)
        if refused:
            return
        # Of a cleaner that died: beside our own they would count as one unfinished swap.
        drop_stale_cleaned(Path(log.local.directory))
        for group in last.groups:
            restored.extend(_restore(log, group, now_ms))

    try:
        await partition.exclusive(put_back)
    except CompactdError as error:
        refused = str(error)
    if not refused:
        partition.last_clean = None
    partition.changed()
    partition.owner.touched(partition)
    return UndoDone(request_id=request.request_id, restored=tuple(restored), refused=refused)


def _hindrance(log: PartitionLog, groups: Sequence[SwappedGroup]) -> str:
    """Why the round cannot be undone; "" when it can."""
    for group in groups:
        if group.new not in log.segments:
            return f"the segment {group.new.base_offset} that it made has been replaced or deleted since"
        if group.new is log.segments[-1]:
            return f"the segment {group.new.base_offset} that it made is the active one"
        for base, size in group.sources:
            path = f"{log.local.directory}/{names.log_name(base)}{DELETED}"
            try:
                found = os.stat(path).st_size  # noqa: PTH116
            except FileNotFoundError:
                return f"{path} was removed already"
            if found < size:
                return f"{path} has {found} bytes where {size} were replaced"
    return ""


def _restore(log: PartitionLog, group: SwappedGroup, now_ms: int) -> list[str]:
    """Paths of the `.deleted` files that are the log's again."""
    directory = log.local.directory
    back: list[str] = []
    for base, _ in sorted(group.sources, reverse=True):
        for name in segment_file_names(base):
            source = f"{directory}/{name}{DELETED}"
            if not os.path.exists(source):  # noqa: PTH110
                continue
            with files.open_existing(source) as output:
                output.sync()  # nobody fsyncs it later: it lies below the recovery point
            files.rename(source, f"{directory}/{name}{CLEANED}")
            back.append(source)
    log.replace_segments([base for base, _ in group.sources], [group.new.base_offset], now_ms)
    return back
