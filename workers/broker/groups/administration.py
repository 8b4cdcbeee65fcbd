"""ListGroups, DescribeGroups and DeleteGroups (facts: kafka-protocol 13.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from compactd.workers.broker.api_keys import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.changes import records_of
from compactd.workers.broker.groups.consumer.migration import end_of
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError, State
from compactd.workers.broker.groups.records import KeyValue, group_tombstone, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.subscription import CONSUMER
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

_CLASSIC = "classic"
#: DescribeGroups says from here on that a group is not there.
_KNOWS_GROUP = 6


@handles(LIST_GROUPS, 0, 5)
async def list_groups(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """The groups of this broker; a client asks every broker."""
    groups = context.part(GroupCoordinator)
    if groups.is_loading:
        return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    authorizer = context.part(Authorizer)
    sees_all = authorizer.allows(header, Operation.DESCRIBE, Resource.CLUSTER, log=False)
    states = {each.lower() for each in getattr(request, "states_filter", ())}
    kinds = {each.lower() for each in getattr(request, "types_filter", ())}
    return {
        "groups": [
            each
            for shard in groups
            for each in _listed(shard)
            if (not states or each["group_state"].lower() in states) and (not kinds or each["group_type"] in kinds)
            if sees_all or authorizer.allows(header, Operation.DESCRIBE, Resource.GROUP, each["group_id"], log=False)
        ]
    }


def _listed(shard: Shard) -> Iterator[dict[str, Any]]:
    for group_id, group in shard.state.groups.items():
        yield {
            "group_id": group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": str(group.state),
            "group_type": _CLASSIC,
        }
    for group_id, consumers in shard.state.consumers.items():
        yield {
            "group_id": group_id,
            "protocol_type": CONSUMER,
            "group_state": str(consumers.phase),
            "group_type": CONSUMER,
        }
    for group_id, other in shard.state.others.items():
        yield {
            "group_id": group_id,
            "protocol_type": other.kind,
            "group_state": str(State.STABLE if other.members else State.EMPTY),
            "group_type": other.kind,
        }


@handles(DESCRIBE_GROUPS, 0, 6)
async def describe_groups(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Members, and what they were assigned."""
    authorizer = context.part(Authorizer)
    wants_operations = getattr(request, "include_authorized_operations", False)
    groups = []
    async for group_id in in_turns(request.groups):
        if not authorizer.allows(header, Operation.DESCRIBE, Resource.GROUP, group_id):
            groups.append({"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "group_id": group_id})
            continue
        group = _described(context, header.version, group_id)
        if wants_operations and not group.get("error_code"):
            group["authorized_operations"] = authorizer.operations(header, Resource.GROUP, group_id)
        groups.append(group)
    return {"groups": groups}


def _described(context: Context, version: int, group_id: str) -> dict[str, Any]:
    try:
        shard = context.part(GroupCoordinator).shard(group_id)
    except GroupError as error:
        return {"error_code": error.code, "group_id": group_id}
    group = shard.group(group_id)
    if group is None:
        dead: dict[str, Any] = {"group_id": group_id, "group_state": str(State.DEAD)}
        if version >= _KNOWS_GROUP:
            is_other = shard.state.is_known(group_id)
            text = f"Group {group_id} is not a classic group." if is_other else f"Group {group_id} not found."
            dead |= {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": text}
        return dead
    is_stable = group.state is State.STABLE
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol_name or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol_name) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in map(group.members.__getitem__, group.members.listed())
        ],
    }


@handles(DELETE_GROUPS, 0, 3)
async def delete_groups(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Groups that nobody is in, with everything that they committed."""
    authorizer = context.part(Authorizer)
    results = []
    async for group_id in in_turns(dict.fromkeys(request.groups_names)):
        error = ErrorCode.NONE
        try:
            if not authorizer.allows(header, Operation.DELETE, Resource.GROUP, group_id):
                raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            shard = context.part(GroupCoordinator).shard(group_id)
            await _delete(shard, group_id)
        except GroupError as refusal:
            error = refusal.code
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}


async def _delete(shard: Shard, group_id: str) -> None:
    await shard.commit(lambda _: _deletion(shard, group_id))


def _deletion(shard: Shard, group_id: str) -> tuple[list[KeyValue], Callable[[int], None], None]:
    state = shard.state
    group, consumers = shard.group(group_id), shard.consumers.get(group_id)
    if group is None and consumers is None:
        # Those of share and streams groups are left alone: their records have an order that is not kept here.
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
    if (group is not None and group.state is not State.EMPTY) or (consumers is not None and consumers.members):
        raise GroupError(ErrorCode.NON_EMPTY_GROUP)
    places = [*state.offsets.get(group_id, {}), *state.pending_of(group_id)]
    records = [offset_record(group_id, *where, None) for where in dict.fromkeys(places)]
    if consumers is None:
        records.append(group_tombstone(group_id))
    else:
        records += records_of(group_id, end_of(consumers))
    return records, lambda _: shard.drop(group_id), None
