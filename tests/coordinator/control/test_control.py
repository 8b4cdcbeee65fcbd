from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from compactd.config.errors import CompactdError, LogDirLockedError, NoAnswerError, NotRunningError
from compactd.coordinator.control.messages import (
    CleanNow,
    Control,
    Done,
    GetStatus,
    Pause,
    Refused,
    Request,
    decode_answer,
    decode_request,
    encode,
)
from compactd.coordinator.control.socket import ControlClient, ControlServer, Handler, RemoteError, raised, refused
from compactd.coordinator.loop import Loop
from compactd.coordinator.run_dir import RunDir


@contextmanager
def serving(directory: Path, handler: Handler) -> Iterator[Path]:
    """A control socket whose loop runs in a thread of its own."""
    with RunDir(directory / "run", []) as held:
        loop = Loop()
        server = ControlServer(loop, held.control_socket, handler)
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            yield held.path
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            server.close()
            loop.close()


def test_requests_are_answered_refused_or_explained(fast_dir: Path) -> None:
    def handle(request: Request, answer: Callable[[Control], None]) -> None:
        if isinstance(request, CleanNow):
            answer(Done(lines=request.names))
            answer(Done(lines=("twice",)))
        elif isinstance(request, Pause):
            raise LogDirLockedError(path="/data")
        else:
            raise ZeroDivisionError("bug")

    with serving(fast_dir, handle) as path, ControlClient(path) as client:
        assert client.ask(CleanNow(names=("a", "b"))) == Done(lines=("a", "b"))
        with pytest.raises(LogDirLockedError, match="/data"):
            client.ask(Pause())
        with pytest.raises(RemoteError, match="a bug: bug"):
            client.ask(GetStatus())
        # A late second answer to an earlier request is not taken for this one's.
        assert client.ask(CleanNow(names=())) == Done()


def test_what_is_no_request_is_refused(fast_dir: Path) -> None:
    with serving(fast_dir, lambda request, answer: answer(Done())) as path, ControlClient(path) as client:
        client._dealer.send_multipart([b"only one"])
        with pytest.raises(RemoteError, match="does not know this request"):
            client.ask(Done())
        assert client.ask(GetStatus()) == Done()


def test_nobody_there_and_no_answer(fast_dir: Path) -> None:
    with pytest.raises(NotRunningError, match="compactd serve"):
        ControlClient(fast_dir)
    with (
        serving(fast_dir, lambda request, answer: None) as path,
        ControlClient(path) as client,
        pytest.raises(NoAnswerError, match="within 0 s"),
    ):
        client.ask(GetStatus(), seconds=0.05)


def test_frames_are_decoded_strictly() -> None:
    assert decode_request(encode(CleanNow(names=("x",)))) == CleanNow(names=("x",))
    for frame in (b"", b"\x80", encode(Done()), encode(CleanNow(names=("x",)))[:-1]):
        with pytest.raises(msgspec.DecodeError):
            decode_request(frame)
    with pytest.raises(msgspec.DecodeError):
        decode_answer(encode(GetStatus()))


def test_errors_keep_their_class_over_the_socket() -> None:
    error = raised(refused(LogDirLockedError(path="/x")))
    assert isinstance(error, LogDirLockedError)
    assert isinstance(raised(Refused(error="LogDirLockedError", message="fields are missing")), RemoteError)
    for name in ("Exception", "EXIT_IO", "no.such"):
        assert str(raised(Refused(error=name, message="text {braces}"))) == "text {braces}"
    assert isinstance(raised(Refused(error="x", message="y")), CompactdError)
