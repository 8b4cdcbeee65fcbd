"""An orderly stop, in the order of facts 1.9, bounded by shutdown.timeout.ms.

    1  no new cleans; running ones are given up at a good place; then the cleaners and the retention worker stop
    2  the brokers answer no more clients, close every log, tell the last states
    3  checkpoints of each log dir, the catalogue, the marker of each dir whose logs all closed without error
    4  the deleter stops (what it had left is found at the next start); locks, sockets and processes go

Whatever the time ran out for is killed, and its log dirs get no marker: the next start recovers them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.logs.checkpointing import lane_of

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon

_log = logging.getLogger(__name__)

#: Share of the time that the cleaners may take, and what is kept for the files that are written last.
_CLEANING_SHARE = 0.25
_FILES_SHARE = 0.15
_LOOK_SECONDS = 0.02


class Stopping:
    """One stop of the daemon. `hurry` ends all patience."""

    def __init__(self, daemon: Daemon, reason: str) -> None:
        self._daemon = daemon
        self.reason = reason
        self._begun = time.monotonic()
        self._budget = daemon.settings.daemon.shutdown_timeout_ms / 1000
        self._hurried = False
        #: Log dirs that every broker closed without error, by broker.
        self._closed: dict[WorkerId, tuple[str, ...]] = {}
        self._owners = self._owners_by_dir()
        self.unclean: list[str] = []

    def begin(self, was_running: bool) -> None:
        """Step 1. Every step goes on when what it waits for is done, or its time is up."""
        daemon = self._daemon
        _log.info(f"stopping: {self.reason}")
        daemon.notifier.stopping(self.reason)
        daemon.notifier.need_time(self._budget + 5)
        daemon.retention.stop()
        stopped: list[bool] = []
        if was_running:
            daemon.cleaning.stop(lambda: stopped.append(True))
        else:
            stopped.append(True)
        self._wait(lambda: stopped, self._begun + self._budget * _CLEANING_SHARE, self._stop_cleaners)

    def hurry(self) -> None:
        """Somebody asked a second time."""
        if not self._hurried:
            self._hurried = True
            _log.warning("asked to stop again: what is still open is left as it is, and recovered at the next start")
            self._daemon.supervisor.kill_all()

    def broker_stopped(self, worker: WorkerId, log_dirs_clean: tuple[str, ...]) -> None:
        """A broker's last words."""
        self._closed[worker] = log_dirs_clean

    def _stop_cleaners(self) -> None:
        for kind in ("cleaner", "retention"):
            self._daemon.supervisor.scale(kind, 0, self.reason)
        up = self._daemon.supervisor.is_up
        until = self._begun + self._budget * 2 * _CLEANING_SHARE
        self._wait(lambda: not up("cleaner") and not up("retention"), until, self._stop_brokers)

    def _stop_brokers(self) -> None:
        daemon = self._daemon
        until = self._begun + self._budget * (1 - _FILES_SHARE)
        patience = max(0.0, until - time.monotonic())
        for number in range(daemon.settings.daemon.broker_workers):
            daemon.supervisor.stop(WorkerId("broker", number), self.reason, patience_ms=int(patience * 1000))
        self._wait(lambda: not daemon.supervisor.is_up("broker"), until, self._write_checkpoints)

    def _write_checkpoints(self) -> None:
        daemon = self._daemon
        daemon.checkpoints.stop()
        if daemon.supervisor.is_up("broker"):
            _log.error("the time is up before every broker ended: they are killed")
            daemon.supervisor.kill_all(("broker",))
        daemon.supervisor.scale("deleter", 0, self.reason)
        daemon.release_waiting()
        written: list[bool] = []
        if daemon.in_use:
            daemon.checkpoints.write_all(lambda: written.append(True))
        else:
            written.append(True)
        self._wait(lambda: written, self._end(), self._close_catalogue)

    def _close_catalogue(self) -> None:
        closed: list[bool] = []
        catalogue = self._daemon.catalogue
        if catalogue is None:
            self._write_markers(-1)
            return

        def close() -> int:
            epoch = catalogue.broker_epoch
            catalogue.close()
            return epoch

        epochs: list[int] = []

        def done(epoch: int) -> None:
            epochs.append(epoch)
            closed.append(True)

        def failed(error: Exception) -> None:
            _log.error(f"the catalogue was not closed in good order: {error}")
            closed.append(True)

        self._daemon.in_lane("catalogue", close, done, failed)
        self._wait(lambda: closed, self._end(), lambda: self._write_markers(epochs[0] if epochs else -1))

    def _write_markers(self, broker_epoch: int) -> None:
        daemon, left = self._daemon, 0
        written: list[bool] = []

        def done(_: None) -> None:
            written.append(True)

        def failed(error: Exception) -> None:
            _log.error(f"a log dir was not marked as stopped in good order: {error}")
            written.append(False)

        for path in daemon.dirs.online if daemon.in_use else []:
            if not self._is_clean(path):
                self.unclean.append(str(path))
                _log.warning(f"{path} is recovered at the next start: not every log in it was closed in good order")
                continue
            left += 1
            work: Callable[[], None] = lambda path=path: daemon.dirs.write_marker(path, broker_epoch)  # type: ignore[misc]  # noqa: E731
            daemon.in_lane(lane_of(path), work, done, failed)
        self._wait(lambda: len(written) >= left, self._end(), lambda: self._finish(all(written)))

    def _finish(self, all_marked: bool) -> None:
        if not all_marked:
            self.unclean.append("?")
        up = self._daemon.supervisor.is_up
        self._wait(lambda: not up(), self._end(), self._daemon.loop.stop)

    def _is_clean(self, path: Path) -> bool:
        if self._daemon.dirs.not_loaded(path):
            return False
        return all(str(path) in self._closed.get(worker, ()) for worker in self._owners.get(str(path), ()))

    def _owners_by_dir(self) -> dict[str, set[WorkerId]]:
        owners: dict[str, set[WorkerId]] = {}
        for entry in self._daemon.partitions.entries.values():
            if entry.offline and self._daemon.dirs.is_online(entry.place.log_dir):
                # It could not be loaded, so what lies there is not known to be whole.
                self._daemon.dirs.note_not_loaded(Path(entry.place.log_dir))
            if entry.is_assigned or entry.is_ready:
                owners.setdefault(entry.place.log_dir, set()).add(entry.owner)
            elif not entry.offline:
                # Its owner is down, just now: nobody closes this log.
                self._daemon.dirs.note_not_loaded(Path(entry.place.log_dir))
        return owners

    def _end(self) -> float:
        return self._begun + self._budget

    def _wait(self, condition: Callable[[], object], until: float, then: Callable[[], None]) -> None:
        """`then`, once the condition holds or the time is up."""
        if condition() or time.monotonic() >= until:
            then()
            return
        self._daemon.loop.call_later(_LOOK_SECONDS, lambda: self._wait(condition, until, then))
