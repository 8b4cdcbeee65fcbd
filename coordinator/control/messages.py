"""What commands such as `compactd status` ask the running daemon, and what it answers: one msgspec struct each way.

The control socket is a ROUTER at RUN/control.sock. A request and its answer are each one frame of MessagePack, the tag
names the struct; before it goes an id that the answer repeats. An answer to anything that could not be done is Refused.
"""

from __future__ import annotations

import msgspec


class Control(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all."""


# ---- requests


class GetStatus(Control, frozen=True, kw_only=True, tag=True):
    """What the daemon does. Answered by Status."""

    #: List every partition, and not only those with something to say.
    all_partitions: bool = False


class CleanNow(Control, frozen=True, kw_only=True, tag=True):
    """Clean these as soon as a cleaner is free, whatever their ratio. Topics, or single partitions as topic-partition."""

    names: tuple[str, ...]


class Pause(Control, frozen=True, kw_only=True, tag=True):
    """Clean none of these until Resume; a running clean lets go. Empty: nothing at all is cleaned."""

    names: tuple[str, ...] = ()


class Resume(Control, frozen=True, kw_only=True, tag=True):
    """Take a Pause of the same names back."""

    names: tuple[str, ...] = ()


class Retry(Control, frozen=True, kw_only=True, tag=True):
    """Release partitions from quarantine. Empty: all of them."""

    names: tuple[str, ...] = ()


class Undo(Control, frozen=True, kw_only=True, tag=True):
    """Put the files that the last clean replaced back. One partition, as topic-partition."""

    name: str


class GetUsers(Control, frozen=True, kw_only=True, tag=True):
    """Who may log in with SCRAM. Answered by Users."""


class Reload(Control, frozen=True, kw_only=True, tag=True):
    """Read the configuration again, as SIGHUP does. Answered by Reloaded."""


class StopDaemon(Control, frozen=True, kw_only=True, tag=True):
    """Stop in good order, as SIGTERM does. Answered by Done when the stop has begun."""


class ChangeCatalogue(Control, frozen=True, kw_only=True, tag=True):
    """A change of topics or settings, as `workers.catalogue_messages` defines it. Answered by CatalogueAnswer."""

    operation: str
    arguments: msgspec.Raw


class GetTopics(Control, frozen=True, kw_only=True, tag=True):
    """What topics there are. Answered by Topics."""

    #: Empty: all.
    names: tuple[str, ...] = ()


# ---- parts of the status


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process."""

    name: str
    kind: str
    number: int
    #: "starting", "running", "stopping", "waiting" (to be started again) or "given up".
    state: str
    pid: int | None = None
    #: What it says it is doing, in its own words.
    phase: str = ""
    #: Where it listens, brokers only.
    address: str = ""
    up_seconds: float = 0.0
    restarts: int = 0
    #: How it ended the last time, in words.
    last_exit: str = ""
    #: Seconds since it was last heard of.
    silent_seconds: float = 0.0


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A clean that is running."""

    partition: str
    worker: str
    phase: str
    bytes_total: int
    bytes_read: int
    bytes_written: int
    records_read: int
    bytes_per_second: float
    records_per_second: float
    #: Share of the offset map that is used, 0 to 1.
    map_fill: float
    #: None: not known yet.
    seconds_left: float | None = None


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, as the choice of what to clean sees it."""

    name: str
    log_dir: str
    log_start_offset: int
    log_end_offset: int
    size: int
    segments: int
    #: None: not a compacted topic.
    dirty_ratio: float | None = None
    dirty_bytes: int = 0
    first_dirty_offset: int = 0
    #: Why it isn't cleaned now, in words; empty when it is, or is next.
    blocked_by: str = ""
    #: Wall clock; None: time alone does not clear it.
    clears_at_ms: int | None = None


class QuarantineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that was set aside."""

    partition: str
    since_ms: int
    #: None: only `compactd retry` releases it.
    retry_at_ms: int | None
    attempts: int
    error: str
    reason: str
    #: file, position, offsets: what the error knew.
    fields: dict[str, str] = {}


class CleaningStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cleaning side."""

    jobs: tuple[JobStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    quarantine: tuple[QuarantineStatus, ...] = ()
    #: Names that were paused; "*": everything.
    paused: tuple[str, ...] = ()
    #: What holds all cleaning up, in words: I/O pressure, space, throttle.
    held_by: str = ""


class DeleterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The deleter's queue."""

    queued: int = 0
    queued_bytes: int = 0
    removed: int = 0
    next_due_ms: int | None = None


class LogDirStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of log.dirs."""

    path: str
    partitions: int
    free_bytes: int
    total_bytes: int
    #: Empty: online.
    offline_because: str = ""
    cordoned: bool = False


class LoopStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How promptly the coordinator answers. A slow turn is one of more than 100 ms."""

    turns: int
    slow_turns: int
    slowest_ms: float
    #: What the slowest turn was busy with.
    slowest: str = ""
    busy_seconds: float = 0.0


# ---- parts of the list of topics


class TopicPartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a topic. Offsets and sizes are those last heard of; -1 and 0 while nobody serves it."""

    partition: int
    #: The broker worker that serves it.
    worker: str
    log_dir: str
    leader_epoch: int
    log_start_offset: int = -1
    log_end_offset: int = -1
    high_watermark: int = -1
    size: int = 0
    segments: int = 0
    #: Why nobody serves it; empty: somebody does.
    offline: str = ""


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    name: str
    topic_id: str
    partitions: tuple[TopicPartitionReport, ...]
    #: Its own settings, as written by whoever set them.
    configs: dict[str, str]
    #: Every topic-level setting that is in force, as text.
    effective: dict[str, str]


class UserReport(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism that a user may log in with: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    user: str
    mechanism: int
    iterations: int


# ---- answers


class Status(Control, frozen=True, kw_only=True, tag=True):
    """The daemon at one moment."""

    version: str
    pid: int
    #: "starting", "running" or "stopping".
    state: str
    up_seconds: float
    now_ms: int
    cluster_id: str
    node_id: int
    topics: int
    partitions: int
    #: Partitions that no broker serves, with why.
    offline: dict[str, str]
    workers: tuple[WorkerStatus, ...]
    log_dirs: tuple[LogDirStatus, ...]
    cleaning: CleaningStatus
    deleter: DeleterStatus
    loop: LoopStatus
    #: Where metrics are served; empty: nowhere.
    metrics: str = ""
    #: Partitions on their way to another log dir, with its path.
    moves: dict[str, str] = {}


class Done(Control, frozen=True, kw_only=True, tag=True):
    """It was done; `lines` say what, for a person."""

    lines: tuple[str, ...] = ()


class Refused(Control, frozen=True, kw_only=True, tag=True):
    """It was not done. `error`: a class of config.errors, `fields` its fields as text."""

    error: str
    message: str
    fields: dict[str, str] = {}


class Reloaded(Control, frozen=True, kw_only=True, tag=True):
    """What a reload changed, and what it left alone because only a restart can change it: one line each."""

    applied: tuple[str, ...]
    refused: tuple[str, ...]


class CatalogueAnswer(Control, frozen=True, kw_only=True, tag=True):
    """Results of ChangeCatalogue, as `workers.catalogue_messages` defines them."""

    results: msgspec.Raw


class Topics(Control, frozen=True, kw_only=True, tag=True):
    """The topics asked for that exist, by name."""

    topics: tuple[TopicReport, ...]


class Users(Control, frozen=True, kw_only=True, tag=True):
    """Who may log in with SCRAM, by user and mechanism."""

    users: tuple[UserReport, ...]


Request = (
    GetStatus | GetTopics | GetUsers | CleanNow | Pause | Resume | Retry | Undo | Reload | StopDaemon | ChangeCatalogue
)
Answer = Status | Topics | Users | Done | Refused | Reloaded | CatalogueAnswer

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


def encode(message: Control) -> bytes:
    """One frame."""
    return _ENCODER.encode(message)


def decode_request(frame: bytes) -> Request:
    """Raises msgspec.DecodeError (ValidationError is one) for anything else."""
    request: Request = _REQUESTS.decode(frame)
    return request


def decode_answer(frame: bytes) -> Answer:
    """Raises msgspec.DecodeError (ValidationError is one) for anything else."""
    answer: Answer = _ANSWERS.decode(frame)
    return answer
