"""The body of a broker worker: one loop that serves clients, and the coordinator's messages bridged into it.

The coordinator says which partitions are this broker's and what the catalogue holds; connections are taken from the
first whole catalogue on. On Stop clients go first, then what runs beside them, then the logs are closed in good order.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from compactd.config.flat import unflatten
from compactd.config.settings import DaemonConfig, StorageConfig
from compactd.workers.broker import collector
from compactd.workers.broker.context import CatalogueClient, Context
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.image import CatalogueImage
from compactd.workers.broker.listening import bind_all
from compactd.workers.broker.loading import Loading
from compactd.workers.broker.moves import Moves
from compactd.workers.broker.partitions import Partitions
from compactd.workers.broker.peers import Peers
from compactd.workers.broker.quotas.counts import ThrottleCounts
from compactd.workers.broker.requests import load_handlers
from compactd.workers.broker.security.authorizer import Authorizer
from compactd.workers.broker.security.login_counts import LoginCounts
from compactd.workers.broker.server import Limits, Server
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.counts import TransactionCounts
from compactd.workers.broker.transactions.transaction import State
from compactd.workers.catalogue_update import CatalogueChanged, CatalogueUpdate
from compactd.workers.clock import Clock
from compactd.workers.message import Endpoint, Message
from compactd.workers.messages import (
    BrokerCounts,
    Failed,
    Listening,
    PeerAnswer,
    PeerRequest,
    Reconfigure,
    Serving,
    Stop,
    Stopped,
    Welcome,
)

_LOGGER = logging.getLogger(__name__)

#: Threads for disks: fsyncs, loads, swaps, large appends, reads of what may not be in memory.
_THREADS = 16
#: How long the loop waits for a thread that computes before it takes the interpreter from it. Python's 5 ms would be added
#: to each call of the kernel.
_SWITCH_SECONDS = 0.0005
#: How often the coordinator is told what was counted.
_COUNT_SECONDS = 5.0
#: Descriptors that this process allows itself, where it may.
_FILES = 1 << 17


class Channel(Protocol):
    """What this body needs of workers.channel.Channel."""

    @property
    def number(self) -> int: ...
    @property
    def welcome(self) -> Welcome: ...
    def send(self, message: Message) -> None: ...
    def receive(self, timeout: float | None = None) -> Message | None: ...
    def fileno(self) -> int: ...
    def set_phase(self, phase: str) -> None: ...


def run(channel: Channel, clock: Clock) -> Stopped:
    """Serves until Stop; see workers.process. WorkerBootError: the port is taken."""
    _allow_many_files()
    sys.setswitchinterval(_SWITCH_SECONDS)
    collector.begin()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="disk") as executor:
        return asyncio.run(_run(channel, clock, executor))


def _allow_many_files() -> None:
    """Each connection and each open segment is a descriptor: the usual soft limit of 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(channel: Channel, clock: Clock, executor: ThreadPoolExecutor) -> Stopped:
    broker = Broker(channel, clock, executor)
    return await broker.serve()


class Broker:
    """One broker worker, made inside its loop."""

    def __init__(self, channel: Channel, clock: Clock, executor: ThreadPoolExecutor) -> None:
        welcome = channel.welcome
        self.channel = channel
        self.loop = asyncio.get_running_loop()
        storage, _, config = unflatten(welcome.settings)
        self.context = Context(
            clock=clock,
            config=config,
            storage=storage,
            node_id=welcome.node_id,
            worker=channel.number,
            image=CatalogueImage(),
            partitions=Partitions(channel, clock, executor, _loading(storage)),
            catalogue=CatalogueClient(channel),
            executor=executor,
            loop=self.loop,
            settings=dict(welcome.settings),
            given=welcome.given,
        )
        self.context.partitions.check_flushes_every(storage.log_flush_scheduler_interval_ms)
        load_handlers()
        self.context.part(GroupCoordinator)
        self.context.part(Moves)
        self.context.part(TransactionCoordinator)
        self.server = Server(self.context, _limits(config))
        self._listening: list[tuple[Endpoint, socket.socket]] = []
        self._stopped = self.loop.create_future()
        self._stop_reason = ""
        self._expiring: asyncio.TimerHandle | None = None
        self._counting: asyncio.TimerHandle | None = None

    async def serve(self) -> Stopped:
        """Until Stop; returns the last words."""
        self._listening = bind_all(self.channel.welcome.listen)
        self.channel.send(Listening(endpoints=tuple(endpoint for endpoint, _ in self._listening)))
        self.channel.set_phase("loading")
        self.loop.add_reader(self.channel.fileno(), self._receive)
        self._plan_expiry()
        try:
            await self._stopped
            self.channel.set_phase("stopping")
            return await self._stop()
        finally:
            self.loop.remove_reader(self.channel.fileno())
            for _, listener in self._listening:
                listener.close()

    async def _stop(self) -> Stopped:
        for planned in (self._expiring, self._counting):
            if planned is not None:
                planned.cancel()
        await self.server.close()
        await self.context.stop()
        clean = await self.context.partitions.close()
        return Stopped(log_dirs_clean=clean)

    # ---- messages

    def _receive(self) -> None:
        while (message := self.channel.receive(0)) is not None:
            try:
                self._received(message)
            except Exception:
                _LOGGER.exception("a bug in taking %s", type(message).__name__)

    def _received(self, message: Message) -> None:
        match message:
            case CatalogueUpdate():
                self._updated(message)
            case Stop():
                self._stop_reason = message.reason
                if not self._stopped.done():
                    self._stopped.set_result(None)
            case Reconfigure():
                self._reconfigured(message)
            case PeerRequest() | PeerAnswer():
                self.context.part(Peers).received(message)
            case CatalogueChanged():
                self.context.catalogue.received(message)
            case Failed():
                self.context.catalogue.received(message)
            case _:
                if not self.context.partitions.received(message):
                    _LOGGER.warning("%s is no message for a broker", type(message).__name__)

    def _updated(self, update: CatalogueUpdate) -> None:
        gone = self.context.image.apply(update)
        if gone:
            self.context.topics_gone(gone)
        if update.full and self._listening:
            self.context.part(Authorizer).introduce()
            # From here on clients can be told the truth.
            listening, self._listening = self._listening, []
            for endpoint, listener in listening:
                self.server.start(listener, endpoint.listener)
            self.channel.set_phase("serving")
            self.channel.send(Serving())
            self._plan_counts()

    def _reconfigured(self, message: Reconfigure) -> None:
        context = self.context
        context.settings.update(message.settings)
        if message.given is not None:
            context.given = message.given
        context.storage, _, context.config = unflatten(context.settings)
        context.partitions.verify_transactions(context.config.transaction_partition_verification_enable)
        context.partitions.reconfigure(_loading(context.storage))
        self.server.limits = _limits(context.config)

    def _plan_counts(self) -> None:
        self._counting = self.loop.call_later(_COUNT_SECONDS, self._tell_counts)

    def _tell_counts(self) -> None:
        connections, logins = self.server.by_listener(), self.context.part(LoginCounts).take()
        listeners = {
            name: (connections.get(name, 0), *logins.get(name, (0, 0, 0, 0))) for name in {*connections, *logins}
        }
        coordinated = self.context.part(TransactionCoordinator)
        self.channel.send(
            BrokerCounts(
                worker=self.channel.number,
                listeners=listeners,
                open_transactions=sum(
                    each.state is State.ONGOING for shard in coordinated for each in shard.by_id.values()
                ),
                throttles=self.context.part(ThrottleCounts).take(),
                **self.context.part(TransactionCounts).take(),
                **self.context.part(Authorizer).take(),
            )
        )
        self._plan_counts()

    def _plan_expiry(self) -> None:
        seconds = self.context.storage.producer_id_expiration_check_interval_ms / 1000
        self._expiring = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.context.spawn(self.context.partitions.expire_producers())
        self._plan_expiry()


def _loading(storage: StorageConfig) -> Loading:
    return Loading(storage.num_recovery_threads_per_data_dir, storage.producer_id_expiration_ms)


def _limits(config: DaemonConfig) -> Limits:
    return Limits(
        request_max_bytes=config.socket_request_max_bytes,
        queued_max_bytes=config.queued_max_request_bytes,
        connections=config.max_connections,
        max_idle_ms=config.connections_max_idle_ms,
    )
