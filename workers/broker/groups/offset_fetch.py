"""OffsetFetch v1 to v10: what a group has committed (facts: kafka-protocol 13.6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compactd.storage.names import parse_uuid, uuid_text
from compactd.workers.broker.api_keys import OFFSET_FETCH
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.records import NO_ID
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

#: Where errors of the group have a place of their own; where there are several groups; where topics have ids.
_TOP_LEVEL_ERROR, _BATCHED, _WITH_IDS = 2, 8, 10


@handles(OFFSET_FETCH, 1, 10)
async def offset_fetch(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Nothing committed, or an unknown group, is no error: the offset is -1."""
    stable = getattr(request, "require_stable", False)
    if header.version >= _BATCHED:
        return {"groups": [_group(context, header, each, stable) async for each in in_turns(request.groups)]}
    found = _group(context, header, request, stable)
    if header.version < _TOP_LEVEL_ERROR and found["error_code"]:
        found["topics"] = [
            {"name": topic.name, "partitions": [_none(each, found["error_code"]) for each in topic.partition_indexes]}
            for topic in request.topics
        ]
    del found["group_id"]
    return found


def _group(context: Context, header: RequestHeader, asked: Any, stable: bool) -> dict[str, Any]:
    try:
        if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.GROUP, asked.group_id):
            raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        shard = context.part(GroupCoordinator).shard(asked.group_id)
        _check_member(shard, asked)
    except GroupError as error:
        return {"group_id": asked.group_id, "topics": [], "error_code": error.code}
    if asked.topics is None:
        topics = _all(context, header, shard, asked.group_id, stable)
    else:
        topics = [_topic(context, header, shard, asked.group_id, topic, stable) for topic in asked.topics]
    return {"group_id": asked.group_id, "topics": topics, "error_code": ErrorCode.NONE}


def _check_member(shard: Shard, asked: Any) -> None:
    """Members of consumer and streams groups say who they are and at what epoch (v9+); others say nothing. GroupError."""
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return
    consumers, streams = shard.consumers.get(asked.group_id), shard.streams.get(asked.group_id)
    if consumers is not None:
        member = consumers.member(member_id or "")
        if member.epoch != epoch:
            raise GroupError(ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION)
    elif streams is not None and streams.member(member_id or "").epoch != epoch:
        raise GroupError(ErrorCode.STALE_MEMBER_EPOCH)


def _all(context: Context, header: RequestHeader, shard: Shard, group_id: str, stable: bool) -> list[dict[str, Any]]:
    version = header.version
    by_topic: dict[str, list[int]] = {}
    stored = shard.state.offsets.get(group_id, {})
    for topic, partition in stored:
        by_topic.setdefault(topic, []).append(partition)
    found: list[dict[str, Any]] = []
    for name, partitions in by_topic.items():
        if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.TOPIC, name):
            continue
        if version < _WITH_IDS:
            found.append(
                {"name": name, "partitions": _partitions(shard, group_id, name, None, sorted(partitions), stable)}
            )
            continue
        known = context.image.topic(name)
        if known is None:  # it has no id that could be told
            continue
        asked_id = uuid_text(known.topic_id)
        answers = _partitions(shard, group_id, name, asked_id, sorted(partitions), stable)
        found.append({"topic_id": parse_uuid(asked_id), "partitions": answers})
    return found


def _topic(
    context: Context, header: RequestHeader, shard: Shard, group_id: str, asked: Any, stable: bool
) -> dict[str, Any]:  # fmt: skip
    allows = context.part(Authorizer).allows
    if header.version < _WITH_IDS:
        if not allows(header, Operation.DESCRIBE, Resource.TOPIC, asked.name):
            denied = [_none(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in asked.partition_indexes]
            return {"name": asked.name, "partitions": denied}
        answers = _partitions(shard, group_id, asked.name, None, asked.partition_indexes, stable)
        return {"name": asked.name, "partitions": answers}
    known = context.image.topic_of_id(asked.topic_id)
    if known is None:
        unknown = [_none(each, ErrorCode.UNKNOWN_TOPIC_ID) for each in asked.partition_indexes]
        return {"topic_id": asked.topic_id, "partitions": unknown}
    if not allows(header, Operation.DESCRIBE, Resource.TOPIC, known.name):
        denied = [_none(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in asked.partition_indexes]
        return {"topic_id": asked.topic_id, "partitions": denied}
    topic_id = uuid_text(known.topic_id)
    answers = _partitions(shard, group_id, known.name, topic_id, asked.partition_indexes, stable)
    return {"topic_id": asked.topic_id, "partitions": answers}


def _partitions(
    shard: Shard, group_id: str, name: str, topic_id: str | None, partitions: Iterable[int], stable: bool
) -> list[dict[str, Any]]:
    stored = shard.state.offsets.get(group_id, {})
    found = []
    for number in partitions:
        committed = stored.get((name, number))
        if stable and shard.state.is_pending(group_id, (name, number)):
            found.append(_none(number, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        elif committed is None or not _is_same(committed.topic_id, topic_id):
            found.append(_none(number, ErrorCode.NONE))
        else:
            found.append(
                {
                    "partition_index": number,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": committed.leader_epoch,
                    "metadata": committed.metadata,
                    "error_code": ErrorCode.NONE,
                }
            )
    return found


def _is_same(stored: str, asked: str | None) -> bool:
    """Whether an offset is of this topic, and not of an earlier one of its name."""
    return asked is None or stored in (NO_ID, asked)


def _none(number: int, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
