"""What the processes of the daemon say to each other: typed, versioned, never pickled.

One ROUTER socket at the coordinator, one DEALER at each worker, over ipc in a directory of mode 0700. A message is one
msgspec struct, encoded as MessagePack; its tag names it. A worker's first message is Hello, and nothing is answered before
the versions match. Requests carry `request_id`; the answer repeats it.

    broker  <-> coordinator   owns partitions: told which, tells sizes and offsets, swaps, lets go, forwards catalogue changes
    cleaner <-> coordinator   one job at a time under a lease; groups are handed over one by one
    retention <-> coordinator asks the owner to let go of segments
    deleter <-> coordinator   removes files and directories when they are due
"""

from __future__ import annotations

import msgspec

from compactd.config.settings import TopicConfig

#: Both sides must say the same; raised with every change of a message.
VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages."""


class Endpoint(msgspec.Struct, frozen=True):
    """An address of a broker under a listener's name. `protocol`: config.listeners.SecurityProtocol."""

    listener: str
    host: str
    port: int
    protocol: int = 0


# ---- every worker


class Hello(Message, frozen=True, kw_only=True, tag=True):
    """Worker to coordinator, first of all."""

    #: "broker", "cleaner", "retention" or "deleter".
    kind: str
    #: Number among its kind, from 0.
    number: int
    pid: int
    version: int = VERSION


class GivenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon was started with, or last reloaded, as it was written: for those who ask what is set, and where."""

    #: Broker-level name to text.
    broker: dict[str, str] = {}
    #: Topic-level name to text that was given for every topic.
    topics: dict[str, str] = {}


class Welcome(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to worker: settings to run with (setting name to value, as config.settings resolved them)."""

    settings: dict[str, str]
    heartbeat_ms: int = 1000
    #: A coordinator that was silent for this long is taken for dead, and the worker ends.
    silence_ms: int = 30_000
    #: "text" or "json", and the least level, of the log that the worker writes to stderr.
    log_format: str = "text"
    log_level: str = "info"
    #: Broker only: its Kafka node id, and where to listen (port 0: any free one).
    node_id: int = -1
    listen: tuple[Endpoint, ...] = ()
    given: GivenSettings = GivenSettings()
    #: Levels of single loggers that a client changed (workers.logger_levels).
    logger_levels: dict[str, str] = {}
    version: int = VERSION


