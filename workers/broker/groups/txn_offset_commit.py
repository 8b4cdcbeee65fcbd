"""TxnOffsetCommit v0 to v6: what a group has read, as part of a producer's transaction (facts: kafka-protocol 15.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from compactd.workers.broker.api_keys import TXN_OFFSET_COMMIT
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.committing import (
    CommitRows,
    Offset,
    check_commit,
    records_of_commit,
    written_at,
)
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError, Moment
from compactd.workers.broker.groups.records import OFFSETS_TOPIC, KeyValue
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.produce import Transactions
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource

#: From here on a coordinator that loads may say so; topics have ids, and errors of groups codes of their own (KIP-1319).
_KNOWS_LOADING, _WITH_IDS = 2, 6

#: What Kafka tells in place of errors that are about the partition of the coordinator's own topic.
_OF_COORDINATOR = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@handles(TXN_OFFSET_COMMIT, 0, 6)
async def txn_offset_commit(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """The offsets are in the log when this is answered; they count when the transaction is committed."""
    allowed = context.part(Authorizer).allows
    with_ids = header.version >= _WITH_IDS
    rows = await CommitRows.of(context, request.topics, with_ids)
    if not allowed(header, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        rows.refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not allowed(header, Operation.READ, Resource.GROUP, request.group_id):
        rows.refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        await rows.refuse_topics(
            lambda topic: not allowed(header, Operation.READ, Resource.TOPIC, topic),
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
        if rows.reach_the_group:
            rows.refuse(await _commit(context, header, request, rows.offsets))
    return await rows.answer()


async def _commit(context: Context, header: RequestHeader, request: Any, offsets: Sequence[Offset]) -> ErrorCode:
    try:
        if not request.group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        shard = context.part(GroupCoordinator).shard(request.group_id)
        error = await _verified(context, header, request, shard)
        if error:
            return _OF_COORDINATOR.get(error, error)
        await shard.commit_in_turns(
            lambda now: _prepared(shard, header, request, offsets, now),
            (request.producer_id, request.producer_epoch),
        )
    except GroupError as refusal:
        if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and header.version < _KNOWS_LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _OF_COORDINATOR.get(refusal.code, refusal.code)
    return ErrorCode.NONE


async def _verified(context: Context, header: RequestHeader, request: Any, shard: Shard) -> ErrorCode:
    """The coordinator's partition is one of the transaction, or becomes one (from v5 on)."""
    gate = context.part(Transactions).gate
    if gate is None:
        return ErrorCode.INVALID_TXN_STATE
    where = (OFFSETS_TOPIC, shard.number)
    errors = await gate(header, request.transactional_id, request.producer_id, request.producer_epoch, [where])
    return errors.get(where, errors.get(("", -1), ErrorCode.NONE))


async def _prepared(
    shard: Shard, header: RequestHeader, request: Any, offsets: Sequence[Offset], now: Moment
) -> tuple[list[KeyValue], Callable[[int], Awaitable[None]], None]:
    group_id, producer_id = request.group_id, request.producer_id
    old = header.version < _WITH_IDS
    unknown = ErrorCode.ILLEGAL_GENERATION if old else ErrorCode.GROUP_ID_NOT_FOUND
    try:
        check_commit(shard, request, offsets, now, unknown, version=header.version, transactional=True)
    except GroupError as error:
        if old and error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION) from error
        raise

    async def apply(first: int) -> None:
        shard.state.commit_pending(producer_id, group_id, await written_at(first, offsets))

    return await records_of_commit(group_id, offsets), apply, None
