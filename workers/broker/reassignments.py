"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders on the only broker (facts: kafka-protocol 9.4).

A partition has one replica, which is here. So a reassignment is either what is already so, or names a broker that there is
not; none is ever under way; and a leader is only missing where its log dir is. Checks and texts are those of Kafka 4.4.0's
ReplicationControlManager, found by asking it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from compactd.workers.broker.api_keys import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns

_NOT_ALLOWED = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
_PREFERRED, _UNCLEAN = 0, 1

_Fault = tuple[ErrorCode, str | None]
_NONE: _Fault = (ErrorCode.NONE, None)


@handles(ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def alter_partition_reassignments(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Each partition by itself."""
    allowed = context.part(Authorizer).allows(header, Operation.ALTER, Resource.CLUSTER)
    top = _NONE if allowed else _NOT_ALLOWED
    turns = Turns()
    responses = []
    for topic in request.topics:
        rows = []
        for each in topic.partitions:
            await turns.others()
            fault = _reassigned(context, topic.name, each) if allowed else _NOT_ALLOWED
            rows.append({"partition_index": each.partition_index, **_fault(fault)})
        responses.append({"name": topic.name, "partitions": rows})
        await turns.others()
    # Kafka's answer to an empty request has the default of every field.
    is_empty = allowed and not request.topics
    return {
        "allow_replication_factor_change": is_empty or getattr(request, "allow_replication_factor_change", True),
        "error_code": top[0],
        "error_message": "" if is_empty else top[1],
        "responses": responses,
    }


def _reassigned(context: Context, topic: str, asked: Any) -> _Fault:
    found = context.image.topic(topic)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
    if asked.partition_index not in found.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{asked.partition_index}."
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    fault = _assignment_fault(asked.replicas, {node.node_id for node in context.image.nodes})
    return _NONE if fault is None else (ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _assignment_fault(replicas: Sequence[int], brokers: Iterable[int]) -> str | None:
    """Why a partition can't have these replicas (ReplicationControlManager.validateManualPartitionAssignment)."""
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    known, before = set(brokers), None
    for each in sorted(replicas):
        if each not in known:
            return f"The manual partition assignment includes broker {each}, but no such broker is registered."
        if each == before:
            return f"The manual partition assignment includes the broker {each} more than once."
        before = each
    if len(replicas) > 1:
        # To clients each worker is a broker; a partition has one of them.
        return (
            f"The manual partition assignment includes {len(replicas)} brokers, but a partition has one replica here."
        )
    return None


@handles(LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """None is ever under way."""
    if context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.CLUSTER):
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": ()}
    asked = request.topics or ()
    return {
        "error_code": _NOT_ALLOWED[0],
        "error_message": _NOT_ALLOWED[1],
        "topics": [
            {"name": topic.name, "partitions": [{"partition_index": number} for number in topic.partition_indexes]}
            for topic in asked
        ],
    }


@handles(ELECT_LEADERS, 0, 2)
async def elect_leaders(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Without topics all partitions are meant, and those that need no leader are left out."""
    kind = getattr(request, "election_type", _PREFERRED)
    asked = request.topic_partitions
    refused: _Fault | None = None
    if not context.part(Authorizer).allows(header, Operation.ALTER, Resource.CLUSTER):
        refused = _NOT_ALLOWED
    elif kind not in (_PREFERRED, _UNCLEAN) and (asked is None or asked):
        refused = ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}"
    if refused is not None:
        named = [(topic.topic, topic.partitions) for topic in asked or ()]
        return await _elected(refused[0], named, lambda *_: refused)
    named = (
        [(t.name, t.partitions) for t in context.image] if asked is None else [(t.topic, t.partitions) for t in asked]
    )
    return await _elected(
        ErrorCode.NONE,
        named,
        lambda topic, number: _election(context, topic, number, kind),
        all_of_them=asked is None,
    )


def _election(context: Context, topic: str, number: int, kind: int) -> _Fault:
    found = context.image.topic(topic)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    partition = found.partitions.get(number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{number}"
    if partition.online:
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if kind == _PREFERRED:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."


async def _elected(
    error: ErrorCode,
    named: Iterable[tuple[str, Iterable[int]]],
    outcome: Callable[[str, int], _Fault],
    *,
    all_of_them: bool = False,
) -> dict[str, Any]:
    """The answer; `all_of_them`: nobody named these partitions."""
    turns = Turns()
    results = []
    for topic, numbers in named:
        rows = []
        for number in numbers:
            await turns.others()
            fault = outcome(topic, number)
            if not all_of_them or fault[0] != ErrorCode.ELECTION_NOT_NEEDED:
                rows.append({"partition_id": number, **_fault(fault)})
        results.append({"topic": topic, "partition_result": rows})
        await turns.others()
    return {"error_code": error, "replica_election_results": results}


def _fault(fault: _Fault) -> dict[str, Any]:
    return {"error_code": fault[0], "error_message": fault[1]}
