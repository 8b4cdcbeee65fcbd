"""Produce v3 to v13 (ReplicaManager.appendRecords on one node; facts: kafka-protocol 6)."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Protocol

from compactd.config.errors import CompactdError, InvalidRecordError, InvalidTimestampError
from compactd.storage.log import Appended, Origin
from compactd.workers.broker.api_keys import PRODUCE
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.image import INTERNAL_TOPICS
from compactd.workers.broker.partition import LARGE_APPEND, Partition
from compactd.workers.broker.produce_codec import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResult,
    TopicResults,
    decode_produce,
    encode_produce,
)
from compactd.workers.broker.quotas.clients import ClientQuotas
from compactd.workers.broker.requests import CLOSE, Answer, Encoded, RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns

#: From this version on the client leaves it to the broker to add partitions to its transaction (KIP-890).
_FIRST_TRANSACTION_V2 = 12
#: From here on topics have ids.
_WITH_IDS = 13
#: Clients of this name may write to internal topics.
ADMIN_CLIENT = "__admin_client"

#: Refusals by the transaction's coordinator after which the producer asks again; older ones only know how to do that for
#: NOT_ENOUGH_REPLICAS.
_NOT_NOW = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

#: Refusals that Kafka answers without the log's start (ReplicaManager.appendRecordsToLeader).
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_RECORDS_SHOWN = 3
_HEADER_SIZE = 61
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _OVERHEAD = 8, 12
_MAGIC_AT, _ATTRIBUTES_AT, _PRODUCER_AT = 16, 21, 43
_PRODUCER = struct.Struct(">qhi")
_CODEC_MASK, _ZSTD, _TRANSACTIONAL = 7, 4, 0x10


class TransactionGate(Protocol):
    """The transaction coordinator, as far as produce needs it (`Context.part(...)` of who handles transactions)."""

    def __call__(
        self,
        header: RequestHeader,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[tuple[str, int]],
        sequences: Sequence[int] = (),
    ) -> Awaitable[Mapping[tuple[str, int], ErrorCode]]:
        """Verifies (up to Produce v11) or adds partitions to the open transaction; errors of those that may not be written.

        `sequences`: the first of what is about to be appended to each; left out for what has none.
        """


class Transactions:
    """Where the transaction coordinator puts its gate: `context.part(Transactions).gate = ...`."""

    def __init__(self, context: Context) -> None:
        self.gate: TransactionGate | None = None


@handles(PRODUCE, 3, 13, announced_min=0, decoder=decode_produce)
async def produce(context: Context, header: RequestHeader, request: ProduceRequest) -> Answer:
    """Appends, and answers as `acks` asks: not at all for 0, which turns any error into a closed connection."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1 and not _is_transactional(topics[0].partitions[0][1]):
        return await _produce_one(context, header, request, topics[0])
    denied = _denied_topics(context, header, request)
    refused = await _check_transaction(context, header, request, denied)
    results: list[TopicResults] = []
    appends: list[tuple[ProduceResult, Partition, Appended]] = []
    leaders: set[int] = set()
    turns = Turns()
    for topic in topics:
        name = topic.name
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if header.version >= _WITH_IDS:
            known = context.image.topic_of_id(topic.topic_id)
            name = "" if known is None else known.name
            missing = ErrorCode.UNKNOWN_TOPIC_ID if known is None else missing
        rows: dict[int, ProduceResult] = {}
        last = dict(topic.partitions)
        for produced in last.items():
            result = ProduceResult(produced[0])
            rows[produced[0]] = result
            if len(rows) > 1:
                await turns.others()
            error = refused.get((name, produced[0]), refused.get(("", -1), ErrorCode.NONE))
            if not error and name in denied:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partition = context.partitions.get(name, produced[0]) if name else None
            if error:
                result.error, result.message = _told(header, error)
            elif partition is None:
                result.error = missing
                if name:
                    _without_owner(context, name, result, leaders)
            else:
                done = await _append(header, request, partition, ProducedPartition(*produced), result)
                if done is not None:
                    appends.append((result, partition, done))
        results.append(TopicResults(topic.name, topic.topic_id, list(rows.values())))
    quotas = context.part(ClientQuotas)
    if request.acks != 0:
        await _wait_for_disk(appends)
    elif any(result.error for each in results for result in each.partitions):
        return CLOSE
    throttle_ms = quotas.produced(header, request.acks)
    if request.acks == 0:
        return None
    endpoints = context.leaders_told(leaders, header.peer.listener)
    return Encoded([encode_produce(header.version, results, endpoints, throttle_ms)])


