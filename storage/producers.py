"""Producer state of a partition and its `.snapshot` files (ProducerStateManager, ProducerAppendInfo; facts 2.9).

The log's batches with a producer id are fed to `ProducerState.update` in order. What it then knows decides how far the
log is stable (open transactions), which empty batches a cleaner keeps (active producers), and later whether an appended
batch is a duplicate (the last five batches of each producer).

A snapshot lists producers in the order in which a Java HashMap keyed by producer id iterates. That depends on the
table's size, which only grows, and within a bucket on the order of insertion; both are followed here. Not followed: a
bucket that Java turns into a tree (nine ids in one bucket of a table of 64 or more), which may change the order in it.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import crc32c

from compactd.config.errors import CorruptFileError, FaultError
from compactd.storage import files
from compactd.storage.kernel.interface import AbortedTransaction, ActiveProducer
from compactd.storage.records.control import ControlRecordType, EndTransactionMarker

#: Batches remembered of each producer, to find duplicates; a snapshot keeps the last one only.
BATCHES_TO_RETAIN = 5
#: Default of producer.id.expiration.ms.
PRODUCER_EXPIRATION_MS = 86_400_000

_VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
#: The CRC covers everything after itself.
_CRC_FROM = 6
_LARGEST_SNAPSHOT = 1 << 30
_SEQUENCES = 2**31


class ProducedBatch(Protocol):
    """What `update` asks of a batch header; records.batch.BatchHeader has it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """One batch of a producer."""

    last_sequence: int
    last_offset: int
    #: Last offset less first offset.
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequences wrap from 2147483647 to 0."""
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """What is known of one producer id (ProducerStateEntry)."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = -1
    #: Largest timestamp of its last batch, or its last marker's, in ms.
    last_timestamp: int = -1
    current_txn_first_offset: int | None = None
    #: Newest last.
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_RETAIN))

    @property
    def last_sequence(self) -> int:
        """-1 when only markers are known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_data_offset(self) -> int:
        """-1 when only markers are known."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """A producer in a transaction never expires."""
        return self.current_txn_first_offset is None and now_ms - self.last_timestamp >= expiration_ms

    def take_epoch(self, producer_epoch: int) -> None:
        """A new epoch starts its sequences anew: what was sent under the old one is forgotten."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction with data whose marker was read."""

    producer_id: int
    first_offset: int
    #: The marker's offset.
    last_offset: int
    is_aborted: bool
    #: First offset of the earliest transaction of another producer still open, else the offset after the marker.
    last_stable_offset: int

    def as_aborted(self) -> AbortedTransaction:
        """Its entry in the segment's transaction index."""
        return AbortedTransaction(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


@dataclass(slots=True)
class Verification:
    """A producer asks whether its transaction is open here: nothing of it is in the log yet (VerificationStateEntry; KIP-890).

    An abort that gets ahead of the answer takes the entry away, and the answer then counts for nothing.
    """

    started_ms: int
    epoch: int
    #: The lowest first sequence of what waits to be appended: nothing behind it may get ahead of it.
    lowest_sequence: int
    #: The producer gets a new epoch with each transaction, so that its sequences start at 0 with each.
    bumps_epoch: bool
    #: The coordinator says that the partition is in the transaction.
    verified: bool = False

    def note(self, sequence: int, epoch: int) -> None:
        """Another batch of the producer asks."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class ProducerState:
    """Producer id to entry, and the transactions that are open or not yet below the high watermark."""

    def __init__(self, expiration_ms: int = PRODUCER_EXPIRATION_MS, path: str = "") -> None:
        self.expiration_ms = expiration_ms
        self.path = path
        #: First offset to producer id, by offset.
        self.ongoing_txns: dict[int, int] = {}
        #: First offset to the marker's offset of completed transactions the high watermark may not have passed.
        self.unreplicated_txns: dict[int, int] = {}
        #: By producer id; nothing of this is in a snapshot.
        self.verifications: dict[int, Verification] = {}
        self._entries: dict[int, ProducerEntry] = {}
        self._table_size = 16

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._entries

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Takes in a snapshot's entries, those that have expired left out (loadFromSnapshot)."""
        for entry in entries:
            if entry.is_expired(now_ms, self.expiration_ms):
                continue
            self.put(entry)
            if entry.current_txn_first_offset is not None:
                self.ongoing_txns[entry.current_txn_first_offset] = entry.producer_id

    def update(self, batch: ProducedBatch, control: EndTransactionMarker | None = None) -> CompletedTransaction | None:
        """Takes in the next batch of the log. Batches without a producer id change nothing.

        `control`: the marker of a control batch; None for an empty one, whose transaction was cleaned away entirely,
        and for data. Returns the transaction that the marker completed, if it had data.
        FaultError: data outside a transaction from a producer that has one open.
        """
        if batch.producer_id < 0:
            return None
        if batch.is_control and control is None:
            # An emptied marker says nothing, and yet Kafka then knows its producer by name.
            if batch.producer_id not in self._entries:
                self.put(ProducerEntry(batch.producer_id))
            return None
        if batch.is_control:
            return self._mark(batch, control) if control is not None else None
        entry = self._entries.get(batch.producer_id)
        if entry is not None and entry.current_txn_first_offset is not None and not batch.is_transactional:
            raise FaultError(
                path=self.path or "producer state",
                reason=f"producer {batch.producer_id} wrote offsets {batch.base_offset} to {batch.last_offset} outside "
                f"the transaction it has open since offset {entry.current_txn_first_offset}",
            )
        if entry is None:
            entry = self.put(ProducerEntry(batch.producer_id))
        entry.take_epoch(batch.producer_epoch)
        delta = batch.last_offset - batch.base_offset
        entry.batches.append(BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp))
        entry.last_timestamp = batch.max_timestamp
        if batch.is_transactional and entry.current_txn_first_offset is None:
            entry.current_txn_first_offset = batch.base_offset
            self.ongoing_txns[batch.base_offset] = batch.producer_id
        return None

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open here, under this epoch."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.current_txn_first_offset is not None and entry.producer_epoch == epoch

    def first_unstable_offset(self, high_watermark: int | None = None) -> int | None:
        """First offset of the earliest transaction that is open, or completed with its marker not replicated.

        With `high_watermark`, transactions whose marker lies below it count as replicated. None: all is stable.
        """
        offsets = [
            first for first, last in self.unreplicated_txns.items() if high_watermark is None or last >= high_watermark
        ]
        return min([*offsets, *self.ongoing_txns], default=None)

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """Up to (exclusive) which offset every transaction is decided; never above `high_watermark`."""
        unstable = self.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(max(unstable, log_start_offset), high_watermark)

    def raise_high_watermark(self, offset: int) -> None:
        """Forgets completed transactions whose marker lies below `offset` (onHighWatermarkUpdated).

        A risen log start offset asks for the same.
        """
        for first in [first for first, last in self.unreplicated_txns.items() if last < offset]:
            del self.unreplicated_txns[first]

    def expire(self, now_ms: int) -> list[int]:
        """Forgets producers that have expired; returns their ids."""
        gone = [key for key, entry in self._entries.items() if entry.is_expired(now_ms, self.expiration_ms)]
        for key in gone:
            del self._entries[key]
        for key, asked in list(self.verifications.items()):
            if now_ms - asked.started_ms >= self.expiration_ms:
                del self.verifications[key]
        return gone

    def clear(self) -> None:
        """Forgets everything, before a snapshot is loaded anew after a truncation. The table keeps its size."""
        self._entries.clear()
        self.ongoing_txns.clear()
        self.unreplicated_txns.clear()

    def active_producers(self, now_ms: int | None) -> dict[int, ActiveProducer]:
        """Producers that have not expired at `now_ms` (None: all that are known), with the offset of their last data record."""
        return {
            key: ActiveProducer(entry.last_data_offset if entry.batches else None, entry.producer_epoch)
            for key, entry in self._entries.items()
            if now_ms is None or not entry.is_expired(now_ms, self.expiration_ms)
        }

    def entries(self) -> list[ProducerEntry]:
        """All entries in the order a snapshot lists them."""
        mask = self._table_size - 1
        return [self._entries[key] for key in sorted(self._entries, key=lambda key: java_hash(key) & mask)]

    def take_snapshot(self) -> bytes:
        """The content of a `.snapshot` file for this state."""
        return encode_snapshot(self.entries())

    def complete(self, producer_id: int, first_offset: int, last_offset: int, is_aborted: bool) -> CompletedTransaction:
        """A marker at `last_offset` ends the open transaction that began at `first_offset`."""
        others = (offset for offset, producer in self.ongoing_txns.items() if producer != producer_id)
        stable = min(others, default=last_offset + 1)
        self.ongoing_txns.pop(first_offset, None)
        self.unreplicated_txns[first_offset] = last_offset
        return CompletedTransaction(producer_id, first_offset, last_offset, is_aborted, stable)

    def _mark(self, batch: ProducedBatch, control: EndTransactionMarker) -> CompletedTransaction | None:
        entry = self._entries.get(batch.producer_id) or self.put(ProducerEntry(batch.producer_id))
        first = entry.current_txn_first_offset
        entry.take_epoch(batch.producer_epoch)
        entry.coordinator_epoch = control.coordinator_epoch
        # A control batch has one record: its timestamp is the batch's largest.
        entry.last_timestamp = batch.max_timestamp
        entry.current_txn_first_offset = None
        if first is None:
            return None
        return self.complete(batch.producer_id, first, batch.base_offset, control.type == ControlRecordType.ABORT)

    def put(self, entry: ProducerEntry) -> ProducerEntry:
        """Adds or replaces an entry, and lets the table grow when java.util.HashMap's would."""
        key = entry.producer_id
        if key not in self._entries:
            mask = self._table_size - 1
            if self._table_size < 64:
                # Instead of making a tree of nine entries in one bucket, a small table doubles.
                bucket = java_hash(key) & mask
                if sum(java_hash(other) & mask == bucket for other in self._entries) >= 8:
                    self._table_size *= 2
            if len(self._entries) + 1 > self._table_size * 3 // 4:
                self._table_size *= 2
        self._entries[key] = entry
        return entry


