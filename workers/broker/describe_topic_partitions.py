"""DescribeTopicPartitions v0: topics page by page (KIP-966; facts: kafka-protocol 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compactd.storage.names import is_topic_name
from compactd.workers.broker.api_keys import DESCRIBE_TOPIC_PARTITIONS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.metadata import describe_partition
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import NOT_ASKED, Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns


@handles(DESCRIBE_TOPIC_PARTITIONS, 0, 0)
async def describe_topic_partitions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Topics by name, ascending, from the cursor on, as many partitions as are asked for at most."""
    listed = sorted({each.name for each in request.topics})
    names = listed or sorted(context.image.topics)
    first = 0
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (listed and cursor.topic_name not in listed):
            return {
                "topics": [
                    {"error_code": ErrorCode.INVALID_REQUEST, "name": name, "topic_authorized_operations": NOT_ASKED}
                    for name in (each.name for each in request.topics)
                ],
                "next_cursor": None,
            }
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    authorizer = context.part(Authorizer)
    allowed = [
        name for name in names if authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, name, log=bool(listed))
    ]
    most = max(1, min(request.response_partition_limit, context.config.max_request_partition_size_limit))
    topics, next_cursor = await _page(
        context, header, allowed, first if allowed and allowed[0] == names[0] else 0, most, listed
    )
    if listed:
        # Whether they exist is not told. All of them come with every page.
        seen = set(allowed)
        denied = [name for name in names if name not in seen]
        topics += [_missing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, NOT_ASKED) for name in denied]
    return {"topics": topics, "next_cursor": next_cursor}


async def _page(
    context: Context, header: RequestHeader, names: Sequence[str], first: int, left: int, listed: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Topics up to `left` partitions, the first of them from partition `first` on, and where the next page begins."""
    authorizer = context.part(Authorizer)
    topics: list[dict[str, Any]] = []
    turns = Turns()
    for name in names:
        await turns.others()
        if left <= 0:
            return topics, {"topic_name": name, "partition_index": 0}
        operations = authorizer.operations(header, Resource.TOPIC, name)
        topic = context.image.topic(name)
        if topic is None:
            if listed:
                good = is_topic_name(name)
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if good else ErrorCode.INVALID_TOPIC_EXCEPTION
                topics.append(_missing(error, name, operations))
            first = 0
            continue
        numbers = [number for number in topic.partitions if number >= first]
        first = 0
        topics.append(
            {
                "error_code": ErrorCode.NONE,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [
                    {
                        **describe_partition(context, topic.partitions[number], header.peer.listener),
                        "eligible_leader_replicas": [],
                        "last_known_elr": [],
                    }
                    for number in numbers[:left]
                ],
                "topic_authorized_operations": operations,
            }
        )
        if len(numbers) > left:
            return topics, {"topic_name": name, "partition_index": numbers[left]}
        left -= len(numbers)
    return topics, None


def _missing(error: ErrorCode, name: str, operations: int) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": None, "topic_authorized_operations": operations}
