"""One clean that is under way: which cleaner has it, what it told, what the owner swapped in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from compactd.coordinator.control.messages import JobStatus
from compactd.coordinator.interfaces import WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import CleanJob, CleanProgress

_RATE_SECONDS = 10.0


@dataclass(slots=True)
class Job:
    """Leased to `cleaner` until it says CleanDone, or is gone."""

    partition: TopicPartition
    cleaner: WorkerId
    owner: WorkerId
    request_id: int
    log_dir: str
    #: Asked for by a person: whatever the ratio.
    forced: bool
    #: None while the owner prepares it.
    job: CleanJob | None = None
    heard: float = 0.0
    swapping: bool = False
    #: Why it was told to stop; "": it wasn't.
    aborting: str = ""
    #: The partition is not there any more: whatever comes of the job is nobody's.
    gone: bool = False
    progress: CleanProgress | None = None
    #: (monotonic, bytes, records) of the last seconds.
    _samples: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=64))
    #: Files that its swaps left as `.deleted`.
    deleted: list[str] = field(default_factory=list)

    @property
    def bytes_total(self) -> int:
        """Roughly what it reads: the dirty part twice, the clean part twice as well (checked, then copied)."""
        return 2 * sum(source.size for source in self.job.segments) if self.job is not None else 0

    def told(self, progress: CleanProgress, now: float) -> None:
        self.progress, self.heard = progress, now
        self._samples.append((now, progress.bytes_read + progress.bytes_written, progress.records_read))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_SECONDS:
            self._samples.popleft()

    def status(self) -> JobStatus:
        progress = self.progress
        if progress is None:
            return JobStatus(
                partition=str(self.partition), worker=str(self.cleaner), phase="starting", bytes_total=self.bytes_total,
                bytes_read=0, bytes_written=0, records_read=0, bytes_per_second=0.0, records_per_second=0.0, map_fill=0.0,
            )  # fmt: skip
        seconds = self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0
        moved = self._samples[-1][1] - self._samples[0][1] if seconds else 0
        records = self._samples[-1][2] - self._samples[0][2] if seconds else 0
        read_rate = moved / seconds if seconds else 0.0
        left = max(0, self.bytes_total - progress.bytes_read)
        return JobStatus(
            partition=str(self.partition),
            worker=str(self.cleaner),
            phase=progress.phase,
            bytes_total=self.bytes_total,
            bytes_read=progress.bytes_read,
            bytes_written=progress.bytes_written,
            records_read=progress.records_read,
            bytes_per_second=read_rate,
            records_per_second=records / seconds if seconds else 0.0,
            map_fill=progress.map_entries / progress.map_capacity if progress.map_capacity else 0.0,
            seconds_left=left / read_rate if read_rate else None,
        )
