"""Partition: one log as it lies on disk, loaded without changing a byte (what UnifiedLog knows after LogLoader ran).

After an unclean stop Kafka would rebuild indexes and cut torn tails from the recovery point on; here the same is done in
memory only, so that a backup or a running broker's disk can be read as Kafka would see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from compactd.config.errors import CorruptFileError, RefusedError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.index_lookup import start_position
from compactd.storage.kernel.interface import ActiveProducer
from compactd.storage.names import TopicPartition
from compactd.storage.producers import PRODUCER_EXPIRATION_MS, CompletedTransaction, ProducerState, read_snapshot
from compactd.storage.records.batch import Batch, read_batches
from compactd.storage.records.control import (
    ControlRecordType,
    EndTransactionMarker,
    parse_control_key,
    parse_end_transaction,
)
from compactd.storage.records.varint import MalformedError
from compactd.storage.segment import LogSegment, list_segments


@dataclass(slots=True)
class Partition:
    """A log's segments in offset order with the offsets that decide what may be cleaned. Offsets absolute, times in ms."""

    topic_partition: TopicPartition
    directory: Path
    config: TopicConfig
    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    producers: ProducerState
    #: What a person should know about how this was loaded.
    notes: list[str] = field(default_factory=list)

    @property
    def active_segment(self) -> LogSegment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        return sum(segment.size for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, else the high watermark; never above it (UnifiedLog.lastStableOffset)."""
        return self.producers.last_stable_offset(self.high_watermark, self.log_start_offset)

    def active_producers(self, _now_ms: int) -> dict[int, ActiveProducer]:
        """Producers as loading left them: expired ones of a snapshot are gone by then, and a broker looks for others in time."""
        return self.producers.active_producers(None)

    def as_if_rolled(self) -> Partition:
        """The same log with an empty active segment at its end: what `--roll` would make of it."""
        config = self.config
        empty = LogSegment(self.directory, self.log_end_offset, 0, 0, config.index_interval_bytes)
        return replace(self, segments=[*self.segments, empty])

    @classmethod
    def load(
        cls,
        directory: Path,
        config: TopicConfig,
        *,
        now_ms: int,
        topic_partition: TopicPartition | None = None,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
        clean_shutdown: bool = True,
        recovery_point: int = 0,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> Partition:
        """Reads one topic-partition directory.

        `log_start_offset`, `recovery_point`: entries of the log dir's checkpoints. `high_watermark` None: the log end
        offset. Raises CorruptBatchError for a damaged batch that must be read, RefusedError for a log that Kafka would
        empty or recover at start before anything else.
        """
        if topic_partition is None:
            topic_partition = names.parse_partition_dir(directory.name).topic_partition
        notes: list[str] = []
        segments = list_segments(directory, config.index_interval_bytes)
        if not segments:
            segments = [LogSegment(directory, log_start_offset, 0, 0, config.index_interval_bytes)]
        if not clean_shutdown:
            floor = max((s.base_offset for s in segments if s.base_offset <= recovery_point), default=0)
            for segment in segments:
                segment.trust_indexes = segment.base_offset < floor
            scan = segments[-1].scan()
            if scan.valid_bytes < segments[-1].size:
                notes.append(
                    f"unclean stop: the active segment is whole up to byte {scan.valid_bytes} of {segments[-1].size}"
                    + (f" ({scan.fault.reason})" if scan.fault else "")
                )
                segments[-1].size = scan.valid_bytes
        end = segments[-1].next_offset()
        start = max(log_start_offset, segments[0].base_offset)
        if end < start:
            raise RefusedError(
                path=directory,
                reason=f"the log ends at {end}, below its log start offset {start}",
                advice="Kafka empties such a log when it starts; start it once, or correct log-start-offset-checkpoint.",
            )
        watermark = end if high_watermark is None else min(max(high_watermark, start), end)
        partition = cls(
            topic_partition,
            directory,
            config,
            segments,
            start,
            end,
            watermark,
            ProducerState(producer_expiration_ms, str(directory)),
            notes,
        )
        if clean_shutdown:
            partition._load_producers(now_ms)
        else:
            partition._recover_producers(now_ms)
        return partition

    def _load_producers(self, now_ms: int) -> None:
        """The newest usable snapshot, then every batch above it (UnifiedLog.rebuildProducerState; facts 8.4)."""
        recovered = self._recover_segments_without_index(now_ms)
        if recovered is not None:
            self._follow_between(recovered, self.log_end_offset)
        elif self._snapshot_offsets():  # else written before snapshots existed, or by nobody with a producer id
            self._follow_up_to(self.log_end_offset, now_ms)

    def _recover_segments_without_index(self, now_ms: int) -> int | None:
        """Works out the aborted transactions of segments without an offset index; the offset that producers stand at then.

        A start recovers them whatever the marker of the clean stop says (LogLoader.loadSegmentFiles): who removes all index
        files so that they are built anew removes the transaction indexes with them. Recovery drops the snapshots above a
        segment's base and takes one at its end, so that what follows is told by batches, of which none is too old to count.
        """
        reached: int | None = None
        for segment in self.segments:
            if segment.offset_index_path.exists():
                continue
            if reached is None:
                self._follow_up_to(segment.base_offset, now_ms)
            else:
                self._follow_between(reached, segment.base_offset)
            reached = self._recover_aborted(segment)
            if reached <= self.log_start_offset:
                # No snapshot counts up to the log start, nor does any batch below it.
                reached = self.log_start_offset
                self.producers.clear()
            self.producers.expire(now_ms)
            self.producers.unreplicated_txns.clear()
        return reached

    def _recover_producers(self, now_ms: int) -> None:
        """Producers, and the aborted transactions of segments whose files the stop may have kept from the disk (facts 8.3)."""
        unflushed = [segment for segment in self.segments if not segment.trust_indexes]
        followed = unflushed[0].base_offset
        self._follow_up_to(followed, now_ms)
        for segment in unflushed:
            if followed <= self.log_start_offset:
                # Kafka goes on from the snapshot it took where the last segment ended, and none counts up to the log start.
                self.producers.clear()
            reached = self._recover_aborted(segment)
            followed = reached if segment.size else followed
        # Recovery ends with a snapshot at the log end, and it is that one Kafka loads: without expired producers, and
        # without the transactions that ended above the high watermark.
        self.producers.expire(now_ms)
        self.producers.unreplicated_txns.clear()

    def _recover_aborted(self, segment: LogSegment) -> int:
        """Works out a segment's transaction index as Kafka's recovery does; the offset after its last batch.

        What its transactions are comes from its own batches and the producers known at its base. An index that is short of
        an entry would make aborted records look committed, and let them supersede committed ones.
        """
        aborted, followed = [], segment.base_offset
        for batch in read_batches(segment.log_path, 0, segment.size) if segment.size else ():
            completed, followed = self._follow(batch), batch.header.next_offset
            if completed is not None and completed.is_aborted:
                aborted.append(completed.as_aborted())
        segment.unsaved_aborted = tuple(aborted)
        return followed

    def _snapshot_offsets(self) -> list[int]:
        """Of all snapshot files, newest first."""
        parsed = (names.parse_segment_name(path.name) for path in self.directory.iterdir())
        return sorted((p.base_offset for p in parsed if p and p.kind == names.SNAPSHOT and not p.suffix), reverse=True)

    def _follow_up_to(self, end_offset: int, now_ms: int) -> None:
        """Brings producers, of whom none is known yet, to `end_offset`."""
        self._follow_between(self._load_snapshot(end_offset, now_ms), end_offset)

    def _follow_between(self, first_offset: int, end_offset: int) -> None:
        for batch in self._batches(first_offset, end_offset):
            self._follow(batch)

    def _load_snapshot(self, most: int, now_ms: int) -> int:
        """Takes in the newest usable snapshot up to offset `most`; the offset from which batches have to be followed."""
        for offset in self._snapshot_offsets():
            if not self.log_start_offset < offset <= most:
                continue
            try:
                entries = read_snapshot(self.directory / names.snapshot_name(offset))
            except CorruptFileError as error:
                self.notes.append(str(error))
                continue
            self.producers.load(entries, now_ms)
            return offset
        return self.log_start_offset

    def _follow(self, batch: Batch) -> CompletedTransaction | None:
        if batch.header.producer_id < 0:
            return None
        return self.producers.update(batch.header, end_transaction_marker(batch))

    def _batches(self, first_offset: int, end_offset: int) -> Iterator[Batch]:
        """Batches from the one that holds `first_offset` on, below `end_offset`."""
        if first_offset >= end_offset:
            return
        for segment, following in self._segments_from(first_offset):
            if segment.size == 0 or segment.base_offset >= end_offset:
                continue
            for batch in read_batches(segment.log_path, start_position(segment, first_offset), segment.size):
                if first_offset <= batch.header.last_offset and batch.header.base_offset < min(following, end_offset):
                    yield batch

    def _segments_from(self, offset: int) -> Iterator[tuple[LogSegment, int]]:
        for position, segment in enumerate(self.segments):
            following = self.segments[position + 1].base_offset if position + 1 < len(self.segments) else 2**63 - 1
            if following > offset:
                yield segment, following


def end_transaction_marker(batch: Batch) -> EndTransactionMarker | None:
    """The COMMIT or ABORT marker that a batch holds; None for data, empty control batches and KRaft's control records."""
    if not batch.header.is_control or batch.header.record_count == 0:
        return None
    record = batch.records()[0]
    try:
        if parse_control_key(record.key) not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            return None
        return parse_end_transaction(record.key, record.value)
    except MalformedError as error:
        batch.header.corrupt(batch.path, str(error))
