"""One log dir in use: locked, its logs loaded by several threads, and closed again so that the next start trusts it.

What LogManager does for each log dir at start and shutdown (facts 1.3, 1.5, 1.9, 7.4, 8.1). The marker of a clean stop is
removed before the first log is loaded, so that a crash counts as unclean, and written last, when every log was closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from compactd.config.errors import CompactdError, CorruptFileError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.checkpoints import OffsetCheckpoint
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.loader import Recovering, load_log
from compactd.storage.log_dir import LogDir, LogDirLock
from compactd.storage.names import TopicPartition
from compactd.storage.producers import PRODUCER_EXPIRATION_MS
from compactd.storage.segment import LogSegment

#: num.recovery.threads.per.data.dir
RECOVERY_THREADS = 2


class HasBaseOffset(Protocol):
    """A segment, as far as the checkpoints care."""

    @property
    def base_offset(self) -> int: ...


class CheckpointedLog(Protocol):
    """What the checkpoints ask of a log; LoadedLog and PartitionLog have it."""

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def recovery_point(self) -> int: ...
    @property
    def segments(self) -> Sequence[HasBaseOffset]: ...


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One partition directory to load."""

    topic_partition: TopicPartition
    directory: Path
    config: TopicConfig
    #: In place of the checkpoints' entries.
    recovery_point: int | None = None
    log_start_offset: int | None = None


@dataclass(slots=True)
class LoadOutcome:
    """A partition that was loaded, or why not."""

    request: LoadRequest
    log: LoadedLog | None = None
    error: CompactdError | None = None


