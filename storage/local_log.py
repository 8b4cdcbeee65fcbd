"""The segments of one live log: what is written, rolled, cut, swapped and deleted (Kafka's LocalLog; facts 5.9, 10.4-10.6).

One owner changes it. Readers take `view`, an immutable list of segments that is replaced as a whole, and are never
waited for: what they still hold stays readable (storage.live_segment).
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compactd.config.errors import CompactdError, LogError, LogOfflineError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names, swap
from compactd.storage.active_segment import ActiveSegment, FlushJob, create_segment, files_to_sync
from compactd.storage.live_segment import Home, LiveSegment, Resources
from compactd.storage.names import DELETED
from compactd.storage.records.batch import BatchHeader

#: Runs a task later or in another thread; the default runs it at once.
Background = Callable[[Callable[[], None]], None]


class OffsetPosition(NamedTuple):
    """An offset and, where it is known, the byte at which its batch starts (Kafka's LogOffsetMetadata)."""

    offset: int
    segment_base: int = -1
    position: int = -1


class View(NamedTuple):
    """The segments in offset order with their base offsets."""

    segments: tuple[LiveSegment, ...]
    bases: tuple[int, ...]

    def floor(self, offset: int) -> int:
        """Index of the segment that may hold the offset; -1 when it lies below the first."""
        return bisect_right(self.bases, offset) - 1


@dataclass(frozen=True, slots=True)
class DoomedFiles:
    """Files named `.deleted`, to be removed when `due_ms` has come."""

    due_ms: int
    names: tuple[str, ...]


class LocalLog:
    """Segments, the end of the log and what of it is on disk. Offsets absolute, sizes bytes, times ms."""

    def __init__(
        self,
        home: Home,
        config: TopicConfig,
        segments: Sequence[LiveSegment],
        end_offset: int,
        recovery_point: int,
        resources: Resources,
        background: Background | None = None,
    ) -> None:
        self.home = home
        self.config = config
        self.resources = resources
        self.recovery_point = recovery_point
        self.view = _view(segments)
        self.active = ActiveSegment(segments[-1])
        self.end = OffsetPosition(end_offset, segments[-1].base_offset, segments[-1].size)
        self.doomed: list[DoomedFiles] = []
        #: The error after which nothing is written any more.
        self.failure: StorageIOError | None = None
        self._background = background
        #: Guards the recovery point and what goes with it: a flush may end in another thread.
        self._flush_lock = threading.Lock()
        #: Rises with every truncation: what a flush began before it found says nothing about what came after.
        self._generation = 0
        #: Closed segments whose indexes may not be on disk.
        self._unsynced: list[LiveSegment] = []
        #: Files made in the directory so far, and how many of them an fsync of it has made durable.
        self._made = self._made_durable = 0

    @property
    def directory(self) -> str:
        return self.home.path

    @property
    def end_offset(self) -> int:
        return self.end.offset

    @property
    def size(self) -> int:
        """Bytes of all segments' batches."""
        return sum(segment.size for segment in self.view.segments)

    # ---- failure

    def check(self) -> None:
        """Raises LogOfflineError once a write failed: the log must be loaded anew."""
        if self.failure is not None:
            raise LogOfflineError(path=self.directory, detail=str(self.failure))

    def failed(self, error: StorageIOError) -> None:
        """Nothing is written any more."""
        if self.failure is None:
            self.failure = error

    # ---- writing

    def append(self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader]) -> None:
        """Writes batches at the end. StorageIOError: they are not in the log, which takes nothing more."""
        try:
            self.active.append(data, batches)
        except StorageIOError as error:
            self.failed(error)
            raise
        segment = self.active.segment
        self.end = OffsetPosition(batches[-1].last_offset + 1, segment.base_offset, segment.size)

    def roll(self, expected_offset: int | None, now_ms: int) -> tuple[LiveSegment, list[str]]:
        """Closes the active segment and starts one at the log's end, or at `expected_offset` where that is above it.

        An empty active segment of the same base is replaced. Returns the new segment and the bases' `.deleted` files.
        """
        base = max(expected_offset or 0, self.end_offset)
        active = self.active.segment
        deleted: list[str] = []
        try:
            if base == active.base_offset and active.size == 0:
                deleted = self._retire([active])
                self.schedule_removal(deleted, now_ms)
                before: tuple[LiveSegment, ...] = self.view.segments[:-1]
            elif base <= active.base_offset:
                raise LogError(
                    path=self.directory,
                    detail=f"a segment at {base} cannot be started below the active one at {active.base_offset}",
                )
            else:
                self.active.close_form(self.config)
                with self._flush_lock:
                    self._unsynced = [*self._unsynced, active]
                before = self.view.segments
            new = create_segment(self.home, base, self.config, self.resources, now_ms)
        except StorageIOError as error:
            self.failed(error)
            raise
        self._made += 1
        self.view = _view((*before, new))
        self.active = ActiveSegment(new)
        self.end = OffsetPosition(self.end_offset, base, 0)
        return new, deleted

    def close_form(self) -> None:
        """Brings the active segment's files to the form in which an orderly stop leaves them."""
        try:
            self.active.close_form(self.config)
        except StorageIOError as error:
            self.failed(error)
            raise

    # ---- flushing

    def flush_job(self, offset: int, whole_active: bool, extra: Sequence[str] = ()) -> FlushJob | None:
        """What makes everything below `offset` durable; None when it is. `extra`: paths of more files to fsync.

        The active segment's indexes are rebuilt after a crash, so only its .log counts, unless `whole_active`.
        """
        if offset <= self.recovery_point and not whole_active and not extra:
            return None
        first = max(self.view.floor(self.recovery_point), 0)
        segments = [
            s
            for s in self.view.segments[first:]
            if s.base_offset < offset or (whole_active and s is self.active.segment)
        ]
        segments += [s for s in self._unsynced if s not in segments]
        job = FlushJob(offset, segments=segments, generation=self._generation, made=self._made)
        try:
            for segment in segments:
                if segment is self.active.segment and not whole_active:
                    job.logs.append(segment.acquire_writable())
                else:
                    held, others = files_to_sync(segment)
                    job.logs.append(held)
                    job.others += others
            for path in extra:
                job.others.append(files.open_existing(path))
        except StorageIOError as error:
            job.close()
            self.failed(error)
            raise
        if self._made > self._made_durable or any(segment.base_offset >= self.recovery_point for segment in segments):
            job.directory = self.directory
        return job

    def flush_active(self) -> bool:
        """Fsyncs the active .log, where that is all that is not on disk; False, and nothing done, where there is more."""
        active = self.active.segment
        if self._unsynced or self._made > self._made_durable or self.recovery_point <= active.base_offset:
            return False
        end = self.end_offset
        held = active.acquire_writable()
        try:
            held.output.sync()  # type: ignore[union-attr]  # it was opened for writing
        except StorageIOError as error:
            self.failed(error)
            raise
        finally:
            held.release()
        with self._flush_lock:
            self.recovery_point = max(self.recovery_point, end)
        return True

    def flushed(self, job: FlushJob) -> None:
        """`job` ran: the recovery point may pass on, unless the log was truncated meanwhile."""
        with self._flush_lock:
            if job.generation != self._generation:
                return
            self._unsynced = [segment for segment in self._unsynced if segment not in job.segments]
            if job.directory is not None:
                self._made_durable = max(self._made_durable, job.made)
            self.recovery_point = max(self.recovery_point, job.offset)

    def run(self, job: FlushJob) -> None:
        """Runs a job to its end here. StorageIOError: the log takes nothing more."""
        try:
            job.run()
        except StorageIOError as error:
            self.failed(error)
            raise
        finally:
            job.close()
        self.flushed(job)

    def run_in_background(self, job: FlushJob) -> None:
        """Runs a job where background work runs; an error there makes the log refuse what follows."""
        if self._background is None:
            self.run(job)
            return

        def task() -> None:
            with contextlib.suppress(StorageIOError):
                self.run(job)

        self._background(task)

    # ---- cutting and deleting

    def truncate_to(self, offset: int, now_ms: int) -> list[int]:
        """Cuts every batch that ends at or above `offset`, which lies in the log; returns bases of segments that went."""
        self._forget_flushes()
        keep = self.view.floor(offset) + 1
        gone = self.view.segments[keep:]
        try:
            # Readers leave what goes before it goes.
            active = self.view.segments[keep - 1]
            found = active.locate(offset)
            self.end = OffsetPosition(offset, active.base_offset, active.size if found is None else found.position)
            self.view = _view(self.view.segments[:keep])
            self.active = ActiveSegment(active)
            self.schedule_removal(self._retire(gone), now_ms)
            self.active.truncate_to(offset, now_ms)
        except StorageIOError as error:
            self.failed(error)
            raise
        self._unsynced = [s for s in self._unsynced if s not in gone and s is not self.active.segment]
        self._end_at(offset)
        return [segment.base_offset for segment in gone]

    def truncate_fully(self, offset: int, now_ms: int) -> list[int]:
        """Replaces all segments by an empty one at `offset`; returns bases of segments that went."""
        self._forget_flushes()
        gone = self.view.segments
        try:
            self.schedule_removal(self._retire(gone), now_ms)
            new = create_segment(self.home, offset, self.config, self.resources, now_ms)
        except StorageIOError as error:
            self.failed(error)
            raise
        self._made += 1
        self._unsynced = []
        self.view = _view([new])
        self.active = ActiveSegment(new)
        self._end_at(offset)
        return [segment.base_offset for segment in gone]

    def _end_at(self, offset: int) -> None:
        active = self.active.segment
        self.end = OffsetPosition(offset, active.base_offset, active.size)
        with self._flush_lock:
            self.recovery_point = min(self.recovery_point, offset)

    def _forget_flushes(self) -> None:
        """A truncation begins: no flush that is under way may move the recovery point."""
        with self._flush_lock:
            self._generation += 1

    def remove_segments(self, gone: Sequence[LiveSegment], now_ms: int) -> None:
        """Takes segments, never the active one, out of the log; their files become `.deleted` and go when it is time."""
        self.view = _view([segment for segment in self.view.segments if segment not in gone])
        self._unsynced = [segment for segment in self._unsynced if segment not in gone]
        try:
            self.schedule_removal(self._retire(gone), now_ms)
        except StorageIOError as error:
            self.failed(error)
            raise

    def replace_segments(self, new_bases: Sequence[int], old_bases: Sequence[int], now_ms: int) -> list[int]:
        """Swaps `.cleaned` segments in for closed ones (facts 5.9); returns bases of segments that left no successor.

        A source that is gone already is passed by. Readers of the old segments go on with them.
        """
        old = [segment for segment in self.view.segments if segment.base_offset in set(old_bases)]
        if self.active.segment in old:
            raise LogError(path=self.directory, detail="the active segment cannot be replaced")
        try:
            with self.home.lock:
                deleted = swap.replace_segments(Path(self.directory), new_bases, [s.base_offset for s in old])
                for segment in old:
                    segment.suffix = DELETED
                new = [self._opened(base, now_ms) for base in new_bases]
        except StorageIOError as error:
            self.failed(error)
            raise
        kept = [segment for segment in self.view.segments if segment not in old]
        self.view = _view(sorted([*kept, *new], key=lambda segment: segment.base_offset))
        self._unsynced = [segment for segment in self._unsynced if segment not in old]
        for segment in old:
            segment.close()
        self.schedule_removal([path.name for path in deleted], now_ms)
        return [segment.base_offset for segment in old if segment.base_offset not in new_bases]

    def _opened(self, base: int, now_ms: int) -> LiveSegment:
        path = f"{self.directory}/{names.log_name(base)}"
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except OSError as error:
            raise files.failed(path, "stat", error) from error
        return LiveSegment(self.home, base, self.config, self.resources, size=size, created_ms=now_ms)

    def _retire(self, gone: Sequence[LiveSegment]) -> list[str]:
        """Renames the files of segments to `.deleted`; returns the new names."""
        deleted: list[str] = []
        for segment in gone:
            segment.close()
        for segment in gone:
            deleted += [name + DELETED for name in segment.existing_files()]
            segment.change_suffix(DELETED)
        return deleted

    def schedule_removal(self, deleted: Sequence[str], now_ms: int) -> None:
        """Files of these names in the directory go after file.delete.delay.ms."""
        if deleted:
            self.doomed.append(DoomedFiles(now_ms + self.config.file_delete_delay_ms, tuple(deleted)))

    def remove_due(self, now_ms: int) -> int:
        """Removes `.deleted` files whose time has come; returns how many."""
        removed = 0
        waiting = []
        for each in self.doomed:
            if each.due_ms > now_ms:
                waiting.append(each)
                continue
            for name in each.names:
                files.remove(f"{self.directory}/{name}", missing_ok=True)
                removed += 1
        self.doomed = waiting
        return removed

    # ---- the directory

    def rename(self, name: str) -> None:
        """Gives the directory another name in the same log dir. StorageIOError."""
        parent = os.path.dirname(self.directory)  # noqa: PTH120
        target = f"{parent}/{name}"
        if target == self.directory:
            return
        with self.home.lock:
            files.rename(self.directory, target)
            self.home.path = target
        files.fsync_dir(parent)

    def close(self) -> None:
        """Closes every file; readers that hold one keep it."""
        for segment in self.view.segments:
            segment.close()

    def delete(self) -> None:
        """Removes the directory with everything in it."""
        self.close()
        self.view = View((), ())
        self.doomed = []
        try:
            with os.scandir(self.directory) as entries:
                found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:
            return
        except OSError as error:
            raise files.failed(self.directory, "list", error) from error
        for path, is_directory in found:
            if not is_directory:
                files.remove(path, missing_ok=True)
        files.remove_dir(self.directory)
        with contextlib.suppress(CompactdError):
            files.fsync_dir(os.path.dirname(self.directory))  # noqa: PTH120


def _view(segments: Sequence[LiveSegment]) -> View:
    return View(tuple(segments), tuple(segment.base_offset for segment in segments))
