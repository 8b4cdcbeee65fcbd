"""Large ranges of files, sent by threads: while the kernel fills one client's socket, the loop serves the others.

Only clients that take an answer as quickly as it is sent keep a thread: for one that makes it wait, the loop goes on as its
socket gets room. As many such threads as there are CPUs; more would only take each other's (Kafka: num.network.threads).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

#: Shorter ranges are sent by the loop: handing them over takes longer.
LARGE = 512 << 10
_MOST_THREADS = 4
#: Most that one call gives to the kernel, which is also how soon a cancellation is noticed.
_AT_ONCE = 256 << 10
#: The same where the loop sends.
_MOST_AT_ONCE = 4 << 20
#: Most that is sent before others get the thread.
_TURN = 16 << 20
#: So long a thread waits for a socket to have room, unless others wait for the thread.
_PATIENCE_MS = 2
#: A client that took less than this in its turn is not worth a thread.
_WORTH = 1 << 20

#: SO_SNDBUF towards clients that are near, unless the settings say something else (Kafka: socket.send.buffer.bytes).
_NEAR_BUFFER = 200 << 10
#: A client is near when this was the least that bytes took to it and back: at 2 GB a second the way holds less than the buffer.
_NEAR_MICROSECONDS = 100
#: tcpi_min_rtt of struct tcp_info (linux/tcp.h), microseconds; 2**32 - 1 where nothing was measured yet.
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_AT = 148


def bound_buffer(sock: socket.socket) -> None:
    """Keeps the system from making the send buffer of a client that is near larger and larger.

    What lies in megabytes of buffers has left the CPU's caches when the client copies it, which costs both sides more than
    waiting does. Clients far away keep a buffer that grows: they need one to be sent anything while others are under way.
    """
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size)
        if (
            len(told) == _MIN_RTT_AT + _MIN_RTT.size
            and _MIN_RTT.unpack_from(told, _MIN_RTT_AT)[0] <= _NEAR_MICROSECONDS
        ):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)
    except OSError:
        return  # it is gone, or this is no TCP


class Piece:
    """What is left of a range that goes to a socket. Neither descriptor is closed while a thread has it."""

    __slots__ = ("_fd", "_file", "_senders", "is_cut", "is_full", "is_slow", "is_stopped", "left", "position")

    def __init__(self, senders: Senders, fd: int, file: int, position: int, length: int) -> None:
        self._senders = senders
        self._fd = fd
        self._file = file
        self.position = position
        self.left = length
        #: The socket had no room in the end; and so little was taken before that the client is not worth a thread.
        self.is_full = False
        self.is_slow = False
        #: The file ended before the range did.
        self.is_cut = False
        self.is_stopped = False

    def send(self) -> bool:
        """By the loop: sends what the socket has room for; whether nothing is left, or no more can come. OSError."""
        try:
            sent = os.sendfile(self._fd, self._file, self.position, min(self.left, _MOST_AT_ONCE))
        except (BlockingIOError, InterruptedError):
            return False
        self.position += sent
        self.left -= sent
        self.is_cut = sent == 0
        return self.is_cut or self.left == 0

    def run(self) -> None:
        """In a thread: sends until the turn is over, the client makes it wait, or the file ends. OSError."""
        self.is_full = False
        end = max(0, self.left - _TURN)
        began = self.left
        room = select.poll()
        room.register(self._fd, select.POLLOUT)
        while self.left > end and not self.is_stopped:
            asked = min(self.left, _AT_ONCE)
            try:
                sent = os.sendfile(self._fd, self._file, self.position, asked)
            except (BlockingIOError, InterruptedError):
                sent = -1
            if sent == 0:
                self.is_cut = True
                return
            if sent > 0:
                self.position += sent
                self.left -= sent
            # Where not all was taken, the socket is full: that is not asked again before it has room.
            patience = 0 if self._senders.is_crowded else _PATIENCE_MS
            if sent < asked and self.left and not room.poll(patience):
                self.is_full = True
                self.is_slow = began - self.left < _WORTH
                return


class Senders:
    """The threads of a server; they begin when there is something to send."""

    def __init__(self) -> None:
        self._most = max(1, min(os.cpu_count() or 1, _MOST_THREADS))
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="send")
        self._pieces = 0

    @property
    def is_crowded(self) -> bool:
        """Whether more is to be sent than there are threads."""
        return self._pieces > self._most

    async def turn(self, piece: Piece) -> None:
        """Runs a piece once in a thread. Returns, also for a cancellation, when the thread has let go of it."""
        self._pieces += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, piece.run)
            cancelled = False
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    piece.is_stopped = cancelled = True
            if cancelled:
                future.exception()
                raise asyncio.CancelledError
            future.result()
        finally:
            self._pieces -= 1

    def close(self) -> None:
        """All connections are gone."""
        self._threads.shutdown(wait=False)
