"""Partition directories for tests, written as a broker's leader would and closed as an orderly stop leaves them; no Java.

    with LogBuilder(tmp_path / "t-0", topic_config) as log:
        log.append([("a", "1"), ("b", None)])
        log.append([("a", "2")], pid=5, sequence=0, transactional=True)
        log.control("commit", pid=5)
        log.roll()

What it writes is compared with Kafka's own files in tests/oracle/test_log_builder.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.partition import end_transaction_marker
from compactd.storage.producers import ProducerState
from compactd.storage.records.batch import Batch, iter_batches
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Headers, Record
from compactd.storage.segment import MAX_RELATIVE_OFFSET
from compactd.storage.transaction_index import encode_transaction

#: 2023-11-14T22:13:20Z, the clock of tests that don't care.
NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Text = str | bytes | None


class Entry(NamedTuple):
    """A record to append; offsets come from the log. Keys and values as text or bytes; ts None: the log's clock."""

    key: Text
    value: Text
    ts: int | None = None
    headers: Headers = ()
    #: Offsets left out before it.
    skip: int = 0


class Appended(NamedTuple):
    first_offset: int
    last_offset: int


class LogBuilder:
    """One partition being written. `now_ms` is its clock, to be moved at will; `close` (or `with`) completes its files."""

    def __init__(self, directory: Path, config: TopicConfig | None = None, *, now_ms: int = NOW_MS) -> None:
        self.directory = directory
        self.config = config or TopicConfig()
        self.now_ms = now_ms
        self.log_end_offset = 0
        self.producers = ProducerState()
        self._epochs = LeaderEpochs()
        self._snapshot_offset = 0
        directory.mkdir(parents=True)
        (directory / names.LEADER_EPOCH_CHECKPOINT).touch()
        self._start_segment(0)

    def __enter__(self) -> LogBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    @property
    def segment_bases(self) -> list[int]:
        """Base offsets of all segments; the last is the active one's."""
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    @property
    def active_base(self) -> int:
        return self._base

    @property
    def active_size(self) -> int:
        """Bytes of the active segment."""
        return len(self._log)

    def append(
        self,
        entries: Sequence[Entry | tuple[Text, Text]],
        *,
        pid: int = -1,
        epoch: int | None = None,
        sequence: int | None = None,
        transactional: bool = False,
        codec: str = "none",
        magic: int = 2,
        leader_epoch: int = 0,
        log_append_time_ms: int | None = None,
        gap: int = 0,
    ) -> Appended:
        """One batch, `gap` offsets past the log end offset.

        `sequence` None: the producer's next, from 0 on. `epoch` None: the producer's present one, or 0.
        """
        records = self._records(entries, gap)
        base = self.log_end_offset + gap
        if magic < 2:
            return self.append_raw(build_message_set(records, magic, CODECS.index(codec), log_append_time_ms))
        known = self.producers.get(pid)
        if pid >= 0 and epoch is None:
            epoch = known.producer_epoch if known is not None else 0
        if pid >= 0 and sequence is None:
            same_epoch = known is not None and known.producer_epoch == epoch
            sequence = (known.last_sequence + 1) % 2**31 if known is not None and same_epoch else 0
        return self.append_raw(
            build_batch(
                records,
                base_offset=base,
                codec=CODECS.index(codec),
                leader_epoch=leader_epoch,
                producer_id=pid,
                producer_epoch=-1 if epoch is None else epoch,
                base_sequence=-1 if sequence is None else sequence,
                transactional=transactional,
                log_append_time_ms=log_append_time_ms,
            )
        )

    def control(
        self,
        kind: Literal["commit", "abort"],
        pid: int,
        *,
        epoch: int | None = None,
        ts: int | None = None,
        coordinator_epoch: int = 0,
        leader_epoch: int = 0,
    ) -> int:
        """A transaction marker; its offset."""
        known = self.producers.get(pid)
        if epoch is None:
            epoch = known.producer_epoch if known is not None else 0
        return self.append_raw(
            control_batch(
                kind,
                self.log_end_offset,
                self.now_ms if ts is None else ts,
                pid,
                epoch,
                coordinator_epoch=coordinator_epoch,
                leader_epoch=leader_epoch,
            )
        ).first_offset

    def empty_batch(
        self,
        count: int = 1,
        *,
        pid: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        leader_epoch: int = 0,
    ) -> Appended:
        """A batch over `count` offsets without records, as compaction leaves it."""
        base = self.log_end_offset
        return self.append_raw(
            build_batch(
                [],
                base_offset=base,
                last_offset=base + count - 1,
                leader_epoch=leader_epoch,
                producer_id=pid,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
                control=control,
                max_timestamp=self.now_ms,
            )
        )

    def append_raw(self, data: bytes) -> Appended:
        """Batches as they are, offsets included; rolls first where Kafka would."""
        batches = list(iter_batches(data))
        self._roll_if_due(batches, len(data))
        position = len(self._log)
        self._log += data
        for batch in batches:
            header = batch.header
            self._index.append(header.last_offset, header.max_timestamp, position + header.position, header.size)
            if (
                header.magic >= 2
                and header.leader_epoch >= 0
                and self._epochs.assign(header.leader_epoch, header.base_offset)
            ):
                self._epochs.write(self.directory / names.LEADER_EPOCH_CHECKPOINT)
            if header.producer_id >= 0:
                completed = self.producers.update(header, end_transaction_marker(batch))
                if completed is not None and completed.is_aborted:
                    self._aborted += encode_transaction(completed.as_aborted())
        first, last = batches[0].base_offset, batches[-1].header.last_offset
        self.log_end_offset = last + 1
        self._write_segment()
        return Appended(first, last)

    def roll(self, base_offset: int | None = None) -> int:
        """Closes the active segment; the base offset of the new one (the log end offset, unless a higher one is given)."""
        base = self.log_end_offset if base_offset is None else base_offset
        if base == self._base:
            return base  # it is empty: Kafka puts another empty segment in its place
        self._index.close()
        self._write_indexes()
        self._take_snapshot(base)
        self._start_segment(base)
        return base

    def close(self) -> None:
        """What an orderly stop does: the active segment's indexes as if it were closed, a producer snapshot at the end."""
        self._index.close()
        self._write_indexes()
        self._take_snapshot(self.log_end_offset)

    def _records(self, entries: Sequence[Entry | tuple[Text, Text]], gap: int) -> list[Record]:
        offset = self.log_end_offset + gap
        records = []
        for entry in entries:
            made = entry if isinstance(entry, Entry) else Entry(*entry)
            offset += made.skip
            ts = self.now_ms if made.ts is None else made.ts
            records.append(Record(offset, ts, _bytes(made.key), _bytes(made.value), made.headers))
            offset += 1
        return records

    def _roll_if_due(self, batches: Sequence[Batch], size: int) -> None:
        """LogSegment.shouldRoll: too large, too old by its records' times, indexes full, offsets too far apart."""
        config, last = self.config, batches[-1].header.last_offset
        newest = max(batch.header.max_timestamp for batch in batches)
        longest = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        aged = self._first_timestamp >= 0 and newest >= 0 and newest - self._first_timestamp > longest
        if (
            len(self._log) > config.segment_bytes - size
            or (self._log and aged)
            or self._index.is_full
            or last - self._base > MAX_RELATIVE_OFFSET
        ):
            first = batches[0]
            # The first offset of a message set that a follower appends is not known without decompression.
            base = first.base_offset if first.header.magic >= 2 else last - MAX_RELATIVE_OFFSET
            self.roll(max(base, self.log_end_offset))

    def _start_segment(self, base: int) -> None:
        self._base = base
        self._log = bytearray()
        self._aborted = bytearray()
        self._first_timestamp = -1
        self._index = OffsetIndexBuilder(base, self.config.index_interval_bytes, self.config.segment_index_bytes)
        self._write_segment()

    def _write_segment(self) -> None:
        (self.directory / names.log_name(self._base)).write_bytes(self._log)
        if self._aborted:
            (self.directory / names.transaction_index_name(self._base)).write_bytes(self._aborted)
        if self._first_timestamp < 0 and self._log:
            self._first_timestamp = next(iter_batches(bytes(self._log))).header.max_timestamp

    def _write_indexes(self) -> None:
        (self.directory / names.offset_index_name(self._base)).write_bytes(self._index.offset_index_bytes())
        (self.directory / names.time_index_name(self._base)).write_bytes(self._index.time_index_bytes())

    def _take_snapshot(self, offset: int) -> None:
        if offset > self._snapshot_offset:
            (self.directory / names.snapshot_name(offset)).write_bytes(self.producers.take_snapshot())
            self._snapshot_offset = offset


def settings(**values: object) -> TopicConfig:
    """A topic's settings by names with underscores: settings(segment_bytes=1000, min_compaction_lag_ms=5).

    Unlike Kafka's, sizes of segments have no lower limit.
    """
    return replace_config(TopicConfig(cleanup_policy=frozenset({"compact"})), **values)


def replace_config(config: TopicConfig, **values: object) -> TopicConfig:
    """The same settings but for these."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__}
    return TopicConfig(**{**fields, **values})


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
