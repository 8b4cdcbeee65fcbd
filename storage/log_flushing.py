"""Rolling a live log, and making what was appended durable (UnifiedLog.roll, flush; facts 10.5)."""

from __future__ import annotations

import logging
import os

from compactd.config.errors import StorageIOError
from compactd.storage.active_segment import FlushJob
from compactd.storage.live_segment import LiveSegment
from compactd.storage.log_reading import LogReading

_LOGGER = logging.getLogger(__name__)


class LogFlushing(LogReading):
    """Adds the ends of segments and of what a power cut may take. Only the log's owner calls these methods."""

    def roll(self, expected_offset: int | None = None, *, now_ms: int) -> LiveSegment:
        """Closes the active segment and starts a new one at the log's end (UnifiedLog.roll; facts 10.5).

        A producer snapshot is taken at the new base; what lies below it is flushed, in the background if there is one.
        """
        self._check_open()
        new, replaced = self.local.roll(expected_offset, now_ms)
        if replaced:
            _LOGGER.warning("%s: the empty active segment at %d was made anew", self.home.path, new.base_offset)
        self.snapshots.advance(new.base_offset)
        try:
            snapshot = self.snapshots.take(sync=False)
        except StorageIOError as error:
            self.local.failed(error)
            raise
        self._follow_log_end()
        extra = [] if snapshot is None else [os.fspath(self.snapshots.path(snapshot))]
        job = self.local.flush_job(new.base_offset, whole_active=False, extra=extra)
        if job is not None:
            self.local.run_in_background(job)
        return new

    def flush(self, now_ms: int | None = None) -> None:
        """Makes everything appended so far durable: one fsync of the active .log, more where segments were rolled."""
        self._check_open()
        if self.recovery_point < self.log_end_offset and not self.local.flush_active():
            job = self.local.flush_job(self.log_end_offset, whole_active=False)
            if job is not None:
                self.local.run(job)
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def flush_job(self) -> FlushJob | None:
        """`flush` in three steps, so that appends go on while the disk works: this, `job.run()` in any thread, `flushed`.

        None when everything is durable.
        """
        self._check_open()
        return self.local.flush_job(self.log_end_offset, whole_active=False)

    def flushed(self, job: FlushJob, now_ms: int, error: StorageIOError | None = None) -> None:
        """The job ran, or failed with `error`: then the log takes no more changes."""
        job.close()
        if error is not None:
            self.local.failed(error)
            return
        self.local.flushed(job)
        self.last_flush_ms = now_ms

    def flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms asks for a flush now."""
        if self.recovery_point >= self.log_end_offset:
            return False
        return self._wants_flush() or now_ms - self.last_flush_ms >= self.config.flush_ms

    def _wants_flush(self) -> bool:
        return self.local.end.offset - self.local.recovery_point >= self.config.flush_messages
