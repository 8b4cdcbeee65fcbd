"""Whether a setting's value is one that Kafka takes, with Kafka's text where it isn't (ConfigDef, LogConfig.validate).

A value that Kafka can't parse would keep it from starting on the catalogue (facts: kraft-and-coordinators A10), so nothing
is stored that wasn't checked here. Stricter than Kafka: NaN is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from compactd.config.listener_settings import listener_setting
from compactd.config.units import java_double
from compactd.coordinator.catalogue.config_tables import (
    CLIENT_METRICS_RULES,
    CLUSTER_LISTENER_NAMES,
    CLUSTER_RULES,
    GROUP_RULES,
    LISTENER_ONLY_NAMES,
    NOT_APPLIED_NAMES,
    PER_BROKER_RULES,
    STATIC_BROKER_NAMES,
    TOPIC_RULES,
    Rule,
)

#: Java's Short.MAX_VALUE: no stored value is longer, in UTF-16 units.
MAX_VALUE_LENGTH = 32767

_WHOLE = {"SHORT": 15, "INT": 31, "LONG": 63}
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?[dDfF]?")
_REPLICA = re.compile(r"[0-9]+:[0-9]+")
_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
_MATCH_NAMES = frozenset(
    ("client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address",
     "client_source_port")
)  # fmt: skip


def topic_error(configs: Mapping[str, str], effective: Callable[[str], str | None]) -> str | None:
    """Why these settings of one topic (all of them) can't be stored; None when they can.

    `effective`: the value that a topic-level name would have without its topic-level setting, None for Kafka's default.
    """
    for name in configs:
        if name not in TOPIC_RULES:
            return f"Unknown topic config name: {name}"
    fault = _first_fault(configs, TOPIC_RULES)
    if fault is not None:
        return fault
    if configs.get("remote.storage.enable", "").strip().lower() == "true":
        return "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
    if "min.compaction.lag.ms" in configs or "max.compaction.lag.ms" in configs:
        least, most = (
            int(configs.get(name) or effective(name) or default)
            for name, default in (("min.compaction.lag.ms", 0), ("max.compaction.lag.ms", (1 << 63) - 1))
        )
        if least > most:
            return (
                f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
            )  # fmt: skip
    return None


def group_error(configs: Mapping[str, str]) -> str | None:
    """Why these settings of one group can't be stored."""
    for name in configs:
        if name not in GROUP_RULES:
            return f"Unknown group config name: {name}"
    return _first_fault(configs, GROUP_RULES)


def client_metrics_error(configs: Mapping[str, str]) -> tuple[bool, str] | None:
    """Why these settings of a metrics subscription can't be stored, and whether it is the request that is invalid."""
    for name in configs:
        if name not in CLIENT_METRICS_RULES:
            return True, f"Unknown client metrics configuration: {name}"
    fault = _first_fault(configs, CLIENT_METRICS_RULES)
    if fault is not None:
        return False, fault
    interval = int(configs.get("interval.ms", "300000"))
    if not 100 <= interval <= 3_600_000:
        return True, f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
    for pattern in _list(configs.get("match", "")):
        name, equals, expression = pattern.partition("=")
        if not equals or name.strip() not in _MATCH_NAMES or not _is_pattern(expression.strip()):
            return False, f"Illegal client matching pattern: {pattern}"
    return None


def broker_error(configs: Mapping[str, str], per_broker: bool) -> str | None:
    """Why these dynamic settings of a broker, or of all ("" in Kafka: the cluster default), can't be stored.

    Names that nobody knows are taken, as Kafka takes them: a plug-in may know them.
    """
    static = [name for name in configs if name in STATIC_BROKER_NAMES]
    if static:
        return f"Cannot update these configs dynamically: {_set(static)}"
    unprefixed = [name for name in configs if name in LISTENER_ONLY_NAMES]
    if unprefixed:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{_set(unprefixed)}"
        )
    based = {}
    for name, value in configs.items():
        listener = _LISTENER.fullmatch(name)
        based[listener[1] if listener else name] = value
    fault = _first_fault(based, {**CLUSTER_RULES, **PER_BROKER_RULES})
    if fault is not None:
        return fault
    if not per_broker:
        single = [name for name in configs if _is_per_broker(name)]
        if single:
            return f"Cannot update these configs at default cluster level, broker id must be specified: {_set(single)}"
    return None


