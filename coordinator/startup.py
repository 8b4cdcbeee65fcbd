"""How the daemon comes up: processes, catalogue and log dirs at the same time, then partitions to their brokers.

    brokers start and bind their ports          the catalogue is opened (in its lane)
                    \\                          /
          the catalogue begins to write: epoch, registration, leaderships
                                |
     each log dir: marker of the clean stop removed, directories listed (in the dirs' lanes)
                                |
          brokers get the catalogue and their partitions, and load them
                                |
                             running

A broker that starts again while the daemon runs gets the same two things.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compactd.config.errors import CompactdError, DaemonError
from compactd.config.listeners import Listener
from compactd.coordinator import reloading
from compactd.coordinator.interfaces import CataloguePart, CatalogueSetup, WorkerId
from compactd.coordinator.logs.checkpointing import lane_of
from compactd.coordinator.logs.log_dirs import FoundDirs
from compactd.coordinator.logs.partitions import Entry
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.message import Endpoint
from compactd.workers.messages import Listening
from compactd.workers.partition_messages import LogDirFailed

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon

_log = logging.getLogger(__name__)

#: A broker that ends so often before everything runs will not do better; later it is started again for ever.
_START_ATTEMPTS = 5
_EVERY_ADDRESS = ("", "0.0.0.0", "::")
#: How often systemd is told that loading goes on.
_PATIENCE_MS = 10_000


class Startup:
    """See the module. On the loop's thread."""

    def __init__(self, daemon: Daemon, open_catalogue: Callable[[CatalogueSetup], CataloguePart]) -> None:
        self._daemon = daemon
        self._open_catalogue = open_catalogue
        #: Port that each broker bound, kept over its restarts.
        self.bound: dict[WorkerId, dict[str, int]] = {}
        #: Brokers that were given partitions before: those need recovery.
        self.served: set[WorkerId] = set()
        self._listening: set[WorkerId] = set()
        #: Brokers that take connections; and whether every partition that can be loaded is.
        self._serving: set[WorkerId] = set()
        self._is_loaded = False
        self._found: dict[Path, FoundDirs] = {}
        self._update: CatalogueUpdate | None = None
        self._begun_catalogue = False
        #: The catalogue and the directories were taken over: brokers that come back may be given theirs.
        self._are_known = False

    def begin(self) -> None:
        """Starts every process and opens the catalogue."""
        daemon = self._daemon
        settings = daemon.settings
        supervisor, why = daemon.supervisor, "the configuration says so"
        supervisor.scale("broker", settings.daemon.broker_workers, why)
        supervisor.scale("deleter", 1, why)
        supervisor.scale("retention", 1, why)
        reloading.scale_cleaners(daemon)
        setup = CatalogueSetup(
            log_dirs=tuple(daemon.dirs.online),
            offline=dict(daemon.dirs.offline),
            settings=settings,
            clock=daemon.clock,
        )
        daemon.in_lane("catalogue", lambda: self._open_catalogue(setup), self._opened, self._failed)
        daemon.notifier.status("starting")
        self._watch = daemon.every(1000, self._look_at_brokers)

    def broker_listens(self, worker: WorkerId, message: Listening) -> None:
        """A broker bound its ports: at the start, or again."""
        daemon = self._daemon
        settings = daemon.settings.daemon
        bound = {each.listener: each for each in message.endpoints}
        told = tuple(
            _told(listener, bound[listener.name], worker.number if settings.advertised_listeners else None)
            for listener in settings.told_listeners
        )
        self.bound[worker] = {each.listener: each.port for each in message.endpoints}
        daemon.endpoints[worker] = told
        daemon.nodes[worker] = (settings.node_id + 1_000_000 * worker.number, told[0].host, told[0].port)
        self._listening.add(worker)
        if self._update is None:
            self._begin_catalogue()
        elif self._are_known:
            self._come_back(worker)

    def broker_serves(self, worker: WorkerId) -> None:
        """A broker takes connections: at the start, or again."""
        self._serving.add(worker)
        self._look_whether_running()

    @property
    def nodes(self) -> tuple[tuple[int, str, int], ...]:
        return tuple(node for _, node in sorted(self._daemon.nodes.items()))

    @property
    def endpoints(self) -> tuple[tuple[Endpoint, ...], ...]:
        return tuple(endpoints for _, endpoints in sorted(self._daemon.endpoints.items()))

    # ---- inside

    @property
    def _begun_loading(self) -> bool:
        return self._update is not None and len(self._found) + len(self._daemon.dirs.offline) >= len(
            self._daemon.dirs.paths
        )

    def _opened(self, catalogue: CataloguePart) -> None:
        self._daemon.catalogue = catalogue
        self._begin_catalogue()

    def _begin_catalogue(self) -> None:
        daemon = self._daemon
        catalogue = daemon.catalogue
        all_listen = len(self._listening) >= daemon.settings.daemon.broker_workers
        if catalogue is None or not all_listen or self._begun_catalogue or daemon.is_stopping:
            return
        self._begun_catalogue = True
        nodes, endpoints = self.nodes, self.endpoints
        daemon.in_lane("catalogue", lambda: catalogue.start(nodes, endpoints), self._catalogue_started, self._failed)

    def _catalogue_started(self, update: CatalogueUpdate) -> None:
        daemon = self._daemon
        if daemon.is_stopping:
            return
        self._update = update
        for path in daemon.dirs.online:

            def found(dirs: FoundDirs, path: Path = path) -> None:
                self._found[path] = dirs
                self._dir_ready()

            def failed(error: Exception, path: Path = path) -> None:
                daemon.log_dir_failed(str(path), str(error))
                self._dir_ready()

            daemon.in_lane(lane_of(path), lambda path=path: daemon.dirs.begin_use(path), found, failed)  # type: ignore[misc]

    def _dir_ready(self) -> None:
        daemon = self._daemon
        if not self._begun_loading or daemon.is_stopping or self._update is None:
            return
        daemon.in_use = True
        changes = daemon.partitions.apply(self._update, new=False)
        live: dict[str, frozenset[TopicPartition]] = {str(path): dirs.live for path, dirs in self._found.items()}
        for entry in changes.assign:
            entry.is_new = entry.name not in live.get(entry.place.log_dir, ())
        # In turns of their own: with thousands of partitions each takes a while.
        daemon.call_later(0, lambda: reloading.resolve_again(daemon))
        daemon.call_later(0, lambda: self._load(changes.assign))

    def _load(self, entries: list[Entry]) -> None:
        daemon = self._daemon
        if daemon.is_stopping:
            return
        self._are_known = True
        for dirs in self._found.values():
            for directory in dirs.deleted:
                daemon.delete_later((directory,), daemon.directory_delay_ms())
        self._tell_offline()
        daemon.send_all("broker", daemon.partitions.full_update(self.nodes, self.endpoints))
        patience = daemon.every(_PATIENCE_MS, self._still_loading, first_ms=0)

        def loaded() -> None:
            patience.cancel()
            self.served.update(self._listening)
            self._is_loaded = True
            self._look_whether_running()

        daemon.assignment.assign(entries, loaded)

    def _look_whether_running(self) -> None:
        """Whoever hears that it runs may connect at once."""
        daemon = self._daemon
        all_serve = len(self._serving) >= daemon.settings.daemon.broker_workers
        if self._is_loaded and all_serve and not daemon.is_running and not daemon.is_stopping:
            daemon.now_running()

    def _look_at_brokers(self) -> None:
        daemon = self._daemon
        if daemon.is_running or daemon.is_stopping:
            self._watch.cancel()
        elif (failing := daemon.supervisor.failing("broker", _START_ATTEMPTS)) is not None:
            daemon.fatal(DaemonError(detail=f"{failing[0]} {failing[1]}, {_START_ATTEMPTS} times in a row"))

    def _still_loading(self) -> None:
        daemon = self._daemon
        done, all_of_them = len(daemon.partitions.states), len(daemon.partitions.entries)
        daemon.notifier.need_time(3 * _PATIENCE_MS / 1000)
        daemon.notifier.status(f"{done} of {all_of_them} partitions are loaded")

    def _come_back(self, worker: WorkerId) -> None:
        daemon = self._daemon
        if daemon.is_stopping:
            return
        self.served.add(worker)
        # Its port may be another one: everybody is told.
        self._tell_offline()
        daemon.send_all("broker", daemon.partitions.full_update(self.nodes, self.endpoints))
        daemon.assignment.assign([entry for entry in daemon.partitions.of(worker) if not entry.is_assigned])

    def _tell_offline(self) -> None:
        """Which log dirs failed before a broker could see it: nothing is moved there, and clients are told."""
        for path, reason in self._daemon.dirs.offline.items():
            self._daemon.send_all("broker", LogDirFailed(log_dir=str(path), reason=reason))

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, CompactdError)
        if not known:
            _log.error("the catalogue failed", exc_info=error)
        self._daemon.fatal(error if known else DaemonError(detail=f"a bug in the catalogue: {error!r}"))  # type: ignore[arg-type]


def _told(listener: Listener, bound: Endpoint, worker: int | None) -> Endpoint:
    """What clients of a listener are told. `worker`: its number, where host and port are those of advertised.listeners."""
    host = listener.host or bound.host
    if host in _EVERY_ADDRESS:
        # Nobody can connect to "every address": clients are told this machine's name, as by Kafka.
        host = socket.gethostname()
    port = listener.port + worker if worker is not None and listener.port else bound.port
    return Endpoint(listener.name, host, port, int(listener.protocol))
