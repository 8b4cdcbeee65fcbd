"""franz-go, in a process of its own: ../franz/main.go at the other end of a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.clients import go_build
from tests.integration.clients.interface import GROUP_PROTOCOLS, SECONDS
from tests.integration.records import Message, Outcome, Record, Refused
from tests.integration.servers import Server

_SOURCE = Path(__file__).parent.parent / "franz"


def build() -> Path:
    """The program. CannotBuildError without Go or its modules."""
    return go_build.build(_SOURCE)


class Franz:
    """See interface.Client. `with Franz(build()) as franz:`."""

    name = "franz-go"
    group_protocols = GROUP_PROTOCOLS

    def sendable(self, message: Message) -> Message:
        return message

    def __init__(self, program: Path) -> None:
        self._program = program
        self._start()

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def __enter__(self) -> Franz:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut_down()

    def revive(self) -> None:
        """Another process in the place of one that a test gave up on."""
        if self._process.poll() is not None:
            self._shut_down()
            self._start()

    def _shut_down(self) -> None:
        self._in.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._stderr.close()

    def _ask(self, op: str, server: Server, topic: str, **fields: Any) -> dict[str, Any]:
        try:
            answer = self._answer_to({"op": op, "bootstrap": server.bootstrap, "topic": topic, **fields})
        except BaseException:
            # Its answer, should it come, is not to be taken for that to the next question.
            self._process.kill()
            self._process.wait()
            raise
        assert "error" not in answer, answer["error"]
        return answer

    def _answer_to(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._in.write(json.dumps(asked).encode() + b"\n")
        deadline = time.monotonic() + 2 * SECONDS
        parts = bytearray()
        while not parts.endswith(b"\n"):
            ready = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))[0]
            part = os.read(self._out.fileno(), 1 << 20) if ready else b""
            if not part:
                self._process.kill()
                self._stderr.seek(0)
                raise AssertionError(f"franz-go gave no answer to {asked['op']}: {self._stderr.read()[-2000:]!r}")
            parts += part
        answer: dict[str, Any] = json.loads(parts)
        return answer

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        answer = self._ask(
            "produce", server, topic, records=_records(messages), codec=codec, acks=acks, plain=not idempotent
        )
        # Without acks it makes offsets up.
        return [-1 if acks == 0 else outcome for outcome in _outcomes(answer)]

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        answer = self._ask(
            "produce", server, topic, records=_records(messages), codec="none", acks=-1,
            transactional_id=transactional_id, end="commit" if commit else "abort",
        )  # fmt: skip
        return _outcomes(answer)

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        return _found(self._ask("consume", server, topic, isolation=isolation))

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        return _found(self._ask("group", server, topic, group=group, count=count, server_side=protocol == "consumer"))

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        moved: int = self._ask(
            "transform", server, source, into=target, group=group, count=count,
            transactional_id=f"{group}-transform", end="commit" if commit else "abort",
        )["moved"]  # fmt: skip
        return moved

    def administrate(self, server: Server, topic: str, group: str) -> list[str]:
        """What kadm does and is told, a line a call: see ../franz/admin.go."""
        said: list[str] = self._ask("administrate", server, topic, group=group)["said"]
        return said


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _records(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {
            "partition": each.partition,
            "timestamp": each.timestamp or 0,
            "key": _encoded(each.key),
            "value": _encoded(each.value),
            "headers": [{"key": name, "value": _encoded(value)} for name, value in each.headers],
        }
        for each in messages
    ]


def _outcomes(answer: dict[str, Any]) -> list[Outcome]:
    return [each if isinstance(each, int) else Refused(each["code"]) for each in answer["offsets"]]


def _found(answer: dict[str, Any]) -> list[Record]:
    return [
        Record(
            each["partition"],
            each["offset"],
            each["timestamp"],
            _decoded(each["key"]),
            _decoded(each["value"]),
            tuple((header["key"], _decoded(header["value"])) for header in each["headers"]),
        )
        for each in answer["records"]
    ]
