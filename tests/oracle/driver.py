"""Apache Kafka 4.4.0's own log layer, driven over a pipe: one JVM, a JSON object a request (kafka/README.md).

Nothing here compares anything: the tests beside it do.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

SCRIPT = Path(__file__).parent / "kafka" / "oracle"

Answer = dict[str, Any]


class OracleError(Exception):
    """Kafka answered with an exception: `kind` is its class's simple name."""

    def __init__(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        self.kind: str = answer["error"]
        self.message: str = answer["message"]
        self.cause: str | None = answer.get("cause")
        super().__init__(
            f"{request.get('op')}: {self.kind}: {self.message}" + (f" ({self.cause})" if self.cause else "")
        )


class OracleDiedError(Exception):
    """The JVM ended or did not answer in time."""


def why_not() -> str | None:
    """What keeps the oracle from running on this machine, or None."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not on the PATH; the oracle needs a JDK 17 or newer and Maven"
    found = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False)
    match = re.search(r"javac (\d+)", found.stdout + found.stderr)
    if match is None or int(match[1]) < 17:
        return f"JDK 17 or newer is needed, javac says {(found.stdout + found.stderr).strip()!r}"
    return None


def build() -> str:
    """Builds the oracle if need be; the classpath that runs it, a broker and Kafka's tools."""
    done = subprocess.run([str(SCRIPT), "--classpath"], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise OracleDiedError(f"the oracle could not be built: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Oracle:
    """One JVM. Requests that name no `id` go to the log "0"; `now` sets the clock (ms) for this request and those after."""

    def __init__(self, *, heap: str = "512m", timeout: float = 120.0) -> None:
        self.timeout = timeout
        self._heap = heap
        self._start()

    def _start(self) -> None:
        self._rest = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in shut_down()
        environment = {**os.environ, "COMPACTD_ORACLE_HEAP": self._heap}
        self._process = subprocess.Popen(
            [str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut_down()

    @property
    def pid(self) -> int:
        return self._process.pid

    def shut_down(self) -> None:
        """Ends the JVM. (`close` closes a log.)"""
        self._in.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._stderr.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def revive(self) -> None:
        """Another JVM in the place of one that a test ended or gave up on."""
        if not self.is_running:
            self.shut_down()
            self._start()

    def request(self, op: str, **fields: Any) -> Answer:
        """The answer to one request. Raises OracleError with Kafka's exception, OracleDiedError."""
        asked = {"op": op, **fields}
        answer = self._exchange(asked)
        if "error" in answer:
            raise OracleError(asked, answer)
        return answer

    def many(self, requests: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Several requests in one line; an answer each, where an answer may hold "error" and "message"."""
        answers: list[Answer] = self._exchange({"op": "many", "requests": list(requests)})["answers"]
        return answers

    def _exchange(self, asked: Mapping[str, Any]) -> Answer:
        try:
            return self._answer_to(asked)
        except BaseException:
            # Its answer, should it come, is not to be taken for that to the next request.
            self._process.kill()
            self._process.wait()
            raise

    def _answer_to(self, asked: Mapping[str, Any]) -> Answer:
        try:
            self._in.write(json.dumps(asked, separators=(",", ":")).encode() + b"\n")
        except BrokenPipeError:
            raise self._died("ended") from None
        deadline = time.monotonic() + self.timeout
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise self._died(f"did not answer within {self.timeout:.0f} s to {asked.get('op')}")
            data = os.read(self._out.fileno(), 1 << 20)
            if not data:
                raise self._died("ended")
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        answer: Answer = json.loads(line)
        return answer

    def _died(self, how: str) -> OracleDiedError:
        self._process.kill()
        self._process.wait()
        self._stderr.seek(0)
        return OracleDiedError(
            f"the oracle's JVM {how}: {self._stderr.read()[-4000:].decode(errors='replace').strip()}"
        )

    # One partition. Every method takes `id` (which log, "0" unless given) and `now`.

    def open(self, path: Path | str, config: Mapping[str, object] | None = None, **fields: Any) -> Answer:
        """Loads or creates a partition; its state.

        Fields: cleanShutdown, logStartOffset, recoveryPoint, highWatermark, producerExpirationMs.
        """
        return self.request("open", dir=str(path), config=topic_settings(config), **fields)

    def close(self, **fields: Any) -> None:
        """Closes a log as an orderly shutdown of the broker does."""
        self.request("close", **fields)

    def abandon(self, **fields: Any) -> None:
        """Lets go of a log's files as they are, as a crash does."""
        self.request("abandon", **fields)

    def config(self, config: Mapping[str, object], **fields: Any) -> None:
        self.request("config", config=topic_settings(config), **fields)

    def append(self, records: Sequence[Mapping[str, Any]], **fields: Any) -> Answer:
        """One batch: codec, magic, pid, epoch, seq, txn, leaderEpoch, logAppendTime, gap. Records from `record`."""
        return self.request("append", records=list(records), **fields)

    def append_raw(self, batches: bytes, **fields: Any) -> Answer:
        """Batches as they are, offsets included, as a follower appends them."""
        return self.request("appendRaw", bytes=encode(batches), **fields)

    def control(self, kind: str, pid: int, **fields: Any) -> Answer:
        """A "commit" or "abort" marker: epoch, ts, coordinatorEpoch, leaderEpoch."""
        return self.request("control", type=kind, pid=pid, **fields)

    def roll(self, **fields: Any) -> Answer:
        return self.request("roll", **fields)

    def high_watermark(self, offset: int | None = None, **fields: Any) -> Answer:
        """Sets it and keeps appends from moving it; None: it is the log end offset again, and follows it."""
        return self.request("highWatermark", offset=offset, **fields)

    def start_offset(self, offset: int, **fields: Any) -> Answer:
        return self.request("startOffset", offset=offset, **fields)

    def truncate(self, offset: int, **fields: Any) -> Answer:
        return self.request("truncate", offset=offset, **fields)

    def expire_producers(self, **fields: Any) -> None:
        self.request("expireProducers", **fields)

    def cleanable(self, checkpoint: int | None = None, **fields: Any) -> Answer:
        return self.request("cleanable", checkpoint=checkpoint, **fields)

    def clean(self, **fields: Any) -> Answer:
        """One round of Kafka's Cleaner: first, uncleanable, dedupe (bytes), loadFactor, ioBuffer, maxMessage."""
        return self.request("clean", **fields)

    def retain(self, **fields: Any) -> Answer:
        return self.request("retain", **fields)

    def run_delayed(self, **fields: Any) -> int:
        """Removes what waits as .deleted; the number of tasks run."""
        ran: int = self.request("runDelayed", **fields)["ran"]
        return ran

    def state(self, **fields: Any) -> Answer:
        return self.request("state", **fields)

    def producers(self, **fields: Any) -> Answer:
        return self.request("producers", **fields)

    def dump(self, **fields: Any) -> list[Answer]:
        """Every batch with its records, CRCs checked by Kafka."""
        batches: list[Answer] = self.request("dump", **fields)["batches"]
        return batches

    def reset(self) -> None:
        """Abandons every open log and manager."""
        self.request("reset")


def topic_settings(config: Mapping[str, object] | None) -> dict[str, str]:
    """Topic settings as Kafka reads them: true and false in small letters, the rest as text."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (config or {}).items()
    }


def record(
    key: bytes | None,
    value: bytes | None,
    ts: int | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    skip: int = 0,
) -> Answer:
    """A record of an append request. skip: offsets left out before it, which a follower's append (with "gap") keeps."""
    made: Answer = {"key": encode(key), "value": encode(value)}
    if ts is not None:
        made["ts"] = ts
    if headers:
        made["headers"] = [[name, encode(content)] for name, content in headers]
    if skip:
        made["skip"] = skip
    return made