def read_snapshot(path: files.StrPath) -> list[ProducerEntry]:
    """The entries of a `.snapshot` file in file order.

    CorruptFileError: another version, a CRC that does not match, or a length that does not fit its count. Kafka removes
    such a file and takes the next older one.
    """
    name = os.fspath(path)
    data = files.read_file(name, _LARGEST_SNAPSHOT)
    if len(data) < _HEADER.size:
        raise _corrupt(name, f"the file has {len(data)} bytes, a snapshot has {_HEADER.size} at least", len(data))
    version, stored, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise _corrupt(name, f"version {version}, where only {_VERSION} is known", 0)
    computed = crc32c.crc32c(memoryview(data)[_CRC_FROM:])
    if computed != stored:
        raise _corrupt(name, f"its CRC is {stored:#010x}, its content gives {computed:#010x}", 2)
    if count < 0 or _HEADER.size + count * _ENTRY.size != len(data):
        raise _corrupt(name, f"it promises {count} producers in {len(data)} bytes", _CRC_FROM)
    return [_decode(values) for values in _ENTRY.iter_unpack(data[_HEADER.size :])]


def encode_snapshot(entries: Sequence[ProducerEntry]) -> bytes:
    """The content of a `.snapshot` file that lists these entries in this order."""
    body = bytearray(len(entries).to_bytes(4, "big"))
    for entry in entries:
        current = entry.current_txn_first_offset
        body += _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            -1 if current is None else current,
        )
    return _VERSION.to_bytes(2, "big") + crc32c.crc32c(bytes(body)).to_bytes(4, "big") + bytes(body)


def _decode(values: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, current = values
    entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, current if current >= 0 else None)
    if offset >= 0:
        entry.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
    return entry


def java_hash(producer_id: int) -> int:
    """HashMap's spread hash of a Long, unsigned."""
    value = producer_id & 0xFFFFFFFFFFFFFFFF
    low = (value ^ value >> 32) & 0xFFFFFFFF
    return low ^ low >> 16


def _corrupt(path: str, reason: str, position: int) -> CorruptFileError:
    return CorruptFileError(
        path=path,
        reason=reason,
        position=position,
        advice="Kafka removes such a snapshot and takes the next older one.",
    )