async def _produce_one(
    context: Context, header: RequestHeader, request: ProduceRequest, topic: ProducedTopic
) -> Answer:
    """`produce` of one partition without a transaction, which is most of them: in half the time."""
    index, records = topic.partitions[0]
    name, missing = topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if header.version >= _WITH_IDS:
        known = context.image.topic_of_id(topic.topic_id)
        name = "" if known is None else known.name
        missing = ErrorCode.UNKNOWN_TOPIC_ID if known is None else missing
    result = ProduceResult(index)
    leaders: set[int] = set()
    authorizer = context.part(Authorizer)
    partition = context.partitions.get(name, index) if name else None
    done: Appended | None = None
    if authorizer.enabled and name and not authorizer.allows(header, Operation.WRITE, Resource.TOPIC, name):
        result.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif partition is None:
        result.error = missing
        if name:
            _without_owner(context, name, result, leaders)
    elif records is None or len(records) >= LARGE_APPEND or partition.lock.locked():
        done = await _append(header, request, partition, ProducedPartition(index, records), result)
    elif not _is_refused(header, request, partition, records, result):
        try:
            done = partition.append_now(records)
        except CompactdError as error:
            _explain(error, partition, result)
        else:
            done = _noted(done, result)
    if request.acks == 0:
        if result.error:
            return CLOSE
    elif done is not None and done.flush_due and partition is not None:
        await _wait_for_disk([(result, partition, done)])
    throttle_ms = context.part(ClientQuotas).produced(header, request.acks)
    if request.acks == 0:
        return None
    results = (TopicResults(topic.name, topic.topic_id, [result]),)
    endpoints = context.leaders_told(leaders, header.peer.listener) if leaders else ()
    return Encoded([encode_produce(header.version, results, endpoints, throttle_ms)])


async def _append(
    header: RequestHeader,
    request: ProduceRequest,
    partition: Partition,
    produced: ProducedPartition,
    result: ProduceResult,
) -> Appended | None:
    """Checks and appends one record set; fills in `result`."""
    records = produced.records
    if _is_refused(header, request, partition, records, result):
        return None
    assert records is not None
    version = 0
    if _is_transactional(records):
        version = 2 if header.version >= _FIRST_TRANSACTION_V2 else 1
    try:
        if len(records) < LARGE_APPEND and not partition.lock.locked():
            done = partition.append_now(records, Origin.CLIENT, version)
        else:
            done = await partition.append(records, transaction_version=version, wait_for_disk=False)
    except CompactdError as error:
        _explain(error, partition, result)
        return None
    return _noted(done, result)


def _is_transactional(records: memoryview | None) -> bool:
    return records is not None and len(records) >= _HEADER_SIZE and bool(records[_ATTRIBUTES_AT + 1] & _TRANSACTIONAL)


def _is_refused(
    header: RequestHeader,
    request: ProduceRequest,
    partition: Partition,
    records: memoryview | None,
    result: ProduceResult,
) -> bool:
    """Whether a record set is refused before the log sees it; `result` tells why."""
    if partition.error:
        result.error = partition.error
        return True
    shape = _shape_error(header.version, records)
    if shape is not None or records is None:
        result.error, result.message = shape or (ErrorCode.INVALID_RECORD, None)
        return True
    if request.acks not in (-1, 0, 1):
        result.error = ErrorCode.INVALID_REQUIRED_ACKS
        return True
    if partition.topic_partition.topic in INTERNAL_TOPICS and header.client_id != ADMIN_CLIENT:
        result.error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return True
    return False


def _explain(error: CompactdError, partition: Partition, result: ProduceResult) -> None:
    """What the answer says where the log refused."""
    result.error = error_of(error)
    if result.error not in _WITHOUT_LOG_START:
        result.log_start_offset = partition.log.log_start_offset
    if isinstance(error, InvalidRecordError):
        result.record_errors = error.record_errors
        # What a client reads names the partition, not where it lies on our disks.
        result.message = _of_records(error) or str(error).replace(str(error.path), str(partition))


def _told(header: RequestHeader, error: ErrorCode) -> tuple[ErrorCode, str | None]:
    """A refusal by the transaction's coordinator, as a producer may hear it (ReplicaManager.handleProduceAppend)."""
    adds = header.version >= _FIRST_TRANSACTION_V2
    if error in _NOT_NOW or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        return ErrorCode.NOT_ENOUGH_REPLICAS, text
    return error, "Partition was not added to the transaction" if error is ErrorCode.INVALID_TXN_STATE else None


