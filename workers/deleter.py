"""The deleter: removes `.deleted` files and -delete directories when they are due. Nobody else removes them while it runs.

A large file is cut down in steps before it is unlinked: unlinking gigabytes at once makes a file system hold everybody
else's operations up until all its extents are freed.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
from pathlib import Path

from compactd.config.errors import CompactdError
from compactd.storage import files, names
from compactd.workers.channel import Channel
from compactd.workers.cleaning_messages import DeleteLater, DeleterState, KeepFiles
from compactd.workers.clock import Clock
from compactd.workers.message import Message
from compactd.workers.messages import Stop, Stopped
from compactd.workers.partition_messages import LogDirFailed

_log = logging.getLogger(__name__)

#: Larger files are cut by this much at a time.
STEP_BYTES = 64 << 20
_IDLE_SECONDS = 1.0
#: How soon a removal that failed is tried again.
_AGAIN_MS = 30_000


def run(channel: Channel, clock: Clock) -> Stopped | None:
    """The body: until Stop. What is not due then stays; the next start finds it."""
    deleter = Deleter(clock)
    while channel.stopping is None:
        message = channel.receive(deleter.seconds_to_next(_IDLE_SECONDS))
        changed = False
        while message is not None and not isinstance(message, Stop):
            changed = deleter.take(message) or changed
            message = channel.receive(0)
        if deleter.remove_one_due() or changed:
            channel.send(deleter.state())
            channel.set_phase(f"{len(deleter)} waiting" if len(deleter) else "idle")
    return None


class Deleter:
    """The queue: path to due time (wall clock)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._offline: list[str] = []
        self._bytes = 0
        self._removed = 0
        #: Paths whose removal failed and is tried again.
        self._failing: set[str] = set()

    def __len__(self) -> int:
        return len(self._due)

    def take(self, message: Message) -> bool:
        """Whether the queue changed."""
        if isinstance(message, DeleteLater):
            for path in message.paths:
                if is_removable(path):
                    self._forget(path)
                    self._sizes[path] = size_of(path)
                    self._bytes += self._sizes[path]
                    self._put(path, message.due_ms)
                else:
                    _log.error(f"{path} is neither a .deleted file nor a -delete directory: it is left alone")
            return True
        if isinstance(message, KeepFiles):
            for path in message.paths:
                self._forget(path)
            return True
        if isinstance(message, LogDirFailed):
            self._offline.append(message.log_dir.rstrip("/") + "/")
        return False

    def seconds_to_next(self, most: float) -> float:
        """Until something is due; 0 when it is."""
        self._drop_stale()
        if not self._heap:
            return most
        return min(most, max(0.0, (self._heap[0][0] - self._clock.now_ms()) / 1000))

    def remove_one_due(self) -> bool:
        """Removes one path that is due, if there is one: messages are looked at between them."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > self._clock.now_ms():
            return False
        _, path = heapq.heappop(self._heap)
        if any(path.startswith(log_dir) for log_dir in self._offline):
            self._forget(path)
            return True
        try:
            remove(path)
        except (CompactdError, OSError) as error:
            if path not in self._failing:
                _log.warning(f"{path} is not removed yet, it is tried again: {error}")
            self._failing.add(path)
            self._put(path, self._clock.now_ms() + _AGAIN_MS)
            return True
        self._forget(path)
        self._removed += 1
        return True

    def state(self) -> DeleterState:
        self._drop_stale()
        return DeleterState(
            queued=len(self._due),
            queued_bytes=self._bytes,
            removed=self._removed,
            next_due_ms=self._heap[0][0] if self._heap else None,
            failing=len(self._failing),
        )

    def _put(self, path: str, due_ms: int) -> None:
        self._due[path] = due_ms
        heapq.heappush(self._heap, (due_ms, path))

    def _forget(self, path: str) -> None:
        self._due.pop(path, None)
        self._failing.discard(path)
        self._bytes -= self._sizes.pop(path, 0)

    def _drop_stale(self) -> None:
        """Entries of the heap that were taken back or put off."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


def is_removable(path: str) -> bool:
    """A last guard: only what its name says may go."""
    name = Path(path).name
    return name.endswith(names.DELETED) or name.endswith(names.DELETE_DIR)


def size_of(path: str) -> int:
    """Bytes that removing it frees, of one file or all files of a directory; 0 where it is gone."""
    try:
        if not os.path.isdir(path):  # noqa: PTH112
            return os.stat(path).st_size  # noqa: PTH116
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
    except OSError:
        return 0


def remove(path: str) -> None:
    """Removes a file, or a directory with the files in it. One that is gone already is no fault. StorageIOError or OSError."""
    target = Path(path)
    if target.is_dir():
        with contextlib.suppress(FileNotFoundError):
            for child in sorted(target.iterdir()):
                remove_file(child)
        files.remove_dir(target)
        files.fsync_dir(target.parent)
    else:
        # A directory that was renamed -delete meanwhile takes the file along; it goes with that.
        remove_file(target)


def remove_file(path: Path) -> None:
    """Cuts a large file down, then unlinks it. A file that has other links is only unlinked."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_size > STEP_BYTES and found.st_nlink == 1:
            with files.open_existing(path) as output:
                size = found.st_size
                while size > STEP_BYTES:
                    size -= STEP_BYTES
                    output.truncate(size)
    files.remove(path, missing_ok=True)
