"""Producer snapshots while a log is loaded: the same rules, on a disk that may be full, and with a word on what happened."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from compactd.config.errors import StorageIOError
from compactd.storage import files
from compactd.storage.producer_snapshots import ProducerSnapshots
from compactd.storage.producers import ProducerState

#: The disk is full, or the owner's share of it.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_no_space(error: StorageIOError) -> bool:
    """Whether a write failed because there is no space left."""
    return error.fields.get("errno") in _NO_SPACE


class LoadingSnapshots(ProducerSnapshots):
    """Writes no snapshot that is there already, and goes on without one that does not fit the disk any more."""

    def __init__(self, directory: Path, expiration_ms: int) -> None:
        super().__init__(lambda: str(directory), ProducerState(expiration_ms, str(directory)))
        #: After loading: a snapshot that cannot be written is an error again.
        self.tolerant = True
        self.removed: list[int] = []
        self.written: list[int] = []
        self.notes: list[str] = []

    def take(self, sync: bool = True) -> int | None:
        offset = self.map_end_offset
        if self.tolerant and offset > self.last_snapshot_offset and self._is_written(offset):
            self.last_snapshot_offset = offset
            self._add(offset)
            return offset
        try:
            taken = super().take(sync)
        except StorageIOError as error:
            if not (self.tolerant and is_no_space(error)):
                raise
            files.remove(self.path(offset), missing_ok=True)
            self.notes.append(f"{Path(self.path(offset)).name} was not written: {error.reason}")
            return None
        if taken is not None:
            self.written.append(taken)
        return taken

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.removed.append(offset)
        super().remove(offset)

    def remove_stray(self, bases: Sequence[int]) -> list[int]:
        """Keeps snapshots at segment bases, and the newest of the others where it lies above the last base."""
        stray = sorted(set(self.offsets) - set(bases))
        if stray and (not bases or stray[-1] >= bases[-1]):
            stray.pop()
        for offset in stray:
            self.remove(offset)
        return stray

    def _is_written(self, offset: int) -> bool:
        path = Path(self.path(offset))
        if not path.exists():
            return False
        content = self.state.take_snapshot()
        return path.stat().st_size == len(content) and path.read_bytes() == content
