"""A file layer that fails on purpose: stops at the n-th call, answers an error, writes short, or loses what was not fsynced.

    layer = FaultyLayer()
    layer.stop_at(7)                      # the process "dies" before call 7 (counted from 0) is made
    with files.replaced(layer), pytest.raises(PowerCut):
        clean(partition)
    layer.lose_unsynced()                 # the machine died, too: only what was fsynced is left
    ...load the directory and look...

What a power cut leaves is modelled after POSIX, not after one kind of file system: a file has the content of its last
fsync (or, if it was never fsynced, none), and a directory the entries of its last fsync; a name may so point to a file
that is empty. Changes that did not go through the layer (a kernel writing to the descriptor) count as unsynced content of
files that were opened through it, and are left alone elsewhere. `lose_unsynced(seed=N)` draws one of the outcomes between
"all lost" and "all there": directory changes up to some point in their order, contents old, new or half new.
"""

# A layer of system calls takes and gives plain paths.
# ruff: noqa: PTH100, PTH101, PTH102, PTH104, PTH112, PTH113, PTH116, PTH118

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from compactd.storage.file_layer import FileLayer

_T = TypeVar("_T")


class PowerCut(BaseException):
    """The process ends here. No handler for Exception may see it; clean-up code that runs gets it again."""


@dataclass(frozen=True)
class Call:
    """One recorded call: the method's name and the paths it works on (base names of them in str())."""

    name: str
    paths: tuple[str, ...]
    size: int = 0

    def __str__(self) -> str:
        shown = [Path(path).name for path in self.paths] + ([str(self.size)] if self.size else [])
        return f"{self.name}({', '.join(shown)})"


@dataclass
class Rule:
    """What to do at calls that match: the `nth` (from 0; None: all) of those with this name and path part."""

    name: str | None
    part: str
    nth: int | None
    code: int = 0
    most: int = 0
    seconds: float = 0.0
    seen: int = 0

    def matches(self, call: Call) -> bool:
        if (self.name is not None and self.name != call.name) or not any(self.part in path for path in call.paths):
            return False
        self.seen += 1
        return self.nth is None or self.seen - 1 == self.nth


@dataclass(eq=False)
class _Node:
    """A file or directory, whatever its name. `synced`: content at the last fsync; None: what is on disk is durable."""

    directory: bool
    synced: bytes | None = None
    mode: int = 0o644
    mtime_ns: int = 0
    #: The shortest that the file was since the last fsync: bytes below it were not written anew.
    shortest: int | None = None


@dataclass
class _Directory:
    """Entries now, and those that would be there after a power cut."""

    now: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class _Change:
    """One entry set (or, with node None, gone) in a directory; not durable yet. Changes of one call share a number."""

    number: int
    directory: _Directory
    name: str
    node: _Node | None


