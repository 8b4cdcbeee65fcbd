"""How transactions ended that are over: what a partition of `__transaction_state` still tells of them. Blocks: for a thread."""

from __future__ import annotations

from collections.abc import Collection

from compactd.storage.log import PartitionLog
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.replaying import replayed
from compactd.workers.broker.transactions.records import decode_record, producer_of
from compactd.workers.broker.transactions.transaction import EPOCH_BUMPS, Producer, State

_COMMITTED = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})
_DECIDED = _COMMITTED | {State.PREPARE_ABORT, State.COMPLETE_ABORT}


def find_decisions(log: PartitionLog, chunk: int, wanted: Collection[Producer]) -> dict[Producer, bool]:
    """Whether the transactions with these markers (whose epochs are raised with each: newer clients') were committed.

    Those that the log does not tell of (any more) are left out. CorruptBatchError, StorageIOError.
    """
    found: dict[Producer, bool] = {}
    for _, batch in replayed(log, chunk):
        if batch.header.is_control:
            continue
        try:
            for record in batch.records():
                producer = producer_of(record.value) if record.value is not None else None
                if record.key is None or record.value is None or producer is None or producer not in wanted:
                    continue
                state = decode_record(record.key, record.value)
                if state.state in _DECIDED and state.client_version >= EPOCH_BUMPS:
                    found[producer] = state.state in _COMMITTED
        except MalformedError as error:
            batch.header.corrupt(str(log.directory), f"a record of transactions: {error}")
    return found
