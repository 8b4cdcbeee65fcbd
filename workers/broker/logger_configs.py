"""The resource BROKER_LOGGER: levels of the loggers of all processes (Kafka: RuntimeLoggerManager; facts: kafka-protocol 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from compactd.workers.broker.config_values import ConfigSource, Entry
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.catalogue_messages import ConfigOperation, ResourceResult
from compactd.workers.logger_levels import LEVELS, ROOT, levels, set_levels
from compactd.workers.messages import SetLoggerLevels

BROKER_LOGGER = 8


class RefusedConfigError(Exception):
    """A resource is not described or changed, with the code and text that its client gets."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_node(context: Context, name: str, otherwise: str = ",") -> None:
    """A client asks the broker that it asks about; to it, each worker is one. RefusedConfigError."""
    if not name.lstrip("+-").isdigit() or not name.isascii():
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) not in (context.node_id, context.config.node_id):
        text = f"Unexpected broker id, expected {context.node_id}{otherwise} but received {name}"
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, text)


def describe_loggers(context: Context, name: str) -> list[Entry]:
    """Every logger with its level. RefusedConfigError."""
    if not name:
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    check_node(context, name, "")
    return [Entry(logger, level, ConfigSource.BROKER_LOGGER) for logger, level in levels().items()]


def alter_loggers(context: Context, resource: Any, allowed: bool, validate_only: bool) -> ResourceResult:
    """All changes of an IncrementalAlterConfigs resource, or none. They count at once, until the next start."""
    error, message = ErrorCode.NONE, None
    try:
        _check_form(resource.configs)
        if not allowed:
            return ResourceResult(
                type=BROKER_LOGGER, name=resource.resource_name, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
        if not resource.resource_name:
            raise RefusedConfigError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_node(context, resource.resource_name)
        wanted = _wanted_levels(resource.configs)
        if wanted and not validate_only:
            set_levels(wanted)
            context.catalogue.channel.send(SetLoggerLevels(levels=wanted))
    except RefusedConfigError as refusal:
        error, message = refusal.code, refusal.message
    return ResourceResult(type=BROKER_LOGGER, name=resource.resource_name, error=error, message=message)


def _check_form(configs: Iterable[Any]) -> None:
    counted = Counter(config.name for config in configs)
    if any(count > 1 for count in counted.values()):
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [each.name for each in configs if each.value is None and each.config_operation != ConfigOperation.DELETE]
    if nulls:
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _wanted_levels(configs: Iterable[Any]) -> dict[str, str | None]:
    known = levels()
    return {config.name: _wanted_level(config.name, config.config_operation, config.value, known) for config in configs}


def _wanted_level(name: str, operation: int, value: str | None, known: Iterable[str]) -> str | None:
    if operation not in set(ConfigOperation):
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation}")
    if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        text = f"{ConfigOperation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
        raise RefusedConfigError(ErrorCode.INVALID_REQUEST, text)
    if name not in known:
        raise RefusedConfigError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            text = f"Removing the log level of the {ROOT} logger is not allowed"
            raise RefusedConfigError(ErrorCode.INVALID_REQUEST, text)
        return None
    if value not in LEVELS:
        text = (
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}"
        )
        raise RefusedConfigError(ErrorCode.INVALID_CONFIG, text)
    return value
