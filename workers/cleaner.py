"""A cleaner process: takes one job at a time, writes `.cleaned` files, and hands each finished group to the log's owner.

Everything it reads is closed and immutable, everything it writes is its own until the owner has swapped it in. Killed at
any moment it costs the group it was writing.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from compactd.config.errors import CleaningAbortedError, CompactdError, StorageIOError
from compactd.storage import files
from compactd.storage.cleaning.round import CleanedGroup, CleaningRound, RoundOptions, add_stats
from compactd.storage.kernel import active_kernel
from compactd.storage.kernel.interface import ActiveProducer, CopyStats, Kernel
from compactd.storage.names import TopicPartition
from compactd.storage.partition import Partition
from compactd.storage.producers import ProducerState
from compactd.storage.segment import LogSegment
from compactd.storage.swap import drop_cleaned, drop_stale_cleaned
from compactd.workers.channel import Channel
from compactd.workers.cleaning_messages import (
    AbortClean,
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    GroupReady,
    GroupSwapped,
)
from compactd.workers.clock import Clock
from compactd.workers.io_pressure import IoPressure
from compactd.workers.message import Message
from compactd.workers.messages import Reconfigure, Stop, Stopped
from compactd.workers.throttle import Throttle

_log = logging.getLogger(__name__)

_UNLIMITED = 1.7976931348623157e308
_PROGRESS_SECONDS = 1.0
#: How often a cleaner that waits for a swap looks up.
_WAIT_SECONDS = 0.2


def run(channel: Channel, clock: Clock) -> Stopped | None:
    """The body: jobs until Stop."""
    Cleaner(channel, active_kernel()).run()
    return None


@dataclass(slots=True)
class LeasedPartition(Partition):
    """A partition as its owner described it in a job."""

    active: dict[int, ActiveProducer] = field(default_factory=dict)

    def active_producers(self, now_ms: int) -> dict[int, ActiveProducer]:
        """As the owner knew them when it made the job."""
        return self.active

    @classmethod
    def of(cls, job: CleanJob) -> LeasedPartition:
        directory, interval = Path(job.directory), job.config.index_interval_bytes
        segments = [
            LogSegment(directory, source.base_offset, source.size, source.last_modified_ms, interval)
            for source in job.segments
        ]
        # The active segment is not read, but transactions of closed ones may end in it.
        segments.append(LogSegment(directory, job.active_base_offset, 0, 0, interval))
        return cls(
            topic_partition=TopicPartition(job.topic, job.partition),
            directory=directory,
            config=job.config,
            segments=segments,
            log_start_offset=job.log_start_offset,
            log_end_offset=job.log_end_offset,
            high_watermark=job.high_watermark,
            producers=ProducerState(),
            active={
                producer.producer_id: ActiveProducer(producer.last_data_offset, producer.producer_epoch)
                for producer in job.active_producers
            },
        )


class Cleaner:
    """See the module. One thread: messages are looked at between chunks of work."""

    def __init__(self, channel: Channel, kernel: Kernel) -> None:
        self._channel = channel
        self._kernel = kernel
        self._throttle = Throttle(_UNLIMITED)
        self._pressure = IoPressure.of(channel.welcome.settings)
        self._job: CleanJob | None = None
        self._abort = ""
        self._stats = CopyStats()
        self._read = self._written = 0
        self._mapped = (0, 0)
        self._phase = "idle"
        self._told = 0.0
        self._swapped: GroupSwapped | None = None

    def run(self) -> None:
        """Until Stop."""
        while self._channel.stopping is None:
            message = self._channel.receive(1.0)
            if isinstance(message, CleanJob):
                self._clean(message)
            elif message is not None:
                self._take(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, CleanThrottle):
            self._throttle.rate = message.bytes_per_second
        elif isinstance(message, Reconfigure):
            self._pressure = IoPressure.of(message.settings)
        elif isinstance(message, AbortClean):
            if self._job is not None and message.request_id == self._job.request_id:
                self._abort = message.reason
        elif isinstance(message, Stop):
            self._abort = f"compactd stops: {message.reason}"
        elif isinstance(message, GroupSwapped):
            self._swapped = message

    def _clean(self, job: CleanJob) -> None:
        name = f"{job.topic}-{job.partition}"
        self._job, self._abort = job, ""
        self._stats, self._read, self._written, self._mapped = CopyStats(), 0, 0, (0, 0)
        self._throttle.rate = job.bytes_per_second
        started = time.monotonic()
        try:
            next_dirty = self._round(job)
            done = self._done(job, next_dirty, "cleaned", "", {})
            _log.info(
                f"cleaned {name} up to {next_dirty} in {time.monotonic() - started:.1f} s: "
                f"{self._stats.messages_read:,} records read, {self._stats.messages_written:,} kept",
                extra={"fields": {"partition": name}},
            )
        except CleaningAbortedError as error:
            done = self._done(job, -1, "aborted", str(error), {})
        except CompactdError as error:
            done = self._failed(job, error)
            _log.error(f"{name} was not cleaned: {error}", extra={"fields": {"partition": name}})
        except OSError as error:
            # Reads do not go through the file layer; a segment or the whole directory may be gone, or the disk.
            done = self._failed(job, files.failed(error.filename or job.directory, "reading", error))
            _log.error(f"{name} was not cleaned: {done.reason}", extra={"fields": {"partition": name}})
        except MemoryError as error:
            done = self._done(job, -1, "failed", f"not enough memory for the offset map: {error}", {})
        finally:
            self._job = None
            self._channel.set_phase("idle")
        self._channel.send(done)

    def _round(self, job: CleanJob) -> int:
        partition = LeasedPartition.of(job)
        # Of a cleaner that died here. We hold the lease: nobody else writes such files now.
        drop_stale_cleaned(partition.directory)
        options = RoundOptions(job.now_ms, job.map_memory_bytes, job.map_load_factor, threads=job.threads)
        with CleaningRound(
            partition, job.first_dirty_offset, job.first_uncleanable_offset, options, self._kernel
        ) as cleaning:
            self._enter("reading keys")
            mapped = cleaning.build_map(self._progress)
            self._mapped = (mapped.entries, mapped.capacity)
            self._enter("checking what is clean")
            cleaning.verify_clean_section(self._progress)
            cleaning.check_space()
            self._enter("copying")
            for number, group in enumerate(cleaning.clean_groups(self._progress)):
                self._stats = add_stats(self._stats, group.result.stats)
                if not group.unchanged:
                    self._hand_over(job, number, group)
            return cleaning.next_dirty_offset

    def _hand_over(self, job: CleanJob, number: int, group: CleanedGroup) -> None:
        """Waits for the owner's answer, whatever happens: until then the files are neither ours nor the owner's."""
        self._swapped = None
        self._channel.send(
            GroupReady(
                request_id=job.request_id,
                group_id=number,
                topic=job.topic,
                partition=job.partition,
                base_offset=group.base_offset,
                source_bases=group.source_bases,
            )
        )
        self._enter("waiting for the swap")
        while self._swapped is None or (self._swapped.request_id, self._swapped.group_id) != (job.request_id, number):
            message = self._channel.receive(_WAIT_SECONDS)
            if message is not None:
                self._take(message)
        answer = self._swapped
        if not answer.accepted:
            if not answer.unknown:
                drop_cleaned(group.directory, [group.base_offset])
            raise CleaningAbortedError(path=group.directory, reason=answer.reason)
        self._enter("copying")
        self._check()

    def _progress(self, read: int, written: int) -> None:
        self._read += read
        self._written += written
        self._check()
        self._throttle.observe(read + written, self._check)
        self._pressure.wait(self._check)
        self._tell()

    def _check(self) -> None:
        while (message := self._channel.receive(0)) is not None:
            self._take(message)
        if self._abort and self._job is not None:
            self._give_up(self._job)

    def _give_up(self, job: CleanJob) -> NoReturn:
        raise CleaningAbortedError(path=job.directory, reason=self._abort)

    def _enter(self, phase: str) -> None:
        self._phase, self._told = phase, 0.0
        self._tell()

    def _tell(self) -> None:
        job, now = self._job, time.monotonic()
        if job is None or now - self._told < _PROGRESS_SECONDS:
            return
        self._told = now
        self._channel.set_phase(f"{self._phase}, {job.topic}-{job.partition}")
        self._channel.send(
            CleanProgress(
                request_id=job.request_id,
                phase=self._phase,
                bytes_read=self._read,
                bytes_written=self._written,
                records_read=self._stats.messages_read,
                map_entries=self._mapped[0],
                map_capacity=self._mapped[1],
            )
        )

    def _failed(self, job: CleanJob, error: CompactdError) -> CleanDone:
        if not Path(job.directory).is_dir():
            # The topic was deleted under us: that is no fault of anything.
            return self._done(job, -1, "aborted", "its directory is gone", {})
        outcome = {1: "faulty", 3: "refused"}.get(error.exit_code, "failed")
        fields = {name: str(value) for name, value in error.fields.items() if value is not None}
        fields["error"] = type(error).__name__
        if isinstance(error, StorageIOError):
            fields["io"] = str(_system_error(error))
        return self._done(job, -1, outcome, str(error), fields)

    def _done(self, job: CleanJob, next_dirty: int, outcome: str, reason: str, fields: dict[str, str]) -> CleanDone:
        stats: dict[str, float] = {name: float(getattr(self._stats, name)) for name in CopyStats.__dataclass_fields__}
        stats |= {"map_entries": float(self._mapped[0]), "map_capacity": float(self._mapped[1])}
        return CleanDone(
            request_id=job.request_id,
            next_dirty_offset=next_dirty,
            outcome=outcome,
            reason=reason,
            fields=fields,
            stats=stats,
        )


#: Where the native kernel says which error of the system it met.
_SYSTEM_ERROR = re.compile(r"\(os error (\d{1,5})\)")


def _system_error(error: StorageIOError) -> int:
    """The errno; 0 where nobody knows."""
    number = error.fields.get("errno")
    found = _SYSTEM_ERROR.search(str(error.fields.get("reason", "")))
    return int(str(number)) if number else int(found[1]) if found else 0
