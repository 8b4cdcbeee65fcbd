"""The directory of the daemon's sockets: private, outside every log dir, held by one coordinator at a time.

coordinator.lock   locked by the coordinator while it lives; holds its process id
workers.lock       locked, shared, by every worker while it lives
workers.sock       ROUTER for the workers
control.sock       ROUTER for commands
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from compactd.config.errors import NotRunningError, RefusedError
from compactd.workers.channel import WORKERS_SOCKET
from compactd.workers.process import CONTROL_SOCKET, COORDINATOR_LOCK, WORKERS_LOCK, coordinator_pid

#: Longest path of a socket (sockaddr_un), in bytes.
MAX_SOCKET_PATH = 107
#: How long a new coordinator waits for the one before, and for its workers, to be gone.
WAIT_SECONDS = 10.0
_RETRY_SECONDS = 0.02


def default_run_dir(first_log_dir: str | Path) -> Path:
    """Where the sockets are unless run.dir says so: one place for each first log dir."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(first_log_dir))).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):  # noqa: PTH117, PTH112
        return Path(runtime) / f"compactd-{name}"
    return _shared() / name


def find_run_dir(run_dir: str, log_dirs: Sequence[str]) -> Path:
    """The run directory of these settings (run.dir, log.dirs)."""
    return Path(run_dir).absolute() if run_dir else default_run_dir(log_dirs[0])


def check_running(path: Path) -> int:
    """Process id of the coordinator that holds a run directory. NotRunningError when there is none."""
    try:
        descriptor = os.open(path / COORDINATOR_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise NotRunningError(path=path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return coordinator_pid(path) or 0
    finally:
        os.close(descriptor)
    raise NotRunningError(path=path)


def is_running(path: Path) -> bool:
    """Whether a coordinator holds this run directory."""
    try:
        check_running(path)
    except NotRunningError:
        return False
    return True


def running_dirs() -> list[Path]:
    """Run directories, of those in the usual places, that a coordinator of this user holds."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [*_listed(Path(runtime), "compactd-*")] if runtime else []
    return [path for path in (*places, *_listed(_shared(), "*")) if is_running(path)]


class RunDir:
    """A run directory that is held. Use as a context manager: what is in it goes when the coordinator ends."""

    def __init__(self, path: Path, log_dirs: Sequence[str]) -> None:
        """Makes and takes it. RefusedError: another coordinator holds it, it isn't private, or its path won't do."""
        self.path = path
        _check_path(path, log_dirs)
        _make_private(path)
        self._lock = _lock(path)
        try:
            for socket in (self.workers_socket, self.control_socket):
                socket.unlink(missing_ok=True)
            _wait_for_workers(path)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def workers_socket(self) -> Path:
        return self.path / WORKERS_SOCKET

    @property
    def control_socket(self) -> Path:
        return self.path / CONTROL_SOCKET

    def close(self) -> None:
        """Removes the sockets and the directory, and gives it up. Further calls do nothing."""
        if self._lock < 0:
            return
        for name in (WORKERS_SOCKET, CONTROL_SOCKET, WORKERS_LOCK, COORDINATOR_LOCK):
            with contextlib.suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
        # Somebody's own directory may hold more than what is ours.
        with contextlib.suppress(OSError):
            self.path.rmdir()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _shared() -> Path:
    """Where the run directories of this user are without $XDG_RUNTIME_DIR."""
    return Path("/tmp") / f"compactd-{os.geteuid()}"


def _listed(directory: Path, pattern: str) -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _check_path(path: Path, log_dirs: Sequence[str]) -> None:
    longest = len(os.fsencode(path / CONTROL_SOCKET)) + len(WORKERS_SOCKET) - len(CONTROL_SOCKET)
    if longest > MAX_SOCKET_PATH:
        raise RefusedError(
            path=path,
            reason=f"the paths of sockets in it would have {longest} bytes, and {MAX_SOCKET_PATH} is the most",
            advice="Set run.dir to a shorter path.",
        )
    real = Path(os.path.realpath(path))
    for log_dir in log_dirs:
        if real.is_relative_to(os.path.realpath(log_dir)):
            raise RefusedError(
                path=path,
                reason=f"it lies in the log dir {log_dir}, where a foreign directory keeps Kafka from starting",
                advice="Set run.dir to a path outside every log dir.",
            )


def _make_private(path: Path) -> None:
    """Mode 0700 and ours, and so are the directories that we make above it: in /tmp others make directories, too."""
    missing = [path, *(parent for parent in path.parents if not parent.exists())]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)  # noqa: PTH102
    ours = [path, path.parent] if path.parent.parent == Path("/tmp") else [path]
    for directory in ours:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise RefusedError(
                path=directory,
                reason="the directory of the sockets must belong to the user who runs compactd, with mode 0700",
                advice="Set run.dir to another path, or mend this one with chmod.",
            )


def _lock(path: Path) -> int:
    end = time.monotonic() + WAIT_SECONDS
    name = path / COORDINATOR_LOCK
    while True:
        _make_private(path)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if name.exists() and os.path.samestat(os.fstat(descriptor), name.stat()):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        except BlockingIOError:
            # A worker that sweeps up after a dead coordinator holds it for a moment; a living one holds it on.
            pid = coordinator_pid(path)
            if time.monotonic() > end or (pid is not None and Path(f"/proc/{pid}").exists()):
                os.close(descriptor)
                raise RefusedError(
                    path=path,
                    reason=f"compactd is running with it already, as process {pid}",
                    advice="Stop that one first, or give this one another run.dir.",
                ) from None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_RETRY_SECONDS)


def _wait_for_workers(path: Path) -> None:
    descriptor = os.open(path / WORKERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise RefusedError(
                        path=path,
                        reason="workers of a compactd that ended are still alive, and may still write",
                        advice=f"End them first: `fuser {path / WORKERS_LOCK}` lists them.",
                    ) from None
                time.sleep(_RETRY_SECONDS)
    finally:
        os.close(descriptor)
