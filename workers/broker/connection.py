"""One client: frames in, answers out, one request at a time (facts: kafka-protocol 2).

A connection is read ahead only as far as one receive reaches; while a request is served nothing more is read. What it
holds is thus bounded by one request, one answer and the receive buffer, however slow its client is, and answers leave in
the order of the requests. Records in an answer never pass through here: the kernel sends them from the log's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from compactd.workers.broker.begun import Begun, begin
from compactd.workers.broker.decoding import MalformedRequestError
from compactd.workers.broker.outgoing import Disconnected, Outgoing
from compactd.workers.broker.quotas.clients import ClientQuotas
from compactd.workers.broker.requests import CLOSE, Encoded, Peer, answer
from compactd.workers.broker.strangers import without_tls

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.security.sasl import SaslSession
    from compactd.workers.broker.server import Server

_LOGGER = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
#: So many requests of one client are served, or for so long, before others get a turn.
_IN_A_ROW = 8
_IN_A_ROW_SECONDS = 0.005
#: How often a connection that must not be read is looked after.
_LOOK_AFTER_SECONDS = 5.0


class Connection(Outgoing):
    """Serves until the client goes, breaks the protocol, or the server closes it."""

    def __init__(self, server: Server, sock: socket.socket, peer: Peer, session: SaslSession | None = None) -> None:
        """`session`: the client has to log in with it first."""
        super().__init__(server, sock, peer)
        #: As the socket's recv_into.
        self._receive_into: Callable[[bytearray], int] = sock.recv_into
        #: What answers a frame, and the longest one that is taken.
        self._answer: Callable[[Context, memoryview, Peer], Coroutine[Any, Any, Any]] = answer
        self._max_request = server.limits.request_max_bytes
        if session is not None:
            session.connection = self
            self._answer = session.answer
            self._max_request = min(self._max_request, session.max_request)
        #: Serving the first of them was begun without the task.
        self._begun: Begun[Any] | None = None
        #: The frame that is being received, and how many bytes it lacks; first its size.
        self._head = bytearray()
        self._frame: bytearray | None = None
        self._lacking = 0
        self._is_reading = False
        self._at_end = False
        self._wakeup: asyncio.Future[None] | None = None
        #: Among the server's `waiting`.
        self._is_woken = False
        #: Whether a request is being served.
        self.is_serving = False
        #: Bytes taken from the server's budget for the frames here; and those of frames of strangers, who get none of it:
        #: with what they only announce they would keep everybody from being read (Kafka has no budget for logins either).
        self._budgeted = 0
        self._is_budgeted = session is None
        self._unbudgeted = 0
        self._task = server.loop.create_task(self._serve())

    def close(self) -> None:
        """Ends the connection; `closed` tells when it is."""
        self._task.cancel()

    async def closed(self) -> None:
        """Returns when everything of the connection is gone."""
        await asyncio.wait([self._task])

    # ---- serving

    async def _serve(self) -> None:
        served, since = 0, 0.0
        try:
            while True:
                waited = bool(self._frames)
                frame = await self._next_frame()
                if not waited:
                    served, since = 0, self.last_active
                elif served >= _IN_A_ROW or self.last_active - since > _IN_A_ROW_SECONDS:
                    # Requests that are answered at once never wait for anything: let others have their turn.
                    await asyncio.sleep(0)
                    served, since = 0, self._loop.time()
                served += 1
                self.is_serving = True
                begun, self._begun = self._begun, None
                try:
                    result = await (begun or self._answer(self._server.context, memoryview(frame), self.peer))
                finally:
                    self.is_serving = False
                    self.last_active = self._loop.time()
                if result is CLOSE:
                    return
                if isinstance(result, Encoded):
                    try:
                        await self._sent(result)
                    finally:
                        result.close()
                # Frames are served in their order, so those from before the login come first.
                free = min(len(frame), self._unbudgeted)
                self._unbudgeted -= free
                self._give_back(len(frame) - free)
                if self.peer.muted_until:
                    await self._muted()
        except Disconnected:
            pass
        except MalformedRequestError as error:
            _LOGGER.info("%s:%d is disconnected: %s", self.peer.host, self.peer.port, error)
        except (ConnectionError, TimeoutError):
            pass
        except OSError as error:
            _LOGGER.info("%s:%d is disconnected: %s", self.peer.host, self.peer.port, error)
        except Exception:
            _LOGGER.exception("a bug in serving %s:%d", self.peer.host, self.peer.port)
        finally:
            if self._begun is not None:
                await self._abandon(self._begun)
            self._shut()
            self._server.gone(self)

    async def _abandon(self, begun: Begun[Any]) -> None:
        """The connection was closed before the task came to it."""
        begun.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            result = await begun
            if isinstance(result, Encoded):
                result.close()

    def _serve_at_once(self) -> None:
        """Serves what has come, without the task, which waits for it: up to a request that waits or whose answer does."""
        frames, peer, task, context = self._frames, self.peer, self._task, self._server.context
        for _ in range(_IN_A_ROW):
            frame = frames[0]
            try:
                result = begin(self._answer(context, memoryview(frame), peer), task)
            except BaseException as error:  # for the task, whose request this is
                self._begun = Begun(error=error)
                return
            if isinstance(result, Begun):
                self._begun = result
                return
            if result is CLOSE or peer.muted_until or peer.work is not None or not self._put(result):
                self._begun = Begun(result)
                return
            frames.popleft()
            self._give_back(len(frame))
            if not frames or self._loop.time() - self.last_active > _IN_A_ROW_SECONDS:
                return

    async def send(self, encoded: Encoded) -> None:
        """Sends an answer now, before the connection is closed for it."""
        await self._send(encoded)
        await self._flush()

    def logged_in(self, for_good: bool) -> None:
        """The client may send what others may; `for_good`: without a look whether it has to log in again."""
        self._max_request = self._server.limits.request_max_bytes
        self._is_budgeted = True
        if for_good:
            self._answer = answer

    def _sent(self, result: Encoded) -> Awaitable[None]:
        sending = self._send(result)
        if self.peer.work is None:
            return sending
        return self._server.context.part(ClientQuotas).sending(self.peer.work, sending)

    async def _muted(self) -> None:
        """A quota was exceeded: nothing is read until the time that the answer told is over. A client that goes meanwhile
        is noticed, so that its socket is not kept for that long."""
        until, self.peer.muted_until = self.peer.muted_until, 0.0
        self._stop_reading()
        self.is_serving = True
        try:
            while (left := until - self._loop.time()) > 0 and not self._is_hung_up():
                await asyncio.sleep(min(left, _LOOK_AFTER_SECONDS))
        finally:
            self.is_serving = False
            self.last_active = self._loop.time()

    def _is_hung_up(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False

    def is_left(self) -> bool:
        """Whether its client has closed it, maybe behind requests that were not read yet."""
        asked = select.poll()
        asked.register(self._fd, select.POLLRDHUP)
        return bool(asked.poll(0))

    def _shut(self) -> None:
        self._at_end = True
        self._stop_reading()
        self._loop.remove_writer(self._fd)
        if self._out:
            # To requests before the one that ends it all.
            with contextlib.suppress(OSError):
                self._socket.send(self._out)
            self._out.clear()
        self._socket.close()
        self._give_back(self._budgeted)
        self._frames.clear()
        self._frame = None

    def _give_back(self, size: int) -> None:
        self._budgeted -= size
        self._server.budget.give_back(size)

    # ---- receiving

    async def _next_frame(self) -> bytearray:
        while not self._frames:
            if self._at_end:
                raise Disconnected
            self._start_reading()
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
                if self._is_woken:
                    self._is_woken = False
                    self._server.waiting -= 1
        return self._frames.popleft()

    def _waits_for_frame(self) -> bool:
        """Whether the task does nothing but that; not while there are frames from before a login, which count otherwise."""
        return self._wakeup is not None and not self._wakeup.done() and self._is_budgeted and not self._unbudgeted

    def _start_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._server.arrivals.add(self._fd, self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._server.arrivals.remove(self._fd)

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
            self._is_woken = True
            self._server.waiting += 1

    def _readable(self) -> None:
        """Called by arrivals. Stays registered while requests are served quickly; stops when more comes than is wanted."""
        if self._frames or self._server.budget.is_spent(self._budgeted):
            self._stop_reading()
            if not self._frames:
                self._server.budget.wait(self)
            return
        scratch = self._server.scratch
        try:
            count = self._receive_into(scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count == 0:
            self._at_end = True
            self._stop_reading()
            self.peer.left()
            self._wake()
            return
        self.last_active = self._loop.time()
        try:
            self._take(memoryview(scratch)[:count])
        except Disconnected:
            self._at_end = True
            self._stop_reading()
        if self._frames and self._waits_for_frame():
            self._serve_at_once()
        if self._frames or self._at_end:
            self._wake()

    def budget_free(self) -> None:
        """Others gave memory back."""
        if not self._at_end:
            self._start_reading()

    def _take(self, data: memoryview) -> None:
        """Cuts what was received into frames. Disconnected for a size that is none."""
        position, end = 0, len(data)
        while position < end:
            if self._frame is None:
                needed = _SIZE.size - len(self._head)
                self._head += data[position : position + needed]
                position += needed
                if len(self._head) < _SIZE.size:
                    return
                (size,) = _SIZE.unpack(self._head)
                if not 0 < size <= self._max_request:
                    guess = without_tls(bytes(self._head))
                    _LOGGER.info(
                        "%s:%d is disconnected: a request of %d bytes, where at most %d are taken%s",
                        self.peer.host,
                        self.peer.port,
                        size,
                        self._max_request,
                        f" ({guess})" if guess else "",
                    )
                    raise Disconnected
                self._head.clear()
                # Grows with what really comes: a size alone costs nothing.
                self._frame = bytearray()
                self._lacking = size
                if self._is_budgeted:
                    self._budgeted += size
                    self._server.budget.take(size)
                else:
                    self._unbudgeted += size
            part = data[position : position + self._lacking]
            self._frame += part
            position += len(part)
            self._lacking -= len(part)
            if self._lacking == 0:
                self._frames.append(self._frame)
                self._frame = None
