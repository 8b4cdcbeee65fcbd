"""DescribeProducers v0: who writes to a partition (facts: kafka-protocol 15.8; KIP-664)."""

from __future__ import annotations

from typing import Any

from compactd.storage.names import is_topic_name
from compactd.workers.broker.api_keys import DESCRIBE_PRODUCERS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns

_MESSAGES = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic name is invalid",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}


@handles(DESCRIBE_PRODUCERS, 0, 0)
async def describe_producers(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Every producer that a partition of this broker knows, with the offset at which its open transaction began."""
    topics = []
    turns = Turns()
    for topic in request.topics:
        error = _topic_error(context, header, topic.name)
        rows = []
        for number in topic.partition_indexes:
            await turns.others()
            rows.append(_row(number, error, _MESSAGES[error]) if error else _described(context, topic.name, number))
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


def _topic_error(context: Context, header: RequestHeader, name: str) -> ErrorCode:
    if not is_topic_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not context.part(Authorizer).allows(header, Operation.READ, Resource.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if context.image.topic(name) is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _described(context: Context, topic: str, number: int) -> dict[str, Any]:
    partition = context.partitions.get(topic, number)
    if partition is None:
        exists = context.image.partition(topic, number) is not None
        return _row(number, ErrorCode.NOT_LEADER_OR_FOLLOWER if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if partition.error:
        return _row(number, partition.error)
    producers = [
        {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "last_sequence": entry.last_sequence,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_start_offset": -1
            if entry.current_txn_first_offset is None
            else entry.current_txn_first_offset,
        }
        for entry in partition.log.producers.entries()
    ]
    return {**_row(number), "active_producers": producers}


def _row(number: int, error: ErrorCode = ErrorCode.NONE, message: str | None = None) -> dict[str, Any]:
    return {"partition_index": number, "error_code": error, "error_message": message, "active_producers": ()}
