"""WriteTxnMarkers v1 to v2: what an operator writes to end a transaction that hangs (facts: kafka-protocol 15.6)."""

from __future__ import annotations

import asyncio
from typing import Any

from compactd.workers.broker.api_keys import WRITE_TXN_MARKERS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.markers import Marker, MarkerWriter
from compactd.workers.broker.transactions.transaction import TopicPartitionKey


@handles(WRITE_TXN_MARKERS, 1, 2)
async def write_markers(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Markers of partitions of this broker, one producer after another; the errors of a producer are told together."""
    authorizer = context.part(Authorizer)
    if not authorizer.allows(header, Operation.ALTER, Resource.CLUSTER, log=False) and not authorizer.allows(
        header, Operation.CLUSTER_ACTION, Resource.CLUSTER
    ):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _answer({each.producer_id: dict.fromkeys(_keys(each), denied) for each in request.markers})
    writer = context.part(MarkerWriter)
    errors: dict[int, dict[TopicPartitionKey, ErrorCode]] = {}
    for asked in request.markers:
        if asked.producer_id < 0 or asked.producer_epoch < 0:
            # Not even a marker can be made of it.
            failed = ErrorCode.UNKNOWN_SERVER_ERROR
            return _answer({each.producer_id: dict.fromkeys(_keys(each), failed) for each in request.markers})
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            getattr(asked, "transaction_version", 0),
            _keys(asked),
        )
        found = errors.setdefault(asked.producer_id, {})
        # To its end, even if the client leaves: groups must hear of every marker that is written.
        written = await asyncio.shield(context.spawn(writer.write_here(marker, marker.partitions)))
        for key, error in written.items():
            here = context.partitions.get(*key) is not None
            found[key] = error if here else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _answer(errors)


def _keys(marker: Any) -> tuple[TopicPartitionKey, ...]:
    return tuple((topic.name, number) for topic in marker.topics for number in topic.partition_indexes)


def _answer(errors: dict[int, dict[TopicPartitionKey, ErrorCode]]) -> dict[str, Any]:
    return {
        "markers": [
            {"producer_id": producer_id, "topics": _topics(found)} for producer_id, found in errors.items()
        ]
    }  # fmt: skip


def _topics(found: dict[TopicPartitionKey, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), error in found.items():
        topics.setdefault(topic, []).append({"partition_index": number, "error_code": error})
    return [{"name": name, "partitions": rows} for name, rows in topics.items()]
