"""What a test left behind: processes, threads, sockets, open files, files beside its temporary directories.

Only the test that left something is blamed for it. What goes on by itself, such as the threads of a client that connects
again and again, would make each test after it look guilty: while any of that is alive, nobody is judged.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: A thread that was joined is listed until the system has reaped it, and clients close in threads of their own.
_GRACE_SECONDS = 5.0
#: Names in the working directory that tools write as they go.
_TOOLS = {".hypothesis", ".pytest_cache", "__pycache__", ".coverage", "build", ".mypy_cache", ".ruff_cache"}
#: Threads of pools, by the beginning of their names: they come when there is work, and go with whoever has the pool.
_POOLS = ("ZMQbg/", "disk_", "asyncio_")

#: What brings back, before each test, those processes of a session that an earlier test ended.
revivers: list[Callable[[], None]] = []
#: Threads that outlived their test, by their ids.
_escaped: dict[int, str] = {}


@contextlib.contextmanager
def revived(revive: Callable[[], None]) -> Iterator[None]:
    """Has it called before each test."""
    revivers.append(revive)
    try:
        yield
    finally:
        revivers.remove(revive)


@dataclass(frozen=True)
class Look:
    """What there is at one moment."""

    children: frozenset[int]
    threads: Mapping[int, str]
    opened: frozenset[str]
    beside: frozenset[str]


def look() -> Look:
    return Look(frozenset(_children()), _threads(), frozenset(_open_files()), frozenset(_beside()))


def left_since(before: Look) -> list[str]:
    """A sentence for each kind of thing that is there now and was not before, and does not go soon."""
    found = _differences(before, look())
    end = time.monotonic() + _GRACE_SECONDS
    while found and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
        found = _differences(before, look())
    return found


def is_anything_at_large() -> bool:
    """Whether threads of a test that is over live on."""
    alive = _threads()
    for identity in _escaped.keys() - alive.keys():
        del _escaped[identity]
    return bool(_escaped)


def let_go(before: Look) -> None:
    """Ends the processes that were left; threads cannot be ended, and are remembered."""
    for pid in _children() - before.children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    _escaped.update({identity: name for identity, name in _threads().items() if identity not in before.threads})


def drop_what_the_failure_holds() -> None:
    """The locals of the frames that the last failure went through: clients and sockets that close with the last reference."""
    error: BaseException | None = getattr(sys, "last_value", None)
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            _ = frame.f_locals  # until it is asked for again, a frame keeps what it answered before
        error = error.__cause__ or error.__context__
    gc.collect()


def _differences(before: Look, now: Look) -> list[str]:
    found = []
    if children := now.children - before.children:
        found.append(f"the test left child processes running or unreaped: {[_command(pid) for pid in children]}")
    if threads := [name for identity, name in now.threads.items() if identity not in before.threads]:
        found.append(f"the test left threads running: {sorted(threads)}")
    if opened := now.opened - before.opened:
        found.append(f"the test left files or sockets open: {sorted(opened)[:20]}")
    if beside := now.beside ^ before.beside:
        found.append(f"the test wrote or removed beside its temporary directories: {sorted(beside)}")
    return found


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        # That thread may have ended meanwhile.
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() or str(
            pid
        )
    except OSError:
        return str(pid)


def _threads() -> dict[int, str]:
    """Names by ids: Python's, and the system's, which those of libraries have."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            name = names.get(int(task.name)) or (task / "comm").read_text().strip()
            if not name.startswith(_POOLS):
                found[int(task.name)] = name
    return found


def _open_files() -> set[str]:
    """Sockets and files of tests among the open descriptors; pytest captures into files that are deleted already."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("socket:") or (target.startswith("/") and _is_ours(target)):
            found.add(target)
    return found


def _is_ours(target: str) -> bool:
    return target.startswith((tempfile.gettempdir(), "/dev/shm/")) and not target.endswith(" (deleted)")


def _beside() -> set[str]:
    return {path.name for path in Path().iterdir() if path.name not in _TOOLS}
