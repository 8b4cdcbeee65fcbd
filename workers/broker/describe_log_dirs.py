"""DescribeLogDirs v1 to v5: what lies where, and the space left (KIP-113, 827, 1066; facts: kafka-protocol 11)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from compactd.workers.broker.api_keys import DESCRIBE_LOG_DIRS
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.moves import Moves
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns


@handles(DESCRIBE_LOG_DIRS, 1, 5)
async def describe_log_dirs(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Every log dir with those of the partitions that are asked about which this broker serves."""
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.CLUSTER):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results": []}
    asked = None
    if request.topics is not None:
        asked = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    moves = context.part(Moves)
    by_dir: dict[str, dict[str, list[dict[str, Any]]]] = {log_dir: {} for log_dir in context.storage.log_dirs}
    turns = Turns()
    for partition in tuple(context.partitions):
        await turns.others()
        name = partition.topic_partition
        if asked is not None and (name.topic, name.partition) not in asked:
            continue
        row = {
            "partition_index": name.partition,
            "partition_size": partition.log.size,
            "offset_lag": max(partition.log.high_watermark - partition.log.log_end_offset, 0),
            "is_future_key": False,
        }
        by_dir.setdefault(partition.log_dir, {}).setdefault(name.topic, []).append(row)
        move = moves.of(partition)
        if move is not None:
            row = {
                "partition_index": name.partition,
                "partition_size": move.copy.size,
                "offset_lag": move.copy.lag,
                "is_future_key": True,
            }
            by_dir.setdefault(move.log_dir, {}).setdefault(name.topic, []).append(row)
    cordoned = set(context.storage.cordoned_log_dirs)
    space = await context.in_thread(lambda: {log_dir: _space(log_dir) for log_dir in by_dir})
    results = []
    for log_dir, topics in by_dir.items():
        total, usable = space[log_dir]
        is_offline = log_dir in context.partitions.offline_log_dirs
        results.append(
            {
                "error_code": ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE,
                "log_dir": str(Path(log_dir).absolute()),
                "topics": []
                if is_offline
                else [{"name": name, "partitions": rows} for name, rows in sorted(topics.items())],
                "total_bytes": -1 if is_offline else total,
                "usable_bytes": -1 if is_offline else usable,
                "is_cordoned": log_dir in cordoned or "*" in cordoned,
            }
        )
    return {"results": results}


def _space(log_dir: str) -> tuple[int, int]:
    """(size, free for us) of the file system in bytes; -1 where it cannot be asked."""
    try:
        found = os.statvfs(log_dir)
    except OSError:
        return -1, -1
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
