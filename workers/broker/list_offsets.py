"""ListOffsets v1 to v11: offsets by time, and the ends of the log (KIP-79, 207, 734; facts: kafka-protocol 8)."""

from __future__ import annotations

from typing import Any

from compactd.config.errors import CompactdError, StorageIOError
from compactd.storage.log import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    TimestampOffset,
)
from compactd.workers.broker.api_keys import LIST_OFFSETS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.leader_epochs import check_epoch
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns

#: Of tiered storage, which there is none of: no offset, no error.
_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD = -5, -6
#: The version that brought each special timestamp.
_SINCE = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_COMMITTED = 1
_NONE = TimestampOffset(-1, -1, -1)


@handles(LIST_OFFSETS, 1, 11)
async def list_offsets(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """One offset for each partition that is asked about."""
    committed = getattr(request, "isolation_level", 0) == _COMMITTED
    authorizer = context.part(Authorizer)
    topics = []
    turns = Turns()
    for topic in request.topics:
        if not authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            rows = [_result(asked.partition_index, error) for asked in topic.partitions]
            topics.append({"name": topic.name, "partitions": rows})
            continue
        seen: dict[int, int] = {}
        for asked in topic.partitions:
            seen[asked.partition_index] = seen.get(asked.partition_index, 0) + 1
        partitions = []
        for asked in topic.partitions:
            await turns.others()
            times = seen.pop(asked.partition_index, 0)
            if times == 1:
                partitions.append(await _answer(context, header.version, topic.name, asked, committed))
            elif times > 1:
                partitions.append(_result(asked.partition_index, ErrorCode.INVALID_REQUEST))
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _result(number: int, error: ErrorCode, found: TimestampOffset = _NONE) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": error,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def _answer(context: Context, version: int, topic: str, asked: Any, committed: bool) -> dict[str, Any]:
    number, timestamp = asked.partition_index, asked.timestamp
    if timestamp < 0 and version < _SINCE.get(timestamp, version + 1):
        return _result(number, ErrorCode.UNSUPPORTED_VERSION)
    partition = context.partitions.get(topic, number)
    if partition is None:
        exists = context.image.partition(topic, number) is not None
        return _result(number, ErrorCode.NOT_LEADER_OR_FOLLOWER if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = partition.error or check_epoch(partition, getattr(asked, "current_leader_epoch", -1))
    if error:
        return _result(number, error)
    try:
        return _result(number, ErrorCode.NONE, await _find(context, partition, timestamp, committed))
    except StorageIOError as failure:
        context.partitions.failed(partition, failure)
        return _result(number, ErrorCode.KAFKA_STORAGE_ERROR)
    except CompactdError as failure:
        return _result(number, error_of(failure))


async def _find(context: Context, partition: Partition, timestamp: int, committed: bool) -> TimestampOffset:
    log = partition.log
    offsets = log.offsets()
    end = offsets.last_stable if committed else offsets.high_watermark
    if timestamp == LATEST_TIMESTAMP:
        return TimestampOffset(-1, end, partition.leader_epoch)
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NONE
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.offset_for_timestamp(timestamp) or _NONE
        # Kafka notes its epoch as soon as it leads; here the first append does.
        return start if log.epochs.entries else start._replace(leader_epoch=partition.leader_epoch)
    # Both of these read batches.
    found = await context.in_thread(lambda: log.offset_for_timestamp(timestamp))
    if found is None or (found.offset >= end and timestamp != MAX_TIMESTAMP):
        return _NONE
    return found
