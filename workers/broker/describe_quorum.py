"""DescribeQuorum v0 to v2: the metadata log, of which this node is the only voter (KIP-595, 836, 853)."""

from __future__ import annotations

from typing import Any

from compactd.storage.names import parse_uuid
from compactd.workers.broker.api_keys import DESCRIBE_QUORUM
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.feature_messages import DescribeQuorum, QuorumState

METADATA_TOPIC = "__cluster_metadata"


@handles(DESCRIBE_QUORUM, 0, 2)
async def describe_quorum(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Anything but the one partition of the metadata log, asked for alone, is not hosted here."""
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.CLUSTER):
        return {
            "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "error_message": "Cluster authorization failed.",
            "topics": (),
            "nodes": (),
        }
    asked = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
    if asked != [(METADATA_TOPIC, 0)] or len(request.topics) != 1:
        return _answer(
            [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [_unknown(each.partition_index) for each in topic.partitions],
                }
                for topic in request.topics
            ],
            (),
        )
    state = await ask_catalogue(context, "describe_quorum", DescribeQuorum(), QuorumState)
    if isinstance(state, Unanswered):
        return {
            "error_code": ErrorCode.UNKNOWN_SERVER_ERROR,
            "error_message": state.message,
            "topics": (),
            "nodes": (),
        }
    now_ms, node_id = context.clock.now_ms(), context.config.node_id
    voter = {
        "replica_id": node_id,
        "replica_directory_id": parse_uuid(state.directory_id) if state.directory_id else None,
        "log_end_offset": state.log_end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "leader_id": node_id,
        "leader_epoch": state.leader_epoch,
        "high_watermark": state.log_end_offset,
        "current_voters": [voter],
        "observers": (),
    }
    # There is no controller listener: the node is reached where the client reached it.
    listener = header.peer.listener
    node = context.image.nodes_at(listener)[:1]
    nodes = [
        {"node_id": node_id, "listeners": [{"name": listener, "host": each.host, "port": each.port}]} for each in node
    ]
    return _answer([{"topic_name": METADATA_TOPIC, "partitions": [partition]}], nodes)


def _unknown(partition: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": "This server does not host this topic-partition.",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": (),
        "observers": (),
    }


def _answer(topics: list[dict[str, Any]], nodes: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.NONE, "error_message": "", "topics": topics, "nodes": nodes}
