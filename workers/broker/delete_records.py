"""DeleteRecords v0 to v2: raises the start of a log (KIP-107; facts: kafka-protocol 11)."""

from __future__ import annotations

from typing import Any

from compactd.config.errors import CompactdError
from compactd.workers.broker.api_keys import DELETE_RECORDS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.image import INTERNAL_TOPICS
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

#: Up to the high watermark.
_ALL = -1


@handles(DELETE_RECORDS, 0, 2)
async def delete_records(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Records below an offset are gone for clients at once; their segments go with the next retention run."""
    authorizer = context.part(Authorizer)
    topics = []
    for topic in request.topics:
        if not authorizer.allows(header, Operation.DELETE, Resource.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partitions = [_result(asked.partition_index, error) for asked in topic.partitions]
        else:
            partitions = [
                await _delete(context, topic.name, asked.partition_index, asked.offset)
                async for asked in in_turns(topic.partitions)
            ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _delete(context: Context, topic: str, number: int, offset: int) -> dict[str, Any]:
    error, low_watermark = ErrorCode.NONE, -1
    partition = context.partitions.get(topic, number)
    if partition is None:
        exists = context.image.partition(topic, number) is not None
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif topic in INTERNAL_TOPICS:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif partition.error:
        error = partition.error
    elif partition.log.config.compact and not partition.log.config.delete:
        error = ErrorCode.POLICY_VIOLATION
    elif offset < _ALL:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        try:
            await partition.exclusive(
                lambda log: log.maybe_increment_log_start_offset(log.high_watermark if offset == _ALL else offset)
            )
            low_watermark = partition.log.log_start_offset
            partition.changed()
            context.partitions.touched(partition)
        except CompactdError as failure:
            error = error_of(failure)
    return _result(number, error, low_watermark)


def _result(number: int, error: ErrorCode, low_watermark: int = -1) -> dict[str, Any]:
    return {"partition_index": number, "low_watermark": low_watermark, "error_code": error}
