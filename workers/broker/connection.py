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
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from compactd.workers.broker.begun import Begun, begin
from compactd.workers.broker.decoding import MalformedRequestError
from compactd.workers.broker.quotas.clients import ClientQuotas
from compactd.workers.broker.requests import CLOSE, Encoded, Peer, SendsFile, answer, total_size
from compactd.workers.broker.senders import LARGE, Piece, bound_buffer
from compactd.workers.broker.strangers import without_tls

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.security.sasl import SaslSession
    from compactd.workers.broker.server import Server

_LOGGER = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
#: Parts of answers up to this size are put together before they are sent.
_SMALL = 32 << 10
#: So many requests of one client are served, or for so long, before others get a turn.
_IN_A_ROW = 8
_IN_A_ROW_SECONDS = 0.005
#: How often a connection that must not be read is looked after.
_LOOK_AFTER_SECONDS = 5.0


class Disconnected(Exception):  # noqa: N818
    """The client is gone, or sends nothing that could be answered."""


class Connection:
    """Serves until the client goes, breaks the protocol, or the server closes it."""

    def __init__(self, server: Server, sock: socket.socket, peer: Peer, session: SaslSession | None = None) -> None:
        """`session`: the client has to log in with it first."""
        self._server = server
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = server.loop
        self.peer = peer
        #: As the socket's recv_into.
        self._receive_into: Callable[[bytearray], int] = sock.recv_into
        #: What answers a frame, and the longest one that is taken.
        self._answer: Callable[[Context, memoryview, Peer], Coroutine[Any, Any, Any]] = answer
        self._max_request = server.limits.request_max_bytes
        if session is not None:
            session.connection = self
            self._answer = session.answer
            self._max_request = min(self._max_request, session.max_request)
        #: Whole frames that wait, oldest first.
        self._frames: deque[bytearray] = deque()
        #: Serving the first of them was begun without the task.
        self._begun: Begun[Any] | None = None
        #: The frame that is being received, and how many bytes it lacks; first its size.
        self._head = bytearray()
        self._frame: bytearray | None = None
        self._lacking = 0
        self._is_reading = False
        self._at_end = False
        self._wakeup: asyncio.Future[None] | None = None
        #: Answers, or a part of one, that are ready to be sent.
        self._out = bytearray()
        self._is_flush_planned = False
        #: Its send buffer was seen to, which large answers are worth.
        self._is_bounded = False
        #: Among the server's `waiting`.
        self._is_woken = False
        #: When something was received or sent last, and whether a request is being served (loop time, seconds).
        self.last_active = server.loop.time()
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

    # ---- sending

    async def _send(self, encoded: Encoded) -> None:
        """Small answers to requests of which more wait go out together: at the latest when something is waited for."""
        parts = encoded.parts
        out = self._out
        out += _SIZE.pack(total_size(parts))
        last = len(parts) - 1
        for number, part in enumerate(parts):
            if not isinstance(part, (bytes, bytearray, memoryview)):
                await self._flush(socket.MSG_MORE)
                await self._send_file(part)
            elif len(part) <= _SMALL:
                self._out += part
            else:
                await self._flush(socket.MSG_MORE)
                await self._send_bytes(part, 0 if number == last else socket.MSG_MORE)
        if (self._frames or self._server.waiting) and len(self._out) <= _SMALL:
            self._plan_flush()
        else:
            await self._flush()

    def _put(self, result: Encoded | None) -> bool:
        """Puts a small answer to those that are about to be sent; False: it has to be sent otherwise."""
        if result is None:
            return True
        size = 0
        for part in result.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                return False
            size += len(part)
        out = self._out
        if len(out) + size > _SMALL:
            return False
        out += _SIZE.pack(size)
        for part in result.parts:
            out += part  # type: ignore[arg-type]
        self._plan_flush()
        return True

    def _plan_flush(self) -> None:
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._server.flush_soon(self)

    async def _flush(self, flags: int = 0) -> None:
        if self._out:
            out, self._out = self._out, bytearray()
            await self._send_bytes(out, flags)

    def flush_now(self) -> None:
        """Called by the loop, and maybe while another request is served: what is ready is not kept until that one is."""
        self._is_flush_planned = False
        if not self._out:
            return
        try:
            sent = self._socket.send(self._out)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if self._out:
            self._loop.add_writer(self._fd, self._flush_later)

    def _flush_later(self) -> None:
        self._loop.remove_writer(self._fd)
        self.flush_now()

    async def _send_bytes(self, part: bytes | bytearray | memoryview, flags: int) -> None:
        try:
            sent = self._socket.send(part, flags)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == len(part):
            return
        rest = memoryview(part)[sent:]
        while rest:
            await self._writable()
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._socket.send(rest, flags)
                self.last_active = self._loop.time()
                rest = rest[sent:]

    async def _send_file(self, part: SendsFile) -> None:
        position, left = part.position, part.length
        if left >= LARGE and not self._is_bounded:
            self._is_bounded = True
            if self._server.context.config.socket_send_buffer_bytes == -1:
                bound_buffer(self._socket)
        if left >= LARGE and self.peer.work is None:  # where a quota counts the time of a request, the loop sends
            position, left = await self._send_in_thread(part)
        if not left:
            return
        piece = Piece(self._server.senders, self._fd, part.fileno(), position, left)
        while not piece.send():
            self.last_active = self._loop.time()
            if self.peer.work is None:
                await self._send_when_writable(piece)
                break
            await self._writable()
        if piece.is_cut:
            raise _cut_short()
        self.last_active = self._loop.time()

    async def _send_when_writable(self, piece: Piece) -> None:
        """Sends whenever there is room, without the task: to wake it for each part takes longer than to send the part."""
        sent = self._loop.create_future()
        self._loop.add_writer(self._fd, self._send_more, piece, sent)
        try:
            await sent
        finally:
            self._loop.remove_writer(self._fd)

    def _send_more(self, piece: Piece, sent: asyncio.Future[None]) -> None:
        if sent.done():
            return
        self.last_active = self._loop.time()
        try:
            if piece.send():
                sent.set_result(None)
        except OSError as error:
            sent.set_exception(error)

    async def _send_in_thread(self, part: SendsFile) -> tuple[int, int]:
        """Where the rest begins that is better sent by the loop, because the client is slow, and its length."""
        senders = self._server.senders
        piece = Piece(senders, self._fd, part.fileno(), part.position, part.length)
        while True:
            before = piece.left
            await senders.turn(piece)
            if piece.left < before:
                self.last_active = self._loop.time()
            if piece.is_cut:
                raise _cut_short()
            if piece.left == 0 or piece.is_slow:
                return piece.position, piece.left
            if piece.is_full:
                await self._writable()

    async def _writable(self) -> None:
        future = self._loop.create_future()
        self._loop.add_writer(self._fd, _done, future)
        try:
            await future
        finally:
            self._loop.remove_writer(self._fd)


def _cut_short() -> Disconnected:
    _LOGGER.error("a segment is shorter than it was when it was read; the connection is closed")
    return Disconnected()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
