"""Kafka's command-line tools, run inside the oracle's JVM: no start of a JVM a call."""

from __future__ import annotations

from dataclasses import dataclass

from tests.integration.clients.interface import SECONDS
from tests.integration.servers import Server
from tests.oracle.driver import Oracle


@dataclass(frozen=True)
class Run:
    """What a tool printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Tool:
    """A tool that was started and may run on."""

    def __init__(self, oracle: Oracle, handle: str) -> None:
        self._oracle, self._handle = oracle, handle

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._oracle.request("interruptTool", handle=self._handle)

    def said(self, seconds: float = 0.0) -> str:
        """What it has printed so far; waits so long for its end."""
        out: str = self._oracle.request("awaitTool", handle=self._handle, timeoutMs=int(seconds * 1000))["out"]
        return out

    def result(self, seconds: float = SECONDS) -> Run:
        """Waits for its end."""
        answer = self._oracle.request("awaitTool", handle=self._handle, timeoutMs=int(seconds * 1000))
        assert answer["ended"], f"it runs on: {answer['out'][-2000:]} {answer['err'][-2000:]}"
        return Run(answer["code"], answer["out"], answer["err"])


class Tools:
    """`tools.run(server, "TopicCommand", "--list")`: classes of org.apache.kafka.tools."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def start(self, server: Server | None, name: str, *arguments: str, given: str = "") -> Tool:
        """Without waiting for its end."""
        where = () if server is None else ("--bootstrap-server", server.bootstrap)
        handle = self._oracle.request(
            "startTool", name=f"org.apache.kafka.tools.{name}", arguments=[*where, *arguments], input=given
        )["handle"]
        return Tool(self._oracle, handle)

    def ran(self, server: Server | None, name: str, *arguments: str, given: str = "") -> Run:
        """To its end, which may be bad."""
        return self.start(server, name, *arguments, given=given).result()

    def run(self, server: Server | None, name: str, *arguments: str, given: str = "") -> str:
        """What it printed; it has to succeed."""
        done = self.ran(server, name, *arguments, given=given)
        assert done.code == 0, done.err + done.out
        return done.out
