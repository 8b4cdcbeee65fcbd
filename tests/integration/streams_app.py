"""Instances of a real Kafka Streams application (tests/oracle/kafka/src/OracleStreamsApp.java), each a JVM of its own."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType

from tests.integration.servers import Server, until

_JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_MAIN = "org.apache.kafka.storage.internals.log.OracleStreamsApp"


class StreamsApp:
    """`with StreamsApp(...) as app:` starts it; it ends in order, unless it was killed."""

    def __init__(self, classpath: str, server: Server, home: Path, application: str, name: str, **more: object) -> None:
        """`more`: settings with underscores for dots."""
        home.mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "application.id": application,
            "client.id": name,
            "bootstrap.servers": server.bootstrap,
            "group.protocol": "streams",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": home / f"state-{name}",
            "num.stream.threads": 1,
            "commit.interval.ms": 100,
            "statestore.cache.max.bytes": 0,
            "auto.offset.reset": "earliest",
            "transaction.timeout.ms": 10_000,
        } | {key.replace("_", "."): value for key, value in more.items()}
        self._properties = home / f"{name}.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._log = home / f"{name}.log"
        self._classpath = classpath
        #: What it printed.
        self.lines: list[str] = []

    def __enter__(self) -> StreamsApp:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_JAVA, "-cp", self._classpath, _MAIN, str(self._properties)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None and kind is None:
            self.stop()
        else:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def run(self) -> None:
        """Waits until its threads have their tasks."""
        until(lambda: self._check() and "STATE RUNNING" in self.lines, f"{self._properties.stem} running")

    def _check(self) -> bool:
        alive = self._process.poll() is None
        assert alive and not any(line.startswith("FAILED") for line in self.lines), (self.lines, self.log()[-3000:])
        return True

    def log(self) -> str:
        """Its warnings."""
        return self._log.read_text(errors="replace")

    def tasks(self) -> tuple[int, int]:
        """How many it runs, and of how many it keeps a copy."""
        assert self._process.stdin is not None
        seen = len(self.lines)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        until(lambda: any(line.startswith("TASKS") for line in self.lines[seen:]), "its tasks")
        _, active, standby = next(line for line in self.lines[seen:] if line.startswith("TASKS")).split()
        return int(active), int(standby)

    def kill(self) -> None:
        """As a crash does."""
        self._process.kill()
        self._ended()

    def stop(self) -> None:
        """In order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=90)
        finally:
            self.kill()
        assert "CLOSED" in self.lines, (self.lines[-5:], self.log()[-3000:])

    def _ended(self) -> None:
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
