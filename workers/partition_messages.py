"""Messages about partitions and their owner; see `workers.messages`."""

from __future__ import annotations

import msgspec

from compactd.config.settings import TopicConfig
from compactd.workers.message import Message


class PartitionAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """One partition for a broker worker to own."""

    topic: str
    partition: int
    #: 22 characters, Kafka's form.
    topic_id: str
    #: Path of the log dir that holds it.
    log_dir: str
    config: TopicConfig
    #: Leader epoch of the catalogue: goes into appended batches.
    leader_epoch: int
    #: True: the directory is new and has to be made.
    is_new: bool = False
    #: Of the checkpoints, or of what the owner before told. High watermark -1: not known.
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = -1


class AssignPartitions(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: own these. Answered by PartitionsReady."""

    request_id: int
    partitions: tuple[PartitionAssignment, ...]
    #: Log dirs that were stopped in good order: no recovery.
    clean_log_dirs: tuple[str, ...] = ()


class PartitionsReady(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: loaded (and recovered where needed)."""

    request_id: int
    states: tuple[PartitionState, ...]
    #: topic-partition to what went wrong.
    failed: dict[str, str] = msgspec.field(default_factory=dict)


class ReleasePartitions(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: topic deleted. The owner closes the logs and renames the directories to -delete."""

    request_id: int
    partitions: tuple[str, ...]


class PartitionsReleased(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: the renamed directories, for the deleter."""

    request_id: int
    directories: tuple[str, ...]


class SegmentState(msgspec.Struct, frozen=True, kw_only=True):
    """A closed segment, as the choice of what to clean needs it."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_batch_timestamp: int


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator knows of a partition. Sent after load, roll, swap, deletion, and as often as asked."""

    topic: str
    partition: int
    log_dir: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    recovery_point: int
    active_base_offset: int
    active_size: int
    #: As LogSegment.largestTimestamp; -1: not known.
    active_largest_timestamp: int = -1
    closed: tuple[SegmentState, ...]
    #: Producer, first offset of the earliest open transaction, if any.
    open_transaction: tuple[int, int] | None = None
    #: The log dir that a copy is being made in; "": none. It is not cleaned meanwhile.
    moving_to: str = ""


class PartitionStates(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: changed states (at most about once a second each)."""

    states: tuple[PartitionState, ...]


class ConfigChanged(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: new effective topic configs."""

    configs: dict[str, TopicConfig]


class DirectoriesRetired(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: what a move to another log dir left behind, named -delete, for the deleter."""

    topic: str
    directories: tuple[str, ...]


class LogDirFailed(Message, frozen=True, kw_only=True, tag=True):
    """Broker (or cleaner) to coordinator, and on to all: this log dir had an I/O error and is offline."""

    log_dir: str
    reason: str