def _of_records(error: InvalidRecordError) -> str:
    """As Kafka says it of records that are named in the answer (LogValidator.processRecordErrors); "": none is."""
    named = error.record_errors
    if not named:
        return ""
    if isinstance(error, InvalidTimestampError):
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in named[:_RECORDS_SHOWN])
    return (
        f"One or more records have been rejected due to {len(named)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


def _noted(done: Appended, result: ProduceResult) -> Appended | None:
    """What the answer says where the log took it; None where there was nothing to take."""
    if done.first_offset < 0:
        result.error = ErrorCode.INVALID_RECORD
        result.message = "The record set holds no whole batch"
        return None
    result.base_offset = done.first_offset
    result.log_append_time = done.log_append_time
    result.log_start_offset = done.log_start_offset
    return done


def _shape_error(version: int, records: memoryview | None) -> tuple[ErrorCode, str | None] | None:
    """What is refused before the log sees it (ProduceRequest.validateRecords)."""
    if records is None or len(records) < _HEADER_SIZE:
        return ErrorCode.INVALID_RECORD, "Produce requests must have a record batch for each partition"
    if records[_MAGIC_AT] != 2:
        return ErrorCode.INVALID_RECORD, "Produce requests must only contain record batches with magic version 2"
    size = _LENGTH.unpack_from(records, _LENGTH_AT)[0] + _OVERHEAD
    if size > len(records):
        return ErrorCode.INVALID_RECORD, "The record set holds no whole batch"
    rest = len(records) - size
    if (
        rest >= _OVERHEAD
        and size >= _HEADER_SIZE
        and _LENGTH.unpack_from(records, size + _LENGTH_AT)[0] + _OVERHEAD <= rest
    ):
        return ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch for each partition"
    if version < 7 and records[_ATTRIBUTES_AT + 1] & _CODEC_MASK == _ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests below version 7 may not use ZStandard"
    return None


def _without_owner(context: Context, topic: str, result: ProduceResult, leaders: set[int]) -> None:
    """A partition that exists but is not served here: its leader is named, so that the client goes there."""
    known = context.image.partition(topic, result.index)
    if known is None:
        return
    result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = context.image.leader(known)
    if leader is not None and known.worker != context.worker:
        result.leader = (leader.node_id, known.leader_epoch)
        leaders.add(leader.node_id)


def _denied_topics(context: Context, header: RequestHeader, request: ProduceRequest) -> Collection[str]:
    """Names of topics, whether they exist or not, that the client may not write to."""
    authorizer = context.part(Authorizer)
    if not authorizer.enabled:
        return ()
    names = set()
    for topic in request.topics:
        known = context.image.topic_of_id(topic.topic_id)
        names.add(topic.name if known is None else known.name)
    if header.version >= _WITH_IDS:
        names.discard("")  # an id that nobody knows
    return {name for name in names if not authorizer.allows(header, Operation.WRITE, Resource.TOPIC, name)}


async def _check_transaction(
    context: Context, header: RequestHeader, request: ProduceRequest, denied: Collection[str]
) -> Mapping[tuple[str, int], ErrorCode]:
    """Errors by topic and partition; under ("", -1) one for all of them. `denied`: topics that are refused anyway."""
    is_transactional = False
    producers: dict[tuple[int, int], dict[tuple[str, int], int]] = {}
    for topic in request.topics:
        for index, records in topic.partitions:
            if records is None or len(records) < _HEADER_SIZE or not records[_ATTRIBUTES_AT + 1] & _TRANSACTIONAL:
                continue
            is_transactional = True
            known = context.image.topic_of_id(topic.topic_id)
            name = topic.name if known is None else known.name
            if name in denied:
                continue
            producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
            producers.setdefault((producer_id, epoch), {})[name, index] = sequence
    if not is_transactional:
        return {}
    transactional_id = request.transactional_id
    if transactional_id is None or not context.part(Authorizer).allows(
        header, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        return {("", -1): ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    if not producers:
        return {}
    if len(producers) > 1:
        named = [each for partitions in producers.values() for each in partitions]
        return dict.fromkeys(named, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    ((producer_id, epoch), partitions) = producers.popitem()
    gate = context.part(Transactions).gate
    if gate is None:
        return dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE)
    return await gate(
        header, transactional_id, producer_id, epoch, list(partitions), list(partitions.values())
    )  # fmt: skip


async def _wait_for_disk(appends: list[tuple[ProduceResult, Partition, Appended]]) -> None:
    """Waits for the flushes that topics ask for before an append counts."""
    for result, partition, done in appends:
        if not done.flush_due:
            continue
        try:
            await partition.flushed_to(done.last_offset + 1)
        except CompactdError as error:
            result.error = error_of(error)
            result.base_offset = result.log_append_time = -1
