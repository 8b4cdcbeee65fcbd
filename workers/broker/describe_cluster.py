"""DescribeCluster v0 to v2 (KIP-700, 919, 1073; facts: kafka-protocol 5)."""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import DESCRIBE_CLUSTER
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import NOT_ASKED, Authorizer

_BROKERS, _CONTROLLERS = 1, 2


@handles(DESCRIBE_CLUSTER, 0, 2)
async def describe_cluster(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """The nodes; of controllers a broker does not tell."""
    endpoint = getattr(request, "endpoint_type", _BROKERS)
    if endpoint != _BROKERS:
        known = endpoint == _CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            if known
            else f"Unsupported endpoint type {endpoint}"
        )
        return {
            "error_code": error if header.version >= 1 else ErrorCode.INVALID_REQUEST,
            "error_message": text,
            "cluster_id": "",
            "controller_id": -1,
            "cluster_authorized_operations": NOT_ASKED,
        }
    nodes = context.image.nodes_at(header.peer.listener)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "cluster_id": context.image.cluster_id,
        "controller_id": nodes[0].node_id if nodes else -1,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": context.config.broker_rack,
                "is_fenced": False,
            }
            for node in nodes
        ],
        "cluster_authorized_operations": context.part(Authorizer).cluster_operations(header)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }
