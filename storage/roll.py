"""Closing the active segment of a stopped broker's log, so that it can be cleaned (UnifiedLog.roll, LocalLog.roll; facts 10.5)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compactd.config.errors import RefusedError
from compactd.storage import files, names
from compactd.storage.producers import ProducerState
from compactd.storage.segment import LogSegment
from compactd.storage.transaction_index import encode_transaction


class RollableLog(Protocol):
    """What a roll asks of a log; Partition and LoadedLog have it."""

    @property
    def directory(self) -> Path: ...
    @property
    def active_segment(self) -> LogSegment: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def producers(self) -> ProducerState: ...


def roll_active_segment(partition: RollableLog) -> None:
    """Closes the active segment and starts an empty one at the log end offset, as an orderly stop would leave them.

    After an unclean stop, and where they are missing, the closed segment's indexes are rebuilt from its batches. Raises
    RefusedError where its end is torn: cutting it is recovery's work. The order is safe at any stop: the old segment is
    complete before the new exists.
    """
    active, directory = partition.active_segment, partition.directory
    if active.log_path.stat().st_size != active.size:
        raise RefusedError(
            path=active.log_path,
            reason=f"the active segment ends in {active.log_path.stat().st_size - active.size} bytes that are no whole batch",
            advice="Let Kafka recover the log first (start and stop it), or clean without --roll.",
        )
    if not active.trust_indexes or not active.offset_index_path.exists():
        scan = active.scan()
        modified = active.last_modified_ms
        contents = [(active.time_index_path, scan.time_index), (active.offset_index_path, scan.offset_index)]
        # Last comes the offset index: without it the next start, and we, build the others anew.
        if active.unsaved_aborted or (active.unsaved_aborted is not None and active.transaction_index_path.exists()):
            aborted = b"".join(encode_transaction(entry) for entry in active.unsaved_aborted)
            contents.insert(0, (active.transaction_index_path, aborted))
        for path, content in contents:
            files.write_atomically(path, content)
            files.set_mtime_ms(path, modified)
    end = partition.log_end_offset
    snapshot = directory / names.snapshot_name(end)
    if not snapshot.exists():
        files.write_atomically(snapshot, partition.producers.take_snapshot())
    # Empty indexes beside an empty log are what an orderly stop leaves of a fresh active segment.
    for name in (names.offset_index_name(end), names.time_index_name(end), names.log_name(end)):
        files.write_file(directory / name, b"", like=active.log_path)
    files.fsync_dir(directory)
