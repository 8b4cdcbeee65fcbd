"""Records of `__share_group_state`: snapshots and updates of share partitions (facts B5; Kafka 4.4.0)."""

from __future__ import annotations

from typing import Any

from compactd.storage.metadata.coordinator import CoordinatorRecord, decode_coordinator_record
from compactd.storage.metadata.schema import Schema, array, fields, tag

_KEY = fields("groupId:str topicId:uuid partition:i32")
_BATCHES = array("stateBatches", fields("firstOffset:i64 lastOffset:i64 deliveryState:i8 deliveryCount:i16"))
_COMPLETE = tag(0, "deliveryCompleteCount", "i32", -1)

SHARE_RECORDS: dict[int, CoordinatorRecord] = {
    0: CoordinatorRecord(
        _KEY,
        Schema(
            "SHARE_SNAPSHOT",
            (
                *fields("snapshotEpoch:i32 stateEpoch:i32 leaderEpoch:i32 startOffset:i64"),
                *fields("createTimestamp:i64 writeTimestamp:i64"),
                _BATCHES,
                _COMPLETE,
            ),
        ),
    ),
    1: CoordinatorRecord(
        _KEY,
        Schema("SHARE_UPDATE", (*fields("snapshotEpoch:i32 leaderEpoch:i32 startOffset:i64"), _BATCHES, _COMPLETE)),
    ),
}


def decode_share_record(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """One record of `__share_group_state`, in the form of `decode_coordinator_record`. Raises MalformedError."""
    return decode_coordinator_record(SHARE_RECORDS, key, value)
