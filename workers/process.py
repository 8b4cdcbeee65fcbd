"""What every worker process is: `python -m compactd.workers.process KIND NUMBER RUN_DIR`, started by the coordinator.

It says Hello, gets its settings with Welcome, runs the body of its kind, says Stopped and ends. Exit codes tell the
coordinator whether to start another: 0 for an orderly end, EXIT_BOOT for what a restart would not mend.

The coordinator holds the locks of the log dirs, so a worker must not write for a moment longer than it lives: the system
itself kills writing workers with it. Kinds that never write watch for its death instead, and take its sockets away.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from compactd.config.errors import CompactdError, WorkerBootError
from compactd.workers import log_output
from compactd.workers.channel import EXIT_COORDINATOR_GONE, WORKERS_SOCKET, Channel
from compactd.workers.clock import Clock
from compactd.workers.logger_levels import set_levels
from compactd.workers.messages import Failed, Stopped

__all__ = ["EXIT_BOOT", "KINDS", "Body", "Channel", "Kind", "coordinator_pid", "main", "sweep"]

_log = logging.getLogger(__name__)

#: The worker cannot run at all: settings, version, a port that is taken. It is not started again.
EXIT_BOOT = 78
#: An error that the body did not foresee.
EXIT_BUG = 70

#: In the run directory: held by the coordinator, with its process id as content.
COORDINATOR_LOCK = "coordinator.lock"
#: In the run directory: held, shared, by every worker while it lives.
WORKERS_LOCK = "workers.lock"
CONTROL_SOCKET = "control.sock"

_PR_SET_PDEATHSIG = 1

#: Runs until Stop. What it returns are the worker's last words; None: nothing to say.
Body = Callable[[Channel, Clock], Stopped | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of worker."""

    #: module:function of its Body.
    body: str
    #: It changes files below the log dirs.
    writes: bool


KINDS: dict[str, Kind] = {
    "broker": Kind("compactd.workers.broker.main:run", writes=True),
    "cleaner": Kind("compactd.workers.cleaner:run", writes=True),
    "retention": Kind("compactd.workers.retention:run", writes=False),
    "deleter": Kind("compactd.workers.deleter:run", writes=True),
}


def main(arguments: list[str] | None = None) -> NoReturn:
    """The process. Never returns."""
    kind, number, run = sys.argv[1:] if arguments is None else arguments
    name = f"{kind}-{number}"
    log_output.configure(name, os.environ.get("COMPACTD_LOG_FORMAT", "auto"), "info")
    run_dir = Path(run)
    _end_with_coordinator(run_dir, KINDS[kind].writes)
    # Ctrl-C and a hang-up are the coordinator's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminated)
    channel = Channel(kind, int(number), run_dir)
    with _alive(run_dir):
        try:
            code = _run(channel, KINDS[kind])
        finally:
            channel.close()
    sys.exit(code)


def _run(channel: Channel, kind: Kind) -> int:
    try:
        welcome = channel.open()
        log_output.configure(f"{channel.kind}-{channel.number}", welcome.log_format, welcome.log_level)
        set_levels(welcome.logger_levels)
        clock = Clock(welcome.settings.get("test.clock.file") or None)
        last = _body(kind)(channel, clock)
    except ImportError as error:
        # Some bodies import more once they know their settings. No restart brings a module that isn't installed.
        _log.exception("the code of this worker cannot be loaded")
        channel.send(Failed(request_id=0, error="WorkerBootError", message=f"its code cannot be loaded: {error}"))
        return EXIT_BOOT
    except CompactdError as error:
        _log.error(str(error))
        # What becomes of a worker that cannot run, the coordinator says.
        said = str(error.detail) if isinstance(error, WorkerBootError) else str(error)
        channel.send(Failed(request_id=0, error=type(error).__name__, message=said))
        return EXIT_BOOT if isinstance(error, WorkerBootError) else 1
    except Exception as error:
        _log.exception("a bug ended this worker")
        channel.send(Failed(request_id=0, error=type(error).__name__, message=str(error)))
        return EXIT_BUG
    channel.send(last or Stopped())
    return 0


def _body(kind: Kind) -> Body:
    module, function = kind.body.split(":")
    body: Body = getattr(importlib.import_module(module), function)
    return body


def _terminated(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _alive(run_dir: Path) -> Iterator[None]:
    """Holds the workers' lock: a new coordinator waits until every worker of the one before is gone."""
    descriptor = os.open(run_dir / WORKERS_LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _end_with_coordinator(run_dir: Path, writes: bool) -> None:
    parent = os.getppid()
    if writes:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        watch = os.pidfd_open(parent)
        threading.Thread(target=_watch, args=(watch, run_dir), name="coordinator-watch", daemon=True).start()
    # It may have died before we asked to be told.
    if coordinator_pid(run_dir) != parent or os.getppid() != parent:
        sweep(run_dir)
        sys.exit(EXIT_COORDINATOR_GONE)


def _watch(coordinator: int, run_dir: Path) -> None:
    died = select.poll()
    died.register(coordinator, select.POLLIN)
    died.poll()
    sweep(run_dir)
    os._exit(EXIT_COORDINATOR_GONE)


def sweep(run_dir: Path) -> bool:
    """Removes the sockets of a coordinator that is dead. False: another one is running, they are its own."""
    try:
        descriptor = os.open(run_dir / COORDINATOR_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (WORKERS_SOCKET, CONTROL_SOCKET):
            (run_dir / name).unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def coordinator_pid(run_dir: Path) -> int | None:
    """The process that the run directory's coordinator says it is; None: nobody ever was."""
    try:
        text = (run_dir / COORDINATOR_LOCK).read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and len(text) < 12 else None


if __name__ == "__main__":
    main()
