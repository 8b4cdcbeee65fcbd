"""A supervisor with fake workers in real processes, for tests: the test's thread is the coordinator's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from compactd.config.settings import DaemonConfig
from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.loop import Loop
from compactd.coordinator.processes.supervisor import Supervisor
from compactd.coordinator.run_dir import RunDir
from compactd.workers.message import Message
from compactd.workers.messages import Welcome

FAKE_WORKER = Path(__file__).parent.parent / "workers" / "fake_worker.py"
#: Nothing here takes as long; on a busy machine everything takes longer than one thinks.
PATIENCE_SECONDS = 60.0


def fake_command(worker: WorkerId, run_dir: Path) -> list[str]:
    return [sys.executable, str(FAKE_WORKER), worker.kind, str(worker.number), str(run_dir)]


class Harness:
    """Also the supervisor's listener: remembers what it is told."""

    def __init__(self, directory: Path, silence_ms: int = 30_000, **settings: int) -> None:
        self.loop = Loop()
        self.config = DaemonConfig(**{"worker_heartbeat_ms": 50, "worker_stop_timeout_ms": 30_000, **settings})  # type: ignore[arg-type]
        self.silence_ms = silence_ms
        self.run_dir = RunDir(directory / "run", [str(directory / "log")])
        self.ready: list[WorkerId] = []
        self.gone: list[tuple[WorkerId, str]] = []
        self.given_up: list[tuple[WorkerId, str]] = []
        self.messages: list[tuple[WorkerId, Message]] = []
        self.supervisor = Supervisor(
            self.loop,
            self.run_dir.path,
            self.run_dir.workers_socket,
            lambda: self.config,
            self,
            fake_command,
            {"COMPACTD_TEST_DIR": str(directory), "COMPACTD_LOG_FORMAT": "text"},
        )

    def welcome(self, worker: WorkerId) -> Welcome:
        return Welcome(settings={}, heartbeat_ms=self.config.worker_heartbeat_ms, silence_ms=self.silence_ms)

    def worker_ready(self, worker: WorkerId) -> None:
        self.ready.append(worker)

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        self.gone.append((worker, reason))

    def worker_given_up(self, worker: WorkerId, reason: str) -> None:
        self.given_up.append((worker, reason))

    def received(self, worker: WorkerId, message: Message) -> None:
        self.messages.append((worker, message))

    def start(self, kind: str) -> WorkerId:
        """Starts a worker and waits until it is ready."""
        worker = WorkerId(kind, 0)
        before = len(self.ready)
        self.supervisor.start(worker)
        self.until(lambda: len(self.ready) > before)
        return worker

    def until(self, condition: Callable[[], object]) -> None:
        """Runs the loop until it holds; the test fails when it never does."""
        if condition():
            return
        given_up = False

        def look() -> None:
            if condition():
                self.loop.stop()

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            self.loop.stop()

        timers = [self.loop.every(0.005, look), self.loop.call_later(PATIENCE_SECONDS, give_up)]
        self.loop.run()
        for timer in timers:
            timer.cancel()
        assert not given_up, f"it never came; gone: {self.gone}, given up: {self.given_up}"

    def pid(self, worker: WorkerId) -> int:
        (found,) = [each.pid for each in self.supervisor.status() if each.name == str(worker)]
        assert found is not None
        return found

    def state(self, worker: WorkerId) -> str:
        return next((each.state for each in self.supervisor.status() if each.name == str(worker)), "gone")

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.supervisor.close()
        self.loop.close()
        self.run_dir.close()
