"""AddPartitionsToTxn v0 to v5 and AddOffsetsToTxn v0 to v4: partitions join a transaction (facts: kafka-protocol 15.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from compactd.workers.broker.api_keys import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.image import INTERNAL_TOPICS
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.transaction import Producer, TopicPartitionKey, TransactionError
from compactd.workers.broker.turns import Turns, in_turns

#: From here on brokers ask, for several transactions at once; below, clients.
_BATCHED = 4
#: Before this version PRODUCER_FENCED is not known.
_KNOWS_FENCED = 2
#: What the version of the request says about the client that is behind it.
_BATCHED_CLIENT, _CLIENT = 2, 0

#: So many transactions of one request are begun before others have a turn.
_AT_ONCE = 50

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_Errors = Mapping[TopicPartitionKey, ErrorCode]


@handles(ADD_PARTITIONS_TO_TXN, 0, 5)
async def add_partitions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """All partitions of a transaction, or none."""
    if header.version >= _BATCHED:
        if not context.part(Authorizer).allows(header, Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": ()}
        results = []
        for first in range(0, len(request.transactions), _AT_ONCE):
            some = request.transactions[first : first + _AT_ONCE]
            answers = await asyncio.gather(*(_of_broker(context, each) for each in some))
            for each, errors in zip(some, answers, strict=True):
                rows = await _rows(each.topics, errors)
                results.append({"transactional_id": each.transactional_id, "topic_results": rows})
        return {"results_by_transaction": results}
    errors = await _of_client(context, header, request)
    return {"results_by_topic_v3_and_below": await _rows(request.v3_and_below_topics, errors)}


async def _of_client(context: Context, header: RequestHeader, request: Any) -> _Errors:
    transactional_id = request.v3_and_below_transactional_id
    keys = await _keys(request.v3_and_below_topics)
    authorizer = context.part(Authorizer)
    if not authorizer.allows(header, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(keys, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    allowed: dict[str, bool] = {}
    refused: dict[TopicPartitionKey, ErrorCode] = {}
    async for key in in_turns(keys):
        topic = key[0]
        if topic not in allowed:
            allowed[topic] = topic not in INTERNAL_TOPICS and authorizer.allows(
                header, Operation.WRITE, Resource.TOPIC, topic
            )
        if not allowed[topic]:
            refused[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif context.image.partition(*key) is None:
            refused[key] = _UNKNOWN
    if refused:
        return {**dict.fromkeys(keys, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    return dict.fromkeys(keys, await _add(context, header.version, transactional_id, producer, keys, _CLIENT))


async def _of_broker(context: Context, asked: Any) -> _Errors:
    keys = await _keys(asked.topics)
    refused = {key: _UNKNOWN async for key in in_turns(keys) if context.image.partition(*key) is None}
    if refused:
        return {**dict.fromkeys(keys, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
    producer = Producer(asked.producer_id, asked.producer_epoch)
    if not asked.verify_only:
        error = await _add(context, _BATCHED, asked.transactional_id, producer, keys, _BATCHED_CLIENT)
        return dict.fromkeys(keys, error)
    try:
        return context.part(TransactionCoordinator).verify(asked.transactional_id, producer, keys)
    except TransactionError as error:
        return dict.fromkeys(keys, error.code)


async def _add(
    context: Context,
    version: int,
    transactional_id: str,
    producer: Producer,
    keys: Iterable[TopicPartitionKey],
    client_version: int,
) -> ErrorCode:
    try:
        await context.part(TransactionCoordinator).add(transactional_id, producer, keys, client_version)
    except TransactionError as error:
        if version < _KNOWS_FENCED and error.code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return error.code
    return ErrorCode.NONE


@handles(ADD_OFFSETS_TO_TXN, 0, 4)
async def add_offsets(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """The partition of `__consumer_offsets` that holds a group joins the transaction."""
    authorizer = context.part(Authorizer)
    if not authorizer.allows(header, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    if not authorizer.allows(header, Operation.READ, Resource.GROUP, request.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    groups = context.part(GroupCoordinator)
    number = groups.partition_of(request.group_id)
    if number is None:
        # The client looks for the group's coordinator next: by then it is there.
        await groups.create_topic()
        number = groups.partition_of(request.group_id)
    if number is None:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    producer = Producer(request.producer_id, request.producer_epoch)
    key = (OFFSETS_TOPIC, number)
    return {"error_code": await _add(context, header.version, request.transactional_id, producer, [key], _CLIENT)}


async def _keys(topics: Any) -> list[TopicPartitionKey]:
    keys: dict[TopicPartitionKey, None] = {}
    async for topic in in_turns(topics):
        async for number in in_turns(topic.partitions):
            keys[topic.name, number] = None
    return list(keys)


async def _rows(topics: Any, errors: _Errors) -> list[dict[str, Any]]:
    named: dict[str, dict[int, ErrorCode]] = {}
    async for topic in in_turns(topics):
        rows = named.setdefault(topic.name, {})
        async for number in in_turns(topic.partitions):
            rows[number] = errors[topic.name, number]
    results = []
    turns = Turns()
    for name, rows in named.items():
        partitions = []
        for number, error in rows.items():
            await turns.others()
            partitions.append({"partition_index": number, "partition_error_code": error})
        results.append({"name": name, "results_by_partition": partitions})
        await turns.others()
    return results
