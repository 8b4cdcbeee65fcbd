"""What a connection sends: small answers together, records from the log's files, and never more kept than one answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from compactd.workers.broker.requests import Encoded, Peer, SendsFile, total_size
from compactd.workers.broker.senders import LARGE, Piece, bound_buffer

if TYPE_CHECKING:
    from compactd.workers.broker.server import Server

_LOGGER = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
#: Parts of answers up to this size are put together before they are sent.
_SMALL = 32 << 10


class Disconnected(Exception):  # noqa: N818
    """The client is gone, or sends nothing that could be answered."""


class Outgoing(ABC):
    """The half of a connection that answers leave by; `connection.Connection` is the other."""

    def __init__(self, server: Server, sock: socket.socket, peer: Peer) -> None:
        self._server = server
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = server.loop
        self.peer = peer
        #: Whole frames that wait, oldest first.
        self._frames: deque[bytearray] = deque()
        #: Answers, or a part of one, that are ready to be sent.
        self._out = bytearray()
        self._is_flush_planned = False
        #: Its send buffer was seen to, which large answers are worth.
        self._is_bounded = False
        #: When something was received or sent last (loop time, seconds).
        self.last_active = server.loop.time()

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""

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
