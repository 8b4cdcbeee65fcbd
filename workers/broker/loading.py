"""Loading the logs of partitions, or making them: in threads, several at once for each log dir."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compactd.config.errors import CompactdError
from compactd.storage import names
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog, Resources
from compactd.storage.log_copy import LogCopy
from compactd.storage.log_exchange import finish_interrupted, forget_origin, is_copy
from compactd.storage.names import TopicPartition
from compactd.workers.clock import Clock
from compactd.workers.partition_messages import PartitionAssignment

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loading:
    """How partitions are loaded."""

    #: num.recovery.threads.per.data.dir
    threads_per_dir: int = 2
    #: producer.id.expiration.ms
    producer_expiration_ms: int = 86_400_000


class Outcome(NamedTuple):
    """A partition's log, or why there is none."""

    assignment: PartitionAssignment
    log: PartitionLog | None
    error: CompactdError | None
    #: `-delete` directories of a move that was interrupted, and that this load finished.
    retired: tuple[str, ...] = ()


class LogLoading:
    """Opens logs that share one set of open files. `background` runs fsyncs of rolled segments."""

    def __init__(self, loading: Loading, clock: Clock, background: Callable[[Callable[[], None]], None]) -> None:
        self.loading = loading
        self.resources = Resources()
        self._clock = clock
        self._background = background

    def load_all(self, assignments: Sequence[PartitionAssignment], clean: bool) -> list[Outcome]:
        """One after another; an error of one does not keep the others. `clean`: their log dir was stopped in good order."""
        outcomes = []
        for assignment in assignments:
            try:
                retired = self._finish_move(assignment)
                outcomes.append(Outcome(assignment, self._load(assignment, clean), None, retired))
            except CompactdError as error:
                outcomes.append(Outcome(assignment, None, error))
        return outcomes

    def open_copy(self, copy: LogCopy) -> PartitionLog:
        """A finished copy as the log that it is going to be."""
        now_ms = self._clock.now_ms()
        loaded = copy.load(now_ms, self.loading.producer_expiration_ms)
        moved = PartitionLog(
            loaded,
            now_ms=now_ms,
            resources=self.resources,
            topic_id=copy.log.topic_id,
            background=self._background,
            group_commit=True,
        )
        moved.take_over(copy.log)
        return moved

    def _finish_move(self, assignment: PartitionAssignment) -> tuple[str, ...]:
        """The catalogue says that the partition lies here: a move here that was interrupted since is finished."""
        if assignment.is_new:
            return ()
        directory = Path(assignment.log_dir) / f"{assignment.topic}-{assignment.partition}"
        if directory.is_dir() and not is_copy(directory):
            return ()
        retired = finish_interrupted(directory)
        if not retired:
            forget_origin(directory)
        else:
            _LOGGER.info("%s: finished its move from %s", directory, retired[0].parent)
        return tuple(map(str, retired))

    def _load(self, assignment: PartitionAssignment, clean: bool) -> PartitionLog:
        directory = Path(assignment.log_dir) / f"{assignment.topic}-{assignment.partition}"
        now_ms = self._clock.now_ms()
        topic_id = names.parse_uuid(assignment.topic_id)
        if not directory.exists():
            log = PartitionLog.create(
                directory,
                assignment.config,
                now_ms=now_ms,
                producer_expiration_ms=self.loading.producer_expiration_ms,
                resources=self.resources,
                topic_id=topic_id,
                background=self._background,
                group_commit=True,
            )
            # Before the first append, too: Kafka sets a directory aside that doesn't say whose it is.
            log.save()
            return log
        started = time.monotonic()
        loaded = load_log(
            directory,
            assignment.config,
            clean_shutdown=clean,
            recovery_point=assignment.recovery_point,
            log_start_offset=assignment.log_start_offset,
            now_ms=now_ms,
            topic_partition=TopicPartition(assignment.topic, assignment.partition),
            producer_expiration_ms=self.loading.producer_expiration_ms,
        )
        for action in loaded.actions:
            _LOGGER.info("%s: %s", directory, action)
        log = PartitionLog(
            loaded,
            now_ms=now_ms,
            resources=self.resources,
            topic_id=topic_id,
            background=self._background,
            group_commit=True,
        )
        log.save()
        # The only replica: what is in the log is what there is (Partition.maybeIncrementLeaderHW with an ISR of one).
        log.update_high_watermark(log.log_end_offset)
        if not clean:
            _LOGGER.info(
                "%s: recovered from %d to %d in %.3f s",
                directory,
                assignment.recovery_point,
                log.log_end_offset,
                time.monotonic() - started,
            )
        return log
