"""Leader epochs of a partition, `leader-epoch-checkpoint` (Kafka's LeaderEpochFileCache; facts 1.7).

Each entry is an epoch and the offset of its first record; both increase from entry to entry. File: the checkpoint frame
with lines `epoch startOffset`.
"""

from __future__ import annotations

from compactd.storage import files
from compactd.storage.checkpoints import corrupt, parse_integer, read_frame, write_frame


class LeaderEpochs:
    """Epoch to start offset, in memory. `write` makes it durable."""

    def __init__(self) -> None:
        #: (epoch, start offset), both strictly increasing.
        self.entries: list[tuple[int, int]] = []

    @classmethod
    def read(cls, path: files.StrPath) -> LeaderEpochs:
        """Reads the file; an absent one has no entries. CorruptFileError names the line that is wrong.

        As in Kafka the lines are assigned in file order: one that contradicts earlier ones replaces them.
        """
        found = cls()
        for number, position, texts in read_frame(path, 2):
            try:
                found.assign(parse_integer(texts[0], 31), parse_integer(texts[1], 63))
            except ValueError as error:
                raise corrupt(path, f"malformed line {number}: {error}", position) from None
        return found

    def write(self, path: files.StrPath) -> None:
        """Replaces the file atomically."""
        write_frame(path, (f"{epoch} {start}" for epoch, start in self.entries))

    @property
    def latest_epoch(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that `epoch` starts at `start_offset`; returns whether anything changed. ValueError if one is negative.

        Entries at or above either value go first: a replica that was elected again wrote over them.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}: neither may be negative")
        if self.entries and self.entries[-1][0] == epoch and self.entries[-1][1] <= start_offset:
            return False
        while self.entries and (self.entries[-1][0] >= epoch or self.entries[-1][1] >= start_offset):
            self.entries.pop()
        self.entries.append((epoch, start_offset))
        return True

    def truncate_from_end(self, offset: int) -> bool:
        """The log now ends at `offset`: drops epochs that start there or later. Returns whether anything changed."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
        return len(self.entries) != before

    def truncate_from_start(self, offset: int) -> bool:
        """The log now starts at `offset`: the epoch of that offset starts there, older ones go.

        Returns whether entries changed.
        """
        older = [entry for entry in self.entries if entry[1] <= offset]
        if not older:
            return False
        before = list(self.entries)
        self.entries[: len(older)] = [(older[-1][0], offset)]
        return self.entries != before