class FaultyLayer(FileLayer):
    """Passes calls on to the real layer, records them, and fails as told. One layer serves one test."""

    def __init__(self, seed: int | None = None) -> None:
        #: Every call so far, those that failed included; queries (free_bytes, access) are recorded but not counted.
        self.calls: list[Call] = []
        self.dead = False
        self._count = 0
        self._stop: tuple[int, bool] | None = None
        self._rules: list[Rule] = []
        self._random = random.Random(seed)
        self._failure_rate = 0.0
        self._directories: dict[str, _Directory] = {}
        self._open: dict[int, tuple[str, _Node]] = {}
        self._pending: list[_Change] = []

    # ---- what a test asks for

    def stop_at(self, number: int, after: bool = False) -> None:
        """PowerCut at the changing call `number` (from 0), before it is made or after."""
        self._stop = (number, after)

    def fail(self, name: str | None, code: int, nth: int | None = 0, part: str = "") -> None:
        """OSError(code) at the nth call (None: every one) of this name whose path contains `part`. `access`: says no."""
        self._rules.append(Rule(name, part, nth, code=code))

    def fail_randomly(self, rate: float) -> None:
        """EIO at this share of the changing calls, drawn from the layer's seed."""
        self._failure_rate = rate

    def short_writes(self, most: int, part: str = "") -> None:
        """Every write takes at most `most` bytes (0: none, which is a fault of the system)."""
        self._rules.append(Rule("write", part, None, most=most, code=-1))

    def delay(self, name: str, seconds: float, part: str = "") -> None:
        self._rules.append(Rule(name, part, None, seconds=seconds))

    @property
    def count(self) -> int:
        """Changing calls so far: stop_at takes numbers below it."""
        return self._count

    @property
    def open_descriptors(self) -> int:
        return len(self._open)

    def lose_unsynced(self, seed: int | None = None) -> None:
        """Puts the disk into the state after a power cut. Without `seed` everything that was not fsynced is lost."""
        draw = random.Random(seed) if seed is not None else None
        if draw is not None and self._pending:
            reached = draw.randrange(self._pending[-1].number + 2)
            for change in self._pending:
                if change.number < reached:
                    _apply(change)
        contents: dict[_Node, bytes] = {}
        for path, directory in self._directories.items():
            for name, node in directory.now.items():
                here = os.path.join(path, name)
                if node.directory or not os.path.isfile(here):
                    continue
                if node.synced is None and directory.durable.get(name) is not node:
                    _keep(node, here)
                if node.synced is not None:
                    contents[node] = _outcome(node, here, draw)
        for path in sorted(self._directories, key=len):  # removed directories come back from the top down
            self._recreate(path)
        for path in sorted(self._directories, key=len, reverse=True):  # renamed ones go back from the bottom up
            self._restore(path, contents)
        self._pending.clear()
        self._directories.clear()
        self.close_all()

    def close_all(self) -> None:
        """Closes the descriptors that a stopped process left open."""
        for fd in list(self._open):
            self._open.pop(fd)
            FileLayer.close(self, fd)

    # ---- the layer

    def open_output(self, path: str, mode: int) -> int:
        def run() -> int:
            directory, name = self._entry(path)
            node = directory.now.get(name)
            if node is not None and node.synced is None:
                _keep(node, path)
            fd = FileLayer.open_output(self, path, mode)
            if node is None:
                node = self._link(directory, name)
            node.shortest = 0
            self._open[fd] = (path, node)
            return fd

        return self._call(Call("open_output", (path,)), run)

    def open_existing(self, path: str) -> int:
        def run() -> int:
            directory, name = self._entry(path)
            fd = FileLayer.open_existing(self, path)
            node = directory.now[name]
            if node.synced is None:
                _keep(node, path)
            self._open[fd] = (path, node)
            return fd

        return self._call(Call("open_existing", (path,)), run)

    def open_append(self, path: str, mode: int) -> int:
        def run() -> int:
            directory, name = self._entry(path)
            node = directory.now.get(name)
            fd = FileLayer.open_append(self, path, mode)
            if node is None:
                node = self._link(directory, name)
            elif node.synced is None:
                _keep(node, path)
            self._open[fd] = (path, node)
            return fd

        return self._call(Call("open_append", (path,)), run)

    def open_lock(self, path: str, mode: int) -> int:
        def run() -> int:
            directory, name = self._entry(path)
            fd = FileLayer.open_lock(self, path, mode)
            if name not in directory.now:
                self._link(directory, name)
            return fd

        return self._call(Call("open_lock", (path,)), run)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        call = Call("write", (self._path(fd),), len(data))
        for rule in self._rules:
            if rule.code == -1 and not self.dead and rule.matches(call):
                data = data[: rule.most]
                if not data:
                    return self._call(call, lambda: 0)
        return self._call(call, lambda: FileLayer.write(self, fd, data))

    def truncate(self, fd: int, size: int) -> None:
        def run() -> None:
            FileLayer.truncate(self, fd, size)
            if fd in self._open:
                node = self._open[fd][1]
                node.shortest = size if node.shortest is None else min(node.shortest, size)

        self._call(Call("truncate", (self._path(fd),), size), run)

    def fsync(self, fd: int) -> None:
        def run() -> None:
            FileLayer.fsync(self, fd)
            if fd in self._open:
                found = os.fstat(fd)
                node = self._open[fd][1]
                node.synced = os.pread(fd, found.st_size, 0)
                node.mode, node.mtime_ns = found.st_mode & 0o7777, found.st_mtime_ns
                node.shortest = None

        self._call(Call("fsync", (self._path(fd),)), run)

    def close(self, fd: int) -> None:
        path = self._path(fd)
        self._open.pop(fd, None)
        if self.dead:
            FileLayer.close(self, fd)  # a dead process's descriptors close by themselves
            return
        closed = False

        def run() -> None:
            nonlocal closed
            closed = True
            FileLayer.close(self, fd)

        try:
            self._call(Call("close", (path,)), run)
        finally:
            if not closed:  # Linux closes the descriptor whatever it answers
                FileLayer.close(self, fd)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        self._call(Call("chown", (self._path(fd),)), lambda: FileLayer.chown(self, fd, uid, gid))

    def chmod(self, fd: int, mode: int) -> None:
        self._call(Call("chmod", (self._path(fd),)), lambda: FileLayer.chmod(self, fd, mode))

    def rename(self, source: str, target: str) -> None:
        def run() -> None:
            old, old_name = self._entry(source)
            new, new_name = self._entry(target)
            replaced = new.now.get(new_name)
            if replaced is not None and not replaced.directory and replaced.synced is None:
                _keep(replaced, target)
            FileLayer.rename(self, source, target)
            node = old.now.pop(old_name)
            new.now[new_name] = node
            number = self._next_change()
            self._pending += [_Change(number, new, new_name, node), _Change(number, old, old_name, None)]
            if node.directory:
                self._directories = {_moved(path, source, target): kept for path, kept in self._directories.items()}

        self._call(Call("rename", (source, target)), run)

    def unlink(self, path: str) -> None:
        def run() -> None:
            directory, name = self._entry(path)
            node = directory.now.get(name)
            if node is not None and node.synced is None:
                _keep(node, path)
            FileLayer.unlink(self, path)
            self._unlink(directory, name)

        self._call(Call("unlink", (path,)), run)

    def mkdir(self, path: str, mode: int) -> None:
        def run() -> None:
            directory, name = self._entry(path)
            FileLayer.mkdir(self, path, mode)
            self._link(directory, name, _Node(directory=True))

        self._call(Call("mkdir", (path,)), run)

    def rmdir(self, path: str) -> None:
        def run() -> None:
            directory, name = self._entry(path)
            FileLayer.rmdir(self, path)
            self._unlink(directory, name)

        self._call(Call("rmdir", (path,)), run)

    def fsync_dir(self, path: str) -> None:
        def run() -> None:
            FileLayer.fsync_dir(self, path)
            directory = self._directory(path)
            for change in self._pending:
                if change.directory is directory:
                    _apply(change)
            self._pending = [change for change in self._pending if change.directory is not directory]

        self._call(Call("fsync_dir", (path,)), run)

    def utime(self, path: str, atime_ns: int, mtime_ns: int) -> None:
        self._call(Call("utime", (path,)), lambda: FileLayer.utime(self, path, atime_ns, mtime_ns))

    def free_bytes(self, path: str) -> int:
        return self._call(Call("free_bytes", (path,)), lambda: FileLayer.free_bytes(self, path), counted=False)

    def access(self, path: str, mode: int) -> bool:
        try:
            return self._call(Call("access", (path,)), lambda: FileLayer.access(self, path, mode), counted=False)
        except OSError:
            return False

    # ---- inside

    def _call(self, call: Call, run: Callable[[], _T], counted: bool = True) -> _T:
        if self.dead:
            raise PowerCut("the process is dead")
        number = self._count
        self._count += counted
        self.calls.append(call)
        stop = self._stop if counted and self._stop is not None and self._stop[0] == number else None
        if stop is not None and not stop[1]:
            self.dead = True
            raise PowerCut(f"before call {number}, {call}")
        for rule in self._rules:
            if rule.code >= 0 and rule.matches(call):
                if rule.seconds:
                    time.sleep(rule.seconds)
                if rule.code:
                    raise OSError(rule.code, os.strerror(rule.code))
        if counted and self._failure_rate and self._random.random() < self._failure_rate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            result = run()
        except OSError:
            if stop is not None:  # the stop comes after the call, however it ended
                self.dead = True
                raise PowerCut(f"after call {number}, {call}") from None
            raise
        if stop is not None:
            self.dead = True
            if call.name.startswith("open_") and isinstance(result, int):  # nobody will get to know this descriptor
                self._open.pop(result, None)
                FileLayer.close(self, result)
            raise PowerCut(f"after call {number}, {call}")
        return result

    def _path(self, fd: int) -> str:
        return self._open[fd][0] if fd in self._open else f"descriptor {fd}"

    def _entry(self, path: str) -> tuple[_Directory, str]:
        parent, name = os.path.split(os.path.abspath(path))
        return self._directory(parent), name

    def _directory(self, path: str) -> _Directory:
        """The directory as it was when first seen: everything in it then counts as durable."""
        path = os.path.abspath(path)
        if path not in self._directories:
            with os.scandir(path) as entries:
                nodes = {entry.name: _Node(directory=entry.is_dir(follow_symlinks=False)) for entry in entries}
            self._directories[path] = _Directory(dict(nodes), dict(nodes))
        found = self._directories[path]
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name not in found.now:  # made behind the layer's back: nothing of it is known to be lost
                    node = _Node(directory=entry.is_dir(follow_symlinks=False))
                    found.now[entry.name] = found.durable[entry.name] = node
        return found

    def _next_change(self) -> int:
        return self._pending[-1].number + 1 if self._pending else 0

    def _link(self, directory: _Directory, name: str, node: _Node | None = None) -> _Node:
        node = node or _Node(directory=False, synced=b"")
        directory.now[name] = node
        self._pending.append(_Change(self._next_change(), directory, name, node))
        return node

    def _unlink(self, directory: _Directory, name: str) -> None:
        directory.now.pop(name, None)
        self._pending.append(_Change(self._next_change(), directory, name, None))

    def _recreate(self, path: str) -> None:
        for name, node in self._directories[path].durable.items():
            here = os.path.join(path, name)
            if node.directory and not os.path.lexists(here) and not _is_anywhere(node, self._directories):
                os.mkdir(here)

    def _restore(self, path: str, contents: dict[_Node, bytes]) -> None:
        directory = self._directories[path]
        if not os.path.isdir(path):
            return
        for name, node in directory.now.items():
            if directory.durable.get(name) is node:
                continue
            here = os.path.join(path, name)
            home = _home_of(node, self._directories) if node.directory else None
            if not node.directory:
                Path(here).unlink(missing_ok=True)
            elif home is not None:
                os.rename(here, home)
            else:
                shutil.rmtree(here)
        for name, node in directory.durable.items():
            here = os.path.join(path, name)
            same = directory.now.get(name) is node
            if node.directory or (same and node.synced is None):
                continue
            wanted = contents.get(node, node.synced or b"")
            if same and Path(here).read_bytes() == wanted:
                continue
            Path(here).write_bytes(wanted)
            if node.mtime_ns:
                os.chmod(here, node.mode)
                os.utime(here, ns=(node.mtime_ns, node.mtime_ns))


