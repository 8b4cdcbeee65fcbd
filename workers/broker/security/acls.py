"""DescribeAcls, CreateAcls and DeleteAcls v1 to v3 (Kafka's AclApis; facts: kafka-protocol 18.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from compactd.workers.acl_messages import (
    Acl,
    AclDeletions,
    AclFilter,
    AclLike,
    AclResults,
    CreateAcls,
    DeleteAcls,
)
from compactd.workers.broker.api_keys import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import MalformedRequestError
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource

_T = TypeVar("_T")

#: Codes that no client may send: Kafka closes the connection. Of those that it does not know it says so.
_UNKNOWN = 0
#: Codes that only filters have.
_ANY, _MATCH = 1, 2

_DISABLED = "No Authorizer is configured."


@handles(DESCRIBE_ACLS, 1, 3)
async def describe_acls(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Those that a filter matches, by the resources that they are about."""
    authorizer = context.part(Authorizer)
    asked = _filter(request)
    if not authorizer.allows(header, Operation.DESCRIBE, Resource.CLUSTER):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": _needs(Operation.DESCRIBE)}
    if not authorizer.enabled:
        return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": "No Authorizer is configured on the broker"}
    resources: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for acl in context.image.acls:
        if asked.matches(acl):
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            resources.setdefault(pattern, []).append(_entry(acl))
    return {
        "error_message": "",
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in sorted(resources.items())
        ],
    }


@handles(CREATE_ACLS, 1, 3)
async def create_acls(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Each by itself. One that is there already is created once more, to clients."""
    creations = request.creations
    for each in creations:
        _check_codes(each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
    refused = _refused(context, header)
    if refused is None and any(
        _ANY in (each.resource_type, each.operation, each.permission_type)
        or each.resource_pattern_type in (_ANY, _MATCH)
        for each in creations
    ):
        # Kafka fails over them before it looks at any.
        refused = {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR, "error_message": None}
    if refused is not None:
        return {"results": [refused] * len(creations)}
    acls = tuple(
        Acl(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            pattern_type=each.resource_pattern_type,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission=each.permission_type,
        )
        for each in creations
    )
    outcome = await _changed(context, "create_acls", CreateAcls(acls=acls), AclResults)
    if not isinstance(outcome, AclResults):
        return {"results": [outcome] * len(creations)}
    return {"results": [{"error_code": each.error, "error_message": each.message or ""} for each in outcome.results]}


@handles(DELETE_ACLS, 1, 3)
async def delete_acls(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """What any of the filters matches."""
    filters = tuple(_filter(each) for each in request.filters)
    refused = _refused(context, header)
    if refused is not None:
        return {"filter_results": [refused] * len(filters)}
    outcome = await _changed(context, "delete_acls", DeleteAcls(filters=filters), AclDeletions)
    if not isinstance(outcome, AclDeletions):
        return {"filter_results": [outcome] * len(filters)}
    return {
        "filter_results": [
            {
                "error_code": each.error,
                "error_message": each.message,
                "matching_acls": _deleted(each.acls),
            }
            for each in outcome.results
        ]
    }


def _deleted(acls: Iterable[Acl]) -> list[dict[str, Any]]:
    return [
        {
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "pattern_type": acl.pattern_type,
            **_entry(acl),
        }
        for acl in acls
    ]


def _entry(acl: AclLike) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _filter(asked: Any) -> AclFilter:
    _check_codes(asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    return AclFilter(
        resource_type=asked.resource_type_filter,
        resource_name=asked.resource_name_filter,
        pattern_type=asked.pattern_type_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def _check_codes(*codes: int) -> None:
    if _UNKNOWN in codes:
        raise MalformedRequestError("an ACL or a filter of UNKNOWN")


def _refused(context: Context, header: RequestHeader) -> dict[str, Any] | None:
    authorizer = context.part(Authorizer)
    if not authorizer.allows(header, Operation.ALTER, Resource.CLUSTER):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": _needs(Operation.ALTER)}
    if not authorizer.enabled:
        return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED}
    return None


def _needs(operation: Operation) -> str:
    return f"The request needs {operation.name} permission on the cluster."


async def _changed(
    context: Context, operation: str, arguments: msgspec.Struct, results: type[_T]
) -> _T | dict[str, Any]:
    """What the catalogue says; where it says nothing, an error for all."""
    outcome = await ask_catalogue(context, operation, arguments, results)
    if isinstance(outcome, Unanswered):
        return {"error_code": outcome.error, "error_message": outcome.message}
    return outcome
