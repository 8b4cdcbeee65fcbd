"""OffsetCommit v2 to v10 and OffsetDelete: what a group has read (facts: kafka-protocol 13.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compactd.storage.names import uuid_text
from compactd.workers.broker.api_keys import OFFSET_COMMIT, OFFSET_DELETE
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError, Moment, State
from compactd.workers.broker.groups.records import Committed, KeyValue, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.subscription import CONSUMER
from compactd.workers.broker.image import Topic
from compactd.workers.broker.requests import RequestHeader, handles

#: From here on an unknown group has a code of its own; and topics have ids.
_KNOWS_GROUP, _WITH_IDS = 9, 10

#: (topic, partition) and what is committed.
_Offset = tuple[str, int, Committed]


@handles(OFFSET_COMMIT, 2, 10)
async def offset_commit(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Partitions are refused one by one where it is about them, all together where it is about the group."""
    now_ms = context.clock.now_ms()
    retention_ms = milliseconds(getattr(request, "retention_time", None))
    errors: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[tuple[int, int], _Offset] = {}
    for row, topic in enumerate(request.topics):
        known = _topic(context, header.version, topic)
        for column, asked in enumerate(topic.partitions):
            if known is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID if header.version >= _WITH_IDS else _UNKNOWN
            elif asked.partition_index not in known.partitions:
                error = _UNKNOWN
            elif _utf16_length(asked.committed_metadata or "") > context.config.offset_metadata_max_bytes:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                error = ErrorCode.NONE
                offsets[row, column] = (
                    known.name,
                    asked.partition_index,
                    Committed(
                        asked.committed_offset,
                        getattr(asked, "committed_leader_epoch", -1),
                        asked.committed_metadata or "",
                        now_ms,
                        now_ms + retention_ms if retention_ms >= 0 else -1,
                        uuid_text(known.topic_id),
                    ),
                )
            errors[row, column] = error
    # What is too long is told only to those who may commit at all.
    if offsets or any(error is ErrorCode.OFFSET_METADATA_TOO_LARGE for error in errors.values()):
        refused = await _commit(context, header, request, list(offsets.values()))
        if refused:
            for place, error in errors.items():
                if error in (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE):
                    errors[place] = refused
    return {
        "topics": [
            {
                **_named(header.version, topic),
                "partitions": [
                    {"partition_index": asked.partition_index, "error_code": errors[row, column]}
                    for column, asked in enumerate(topic.partitions)
                ],
            }
            for row, topic in enumerate(request.topics)
        ]
    }


_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(context: Context, version: int, topic: Any) -> Topic | None:
    return context.image.topic_of_id(topic.topic_id) if version >= _WITH_IDS else context.image.topic(topic.name)


def _named(version: int, topic: Any) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if version >= _WITH_IDS else {"name": topic.name}


def _utf16_length(text: str) -> int:
    """As Java counts it."""
    return len(text) + sum(char > "\uffff" for char in text)


async def _commit(context: Context, header: RequestHeader, request: Any, offsets: Sequence[_Offset]) -> ErrorCode:
    try:
        shard = context.part(GroupCoordinator).shard(request.group_id)
        await shard.commit(lambda now: _prepared(shard, header, request, offsets, now))
    except GroupError as error:
        if error.code is ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return error.code
    return ErrorCode.NONE


def _prepared(
    shard: Shard, header: RequestHeader, request: Any, offsets: Sequence[_Offset], now: Moment
) -> tuple[list[KeyValue], Callable[[int], None], None]:
    """Records, and what to do once they are written. GroupError: nobody may commit so."""
    group_id = request.group_id
    member_id, instance_id = request.member_id, getattr(request, "group_instance_id", None)
    generation = getattr(request, "generation_id_or_member_epoch", -1)
    other = shard.state.others.get(group_id)
    group = shard.group(group_id)
    if other is not None:
        # Nobody of another protocol is served here; an offset may be set while nobody reads.
        if generation >= 0 or other.members:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    elif group is not None:
        group.check_commit(member_id, instance_id, generation, now)
    elif generation >= 0:
        unknown = ErrorCode.GROUP_ID_NOT_FOUND if header.version >= _KNOWS_GROUP else ErrorCode.ILLEGAL_GENERATION
        raise GroupError(unknown)
    else:
        shard.get_or_make(group_id, now)

    def apply(first: int) -> None:
        for index, (topic, partition, committed) in enumerate(offsets):
            shard.state.commit(group_id, (topic, partition), committed, first + index)

    return [offset_record(group_id, *each) for each in offsets], apply, None


@handles(OFFSET_DELETE, 0, 0)
async def offset_delete(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Forgets offsets of topics that the group does not read."""
    if not request.group_id:
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    try:
        shard = context.part(GroupCoordinator).shard(request.group_id)
        errors = await shard.commit(lambda now: _deletion(context, shard, request))
    except GroupError as error:
        return {"error_code": error.code}
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": errors[topic.name, each.partition_index],
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _deletion(
    context: Context, shard: Shard, request: Any
) -> tuple[list[KeyValue], Callable[[int], None], dict[tuple[str, int], ErrorCode]]:
    group = shard.group(request.group_id)
    other = shard.state.others.get(request.group_id)
    if group is None and other is None:
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group is not None and group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        raise GroupError(ErrorCode.NON_EMPTY_GROUP)
    stored = shard.state.offsets.get(request.group_id, {})
    errors: dict[tuple[str, int], ErrorCode] = {}
    doomed = []
    for topic in request.topics:
        for each in topic.partitions:
            where = (topic.name, each.partition_index)
            if context.image.partition(*where) is None:
                errors[where] = _UNKNOWN
            elif other.members if other is not None else group is not None and group.is_subscribed(topic.name):
                errors[where] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                errors[where] = ErrorCode.NONE
                if where in stored:
                    doomed.append(where)

    def apply(_: int) -> None:
        for where in doomed:
            shard.state.forget(request.group_id, where)

    return [offset_record(request.group_id, *where, None) for where in doomed], apply, errors
