"""The coordinator: `compactd serve`'s main process. It owns decisions, checkpoints and locks, never bytes of a log.

    start, stop        coordinator.startup, .stopping; reload: .reloading, of what .configuration read
    sockets, timers    coordinator.loop; threads beside it ("lanes") too
    processes          coordinator.processes: the supervisor, what workers say and are asked
    log dirs           coordinator.logs: partitions and who serves them, checkpoints, retention, what is to be deleted
    the catalogue      coordinator.catalogue: topics, settings, users; changes of them
    cleaning           coordinator.cleaning
    commands           coordinator.control: what they ask, and the answers
    metrics            coordinator.metrics

All of it runs in one thread that never waits for anything but the next event.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from compactd.config.errors import CompactdError, DaemonError
from compactd.config.settings import TopicConfig
from compactd.coordinator import reloading
from compactd.coordinator.catalogue.changes import CatalogueChanges
from compactd.coordinator.configuration import CatalogueConfigs, Configuration, TopicConfigs
from compactd.coordinator.control import commands, status
from compactd.coordinator.control.socket import ControlServer
from compactd.coordinator.interfaces import (
    KINDS,
    CataloguePart,
    CleaningPart,
    MetricsPart,
    Parts,
    Timer,
    WorkerId,
)
from compactd.coordinator.logs.assignment import Assignment
from compactd.coordinator.logs.checkpointing import Checkpoints, lane_of
from compactd.coordinator.logs.deletion import Deletions
from compactd.coordinator.logs.log_dirs import LogDirs
from compactd.coordinator.logs.partitions import Partitions
from compactd.coordinator.logs.retention import RetentionSchedule
from compactd.coordinator.loop import Loop
from compactd.coordinator.processes import worker_messages
from compactd.coordinator.processes.peers import PeerRelay
from compactd.coordinator.processes.requests import Requests
from compactd.coordinator.processes.supervisor import Command, Supervisor, worker_command
from compactd.coordinator.run_dir import RunDir, find_run_dir
from compactd.coordinator.signals import Signals, terminal_is_gone
from compactd.coordinator.startup import Startup
from compactd.coordinator.stopping import Stopping
from compactd.coordinator.systemd import Notifier
from compactd.storage.names import TopicPartition
from compactd.workers.clock import Clock
from compactd.workers.message import Endpoint, Message
from compactd.workers.messages import (
    Welcome,
)
from compactd.workers.partition_messages import (
    LogDirFailed,
    PartitionState,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

_METRICS_MS = 5000
_MAINTAIN_MS = 30_000


class Daemon:
    """Fills `interfaces.Frame` for its parts and `supervisor.Listener` for the supervisor."""

    def __init__(
        self,
        configuration: Configuration,
        parts: Parts,
        *,
        command: Command = worker_command,
        environment: Mapping[str, str] | None = None,
        started: Callable[[Daemon], None] | None = None,
    ) -> None:
        """`started` is called once everything runs."""
        self.configuration = configuration
        self.settings = configuration.resolve(None)
        #: Its settings as they were written, but for those that only a restart can change.
        self.given = configuration.given
        #: Of single loggers, as clients changed them since the start.
        self.logger_levels: dict[str, str] = {}
        self.clock = Clock(self.settings.daemon.test_clock_file or None)
        self.notifier = Notifier()
        self.begun = time.monotonic()
        self.state = "starting"
        #: The markers of the last clean stop are gone: only an orderly stop from here brings them back.
        self.in_use = False
        self.catalogue: CataloguePart | None = None
        self.metrics: MetricsPart | None = None
        self.metrics_address = ""
        #: (node id, host, port) that clients are told, by broker worker.
        self.nodes: dict[WorkerId, tuple[int, str, int]] = {}
        #: The same by listener.
        self.endpoints: dict[WorkerId, tuple[Endpoint, ...]] = {}
        self.partitions = Partitions()
        #: What `directory_delay_ms` was worked out of, and to what.
        self._directory_delay: tuple[object, int] | None = None
        self._parts = parts
        self._command = command
        self.environment = dict(environment or {})
        self._started = started
        self._stopping: Stopping | None = None
        self._fatal: CompactdError | None = None

    # ---- the process

    def run(self) -> bool:
        """Until it is told to stop. Whether every log dir was left in good order; raises what kept it from going on."""
        daemon = self.settings.daemon
        self.dirs = LogDirs(self.settings.storage.log_dirs)
        with RunDir(
            find_run_dir(daemon.run_dir, self.settings.storage.log_dirs), self.settings.storage.log_dirs
        ) as run_dir:
            self.run_dir = run_dir.path
            self.dirs.open()
            try:
                self._run(run_dir)
            finally:
                self.dirs.release()
        if self._fatal is not None:
            raise self._fatal
        return self._stopping is not None and not self._stopping.unclean

    def _run(self, run_dir: RunDir) -> None:
        self.loop = Loop()
        self.requests = Requests(self.loop)
        self.supervisor = Supervisor(
            self.loop,
            run_dir.path,
            run_dir.workers_socket,
            lambda: self.settings.daemon,
            self,
            self._command,
            self.environment,
        )
        self.peers = PeerRelay(self.supervisor.send)
        control = ControlServer(
            self.loop, run_dir.control_socket, lambda request, answer: commands.do(self, request, answer)
        )
        self.deletions = Deletions(self.send, self.clock)
        self.assignment = Assignment(self)
        self.changes = CatalogueChanges(self)
        self.checkpoints = Checkpoints(self, self.dirs)
        self.retention = RetentionSchedule(self)
        self.cleaning: CleaningPart = self._parts.cleaning(self)
        self.startup = Startup(self, self._parts.catalogue)
        signals = Signals(self.loop, self._signalled)
        try:
            if (seconds := self.notifier.watchdog_seconds) is not None:
                self.loop.every(seconds, self.notifier.watchdog, first=0)
            self.startup.begin()
            self.loop.run()
        finally:
            signals.close()
            if self.metrics is not None:
                self.metrics.close()
            control.close()
            self.supervisor.close()
            self.loop.close()
            self.clock.close()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def now_running(self) -> None:
        """Every partition that can be loaded is. Called by Startup."""
        self.state = "running"
        self.cleaning.start()
        self.retention.start()
        self.checkpoints.start()
        self.every(_MAINTAIN_MS, self.changes.maintain)
        if self._parts.metrics is not None and self.settings.daemon.metrics_listener:
            self._start_metrics(self._parts.metrics)
        reloading.apply_section(self)
        # What was made up to here mostly stays: the collector need not walk through it in the middle of a turn.
        gc.freeze()
        seconds = time.monotonic() - self.begun
        count = len(self.partitions.states)
        _log.info(
            f"running: {count} partitions were loaded in {seconds:.1f} s", extra={"fields": {"partitions": count}}
        )
        self.notifier.ready(f"{count} partitions")
        if self._started is not None:
            self._started(self)

    def stop(self, reason: str) -> None:
        """Begins an orderly stop; a second call ends all patience."""
        if self._stopping is None:
            self._stopping = Stopping(self, reason)
            was_running, self.state = self.is_running, "stopping"
            self._stopping.begin(was_running)
        else:
            self._stopping.hurry()

    def fatal(self, error: CompactdError) -> None:
        """It cannot go on: stops, and the error is what `run` raises."""
        if self._fatal is None:
            self._fatal = error
            _log.error(str(error))
        if self._stopping is None:
            # Not the error again: every process that ends says why.
            self.stop("compactd cannot go on")

    @property
    def is_stopping(self) -> bool:
        return self._stopping is not None

    # ---- Frame

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        return self.partitions.states

    def topic_config(self, topic: str) -> TopicConfig:
        return self.partitions.configs.get(topic) or TopicConfig()

    def directory_delay_ms(self) -> int:
        """How long the directory of a deleted partition stays: what goes for all topics, as in Kafka (LogManager.deleteLogs)."""
        known = (self.settings, self.partitions.broker_configs)
        if self._directory_delay is None or self._directory_delay[0] != known:
            self._directory_delay = (known, self.resolver().of("", {}).file_delete_delay_ms)
        return self._directory_delay[1]

    def owner_of(self, partition: TopicPartition) -> WorkerId | None:
        entry = self.partitions.entries.get(partition)
        return entry.owner if entry is not None and entry.is_ready else None

    def online_log_dirs(self) -> Sequence[Path]:
        return self.dirs.online

    def workers(self, kind: str) -> Sequence[WorkerId]:
        return self.supervisor.ready(kind)

    def send(self, worker: WorkerId, message: Message) -> bool:
        return self.supervisor.send(worker, message)

    def send_all(self, kind: str, message: Message) -> None:
        """To every worker of a kind that is there."""
        for worker in self.supervisor.ready(kind):
            self.supervisor.send(worker, message)

    def restart_worker(self, worker: WorkerId, reason: str) -> None:
        self.supervisor.restart(worker, reason)

    def next_request_id(self) -> int:
        return self.requests.next_id()

    def ask(
        self, worker: WorkerId, request: Message, answered: Callable[[Message], None], timeout_ms: int | None = None
    ) -> None:
        request_id: int = request.request_id  # type: ignore[attr-defined]
        self.requests.expect(worker, request_id, answered, timeout_ms)
        if not self.supervisor.send(worker, request):
            self.requests.refuse(request_id, f"{worker} is not there")

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        self.deletions.later(paths, delay_ms)

    def keep_files(self, paths: Sequence[str]) -> None:
        self.deletions.keep(paths)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        return self.loop.call_later(delay_ms / 1000, call)

    def every(self, period_ms: float, call: Callable[[], None], first_ms: float | None = None) -> Timer:
        return self.loop.every(period_ms / 1000, call, None if first_ms is None else first_ms / 1000)

    def in_lane(
        self, lane: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        self.loop.in_lane(lane, work, done, failed)

    def log_dir_failed(self, log_dir: str, reason: str) -> None:
        path = Path(log_dir)
        if not self.dirs.fail(path, reason):
            return
        _log.error(f"log dir {path} is offline until the next start: {reason}", extra={"fields": {"log_dir": log_dir}})
        lost = self.partitions.log_dir_failed(log_dir, f"its log dir {log_dir} is offline: {reason}")
        for kind in KINDS:
            self.send_all(kind, LogDirFailed(log_dir=log_dir, reason=reason))
        self.cleaning.partitions_gone(lost)
        self.in_lane(lane_of(path), lambda: self.dirs.release_one(path), _nothing, _log_error("giving up its lock"))
        if path == self.dirs.paths[0] or not self.dirs.online:
            what = "it holds the catalogue" if path == self.dirs.paths[0] else "it was the last log dir"
            self.fatal(DaemonError(detail=f"log dir {path} failed, and {what}: {reason}"))
        else:
            self.changes.log_dir_failed(path)

    def catalogue_configs(self) -> CatalogueConfigs:
        """Settings that the catalogue holds."""
        topics = {name: topic.configs for name, topic in self.partitions.topics.items()}
        return CatalogueConfigs(self.settings.daemon.node_id, topics, self.partitions.broker_configs)

    def resolver(self) -> TopicConfigs:
        """Works out effective settings of topics, as things stand now."""
        return TopicConfigs(self.configuration, self.catalogue_configs())

    # ---- Listener

    def welcome(self, worker: WorkerId) -> Welcome:
        return worker_messages.welcome(self, worker)

    def worker_ready(self, worker: WorkerId) -> None:
        if worker.kind == "deleter":
            self.deletions.worker_ready()
        if worker.kind != "broker":
            self.cleaning.worker_ready(worker)

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        self.requests.worker_gone(worker, reason)
        self.peers.worker_gone(worker, reason)
        if worker.kind == "broker":
            self.partitions.owner_gone(worker)
        self.cleaning.worker_gone(worker, reason)

    def worker_given_up(self, worker: WorkerId, reason: str) -> None:
        if self.is_running:
            for entry in self.partitions.of(worker) if worker.kind == "broker" else ():
                self.partitions.failed(entry.name, f"{worker} {reason}")
        elif worker.kind == "broker":
            self.fatal(DaemonError(detail=f"{worker} {reason}"))

    def received(self, worker: WorkerId, message: Message) -> None:
        if self.metrics is not None:
            self.metrics.observe(message)
        if not self.requests.answer(worker, message):
            worker_messages.take(self, worker, message)

    def broker_stopped(self, worker: WorkerId, clean: tuple[str, ...]) -> None:
        """`clean`: log dirs whose logs it left in good order."""
        if self._stopping is not None:
            self._stopping.broker_stopped(worker, clean)

    def take_states(self, states: Sequence[PartitionState]) -> None:
        """New states of partitions, from their owner."""
        moved = self.partitions.moved(states)
        known = self.partitions.loaded(states)
        for name, source, target in moved:
            self.checkpoints.forget(source, [name])
            self.cleaning.partition_moved(name, Path(source), Path(target))
        if known and self.is_running:
            self.cleaning.states_changed(known)

    def release_waiting(self) -> None:
        """Assignments that wait for a directory to be put away wait no more: the daemon stops."""
        self.assignment.give_up()

    # ---- the process hears of

    def _signalled(self, number: int) -> None:
        if number != signal.SIGHUP:
            self.stop(f"{signal.Signals(number).name} asked for it")
        elif terminal_is_gone():
            self.stop("its terminal was closed")
        else:
            reloading.reload(self, _nothing)

    def _start_metrics(self, make: Callable[[Daemon], MetricsPart]) -> None:
        host, port = self.settings.daemon.metrics_listener.rsplit(":", 1)
        metrics = make(self)
        try:
            self.metrics_address = metrics.start(host.strip("[]"), int(port))
        except (OSError, CompactdError) as error:
            _log.error(f"metrics are not served, metrics.listener is {self.settings.daemon.metrics_listener}: {error}")
            return
        self.metrics = metrics
        self.every(
            _METRICS_MS, lambda: metrics.update(status.build(self, self.settings.daemon.metrics_partitions)), first_ms=0
        )


def _nothing(_: object) -> None:
    return


def _log_error(what: str) -> Callable[[Exception], None]:
    return lambda error: _log.error(f"{what} failed: {error}")
