"""What workers say, each word to the part that it concerns; and the first that a worker is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.coordinator.configuration import settings_text
from compactd.coordinator.interfaces import KINDS, WorkerId
from compactd.workers import log_output, logger_levels
from compactd.workers.catalogue_update import CatalogueChange
from compactd.workers.cleaning_messages import DeleterState
from compactd.workers.message import Endpoint, Message
from compactd.workers.messages import (
    BrokerCounts,
    Listening,
    PeerAnswer,
    PeerRequest,
    Serving,
    SetLoggerLevels,
    Stopped,
    Welcome,
)
from compactd.workers.partition_messages import DirectoriesRetired, LogDirFailed, PartitionsReady, PartitionStates

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon

#: What a move left behind stays at least so long, whatever file.delete.delay.ms says.
_RETIRED_MS = 2000


def welcome(daemon: Daemon, worker: WorkerId) -> Welcome:
    """Settings, and for a broker where it listens and as which node."""
    settings, is_broker = daemon.settings.daemon, worker.kind == "broker"
    shift = worker.number if is_broker else 0
    bound = daemon.startup.bound.get(worker, {})
    listen = tuple(
        Endpoint(
            listener.name,
            listener.host,
            # A free port was found for it before: clients know that one.
            listener.port + shift if listener.port else bound.get(listener.name, 0),
            int(listener.protocol),
        )
        for listener in settings.open_listeners
    )
    return Welcome(
        settings=settings_text(daemon.settings),
        given=daemon.given,
        logger_levels=dict(daemon.logger_levels),
        heartbeat_ms=settings.worker_heartbeat_ms,
        silence_ms=max(2 * settings.worker_timeout_ms, 2000),
        log_format=daemon.environment.get("COMPACTD_LOG_FORMAT", log_output.TEXT),
        log_level=settings.log_level,
        node_id=settings.node_id + 1_000_000 * shift if is_broker else -1,
        listen=listen if is_broker else (),
    )


def take(daemon: Daemon, worker: WorkerId, message: Message) -> None:
    """A message that answers no question of the coordinator's."""
    if isinstance(message, PartitionStates):
        daemon.take_states(message.states)
    elif isinstance(message, PartitionsReady):
        daemon.assignment.loaded(message)
    elif isinstance(message, (PeerRequest, PeerAnswer)):
        daemon.peers.pass_on(message, worker)
    elif isinstance(message, CatalogueChange):
        daemon.changes.asked_by(worker, message)
    elif isinstance(message, Listening):
        daemon.startup.broker_listens(worker, message)
    elif isinstance(message, Serving):
        daemon.startup.broker_serves(worker)
    elif isinstance(message, BrokerCounts):
        pass  # the metrics took it
    elif isinstance(message, SetLoggerLevels):
        _set_logger_levels(daemon, message)
    elif isinstance(message, LogDirFailed):
        daemon.log_dir_failed(message.log_dir, message.reason)
    elif isinstance(message, DeleterState):
        daemon.deletions.told(message)
    elif isinstance(message, DirectoriesRetired):
        # Fetches that began before may still be about to open a file there.
        delay = max(daemon.topic_config(message.topic).file_delete_delay_ms, _RETIRED_MS)
        daemon.delete_later(message.directories, delay)
    elif isinstance(message, Stopped):
        if worker.kind == "broker":
            daemon.broker_stopped(worker, message.log_dirs_clean)
    else:
        daemon.cleaning.received(worker, message)


def _set_logger_levels(daemon: Daemon, message: SetLoggerLevels) -> None:
    """In every process, those that start later included."""
    for name, level in message.levels.items():
        if level is None:
            daemon.logger_levels.pop(name, None)
        else:
            daemon.logger_levels[name] = level
    logger_levels.set_levels(message.levels)
    for kind in KINDS:
        daemon.send_all(kind, message)
