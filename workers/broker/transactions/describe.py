"""DescribeTransactions and ListTransactions v0 to v2: the ids that this broker coordinates (facts: kafka-protocol 15.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from compactd.workers.broker.api_keys import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.regex import TopicPattern
from compactd.workers.broker.groups.consumer.regex_syntax import ALPHABET, RegexError
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.java_order import by_topic
from compactd.workers.broker.transactions.transaction import STATES_BY_TITLE, State, Transaction, TransactionError
from compactd.workers.broker.turns import Turns, in_turns


@handles(DESCRIBE_TRANSACTIONS, 0, 0)
async def describe_transactions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Each id with its state and its partitions, of topics that the client may know of."""
    return {
        "transaction_states": [_described(context, header, each) async for each in in_turns(request.transactional_ids)]
    }


def _described(context: Context, header: RequestHeader, transactional_id: str) -> dict[str, Any]:
    allows = context.part(Authorizer).allows
    if not allows(header, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return _refused(transactional_id, ErrorCode.INVALID_REQUEST)
    try:
        transaction = context.part(TransactionCoordinator).shard(transactional_id).by_id.get(transactional_id)
    except TransactionError as error:
        return _refused(transactional_id, error.code)
    if transaction is None or transaction.pending is State.DEAD:
        return _refused(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.title,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.start_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in by_topic(transaction.partitions).items()
            if allows(header, Operation.DESCRIBE, Resource.TOPIC, topic)
        ],
    }


def _refused(transactional_id: str, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


@handles(LIST_TRANSACTIONS, 0, 2)
async def list_transactions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Filters narrow one another down; names of states that do not exist are told."""
    coordinator = context.part(TransactionCoordinator)
    unknown = [name for name in request.state_filters if name not in STATES_BY_TITLE]
    if coordinator.is_loading:
        return {
            "error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "unknown_state_filters": (),
            "transaction_states": (),
        }
    allows = context.part(Authorizer).allows
    keeps = _filter(context, request)
    found: list[dict[str, Any]] = []
    turns = Turns()
    for each in [each for shard in coordinator for each in shard.by_id.values()]:
        await turns.others()
        if keeps(each) and allows(
            header, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, each.transactional_id, log=False
        ):
            found.append(
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "transaction_state": each.state.title,
                }
            )
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        if pattern:
            fitting = await context.part(_Matching).of(pattern, [str(row["transactional_id"]) for row in found])
            found = [row for row in found if row["transactional_id"] in fitting]
    except RegexError:
        return {
            "error_code": ErrorCode.INVALID_REGULAR_EXPRESSION,
            "unknown_state_filters": (),
            "transaction_states": (),
        }
    return {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": found}


def _filter(context: Context, request: Any) -> Callable[[Transaction], bool]:
    producers = frozenset(request.producer_id_filters)
    states = {STATES_BY_TITLE.get(name) for name in request.state_filters}
    longer_ms = getattr(request, "duration_filter", -1)
    now_ms = context.clock.now_ms()

    def keeps(transaction: Transaction) -> bool:
        if producers and transaction.producer_id not in producers:
            return False
        if states and transaction.state not in states:
            return False
        # One that has not begun counts from the beginning of time, as in Kafka.
        return longer_ms < 0 or now_ms - transaction.start_ms > longer_ms

    return keeps


class _Matching:
    """Which ids an expression stands for: any client may ask with any, so in a thread, and one at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()

    async def of(self, pattern: str, ids: Sequence[str]) -> Collection[str]:
        """Of RE2, as Kafka uses it: whole ids have to fit. RegexError."""
        async with self._lock:
            return await self._context.in_thread(
                lambda: TopicPattern(pattern, ALPHABET.union(*ids)).topics(ids)
            )  # fmt: skip
