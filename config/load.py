"""Reads settings from files and from --set; `config.resolve`, whose names are here as well, puts the sources together.

A file is YAML, where names are checked strictly and numbers may have units, or a broker's server.properties, which
holds many settings that have nothing to do with storage: `RawSettings.unused` lists those, none is silently dropped.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from compactd.config.broker_names import OTHER_BROKER_NAMES
from compactd.config.errors import SettingError, UsageError
from compactd.config.listener_settings import listener_names_like, listener_setting, shown
from compactd.config.properties import Property, parse_properties
from compactd.config.raw import (
    RawEntry,
    RawSettings,
    UnusedSetting,
    listener_entry,
    make_entry,
    parse_sets,
    strict_entry,
)
from compactd.config.resolve import (
    ClusterConfigs,
    Resolved,
    ResolvedConfig,
    resolve_cleaner,
    resolve_daemon,
    resolve_storage,
    resolve_topic,
)
from compactd.config.settings import nearest_name
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME
from compactd.config.without_effect import DECIDING, why_unused

__all__ = [
    "ClusterConfigs",
    "RawEntry",
    "RawSettings",
    "Resolved",
    "ResolvedConfig",
    "UnusedSetting",
    "load_file",
    "parse_sets",
    "resolve_cleaner",
    "resolve_daemon",
    "resolve_storage",
    "resolve_topic",
]

#: No settings file is longer; a larger one is refused before it is read.
MAX_FILE_BYTES = 16 << 20

#: Beside the settings of a topic in the topics section.
_PARTITIONS = "partitions"
#: Most that a topic of the topics section may have.
MAX_PARTITIONS = 100_000

_NODE_ID, _BROKER_ID = "node.id", "broker.id"

_ALL_NAMES = (*BY_TOPIC_NAME, *BY_BROKER_NAME)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PROPERTY_LINE = re.compile(rb"^[ \t\f]*[A-Za-z0-9._-]+[ \t\f]*=", re.M)


def load_file(path: str | Path) -> RawSettings:
    """The settings of a YAML file or a server.properties, told apart by suffix or, failing that, by content.

    Raises UsageError when the file can't be read or isn't well-formed, SettingError for a name or value with its line.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(detail=f"{path}: a settings file may have at most {MAX_FILE_BYTES} bytes")
        data = path.read_bytes()
    except OSError as fault:
        raise UsageError(detail=f"{path}: cannot be read: {fault.strerror}") from fault
    suffix = path.suffix.lower()
    if suffix == ".properties" or (suffix not in (".yaml", ".yml") and _PROPERTY_LINE.search(data)):
        return _load_properties(path, data)
    return _load_yaml(path, data)


def _load_properties(path: Path, data: bytes) -> RawSettings:
    broker: dict[str, RawEntry] = {}
    unused: list[UnusedSetting] = []
    broker_id: Property | None = None
    for prop in parse_properties(data, str(path)):
        source = f"{path.name}:{prop.line}"
        if prop.key in BY_BROKER_NAME:
            previous = broker.pop(prop.key, None)
            if previous is not None:
                reason = f"line {prop.line} sets {prop.key} again, and the last one counts"
                unused.append(UnusedSetting(prop.key, previous.source, reason))
            broker[prop.key] = make_entry(prop.key, prop.value, source, f"{path}:{prop.line}", units=False)
        elif prop.key == _BROKER_ID:
            broker_id = prop
        elif (of_listener := listener_setting(prop.key)) is not None:
            where = f"{path}:{prop.line}"
            broker[prop.key] = listener_entry(of_listener, prop.key, prop.value, source, where, units=False)
        else:
            unused.append(_unused(prop.key, prop.value, source))
    if broker_id is not None:
        _take_broker_id(broker_id, broker, path)
    return RawSettings(broker=broker, unused=tuple(unused))


def _take_broker_id(prop: Property, broker: dict[str, RawEntry], path: Path) -> None:
    """The old name of node.id counts where that is not given, and must say the same where it is (KafkaConfig)."""
    if prop.value.strip().startswith("-"):
        return  # none, as Kafka's default
    where = f"{path}:{prop.line}"
    own = make_entry(_NODE_ID, prop.value, f"{path.name}:{prop.line}", where, units=False)
    given = broker.get(_NODE_ID)
    if given is None:
        broker[_NODE_ID] = own
    elif given.values != own.values:
        reason = f"must be the same as node.id, which is {given.text} in {given.source}"
        raise SettingError(source=where, name=_BROKER_ID, value=prop.value, reason=reason)


