"""Apache Kafka's own log layer beside compactd: one JVM behind a pipe, from a source checkout (tests/oracle/kafka).

Requests and answers are JSON objects, one a line; the README beside the script lists them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from compactd.config.errors import CompactdError, RefusedError

#: In a source checkout; an installed package has no tests beside it.
SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "oracle" / "kafka" / "oracle"
#: The collector that is quickest for one cleaning thread; COMPACTD_ORACLE_JAVA_OPTS chooses another.
JAVA_OPTIONS = "-XX:+UseSerialGC"

#: Names of the JVM's threads that turn the cleaner into machine code.
_COMPILERS = ("C1 Compiler", "C2 Compiler")
_OLDEST_JAVA = 17
_ADVICE = "Install a JDK 17 or newer and Maven, and run this from a source checkout of compactd."
_LONGEST_ERROR = 2000


class KafkaFailedError(CompactdError):
    """Kafka's side of the benchmark failed at {operation}: {reason}."""


class Kafka:
    """The running JVM. Use as a context manager; `request` answers once the operation is done.

    `heap_bytes`: the JVM's -Xmx. RefusedError where there is no JDK, no Maven or no source checkout.
    """

    def __init__(self, heap_bytes: int, script: Path = SCRIPT) -> None:
        self.java_version = _java(script)
        self.java_options = f"-Xmx{heap_bytes >> 20}m {os.environ.get('COMPACTD_ORACLE_JAVA_OPTS', JAVA_OPTIONS)}"
        self.version = _kafka_version(_build(script))
        environment = {
            "COMPACTD_ORACLE_JAVA_OPTS": JAVA_OPTIONS,
            **os.environ,
            "COMPACTD_ORACLE_HEAP": f"{heap_bytes >> 20}m",
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment
        )

    def __enter__(self) -> Kafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        with suppress(BrokenPipeError):  # it died with a request unread
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def cpu_seconds(self) -> float | None:
        """CPU time that the JVM took so far, its compilers left out; None where the system doesn't tell (not Linux)."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        if not tasks.is_dir():
            return None
        total = 0
        for task in tasks.iterdir():
            with suppress(OSError):  # compilers come and go
                if not (task / "comm").read_text().startswith(_COMPILERS):
                    total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9 if total else None

    def request(self, operation: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request. KafkaFailedError with Kafka's exception, or with what a dying JVM said."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"op": operation, **fields}) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-_LONGEST_ERROR:]
            raise KafkaFailedError(
                operation=operation, reason=f"its JVM ended with code {self._process.returncode}: {said}"
            )
        answer: dict[str, Any] = msgspec.json.decode(line)
        if "error" in answer:
            raise KafkaFailedError(operation=operation, reason=f"{answer['error']}: {answer['message'].rstrip('.')}")
        return answer


def classpath(script: Path = SCRIPT) -> str:
    """Of Kafka's broker and tools; built at first use. RefusedError where there is no JDK, no Maven or no source checkout."""
    _java(script)
    return _build(script)


def _java(script: Path) -> str:
    """First line of `java -version`; refuses where the script cannot run."""
    if not script.is_file():
        raise RefusedError(path=script, reason="the program that runs Kafka's Cleaner isn't here", advice=_ADVICE)
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise RefusedError(
                path=script, reason=f"Kafka's Cleaner needs Java, and {tool} is not on the PATH", advice=_ADVICE
            )
    found = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    said = (found.stderr + found.stdout).strip()
    number = re.search(r'version "(\d+)', said)
    if number is None or int(number[1]) < _OLDEST_JAVA:
        first = said.partition("\n")[0] or "nothing"
        raise RefusedError(path=script, reason=f"Java {_OLDEST_JAVA} is needed and java says {first!r}", advice=_ADVICE)
    return said.partition("\n")[0]


def _build(script: Path) -> str:
    """Builds it if need be; its classpath."""
    done = subprocess.run([str(script), "--classpath"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-_LONGEST_ERROR:]
        raise RefusedError(
            path=script,
            reason=f"Kafka could not be fetched or built: {said}",
            advice="Maven needs Maven Central, or a filled local repository, once.",
        )
    return done.stdout.strip()


def _kafka_version(classpath: str) -> str:
    """From the names of Kafka's jars; "?" where none is found."""
    for entry in classpath.split(":"):
        for jar in sorted(Path(entry.removesuffix("*")).glob("kafka-clients-*.jar")):
            return jar.stem.removeprefix("kafka-clients-")
    return "?"
