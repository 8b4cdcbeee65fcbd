"""A daemon with fake workers and parts in a process of its own (fake_serve.py), and what a test does to it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import yaml

from compactd.coordinator.control.messages import (
    CatalogueAnswer,
    ChangeCatalogue,
    Control,
    GetStatus,
    Status,
    WorkerStatus,
)
from compactd.coordinator.control.socket import ControlClient
from compactd.workers.catalogue_messages import CreateTopics, DeleteTopics, NewTopic, Struct, to_raw

FAKE_SERVE = Path(__file__).parent / "fake_serve.py"
#: Nothing here takes as long.
PATIENCE_SECONDS = 90.0

T = TypeVar("T")


def until(ask: Callable[[], T], what: str = "it") -> T:
    """Asks again and again until the answer is true; the test fails when it never is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.02)
    return answer


class Serving:
    """The daemon in `directory`: log dirs d1 and d2, `told` with what workers and parts were told, in order."""

    def __init__(self, directory: Path, topics: str = "users:4", slow_stop: float = 0.0, **settings: object) -> None:
        self.directory = directory
        self.dirs = [directory / "d1", directory / "d2"]
        self.run_dir = directory / "run"
        self.config = directory / "compactd.yaml"
        self.settings: dict[str, object] = {
            "log.dirs": [str(path) for path in self.dirs],
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "run.dir": str(self.run_dir),
            "broker.workers": 2,
            "worker.heartbeat.ms": 50,
            "worker.stop.timeout.ms": 30_000,
            "log.initial.task.delay.ms": 0,
            "replica.high.watermark.checkpoint.interval.ms": 50,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.write()
        self.environment = {
            **os.environ,
            "COMPACTD_TEST_DIR": str(directory),
            "COMPACTD_TEST_TOPICS": topics,
            "COMPACTD_TEST_SLOW_STOP": str(slow_stop),
        }
        self.process: subprocess.Popen[str] | None = None

    # ---- its life

    def write(self, **changes: object) -> None:
        """Writes its configuration, with changes."""
        self.settings |= {name.replace("_", "."): value for name, value in changes.items()}
        self.config.write_text(yaml.safe_dump(self.settings))

    def spawn(self) -> subprocess.Popen[str]:
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(FAKE_SERVE), str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        return self.process

    def start_on_terminal(self) -> int:
        """As `start`, with a terminal of its own; the terminal's other end, which is to be closed."""
        ours, theirs = pty.openpty()
        # A terminal that the first process of a session opens becomes the session's own.
        opens_it = ["/bin/sh", "-c", 'exec "$@" <"$0"', os.ttyname(theirs)]
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                [*opens_it, sys.executable, str(FAKE_SERVE), str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        os.close(theirs)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n", self.log()
        return ours

    def start(self) -> Serving:
        """Until everything runs."""
        process = self.spawn()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "running\n", f"{line!r}\n{self.log()}"
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Exit code, and what it said on stdout since it ran."""
        assert self.process is not None
        said, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, said

    def stop(self) -> tuple[int, str]:
        self.signal(signal.SIGTERM)
        return self.ended()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        # Not our children: they end with the coordinator, and have to be gone before the directory goes.
        until(lambda: not self.survivors(), "the end of its workers")

    # ---- what is seen of it

    def told(self, who: str = "") -> list[str]:
        """What a worker or part was told, without its name; everything for an empty name."""
        path = self.directory / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{who} ") for line in lines if not who or line.startswith(f"{who} ")]

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ask(self, request: Control) -> Control:
        with ControlClient(self.run_dir) as client:
            return client.ask(request, PATIENCE_SECONDS)

    def status(self) -> Status:
        answer = self.ask(GetStatus())
        assert isinstance(answer, Status)
        return answer

    def worker(self, name: str) -> WorkerStatus:
        return next(worker for worker in self.status().workers if worker.name == name)

    def kill(self, name: str) -> None:
        """kill -9 of a worker; until another one is in its place."""
        until(lambda: self.worker(name).state == "running", name)
        before = self.worker(name)
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: (now := self.worker(name)).state == "running" and now.pid != before.pid, f"another {name}")

    def change(self, operation: str, arguments: Struct) -> None:
        answer = self.ask(ChangeCatalogue(operation=operation, arguments=to_raw(arguments)))
        assert isinstance(answer, CatalogueAnswer)

    def create(self, name: str, partitions: int) -> None:
        self.change("create_topics", CreateTopics(topics=(NewTopic(name=name, num_partitions=partitions),)))

    def delete(self, name: str) -> None:
        self.change("delete_topics", DeleteTopics(topics=((name, "A" * 22),)))

    def survivors(self) -> list[int]:
        """Living processes that were started with this run directory."""
        found = []
        wanted = str(self.run_dir).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found