def _unused(name: str, value: str, source: str) -> UnusedSetting:
    setting = BY_TOPIC_NAME.get(name)
    if setting is not None:
        instead = f"; the broker's default is {setting.broker[0].name}" if setting.broker else ""
        return UnusedSetting(name, source, f"a topic-level name, which Kafka ignores here{instead}", unknown=True)
    reason = why_unused(name)
    if reason is not None:
        return UnusedSetting(name, source, reason, value=value if name in DECIDING else None)
    near = nearest_name(name, listener_names_like(name) or (*BY_BROKER_NAME, *sorted(OTHER_BROKER_NAMES)))
    hint = f"; did you mean {near}?" if near else ""
    return UnusedSetting(name, source, f"not a setting of Kafka 4.4{hint}", unknown=True)


def _load_yaml(path: Path, data: bytes) -> RawSettings:
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.YAMLError as fault:
        raise UsageError(detail=f"{path}: not valid YAML: {' '.join(str(fault).split())}") from fault
    except RecursionError:
        raise UsageError(detail=f"{path}: nested too deeply for a settings file") from None
    if root is None:
        return RawSettings()
    broker: dict[str, RawEntry] = {}
    every_topic: dict[str, RawEntry] = {}
    topics: dict[str, dict[str, RawEntry]] = {}
    partitions: dict[str, int] = {}
    for name, value, line in _pairs(root, path, "the file"):
        if name == "topics":
            for topic, settings, topic_line in _pairs(value, path, "topics"):
                if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
                    raise UsageError(detail=f"{path}:{topic_line}: {topic!r} is not a topic name")
                pairs = _pairs(settings, path, f"topics.{topic}")
                topics[topic] = {
                    key: _yaml_entry(key, node, path, at, topic_level=True)
                    for key, node, at in pairs
                    if key != _PARTITIONS
                }
                for key, node, at in pairs:
                    if key == _PARTITIONS:
                        partitions[topic] = _count(node, path, at)
        elif name in BY_TOPIC_NAME and name not in BY_BROKER_NAME:
            every_topic[name] = _yaml_entry(name, value, path, line)
        else:
            broker[name] = _yaml_entry(name, value, path, line)
    return RawSettings(broker=broker, every_topic=every_topic, topics=topics, topic_partitions=partitions)


def _count(node: yaml.Node, path: Path, line: int) -> int:
    """The number of partitions that a topic is to have."""
    text = _yaml_text(_PARTITIONS, node, path, line)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= MAX_PARTITIONS:
        reason = f"must be a whole number, 1..{MAX_PARTITIONS}"
        raise SettingError(source=f"{path}:{line}", name=_PARTITIONS, value=text, reason=reason)
    return int(text)


def _pairs(node: yaml.Node, path: Path, what: str) -> list[tuple[str, yaml.Node, int]]:
    """The entries of a YAML mapping with the line of each; a repeated key is refused."""
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return []
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(detail=f"{path}:{node.start_mark.line + 1}: {what} must be a mapping of names to values")
    pairs: dict[str, tuple[str, yaml.Node, int]] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(detail=f"{path}:{line}: a name must be plain text")
        if key.value in pairs:
            raise UsageError(detail=f"{path}:{line}: {key.value} is set twice, first in line {pairs[key.value][2]}")
        pairs[key.value] = (key.value, value, line)
    return list(pairs.values())


def _yaml_entry(name: str, node: yaml.Node, path: Path, line: int, topic_level: bool = False) -> RawEntry:
    text = _yaml_text(name, node, path, line)
    if topic_level and name not in BY_TOPIC_NAME and name in BY_BROKER_NAME:
        near = next((setting.topic for setting in BY_BROKER_NAME[name] if setting.topic), None)
        reason = "a broker-level name" + (f"; a topic's is {near}" if near else ", which no topic has of its own")
        raise SettingError(source=f"{path}:{line}", name=name, value=shown(name, text), reason=reason)
    return strict_entry(name, text, f"{path.name}:{line}", f"{path}:{line}")


def _yaml_text(name: str, node: yaml.Node, path: Path, line: int) -> str:
    """A YAML value as a properties file would hold it: numbers as written, yes/no as true/false, lists with commas."""
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(item.value for item in node.value)
    if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
        # Names without values come up when the dots of a name were written as nested mappings.
        near = nearest_name(name, _ALL_NAMES) or "log.segment.bytes"
        raise UsageError(detail=f"{path}:{line}: {name} needs a single value; write names in full, as in {near}: VALUE")
    if node.tag == "tag:yaml.org,2002:bool":
        return "true" if node.value.lower() in ("true", "yes", "on") else "false"
    return str(node.value)
