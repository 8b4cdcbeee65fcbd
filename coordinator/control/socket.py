"""The control socket: the daemon's side, and the client that commands use."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from compactd.config import errors
from compactd.config.errors import CompactdError, NoAnswerError
from compactd.coordinator.control.messages import (
    Answer,
    Control,
    Refused,
    Request,
    decode_answer,
    decode_request,
    encode,
)
from compactd.coordinator.loop import Loop
from compactd.coordinator.run_dir import check_running
from compactd.workers.process import CONTROL_SOCKET

_log = logging.getLogger(__name__)

#: Longest request and answer.
MAX_REQUEST_BYTES = 16 << 20
MAX_ANSWER_BYTES = 256 << 20
_REQUESTS_A_TURN = 16

Handler = Callable[[Request, Callable[[Control], None]], None]


class ControlServer:
    """Answers requests on the loop's thread. The handler may answer later; each request is answered once."""

    def __init__(self, loop: Loop, socket: Path, handler: Handler) -> None:
        self._loop = loop
        self._handler = handler
        self._context = zmq.Context(io_threads=1)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        self._router.bind(f"ipc://{socket}")
        loop.add_source(self._router, self._receive)

    def close(self) -> None:
        self._loop.remove_source(self._router)
        self._router.close()
        self._context.term()

    def _receive(self) -> None:
        for _ in range(_REQUESTS_A_TURN):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3:
                _log.warning(f"a control request of {len(frames)} frames was dropped, it has to have 3")
                continue
            self._handle(*frames)

    def _handle(self, identity: bytes, number: bytes, body: bytes) -> None:
        answered = False

        def answer(message: Control) -> None:
            nonlocal answered
            if answered or self._router.closed:
                return
            answered = True
            try:
                self._router.send_multipart([identity, number, encode(message)], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                _log.debug(f"a command did not wait for its answer: {error}")

        try:
            self._handler(decode_request(body), answer)
        except msgspec.DecodeError as error:
            answer(Refused(error="UsageError", message=f"the daemon does not know this request: {error}"))
        except CompactdError as error:
            answer(refused(error))
        except Exception as error:
            answer(Refused(error=type(error).__name__, message=f"a bug: {error}"))
            raise


def refused(error: CompactdError) -> Refused:
    """An error as it travels."""
    fields = {name: str(value) for name, value in error.fields.items()}
    return Refused(error=type(error).__name__, message=str(error), fields=fields)


class RemoteError(CompactdError):
    """{message}"""


def raised(answer: Refused) -> CompactdError:
    """The error that the daemon met, of its own class where the fields tell all of its message."""
    kind = getattr(errors, answer.error, None)
    if isinstance(kind, type) and issubclass(kind, CompactdError):
        try:
            return kind(**answer.fields)
        except (KeyError, ValueError, IndexError):
            pass
    return RemoteError(message=answer.message)


class ControlClient:
    """A command's connection to a running daemon. Use as a context manager."""

    def __init__(self, run_dir: Path) -> None:
        """NotRunningError when nobody holds the run directory."""
        self.run_dir = run_dir
        #: The coordinator's process id.
        self.pid = check_running(run_dir)
        self._numbers = 0
        self._context = zmq.Context(io_threads=1)
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
        self._dealer.connect(f"ipc://{run_dir / CONTROL_SOCKET}")

    def ask(self, request: Control, seconds: float = 10.0) -> Answer:
        """The answer, Refused raised as the error that it stands for. NoAnswerError, NotRunningError."""
        self._numbers += 1
        number = str(self._numbers).encode()
        self._dealer.send_multipart([number, encode(request)])
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._dealer.poll(math.ceil(min(left, 0.5) * 1000)):
                check_running(self.run_dir)
                continue
            echoed, body = self._dealer.recv_multipart()
            if echoed != number:
                continue
            answer = decode_answer(body)
            if isinstance(answer, Refused):
                raise raised(answer)
            return answer
        raise NoAnswerError(path=self.run_dir, seconds=f"{seconds:.0f}")

    def close(self) -> None:
        self._dealer.close()
        self._context.term()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
