"""ConsumerGroupHeartbeat and ConsumerGroupDescribe v0 to v1 (KIP-848; facts: kafka-protocol 14)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from compactd.workers.broker.api_keys import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.heartbeat_request import Heartbeat, answer_rows, check
from compactd.workers.broker.groups.consumer.java import HashTable, uuid_hash
from compactd.workers.broker.groups.consumer.member import ConsumerMember
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

_CONSUMER = "consumer"


@handles(CONSUMER_GROUP_HEARTBEAT, 0, 1)
async def consumer_group_heartbeat(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """A member joins, goes on or leaves; it is told what to read."""
    try:
        return await _heartbeat(context, header, request)
    except GroupError as error:
        if error.code is ErrorCode.RECORD_LIST_TOO_LARGE:
            return {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR}
        return {"error_code": error.code, "error_message": error.message}


async def _heartbeat(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    _check_enabled(context)
    authorizer = context.part(Authorizer)
    if not authorizer.allows(header, Operation.READ, Resource.GROUP, request.group_id):
        raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    names = request.subscribed_topic_names
    if not all(authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, name) for name in set(names or ())):
        raise GroupError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    heartbeat = Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topic_names=names,
        topic_regex=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=_reported(request.topic_partitions),
        client_id=header.client_id,
        client_host=header.peer.client_host,
    )
    check(heartbeat, header.version, context.config.group_consumer_assignors)
    shard = context.part(GroupCoordinator).shard(request.group_id)

    def allowed(topic: str) -> bool:
        return authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic, log=False)

    return answer_rows(await shard.consumers.heartbeat(heartbeat, allowed))


def _check_enabled(context: Context) -> None:
    is_on = _CONSUMER in context.config.group_coordinator_rebalance_protocols
    if not is_on or context.image.features.get("group.version", 0) < 1:
        raise GroupError(ErrorCode.UNSUPPORTED_VERSION)


def _reported(rows: Iterable[Any] | None) -> Mapping[uuid.UUID, list[int]] | None:
    if rows is None:
        return None
    owned: dict[uuid.UUID, list[int]] = {}
    for row in rows:
        owned.setdefault(row.topic_id or uuid.UUID(int=0), []).extend(row.partitions)
    return owned


@handles(CONSUMER_GROUP_DESCRIBE, 0, 1)
async def consumer_group_describe(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Groups of the consumer protocol; others are not found."""
    authorizer = context.part(Authorizer)
    refused: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    async for group_id in in_turns(request.group_ids):
        try:
            _check_enabled(context)
        except GroupError as error:
            groups.append({"group_id": group_id, "error_code": error.code})
            continue
        if not authorizer.allows(header, Operation.DESCRIBE, Resource.GROUP, group_id):
            refused.append({"group_id": group_id, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED})
            continue
        found = _described(context, group_id)
        if request.include_authorized_operations and not found["error_code"]:
            found["authorized_operations"] = authorizer.operations(header, Resource.GROUP, group_id)

        def allowed(topic: str) -> bool:
            return authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic, log=False)

        groups.append(_seen(found, allowed))
    return {"groups": [*refused, *groups]}


def _seen(group: dict[str, Any], allowed: Callable[[str], bool]) -> dict[str, Any]:
    """The group, or a refusal where a topic is in it that the client may not know of."""
    topics = {
        row["topic_name"]
        for member in group.get("members", ())
        for which in ("assignment", "target_assignment")
        for row in member[which]["topic_partitions"]
    }
    if all(allowed(topic) for topic in topics):
        return group
    return {
        "group_id": group["group_id"],
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": "The group has described topic(s) that the client is not authorized to describe.",
    }


def _described(context: Context, group_id: str) -> dict[str, Any]:
    try:
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        shard = context.part(GroupCoordinator).shard(group_id)
    except GroupError as error:
        return {"group_id": group_id, "error_code": error.code}
    group = shard.consumers.get(group_id)
    if group is None:
        is_other = shard.state.is_known(group_id)
        text = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
        return {"group_id": group_id, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": text}
    topics = context.part(Topics)
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": str(group.phase),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.preferred_assignor() or context.config.group_consumer_assignors[0],
        "members": [_member(topics, group, group.members[member_id]) for member_id in group.members.listed()],
    }


def _member(topics: Topics, group: ConsumerGroup, member: ConsumerMember) -> dict[str, Any]:
    has: dict[uuid.UUID, list[int]] = {}
    table = HashTable(uuid_hash)
    for owned in (member.assigned, member.revoking):
        for topic_id, partitions in owned.items():
            table.compute(topic_id)
            has.setdefault(topic_id, []).extend(partitions)
    has = {topic_id: has[topic_id] for topic_id in table.listed()}
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_regex,
        "assignment": _rows(topics, has),
        "target_assignment": _rows(topics, group.target_of(member.member_id)),
        "member_type": 0 if member.classic is not None else 1,
    }


def _rows(topics: Topics, partitions: Mapping[uuid.UUID, Iterable[int]]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": list(numbers)}
            for topic_id, numbers in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    }
