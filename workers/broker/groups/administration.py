"""ListGroups, DescribeGroups and DeleteGroups (facts: kafka-protocol 13.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from compactd.workers.broker.api_keys import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.committing import commit_error
from compactd.workers.broker.groups.consumer.java import hash_set_capacity, listed
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.ending import end_records
from compactd.workers.broker.groups.member import GroupError, State
from compactd.workers.broker.groups.records import KeyValue, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.streams.group import state_filter_name
from compactd.workers.broker.groups.subscription import CONSUMER
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.java_order import string_hash
from compactd.workers.broker.turns import in_turns

_CLASSIC, _STREAMS = "classic", "streams"
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
    shown = []
    for shard in groups:
        async for each in in_turns(_listed(shard)):
            if (states and state_filter_name(each["group_state"]) not in states) or (
                kinds and each["group_type"] not in kinds
            ):
                continue
            if sees_all or authorizer.allows(header, Operation.DESCRIBE, Resource.GROUP, each["group_id"], log=False):
                shown.append(each)
    return {"groups": shown}


def _listed(shard: Shard) -> Iterator[dict[str, Any]]:
    """Those that there are when the first one is asked for; others may come and go meanwhile."""
    state = shard.state
    groups, consumers_of, others = list(state.groups.items()), list(state.consumers.items()), list(state.others.items())
    streams_of = list(state.streams.items())
    for group_id, group in groups:
        yield {
            "group_id": group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": str(group.state),
            "group_type": _CLASSIC,
        }
    for group_id, consumers in consumers_of:
        yield {
            "group_id": group_id,
            "protocol_type": CONSUMER,
            "group_state": str(consumers.phase),
            "group_type": CONSUMER,
        }
    for group_id, streams in streams_of:
        yield {
            "group_id": group_id,
            "protocol_type": _STREAMS,
            "group_state": str(streams.phase),
            "group_type": _STREAMS,
        }
    for group_id, other in others:
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
    """Groups that nobody is in, with everything that they committed; those of one partition with one batch, as in Kafka."""
    authorizer = context.part(Authorizer)
    groups = context.part(GroupCoordinator)
    errors: dict[str, ErrorCode] = {}
    by_shard: dict[Shard, list[str]] = {}
    async for group_id in in_turns(request.groups_names):
        if group_id in errors:
            continue
        errors[group_id] = ErrorCode.NONE
        try:
            if not authorizer.allows(header, Operation.DELETE, Resource.GROUP, group_id):
                raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            by_shard.setdefault(groups.shard(group_id), []).append(group_id)
        except GroupError as refusal:
            errors[group_id] = refusal.code
    for shard, group_ids in by_shard.items():
        errors |= await _delete(shard, await context.in_thread(partial(_in_order, group_ids)))
    return {"results": [{"group_id": each, "error_code": error} async for each, error in in_turns(errors.items())]}


def _in_order(group_ids: Sequence[str]) -> list[str]:
    """As Kafka goes through them: it puts them into a HashSet."""
    return listed(group_ids, string_hash, hash_set_capacity(len(group_ids)))


async def _delete(shard: Shard, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
    """Those of one partition; what became of each. Too many for one batch are deleted one by one (Kafka refuses them)."""
    try:
        return await shard.commit_in_turns(lambda _: _deletion(shard, group_ids))
    except GroupError as error:
        if error.code is not ErrorCode.RECORD_LIST_TOO_LARGE or len(group_ids) == 1:
            return dict.fromkeys(group_ids, commit_error(error))
    found: dict[str, ErrorCode] = {}
    for group_id in group_ids:
        found |= await _delete(shard, [group_id])
    return found


async def _deletion(
    shard: Shard, group_ids: Iterable[str]
) -> tuple[list[KeyValue], Callable[[int], Awaitable[None]], dict[str, ErrorCode]]:
    records: list[KeyValue] = []
    found: dict[str, ErrorCode] = {}
    async for group_id in in_turns(group_ids):
        try:
            records += await _end(shard, group_id)
            found[group_id] = ErrorCode.NONE
        except GroupError as error:
            found[group_id] = error.code

    async def apply(_: int) -> None:
        async for group_id, error in in_turns(found.items()):
            if not error:
                shard.drop(group_id)

    return records, apply, found


async def _end(shard: Shard, group_id: str) -> list[KeyValue]:
    """Tombstones of all that a group has. GroupError."""
    state = shard.state
    group, consumers, streams = shard.group(group_id), shard.consumers.get(group_id), shard.streams.get(group_id)
    if group is None and consumers is None and streams is None:
        # Those of share groups are left alone: their records have an order that is not kept here.
        raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
    if (
        (group is not None and group.state is not State.EMPTY)
        or (consumers is not None and consumers.members)
        or (streams is not None and streams.members)
    ):
        raise GroupError(ErrorCode.NON_EMPTY_GROUP)
    places = [*state.offsets.get(group_id, {}), *state.pending_of(group_id)]
    records = [offset_record(group_id, *where, None) async for where in in_turns(dict.fromkeys(places))]
    return [*records, *end_records(shard, group_id)]
