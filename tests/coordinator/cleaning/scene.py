"""The cleaning side over a frame of the test, with cleaners and an owner that the test speaks for."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

from compactd.coordinator.cleaning.pauses import Pauses
from compactd.coordinator.cleaning.quarantine import Quarantine
from compactd.coordinator.cleaning.scheduler import CleaningScheduler
from compactd.coordinator.control.messages import Control
from compactd.coordinator.interfaces import WorkerId
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import (
    CleanDone,
    CleanJob,
    PrepareClean,
    SegmentSource,
)
from compactd.workers.message import Message
from compactd.workers.partition_messages import PartitionState, SegmentState
from tests.coordinator.frames import START_MS, FakeFrame
from tests.logs import settings

FIRST, SECOND = WorkerId("cleaner", 0), WorkerId("cleaner", 1)
A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
Usage = namedtuple("Usage", "free")


class Scene:
    """Compacted partitions, cleaners, an owner that prepares jobs from the states of the frame."""

    def __init__(self, directory: Path, **cleaner: object) -> None:
        self.dirs = [directory / "d1", directory / "d2"]
        for path in self.dirs:
            path.mkdir(exist_ok=True)
        self.frame = FakeFrame(self.dirs, **cleaner)
        self.frame.replies[PrepareClean] = self.prepared
        self.frame.up["cleaner"] = [FIRST]
        self.make()

    def make(self) -> None:
        self.quarantine = Quarantine(self.dirs[0])
        self.pauses = Pauses(self.dirs[0])
        self.cleaning = CleaningScheduler(self.frame, self.quarantine, self.pauses)

    def partition(
        self, name: TopicPartition, clean: int = 0, dirty: int = 10, log_dir: int = 0, **config: object
    ) -> None:
        """Closed segments of 100 bytes and ten records each: `clean` that were cleaned, `dirty` that were not."""
        self.frame.configs[name.topic] = settings(**config)
        path = self.dirs[log_dir]
        self.frame.states[name] = self.state(name, clean + dirty, path)
        checkpoint = OffsetCheckpoint(path / CLEANER_OFFSETS)
        checkpoint.write({**checkpoint.read(), name: clean * 10})

    def state(self, name: TopicPartition, closed: int, path: Path, **fields: object) -> PartitionState:
        given: dict[str, object] = {
            "topic": name.topic,
            "partition": name.partition,
            "log_dir": str(path),
            "log_start_offset": 0,
            "log_end_offset": closed * 10 + 5,
            "high_watermark": closed * 10 + 5,
            "last_stable_offset": closed * 10 + 5,
            "recovery_point": 0,
            "active_base_offset": closed * 10,
            "active_size": 50,
            "active_largest_timestamp": START_MS,
            "closed": tuple(
                SegmentState(
                    base_offset=number * 10,
                    size=100,
                    largest_timestamp=START_MS - 3_600_000,
                    first_batch_timestamp=START_MS - 3_600_000,
                )
                for number in range(closed)
            ),
        }
        return PartitionState(**{**given, **fields})  # type: ignore[arg-type]

    def prepared(self, request: PrepareClean) -> Message:
        name = TopicPartition(request.topic, request.partition)
        state = self.frame.states[name]
        end = state.log_end_offset if request.roll else state.active_base_offset
        closed = [(segment.base_offset, segment.size) for segment in state.closed]
        if request.roll:
            closed.append((state.active_base_offset, state.active_size))
        return CleanJob(
            request_id=request.request_id,
            topic=request.topic,
            partition=request.partition,
            directory=f"{state.log_dir}/{name}",
            config=self.frame.configs[name.topic],
            segments=tuple(SegmentSource(base_offset=base, size=size, last_modified_ms=0) for base, size in closed),
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            last_stable_offset=state.last_stable_offset,
            first_dirty_offset=state.log_start_offset,
            first_uncleanable_offset=end,
            active_producers=(),
            now_ms=self.frame.clock.now,
            map_memory_bytes=0,
            map_load_factor=0.9,
            active_base_offset=end,
        )

    def start(self) -> Scene:
        self.cleaning.start()
        self.frame.run()
        return self

    def jobs(self, cleaner: WorkerId | None = None) -> list[str]:
        """What cleaners were given, in order."""
        return [f"{job.topic}-{job.partition}" for job in self.frame.of(CleanJob, cleaner)]

    @property
    def job(self) -> CleanJob:
        return self.frame.of(CleanJob)[-1]

    def tell(self, message: Message, worker: WorkerId = FIRST) -> None:
        self.cleaning.received(worker, message)
        self.frame.run()

    def done(
        self, job: CleanJob | None = None, outcome: str = "cleaned", worker: WorkerId = FIRST, **more: object
    ) -> None:
        """The cleaner ends a job; the owner tells what the log is like then."""
        job = job or self.job
        end = job.first_uncleanable_offset if outcome == "cleaned" else -1
        given: dict[str, object] = {"request_id": job.request_id, "next_dirty_offset": end, "outcome": outcome}
        self.tell(CleanDone(**{**given, **more}), worker)  # type: ignore[arg-type]

    def faulty(self, job: CleanJob | None = None, worker: WorkerId = FIRST) -> None:
        fields = {"error": "CorruptBatchError", "path": "/d1/a-0/0.log", "position": "61"}
        self.done(job, "faulty", worker, reason="a batch is damaged", fields=fields)

    def checkpoint(self, log_dir: int = 0) -> dict[str, int]:
        entries = OffsetCheckpoint(self.dirs[log_dir] / CLEANER_OFFSETS).read()
        return {str(name): offset for name, offset in entries.items()}

    def ask(self, request: Control) -> Control:
        answers: list[Control] = []
        self.cleaning.control(request, answers.append)
        self.frame.run()
        self.frame.pass_time(1000)
        (answer,) = answers
        return answer

    def blocked(self, name: TopicPartition) -> str:
        (found,) = [each for each in self.cleaning.status(True).partitions if each.name == str(name)]
        return found.blocked_by
