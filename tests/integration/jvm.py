"""A program of Kafka's ecosystem in a JVM of its own: it can be killed, and started again."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.integration.servers import until

_JAVA = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
)  # fmt: skip


class Jvm:
    """`with Jvm(...) as program:` starts it; it is killed at the end, unless it has ended."""

    def __init__(self, classpath: str, main: str, home: Path, name: str, settings: Mapping[str, object]) -> None:
        """`main`: a class that takes the path of a properties file. It, and what the program says, are kept in `home`."""
        self.name = name
        properties = home / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._command = (*_JAVA, "-cp", classpath, main, str(properties))
        self._stderr = home / f"{name}.txt"
        #: What it printed.
        self.lines: list[str] = []

    def __enter__(self) -> Jvm:
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def check(self) -> None:
        """The test fails where it has ended."""
        assert self._process.poll() is None, f"{self.name}: {self.lines[-10:]} {self._said()}"

    def _said(self) -> str:
        return self._stderr.read_text(errors="replace")[-3000:]

    def told(self, start: str, after: int = 0) -> str:
        """Waits for a line with that start, of those that it printed after so many."""

        def found() -> str:
            self.check()
            return next((line for line in self.lines[after:] if line.startswith(start)), "")

        return until(found, f"{start} of {self.name}")

    def ask(self, start: str) -> str:
        """An empty line to its stdin; the answer, by its start."""
        assert self._process.stdin is not None
        before = len(self.lines)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.told(start, before)

    def kill(self) -> None:
        """As a crash does."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def stop(self) -> None:
        """In order: SIGTERM, and its stdin ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(90)

    def finish(self) -> None:
        """In order, for one that ends when its stdin does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(90) == 0, self._said()
