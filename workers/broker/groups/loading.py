"""Reads one partition of `__consumer_offsets` into memory. Blocks: for a thread."""

from __future__ import annotations

from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import Batch
from compactd.storage.records.control import ControlRecordType
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.state import GroupState
from compactd.workers.broker.replaying import replayed


def load(log: PartitionLog, state: GroupState, chunk: int) -> int:
    """Replays the log from its start to its end, which is returned. CorruptBatchError, CorruptFileError, StorageIOError.

    `chunk`: offsets.load.buffer.size. A record that can't be understood ends it: half of what was committed is worse than
    nothing (as in Kafka).
    """
    end = log.log_end_offset
    for first, batch in replayed(log, chunk):
        _replay(log, state, batch, first)
    return end


def _replay(log: PartitionLog, state: GroupState, batch: Batch, first: int) -> None:
    batch.check()
    header = batch.header
    producer_id = header.producer_id if header.is_transactional else -1
    try:
        for record in batch.records():
            if record.offset < first or record.key is None:
                continue
            if header.is_control:
                kind = int.from_bytes(record.key[2:4], "big", signed=True)
                if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                    state.transaction_ended(header.producer_id, kind == ControlRecordType.COMMIT)
            else:
                state.replay(record.offset, record.key, record.value, producer_id)
    except MalformedError as error:
        header.corrupt(str(log.directory), f"a record of groups: {error}")