def not_applied_fault(names: Iterable[str]) -> str | None:
    """Why changes of these dynamic settings, which Kafka would carry out, are not taken: nothing would come of them."""
    found = []
    for name in names:
        listener = _LISTENER.fullmatch(name)
        base = listener[1] if listener else name
        if base in NOT_APPLIED_NAMES and listener_setting(name) is None:
            found.append(name)
    if not found:
        return None
    return f"compactd does not apply these configs while it runs: {_set(found)}"


def value_error(rule: Rule, name: str, value: str) -> str | None:
    """Kafka's text for a value that `rule` doesn't allow."""
    text = value.strip()
    if rule.kind == "BOOLEAN":
        if text.lower() not in ("true", "false"):
            return _invalid(name, value, "Expected value to be either true or false")
    elif rule.kind in _WHOLE:
        bits = _WHOLE[rule.kind]
        if not _INTEGER.fullmatch(text) or not -(1 << bits) <= int(text) < 1 << bits:
            return _invalid(name, value, f"Not a number of type {rule.kind}")
        return _range_error(rule, name, int(text), text.removeprefix("+"))
    elif rule.kind == "DOUBLE":
        if not _DOUBLE.fullmatch(text):
            return _invalid(name, value, "Not a number of type DOUBLE")
        number = float(text.rstrip("dDfF"))
        return _range_error(rule, name, number, java_double(number))
    elif rule.kind == "THROTTLED":
        parts = _list(value)
        if parts not in ([], ["*"]) and not all(_REPLICA.fullmatch(part) for part in parts):
            reason = (
                f"{name} must be the literal '*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )
            return _invalid(name, f"[{', '.join(parts)}]", reason)
    elif rule.kind == "LIST" and rule.choices:
        parts = _list(value)
        if "" in parts:
            return f"Configuration '{name}' values must not be empty."
        for part in parts:
            if part not in rule.choices:
                return _invalid(name, part, f"String must be one of: {', '.join(rule.choices)}")
    elif rule.choices and text not in rule.choices:
        return _invalid(name, text, f"String must be one of: {', '.join(rule.choices)}")
    return None


def _first_fault(configs: Mapping[str, str], rules: Mapping[str, Rule]) -> str | None:
    for name, value in configs.items():
        rule = rules.get(name)
        fault = None if rule is None else value_error(rule, name, value)
        if fault is not None:
            return fault
    return None


def _range_error(rule: Rule, name: str, number: float, shown: str) -> str | None:
    if number in rule.also:
        return None
    if rule.also and rule.low is not None and rule.high is not None:
        if rule.low <= number <= rule.high:
            return None
        return _invalid(name, shown, f"Value must be between {rule.low} and {rule.high} or equal to {rule.also[0]}")
    if rule.low is not None and not number >= rule.low:
        return _invalid(name, shown, f"Value must be at least {rule.low}")
    if rule.high is not None and number > rule.high:
        return _invalid(name, shown, f"Value must be no more than {rule.high}")
    return None


def _invalid(name: str, value: str, reason: str) -> str:
    return f"Invalid value {value} for configuration {name}: {reason}"


def _list(value: str) -> list[str]:
    text = value.strip()
    return re.split(r"\s*,\s*", text) if text else []


def _set(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _is_per_broker(name: str) -> bool:
    listener = _LISTENER.fullmatch(name)
    if listener is not None:
        return listener[1] not in CLUSTER_LISTENER_NAMES
    return name in PER_BROKER_RULES


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
