"""What loading a partition gives: its segments, its offsets, its producers, and everything that was done to get there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.settings import TopicConfig
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.names import TopicPartition
from compactd.storage.producer_snapshots import ProducerSnapshots
from compactd.storage.producers import ProducerState
from compactd.storage.segment import LogSegment

#: Kinds of actions: what a load may do to a partition's files.
REMOVED = "removed"
RENAMED = "renamed"
REBUILT = "rebuilt"
CUT = "cut"
DELETED = "deleted"
SPLIT = "split"
CREATED = "created"
WARNING = "warning"


@dataclass(frozen=True, slots=True)
class LoadAction:
    """One thing that a load did, or has to say."""

    #: One of the kinds above.
    kind: str
    #: The file or directory.
    path: Path
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path.name}: {self.detail}"


@dataclass(slots=True)
class LoadedLog:
    """One partition after LogLoader ran (Kafka's LoadedLogOffsets, with what it loaded). Offsets absolute."""

    directory: Path
    topic_partition: TopicPartition
    config: TopicConfig
    #: In offset order, at least one; the last is the active one. Their sizes are those of whole batches.
    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    #: Everything below is known to be on disk.
    recovery_point: int
    epochs: LeaderEpochs
    #: The producers at the log end offset, and the snapshot files that lead there.
    snapshots: ProducerSnapshots
    #: None: no partition.metadata.
    topic_id: uuid.UUID | None = None
    clean_shutdown: bool = False
    actions: list[LoadAction] = field(default_factory=list)
    #: `.deleted` files of segments that this load took out; to be removed after file.delete.delay.ms.
    deleted_files: list[Path] = field(default_factory=list)

    @property
    def producers(self) -> ProducerState:
        return self.snapshots.state

    @property
    def active_segment(self) -> LogSegment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        return sum(segment.size for segment in self.segments)
