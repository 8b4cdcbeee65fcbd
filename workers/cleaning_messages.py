"""Messages about cleaning, retention and deletion; see `workers.messages`."""

from __future__ import annotations

import msgspec

from compactd.config.settings import TopicConfig
from compactd.workers.message import Message
from compactd.workers.partition_messages import PartitionState

# ---- cleaning


class PrepareClean(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: what a cleaner needs of this partition. Answered by CleanJob."""

    request_id: int
    topic: str
    partition: int
    #: Close the active segment first, if it holds anything: a person wants all of it cleaned now.
    roll: bool = False


class ActiveProducerState(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    last_data_offset: int | None


class SegmentSource(msgspec.Struct, frozen=True, kw_only=True):
    """A closed, immutable segment of the job."""

    base_offset: int
    size: int
    last_modified_ms: int


class CleanJob(Message, frozen=True, kw_only=True, tag=True):
    """Everything a round needs: the owner's view at one moment. Leased to one cleaner at a time."""

    request_id: int
    topic: str
    partition: int
    directory: str
    config: TopicConfig
    segments: tuple[SegmentSource, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    first_dirty_offset: int
    #: Segment-aligned upper bound of the round.
    first_uncleanable_offset: int
    active_producers: tuple[ActiveProducerState, ...]
    now_ms: int
    map_memory_bytes: int
    map_load_factor: float
    #: Base offset of the segment that is being written; its transaction index may hold markers of closed ones.
    active_base_offset: int = -1
    #: Bytes read and written per second that this cleaner may take.
    bytes_per_second: float = 1.7976931348623157e308
    #: Threads that the cleaner may work with: itself, and one for each cleaner that has nothing to do.
    threads: int = 1


class CleanThrottle(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to cleaner: its share of log.cleaner.io.max.bytes.per.second, from now on."""

    bytes_per_second: float


class CleanProgress(Message, frozen=True, kw_only=True, tag=True):
    """Cleaner to coordinator, about once a second: for status, throttle accounting and the lease."""

    request_id: int
    phase: str
    bytes_read: int
    bytes_written: int
    records_read: int = 0
    map_entries: int = 0
    map_capacity: int = 0


class GroupReady(Message, frozen=True, kw_only=True, tag=True):
    """Cleaner to coordinator, and on to the owner: a group's .cleaned files are whole and fsynced. Answered by GroupSwapped."""

    request_id: int
    group_id: int
    topic: str
    partition: int
    base_offset: int
    source_bases: tuple[int, ...]


class GroupSwapped(Message, frozen=True, kw_only=True, tag=True):
    """Owner to coordinator, and on to the cleaner. `accepted` False: the log changed meanwhile, the round is given up."""

    request_id: int
    group_id: int
    accepted: bool
    reason: str = ""
    #: The owner died or did not answer: whether the swap happened is only known when it loads the log again, and every
    #: file has to stay as it is until then.
    unknown: bool = False
    #: Files renamed to .deleted, for the deleter.
    deleted: tuple[str, ...] = ()


class CleanDone(Message, frozen=True, kw_only=True, tag=True):
    """Cleaner to coordinator: the round's outcome. The coordinator writes the checkpoint."""

    request_id: int
    next_dirty_offset: int
    #: "cleaned", "aborted", "faulty", "refused" or "failed".
    outcome: str
    reason: str = ""
    #: Error fields (path, position, ...) for the quarantine.
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    stats: dict[str, float] = msgspec.field(default_factory=dict)


class AbortClean(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to cleaner: give the running round up (topic deleted, policy changed, shutdown)."""

    request_id: int
    reason: str


# ---- retention and deletion


class CheckRetention(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to retention worker: decide for these states. Answered by RetentionDecided."""

    request_id: int
    states: tuple[PartitionState, ...]
    configs: dict[str, TopicConfig]
    now_ms: int


class RetentionDecided(Message, frozen=True, kw_only=True, tag=True):
    """Retention worker to coordinator: partitions whose owner should run its retention now, with why."""

    request_id: int
    due: dict[str, str]


class LetGo(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to owner: apply retention to these partitions. Answered by LetGoDone."""

    request_id: int
    partitions: tuple[str, ...]
    now_ms: int


class LetGoDone(Message, frozen=True, kw_only=True, tag=True):
    request_id: int
    #: Files renamed to .deleted, for the deleter.
    deleted: tuple[str, ...]
    failed: dict[str, str] = msgspec.field(default_factory=dict)


class DeleteLater(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to deleter: files (or -delete directories) to remove at `due_ms` (wall clock)."""

    paths: tuple[str, ...]
    due_ms: int


class DeleterState(Message, frozen=True, kw_only=True, tag=True):
    """Deleter to coordinator, after each change: the queue for status."""

    queued: int
    queued_bytes: int
    removed: int
    next_due_ms: int | None = None
    #: Of those queued: paths whose removal failed and is tried again.
    failing: int = 0


class UndoClean(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to owner: put the sources of the last clean back while their .deleted files exist."""

    request_id: int
    topic: str
    partition: int


class UndoDone(Message, frozen=True, kw_only=True, tag=True):
    request_id: int
    restored: tuple[str, ...]
    refused: str = ""


class KeepFiles(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to deleter: forget these paths (they were put back)."""

    paths: tuple[str, ...]
