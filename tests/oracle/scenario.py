"""Logs as lists of operations, and how they become the oracle's requests.

An operation says what to do, not with which sequence number, epoch or offset: `Writer` keeps that state. So any sublist
of a scenario's operations is a valid scenario too, which is what makes a failing example shrink.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.driver import record

#: Where every scenario's clock starts: 2023-11-14T22:13:20Z.
EPOCH_MS = 1_700_000_000_000
DAY_MS = 86_400_000
#: Sequences start a few below the wrap, so that the third or so batch of a producer goes over it.
FIRST_SEQUENCE = 2_147_483_644
FIRST_PRODUCER_ID = 5
MAX_SEQUENCE = 2_147_483_647


@dataclass(frozen=True)
class Payload:
    """A value of `size` bytes: one letter again and again for fill 0, else pseudo-random bytes of that seed."""

    size: int
    fill: int = 0

    def data(self) -> bytes:
        return b"v" * self.size if self.fill == 0 else random.Random(self.fill).randbytes(self.size)


@dataclass(frozen=True)
class Rec:
    key: bytes | None
    #: None: a tombstone.
    value: Payload | None
    #: "now" plus `ts` ms; `absolute`: the timestamp itself (-1 = none).
    ts: int = 0
    absolute: bool = False
    headers: tuple[tuple[str, bytes | None], ...] = ()
    #: Offsets left out before this record (only where the batch has a gap, so comes from a leader's compacted log).
    skip: int = 0


@dataclass(frozen=True)
class Append:
    """One batch."""

    records: tuple[Rec, ...]
    codec: str = "none"
    magic: int = 2
    #: Index of an idempotent producer; None: no producer id.
    producer: int | None = None
    transactional: bool = False
    log_append_time: bool = False
    #: None: appended as a leader. Else as a follower, so many offsets past the log end offset.
    gap: int | None = None
    new_leader: bool = False


@dataclass(frozen=True)
class Empty:
    """A batch without records, as an earlier compaction leaves it."""

    count: int = 1
    producer: int | None = None
    control: bool = False


@dataclass(frozen=True)
class End:
    """A marker. An open transaction of the producer ends; where none is open the marker stands alone."""

    producer: int
    commit: bool
    #: The marker carries the next epoch, as with version 2 of the transaction protocol.
    new_epoch: bool = False


@dataclass(frozen=True)
class Fence:
    """The producer comes back with the next epoch and sequence 0."""

    producer: int


@dataclass(frozen=True)
class Roll:
    pass


@dataclass(frozen=True)
class Tick:
    ms: int


@dataclass(frozen=True)
class DeleteRecords:
    """Raises the log start offset to this share of the log (0..100)."""

    percent: int


Operation = Append | Empty | End | Fence | Roll | Tick | DeleteRecords


@dataclass(frozen=True)
class Clean:
    """One round of cleaning. Offsets come from cleanable() unless said otherwise."""

    #: Slots of the offset map; the map's bytes are 24 times that.
    slots: int = 1000
    load_factor: float = 0.9
    #: Clean from the log start again, as if the checkpoint were lost.
    lost_checkpoint: bool = False
    #: The high watermark, counted back from the log end offset.
    high_watermark_back: int = 0
    #: Topic settings that this round changes.
    config: Mapping[str, object] = field(default_factory=dict)
    #: 2 or more: so many first segments fill one to the byte: internal.segment.bytes is the sum of their .log files.
    full_group: int = 0
    #: 1 or more: so many first segments have indexes that fit one of segment.index.bytes, with so many bytes to spare (the
    #: cleaned index may need more entries than its sources had).
    full_index: int = 0
    index_slack: int = 0


@dataclass(frozen=True)
class Round:
    operations: tuple[Operation, ...]
    clean: Clean = Clean()
    #: The clock moves by this before the clean.
    advance_ms: int = 0
    #: Last modified of the n-th .log, counted from the start of the clock, round and round; (): left alone.
    mtimes_ms: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scenario:
    rounds: tuple[Round, ...]
    #: Topic settings while records are written, and while the log is cleaned.
    write_config: Mapping[str, object] = field(default_factory=dict)
    clean_config: Mapping[str, object] = field(default_factory=dict)


@dataclass
class _Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = FIRST_SEQUENCE
    in_transaction: bool = False

    def next_epoch(self) -> None:
        self.epoch += 1
        self.sequence = 0

    def spend(self, count: int) -> int:
        """The sequence of a batch over `count` offsets; after the greatest comes 0."""
        first = self.sequence
        self.sequence = (first + count) % (MAX_SEQUENCE + 1)
        return first


class Writer:
    """Turns operations into requests and keeps what the next one needs to know."""

    def __init__(self, now_ms: int = EPOCH_MS, max_batch_bytes: int = 1 << 20) -> None:
        self.now_ms = now_ms
        self.max_batch_bytes = max_batch_bytes
        self._leader_epoch = 0
        self._producers: dict[int, _Producer] = {}
        #: percent of the log the start offset is raised to, once the end is known.
        self.start_percent = 0

    def requests(self, operations: Sequence[Operation]) -> list[dict[str, Any]]:
        return [request for operation in operations for request in self._request(operation)]

    def _request(self, operation: Operation) -> Iterator[dict[str, Any]]:
        match operation:
            case Append():
                yield from self._append(operation)
            case Empty():
                yield self._empty(operation)
            case End(producer=index, commit=commit, new_epoch=new_epoch):
                producer = self._producer(index)
                if new_epoch:
                    producer.next_epoch()
                yield {
                    **self._common("control"),
                    "type": "commit" if commit else "abort",
                    "pid": producer.producer_id,
                    "epoch": producer.epoch,
                }
                if not producer.in_transaction:
                    # Where the marker is all the log knows of a producer (it may have forgotten the rest), it takes
                    # nothing but a new epoch from sequence 0 on.
                    producer.next_epoch()
                producer.in_transaction = False
            case Fence(producer=index):
                producer = self._producer(index)
                if not producer.in_transaction:
                    producer.next_epoch()
            case Roll():
                yield self._common("roll")
            case Tick(ms=ms):
                self.now_ms += ms
            case DeleteRecords(percent=percent):
                self.start_percent = percent

    def _common(self, op: str) -> dict[str, Any]:
        return {"op": op, "now": self.now_ms, "leaderEpoch": self._leader_epoch}

    def _producer(self, index: int) -> _Producer:
        return self._producers.setdefault(index, _Producer(FIRST_PRODUCER_ID + index))

    def _append(self, batch: Append) -> Iterator[dict[str, Any]]:
        records = [self._record(rec) for rec in batch.records]
        # A batch above segment.bytes would be refused.
        if sum(_upper_bound(rec) for rec in batch.records) + 120 > self.max_batch_bytes:
            return
        if batch.new_leader:
            self._leader_epoch += 1
        request = {**self._common("append"), "records": records, "codec": batch.codec, "magic": batch.magic}
        if batch.log_append_time:
            request["logAppendTime"] = True
        if batch.gap is not None:
            request["gap"] = batch.gap
        else:
            for made in records:
                made.pop("skip", None)
        if batch.producer is not None and batch.magic == 2:
            producer = self._producer(batch.producer)
            producer.in_transaction = producer.in_transaction or batch.transactional
            span = len(records) + sum(int(made.get("skip", 0)) for made in records)
            request |= {
                "pid": producer.producer_id,
                "epoch": producer.epoch,
                "seq": producer.spend(span),
                "txn": producer.in_transaction,
            }
        yield request

    def _empty(self, batch: Empty) -> dict[str, Any]:
        request = {**self._common("empty"), "count": batch.count}
        if batch.producer is None:
            return request
        producer = self._producer(batch.producer)
        request |= {"pid": producer.producer_id, "epoch": producer.epoch}
        if batch.control and not producer.in_transaction:
            # What is left of a marker that was the last the log knew of its producer.
            producer.next_epoch()
            return {**request, "control": True, "txn": True, "count": 1}
        return {**request, "seq": producer.spend(batch.count), "txn": producer.in_transaction}

    def _record(self, rec: Rec) -> dict[str, Any]:
        value = None if rec.value is None else rec.value.data()
        ts = rec.ts if rec.absolute else self.now_ms + rec.ts
        return record(rec.key, value, ts, rec.headers, rec.skip)


def _upper_bound(rec: Rec) -> int:
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in rec.headers)
    return 60 + len(rec.key or b"") + (rec.value.size if rec.value else 0) + headers
