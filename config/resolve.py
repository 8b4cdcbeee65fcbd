"""Puts the sources of settings together and says where each value came from.

A topic-level value beats a broker-level default, as in Kafka (facts 3, kraft-and-coordinators A9), so a
server.properties never overrides what a topic was given. Within each level the order is: --set, --config FILE, the
cluster's own metadata log (a broker's dynamic config before the cluster-wide one), then Kafka's default. A broker-level
name in --set is meant: it beats topic-level values of the other sources too.
Of several broker-level names of one setting in one source the leftmost of the table wins (log.roll.ms before .hours).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.errors import SettingError
from compactd.config.listener_settings import PREFIX, listener_setting
from compactd.config.raw import RawEntry, RawSettings, parse_sets
from compactd.config.setting import Setting, Value
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig, as_text
from compactd.config.table import BY_TOPIC_NAME, CLEANER_SETTINGS, STORAGE_SETTINGS, TOPIC_SETTINGS

T = TypeVar("T")

DEFAULT = "default"

#: Settings that have to hold together with those of listeners.
_SECURITY_NAMES = frozenset(
    setting.name
    for setting in DAEMON_SETTINGS
    if setting.name.startswith(("sasl.", "ssl.", "principal.", "listener", "advertised.listeners"))
)


class ClusterConfigs(Protocol):
    """What the metadata log knows of settings; storage.metadata.ClusterMetadata is one."""

    @property
    def topic_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Topic to topic-level name to value."""

    @property
    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Broker id in decimal, or "" for the cluster-wide default, to broker-level name to value."""

    @property
    def node_id(self) -> int | None:
        """The broker whose log dirs these are; None when unknown."""

    def config_source(self, kind: str, resource: str, name: str) -> str:
        """Where a value stands (`kind` is topic or broker): `__cluster_metadata-0 offset 57 (topic users)`."""


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A configuration, and where each of its settings came from: by topic-level name, or else broker-level name."""

    config: T
    sources: dict[str, str]
    #: Names the metadata log has for this topic that compactd doesn't act on, each with its source.
    unused: dict[str, str]


ResolvedConfig = Resolved[TopicConfig]

#: What callers may hand over as --set: pairs NAME=VALUE, a mapping, or settings already parsed.
Sets = Iterable[str] | Mapping[str, object] | RawSettings | None


@dataclass(frozen=True, slots=True)
class _Found:
    value: Value
    source: str


