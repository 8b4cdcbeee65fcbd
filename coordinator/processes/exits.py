"""How a worker's process ended, in words."""

from __future__ import annotations

import signal

from compactd.workers.channel import EXIT_COORDINATOR_GONE
from compactd.workers.process import EXIT_BOOT, EXIT_BUG

_CRASHES = {
    signal.SIGSEGV: "crashed in native code",
    signal.SIGBUS: "crashed: a mapped file was cut short, or its disk failed",
    signal.SIGILL: "crashed: this processor lacks an instruction that it was built for",
    signal.SIGFPE: "crashed in native code",
    signal.SIGABRT: "gave itself up in native code",
}


def explain_exit(code: int, asked: str, said: str) -> str:
    """One clause that follows the worker's name.

    `code`: as subprocess gives it, negative for a signal. `asked`: why we ended it, empty when we did not. `said`: the error
    that it reported itself.
    """
    because = f", as {asked}" if asked else ""
    if code == 0:
        return f"ended in good order{because}" if asked else "ended by itself"
    if code == EXIT_BOOT:
        return f"cannot run: {said or 'its output says why'}"
    if code == EXIT_COORDINATOR_GONE:
        return "ended because it took this coordinator for dead"
    if code < 0:
        return _by_signal(-code, because, bool(asked))
    if code == 128 + signal.SIGTERM:
        return f"was terminated{because}" if asked else "was terminated by somebody else"
    if code == EXIT_BUG:
        return f"failed, which is a bug: {said or 'its output says more'}"
    return f"failed with exit code {code}: {said or 'its output says more'}"


def _by_signal(number: int, because: str, asked: bool) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if asked and number in (signal.SIGKILL, signal.SIGTERM):
        return f"was {'killed' if number == signal.SIGKILL else 'terminated'}{because}"
    if number == signal.SIGKILL:
        return "was killed by somebody else (SIGKILL): out of memory? The kernel's log would say so"
    if number in _CRASHES:
        return f"{_CRASHES[signal.Signals(number)]} ({name})"
    return f"was ended by {name}"