def _apply(change: _Change) -> None:
    if change.node is None:
        change.directory.durable.pop(change.name, None)
    else:
        change.directory.durable[change.name] = change.node


def _keep(node: _Node, path: str) -> None:
    """The file is about to change or go: what it holds was durable."""
    found = os.stat(path)
    node.synced = Path(path).read_bytes()
    node.mode, node.mtime_ns = found.st_mode & 0o7777, found.st_mtime_ns


def _outcome(node: _Node, path: str, draw: random.Random | None) -> bytes:
    there, old = Path(path).read_bytes(), node.synced or b""
    if draw is None or old == there:
        return old
    if old.startswith(there):  # it was only cut: what stayed was on disk all the time
        return old if draw.randrange(2) else there
    kind = draw.randrange(3)
    if kind == 0:
        return old
    # What was fsynced and is neither cut nor written anew since does not go: files grow at their end.
    least = len(old) if node.shortest is None else min(len(old), node.shortest)
    if there[:least] != old[:least]:
        least = 0
    return there if kind == 1 else there[: draw.randrange(least, len(there) + 1)]


def _home_of(node: _Node, directories: dict[str, _Directory]) -> str | None:
    for path, directory in directories.items():
        for name, kept in directory.durable.items():
            if kept is node:
                return os.path.join(path, name)
    return None


def _is_anywhere(node: _Node, directories: dict[str, _Directory]) -> bool:
    return any(kept is node for directory in directories.values() for kept in directory.now.values())


def _moved(path: str, source: str, target: str) -> str:
    source, target = os.path.abspath(source), os.path.abspath(target)
    if path == source or path.startswith(source + os.sep):
        return target + path[len(source) :]
    return path
