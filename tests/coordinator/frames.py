"""A daemon's frame for tests of one part: time moves when the test says so, workers are lists of what they were sent."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig
from compactd.coordinator.interfaces import Settings, WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers.clock import Clock
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import PartitionState

T = TypeVar("T")
_M = TypeVar("_M", bound=Message)

START_MS = 1_700_000_000_000
BROKER = WorkerId("broker", 0)


class MovedClock(Clock):
    def __init__(self) -> None:
        self.now = START_MS

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class FakeTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeFrame:
    """Fills coordinator.interfaces.Frame. `run` does what is due now, `pass_time` moves the clock and does what comes due."""

    def __init__(self, log_dirs: Sequence[Path], **cleaner: object) -> None:
        self.clock = MovedClock()
        self.settings = Settings(
            storage=StorageConfig.from_strings({"log.dirs": ",".join(map(str, log_dirs))}),
            cleaner=CleanerConfig.from_strings({f"log.cleaner.{name}": value for name, value in cleaner.items()}),
            daemon=DaemonConfig.from_strings({}),
        )
        self.dirs = list(log_dirs)
        self.states: dict[TopicPartition, PartitionState] = {}
        self.configs: dict[str, TopicConfig] = {}
        self.up: dict[str, list[WorkerId]] = defaultdict(list)
        self.up["broker"] = [BROKER]
        self.owners: dict[TopicPartition, WorkerId | None] = {}
        self.sent: list[tuple[WorkerId, Message]] = []
        self.restarted: list[tuple[WorkerId, str]] = []
        self.deleted: list[tuple[tuple[str, ...], int]] = []
        self.kept: list[str] = []
        self.failed_dirs: list[tuple[str, str]] = []
        #: What an owner answers, by class of the request; None: nothing, yet.
        self.replies: dict[type[Message], Callable[[Any], Message | None]] = {}
        #: Requests that are not answered yet, with what waits for the answer.
        self.open: dict[int, tuple[WorkerId, Callable[[Message], None]]] = {}
        #: Work of lanes fails with this.
        self.lane_error: Exception | None = None
        self._ids = itertools.count(1)
        self._timers: list[tuple[float, int, FakeTimer, Callable[[], None], float | None]] = []
        self._order = itertools.count()

    # ---- Frame

    def topic_config(self, topic: str) -> TopicConfig:
        return self.configs[topic]

    def owner_of(self, partition: TopicPartition) -> WorkerId | None:
        return self.owners.get(partition, BROKER)

    def online_log_dirs(self) -> Sequence[Path]:
        return self.dirs

    def workers(self, kind: str) -> Sequence[WorkerId]:
        return self.up[kind]

    def send(self, worker: WorkerId, message: Message) -> bool:
        if worker not in self.up[worker.kind]:
            return False
        self.sent.append((worker, message))
        return True

    def restart_worker(self, worker: WorkerId, reason: str) -> None:
        self.restarted.append((worker, reason))

    def next_request_id(self) -> int:
        return next(self._ids)

    def ask(
        self, worker: WorkerId, request: Message, answered: Callable[[Message], None], timeout_ms: int | None = None
    ) -> None:
        self.sent.append((worker, request))
        request_id: int = request.request_id  # type: ignore[attr-defined]
        self.open[request_id] = worker, answered
        reply = self.replies.get(type(request), lambda _: None)(request)
        if reply is not None:
            self.call_later(0, lambda: self.answer(request_id, reply))

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        self.deleted.append((tuple(paths), delay_ms))

    def keep_files(self, paths: Sequence[str]) -> None:
        self.kept += paths

    def log_dir_failed(self, log_dir: str, reason: str) -> None:
        self.failed_dirs.append((log_dir, reason))

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> FakeTimer:
        return self._plan(delay_ms, call, None)

    def every(self, period_ms: float, call: Callable[[], None], first_ms: float | None = None) -> FakeTimer:
        return self._plan(period_ms if first_ms is None else first_ms, call, period_ms)

    def in_lane(
        self, lane: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        def run() -> None:
            if self.lane_error is not None:
                failed(self.lane_error)
            else:
                done(work())

        self.call_later(0, run)

    # ---- for tests

    def answer(self, request_id: int, message: Message) -> None:
        """An answer to a request that waits for one."""
        self.open.pop(request_id)[1](message)

    def worker_gone(self, worker: WorkerId) -> None:
        """It isn't there any more, and whoever waits for it hears so."""
        self.up[worker.kind].remove(worker)
        for request_id, (asked, answered) in list(self.open.items()):
            if asked == worker:
                del self.open[request_id]
                answered(Failed(request_id=request_id, error="WorkerGone", message=f"{worker} is gone"))

    def run(self) -> None:
        self.pass_time(0)

    def pass_time(self, milliseconds: int) -> None:
        end = self.clock.now + milliseconds
        for _ in range(10_000):
            if not self._timers or self._timers[0][0] > end:
                self.clock.now = end
                return
            at, _, timer, call, period = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self.clock.now = max(self.clock.now, int(at))
            if period is not None:
                heapq.heappush(self._timers, (at + period, next(self._order), timer, call, period))
            call()
        raise AssertionError("it never comes to rest")

    def of(self, kind: type[_M], worker: WorkerId | None = None) -> list[_M]:
        """What was sent of a kind, to a worker or anybody."""
        return [message for to, message in self.sent if isinstance(message, kind) and worker in (None, to)]

    def set_cleaner(self, **changes: object) -> None:
        self.settings = Settings(
            storage=self.settings.storage,
            cleaner=msgspec.structs.replace(self.settings.cleaner, **changes),
            daemon=self.settings.daemon,
        )

    def _plan(self, delay_ms: float, call: Callable[[], None], period: float | None) -> FakeTimer:
        timer = FakeTimer()
        heapq.heappush(self._timers, (self.clock.now + delay_ms, next(self._order), timer, call, period))
        return timer
