"""StreamsGroupHeartbeat and StreamsGroupDescribe v0 to v1, StreamsGroupTopologyDescriptionUpdate (KIP-1071, 1331)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compactd.storage.names import is_topic_name
from compactd.workers.broker.api_keys import (
    STREAMS_GROUP_DESCRIBE,
    STREAMS_GROUP_HEARTBEAT,
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.describe import described, topics_of
from compactd.workers.broker.groups.streams.heartbeat_request import Heartbeat, TaskOffset, answer_rows, check
from compactd.workers.broker.groups.streams.internal_topics import InternalTopics
from compactd.workers.broker.groups.streams.tasks import Tasks
from compactd.workers.broker.groups.streams.topology import Topology
from compactd.workers.broker.image import INTERNAL_TOPICS
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

_STREAMS = "streams"
#: From here on members know of client tags, and groups may be described with what a plugin was told.
_KNOWS_TAGS = 1
#: Of a description of the topology: no plugin has any.
_NOT_STORED = 1


@handles(STREAMS_GROUP_HEARTBEAT, 0, 1)
async def streams_group_heartbeat(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """A member joins, goes on or leaves; it is told what to run, and what its topology lacks."""
    try:
        return await _heartbeat(context, header, request)
    except GroupError as error:
        code = ErrorCode.UNKNOWN_SERVER_ERROR if error.code is ErrorCode.RECORD_LIST_TOO_LARGE else error.code
        return {"error_code": code, "error_message": error.message, "status": []}


async def _heartbeat(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    _check_enabled(context)
    if not context.part(Authorizer).allows(header, Operation.READ, Resource.GROUP, request.group_id):
        raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if request.topology is not None:
        _check_topics(context, header, request.topology)
    heartbeat = _read(header, request)
    check(heartbeat)
    streams = context.part(GroupCoordinator).shard(request.group_id).streams
    answer = await streams.heartbeat(heartbeat)
    rows = answer_rows(answer, header.version)
    remember_ms = 2 * streams.settings.heartbeat_interval_ms(request.group_id)
    rows["status"] = context.part(InternalTopics).create(header, answer.missing, rows["status"], remember_ms)
    return rows


def _check_enabled(context: Context) -> None:
    is_on = _STREAMS in context.config.group_coordinator_rebalance_protocols
    if not is_on or context.image.features.get("streams.version", 0) < 1:
        raise GroupError(ErrorCode.UNSUPPORTED_VERSION)


def _check_topics(context: Context, header: RequestHeader, topology: Any) -> None:
    """GroupError: the topology has topics that it may not have."""
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names |= dict.fromkeys((*each.source_topics, *each.repartition_sink_topics))
        names |= dict.fromkeys(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        raise GroupError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited.",
        )
    invalid = [name for name in names if not is_topic_name(name)]
    if invalid:
        raise GroupError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names."
        )
    authorizer = context.part(Authorizer)
    if not all(authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, name) for name in names):
        raise GroupError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _read(header: RequestHeader, request: Any) -> Heartbeat:
    endpoint = request.user_endpoint
    return Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topology=None if request.topology is None else Topology.of_request(request.topology),
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=None if request.client_tags is None else [(row.key, row.value) for row in request.client_tags],
        task_offsets=_offsets(request.task_offsets),
        task_end_offsets=_offsets(request.task_end_offsets),
        shutdown=request.shutdown_application,
        client_id=header.client_id,
        client_host=header.peer.client_host,
        knows_tags=header.version >= _KNOWS_TAGS,
    )


def _tasks(rows: Iterable[Any] | None) -> Tasks | None:
    if rows is None:
        return None
    found: dict[str, frozenset[int]] = {}
    for row in rows:
        found[row.subtopology_id] = found.get(row.subtopology_id, frozenset()).union(row.partitions)
    return found


def _offsets(rows: Iterable[Any] | None) -> list[TaskOffset] | None:
    return None if rows is None else [(row.subtopology_id, row.partition, row.offset) for row in rows]


@handles(STREAMS_GROUP_DESCRIBE, 0, 1)
async def streams_group_describe(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Groups of the streams protocol; others are not found."""
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
        if not found["error_code"]:
            if request.include_authorized_operations:
                found["authorized_operations"] = authorizer.operations(header, Resource.GROUP, group_id)
            if getattr(request, "include_topology_description", False):
                found["topology_description_status"] = _NOT_STORED
        groups.append(_seen(context, header, found))
    return {"groups": [*refused, *groups]}


def _described(context: Context, group_id: str) -> dict[str, Any]:
    try:
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        shard = context.part(GroupCoordinator).shard(group_id)
        group = shard.streams.get(group_id)
        if group is None:
            is_other = shard.state.is_known(group_id)
            text = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return described(group, shard.partition.log.log_end_offset, shard.streams.settings.assignor(group_id))
    except GroupError as error:
        return {"group_id": group_id, "error_code": error.code, "error_message": error.message}


def _seen(context: Context, header: RequestHeader, group: dict[str, Any]) -> dict[str, Any]:
    """The group, or a refusal where a topic is in it that the client may not know of."""
    authorizer = context.part(Authorizer)
    topics = topics_of(group)
    if all(authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic, log=False) for topic in topics):
        return group
    return {
        "group_id": group["group_id"],
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": "The described group uses topics that the client is not authorized to describe.",
    }


@handles(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0)
async def streams_group_topology_description_update(
    context: Context, header: RequestHeader, request: Any
) -> dict[str, Any]:  # fmt: skip
    """Refused as in a Kafka that has no plugin to keep descriptions; no member is asked for one."""
    try:
        _check_enabled(context)
        if not context.part(Authorizer).allows(header, Operation.READ, Resource.GROUP, request.group_id):
            raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    except GroupError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "error_message": "The broker has no streams group topology description plugin configured.",
    }
