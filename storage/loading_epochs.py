"""The leader epochs of a log that is being loaded: read, followed through recovery, rebuilt where the file is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from compactd.config.errors import CorruptFileError, StorageIOError
from compactd.storage import files, names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.kernel.scanning import SegmentScan, scan_segment
from compactd.storage.loaded_log import REBUILT, WARNING
from compactd.storage.producer_snapshots import is_no_space
from compactd.storage.segment import LogSegment

#: Told of what was done: kind of the action, file, detail.
Note = Callable[[str, Path, str], None]


class LoadingEpochs:
    """`epochs` and whether they differ from their file, leader-epoch-checkpoint."""

    def __init__(self, directory: Path, note: Note) -> None:
        self.path = directory / names.LEADER_EPOCH_CHECKPOINT
        self.epochs = LeaderEpochs()
        self._note = note
        self._emptied = False
        self._damaged = False
        try:
            self.epochs = LeaderEpochs.read(self.path)
        except CorruptFileError as error:
            self._damaged = True
            note(REBUILT, self.path, f"{error.reason}; the epochs were read from the batches")
        self._changed = self._damaged or not self.path.exists()

    def assign(self, scan: SegmentScan) -> None:
        """Takes in the epochs of a segment's batches that are above the latest (LogSegment.recover)."""
        for epoch, offset in scan.epochs:
            latest = self.epochs.latest_epoch
            if latest is None or epoch > latest:
                self._changed |= self.epochs.assign(epoch, offset)

    def rebuild_if_damaged(self, segments: Sequence[LogSegment]) -> None:
        """Reads all epochs from the batches where the file could not be read."""
        if not self._damaged:
            return
        self.epochs.entries.clear()
        for segment in segments:
            if segment.size:
                interval = segment.index_interval_bytes
                self.assign(
                    scan_segment(segment.log_path, segment.base_offset, interval, segment.size, check_crc=False)
                )

    def clear(self) -> None:
        """The log has nothing left."""
        self.epochs.entries.clear()
        self._changed = self._emptied = True

    def truncate(self, log_start_offset: int, log_end_offset: int) -> None:
        """Keeps what lies within the log."""
        self._changed |= self.epochs.truncate_from_end(log_end_offset)
        self._changed |= self.epochs.truncate_from_start(log_start_offset)

    def write(self) -> None:
        """Writes the file where it says something else. A full disk is only told of: a later start does it."""
        if not self._changed:
            return
        try:
            if self.epochs.entries or self.path.exists() or self._emptied:
                self.epochs.write(self.path)
            else:  # as Kafka makes it when it opens a log
                files.write_file(self.path, b"")
        except StorageIOError as error:
            if not is_no_space(error):
                raise
            self._note(WARNING, self.path, f"not written: {error.reason}; it is rebuilt at the next start")
