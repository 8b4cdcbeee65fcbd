"""The worker processes: started, heard of, stopped, and started again.

    starting -> running -> stopping -> gone, or waiting -> starting ...
    starting -> given up             it said that it cannot run; only a reload tries again

A worker is spawned, never forked: no socket, lock or thread of ours comes along. One that does not answer is asked to stop,
then terminated, then killed, with the reason in the log; its exit is explained in words; the pause before the next start
grows with each end that nobody asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from compactd.config.listeners import SecurityProtocol, format_address
from compactd.config.settings import DaemonConfig
from compactd.coordinator.control.messages import WorkerStatus
from compactd.coordinator.interfaces import Timer, WorkerId
from compactd.coordinator.loop import Loop
from compactd.coordinator.processes.exits import explain_exit
from compactd.workers import messages
from compactd.workers.channel import MAX_MESSAGE_BYTES
from compactd.workers.message import VERSION, Message
from compactd.workers.messages import Failed, Heartbeat, Hello, Listening, Stop, Stopped, Welcome
from compactd.workers.process import EXIT_BOOT

_log = logging.getLogger(__name__)

#: Pauses before a worker is started again: this, doubled with each further end, up to the longest.
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
#: A worker that ran for this long has shown that it can.
STEADY_SECONDS = 60.0
#: After its process ended, a worker's last words may still be on their way for this long.
LAST_WORDS_SECONDS = 1.0
#: How long messages are handled before the loop turns; the next turn goes on with them.
_TURN_SECONDS = 0.02
#: Messages that may wait for one worker; one with more is not listening any more.
_HIGH_WATER = 100_000

Command = Callable[[WorkerId, Path], list[str]]


def worker_command(worker: WorkerId, run_dir: Path) -> list[str]:
    """How a worker is started."""
    # -P: a file of the working directory must not stand in for a module.
    return [sys.executable, "-P", "-m", "compactd.workers.process", worker.kind, str(worker.number), str(run_dir)]


class Listener(Protocol):
    """Whom the supervisor tells."""

    def welcome(self, worker: WorkerId) -> Welcome:
        """The settings for a worker that said Hello."""

    def worker_ready(self, worker: WorkerId) -> None: ...
    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """It was ready before. `reason` in words."""

    def worker_given_up(self, worker: WorkerId, reason: str) -> None:
        """It cannot run, and is not started again."""

    def received(self, worker: WorkerId, message: Message) -> None: ...


@dataclass(slots=True)
class _Worker:
    id: WorkerId
    state: str = "waiting"
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    identity: bytes = b""
    phase: str = ""
    address: str = ""
    started: float = 0.0
    heard: float = 0.0
    #: Ends in a row that nobody asked for.
    failures: int = 0
    restarts: int = 0
    last_exit: str = ""
    #: Why it is being stopped; and whether for good.
    reason: str = ""
    for_good: bool = False
    #: What it said last: an orderly end, or an error.
    stopped: Stopped | None = None
    failed: Failed | None = None
    timers: list[Timer] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self.process is not None


class Supervisor:
    """All workers. Everything happens on the loop's thread, which must be the process's main thread: a worker's death
    signal is tied to the thread that started it."""

    def __init__(
        self,
        loop: Loop,
        run_dir: Path,
        socket: Path,
        settings: Callable[[], DaemonConfig],
        listener: Listener,
        command: Command = worker_command,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._settings = settings
        self._listener = listener
        self._command = command
        self._environment = environment or {}
        self._workers: dict[WorkerId, _Worker] = {}
        self._by_identity: dict[bytes, _Worker] = {}
        self._context = zmq.Context(io_threads=1)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._router.bind(f"ipc://{socket}")
        loop.add_source(self._router, self._receive)
        self._watch = loop.every(settings().worker_heartbeat_ms / 1000, self._look_for_silent)

    # ---- what others ask

    def start(self, worker_id: WorkerId) -> None:
        """Starts a worker, and again whenever it ends, until `stop`."""
        worker = self._workers.setdefault(worker_id, _Worker(worker_id))
        if not worker.is_up and worker.state != "starting":
            self._spawn(worker)

    def scale(self, kind: str, count: int, reason: str) -> None:
        """Has `count` workers of a kind: starts those that lack, stops those of the highest numbers."""
        for number in range(count):
            worker = self._workers.get(WorkerId(kind, number))
            if worker is None or (worker.for_good and not worker.is_up):
                self.start(WorkerId(kind, number))
            worker = self._workers[WorkerId(kind, number)]
            # One that is still on its way out comes back once it is gone.
            worker.for_good = False
        for worker in self._of_kind(kind):
            if worker.id.number >= count:
                self.stop(worker.id, reason)

    def retry_given_up(self) -> None:
        """Starts those that said they cannot run: the cause may have been mended."""
        for worker in self._workers.values():
            if worker.state == "given up":
                worker.failures = 0
                self._spawn(worker)

    def send(self, worker_id: WorkerId, message: Message) -> bool:
        """False: it isn't there. Never blocks."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.identity:
            return False
        try:
            self._router.send_multipart([worker.identity, messages.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                self._end(worker, f"it does not take its messages: {error}")
            return False
        return True

    def ready(self, kind: str) -> list[WorkerId]:
        """Workers of a kind that can be given something to do, by number."""
        return [worker.id for worker in self._of_kind(kind) if worker.state == "running"]

    def stop(self, worker_id: WorkerId, reason: str, patience_ms: int | None = None) -> None:
        """Stops a worker for good: asked, terminated, killed, `worker.stop.timeout.ms` apart; the first step may have more."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.for_good = True
        self._end(worker, reason, patience_ms)

    def restart(self, worker_id: WorkerId, reason: str) -> None:
        """Has a worker replaced by a fresh one."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.state in ("starting", "running"):
            self._end(worker, reason)

    def kill_all(self, kinds: Iterable[str] | None = None) -> None:
        """No more patience."""
        for worker in self._workers.values():
            if worker.process is not None and (kinds is None or worker.id.kind in kinds):
                worker.for_good = True
                worker.reason = worker.reason or "no time is left"
                self._signal(worker, signal.SIGKILL)

    def is_up(self, kind: str | None = None) -> bool:
        """Whether a process of this kind, or of any, is left."""
        return any(worker.is_up for worker in self._workers.values() if kind is None or worker.id.kind == kind)

    def failing(self, kind: str, times: int) -> tuple[WorkerId, str] | None:
        """A worker that ended so often in a row without anybody asking for it, and how it did the last time."""
        return next(((each.id, each.last_exit) for each in self._of_kind(kind) if each.failures >= times), None)

    def status(self) -> tuple[WorkerStatus, ...]:
        now = time.monotonic()
        return tuple(
            WorkerStatus(
                name=str(worker.id),
                kind=worker.id.kind,
                number=worker.id.number,
                state=worker.state,
                pid=None if worker.process is None else worker.process.pid,
                phase=worker.phase,
                address=worker.address,
                up_seconds=round(now - worker.started, 1) if worker.is_up else 0.0,
                restarts=worker.restarts,
                last_exit=worker.last_exit,
                silent_seconds=round(now - worker.heard, 1) if worker.is_up else 0.0,
            )
            for worker in sorted(self._workers.values(), key=lambda each: each.id)
        )

    def close(self) -> None:
        """Kills what is left, waits for it, and closes the socket."""
        self.kill_all()
        self._watch.cancel()
        for worker in self._workers.values():
            self._forget_timers(worker)
            if worker.process is not None:
                worker.process.wait()
                if worker.pidfd >= 0:
                    self._loop.remove_source(worker.pidfd)
                    os.close(worker.pidfd)
        self._workers.clear()
        self._loop.remove_source(self._router)
        self._router.close()
        self._context.term()

    # ---- processes

    def _spawn(self, worker: _Worker) -> None:
        self._forget_timers(worker)
        worker.state, worker.phase, worker.reason = "starting", "starting", ""
        worker.identity, worker.stopped, worker.failed = b"", None, None
        worker.for_good = False
        worker.started = worker.heard = time.monotonic()
        try:
            worker.process = subprocess.Popen(
                self._command(worker.id, self._run_dir),
                stdin=subprocess.DEVNULL,
                stdout=2,
                # Its own group: Ctrl-C on our terminal is for us, who then stop it in good order.
                process_group=0,
                env={**os.environ, **self._environment},
            )
        except OSError as error:
            self._ended(worker, f"could not be started: {error}")
            return
        worker.pidfd = os.pidfd_open(worker.process.pid)
        self._loop.add_source(worker.pidfd, lambda: self._exited(worker))
        _log.debug(f"{worker.id} started", extra={"fields": {"worker_pid": worker.process.pid}})

    def _exited(self, worker: _Worker) -> None:
        """Its process is gone; what it said before comes first."""
        assert worker.process is not None
        self._loop.remove_source(worker.pidfd)
        os.close(worker.pidfd)
        worker.pidfd = -1
        code = worker.process.wait()
        self._forget_timers(worker)
        end = time.monotonic() + (LAST_WORDS_SECONDS if code >= 0 else 0.0)
        self._last_words(worker, code, end)

    def _last_words(self, worker: _Worker, code: int, end: float) -> None:
        self._receive()
        if worker.stopped is None and worker.failed is None and worker.identity and time.monotonic() < end:
            self._loop.call_later(0.005, lambda: self._last_words(worker, code, end))
            return
        said = "" if worker.failed is None else worker.failed.message
        reason = explain_exit(code, worker.reason, said)
        worker.process = None
        if code == EXIT_BOOT:
            self._give_up(worker, reason)
        else:
            self._ended(worker, reason)

    def _ended(self, worker: _Worker, reason: str) -> None:
        was_ready = bool(worker.identity)
        self._by_identity.pop(worker.identity, None)
        steady = time.monotonic() - worker.started > STEADY_SECONDS
        asked = worker.for_good and worker.stopped is not None
        worker.identity, worker.last_exit, worker.phase, worker.process = b"", reason, "", None
        _log.log(logging.INFO if asked else logging.WARNING, f"{worker.id} {reason}")
        if worker.for_good:
            worker.state = "gone"
            del self._workers[worker.id]
        else:
            worker.failures = 1 if steady else worker.failures + 1
            pause = min(FIRST_PAUSE_SECONDS * 2 ** min(worker.failures - 1, 20), LONGEST_PAUSE_SECONDS)
            worker.state = "waiting"
            worker.phase = f"starts again after {pause:.1f} s"
            worker.restarts += 1
            worker.timers.append(self._loop.call_later(pause, lambda: self._spawn(worker)))
        if was_ready:
            self._listener.worker_gone(worker.id, reason)

    def _give_up(self, worker: _Worker, reason: str) -> None:
        was_ready = bool(worker.identity)
        self._by_identity.pop(worker.identity, None)
        worker.state, worker.identity, worker.last_exit, worker.phase = "given up", b"", reason, ""
        _log.error(f"{worker.id} {reason}")
        if worker.for_good:
            del self._workers[worker.id]
        if was_ready:
            self._listener.worker_gone(worker.id, reason)
        self._listener.worker_given_up(worker.id, reason)

    # ---- stopping

    def _end(self, worker: _Worker, reason: str, patience_ms: int | None = None) -> None:
        if worker.process is None:
            self._forget_timers(worker)
            if worker.for_good:
                self._workers.pop(worker.id, None)
            return
        if worker.state == "stopping":
            return
        step = self._settings().worker_stop_timeout_ms / 1000
        first = step if patience_ms is None else patience_ms / 1000
        worker.state, worker.reason = "stopping", reason
        # From here on nothing new goes to it.
        asked = bool(worker.identity) and self._say_stop(worker, reason)
        if not asked:
            first = 0.0
        worker.timers.append(self._loop.call_later(first, lambda: self._terminate(worker, asked)))
        worker.timers.append(self._loop.call_later(first + step, lambda: self._kill(worker)))

    def _say_stop(self, worker: _Worker, reason: str) -> bool:
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([worker.identity, messages.encode(Stop(reason=reason))], zmq.NOBLOCK)
            return True
        return False

    def _terminate(self, worker: _Worker, asked: bool) -> None:
        if self._signal(worker, signal.SIGTERM) and asked:
            _log.warning(f"{worker.id} was asked to stop ({worker.reason}) and did not: sent SIGTERM")

    def _kill(self, worker: _Worker) -> None:
        if self._signal(worker, signal.SIGKILL):
            _log.warning(f"{worker.id} did not end on SIGTERM ({worker.reason}): sent SIGKILL")

    def _signal(self, worker: _Worker, number: signal.Signals) -> bool:
        if worker.pidfd < 0:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)
            return True
        return False

    def _look_for_silent(self) -> None:
        now, settings = time.monotonic(), self._settings()
        for worker in list(self._workers.values()):
            silent = now - worker.heard
            if worker.state == "running" and silent * 1000 > settings.worker_timeout_ms:
                self._end(worker, f"nothing was heard of it for {silent:.1f} s")
            elif worker.state == "starting" and worker.is_up and silent * 1000 > settings.worker_start_timeout_ms:
                self._end(worker, f"it did not report within {silent:.1f} s of its start")

    def _forget_timers(self, worker: _Worker) -> None:
        for timer in worker.timers:
            timer.cancel()
        worker.timers.clear()

    # ---- messages

    def _receive(self) -> None:
        until = time.monotonic() + _TURN_SECONDS
        while time.monotonic() < until:
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = messages.decode(frames[-1])
            except (msgspec.DecodeError, IndexError) as error:
                _log.error(f"a message from {identity!r} was not understood: {error}")
                continue
            self._take(identity, message)

    def _take(self, identity: bytes, message: Message) -> None:
        if isinstance(message, Hello):
            self._hello(identity, message)
            return
        worker = self._by_identity.get(identity)
        if worker is None:
            _log.warning(f"{type(message).__name__} came from {identity!r}, which is no worker of this daemon")
            return
        worker.heard = time.monotonic()
        if isinstance(message, Heartbeat):
            worker.phase = message.phase
            with contextlib.suppress(zmq.ZMQError):
                self._router.send_multipart([identity, messages.encode(Heartbeat())], zmq.NOBLOCK)
            return
        if isinstance(message, Stopped):
            worker.stopped = message
        elif isinstance(message, Failed) and message.request_id == 0:
            worker.failed = message
            return
        elif isinstance(message, Listening):
            # Where this program's own commands connect: they don't log in.
            plain = [each for each in message.endpoints if each.protocol == SecurityProtocol.PLAINTEXT]
            worker.address = format_address(*next((each.host, each.port) for each in (*plain, *message.endpoints)))
        self._listener.received(worker.id, message)

    def _hello(self, identity: bytes, hello: Hello) -> None:
        worker = self._workers.get(WorkerId(hello.kind, hello.number))
        if worker is None or worker.process is None or worker.process.pid != hello.pid or worker.identity:
            _log.warning(
                f"Hello came from process {hello.pid} as {hello.kind}-{hello.number}, which was not started here"
            )
            return
        worker.identity = identity
        worker.heard = time.monotonic()
        self._by_identity[identity] = worker
        welcome = self._listener.welcome(worker.id)
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([identity, messages.encode(welcome)], zmq.NOBLOCK)
        if worker.state == "starting":
            worker.state, worker.phase = "running", ""
            if hello.version == VERSION:
                self._listener.worker_ready(worker.id)

    def _of_kind(self, kind: str) -> list[_Worker]:
        return sorted((each for each in self._workers.values() if each.id.kind == kind), key=lambda each: each.id)
