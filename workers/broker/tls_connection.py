"""One client of a TLS listener. Records go through this process here: they have to be encrypted."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from compactd.workers.broker.connection import Connection, Disconnected
from compactd.workers.broker.requests import Encoded, Peer, SendsFile, total_size
from compactd.workers.broker.security.login_counts import LoginCounts
from compactd.workers.broker.security.tls import Tls
from compactd.workers.broker.strangers import with_tls

if TYPE_CHECKING:
    from compactd.workers.broker.security.sasl import SaslSession
    from compactd.workers.broker.server import Server

_LOGGER = logging.getLogger(__name__)

#: Bytes that one record holds at most.
_RECORD = 16 << 10
#: Bytes that are encrypted in one go, and after how many others get a turn.
_AT_ONCE = 64 << 10
_TURN = 1 << 20
#: The client left, which says nothing about who it is.
_GONE = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class TlsConnection(Connection):
    """Shakes hands before it serves."""

    def __init__(
        self, server: Server, sock: socket.socket, peer: Peer, tls: Tls, session: SaslSession | None = None
    ) -> None:
        self._tls = tls
        self._encrypted = tls.context().wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self._logs_in = session is not None
        #: The client said that nothing more comes, which is before its end of the connection is closed.
        self._has_ended = False
        super().__init__(server, self._encrypted, peer, session)
        self._receive_into = self._decrypt_into

    async def _serve(self) -> None:
        try:
            await self._shake_hands()
        except (OSError, ValueError) as error:
            if isinstance(error, (ssl.SSLError, ValueError)) and not isinstance(error, _GONE):
                self._count(succeeded=False)
            _LOGGER.info("%s:%d failed to connect with TLS: %s", self.peer.host, self.peer.port, _reason(error))
            self._end()
            return
        except BaseException:
            self._end()
            raise
        if not self._logs_in:
            self._count(succeeded=True)
        await super()._serve()

    def _count(self, *, succeeded: bool) -> None:
        self._server.context.part(LoginCounts).count(self.peer.listener, succeeded=succeeded)

    def _end(self) -> None:
        self._shut()
        self._server.gone(self)

    async def _shake_hands(self) -> None:
        """OSError, and ValueError for a client whose certificate says nothing that could be a name."""
        await self._done(self._encrypted.do_handshake)
        self.last_active = self._loop.time()
        if self._tls.config.client_auth != "none":
            self.peer.principal = self._tls.principal_of(self._encrypted.getpeercert(binary_form=True))

    async def _done(self, call: Callable[[], None]) -> None:
        """Calls until OpenSSL needs nothing more of the socket."""
        while True:
            try:
                call()
                return
            except ssl.SSLWantReadError:
                await self._something_to_read()
            except ssl.SSLWantWriteError:
                await self._writable()

    async def _something_to_read(self) -> None:
        was_reading = self._is_reading
        self._stop_reading()
        future = self._loop.create_future()
        self._loop.add_reader(self._fd, _set, future)
        try:
            await future
        finally:
            self._loop.remove_reader(self._fd)
            if was_reading and not self._at_end:
                self._start_reading()

    def _shut(self) -> None:
        with suppress(OSError, ValueError):
            # Tells the client that nothing was cut off; its own farewell is not waited for.
            self._encrypted.unwrap()
        super()._shut()

    def _is_hung_up(self) -> bool:
        try:
            return socket.socket.recv(self._encrypted, 1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False

    # ---- receiving

    def _decrypt_into(self, scratch: bytearray) -> int:
        """As recv_into: 0 at the end, BlockingIOError where there is nothing yet."""
        view, count = memoryview(scratch), 0
        while count < len(view):
            try:
                received = self._encrypted.recv_into(view[count:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if received == 0:
                self._has_ended = True
                return count
            count += received
            if received < _RECORD and not self._encrypted.pending():
                # A message's last record, it seems; if not, the socket tells. To be refused takes as long as to be given.
                break
        if count == 0:
            raise BlockingIOError
        return count

    def _readable(self) -> None:
        super()._readable()
        if self._is_reading and self._encrypted.pending():
            # The rest of a record that did not fit: decrypted already, too.
            self._loop.call_soon(self._read_pending)

    def _start_reading(self) -> None:
        super()._start_reading()
        if self._encrypted.pending() or self._has_ended:
            # Decrypted already, the client's farewell too: the socket does not tell of it.
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if self._is_reading:
            self._readable()

    # ---- sending

    def _put(self, result: Encoded | None) -> bool:
        if result is None:
            return True
        size = total_size(result.parts)
        if size + 4 > _RECORD:
            return False
        data = bytearray(size.to_bytes(4, "big"))
        for part in result.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                return False
            data += part
        try:
            # One record, which goes out whole or not at all.
            self._encrypted.send(data)
        except OSError:
            return (
                False  # there is no room: the task sends just this when there is; or whatever it is, it meets it, too
            )
        return True

    async def _send(self, encoded: Encoded) -> None:
        """As few TLS records as the answer needs."""
        waiting = bytearray(total_size(encoded.parts).to_bytes(4, "big"))
        sent = 0
        for part in encoded.parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                view = memoryview(part)
                while view:
                    room = _AT_ONCE - len(waiting)
                    waiting += view[:room]
                    view = view[room:]
                    sent = await self._flush_full(waiting, sent)
            else:
                position, left = part.position, part.length
                while left:
                    data = self._read(part, position, min(left, _AT_ONCE - len(waiting)))
                    waiting += data
                    position += len(data)
                    left -= len(data)
                    sent = await self._flush_full(waiting, sent)
        await self._send_bytes(waiting, 0)

    async def _flush_full(self, waiting: bytearray, sent: int) -> int:
        if len(waiting) < _AT_ONCE:
            return sent
        await self._send_bytes(bytes(waiting), 0)
        waiting.clear()
        sent += _AT_ONCE
        if sent >= _TURN:
            await asyncio.sleep(0)
            return 0
        return sent

    def _read(self, part: SendsFile, position: int, size: int) -> bytes:
        data = os.pread(part.fileno(), size, position)
        if not data:
            _LOGGER.error("a segment is shorter than it was when it was read; the connection is closed")
            raise Disconnected
        return data

    async def _send_bytes(self, part: bytes | bytearray | memoryview, flags: int) -> None:
        rest = memoryview(part)
        while rest:
            try:
                sent = self._encrypted.send(rest)
            except ssl.SSLWantWriteError:
                await self._writable()
                continue
            except ssl.SSLWantReadError:
                await self._something_to_read()
                continue
            self.last_active = self._loop.time()
            rest = rest[sent:]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        guess = with_tls(reason)
        return f"{reason} ({guess})" if guess else reason
    return str(error) or type(error).__name__
