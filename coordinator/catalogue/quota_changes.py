"""Altering client quotas: from a request and the image to results and records, nothing written yet.

Checks, their order, codes and texts are those of Kafka 4.4.0's ClientQuotaControlManager (facts: kafka-protocol 17). Stricter
than Kafka: NaN is no quota.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactd.coordinator.catalogue.topic_changes import MAX_RECORDS, TOO_LARGE, PlanError
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.broker.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from compactd.workers.catalogue_messages import ErrorCode
from compactd.workers.quota_messages import AlterClientQuotas, EntityChange, QuotaResult

_Entity = tuple[tuple[str, str | None], ...]

#: Key to the largest whole number that it may be; None: it need not be whole.
_CLIENT_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}
_TYPE_NAMES = {2**63 - 1: "a LONG", 2**31 - 1: "an INT"}
_TYPES = frozenset({USER, CLIENT_ID, IP})


@dataclass(slots=True)
class QuotaPlan:
    """Results in the order asked, and the records of those that were accepted."""

    results: list[QuotaResult] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)


def plan_quotas(request: AlterClientQuotas, image: MetadataImage) -> QuotaPlan:
    """Each entity by itself. One that is named twice is changed by its first mention, and refused."""
    plan = QuotaPlan()
    results: dict[_Entity, QuotaResult] = {}
    for asked in request.entities:
        entity = tuple(sorted(asked.entity, key=lambda part: part[0]))
        keys = [change.key for change in asked.changes]
        error, message = ErrorCode.NONE, None
        try:
            if entity in results or len(set(keys)) < len(keys):
                raise PlanError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(asked.entity)}")
            plan.records += _altered(asked, entity, image, request.unknown_hosts)
        except PlanError as fault:
            error, message = fault.code, fault.message
        results[entity] = QuotaResult(entity=asked.entity, error=error, message=message)
    if len(plan.records) > MAX_RECORDS:
        return QuotaPlan(
            [
                QuotaResult(entity=asked.entity, error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)
                for asked in request.entities
            ]
        )
    plan.results += results.values()
    return QuotaPlan(plan.results) if request.validate_only else plan


def _altered(
    asked: EntityChange, entity: _Entity, image: MetadataImage, unknown_hosts: Sequence[str]
) -> list[MetadataRecord]:
    """The records of one entity. Raises PlanError."""
    keys = _keys_of(dict(asked.entity), unknown_hosts)
    stored = image.quotas.get(entity, {})
    records = []
    for change in asked.changes:
        if change.value is None:
            if change.key in stored:
                records.append(_record(entity, change.key, 0.0, remove=True))
            continue
        _check_value(keys, change.key, change.value)
        if stored.get(change.key) != change.value:
            records.append(_record(entity, change.key, change.value, remove=False))
    return records


def _keys_of(entity: Mapping[str, str | None], unknown_hosts: Sequence[str]) -> Mapping[str, int | None]:
    fault = None
    if not entity:
        fault = "Invalid empty client quota entity"
    for kind, name in entity.items():
        if fault is None and kind not in _TYPES:
            fault = f"Unhandled client quota entity type: {kind}"
        if fault is None and name == "":
            fault = f"Empty {kind} not supported"
    if fault is None and IP in entity:
        if len(entity) > 1:
            fault = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        elif entity[IP] in unknown_hosts:
            fault = f"{entity[IP]} is not a valid IP or resolvable host."
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_REQUEST, fault)
    return _IP_KEYS if IP in entity else _CLIENT_KEYS


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    fault = None
    if key not in keys:
        fault = f"Invalid configuration key {key}"
    elif not value > 0:
        fault = f"Quota {key} must be greater than 0"
    elif (largest := keys[key]) is not None:
        if value > float(largest):
            fault = f"Proposed value for {key} is too large for {_TYPE_NAMES[largest]}."
        elif math.fmod(value, 1.0) > 1e-6:
            fault = f"{key} cannot be a fractional value."
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_REQUEST, fault)


def _record(entity: _Entity, key: str, value: float, *, remove: bool) -> MetadataRecord:
    """`entity` in order of type, in which Kafka writes it, too."""
    parts = [{"entityType": kind, "entityName": name} for kind, name in entity]
    return MetadataRecord(RecordType.CLIENT_QUOTA, {"entity": parts, "key": key, "value": value, "remove": remove})


def _shown(entity: _Entity) -> str:
    """As Java shows a ClientQuotaEntity."""
    named = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{named}}})"