def resolve_topic(
    topic: str,
    sets: Sets = None,
    file_settings: RawSettings | None = None,
    metadata: ClusterConfigs | None = None,
) -> ResolvedConfig:
    """The configuration of `topic`, internal topics included: theirs was stored when Kafka created them.

    Raises SettingError for a value in --set or the metadata log that isn't valid, or where two values contradict.
    """
    given = _as_settings(sets)
    stored = {} if metadata is None else metadata.topic_configs.get(topic, {})
    found: dict[str, _Found] = {}
    for setting in TOPIC_SETTINGS:
        hit = (
            _written(given.every_topic, setting)
            or _broker_level(given, setting)
            or _written({} if file_settings is None else file_settings.topics.get(topic, {}), setting)
            or _written({} if file_settings is None else file_settings.every_topic, setting)
            or _stored_topic(metadata, topic, stored, setting)
            or _broker_level(file_settings, setting)
            or _stored_broker(metadata, setting)
        )
        if hit is not None:
            found[setting.field] = hit
    sources = {
        setting.name: found[setting.field].source if setting.field in found else DEFAULT for setting in TOPIC_SETTINGS
    }
    if found.get("internal_segment_bytes") is not None:
        sources["segment.bytes"] = sources["internal.segment.bytes"] + " (internal.segment.bytes)"
    unused = {
        name: metadata.config_source("topic", topic, name)
        for name in stored
        if metadata is not None and name not in BY_TOPIC_NAME
    }
    values = {field: hit.value for field, hit in found.items()}
    where = " and ".join(dict.fromkeys(sources[name] for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")))
    return Resolved(TopicConfig.from_values(values, f"topic {topic}, {where}"), sources, unused)


def resolve_cleaner(
    sets: Sets = None,
    file_settings: RawSettings | None = None,
    metadata: ClusterConfigs | None = None,
    any_buffer_size: bool = False,
) -> Resolved[CleanerConfig]:
    """The cleaner's configuration; `any_buffer_size` lifts the limit of 1 MiB a thread. SettingError as above."""
    values, sources = _resolve_broker(CLEANER_SETTINGS, _as_settings(sets), file_settings, metadata)
    where = sources["log.cleaner.dedupe.buffer.size"]
    return Resolved(CleanerConfig.from_values(values, where, any_buffer_size), sources, {})


def resolve_storage(
    sets: Sets = None,
    file_settings: RawSettings | None = None,
    metadata: ClusterConfigs | None = None,
) -> Resolved[StorageConfig]:
    """The log manager's configuration. SettingError as above."""
    values, sources = _resolve_broker(STORAGE_SETTINGS, _as_settings(sets), file_settings, metadata)
    return Resolved(StorageConfig.from_values(values, sources["cordoned.log.dirs"]), sources, {})


def resolve_daemon(
    sets: Sets = None,
    file_settings: RawSettings | None = None,
    metadata: ClusterConfigs | None = None,
    strict: bool = False,
) -> Resolved[DaemonConfig]:
    """The daemon's configuration. SettingError as above.

    Unless it is `strict`, what clients stored of listeners and logins is passed over where it doesn't hold together:
    nobody who may change settings can keep the daemon from starting. `unused` has it then.
    """
    given = _as_settings(sets)
    try:
        return _resolve_daemon(given, file_settings, metadata)
    except SettingError as fault:
        passed_over = {} if metadata is None else _of_security(metadata)
        if metadata is None or strict or not passed_over:
            raise
        without = _Without(metadata, frozenset(passed_over))
        found = _resolve_daemon(given, file_settings, without)
        return Resolved(
            found.config, found.sources, {name: f"{source}: {fault}" for name, source in passed_over.items()}
        )


def _of_security(metadata: ClusterConfigs) -> dict[str, str]:
    """Stored settings of listeners and logins that may not fit the others, with their sources."""
    own = "" if metadata.node_id is None else str(metadata.node_id)
    return {
        name: metadata.config_source("broker", resource, name)
        for resource in dict.fromkeys(("", own))
        for name in metadata.broker_configs.get(resource, {})
        if name in _SECURITY_NAMES or name.startswith(PREFIX)
    }


@dataclass(frozen=True, slots=True)
class _Without:
    """The cluster's configs but for some names of brokers."""

    _whole: ClusterConfigs
    _names: frozenset[str]

    @property
    def topic_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self._whole.topic_configs

    @property
    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        return {
            resource: {name: value for name, value in configs.items() if name not in self._names}
            for resource, configs in self._whole.broker_configs.items()
        }

    @property
    def node_id(self) -> int | None:
        return self._whole.node_id

    def config_source(self, kind: str, resource: str, name: str) -> str:
        return self._whole.config_source(kind, resource, name)


def _resolve_daemon(
    given: RawSettings, file_settings: RawSettings | None, metadata: ClusterConfigs | None
) -> Resolved[DaemonConfig]:
    values, sources = _resolve_broker(DAEMON_SETTINGS, given, file_settings, metadata)
    listeners = _of_listeners(given, file_settings, metadata)
    sources |= {name: found.source for name, found in listeners.items()}
    texts = {name: str(found.value) for name, found in listeners.items()}
    try:
        config = DaemonConfig.from_values(values, sources["listeners"], texts)
    except SettingError as fault:
        raise SettingError(**{**fault.fields, "source": sources.get(fault.name, fault.source)}) from None
    return Resolved(config, sources, {})


def _of_listeners(
    given: RawSettings, file_settings: RawSettings | None, metadata: ClusterConfigs | None
) -> dict[str, _Found]:
    """Settings of single listeners, by name."""
    found: dict[str, _Found] = {}
    if metadata is not None:
        own = "" if metadata.node_id is None else str(metadata.node_id)
        for resource in dict.fromkeys(("", own)):
            for name, text in metadata.broker_configs.get(resource, {}).items():
                if (setting := listener_setting(name)) is not None:
                    source = metadata.config_source("broker", resource, name)
                    found[name] = _Found(as_text(setting.parse(name, text, source, units=False)), source)
    for settings in (file_settings, given):
        for name, entry in settings.broker.items() if settings is not None else ():
            if listener_setting(name) is not None:
                found[name] = _Found(entry.text, entry.source)
    return found


def _resolve_broker(
    settings: Sequence[Setting],
    given: RawSettings,
    file_settings: RawSettings | None,
    metadata: ClusterConfigs | None,
) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for setting in settings:
        hit = (
            _broker_level(given, setting) or _broker_level(file_settings, setting) or _stored_broker(metadata, setting)
        )
        sources[setting.name] = DEFAULT if hit is None else hit.source
        if hit is not None:
            values[setting.field] = hit.value
    return values, sources


def _as_settings(sets: Sets) -> RawSettings:
    return sets if isinstance(sets, RawSettings) else parse_sets(sets or ())


def _written(entries: Mapping[str, RawEntry], setting: Setting) -> _Found | None:
    entry = entries.get(setting.topic or "")
    return None if entry is None else _Found(entry.values[setting.field], entry.source)


def _broker_level(settings: RawSettings | None, setting: Setting) -> _Found | None:
    for name in setting.broker if settings is not None else ():
        entry = settings.broker.get(name.name) if settings is not None else None
        if entry is not None:
            return _Found(entry.values[setting.field], entry.source)
    return None


def _stored_topic(
    metadata: ClusterConfigs | None, topic: str, stored: Mapping[str, str], setting: Setting
) -> _Found | None:
    if metadata is None or setting.topic is None or setting.topic not in stored:
        return None
    source = metadata.config_source("topic", topic, setting.topic)
    return _Found(setting.parse(setting.topic, stored[setting.topic], source, units=False), source)


def _stored_broker(metadata: ClusterConfigs | None, setting: Setting) -> _Found | None:
    """Dynamic broker configs: per name the broker's own before the cluster-wide one, then the leftmost name."""
    if metadata is None:
        return None
    own = "" if metadata.node_id is None else str(metadata.node_id)
    for name in setting.broker:
        for resource in dict.fromkeys((own, "")):
            text = metadata.broker_configs.get(resource, {}).get(name.name)
            if text is not None:
                source = metadata.config_source("broker", resource, name.name)
                return _Found(setting.parse(name.name, text, source, units=False), source)
    return None
