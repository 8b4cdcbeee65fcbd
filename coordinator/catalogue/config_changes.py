"""Altering settings: from a request and the image to results and records, nothing written yet.

Checks, their order, codes and texts are those of Kafka 4.4.0's ConfigAdminManager (the broker's part) and
ConfigurationControlManager (the controller's), for TOPIC, BROKER, GROUP and CLIENT_METRICS (facts: kafka-protocol 10.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactd.coordinator.catalogue.config_rules import (
    MAX_VALUE_LENGTH,
    broker_error,
    client_metrics_error,
    group_error,
    not_applied_fault,
    topic_error,
)
from compactd.coordinator.catalogue.config_tables import CLUSTER_RULES, PER_BROKER_RULES, TOPIC_RULES, Rule
from compactd.coordinator.catalogue.group_rules import limits_error
from compactd.coordinator.catalogue.running_rules import running_fault
from compactd.coordinator.catalogue.topic_changes import (
    MAX_RECORDS,
    TOO_LARGE,
    VALUE_TOO_LONG,
    Context,
    PlanError,
    config_record,
    utf16_length,
)
from compactd.coordinator.interfaces import Settings
from compactd.storage import names
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ErrorCode,
    ResourceChange,
    ResourceResult,
    ResourceType,
)

_MIN_ISR = "min.insync.replicas"
_CORDONED = "cordoned.log.dirs"
#: metadata.version of Kafka 4.3-IV0, the first with cordoned log dirs.
_CORDONED_LEVEL = 30


_DENIED_TEXTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


@dataclass(slots=True)
class ConfigPlan:
    """Results in the order asked, and the records of those that were accepted."""

    results: list[ResourceResult] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)


def plan_alter(request: AlterConfigs, context: Context, settings: Settings) -> ConfigPlan:
    """`settings`: those in force, against which changes of the running node are held."""
    plan = ConfigPlan()
    counted = Counter((resource.type, resource.name) for resource in request.resources)
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if counted[resource.type, resource.name] > 1:
                raise PlanError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            plan.records += _altered(resource, request.incremental, context, settings)
        except PlanError as error:
            code, message = error.code, error.message
        plan.results.append(ResourceResult(type=resource.type, name=resource.name, error=code, message=message))
    if context.versions.elr:
        plan.records += [
            MetadataRecord(RecordType.CLEAR_ELR, {"topicName": topic}) for topic in _min_isr_changes(plan.records)
        ]
    if len(plan.records) > MAX_RECORDS:
        refused = [
            ResourceResult(type=result.type, name=result.name, error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)
            for result in plan.results
        ]
        return ConfigPlan(refused)
    return ConfigPlan(plan.results) if request.validate_only else plan


def _altered(resource: ResourceChange, incremental: bool, context: Context, settings: Settings) -> list[MetadataRecord]:
    """The records of one resource. Raises PlanError."""
    _check_form(resource, incremental)
    stored = context.image.configs.get((resource.type, resource.name), {})
    is_broker = resource.type == ResourceType.BROKER
    if is_broker:
        if resource.denied:
            raise PlanError(ErrorCode(resource.denied), None)
        _check_broker(resource, incremental, stored, context, settings)
    if resource.denied:
        code = ErrorCode(resource.denied)
        raise PlanError(code, _DENIED_TEXTS[code])
    changes = _new_values(resource, incremental, stored)
    for change in resource.configs:
        # Kafka stores a broker's setting again even when it is the same, so that brokers reload what it points to.
        if not is_broker and changes.get(change.name, "") == stored.get(change.name):
            changes.pop(change.name, None)
    if not incremental:
        changes.update({name: None for name in stored if name not in {change.name for change in resource.configs}})
    _check_transitions(resource, changes, context)
    after = {name: value for name, value in {**stored, **changes}.items() if value is not None}
    _validate(resource, after, context)
    return [config_record(resource.type, resource.name, name, value) for name, value in changes.items()]


def _check_form(resource: ResourceChange, incremental: bool) -> None:
    counted = Counter(change.name for change in resource.configs)
    if any(count > 1 for count in counted.values()):
        raise PlanError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        change.name
        for change in resource.configs
        if change.value is None and not (incremental and change.operation == ConfigOperation.DELETE)
    ]
    if nulls:
        raise PlanError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if resource.type not in set(ResourceType):
        raise PlanError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")


def _check_broker(
    resource: ResourceChange,
    incremental: bool,
    stored: Mapping[str, str],
    context: Context,
    settings: Settings,
) -> None:
    """What the broker checks before it asks the controller (DynamicBrokerConfig.validate): INVALID_REQUEST all."""
    name = resource.name
    if name:
        if not name.lstrip("+-").isdigit() or not name.isascii():
            raise PlanError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if int(name) != context.node_id:
            text = f"Unexpected broker id, expected {context.node_id}, but received {name}"
            raise PlanError(ErrorCode.INVALID_REQUEST, text)
    if incremental:
        for change in resource.configs:
            if change.operation not in set(ConfigOperation):
                text = f"Unknown operations type {change.operation}"
                raise PlanError(ErrorCode.INVALID_REQUEST, text)
            _check_list(change, {**CLUSTER_RULES, **PER_BROKER_RULES})
    changes = _new_values(resource, incremental, stored)
    # What was stored and is no good any more doesn't stand in the way of the new.
    kept = {key: value for key, value in stored.items() if broker_error({key: value}, bool(name)) is None}
    base = kept if incremental else {}
    after = {key: value for key, value in {**base, **changes}.items() if value is not None}
    fault = broker_error(after, bool(name))
    if fault is None and _CORDONED in after:
        fault = _cordoned_fault(after[_CORDONED], settings.storage.log_dirs)
    set_now = {key: value for key, value in changes.items() if value is not None}
    if fault is None:
        fault = not_applied_fault(set_now)
    if fault is None:
        own, of_all = (context.image.broker_configs(each) for each in (context.node_id, ""))
        effective = set_now if name else {key: value for key, value in set_now.items() if key not in own}
        fault = running_fault(effective, {**of_all, **own}, settings)
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_REQUEST, fault)


def _check_list(change: ConfigChange, rules: Mapping[str, Rule]) -> None:
    if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        rule = rules.get(change.name)
        if rule is None:
            raise PlanError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
        if not rule.is_list:
            what = ConfigOperation(change.operation).name.lower()
            text = f"Config value {what} is not allowed for config key: {change.name}"
            raise PlanError(ErrorCode.INVALID_CONFIG, text)


def _new_values(resource: ResourceChange, incremental: bool, stored: Mapping[str, str]) -> dict[str, str | None]:
    """Name to the value that each change asks for; None removes. Raises PlanError."""
    changes: dict[str, str | None] = {}
    for change in resource.configs:
        operation = change.operation if incremental else ConfigOperation.SET
        if operation == ConfigOperation.SET:
            changes[change.name] = change.value
        elif operation == ConfigOperation.DELETE:
            changes[change.name] = None
        elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            changes[change.name] = _list_value(resource.type, change, stored.get(change.name))
        else:
            raise PlanError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
    return changes


def _list_value(kind: int, change: ConfigChange, stored: str | None) -> str:
    rules = TOPIC_RULES if kind == ResourceType.TOPIC else {**CLUSTER_RULES, **PER_BROKER_RULES}
    rule = rules.get(change.name) if kind in (ResourceType.TOPIC, ResourceType.BROKER) else None
    operation = ConfigOperation(change.operation)
    if rule is None or not rule.is_list:
        text = f"Can't {operation.name} to key {change.name} because its type is not LIST."
        raise PlanError(ErrorCode.INVALID_CONFIG, text)
    # A list that isn't set has its default: appending compact gives delete,compact.
    before = stored if stored is not None else rule.default or ""
    parts = [part for part in before.split(",") if part]
    for part in (change.value or "").split(","):
        if operation == ConfigOperation.APPEND:
            if part not in parts:
                parts.append(part)
        elif part in parts:
            parts.remove(part)
    return ",".join(parts)


def _check_transitions(resource: ResourceChange, changes: Mapping[str, str | None], context: Context) -> None:
    is_broker = resource.type == ResourceType.BROKER
    for name, value in changes.items():
        text = None
        if is_broker and name == _MIN_ISR and context.versions.elr:
            if resource.name:
                text = f"Broker-level {_MIN_ISR} cannot be altered while ELR is enabled."
            elif value is None:
                text = f"Cluster-level {_MIN_ISR} cannot be removed while ELR is enabled."
        elif is_broker and name == _CORDONED and (context.image.metadata_version or 0) < _CORDONED_LEVEL:
            text = (
                f"The {_CORDONED} configuration value cannot be set because it requires metadata.version >= 4.3-IV0"
            )  # fmt: skip
        if text is None and value is not None and utf16_length(value) > MAX_VALUE_LENGTH:
            text = VALUE_TOO_LONG
        if text is not None:
            raise PlanError(ErrorCode.INVALID_CONFIG, text)


def _validate(resource: ResourceChange, after: Mapping[str, str], context: Context) -> None:
    """The controller's own checks: the name, all values as they then are, and that the resource exists."""
    name, fault = resource.name, None
    if resource.type == ResourceType.TOPIC:
        if not name:
            raise PlanError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        wrong = names.topic_name_fault(name)
        if wrong is not None:
            raise PlanError(ErrorCode.INVALID_TOPIC_EXCEPTION, wrong)
        fault = topic_error(after, context.inherited)
    elif resource.type == ResourceType.GROUP:
        if not name:
            raise PlanError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        fault = group_error(after) or limits_error(after, context.daemon)
    elif resource.type == ResourceType.CLIENT_METRICS:
        if not name:
            raise PlanError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        found = client_metrics_error(after)
        if found is not None and found[0]:
            raise PlanError(ErrorCode.INVALID_REQUEST, found[1])
        fault = None if found is None else found[1]
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_CONFIG, fault)
    if resource.type == ResourceType.TOPIC and name not in context.image.topics:
        raise PlanError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _cordoned_fault(value: str, log_dirs: Sequence[str]) -> str | None:
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    if entries == ["*"]:
        return None
    for entry in entries:
        if entry not in log_dirs:
            return (
                f"Invalid value [{', '.join(entries)}] for configuration {_CORDONED}: Invalid entry in {_CORDONED}: "
                f"{entry}. All cordoned log dirs must be entries of log.dirs or log.dir."
            )
    return None


def _min_isr_changes(records: Sequence[MetadataRecord]) -> list[str]:
    """Topics whose min.insync.replicas changes, "" where it is a broker's."""
    return [
        record.data["resourceName"] if record.data["resourceType"] == ResourceType.TOPIC else ""
        for record in records
        if record.type == RecordType.CONFIG and record.data["name"] == _MIN_ISR
    ]
