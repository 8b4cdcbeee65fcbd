"""The time, from one object that every process of the daemon is given, so that tests can move it.

Wall time goes into records, names, due times and decisions; monotonic time into waits, leases and rates, and is never moved.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_OFFSET = struct.Struct("<q")


class Clock:
    """The machine's own time, or that time plus an offset that others may change while we run.

    `offset_file` holds the offset in ms as 8 bytes, little endian. It is mapped into memory: a change counts at the next
    call, in every process that was given the same file (setting test.clock.file, for tests only).
    """

    def __init__(self, offset_file: str | Path | None = None) -> None:
        self._offset: mmap.mmap | None = None
        if offset_file:
            descriptor = os.open(offset_file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._offset = mmap.mmap(descriptor, _OFFSET.size, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        moved = 0 if self._offset is None else _OFFSET.unpack(self._offset[: _OFFSET.size])[0]
        return time.time_ns() // 1_000_000 + int(moved)

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()

    def close(self) -> None:
        """Lets go of the offset file; the time is the machine's own from now on."""
        if self._offset is not None:
            self._offset.close()
            self._offset = None


def write_offset(path: str | Path, milliseconds: int) -> None:
    """Moves the clocks that were given this file; makes the file where there is none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, _OFFSET.pack(milliseconds), 0)
    finally:
        os.close(descriptor)
