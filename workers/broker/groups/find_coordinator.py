"""FindCoordinator v0 to v6: the broker that coordinates a group or a transactional id (facts: kafka-protocol 12)."""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import FIND_COORDINATOR
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.records import TRANSACTION_TOPIC
from compactd.workers.broker.turns import in_turns

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_RESOURCES = {_GROUP: Resource.GROUP, _TRANSACTION: Resource.TRANSACTIONAL_ID}
_DENIED = {
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
#: From here on several keys are asked for at once, and share groups may be.
_BATCHED, _WITH_SHARES = 4, 6


@handles(FIND_COORDINATOR, 0, 6)
async def find_coordinator(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Creates the coordinator's topic where it is not there yet."""
    kind = getattr(request, "key_type", _GROUP)
    if header.version < _BATCHED:
        found = await _find(context, header, kind, request.key)
        # Kafka says NONE here, and nothing in later versions.
        if not found["error_code"]:
            found["error_message"] = "NONE"
        del found["key"]
        return found
    return {
        "coordinators": [await _find(context, header, kind, key) async for key in in_turns(request.coordinator_keys)]
    }


async def _find(context: Context, header: RequestHeader, kind: int, key: str) -> dict[str, Any]:
    resource = _RESOURCES.get(kind)
    if resource is not None and not context.part(Authorizer).allows(header, Operation.DESCRIBE, resource, key):
        message = "" if header.version >= _BATCHED else _DENIED[resource].name
        return _refused(key, _DENIED[resource], message)
    if kind not in (_GROUP, _TRANSACTION, _SHARE) or (kind == _SHARE and header.version < _WITH_SHARES):
        # Of a type that it knows Kafka says nothing where several keys are asked for.
        message = "" if kind == _SHARE and header.version >= _BATCHED else f"there is no coordinator of type {kind}"
        return _refused(key, ErrorCode.INVALID_REQUEST, message)
    if kind == _SHARE:
        if not context.part(Authorizer).allows(header, Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return _refused(key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
        # Any other code would have clients ask for ever.
        return _refused(key, ErrorCode.UNSUPPORTED_VERSION, "this broker does not serve share groups")
    coordinator: GroupCoordinator | TransactionCoordinator
    if kind == _GROUP:
        coordinator, topic = context.part(GroupCoordinator), OFFSETS_TOPIC
    else:
        coordinator, topic = context.part(TransactionCoordinator), TRANSACTION_TOPIC
    number = coordinator.partition_of(key)
    if number is None:
        await coordinator.create_topic()
        number = coordinator.partition_of(key)
    known = None if number is None else context.image.partition(topic, number)
    node = None if known is None or not known.online else context.image.leader(known, header.peer.listener)
    if node is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    return {
        "key": key,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": ErrorCode.NONE,
        "error_message": "",
    }


def _refused(key: str, error: ErrorCode, message: str) -> dict[str, Any]:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}
