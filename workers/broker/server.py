"""The listeners: take connections, within limits, and close those that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter
from dataclasses import dataclass, field

from compactd.workers.broker.arrivals import Arrivals
from compactd.workers.broker.connection import Connection
from compactd.workers.broker.context import Context
from compactd.workers.broker.quotas.connections import ConnectionQuotas, plain_address
from compactd.workers.broker.requests import Peer
from compactd.workers.broker.security.listeners import Listeners
from compactd.workers.broker.security.sasl import SaslSession
from compactd.workers.broker.senders import Senders
from compactd.workers.broker.tls_connection import TlsConnection

_LOGGER = logging.getLogger(__name__)

#: Bytes that one receive takes at most. One buffer serves all connections.
_RECEIVE_BYTES = 256 << 10
#: Connections taken in one turn of the loop.
_ACCEPT_AT_ONCE = 64
#: The process has no descriptor left: try again after this.
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 1.0
#: Answers of so many clients are sent in a row.
_FLUSHED_AT_ONCE = 32


@dataclass(slots=True)
class Limits:
    """What clients may take."""

    #: socket.request.max.bytes
    request_max_bytes: int = 104_857_600
    #: queued.max.request.bytes; -1: no limit.
    queued_max_bytes: int = -1
    #: max.connections; what one address may have is in `quotas.connections`.
    connections: int = 2**31 - 1
    #: connections.max.idle.ms; -1: never.
    max_idle_ms: int = 600_000


@dataclass(slots=True)
class Budget:
    """Memory of requests that are being received or served."""

    limit: int
    used: int = 0
    _waiting: list[Connection] = field(default_factory=list)

    def is_spent(self, own: int) -> bool:
        """Whether a connection that holds `own` bytes has to wait. One that has begun a frame goes on with it."""
        return self.limit > 0 and self.used >= self.limit and own == 0

    def take(self, size: int) -> None:
        """A frame of this size was announced."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Frames were served or dropped."""
        self.used -= size
        if self._waiting and self.used < self.limit:
            waiting, self._waiting = self._waiting, []
            for connection in waiting:
                connection.budget_free()

    def wait(self, connection: Connection) -> None:
        """`connection.budget_free` is called when there is memory again."""
        self._waiting.append(connection)


class Server:
    """The listening sockets of a broker worker, and its connections."""

    def __init__(self, context: Context, limits: Limits) -> None:
        self.context = context
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(_RECEIVE_BYTES)
        self.budget = Budget(limits.queued_max_bytes)
        self.senders = Senders()
        self.arrivals = Arrivals(self.loop, self._flush)
        #: Listening sockets with the names of their listeners.
        self._listening: dict[socket.socket, str] = {}
        self._connections: set[Connection] = set()
        self._by_host: dict[str, int] = {}
        self._by_listener: Counter[str] = Counter()
        self._listeners = context.part(Listeners)
        self._sweep: asyncio.TimerHandle | None = None
        self._closing = False
        #: Connections whose request has come and is not being served yet.
        self.waiting = 0
        self._to_flush: list[Connection] = []
        self._quotas = context.part(ConnectionQuotas)
        #: Sockets of addresses that connect too often: closed when their time has come.
        self._turned_away: set[socket.socket] = set()
        #: Until when nobody is let in, because all places are taken, or too many came too quickly (loop time, seconds).
        self._paused: asyncio.TimerHandle | None = None
        self._is_full = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    def by_listener(self) -> dict[str, int]:
        """Connections of each listener."""
        return dict(self._by_listener)

    def start(self, listener: socket.socket, name: str) -> None:
        """Takes connections on the bound socket of a listener from now on, and owns it."""
        listener.setblocking(False)
        config = self.context.config
        # Before it listens: TCP offers a window that grows with the buffer when a connection begins.
        _set_buffer(listener, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
        listener.listen(config.socket_listen_backlog_size)
        self._listening[listener] = name
        self.loop.add_reader(listener.fileno(), self._accept, listener)
        if self._sweep is None:
            self._plan_sweep()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if self._paused is not None:
                return
            if len(self._connections) >= self.limits.connections:
                # They wait in the kernel, as in Kafka, until somebody leaves or the limit is another.
                self._is_full = True
                self._pause(_PAUSE_SECONDS)
                return
            name = self._listening[listener]
            if self._by_listener[name] >= self._listeners.of(name).max_connections:
                # As above, but at this listener alone.
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(_PAUSE_SECONDS, self._listen_again, listener)
                return
            try:
                client, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                _LOGGER.error("no connection can be taken: %s", error)
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(_PAUSE_SECONDS, self._listen_again, listener)
                return
            waits = self._quotas.taken(name) / 1000
            if waits:
                self._pause(waits)
                self.loop.call_later(waits, self._take, client, address, name)
            else:
                self._take(client, address, name)

    def _pause(self, seconds: float) -> None:
        """Nobody is let in for so long."""
        for listener in self._listening:
            self.loop.remove_reader(listener.fileno())
        self._paused = self.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused, self._is_full = None, False
            for listener in self._listening:
                self._listen_again(listener)

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._listening and self._paused is None:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _take(self, client: socket.socket, address: tuple[str, int], listener: str) -> None:
        host, port = plain_address(address[0]), address[1]
        throttle_ms = self._quotas.throttled(host, listener)
        if throttle_ms or self._closing:
            self._turned_away.add(client)
            self.loop.call_later(throttle_ms / 1000, self._turn_away, client)
            return
        of_host = self._by_host.get(host, 0)
        if of_host >= self._quotas.most_from(host):
            _LOGGER.info("%s is turned away: it has %d connections", host, of_host)
            client.close()
            return
        client.setblocking(False)
        with contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _set_buffer(client, socket.SO_SNDBUF, self.context.config.socket_send_buffer_bytes)
        try:
            connection = self._connection(client, Peer(host, port, listener=listener))
        except OSError as error:  # it has gone before TLS began
            _LOGGER.info("%s:%d is disconnected: %s", host, port, error)
            client.close()
            return
        self._by_host[host] = of_host + 1
        self._by_listener[listener] += 1
        self._connections.add(connection)

    def _connection(self, client: socket.socket, peer: Peer) -> Connection:
        """One that asks for what its listener asks for."""
        security = self._listeners.of(peer.listener)
        session = SaslSession(self.context, security, peer) if security.mechanisms else None
        tls = self._listeners.tls(peer.listener)
        if tls is not None:
            return TlsConnection(self, client, peer, tls, session)
        return Connection(self, client, peer, session)

    def _turn_away(self, client: socket.socket) -> None:
        self._turned_away.discard(client)
        client.close()

    def flush_soon(self, connection: Connection) -> None:
        """Its answers are sent when those who wait are served, or so many are ready: work of a kind is quicker in a row."""
        if not self._to_flush and not self.arrivals.is_telling:
            self.loop.call_soon(self._flush)
        self._to_flush.append(connection)
        if len(self._to_flush) >= _FLUSHED_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self._to_flush:
            return
        ready, self._to_flush = self._to_flush, []
        for connection in ready:
            connection.flush_now()

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._by_listener[connection.peer.listener] -= 1
        host = connection.peer.host
        left = self._by_host.get(host, 1) - 1
        if left:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)
        if self._is_full:
            self._resume()

    # ---- idle connections

    def _plan_sweep(self) -> None:
        if self.limits.max_idle_ms > 0 and not self._closing:
            seconds = min(max(self.limits.max_idle_ms / 4000, 0.02), 30.0)
            self._sweep = self.loop.call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        """Also closes clients that do not take their answer; those whose request is being served may wait, if they still
        do: one that waits behind requests of its own is not seen to leave."""
        oldest = self.loop.time() - self.limits.max_idle_ms / 1000
        for connection in list(self._connections):
            if connection.last_active < oldest and (not connection.is_serving or connection.is_left()):
                connection.close()
        self._plan_sweep()

    # ---- the end

    def stop_listening(self) -> None:
        """Takes no more connections."""
        self._closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        listening, self._listening = self._listening, {}
        for listener in listening:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        for client in self._turned_away:
            client.close()

    async def close(self) -> None:
        """Takes no more connections and closes all; returns when they are gone."""
        self.stop_listening()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed()
        self.senders.close()
        self.arrivals.close()


def _set_buffer(of: socket.socket, which: int, size: int) -> None:
    """As Kafka: -1 leaves it to the system."""
    if size != -1:
        with contextlib.suppress(OSError):
            of.setsockopt(socket.SOL_SOCKET, which, size)
