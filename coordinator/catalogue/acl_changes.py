"""Creating and deleting ACLs: from a request and the image to results and records, nothing written yet.

Checks, their order, codes and texts are those of Kafka 4.4.0's AclApis and AclControlManager (facts: kafka-protocol 18.2).
Two ACLs that say the same must never be written: Kafka refuses to start on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.coordinator.catalogue.topic_changes import MAX_RECORDS, TOO_LARGE
from compactd.storage.metadata.format import random_id
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.storage.names import uuid_text
from compactd.workers.acl_hosts import parse_range
from compactd.workers.acl_messages import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclDeletion,
    AclFilter,
    AclResult,
    CreateAcls,
    DeleteAcls,
    Operation,
    PatternType,
    Permission,
    Resource,
    member,
)
from compactd.workers.catalogue_messages import ErrorCode

#: metadata.version of Kafka 4.4-IV1, the first with ranges of addresses.
_RANGES_LEVEL = 32


@dataclass(slots=True)
class AclPlan:
    """Results in the order asked, and the records for one batch."""

    results: list[AclResult] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)


@dataclass(slots=True)
class AclDeletionPlan:
    """Results in the order asked, and the records for one batch."""

    results: list[AclDeletion] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)


def plan_create_acls(request: CreateAcls, image: MetadataImage) -> AclPlan:
    """ACLs that are there already, or come twice, are created once, which is no error."""
    plan = AclPlan()
    known = {acl_of(data) for data in image.acls.values()}
    has_ranges = image.features.get("metadata.version", 0) >= _RANGES_LEVEL
    for acl in request.acls:
        result = _check(acl, has_ranges)
        plan.results.append(result)
        if result.error or acl in known:
            continue
        known.add(acl)
        plan.records.append(MetadataRecord(RecordType.ACCESS_CONTROL_ENTRY, _record(acl)))
    if len(plan.records) > MAX_RECORDS:
        return AclPlan([AclResult(error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)] * len(request.acls))
    return plan


def plan_delete_acls(request: DeleteAcls, image: MetadataImage) -> AclDeletionPlan:
    """What several filters match is deleted once, and told of each."""
    plan = AclDeletionPlan()
    acls = {acl_id: acl_of(data) for acl_id, data in image.acls.items()}
    doomed: dict[str, None] = {}
    for asked in request.filters:
        message = _unknown_part(asked)
        if message is not None:
            plan.results.append(AclDeletion(error=ErrorCode.INVALID_REQUEST, message=message))
            continue
        found = [acl_id for acl_id, acl in acls.items() if asked.matches(acl)]
        doomed.update(dict.fromkeys(found))
        plan.results.append(AclDeletion(acls=tuple(acls[acl_id] for acl_id in found)))
    if len(doomed) > MAX_RECORDS:
        text = f"Cannot remove more than {MAX_RECORDS} acls in a single delete operation."
        return AclDeletionPlan([AclDeletion(error=ErrorCode.INVALID_REQUEST, message=text)] * len(request.filters))
    plan.records = [MetadataRecord(RecordType.REMOVE_ACCESS_CONTROL_ENTRY, {"id": acl_id}) for acl_id in doomed]
    return plan


def acl_of(data: Mapping[str, Any]) -> Acl:
    """The ACL that a record holds."""
    return Acl(
        resource_type=data["resourceType"],
        resource_name=data["resourceName"],
        pattern_type=data["patternType"],
        principal=data["principal"],
        host=data["host"],
        operation=data["operation"],
        permission=data["permissionType"],
    )


def _record(acl: Acl) -> dict[str, Any]:
    return {
        "id": uuid_text(random_id()),
        "resourceType": acl.resource_type,
        "resourceName": acl.resource_name,
        "patternType": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permissionType": acl.permission,
    }


def _check(acl: Acl, has_ranges: bool) -> AclResult:
    message = _fault(acl)
    if message is not None:
        return AclResult(error=ErrorCode.INVALID_REQUEST, message=message)
    if acl.host == WILDCARD or "/" not in acl.host:
        return AclResult()
    if not has_ranges:
        text = "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher."
        return AclResult(error=ErrorCode.UNSUPPORTED_VERSION, message=text)
    try:
        parse_range(acl.host)
    except ValueError as fault:
        text = f"Invalid CIDR notation '{acl.host}': {fault}"
        return AclResult(error=ErrorCode.INVALID_REQUEST, message=text)
    return AclResult()


def _fault(acl: Acl) -> str | None:
    resource, pattern = member(Resource, acl.resource_type), member(PatternType, acl.pattern_type)
    operation, permission = member(Operation, acl.operation), member(Permission, acl.permission)
    if resource is Resource.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if resource in (Resource.UNKNOWN, Resource.ANY):
        return f"Invalid resourceType {resource.name}"
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {pattern.name}"
    if operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {operation.name}"
    if permission not in (Permission.ALLOW, Permission.DENY):
        return f"Invalid permissionType {permission.name}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if not acl.host:
        return "Host pattern cannot be null or empty"
    return None


def _unknown_part(asked: AclFilter) -> str | None:
    if not member(Resource, asked.resource_type) or not member(PatternType, asked.pattern_type):
        return "Unknown patternFilter."
    if not member(Operation, asked.operation) or not member(Permission, asked.permission):
        return "Unknown entryFilter."
    return None
