"""Reads one partition of `__transaction_state` into memory. Blocks: for a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import Batch, BatchHeader, iter_batches
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.transactions.records import decode_record, what_is_unknown
from compactd.workers.broker.transactions.transaction import Transaction

_LENGTH_END = 12


@dataclass(slots=True)
class Loaded:
    """What a log holds."""

    by_id: dict[str, Transaction] = field(default_factory=dict)
    #: Kinds of records that nobody knows, with how many there were.
    unknown: Counter[str] = field(default_factory=Counter)


def load(log: PartitionLog, chunk: int) -> Loaded:
    """Replays the log from its start to its end, reading `chunk` bytes at once; later records win.

    CorruptBatchError, StorageIOError. A record that is damaged ends it: a transaction that is not known as prepared would
    never be finished. (Kafka goes on with what it has read so far.) What another version of Kafka wrote is passed over.
    """
    loaded = Loaded()
    # Only what counts in the end is decoded: an id has three records for each of its transactions.
    latest: dict[bytes, tuple[bytes, BatchHeader]] = {}
    for batch in _batches(log, chunk):
        header = batch.header
        batch.check()
        if header.is_control:
            continue
        try:
            for record in batch.records():
                if record.key is None:
                    raise MalformedError("it has no key")
                if unknown := what_is_unknown(record.key, record.value):
                    loaded.unknown[unknown] += 1
                elif record.value is None:
                    latest.pop(record.key, None)
                else:
                    latest[record.key] = record.value, header
        except MalformedError as error:
            header.corrupt(str(log.directory), f"a record of transactions: {error}")
    for key, (value, header) in latest.items():
        try:
            transaction = decode_record(key, value)
        except MalformedError as error:
            header.corrupt(str(log.directory), f"a record of transactions: {error}")
        loaded.by_id[transaction.transactional_id] = transaction
    return loaded


def _batches(log: PartitionLog, chunk: int) -> Iterator[Batch]:
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        with log.read(offset, chunk, "log_end") as fetched:
            data = fetched.read()
        whole = _whole_batches(data)
        if not whole:
            return
        for batch in iter_batches(data[:whole], path=str(log.directory)):
            if batch.header.next_offset > offset:
                yield batch
                offset = batch.header.next_offset


def _whole_batches(data: bytes) -> int:
    """Bytes of `data` in front of a batch that was cut."""
    position = 0
    while position + _LENGTH_END <= len(data):
        size = int.from_bytes(data[position + 8 : position + _LENGTH_END], "big", signed=True) + _LENGTH_END
        if size <= _LENGTH_END or position + size > len(data):
            break
        position += size
    return position
