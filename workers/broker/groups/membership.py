"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members come and go (facts: kafka-protocol 13.2, 13.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from compactd.workers.broker.api_keys import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.running import GroupMovedError
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import GroupError, Join, JoinAnswer, Moment, SyncAnswer
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns

_NO_TYPE_BEFORE = 7
_T = TypeVar("_T")


@handles(JOIN_GROUP, 0, 9)
async def join_group(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Waits until the group has rebalanced."""
    try:
        answer = await _served(lambda: _join(context, header, request))
    except GroupError as error:
        # To whom the group is closed Kafka does not tell the member back.
        closed = error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        answer = JoinAnswer(error.code, "" if closed else request.member_id)
    # Null came with v7.
    no_name = None if header.version >= _NO_TYPE_BEFORE else ""
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_name if answer.protocol_name is None else answer.protocol_name,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in answer.members
        ],
    }


async def _join(context: Context, header: RequestHeader, request: Any) -> JoinAnswer:
    session_ms = milliseconds(request.session_timeout)
    join = Join(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=header.client_id,
        client_host=header.peer.client_host,
        session_timeout_ms=session_ms,
        # v0 has one timeout for both.
        rebalance_timeout_ms=milliseconds(getattr(request, "rebalance_timeout", request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        needs_known_id=header.version >= 4,
        may_skip_assignment=header.version >= 9,
    )
    shard = _shard(context, header, request.group_id)
    config = context.config
    if not config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms:
        raise GroupError(ErrorCode.INVALID_SESSION_TIMEOUT)
    shard.check()
    consumers = shard.consumers.get(request.group_id)
    if consumers is not None and consumers.members:
        try:
            answer: JoinAnswer = await shard.consumers.join(join, consumers, topics_allowed(context, header))
        except GroupError as error:
            answer = JoinAnswer(error.code)  # Kafka does not repeat the id here
        return answer
    ticket: asyncio.Future[JoinAnswer] = context.loop.create_future()

    def work(now: Moment) -> tuple[ClassicGroup, None]:
        consumers, streams = shard.consumers.get(request.group_id), shard.streams.get(request.group_id)
        ends = consumers is not None or (streams is not None and not streams.members)
        is_new = ends or not shard.state.is_known(request.group_id)
        if is_new and join.member_id:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if consumers is not None:
            if consumers.members:  # somebody joined it meanwhile
                raise GroupMovedError
            shard.consumers.become_classic(consumers, now)
        elif streams is not None and ends:
            shard.streams.become_classic(streams, now)
        group = shard.get_or_make(request.group_id, now)
        group.join(join, ticket, now)
        # A new group is stored at once, whatever became of the join.
        group.unsaved = group.unsaved or is_new
        return group, None

    await shard.change(work)
    return await ticket


@handles(SYNC_GROUP, 0, 5)
async def sync_group(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Waits for the leader's assignment."""
    try:
        answer = await _served(lambda: _sync(context, header, request))
    except GroupError as error:
        answer = SyncAnswer(error.code)
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


async def _sync(context: Context, header: RequestHeader, request: Any) -> SyncAnswer:
    protocol_type, protocol_name = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if header.version >= 5 and (protocol_type is None or protocol_name is None):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    shard = _shard(context, header, request.group_id)
    consumers = shard.consumers.get(request.group_id)
    if consumers is not None and consumers.members:
        return await shard.consumers.sync(
            consumers,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            protocol_type,
            protocol_name,
        )
    ticket: asyncio.Future[SyncAnswer] = context.loop.create_future()

    def work(now: Moment) -> tuple[ClassicGroup, None]:
        _check_classic(shard, request.group_id)
        group = _known(shard, request.group_id)
        group.sync(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            protocol_type,
            protocol_name,
            {each.member_id: bytes(each.assignment) for each in request.assignments},
            ticket,
            now,
        )
        return group, None

    await shard.change(work)
    return await ticket


@handles(HEARTBEAT, 0, 4)
async def heartbeat(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Says whether to go on, or to join again. Takes no turn: it changes nothing that is stored."""
    error = ErrorCode.NONE
    try:
        shard = _shard(context, header, request.group_id)
        who = (request.member_id, getattr(request, "group_instance_id", None), request.generation_id)
        consumers = shard.consumers.get(request.group_id)
        if consumers is not None:
            shard.consumers.classic_heartbeat(consumers, *who)
        else:
            _known(shard, request.group_id).heartbeat(*who, shard.moment())
    except GroupError as refusal:
        # A coordinator that is loading knows nothing against the member.
        error = ErrorCode.NONE if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else refusal.code
    return {"error_code": error}


@handles(LEAVE_GROUP, 0, 5)
async def leave_group(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Members leave; from v3 on several at once, each with an answer of its own."""
    is_batch = hasattr(request, "members")
    members = request.members if is_batch else [request]
    who = [(each.member_id, getattr(each, "group_instance_id", None)) async for each in in_turns(members)]
    try:
        errors = await _served(lambda: _leave(context, header, request.group_id, who))
    except GroupError as error:
        return {"error_code": error.code}
    if not is_batch:
        return {"error_code": errors[0]}
    answers = []
    async for (member_id, instance_id), told in in_turns(zip(who, errors, strict=True)):
        answers.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": told})
    return {"error_code": ErrorCode.NONE, "members": answers}


async def _leave(
    context: Context, header: RequestHeader, group_id: str, who: list[tuple[str, str | None]]
) -> list[ErrorCode]:
    shard = _shard(context, header, group_id)
    group = shard.consumers.get(group_id) or shard.group(group_id)
    # Those who are in it leave together, at once. Of others a request may name a hundred thousand.
    found = [place async for place, each in in_turns(enumerate(who)) if _may_be_in(group, *each)]
    errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(who)
    left = await _leave_at_once(shard, group_id, [who[place] for place in found])
    for place, error in zip(found, left, strict=True):
        errors[place] = error
    return errors


def _may_be_in(group: ClassicGroup | ConsumerGroup | None, member_id: str, instance_id: str | None) -> bool:
    """False: whoever leaves is not known."""
    if group is None:
        return False
    is_pending = isinstance(group, ClassicGroup) and member_id in group.pending
    return is_pending or member_id in group.members or (instance_id or "") in group.static


async def _leave_at_once(shard: Shard, group_id: str, who: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
    consumers = shard.consumers.get(group_id)
    if consumers is not None:
        return await shard.consumers.leave(consumers, who)

    def work(now: Moment) -> tuple[ClassicGroup | None, list[ErrorCode]]:
        _check_classic(shard, group_id)
        group = shard.group(group_id)
        if group is None:
            return None, [ErrorCode.UNKNOWN_MEMBER_ID] * len(who)
        return group, group.leave(who, now)

    return await shard.change(work)


async def _served(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Asks again where the group changed its protocol meanwhile."""
    while True:
        try:
            return await ask()
        except GroupMovedError:
            continue


def _check_classic(shard: Shard, group_id: str) -> None:
    consumers = shard.consumers.get(group_id)
    if consumers is not None and consumers.members:
        raise GroupMovedError


def topics_allowed(context: Context, header: RequestHeader) -> Callable[[str], bool]:
    """Which topics a client may know of."""
    authorizer = context.part(Authorizer)
    return lambda topic: authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic, log=False)


def _shard(context: Context, header: RequestHeader, group_id: str) -> Shard:
    if not context.part(Authorizer).allows(header, Operation.READ, Resource.GROUP, group_id):
        raise GroupError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not group_id:
        raise GroupError(ErrorCode.INVALID_GROUP_ID)
    return context.part(GroupCoordinator).shard(group_id)


def _known(shard: Shard, group_id: str) -> ClassicGroup:
    group = shard.group(group_id)
    if group is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    return group
