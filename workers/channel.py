"""A worker's connection to the coordinator: one DEALER socket, served by a thread that beats while the body works.

ZeroMQ sockets belong to one thread. Here that is the channel's own: it sends what others queue, receives, says every
heartbeat that the process lives, and gives up when the coordinator was silent for too long. A body that is busy inside the
kernel, which lets go of the interpreter, does not keep it from doing so; one that is stuck with the interpreter does, and
is then taken for dead, as it should be.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from compactd.config.errors import WorkerBootError
from compactd.workers import log_output, messages
from compactd.workers.logger_levels import set_levels
from compactd.workers.message import VERSION, Message
from compactd.workers.messages import Heartbeat, Hello, Reconfigure, SetLoggerLevels, Stop, Welcome

_log = logging.getLogger(__name__)

#: Name of the coordinator's socket in the run directory.
WORKERS_SOCKET = "workers.sock"
#: No message is longer; a longer one ends the connection.
MAX_MESSAGE_BYTES = 256 << 20
#: How long a worker that was started waits for its Welcome.
WELCOME_SECONDS = 30.0
#: Exit code of a worker that gave its coordinator up.
EXIT_COORDINATOR_GONE = 75
#: How long the last messages may take to leave.
_LINGER_MS = 2000


class Channel:
    """What the body of a worker is given to talk with. `send` and `receive` may be called from any thread."""

    def __init__(self, kind: str, number: int, run_dir: Path) -> None:
        self.kind = kind
        self.number = number
        self.welcome = Welcome(settings={})
        self._address = f"ipc://{run_dir / WORKERS_SOCKET}"
        self._outgoing: deque[bytes] = deque()
        self._incoming: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._readable = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._welcomed = threading.Event()
        self._refusal = ""
        self._phase = "starting"
        self._closing = False
        self._stop: Stop | None = None
        self._on_stop: list[Callable[[Stop], None]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="channel", daemon=True)

    # ---- for bodies

    def send(self, message: Message) -> None:
        """Queues a message; it leaves at once. Never blocks."""
        self._outgoing.append(messages.encode(message))
        os.eventfd_write(self._wake, 1)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, oldest first; None after `timeout` seconds (0: only if one is there; None: wait for ever).

        Stop comes here as well, in its turn. Heartbeats do not.
        """
        try:
            message = self._incoming.get(timeout is None or timeout > 0, timeout)
        except queue.Empty:
            return None
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._readable)
        return message

    def fileno(self) -> int:
        """Readable while messages wait, for event loops: on each call take messages with `receive(0)` until it is None."""
        return self._readable

    def set_phase(self, phase: str) -> None:
        """What the worker is doing, in a few words: goes out with each heartbeat, for status."""
        self._phase = phase

    @property
    def stopping(self) -> Stop | None:
        """The Stop, as soon as it came, whatever is still to be received before it."""
        return self._stop

    def on_stop(self, call: Callable[[Stop], None]) -> None:
        """`call` is called once, in the channel's thread, as soon as Stop comes (or now, when it has come)."""
        with self._lock:
            if self._stop is None:
                self._on_stop.append(call)
                return
        call(self._stop)

    # ---- for the process

    def open(self) -> Welcome:
        """Says Hello and waits for Welcome. WorkerBootError when the coordinator is of another version or is silent."""
        self._thread.start()
        if not self._welcomed.wait(WELCOME_SECONDS):
            self._refusal = f"the coordinator at {self._address} did not answer for {WELCOME_SECONDS:.0f} s"
        if self._refusal:
            raise WorkerBootError(detail=self._refusal)
        self._phase = "idle"
        return self.welcome

    def close(self) -> None:
        """Sends what is queued and ends the thread."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for descriptor in (self._wake, self._readable):
            os.close(descriptor)

    # ---- the thread

    def _serve(self) -> None:
        context = zmq.Context(io_threads=1)
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.IDENTITY, f"{self.kind}-{self.number}-{os.getpid()}".encode())
            socket.setsockopt(zmq.LINGER, _LINGER_MS)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.connect(self._address)
            self._outgoing.appendleft(
                messages.encode(Hello(kind=self.kind, number=self.number, pid=os.getpid())),
            )
            self._exchange(socket)
        except Exception:
            _log.exception("the connection to the coordinator broke")
            os._exit(EXIT_COORDINATOR_GONE)
        finally:
            socket.close()
            context.term()

    def _exchange(self, socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        next_beat = heard = time.monotonic()
        beating = False
        while not (self._closing and not self._outgoing):
            poller.register(socket, zmq.POLLIN | (zmq.POLLOUT if self._outgoing else 0))
            wait = max(0.0, next_beat - time.monotonic())
            ready = dict(poller.poll(math.ceil(wait * 1000)))
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            if ready.get(socket, 0) & zmq.POLLIN and self._take(socket):
                heard = time.monotonic()
            self._flush(socket)
            now = time.monotonic()
            if self._welcomed.is_set() and not beating:
                # From now on at the pace that Welcome says.
                beating, next_beat = True, now
            if now >= next_beat:
                if now - heard > self.welcome.silence_ms / 1000:
                    self._give_up(now - heard)
                if beating:
                    self._outgoing.append(messages.encode(Heartbeat(phase=self._phase)))
                    self._flush(socket)
                next_beat = now + self.welcome.heartbeat_ms / 1000

    def _take(self, socket: zmq.Socket[bytes]) -> bool:
        """Takes every message that waits. Whether there was one."""
        some = False
        while True:
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return some
            some = True
            try:
                message = messages.decode(frame)
            except msgspec.DecodeError as error:
                _log.error(f"a message of {len(frame)} bytes from the coordinator was not understood: {error}")
                continue
            self._take_one(message)

    def _take_one(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            return
        if isinstance(message, Welcome) and not self._welcomed.is_set():
            self.welcome = message
            if message.version != VERSION:
                self._refusal = f"the coordinator speaks version {message.version}, this worker {VERSION}"
            self._welcomed.set()
            return
        if isinstance(message, SetLoggerLevels):
            set_levels(message.levels)
            return
        if isinstance(message, Reconfigure) and "log.level" in message.settings:
            log_output.set_level(message.settings["log.level"])
        self._incoming.put(message)
        os.eventfd_write(self._readable, 1)
        if isinstance(message, Stop) and self._stop is None:
            with self._lock:
                self._stop = message
                calls, self._on_stop = self._on_stop, []
            for call in calls:
                call(message)

    def _flush(self, socket: zmq.Socket[bytes]) -> None:
        while self._outgoing:
            try:
                socket.send(self._outgoing[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EINTR:
                    raise
                continue
            self._outgoing.popleft()

    def _give_up(self, seconds: float) -> None:
        _log.error(f"the coordinator was silent for {seconds:.1f} s: this worker ends")
        os._exit(EXIT_COORDINATOR_GONE)
