"""A daemon that a command starts for itself, in a directory of its own: `compactd stress` and `compactd bench serve`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import yaml

from compactd.config.errors import CompactdError, UsageError
from compactd.coordinator.control.messages import CatalogueAnswer, ChangeCatalogue, Control, GetStatus, Status
from compactd.coordinator.control.socket import ControlClient
from compactd.coordinator.run_dir import find_run_dir
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, TopicResults, results_of, to_raw

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LINE = re.compile(r"compactd serves Kafka clients at (.*)")


class OwnDaemonError(CompactdError):
    """The daemon that this command started {what}; its log is {log}."""


class OwnDaemon:
    """`with OwnDaemon(directory, settings) as daemon:` serves until the block ends, and is stopped in good order."""

    def __init__(self, directory: Path, settings: Mapping[str, object], log_dirs: int = 1) -> None:
        """`directory` is made where it isn't there; log dirs d1, d2... of earlier starts in it are used again."""
        self.directory = directory
        self.log = directory / "log"
        self.log_dirs = [directory / f"d{number + 1}" for number in range(log_dirs)]
        self._config = directory / "compactd.yaml"
        self._settings = {
            "log.dirs": [str(path) for path in self.log_dirs],
            "listeners": "PLAINTEXT://127.0.0.1:0",
            **settings,
        }
        #: HOST:PORT of its brokers, with commas.
        self.bootstrap = ""
        #: Seconds from its start until it said that it serves.
        self.start_seconds = 0.0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> OwnDaemon:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(yaml.safe_dump(self._settings), "utf-8")
        begun = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "compactd.scripts", "serve", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        late = threading.Timer(_START_SECONDS, self._process.kill)
        late.start()
        try:
            for line in self._process.stdout:
                if (found := _LINE.match(line)) is not None:
                    self.bootstrap = found[1].replace(" ", "")
                    break
        finally:
            late.cancel()
        self.start_seconds = time.monotonic() - begun
        if not self.bootstrap:
            self._end()
            raise OwnDaemonError(what="did not start", log=self.log)
        # Not in `directory`, whose path may be too long for a socket's.
        self._control = ControlClient(find_run_dir("", tuple(map(str, self.log_dirs))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        code = self._end()
        if code != 0 and kind is None:
            raise OwnDaemonError(what=f"ended with code {code}", log=self.log)

    def _end(self) -> int:
        process = self._process
        assert process is not None and process.stdout is not None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        # What it still says must not fill the pipe and hold it up.
        late = threading.Timer(_STOP_SECONDS, process.kill)
        late.start()
        process.stdout.read()
        code = process.wait()
        late.cancel()
        process.stdout.close()
        return code

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pids(self) -> list[int]:
        """The coordinator and its workers."""
        return [self.pid, *(worker.pid for worker in self.status().workers if worker.pid is not None)]

    def ask(self, request: Control, seconds: float = 60.0) -> Control:
        """An answer of the control socket; what was refused is raised."""
        return self._control.ask(request, seconds)

    def status(self, all_partitions: bool = False) -> Status:
        answer = self.ask(GetStatus(all_partitions=all_partitions))
        assert isinstance(answer, Status)
        return answer

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """UsageError with what was refused first."""
        request = ChangeCatalogue(operation="create_topics", arguments=to_raw(CreateTopics(topics=tuple(topics))))
        answer = self.ask(request, 300)
        assert isinstance(answer, CatalogueAnswer)
        results = results_of("create_topics", answer.results)
        assert isinstance(results, TopicResults)
        for result in results.results:
            if result.error:
                raise UsageError(detail=f"topic {result.name} was not created: {result.message or result.error}")
