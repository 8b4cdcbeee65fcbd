"""Worker kinds for tests: `python tests/workers/fake_worker.py KIND NUMBER RUN_DIR`, as the real ones are started."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from compactd.config.errors import WorkerBootError
from compactd.workers.channel import Channel
from compactd.workers.cleaning_messages import DeleterState, LetGo, LetGoDone, PrepareClean
from compactd.workers.clock import Clock
from compactd.workers.messages import Failed, Stop, Stopped
from compactd.workers.process import KINDS, Kind, main


def idle(channel: Channel, clock: Clock) -> Stopped | None:
    """Answers LetGo, until Stop."""
    while True:
        message = channel.receive()
        if isinstance(message, Stop):
            return Stopped(log_dirs_clean=("/fake",))
        if isinstance(message, LetGo):
            channel.send(LetGoDone(request_id=message.request_id, deleted=(str(clock.now_ms()),)))


def native(channel: Channel, clock: Clock) -> None:
    """On PrepareClean sleeps for `partition` seconds in native code that lets go of the interpreter, then says so."""
    while not isinstance(message := channel.receive(), Stop):
        if isinstance(message, PrepareClean):
            channel.set_phase("in native code")
            ctypes.CDLL(None).sleep(message.partition)
            channel.send(DeleterState(queued=1, queued_bytes=0, removed=0))


def stuck(channel: Channel, clock: Clock) -> None:
    """On any message stays in native code that keeps the interpreter; SIGTERM ends it."""
    channel.receive()
    ctypes.PyDLL(None).sleep(1000)


def deaf(channel: Channel, clock: Clock) -> None:
    """Listens to nobody. It is ready once it sent its state."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel.send(DeleterState(queued=0, queued_bytes=0, removed=0))
    while True:
        signal.pause()


def crash(channel: Channel, clock: Clock) -> None:
    """Dies of the signal whose number is the partition of the first PrepareClean."""
    message = channel.receive()
    assert isinstance(message, PrepareClean)
    os.kill(os.getpid(), message.partition)


def boot(channel: Channel, clock: Clock) -> None:
    """Cannot run while the file `broken` is in the run directory."""
    if (Path(os.environ["COMPACTD_TEST_DIR"]) / "broken").exists():
        raise WorkerBootError(detail="the port is taken")
    idle(channel, clock)


def bug(channel: Channel, clock: Clock) -> None:
    raise ZeroDivisionError("a bug on purpose")


def orphan(channel: Channel, clock: Clock) -> None:
    """Tells how it ends when the coordinator falls silent, then only waits."""
    channel.send(Failed(request_id=1, error="", message=""))
    while True:
        signal.pause()


for _body in (idle, native, stuck, deaf, crash, boot, bug, orphan):
    KINDS[_body.__name__] = Kind(f"{__name__}:{_body.__name__}", writes=_body is not orphan)

if __name__ == "__main__":
    main()
