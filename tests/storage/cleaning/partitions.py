"""A stopped broker's partition cleaned as `compactd clean` cleans it, with its checkpoint carried along."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel.interface import Kernel
from compactd.storage.names import TopicPartition, parse_partition_dir
from tests.logs import NOW_MS
from tests.storage.cleaning.short_log import ShortLog


@dataclass
class Cleaning:
    """One partition's checkpoint, and everything that was written to it."""

    log: ShortLog
    kernel: Kernel
    checkpoint: int | None = None
    high_watermark: int | None = None
    log_start_offset: int = 0
    clean_shutdown: bool = True
    written: list[int] = field(default_factory=list)

    @property
    def topic_partition(self) -> TopicPartition:
        return parse_partition_dir(self.log.directory.name).topic_partition

    def run(self, now_ms: int = NOW_MS, *, stop_first: bool = True, **options: Any) -> PartitionReport:
        """One clean. Options are those of CleanOptions. `stop_first` False: the directory stays as a test has made it."""
        if stop_first:
            self.log.close()
        job = CleanJob(
            self.topic_partition,
            self.log.directory,
            self.log.config,
            self.checkpoint,
            self.high_watermark,
            self.log_start_offset,
            self.clean_shutdown,
        )
        options = {"map_memory_bytes": 1 << 20, **options}
        report = clean_partition(
            job, CleanOptions(now_ms=now_ms, **options), self.kernel, time.perf_counter, on_checkpoint=self._write
        )
        for path in report.deleted:
            path.unlink(missing_ok=True)
        return report

    def _write(self, offset: int) -> None:
        self.checkpoint = offset
        self.written.append(offset)
