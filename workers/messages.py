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

from enum import StrEnum

import msgspec

from compactd.workers.catalogue_update import CatalogueChange, CatalogueChanged, CatalogueUpdate
from compactd.workers.cleaning_messages import (
    AbortClean,
    CheckRetention,
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    DeleteLater,
    DeleterState,
    GroupReady,
    GroupSwapped,
    KeepFiles,
    LetGo,
    LetGoDone,
    PrepareClean,
    RetentionDecided,
    UndoClean,
    UndoDone,
)
from compactd.workers.message import VERSION, Endpoint, Message
from compactd.workers.partition_messages import (
    AssignPartitions,
    ConfigChanged,
    DirectoriesRetired,
    LogDirFailed,
    PartitionsReady,
    PartitionsReleased,
    PartitionStates,
    ReleasePartitions,
)

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
    broker: dict[str, str] = msgspec.field(default_factory=dict)
    #: Topic-level name to text that was given for every topic.
    topics: dict[str, str] = msgspec.field(default_factory=dict)


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
    logger_levels: dict[str, str] = msgspec.field(default_factory=dict)
    version: int = VERSION


class Listening(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, after Welcome and before anything else: its sockets are bound, in the order of
    Welcome.listen. It takes connections from the first full CatalogueUpdate on."""

    endpoints: tuple[Endpoint, ...]


class Serving(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: it takes connections from now on."""


class Throttles(StrEnum):
    """What has clients wait: quotas of bytes, of time, of topics' partitions made and deleted, of new connections."""

    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"
    CONTROLLER_MUTATION = "controller_mutation"
    CONNECTION = "connection"


class BrokerCounts(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator, every few seconds: what it counted since it told the last time, and how much there is now."""

    worker: int
    #: By listener: (connections now, logins that succeeded, that failed, logins once more that succeeded, that failed).
    listeners: dict[str, tuple[int, int, int, int, int]] = msgspec.field(default_factory=dict)
    #: Transactions that this broker coordinates: open now; committed, aborted, and of the aborted those that were too old.
    open_transactions: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    #: By what made clients wait (Throttles): how often, and milliseconds in all.
    throttles: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: What clients asked to do: how often the authorizer allowed it, and how often it did not.
    allowed: int = 0
    denied: int = 0
    #: ACLs that it goes by now.
    acls: int = 0


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
    fields: dict[str, str] = msgspec.field(default_factory=dict)


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