@dataclass(slots=True)
class LogDirSession:
    """A log dir whose lock is held. Use as a context manager, or call `release`."""

    log_dir: LogDir
    lock: LogDirLock
    #: The marker was there when the session began, or the caller said so.
    clean: bool
    broker_epoch: int
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Set by the first error of loading or closing: then no marker is written.
    failed: bool = False

    @classmethod
    def begin(cls, path: Path, *, clean: bool | None = None) -> LogDirSession:
        """Takes the lock and reads what the dir says about itself. `clean`: in place of the marker.

        LogDirLockedError, NotWritableError, StorageIOError.
        """
        log_dir = LogDir(path)
        lock = log_dir.lock()
        try:
            marker = log_dir.clean_shutdown()
            session = cls(
                log_dir,
                lock,
                clean=marker is not None if clean is None else clean,
                broker_epoch=-1 if marker is None or marker.broker_epoch is None else marker.broker_epoch,
            )
            session.recovery_points = session._read(log_dir.recovery_points, "every log counts as not flushed")
            session.log_start_offsets = session._read(
                log_dir.log_start_offsets, "every log starts at its first segment"
            )
            session._drop_temporary_files()
        except BaseException:
            lock.release()
            raise
        return session

    @property
    def path(self) -> Path:
        return self.log_dir.path

    def forget_marker(self) -> None:
        """From now on a crash counts as an unclean stop. Call before anything is loaded."""
        marker = self.path / names.CLEAN_SHUTDOWN
        if marker.exists():
            files.remove(marker, missing_ok=True)
            files.fsync_dir(self.path)

    def load(
        self,
        requests: Sequence[LoadRequest],
        *,
        now_ms: int,
        threads: int = RECOVERY_THREADS,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        keep_cut: bool = False,
        recovering: Recovering | None = None,
        loaded: Callable[[LoadOutcome], None] | None = None,
    ) -> list[LoadOutcome]:
        """Loads partitions with `threads` at once; outcomes in the order of the requests.

        An error of one partition does not keep the others from loading. `loaded` is told of each as it ends, and
        `recovering` of each segment, from the threads that load, one call at a time.
        """
        guard = threading.Lock()

        def told(segment: LogSegment, left: int) -> None:
            if recovering is not None:
                with guard:
                    recovering(segment, left)

        def one(request: LoadRequest) -> LoadOutcome:
            name = request.topic_partition
            start, point = request.log_start_offset, request.recovery_point
            outcome = LoadOutcome(request)
            try:
                outcome.log = load_log(
                    request.directory,
                    request.config,
                    clean_shutdown=self.clean,
                    recovery_point=self.recovery_points.get(name, 0) if point is None else point,
                    log_start_offset=self.log_start_offsets.get(name, 0) if start is None else start,
                    now_ms=now_ms,
                    topic_partition=name,
                    producer_expiration_ms=producer_expiration_ms,
                    keep_cut=keep_cut,
                    recovering=told,
                )
            except CompactdError as error:
                outcome.error = error
                self.failed = True
            if loaded is not None:
                with guard:
                    loaded(outcome)
            return outcome

        if threads == 1 or len(requests) <= 1:
            return [one(request) for request in requests]
        with ThreadPoolExecutor(threads, thread_name_prefix="log-recovery") as pool:
            return list(pool.map(one, requests))

    def write_checkpoints(self, logs: Iterable[CheckpointedLog], *, whole_dir: bool) -> None:
        """Recovery points of all logs, and start offsets of those that start inside their first segment (facts 7.4).

        `whole_dir`: these are all logs of the dir; entries of others go. Otherwise other entries stay.
        """
        points = {} if whole_dir else dict(self.recovery_points)
        starts = {} if whole_dir else dict(self.log_start_offsets)
        for log in logs:
            points[log.topic_partition] = log.recovery_point
            if log.log_start_offset > log.segments[0].base_offset:
                starts[log.topic_partition] = log.log_start_offset
            else:
                starts.pop(log.topic_partition, None)
        _write(self.log_dir.recovery_points, points)
        _write(self.log_dir.log_start_offsets, starts)
        self.recovery_points, self.log_start_offsets = points, starts

    def correct_offsets(self, ends: Mapping[TopicPartition, tuple[int, int]]) -> list[str]:
        """What a broker does with checkpoints beyond a log's end once it runs; `ends`: (log start, log end) offsets.

        High watermarks are lowered to the end, cleaner checkpoints beyond it begin anew at the start. Returns notes.
        """
        notes = []
        for checkpoint, at_start in ((self.log_dir.high_watermarks, False), (self.log_dir.cleaner_offsets, True)):
            try:
                entries = checkpoint.read()
            except CorruptFileError as error:
                notes.append(str(error))
                continue
            wrong = {name for name in entries if name in ends and entries[name] > ends[name][1]}
            for name in sorted(wrong):
                corrected = ends[name][0 if at_start else 1]
                place = Path(checkpoint.path).name
                notes.append(f"{place}: {name} {entries[name]} lies beyond the log's end, now {corrected}")
                entries[name] = corrected
            if wrong:
                checkpoint.write(entries)
        return notes

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """Entries of replication-offset-checkpoint; none where it is missing or damaged."""
        return self._read(self.log_dir.high_watermarks, "every high watermark counts as the log's start")

    def write_marker(self) -> bool:
        """Marks the dir as stopped in good order, unless something failed in it. Returns whether."""
        if self.failed:
            return False
        self.log_dir.write_clean_shutdown(self.broker_epoch if self.clean else -1)
        return True

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> LogDirSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _read(self, checkpoint: OffsetCheckpoint, consequence: str) -> dict[TopicPartition, int]:
        """A damaged checkpoint costs its entries only, with a warning (facts 8.1)."""
        try:
            return checkpoint.read()
        except CorruptFileError as error:
            self.notes.append(f"{error} Until then {consequence}.")
            return {}

    def _drop_temporary_files(self) -> None:
        """What an interrupted write left beside the checkpoints is nobody's."""
        for path in sorted(self.path.glob("*" + files.TEMPORARY)):
            if path.is_file():
                files.remove(path, missing_ok=True)
                self.notes.append(f"{path}: removed, an unfinished write")


def load_requests(
    log_dir: LogDir, config_of: Callable[[str], TopicConfig], states: Collection[str] = ("live",)
) -> list[LoadRequest]:
    """A request for each partition directory of a log dir in one of these states, KRaft's own log left out."""
    return [
        LoadRequest(each.topic_partition, log_dir.path / each.name, config_of(each.topic_partition.topic))
        for each in log_dir.partition_dirs()
        if each.state in states and not each.is_cluster_metadata
    ]


def _write(checkpoint: OffsetCheckpoint, entries: Mapping[TopicPartition, int]) -> None:
    """A checkpoint that says the same already is left alone: a full disk then keeps nobody from stopping."""
    try:
        if Path(checkpoint.path).exists() and checkpoint.read() == dict(entries):
            return
    except (CorruptFileError, StorageIOError):
        pass
    checkpoint.write(entries)
