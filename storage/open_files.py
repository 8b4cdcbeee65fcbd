"""How many files are open at once: one bounded set of descriptors for all partitions of a process.

A segment's `.log` is opened when it is first read or written and closed when others were used more recently: 5,000
partitions work with `ulimit -n 1024`. A descriptor in use is never closed. It also outlives the file's names: who holds
one reads on undisturbed while the segment is swapped out, renamed to `.deleted` and removed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from compactd.config.errors import StorageIOError
from compactd.storage.files import Output

#: Leaves room for sockets, checkpoints and libraries below the usual limit of 1,024.
DEFAULT_LIMIT = 512


class OpenFile:
    """One open `.log`: readable, and writable where `output` is there."""

    __slots__ = ("_fd", "closing", "kept", "output", "owner", "users", "writing")

    def __init__(self, owner: OpenFiles, fd: int, output: Output | None = None) -> None:
        self._fd = fd
        self.owner = owner
        self.output = output
        #: How many hold it now; guarded by the owner's lock.
        self.users = 1
        #: Whether it stays open when nobody holds it.
        self.kept = False
        #: The owner of the log writes without holding the file: it sets `writing`, then looks at `closing`. Whoever wants
        #: to close it sets `closing`, then looks at `writing`. So never both go ahead, and no append takes the lock.
        self.writing = False
        self.closing = False

    def fileno(self) -> int:
        """The descriptor; use it only while holding the file. ValueError when it is closed."""
        if self._fd < 0:
            raise ValueError("the file is closed")
        return self._fd

    def hold(self) -> OpenFile:
        """One more user: of a file that the caller holds already."""
        with self.owner.lock:
            self.users += 1
        return self

    def release(self) -> None:
        """One user less. A file that left the set meanwhile is closed with its last user."""
        owner = self.owner
        with owner.lock:
            self.users -= 1
            if self.users > 0:
                return
            if self.kept:
                if len(owner._recent) <= owner.limit:
                    return
                doomed = owner.surplus()
            else:
                doomed = [self]
        close_all(doomed)

    def may_close(self) -> bool:
        """Whether nobody uses the file; if so nobody will start to, but through `OpenFiles`. Lock held."""
        if self.users > 0:
            return False
        self.closing = True
        if self.writing:
            self.closing = False
            return False
        return True

    def close(self) -> None:
        """Closes the descriptor, whoever holds it: for `OpenFiles`."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self.output is not None:
            self.output.close()
        else:
            os.close(fd)


class Slot:
    """Where one segment has its open file, when it has one."""

    __slots__ = ("file",)

    def __init__(self) -> None:
        self.file: OpenFile | None = None


class OpenFiles:
    """Keeps at most `limit` files open beside those that are held; used by all threads of a process."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        #: Guards everything here. Never held during a system call.
        self.lock = threading.Lock()
        self._recent: OrderedDict[Slot, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def acquire(self, slot: Slot, open_it: Callable[[], OpenFile], *, writable: bool = False) -> OpenFile:
        """The slot's file, held; made by `open_it` when it is not open, or not for writing where that is asked.

        Errors are those of `open_it`.
        """
        with self.lock:
            found = slot.file
            if found is not None and (not writable or found.output is not None):
                found.users += 1
                self._recent.move_to_end(slot)
                return found
        opened = open_it()
        with self.lock:
            other = slot.file
            if other is not None and (other.output is not None or not writable):
                other.users += 1  # another thread was faster
                opened, doomed = other, [opened]
            else:
                opened.kept = True
                slot.file = opened
                self._recent[slot] = None
                self._recent.move_to_end(slot)
                doomed = self.surplus()
                if other is not None:  # open for reading only: it stays with those who hold it
                    other.kept, other.closing = False, True
                    if other.users == 0:
                        doomed.append(other)
        close_all(doomed)
        return opened

    def forget(self, slot: Slot) -> None:
        """Closes the slot's file now, or with its last user."""
        with self.lock:
            found, slot.file = slot.file, None
            self._recent.pop(slot, None)
            if found is None:
                return
            found.kept = False
            if found.users > 0:
                found.closing = True
                return
            found.closing = True
        found.close()

    def surplus(self) -> list[OpenFile]:
        """Takes the least recently used files that nobody holds out of the set until it is small enough; lock held."""
        doomed: list[OpenFile] = []
        if len(self._recent) <= self.limit:
            return doomed
        for slot in list(self._recent):
            file = slot.file
            if file is not None and file.may_close():
                file.kept = False
                slot.file = None
                del self._recent[slot]
                doomed.append(file)
                if len(self._recent) <= self.limit:
                    break
        return doomed


def close_all(doomed: Iterable[OpenFile]) -> None:
    """Closes files of which nothing is expected any more."""
    for each in doomed:
        with contextlib.suppress(StorageIOError):
            each.close()
