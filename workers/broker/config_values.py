"""What a client is told of settings: values, where they come from, and what would count in their place (facts 10.1).

Names, types, defaults and meanings are those of `config.table`; the settings that clients may store and this program
doesn't act on are told with Kafka's defaults. Sources are Kafka's: a value given when the daemon was started is a "static"
one wherever it stood, and is told from a default by being another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from compactd.config.broker_names import OTHER_BROKER_NAMES
from compactd.config.errors import SettingError
from compactd.config.listener_settings import is_secret, listener_setting
from compactd.config.setting import BrokerName, Dynamic, Kind, Setting
from compactd.config.settings import as_text
from compactd.config.table import SETTINGS, TOPIC_SETTINGS
from compactd.config.units import java_double
from compactd.workers.broker.context import Context


class ConfigSource(IntEnum):
    """Kafka's DescribeConfigsResponse.ConfigSource."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


_TYPES = {
    "BOOLEAN": 1,
    "STRING": 2,
    "INT": 3,
    "SHORT": 4,
    "LONG": 5,
    "DOUBLE": 6,
    "LIST": 7,
    "CLASS": 8,
    "PASSWORD": 9,
}  # fmt: skip
_UNKNOWN_TYPE = 0


class Synonym(NamedTuple):
    """A value that counts, or would count if the ones before it were not there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource."""

    name: str
    value: str | None
    source: ConfigSource
    type: int = _UNKNOWN_TYPE
    read_only: bool = False
    synonyms: Sequence[Synonym] = ()
    documentation: str | None = None
    #: Its value is nobody's business, and not in it.
    sensitive: bool = False


class _Plain(NamedTuple):
    """A setting that is stored for others: type, default, and the broker's setting that it stands for."""

    type: str
    default: str
    broker: str | None = None


_TOPIC_UNUSED = "Stored for Kafka; nothing here acts on it."
_OTHER_TOPIC = {
    "errors.deadletterqueue.group.enable": _Plain("BOOLEAN", "false"),
    "follower.replication.throttled.replicas": _Plain("LIST", ""),
    "leader.replication.throttled.replicas": _Plain("LIST", ""),
    "local.retention.bytes": _Plain("LONG", "-2", "log.local.retention.bytes"),
    "local.retention.ms": _Plain("LONG", "-2", "log.local.retention.ms"),
    "remote.copy.lag.bytes": _Plain("LONG", "-1", "log.remote.copy.lag.bytes"),
    "remote.copy.lag.ms": _Plain("LONG", "0", "log.remote.copy.lag.ms"),
    "remote.log.copy.disable": _Plain("BOOLEAN", "false"),
    "remote.log.delete.on.disable": _Plain("BOOLEAN", "false"),
    "remote.storage.enable": _Plain("BOOLEAN", "false"),
}
_GROUP = {
    "consumer.assignment.interval.ms": _Plain("INT", "1000", "group.consumer.assignment.interval.ms"),
    "consumer.heartbeat.interval.ms": _Plain("INT", "5000", "group.consumer.heartbeat.interval.ms"),
    "consumer.session.timeout.ms": _Plain("INT", "45000", "group.consumer.session.timeout.ms"),
    "errors.deadletterqueue.copy.record.enable": _Plain(
        "BOOLEAN", "false", "errors.deadletterqueue.copy.record.enable"
    ),
    "errors.deadletterqueue.topic.name": _Plain("STRING", "", "errors.deadletterqueue.topic.name"),
    "share.assignment.interval.ms": _Plain("INT", "1000", "group.share.assignment.interval.ms"),
    "share.auto.offset.reset": _Plain("STRING", "latest", "share.auto.offset.reset"),
    "share.delivery.count.limit": _Plain("INT", "5", "group.share.delivery.count.limit"),
    "share.heartbeat.interval.ms": _Plain("INT", "5000", "group.share.heartbeat.interval.ms"),
    "share.isolation.level": _Plain("STRING", "read_uncommitted", "share.isolation.level"),
    "share.partition.max.record.locks": _Plain("INT", "2000", "group.share.partition.max.record.locks"),
    "share.record.lock.duration.ms": _Plain("INT", "30000", "group.share.record.lock.duration.ms"),
    "share.renew.acknowledge.enable": _Plain("BOOLEAN", "true", "share.renew.acknowledge.enable"),
    "share.session.timeout.ms": _Plain("INT", "45000", "group.share.session.timeout.ms"),
    "streams.assignment.interval.ms": _Plain("INT", "1000", "group.streams.assignment.interval.ms"),
    "streams.assignor.name": _Plain("STRING", "sticky", "group.streams.assignors"),
    "streams.heartbeat.interval.ms": _Plain("INT", "5000", "group.streams.heartbeat.interval.ms"),
    "streams.initial.rebalance.delay.ms": _Plain("INT", "3000", "group.streams.initial.rebalance.delay.ms"),
    "streams.num.standby.replicas": _Plain("INT", "0", "group.streams.num.standby.replicas"),
    "streams.rack.aware.assignment.tags": _Plain("LIST", "", "group.streams.rack.aware.assignment.tags"),
    "streams.session.timeout.ms": _Plain("INT", "45000", "group.streams.session.timeout.ms"),
}
_CLIENT_METRICS = {
    "interval.ms": _Plain("INT", "300000"),
    "match": _Plain("LIST", ""),
    "metrics": _Plain("LIST", ""),
}
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


