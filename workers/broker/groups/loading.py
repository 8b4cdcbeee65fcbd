"""Reads one partition of `__consumer_offsets` into memory. Blocks: for a thread."""

from __future__ import annotations

from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import Batch, iter_batches
from compactd.storage.records.control import ControlRecordType
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.state import GroupState

#: Read at once; a batch that is larger is read whole.
_CHUNK = 4 << 20
_LENGTH_END = 12


def load(log: PartitionLog, state: GroupState) -> int:
    """Replays the log from its start to its end, which is returned. CorruptBatchError, CorruptFileError, StorageIOError.

    A record that can't be understood ends it: half of what was committed is worse than nothing (as in Kafka).
    """
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        with log.read(offset, _CHUNK, "log_end") as fetched:
            data = fetched.read()
        whole = _whole_batches(data)
        if not whole:
            break
        for batch in iter_batches(data[:whole], path=str(log.directory)):
            if batch.header.next_offset > offset:
                _replay(log, state, batch, offset)
                offset = batch.header.next_offset
    return end


def _whole_batches(data: bytes) -> int:
    """Bytes of `data` in front of a batch that was cut."""
    position = 0
    while position + _LENGTH_END <= len(data):
        size = int.from_bytes(data[position + 8 : position + _LENGTH_END], "big", signed=True) + _LENGTH_END
        if size <= _LENGTH_END or position + size > len(data):
            break
        position += size
    return position


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
