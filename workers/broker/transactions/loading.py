"""Reads one partition of `__transaction_state` into memory. Blocks: for a thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import BatchHeader
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.replaying import replayed
from compactd.workers.broker.transactions.records import decode_record, what_is_unknown
from compactd.workers.broker.transactions.transaction import Transaction


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
    for _, batch in replayed(log, chunk):
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
