"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources (facts: kafka-protocol 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from compactd.storage.names import topic_name_fault
from compactd.workers.broker.api_keys import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.config_values import ConfigValues, Entry
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.logger_configs import (
    BROKER_LOGGER,
    RefusedConfigError,
    alter_loggers,
    check_node,
    describe_loggers,
)
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    ConfigChange,
    ResourceChange,
    ResourceResult,
    ResourceResults,
    ResourceType,
)

#: In the order in which ListConfigResources gives them.
_LISTED = (
    BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
)  # fmt: skip
_LISTS_ALL = 1

#: What a permission for a resource's settings is about.
_PERMISSIONS: dict[int, Resource] = {
    ResourceType.TOPIC: Resource.TOPIC,
    ResourceType.GROUP: Resource.GROUP,
    ResourceType.BROKER: Resource.CLUSTER,
    ResourceType.CLIENT_METRICS: Resource.CLUSTER,
    BROKER_LOGGER: Resource.CLUSTER,
}
_DENIED_CODES = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
_DENIED_TEXTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


# ---- describing


@handles(DESCRIBE_CONFIGS, 1, 4)
async def describe_configs(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """All settings of each resource, or those asked for; unknown ones are left out."""
    values = ConfigValues(context)
    with_documentation = getattr(request, "include_documentation", False)
    results = []
    #: Of topics that have the same settings.
    known: dict[int, list[dict[str, Any]]] = {}
    turns = Turns()
    for resource in request.resources:
        await turns.others()
        error, message = ErrorCode.NONE, ""
        entries: Sequence[Entry] = ()
        try:
            _check_permission(context, header, Operation.DESCRIBE_CONFIGS, resource)
            entries = _entries(context, values, resource.resource_type, resource.resource_name)
        except RefusedConfigError as refusal:
            error, message = refusal.code, refusal.message
        wanted = set(resource.configuration_keys or ())
        if wanted:
            entries = [entry for entry in entries if entry.name in wanted]
        told = known.get(id(entries))
        if told is None:
            told = [_told(entry, request.include_synonyms, with_documentation) for entry in entries]
            if values.keeps(entries):
                known[id(entries)] = told
        results.append(
            {
                "error_code": error,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": told,
            }
        )
    return {"results": results}


def _check_permission(context: Context, header: RequestHeader, operation: Operation, resource: Any) -> None:
    denied = _denied(context, header, operation, resource)
    if denied:
        raise RefusedConfigError(denied, _DENIED_TEXTS[denied])


def _denied(context: Context, header: RequestHeader, operation: Operation, resource: Any) -> ErrorCode:
    """NONE where the client may do this with a resource's settings."""
    kind = _PERMISSIONS.get(resource.resource_type)
    if kind is None:
        return ErrorCode.NONE  # there is no such resource
    name = CLUSTER_NAME if kind is Resource.CLUSTER else resource.resource_name
    if context.part(Authorizer).allows(header, operation, kind, name):
        return ErrorCode.NONE
    return _DENIED_CODES[kind]


def _told(entry: Entry, with_synonyms: bool, with_documentation: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "synonyms": [each._asdict() for each in entry.synonyms] if with_synonyms else [],
        "config_type": entry.type,
        "documentation": entry.documentation if with_documentation else None,
    }


def _entries(context: Context, values: ConfigValues, kind: int, name: str) -> Sequence[Entry]:
    image = context.image
    if kind == ResourceType.TOPIC:
        topic = image.topic(name)
        if topic is not None:
            return values.of_topic(topic.configs)
        fault = topic_name_fault(name)
        if fault is None:
            raise RefusedConfigError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        raise RefusedConfigError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if kind == ResourceType.BROKER:
        if not name:
            return values.of_cluster()
        check_node(context, name, " or empty string,")
        return values.of_broker()
    if kind == BROKER_LOGGER:
        return describe_loggers(context, name)
    if kind == ResourceType.GROUP:
        if not name:
            raise RefusedConfigError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return values.of_group(image.group_configs.get(name, {}))
    if kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise RefusedConfigError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return values.of_client_metrics(image.client_metrics.get(name, {}))
    raise RefusedConfigError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {kind}")


# ---- altering


@handles(INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Sets, deletes, appends to and subtracts from single settings."""
    return {"responses": await _alter(context, header, request, incremental=True)}


@handles(ALTER_CONFIGS, 0, 2)
async def alter_configs(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Replaces all settings of each resource."""
    return {"responses": await _alter(context, header, request, incremental=False)}


class _Asked(NamedTuple):
    """A resource as the client named it, and as the catalogue does."""

    type: int
    name: str
    name_there: str


async def _alter(context: Context, header: RequestHeader, request: Any, incremental: bool) -> list[dict[str, Any]]:
    asked = [_Asked(each.resource_type, each.resource_name, _name_there(context, each)) for each in request.resources]
    changes = [
        ResourceChange(
            type=resource.resource_type,
            name=each.name_there,
            configs=tuple(
                ConfigChange(
                    name=config.name,
                    value=config.value,
                    operation=config.config_operation if incremental else 0,
                )
                for config in resource.configs
            ),
            denied=_denied(context, header, Operation.ALTER_CONFIGS, resource),
        )
        for each, resource in zip(asked, request.resources, strict=True)
    ]
    counted = Counter((each.type, each.name_there) for each in asked)
    # The others go to the catalogue; a logger that is named twice, and AlterConfigs of one, get its refusal as well.
    loggers = {each for each in asked if incremental and each.type == BROKER_LOGGER and counted[each[0], each[2]] == 1}
    may_alter_loggers = not loggers or context.part(Authorizer).allows(
        header, Operation.ALTER_CONFIGS, Resource.CLUSTER
    )
    results = [
        alter_loggers(context, resource, may_alter_loggers, request.validate_only)
        for each, resource in zip(asked, request.resources, strict=True)
        if each in loggers
    ]
    wanted = [change for change, each in zip(changes, asked, strict=True) if each not in loggers]
    if wanted:
        arguments = AlterConfigs(
            resources=tuple(wanted), incremental=incremental, validate_only=request.validate_only
        )  # fmt: skip
        results += await _changed(context, arguments)
    told = {(each.type, each.name): each for each in results}
    # A row for each that was asked, of those that were named twice as well.
    return [
        {
            "error_code": result.error,
            "error_message": result.message,
            "resource_type": each.type,
            "resource_name": each.name,
        }
        for each in asked
        if (result := told.get((each.type, each.name_there)) or told.get((each.type, each.name))) is not None
    ]


def _name_there(context: Context, resource: Any) -> str:
    """Settings of a worker are those of the node."""
    name: str = resource.resource_name
    if resource.resource_type == ResourceType.BROKER and name == str(context.node_id):
        return str(context.config.node_id)
    return name


async def _changed(context: Context, arguments: AlterConfigs) -> Iterable[ResourceResult]:
    outcome = await ask_catalogue(context, "alter_configs", arguments, ResourceResults)
    if not isinstance(outcome, Unanswered):
        return outcome.results
    error, message = outcome
    return [
        ResourceResult(type=each.type, name=each.name, error=error, message=message) for each in arguments.resources
    ]


# ---- listing


@handles(LIST_CONFIG_RESOURCES, 0, 1)
async def list_config_resources(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """What has settings: v0 knows subscriptions to metrics only, v1 everything."""
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    kinds = set(getattr(request, "resource_types", ())) if header.version >= _LISTS_ALL else {_LISTED[-1]}
    if not kinds <= set(_LISTED):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    image = context.image
    nodes = [str(node.node_id) for node in image.nodes]
    names: dict[int, Iterable[str]] = {
        BROKER_LOGGER: nodes,
        ResourceType.BROKER: nodes,
        ResourceType.TOPIC: (topic.name for topic in image),
        ResourceType.GROUP: sorted(name for name, configs in image.group_configs.items() if configs),
        ResourceType.CLIENT_METRICS: sorted(name for name, configs in image.client_metrics.items() if configs),
    }
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": int(kind)}
            for kind in _LISTED
            if not kinds or kind in kinds
            for name in names[kind]
        ]
    }
