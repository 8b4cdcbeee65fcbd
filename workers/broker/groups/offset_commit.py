"""OffsetCommit v2 to v10 and OffsetDelete: what a group has read (facts: kafka-protocol 13.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from compactd.workers.broker.api_keys import OFFSET_COMMIT, OFFSET_DELETE
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.committing import (
    CommitRows,
    Offset,
    check_commit,
    commit_error,
    records_of_commit,
    written_at,
)
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError, Moment, State
from compactd.workers.broker.groups.records import KeyValue, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.subscription import CONSUMER
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

#: From here on an unknown group has a code of its own; and topics have ids.
_KNOWS_GROUP, _WITH_IDS = 9, 10


@handles(OFFSET_COMMIT, 2, 10)
async def offset_commit(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Partitions are refused one by one where it is about them, all together where it is about the group."""
    retention_ms = milliseconds(getattr(request, "retention_time", None))
    allowed = context.part(Authorizer).allows
    rows = await CommitRows.of(context, request.topics, header.version >= _WITH_IDS, retention_ms)
    if not allowed(header, Operation.READ, Resource.GROUP, request.group_id):
        rows.refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return await rows.answer()
    await rows.refuse_topics(
        lambda topic: not allowed(header, Operation.READ, Resource.TOPIC, topic), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    if rows.reach_the_group:
        rows.refuse(await _commit(context, header, request, rows.offsets))
    return await rows.answer()


async def _commit(context: Context, header: RequestHeader, request: Any, offsets: Sequence[Offset]) -> ErrorCode:
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if header.version >= _KNOWS_GROUP else ErrorCode.ILLEGAL_GENERATION
    try:
        shard = context.part(GroupCoordinator).shard(request.group_id)

        async def work(now: Moment) -> tuple[list[KeyValue], Callable[[int], Awaitable[None]], None]:
            check_commit(shard, request, offsets, now, unknown, version=header.version)
            return await records_of_commit(request.group_id, offsets), apply, None

        async def apply(first: int) -> None:
            shard.state.commit(request.group_id, await written_at(first, offsets))

        await shard.commit_in_turns(work)
    except GroupError as error:
        return commit_error(error)
    return ErrorCode.NONE


@handles(OFFSET_DELETE, 0, 0)
async def offset_delete(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Forgets offsets of topics that the group does not read."""
    allowed = context.part(Authorizer).allows
    if not allowed(header, Operation.DELETE, Resource.GROUP, request.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    if not request.group_id:
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    names = {topic.name for topic in request.topics}
    denied = {name for name in names if not allowed(header, Operation.READ, Resource.TOPIC, name)}
    try:
        shard = context.part(GroupCoordinator).shard(request.group_id)
        errors = await shard.commit_in_turns(lambda _: _deletion(context, shard, request, denied))
    except GroupError as error:
        return {"error_code": error.code}
    topics = []
    for topic in request.topics:
        rows = [
            {"partition_index": each.partition_index, "error_code": errors[topic.name, each.partition_index]}
            async for each in in_turns(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": rows})
    return {"error_code": ErrorCode.NONE, "topics": topics}


async def _deletion(
    context: Context, shard: Shard, request: Any, denied: Collection[str]
) -> tuple[list[KeyValue], Callable[[int], Awaitable[None]], dict[tuple[str, int], ErrorCode]]:
    group = shard.group(request.group_id)
    made_here = shard.consumers.get(request.group_id) or shard.streams.get(request.group_id)
    other = shard.state.others.get(request.group_id)
    if group is None and made_here is None and other is None:
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group is not None and group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        raise GroupError(ErrorCode.NON_EMPTY_GROUP)
    stored = {*shard.state.offsets.get(request.group_id, {}), *shard.state.pending_of(request.group_id)}
    is_subscribed: Callable[[str], bool]
    if made_here is not None:
        is_subscribed = made_here.is_subscribed
    elif group is not None:
        is_subscribed = group.is_subscribed
    else:
        has_members = other is not None and bool(other.members)
        is_subscribed = lambda _: has_members  # noqa: E731
    errors: dict[tuple[str, int], ErrorCode] = {}
    doomed = []
    for topic in request.topics:
        async for each in in_turns(topic.partitions):
            where = (topic.name, each.partition_index)
            if topic.name in denied:
                errors[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif context.image.partition(*where) is None:
                errors[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed(topic.name):
                errors[where] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                errors[where] = ErrorCode.NONE
                if where in stored:
                    doomed.append(where)

    async def apply(_: int) -> None:
        for where in doomed:
            shard.state.forget(request.group_id, where)

    records = [offset_record(request.group_id, *where, None) async for where in in_turns(doomed)]
    return records, apply, errors
