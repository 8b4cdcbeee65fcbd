"""OffsetForLeaderEpoch v2 to v4, and leader epochs in requests (KIP-101, 320; facts: kafka-protocol 8)."""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import OFFSET_FOR_LEADER_EPOCH
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import in_turns


def check_epoch(partition: Partition, current: int) -> ErrorCode:
    """Of a request's currentLeaderEpoch; below 0 the client does not know."""
    if current < 0 or current == partition.leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if current < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int] | None:
    """(largest known epoch up to `epoch`, its end offset), None for one beyond ours (LeaderEpochFileCache.endOffsetFor)."""
    entries = partition.log.epochs.entries
    end = partition.log.log_end_offset
    latest = entries[-1][0] if entries else -1
    if epoch == max(latest, partition.leader_epoch):
        return epoch, end
    if epoch < 0 or epoch > max(latest, partition.leader_epoch):
        return None
    found: tuple[int, int] | None = None
    for number, (known, _) in enumerate(entries):
        if known > epoch:
            break
        found = (known, entries[number + 1][1] if number + 1 < len(entries) else end)
    if found is None:
        # Older than everything here: the log's history begins with the first epoch.
        return epoch, (entries[0][1] if entries else end)
    return found


@handles(OFFSET_FOR_LEADER_EPOCH, 2, 4)
async def offset_for_leader_epoch(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Where the log of an epoch ends."""
    authorizer = context.part(Authorizer)
    is_follower = authorizer.allows(header, Operation.CLUSTER_ACTION, Resource.CLUSTER, log=False)
    topics = []
    for topic in request.topics:
        is_allowed = is_follower or authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic.topic)
        rows = [_answer(context, topic.topic, asked, is_allowed) async for asked in in_turns(topic.partitions)]
        topics.append({"topic": topic.topic, "partitions": rows})
    return {"topics": topics}


def _answer(context: Context, topic: str, asked: Any, is_allowed: bool) -> dict[str, Any]:
    answer = {"partition": asked.partition, "error_code": ErrorCode.NONE, "leader_epoch": -1, "end_offset": -1}
    partition = context.partitions.get(topic, asked.partition)
    if not is_allowed:
        answer["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif partition is None:
        exists = context.image.partition(topic, asked.partition) is not None
        answer["error_code"] = ErrorCode.NOT_LEADER_OR_FOLLOWER if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif partition.error:
        answer["error_code"] = partition.error
    elif error := check_epoch(partition, asked.current_leader_epoch):
        answer["error_code"] = error
    else:
        found = end_of_epoch(partition, asked.leader_epoch)
        if found is not None:
            answer["leader_epoch"], answer["end_offset"] = found
    return answer
