"""Signals as events of the loop: the handlers themselves do nothing."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from compactd.coordinator.loop import Loop

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Hands SIGTERM, SIGINT and SIGHUP over to `call`, on the loop's thread, which must be the main one."""

    def __init__(self, loop: Loop, call: Callable[[int], None]) -> None:
        self._loop, self._call = loop, call
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _NUMBERS}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        loop.add_source(self._read, self._arrived)

    def close(self) -> None:
        """The handlers before are back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._loop.remove_source(self._read)
        os.close(self._read)
        os.close(self._write)

    def _arrived(self) -> None:
        for number in os.read(self._read, 64):
            if number in _NUMBERS:
                self._call(number)


def terminal_is_gone() -> bool:
    """A daemon without a terminal takes SIGHUP for a reload; one that was started on a terminal that closed has to stop."""
    try:
        foreground = os.tcgetpgrp(0)
    except OSError as error:
        # EIO: it was a terminal, and hung up. Otherwise: it never was one.
        return error.errno == errno.EIO
    return foreground < 0
