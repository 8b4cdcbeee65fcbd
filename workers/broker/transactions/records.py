"""Records of `__transaction_state`, as Kafka 4.4.0 writes and reads them (TransactionLog; facts: kraft-and-coordinators B4)."""

from __future__ import annotations

import struct
from typing import Any

from compactd.storage.metadata.coordinator import decode_coordinator_record, encode_coordinator_record
from compactd.storage.metadata.transactions import TRANSACTION_RECORDS
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.transactions.java_order import by_topic, ordered_union
from compactd.workers.broker.transactions.transaction import Producer, State, Transaction, Transition

TRANSACTION_TOPIC = "__transaction_state"

#: The one record type, and the versions of its value: the second is flexible and is written from transaction.version 1 on.
_TRANSACTION = 0
_VERSIONS = (0, 1)
_TYPE_SIZE = 2
_PRODUCER = struct.Struct(">qh")


def encode_transition(transactional_id: str, to: Transition, transaction_version: int) -> tuple[bytes, bytes]:
    """Key and value; `transaction_version` is the finalized one of the cluster."""
    partitions: list[dict[str, Any]] | None = None
    if to.state is not State.EMPTY:
        partitions = [{"topic": topic, "partitionIds": ids} for topic, ids in by_topic(to.partitions).items()]
    fields: dict[str, Any] = {
        "producerId": to.producer_id,
        "producerEpoch": to.epoch,
        "transactionTimeoutMs": to.timeout_ms,
        "transactionStatus": int(to.state),
        "transactionPartitions": partitions,
        "transactionLastUpdateTimestampMs": to.update_ms,
        "transactionStartTimestampMs": to.start_ms,
    }
    if transaction_version >= 1:
        # What the first version has no room for is lost with it, as in Kafka.
        fields |= {
            "previousProducerId": to.previous_producer_id,
            "nextProducerId": to.next_producer_id,
            "clientTransactionVersion": to.client_version,
            "nextProducerEpoch": -1,
        }
    version = _VERSIONS[min(transaction_version, 1)]
    identity = {"transactionalId": transactional_id}
    key, value = encode_coordinator_record(TRANSACTION_RECORDS, _TRANSACTION, identity, version, fields)
    assert value is not None
    return key, value


def encode_tombstone(transactional_id: str) -> tuple[bytes, None]:
    """Forgets an id."""
    key, _ = encode_coordinator_record(TRANSACTION_RECORDS, _TRANSACTION, {"transactionalId": transactional_id})
    return key, None


def what_is_unknown(key: bytes, value: bytes | None) -> str:
    """Of a record of a type or version to come, which Kafka passes over: which it is; "": it is known, or damaged."""
    if len(key) >= _TYPE_SIZE and (number := int.from_bytes(key[:_TYPE_SIZE], "big", signed=True)) != _TRANSACTION:
        return f"type {number}"
    if value is not None and len(value) >= _TYPE_SIZE:
        version = int.from_bytes(value[:_TYPE_SIZE], "big", signed=True)
        if version not in _VERSIONS:
            return f"version {version}"
    return ""


def producer_of(value: bytes) -> Producer | None:
    """Producer id and epoch in a record's value: both versions have them at one place. None: it is too short."""
    return Producer(*_PRODUCER.unpack_from(value, _TYPE_SIZE)) if len(value) >= _TYPE_SIZE + _PRODUCER.size else None


def decode_record(key: bytes, value: bytes) -> Transaction:
    """The state of an id. MalformedError."""
    record = decode_coordinator_record(TRANSACTION_RECORDS, key, value)
    transactional_id = record["key"]["transactionalId"]
    fields = record["value"]
    try:
        state = State(fields["transactionStatus"])
    except ValueError:
        raise MalformedError(f"transaction status {fields['transactionStatus']} is unknown") from None
    partitions: tuple[tuple[str, int], ...] = ()
    if state is not State.EMPTY:
        listed = fields["transactionPartitions"]
        if listed is None:
            raise MalformedError(f"a transaction in state {state.title} without a list of partitions")
        partitions = ordered_union((), [(each["topic"], number) for each in listed for number in each["partitionIds"]])
    return Transaction(
        transactional_id,
        fields["producerId"],
        fields["transactionTimeoutMs"],
        fields["transactionLastUpdateTimestampMs"],
        previous_producer_id=fields.get("previousProducerId", -1),
        next_producer_id=fields.get("nextProducerId", -1),
        epoch=fields["producerEpoch"],
        state=state,
        partitions=partitions,
        start_ms=fields["transactionStartTimestampMs"],
        client_version=fields.get("clientTransactionVersion", 0),
    )