class Listening(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, after Welcome and before anything else: its sockets are bound, in the order of
    Welcome.listen. It takes connections from the first full CatalogueUpdate on."""

    endpoints: tuple[Endpoint, ...]


class Serving(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: it takes connections from now on."""


class BrokerCounts(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, every few seconds: what it counted since it told the last time, and how much there is now."""

    worker: int
    #: By listener: (connections now, logins that succeeded, that failed, logins once more that succeeded, that failed).
    listeners: dict[str, tuple[int, int, int, int, int]] = {}
    #: Transactions that this broker coordinates: open now; committed, aborted, and of the aborted those that were too old.
    open_transactions: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0


class Heartbeat(Message, frozen=True, kw_only=True, tag=True):
    """Worker to coordinator, from a thread of its own so that it beats while the kernel runs; the coordinator answers each
    with one of its own."""

    #: What it is doing, for status.
    phase: str = "idle"


class Reconfigure(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to worker: settings that may change while running, with their new values."""

    settings: dict[str, str]
    #: None: as it was.
    given: GivenSettings | None = None


class SetLoggerLevels(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, and on to every worker: a client changed levels of loggers; None: as the one above it."""

    levels: dict[str, str | None]


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to worker: finish what is unsafe to leave, say Stopped, end."""

    reason: str


class Stopped(Message, frozen=True, kw_only=True, tag=True):
    """Worker to coordinator: last words. `log_dirs_clean`: broker only, the dirs whose logs all closed without error."""

    log_dirs_clean: tuple[str, ...] = ()


class Failed(Message, frozen=True, kw_only=True, tag=True):
    """Any request that could not be done."""

    request_id: int
    #: Class name in config.errors, its message, and its fields as text.
    error: str
    message: str
    fields: dict[str, str] = {}


# ---- partitions and their owner


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
    failed: dict[str, str] = {}


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
    fields: dict[str, str] = {}
    stats: dict[str, float] = {}


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
    failed: dict[str, str] = {}


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


# ---- the catalogue


class CataloguePartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader_epoch: int
    partition_epoch: int
    log_dir: str
    #: Number of the broker worker that owns it.
    worker: int
    #: It has a leader; False: its log dir is offline.
    online: bool = True


class CatalogueTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: tuple[CataloguePartition, ...]
    #: Topic-level overrides, as written by whoever set them.
    configs: dict[str, str]


class ClientQuota(msgspec.Struct, frozen=True):
    """Quotas of one entity: ((type, name or None for the default), ...) by type, and the values by key."""

    entity: tuple[tuple[str, str | None], ...]
    values: dict[str, float]


class ScramCredential(msgspec.Struct, frozen=True):
    """What a user proves a password with. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    user: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class AccessRule(msgspec.Struct, frozen=True):
    """An ACL; numbers as in the protocol (facts: kafka-protocol 0.1)."""

    id: str
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class CatalogueUpdate(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to every broker: what a change came to, or the whole catalogue when `full`."""

    full: bool
    #: Offset of the newest record of the metadata log.
    metadata_offset: int
    cluster_id: str
    #: Topics new or changed, whole; names of those that are gone: to be dropped before the former are taken over.
    topics: tuple[CatalogueTopic, ...]
    deleted: tuple[str, ...] = ()
    #: Dynamic configs of brokers ("" is the cluster default, else a node id), of groups, of client-metrics subscriptions:
    #: each one that changed, whole; an empty mapping where the last value was removed.
    broker_configs: dict[str, dict[str, str]] = {}
    group_configs: dict[str, dict[str, str]] = {}
    client_metrics: dict[str, dict[str, str]] = {}
    #: Finalized features: name to level.
    features: dict[str, int] = {}
    #: Broker workers as Kafka nodes: node id, host, port by worker number; and what clients of each listener are told in
    #: place of host and port. Where there is none of that, there is one listener.
    nodes: tuple[tuple[int, str, int], ...] = ()
    endpoints: tuple[tuple[Endpoint, ...], ...] = ()
    #: What concerns who a client is: all there is, or None where nothing of the kind changed.
    quotas: tuple[ClientQuota, ...] | None = None
    credentials: tuple[ScramCredential, ...] | None = None
    acls: tuple[AccessRule, ...] | None = None


class CatalogueChange(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: a client asks for a change. `operation` and `arguments` as coordinator.catalogue defines them."""

    request_id: int
    #: "create_topics", "delete_topics", "create_partitions", "alter_configs", "allocate_producer_ids".
    operation: str
    arguments: msgspec.Raw


class CatalogueChanged(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: the answer, after the change is fsynced and every broker has been told."""

    request_id: int
    results: msgspec.Raw


# ---- brokers among themselves


class PeerRequest(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, and on to broker `worker`: workers.broker.peers says what may be asked."""

    #: Number of the worker that asks, and of its question.
    asker: int
    number: int
    worker: int
    operation: str
    arguments: msgspec.Raw


class PeerAnswer(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, and on to `asker`; from the coordinator itself where the other is not there."""

    asker: int
    number: int
    #: Why there are no results; "": there are.
    error: str = ""
    results: msgspec.Raw = msgspec.Raw(b"\xc0")


AnyMessage = (
    Hello | Welcome | Listening | Serving | BrokerCounts | Heartbeat | Reconfigure | SetLoggerLevels | Stop | Stopped | Failed
    | AssignPartitions | PartitionsReady | ReleasePartitions | PartitionsReleased | PartitionStates | ConfigChanged | LogDirFailed
    | DirectoriesRetired
    | PrepareClean | CleanJob | CleanThrottle | CleanProgress | GroupReady | GroupSwapped | CleanDone | AbortClean
    | CheckRetention | RetentionDecided | LetGo | LetGoDone | DeleteLater | DeleterState | UndoClean | UndoDone | KeepFiles
    | CatalogueUpdate | CatalogueChange | CatalogueChanged | PeerRequest | PeerAnswer
)  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """One frame."""
    return _ENCODER.encode(message)


def decode(frame: bytes) -> Message:
    """Raises msgspec.ValidationError for anything that is not one of the messages above."""
    message: Message = _DECODER.decode(frame)
    return message
