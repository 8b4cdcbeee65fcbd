"""One run of retention over a loaded log of a stopped broker, on its files (UnifiedLog.deleteSegments; facts 7.4)."""

from __future__ import annotations

from pathlib import Path

from compactd.config.errors import RefusedError
from compactd.storage import files, names
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.records.batch import read_batches
from compactd.storage.retention import RetainedSegment, RetentionPlan
from compactd.storage.roll import roll_active_segment
from compactd.storage.segment import LogSegment, list_segments
from compactd.storage.swap import segment_file_names


def raise_log_start(loaded: LoadedLog, offset: int, high_watermark: int) -> bool:
    """DeleteRecords: the log now starts at `offset`. Returns whether it did not already.

    RefusedError above the high watermark. The caller writes the log-start-offset-checkpoint.
    """
    if offset > high_watermark:
        raise RefusedError(
            path=loaded.directory,
            reason=f"cannot increment the log start offset to {offset}, it is larger than the high watermark {high_watermark}",
            advice="Give an offset at or below it.",
        )
    if offset <= loaded.log_start_offset:
        return False
    _move_start(loaded, offset)
    return True


def apply_retention(loaded: LoadedLog, plan: RetentionPlan) -> list[Path]:
    """Takes the plan's segments out of the log; returns their files, renamed to `.deleted`, oldest segment first.

    Stopped anywhere, the next load finds a log that starts where it did or at a later segment, never one with a hole.
    """
    if not plan.deletions:
        return []
    if plan.roll:
        roll_active_segment(loaded)
        loaded.segments = list_segments(loaded.directory, loaded.config.index_interval_bytes)
    _move_start(loaded, plan.log_start_offset)
    files.fsync_dir(loaded.directory)
    deleted: list[Path] = []
    for deletion in plan.deletions:
        for name in segment_file_names(deletion.base_offset):
            path = loaded.directory / name
            if path.exists():
                deleted.append(_mark(path))
        # Durable one by one, so that a power cut cannot leave an older segment in front of a hole.
        files.fsync_dir(loaded.directory)
    for deletion in plan.deletions:
        marked = loaded.snapshots.mark_for_deletion(deletion.base_offset)
        if marked is not None:
            deleted.append(marked)
    files.fsync_dir(loaded.directory)
    gone = {deletion.base_offset for deletion in plan.deletions}
    loaded.segments = [segment for segment in loaded.segments if segment.base_offset not in gone]
    return deleted


def locate_largest_timestamp(segment: RetainedSegment) -> int | None:
    """Offset of the first record with the segment's largest timestamp; the time index knows only its batch."""
    if not isinstance(segment, LogSegment) or segment.max_timestamp < 0:
        return None
    timestamp, last_offset = segment.time_index.last_entry
    position = segment.offset_index.lookup(last_offset)[1]
    for batch in read_batches(segment.log_path, position, segment.size):
        if batch.header.last_offset < last_offset:
            continue
        return next((record.offset for record in batch.records() if record.timestamp == timestamp), last_offset)
    return last_offset


def _move_start(loaded: LoadedLog, offset: int) -> None:
    if offset <= loaded.log_start_offset:
        return
    loaded.log_start_offset = offset
    loaded.recovery_point = max(loaded.recovery_point, offset)
    loaded.snapshots.raise_log_start(offset)
    if loaded.epochs.truncate_from_start(offset):
        loaded.epochs.write(loaded.directory / names.LEADER_EPOCH_CHECKPOINT)


def _mark(path: Path) -> Path:
    target = path.with_name(path.name + names.DELETED)
    files.rename(path, target)
    return target
