"""Changes of the catalogue: decided and written in its lane, then carried out here.

Brokers are told, in this order, what the catalogue holds now, new settings, what to let go, and what to make; whoever asked
is answered when the new partitions are loaded, so that a client can write to a topic as soon as it was created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from compactd.config.errors import DaemonError, StorageIOError
from compactd.coordinator import reloading
from compactd.coordinator.interfaces import CatalogueOutcome, WorkerId
from compactd.workers.catalogue_messages import Struct, results_of, to_raw
from compactd.workers.catalogue_update import CatalogueChange, CatalogueChanged, CatalogueUpdate
from compactd.workers.messages import Failed

if TYPE_CHECKING:
    from pathlib import Path

    from compactd.coordinator.daemon import Daemon

_log = logging.getLogger(__name__)

LANE = "catalogue"
#: A new partition takes longer to make only where something is wrong; its topic is there all the same.
_LOAD_TIMEOUT_MS = 10_000


class CatalogueChanges:
    """See the module. On the loop's thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def request(
        self,
        operation: str,
        arguments: msgspec.Raw,
        done: Callable[[msgspec.Raw], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Has a change decided, written and carried out; `done` or `failed` is called once."""
        catalogue = self._daemon.catalogue
        if catalogue is None or self._daemon.is_stopping:
            failed(DaemonError(detail="it is starting or stopping"))
            return

        def written(outcome: CatalogueOutcome) -> None:
            self.carry_out(outcome.update, lambda: done(outcome.results))

        def not_written(error: Exception) -> None:
            failed(error)
            self._disk_failed(error)

        self._daemon.in_lane(LANE, lambda: catalogue.change(operation, arguments), written, not_written)

    def apply(self, operation: str, arguments: Struct, done: Callable[[Struct], None]) -> None:
        """As `request`, with structs, for the daemon itself; a failure is logged."""
        self.request(
            operation,
            to_raw(arguments),
            lambda raw: done(results_of(operation, raw)),
            lambda error: _log.error(f"{operation.replace('_', ' ')} failed: {error}"),
        )

    def asked_by(self, worker: WorkerId, asked: CatalogueChange) -> None:
        """A broker passes a client's wish on."""
        daemon = self._daemon

        def done(results: msgspec.Raw) -> None:
            daemon.send(worker, CatalogueChanged(request_id=asked.request_id, results=results))

        def failed(error: Exception) -> None:
            daemon.send(worker, Failed(request_id=asked.request_id, error=type(error).__name__, message=str(error)))

        self.request(asked.operation, asked.arguments, done, failed)

    def carry_out(self, update: CatalogueUpdate | None, then: Callable[[], None] | None = None) -> None:
        """The catalogue changed. `then`: everybody knows, and what is new is loaded."""
        daemon = self._daemon
        if update is None or daemon.is_stopping:
            if then is not None:
                then()
            return
        changes = daemon.partitions.apply(update, new=True)
        daemon.send_all("broker", update)
        if update.broker_configs:
            reloading.resolve_again(daemon)
        else:
            reloading.update_topic_configs(daemon, changes.configs)
        daemon.cleaning.configs_changed(changes.configs)
        daemon.assignment.release(changes.release)
        daemon.assignment.assign(changes.assign, then, timeout_ms=_LOAD_TIMEOUT_MS)

    def log_dir_failed(self, path: Path) -> None:
        """Its partitions have no leader any more."""
        catalogue = self._daemon.catalogue
        if catalogue is not None:
            self._daemon.in_lane(LANE, lambda: catalogue.log_dir_failed(path), self.carry_out, self._disk_failed)

    def maintain(self) -> None:
        """Snapshots, and what they make superfluous."""
        catalogue = self._daemon.catalogue
        if catalogue is not None and not self._daemon.is_stopping:
            self._daemon.in_lane(LANE, catalogue.maintain, lambda _: None, self._disk_failed)

    def _disk_failed(self, error: Exception) -> None:
        """The catalogue lies in the first log dir."""
        _log.error(f"the catalogue: {error}")
        if isinstance(error, StorageIOError):
            self._daemon.log_dir_failed(str(self._daemon.dirs.paths[0]), str(error))