class ConfigValues:
    """The settings as they are at this moment."""

    def __init__(self, context: Context) -> None:
        configs = context.image.broker_configs
        self._own: Mapping[str, str] = configs.get(str(context.config.node_id), {})
        self._cluster: Mapping[str, str] = configs.get("", {})
        self._given: Mapping[str, str] = context.settings
        self._level = context.config.log_level
        #: Settings of topics that have the same ones of their own.
        self._topics: dict[tuple[frozenset[tuple[str, str]], bool], list[Entry]] = {}
        self._kept: set[int] = set()

    # ---- resources

    def of_topic(self, overrides: Mapping[str, str], *, created: bool = False) -> list[Entry]:
        """A topic that has these settings of its own; by name.

        `created`: as CreateTopics tells of them, where a value's source is always the true one. (DescribeConfigs gives that
        of the first synonym, so log.roll.hours counts for nothing there.)
        """
        alike = (frozenset(overrides.items()), created)
        if alike in self._topics:
            return self._topics[alike]
        entries = [self._topic_entry(setting, overrides, created) for setting in TOPIC_SETTINGS if not setting.hidden]
        entries += [
            self._plain_entry(name, plain, overrides, ConfigSource.TOPIC, _TOPIC_UNUSED)
            for name, plain in _OTHER_TOPIC.items()
        ]
        entries.sort(key=lambda entry: entry.name)
        self._topics[alike] = entries
        self._kept.add(id(entries))
        return entries

    def keeps(self, entries: Sequence[Entry]) -> bool:
        """Whether these are kept, so that their identity is that of nothing else."""
        return id(entries) in self._kept

    def of_broker(self) -> list[Entry]:
        """Everything that the broker goes by, and what others stored for it; by name."""
        entries = {
            entry.name: self._broker_entry(setting, entry)
            for setting in SETTINGS
            if not setting.hidden
            for entry in setting.broker
        }
        for stored, source in (
            (self._cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self._own, ConfigSource.DYNAMIC_BROKER),
        ):
            for name, value in stored.items():
                if name not in entries or entries[name].type == _UNKNOWN_TYPE:
                    entries[name] = Entry(name, value, source, synonyms=(Synonym(name, value, source),))
        for name in {*self._given, *self._own, *self._cluster}:
            of_listener = listener_setting(name)
            if of_listener is not None:
                entries[name] = self._listener_entry(of_listener, name)
        return [_without_secrets(entries[name]) for name in sorted(entries)]

    def of_cluster(self) -> list[Entry]:
        """What was set for all brokers."""
        known = {entry.name: entry for entry in self.of_broker()}
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        return [
            _without_secrets(
                Entry(
                    name,
                    value,
                    source,
                    known[name].type,
                    synonyms=(Synonym(name, value, source),),
                    documentation=known[name].documentation,
                )
            )
            for name, value in sorted(self._cluster.items())
        ]

    def of_group(self, stored: Mapping[str, str]) -> list[Entry]:
        """A group, which need not be there."""
        return [self._plain_entry(name, plain, stored, ConfigSource.GROUP) for name, plain in sorted(_GROUP.items())]

    def of_client_metrics(self, stored: Mapping[str, str]) -> list[Entry]:
        """A subscription to clients' metrics."""
        return [
            self._plain_entry(name, plain, stored, ConfigSource.CLIENT_METRICS)
            for name, plain in sorted(_CLIENT_METRICS.items())
        ]

    def of_loggers(self) -> list[Entry]:
        """There is one level for all."""
        return [Entry("root", _LEVELS.get(self._level, "INFO"), ConfigSource.BROKER_LOGGER)]

    # ---- entries

    def _topic_entry(self, setting: Setting, overrides: Mapping[str, str], created: bool) -> Entry:
        name = setting.topic or ""
        synonyms = self._synonyms(setting, setting.broker[0].name) if setting.broker else []
        if name in overrides:
            synonyms.insert(0, Synonym(name, overrides[name], ConfigSource.TOPIC))
            value, source = overrides.get(name), ConfigSource.TOPIC
        else:
            value, source = self._effective(setting)
        if not created:
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        return Entry(
            name,
            value,
            source,
            _TYPES[setting.kind.value.upper()],
            False,
            synonyms,
            _sentence(setting.meaning),
        )

    def _broker_entry(self, setting: Setting, broker: BrokerName) -> Entry:
        synonyms = self._synonyms(setting, broker.name)
        own = next((each for each in synonyms if each.name == broker.name), None)
        kind = broker.kind or setting.kind
        return Entry(
            broker.name,
            None if own is None else own.value,
            synonyms[0].source if synonyms else ConfigSource.DEFAULT,
            _TYPES[kind.value.upper()],
            broker.dynamic is Dynamic.NO,
            synonyms,
            _sentence(setting.meaning),
        )

    def _listener_entry(self, setting: Setting, name: str) -> Entry:
        """One listener's, with what it stands in front of."""
        synonyms = [Synonym(name, values[name], source) for values, source in self._dynamic() if name in values]
        given = self._given.get(name)
        if given and all(given != each.value for each in synonyms):
            synonyms.append(Synonym(name, given, ConfigSource.STATIC_BROKER))
        is_static = True
        if setting.broker and name.endswith(setting.name):
            is_static = setting.broker[0].dynamic is Dynamic.NO
            synonyms += self._synonyms(setting, setting.name)
        first = synonyms[0] if synonyms else Synonym(name, None, ConfigSource.DEFAULT)
        return Entry(
            name,
            first.value,
            first.source,
            _TYPES[setting.kind.value.upper()],
            is_static,
            synonyms,
            _sentence(setting.meaning),
        )

    def _plain_entry(
        self,
        name: str,
        plain: _Plain,
        stored: Mapping[str, str],
        source: ConfigSource,
        documentation: str | None = None,
    ) -> Entry:
        synonyms = []
        if name in stored:
            synonyms.append(Synonym(name, stored[name], source))
        if plain.broker is not None:
            synonyms += [
                Synonym(plain.broker, values[plain.broker], of)
                for values, of in self._dynamic()
                if plain.broker in values
            ]
            synonyms.append(Synonym(plain.broker, plain.default, ConfigSource.DEFAULT))
        first = synonyms[0] if synonyms else Synonym(name, plain.default, ConfigSource.DEFAULT)
        return Entry(name, first.value, first.source, _TYPES[plain.type], False, synonyms, documentation)

    def _dynamic(self) -> Iterator[tuple[Mapping[str, str], ConfigSource]]:
        yield self._own, ConfigSource.DYNAMIC_BROKER
        yield self._cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER

    def _synonyms(self, setting: Setting, name: str) -> list[Synonym]:
        """Source by source, within each name by name; what stands in front of the name itself is not told, as in Kafka."""
        found = [
            Synonym(entry.name, values[entry.name], source)
            for values, source in self._dynamic()
            for entry in setting.broker
            if entry.name in values
        ]
        found += [
            Synonym(entry.name, value, ConfigSource.STATIC_BROKER)
            for entry in setting.broker
            if (value := self._static(setting, entry)) is not None
        ]
        found += [
            Synonym(entry.name, value, ConfigSource.DEFAULT)
            for entry in setting.broker
            if (value := _default(setting, entry)) is not None
        ]
        while found and found[0].name != name:
            del found[0]
        return found

    def _static(self, setting: Setting, entry: BrokerName) -> str | None:
        """What the daemon was started with. A dynamic value has taken its place where there is one."""
        if entry.name in self._own or entry.name in self._cluster:
            return None
        value = self._given.get(entry.name)
        is_same = value is None or value in (_default(setting, entry), as_text(setting.default))
        return None if is_same else value

    def _effective(self, setting: Setting) -> tuple[str | None, ConfigSource]:
        """A topic-level setting that the topic leaves to the broker."""
        for entry in setting.broker:
            found = [(values[entry.name], source) for values, source in self._dynamic() if entry.name in values]
            static = self._static(setting, entry)
            if static is not None:
                found.append((static, ConfigSource.STATIC_BROKER))
            for text, source in found:
                try:
                    return _text(setting, setting.parse(entry.name, text, "", units=False)), source
                except SettingError:
                    continue
        return _text(setting, setting.default), ConfigSource.DEFAULT


def _without_secrets(entry: Entry) -> Entry:
    """A password, and what nobody knows and may be one, is told of without its value, as in Kafka."""
    is_unknown = entry.type == _UNKNOWN_TYPE and entry.name not in OTHER_BROKER_NAMES
    if not (is_unknown or entry.type == _TYPES["PASSWORD"] or is_secret(entry.name)):
        return entry
    synonyms = [each._replace(value=None) for each in entry.synonyms]
    return replace(entry, value=None, synonyms=synonyms, sensitive=True, read_only=entry.read_only or is_unknown)


def _default(setting: Setting, entry: BrokerName) -> str | None:
    """The default stands at the last of a setting's names (log.retention.hours, say)."""
    if entry is not setting.broker[-1] or setting.default is None:
        return None
    if entry.scale != 1 and isinstance(setting.default, int):
        return str(setting.default // entry.scale)
    return _text(setting, setting.default)


def _text(setting: Setting, value: object) -> str | None:
    if value is None:
        return None
    if setting.kind is Kind.DOUBLE and isinstance(value, (int, float)):
        return java_double(float(value))
    return as_text(value)


def _sentence(meaning: str) -> str:
    return meaning[:1].upper() + meaning[1:] + "."
