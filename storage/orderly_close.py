"""Leaving a loaded log as an orderly stop leaves it: closed forms of the active segment's files, everything on disk (facts 1.9)."""

from __future__ import annotations

from pathlib import Path

from compactd.storage import files
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.segment import LogSegment


def close_orderly(loaded: LoadedLog) -> None:
    """Trims what is preallocated, writes the snapshot at the log's end, and fsyncs all that the recovery point does not cover.

    Afterwards everything is on disk and `loaded.recovery_point` says so. StorageIOError: then no clean-shutdown marker
    may be written for this log dir.
    """
    active = loaded.active_segment
    _trim(active.log_path, active.size)
    if active.trust_indexes:
        _trim(active.offset_index_path, active.offset_index.used_bytes)
        _trim(active.time_index_path, active.time_index.used_bytes)
    loaded.snapshots.take()
    for number, segment in enumerate(loaded.segments):
        following = loaded.segments[number + 1].base_offset if segment is not active else loaded.log_end_offset
        if segment is active or following > loaded.recovery_point:
            _sync(segment)
    files.fsync_dir(loaded.directory)
    loaded.recovery_point = loaded.log_end_offset


def _trim(path: Path, size: int) -> None:
    if path.exists() and path.stat().st_size > size:
        with files.open_existing(path) as output:
            output.truncate(size)


def _sync(segment: LogSegment) -> None:
    for path in segment.existing_files():
        with files.open_existing(path) as output:
            output.sync()
