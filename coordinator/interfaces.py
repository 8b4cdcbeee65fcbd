"""Where the daemon's frame and its parts meet: what the frame offers to a part, and what it calls on one.

The frame (coordinator.daemon) owns processes, sockets, timers, the partitions' states and the checkpoints. A part owns one
concern. Everything here is called on the loop's thread, which never waits: what may take more than a few milliseconds
(files, sorting ten thousand partitions) goes to a lane with `in_lane`, or to a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig
from compactd.coordinator.control.messages import CleaningStatus, Control, Status
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.clock import Clock
from compactd.workers.message import Endpoint, Message
from compactd.workers.partition_messages import PartitionState

T = TypeVar("T")

#: Of workers.
KINDS = ("broker", "cleaner", "retention", "deleter")


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """A worker by its place; the process in that place may change. str() is `cleaner-0`."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's configuration at one moment; replaced as a whole by a reload."""

    storage: StorageConfig
    cleaner: CleanerConfig
    daemon: DaemonConfig


class Timer(Protocol):
    def cancel(self) -> None:
        """Not called any more. Harmless when it was called already."""


class Frame(Protocol):
    """What the daemon offers its parts."""

    @property
    def clock(self) -> Clock: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """The last state of every partition that a broker serves. Do not change it, nor keep it over turns."""

    def topic_config(self, topic: str) -> TopicConfig:
        """The effective settings of a topic."""

    def owner_of(self, partition: TopicPartition) -> WorkerId | None:
        """The broker that serves it; None: nobody, just now."""

    def online_log_dirs(self) -> Sequence[Path]: ...
    def workers(self, kind: str) -> Sequence[WorkerId]:
        """Those of a kind that said Hello and are not stopping, by number."""

    def send(self, worker: WorkerId, message: Message) -> bool:
        """False: it isn't there. Never blocks."""

    def restart_worker(self, worker: WorkerId, reason: str) -> None:
        """Ends it, by force if need be, and starts another in its place."""

    def next_request_id(self) -> int: ...
    def ask(
        self, worker: WorkerId, request: Message, answered: Callable[[Message], None], timeout_ms: int | None = None
    ) -> None:
        """Sends a message that has a request_id; `answered` gets the first message back that repeats it.

        Or Failed, made here, with error "WorkerGone" or "Timeout": exactly one call in any case. Only the first answer
        goes there; later messages of the same request_id (a job's progress) go to the part's `received`.
        """

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Queues `.deleted` files or -delete directories at the deleter; survives the deleter's death."""

    def keep_files(self, paths: Sequence[str]) -> None:
        """Takes paths out of the deleter's queue."""

    def log_dir_failed(self, log_dir: str, reason: str) -> None:
        """An I/O error: the dir goes offline, once, and everybody is told."""

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer: ...
    def every(self, period_ms: float, call: Callable[[], None], first_ms: float | None = None) -> Timer:
        """At a fixed rate; an error of one call is logged and does not end it."""

    def in_lane(
        self, lane: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Runs `work` in the thread called `lane`, in the order asked, then `done` or `failed` on the loop's thread."""


class CleaningPart(Protocol):
    """The cleaning side: coordinator.cleaning.scheduler.CleaningScheduler(frame, quarantine, pauses)."""

    def start(self) -> None:
        """The brokers have loaded their partitions. Cleaners may have come already."""

    def worker_ready(self, worker: WorkerId) -> None:
        """A cleaner or broker said Hello (again)."""

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """It ended, or is about to be stopped: what it was doing is lost."""

    def received(self, worker: WorkerId, message: Message) -> None:
        """CleanProgress, GroupReady, CleanDone, and answers nobody `ask`ed for."""

    def states_changed(self, states: Sequence[PartitionState]) -> None: ...
    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        """Deleted, or their log dir is offline: give running cleans up, drop their checkpoint entries."""

    def partition_moved(self, partition: TopicPartition, source: Path, target: Path) -> None:
        """It lies in another log dir from now on: so does its checkpoint entry."""

    def configs_changed(self, topics: Sequence[str]) -> None: ...
    def settings_changed(self) -> None:
        """`frame.settings` is new: throttle, memory, back-off. The number of cleaners is changed by the frame."""

    def control(self, request: Control, answer: Callable[[Control], None]) -> None:
        """CleanNow, Pause, Resume, Retry or Undo; `answer` is called once, at any later time."""

    def status(self, all_partitions: bool) -> CleaningStatus:
        """Quick: from what is known already."""

    def stop(self, stopped: Callable[[], None]) -> None:
        """Give no new jobs out, have running ones aborted; then `stopped`. The frame waits for a while, not for ever."""


@dataclass(frozen=True, slots=True)
class CatalogueSetup:
    """What the catalogue is opened with."""

    #: In the order of log.dirs, all that are online; the first holds the metadata log.
    log_dirs: tuple[Path, ...]
    #: Log dirs that exist in the configuration but could not be used, with why.
    offline: Mapping[Path, str]
    settings: Settings
    clock: Clock


class CatalogueOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a change came to."""

    #: Answer for whoever asked, as workers.catalogue_messages defines it.
    results: msgspec.Raw
    #: What changed; None: nothing did.
    update: CatalogueUpdate | None = None


class CataloguePart(Protocol):
    """Topics, partitions and their places: coordinator.catalogue.catalogue.Catalogue.open(setup).

    Lives in the lane "catalogue": opened, called and closed in that one thread, never on the loop's. What the frame knows of
    topics is what the updates told it.
    """

    @property
    def cluster_id(self) -> str: ...
    @property
    def broker_epoch(self) -> int:
        """Of this node's registration; goes into the clean shutdown markers."""

    def start(
        self, nodes: tuple[tuple[int, str, int], ...], endpoints: tuple[tuple[Endpoint, ...], ...] = ()
    ) -> CatalogueUpdate:
        """Begins to write: a new epoch, the registration, leadership of every partition (facts A15). The full catalogue."""

    def change(self, operation: str, arguments: msgspec.Raw) -> CatalogueOutcome:
        """Decides and, unless refused, writes and fsyncs one change."""

    def log_dir_failed(self, log_dir: Path) -> CatalogueUpdate | None:
        """This dir gets no new partitions any more. The update: partitions without leader, if it says so."""

    def settings_changed(self, settings: Settings) -> None: ...
    def maintain(self) -> None:
        """Called every now and then: snapshots, old segments of the metadata log."""

    def close(self) -> None:
        """Orderly stop: gives the leaderships up, fsyncs."""


class MetricsPart(Protocol):
    """/metrics and /healthz: coordinator.metrics.metrics.Metrics(frame). Serves from a thread of its own."""

    def start(self, host: str, port: int) -> str:
        """Listens; the address that was bound."""

    def update(self, status: Status) -> None:
        """The state to show, given every few seconds."""

    def observe(self, message: Message) -> None:
        """Every message from a worker, for counters."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """How the frame makes its parts; tests put their own in."""

    catalogue: Callable[[CatalogueSetup], CataloguePart]
    cleaning: Callable[[Frame], CleaningPart]
    metrics: Callable[[Frame], MetricsPart] | None = None
