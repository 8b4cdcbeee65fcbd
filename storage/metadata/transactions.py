"""Records of `__transaction_state`: one transactional id each (facts B4; Kafka 4.4.0)."""

from __future__ import annotations

from typing import Any

from compactd.storage.metadata.coordinator import CoordinatorRecord, decode_coordinator_record
from compactd.storage.metadata.schema import Field, Schema, array, fields, tag

#: Status byte to the name that Kafka's tools print. Dead and PrepareEpochFence are never on disk in a sound log.
STATUS_NAMES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)

TRANSACTION_RECORDS: dict[int, CoordinatorRecord] = {
    0: CoordinatorRecord(
        fields("transactionalId:str"),
        Schema(
            "TRANSACTION_LOG",
            (
                Field("producerId", "i64"),
                tag(0, "previousProducerId", "i64", -1, since=1),
                tag(1, "nextProducerId", "i64", -1, since=1),
                *fields("producerEpoch:i16 transactionTimeoutMs:i32 transactionStatus:i8"),
                tag(3, "nextProducerEpoch", "i16", -1, since=1),
                array("transactionPartitions", fields("topic:str partitionIds:i32[]"), nullable=True),
                *fields("transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64"),
                tag(2, "clientTransactionVersion", "i16", 0, since=1),
            ),
            high=1,
            flexible_since=1,
        ),
    ),
}


def decode_transaction_record(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """One record of `__transaction_state`, in the form of `decode_coordinator_record`, with `statusName` added.

    Raises MalformedError.
    """
    result = decode_coordinator_record(TRANSACTION_RECORDS, key, value)
    if result["value"] is not None:
        status = result["value"]["transactionStatus"]
        result["statusName"] = STATUS_NAMES[status] if 0 <= status < len(STATUS_NAMES) else f"unknown ({status})"
    return result
