"""AlterReplicaLogDirs v1 and v2: partitions move to another log dir (KIP-113, 1066; facts: kafka-protocol 11).

Checks, their order and codes are those of ReplicaManager.alterReplicaLogDirs. Answered is that the copy has begun; how far
it is, and that it is done, DescribeLogDirs tells. Naming the dir where a partition lies ends its move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from compactd.config.errors import CompactdError
from compactd.storage.names import LONGEST_DIR_NAME, TopicPartition, future_dir_name
from compactd.workers.broker.api_keys import ALTER_REPLICA_LOG_DIRS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.moves import Moves
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.catalogue_messages import MoveResults, Preference, PreferLogDirs

_LOGGER = logging.getLogger(__name__)

#: Copies that are begun at the same time; each is some files made and fsynced.
_AT_ONCE = 8


@handles(ALTER_REPLICA_LOG_DIRS, 1, 2)
async def alter_replica_log_dirs(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Each partition by itself; of one that is named with several dirs the last counts, as in Kafka."""
    wanted: dict[tuple[str, int], str] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            wanted.update(((topic.name, number), log_dir.path) for number in topic.partitions)
    allowed = context.part(Authorizer).allows(header, Operation.ALTER, Resource.CLUSTER)
    errors: list[ErrorCode] = []
    if allowed:
        for some in _batches(list(wanted.items())):
            errors += await asyncio.gather(*(_move(context, *name, path) for name, path in some))
    else:
        errors += [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(wanted)
    by_topic: dict[str, list[dict[str, Any]]] = {}
    to_come: list[Preference] = []
    for ((topic_name, number), path), error in zip(wanted.items(), errors, strict=True):
        by_topic.setdefault(topic_name, []).append({"partition_index": number, "error_code": error})
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            to_come.append(Preference(topic=topic_name, partition=number, log_dir=path))
    if to_come:
        await _remember(context, to_come)
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in by_topic.items()]}


def _batches(wanted: list[tuple[tuple[str, int], str]]) -> Iterator[list[tuple[tuple[str, int], str]]]:
    return (wanted[first : first + _AT_ONCE] for first in range(0, len(wanted), _AT_ONCE))


async def _remember(context: Context, to_come: list[Preference]) -> None:
    """Partitions that are not there yet will be made in these dirs, as by Kafka's broker."""
    try:
        await context.catalogue.change("prefer_log_dirs", PreferLogDirs(partitions=tuple(to_come)), MoveResults)
    except (TimeoutError, CompactdError) as error:
        _LOGGER.warning("where %d partitions are wanted was not noted: %s", len(to_come), error)


async def _move(context: Context, topic: str, number: int, path: str) -> ErrorCode:
    name = TopicPartition(topic, number)
    if len(future_dir_name(name)) > LONGEST_DIR_NAME:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path not in context.storage.log_dirs:
        return ErrorCode.LOG_DIR_NOT_FOUND
    offline = context.partitions.offline_log_dirs
    if path in offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    cordoned = context.storage.cordoned_log_dirs
    if path in cordoned or "*" in cordoned:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    partition = context.partitions.get(topic, number)
    if partition is None:
        exists = context.image.partition(topic, number) is not None
        return ErrorCode.REPLICA_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.error:
        return partition.error
    if path != partition.log_dir and offline:
        # It might lie in the dir that is offline, too: Kafka makes no copy while one is.
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        await context.part(Moves).to(partition, path)
    except CompactdError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE
