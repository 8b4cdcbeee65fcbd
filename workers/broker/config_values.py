"""What a client is told of settings: values, where they come from, and what would count in their place (facts 10.1).

Names, types, defaults and meanings are those of `config.table`; the settings that clients may store and this program
doesn't act on are told with Kafka's defaults. Sources are Kafka's: a value given when the daemon was started is a "static"
one wherever it stood. As in Kafka a setting's value is told as it was understood ("5e8" is 5.0E8), and each of its synonyms
as it was written, but for a topic's or a group's own.
"""

from __future__ import annotations

import re
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
from compactd.workers.broker import config_resources
from compactd.workers.broker.config_resources import PlainSetting
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
    """One setting of a resource. The values of a `sensitive` one are kept to ourselves."""

    name: str
    value: str | None
    source: ConfigSource
    type: int = _UNKNOWN_TYPE
    read_only: bool = False
    synonyms: Sequence[Synonym] = ()
    documentation: str | None = None
    sensitive: bool = False


class ConfigValues:
    """The settings as they are at this moment."""

    def __init__(self, context: Context) -> None:
        configs = context.image.broker_configs
        self._own: Mapping[str, str] = configs.get(str(context.config.node_id), {})
        self._cluster: Mapping[str, str] = configs.get("", {})
        self._given: Mapping[str, str] = context.given.broker
        self._given_topics: Mapping[str, str] = context.given.topics
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
            self._plain_entry(name, plain, overrides, ConfigSource.TOPIC)
            for name, plain in config_resources.TOPIC.items()
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
            # What a plug-in of Kafka's reads is nothing that Kafka knows itself.
            if not setting.hidden and not setting.plug_in
            for entry in setting.broker
        }
        hidden = {entry.name for setting in SETTINGS if setting.hidden for entry in setting.broker}
        for name in {*self._given, *self._cluster, *self._own} - entries.keys() - hidden:
            entries[name] = self._other_entry(name)
        return [entries[name] for name in sorted(entries)]

    def of_cluster(self) -> list[Entry]:
        """What was set for all brokers."""
        known = {entry.name: entry for entry in self.of_broker()}
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        entries = []
        for name, value in sorted(self._cluster.items()):
            entry = known[name]
            # Here Kafka tells values as they were written.
            shown = None if entry.sensitive else value
            entries.append(
                Entry(
                    name,
                    shown,
                    source,
                    entry.type,
                    entry.read_only,
                    (Synonym(name, shown, source),),
                    entry.documentation,
                    entry.sensitive,
                )
            )
        return entries

    def of_group(self, stored: Mapping[str, str]) -> list[Entry]:
        """A group, which need not be there."""
        groups = sorted(config_resources.GROUP.items())
        return [self._plain_entry(name, plain, stored, ConfigSource.GROUP) for name, plain in groups]

    def of_client_metrics(self, stored: Mapping[str, str]) -> list[Entry]:
        """A subscription to clients' metrics."""
        return [
            self._plain_entry(name, plain, stored, ConfigSource.CLIENT_METRICS)
            for name, plain in sorted(config_resources.CLIENT_METRICS.items())
        ]

    # ---- entries

    def _topic_entry(self, setting: Setting, overrides: Mapping[str, str], created: bool) -> Entry:
        name, kind = setting.topic or "", setting.kind.value.upper()
        synonyms = self._synonyms(setting, setting.broker[0].name) if setting.broker else []
        source = ConfigSource.TOPIC
        if name in overrides:
            synonyms.insert(0, Synonym(name, _understood(kind, overrides[name]), source))
        if name in self._given_topics:
            # Given for every topic when the daemon was started: it stands before what a topic has of its own.
            source = ConfigSource.STATIC_BROKER
            synonyms.insert(0, Synonym(name, _understood(kind, self._given_topics[name]), source))
        if synonyms and synonyms[0].name == name and synonyms[0].source == source:
            value = synonyms[0].value
        else:
            value, source = self._effective(setting)
        if not created:
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        return Entry(name, value, source, _TYPES[kind], False, synonyms, _sentence(setting.description))

    def _broker_entry(self, setting: Setting, broker: BrokerName) -> Entry:
        kind = (broker.kind or setting.kind).value.upper()
        synonyms = self._synonyms(setting, broker.name)
        own = next((each for each in synonyms if each.name == broker.name), None)
        if own is not None and own.source is ConfigSource.STATIC_BROKER and self._is_dynamic(setting):
            # A dynamic value of any of a setting's names takes the place of all that the node was started with.
            own = next((each for each in reversed(synonyms) if each[::2] == (broker.name, ConfigSource.DEFAULT)), None)
        entry = Entry(
            broker.name,
            None if own is None or own.value is None else _understood(kind, own.value),
            synonyms[0].source if synonyms else ConfigSource.DEFAULT,
            _TYPES[kind],
            broker.dynamic is Dynamic.NO,
            synonyms,
            _sentence(setting.description),
        )
        return _without_secrets(entry) if setting.kind is Kind.PASSWORD or is_secret(broker.name) else entry

    def _is_dynamic(self, setting: Setting) -> bool:
        return any(entry.name in values for entry in setting.broker for values in (self._own, self._cluster))

    def _other_entry(self, name: str) -> Entry:
        """A name that no table has: of one listener, of a plug-in, or stored for Kafka. What nobody knows may be a secret."""
        synonyms = [Synonym(name, values[name], source) for values, source in self._levels() if name in values]
        kind, is_unknown, read_only, meaning = "", name not in OTHER_BROKER_NAMES, False, None
        setting = listener_setting(name)
        if setting is not None:
            kind, is_unknown, read_only, meaning = (
                setting.kind.value.upper(),
                False,
                True,
                _sentence(setting.description),
            )
            if setting.broker and name.endswith(setting.name):
                # It stands in front of the one without the prefix.
                read_only = setting.broker[0].dynamic is Dynamic.NO
                synonyms += self._synonyms(setting, setting.name)
        first = synonyms[0]
        entry = Entry(
            name,
            _understood(kind, first.value or ""),
            first.source,
            _TYPES.get(kind, _UNKNOWN_TYPE),
            read_only or is_unknown,
            synonyms,
            meaning,
        )
        return _without_secrets(entry) if is_unknown or kind == "PASSWORD" or is_secret(name) else entry

    def _plain_entry(self, name: str, plain: PlainSetting, stored: Mapping[str, str], source: ConfigSource) -> Entry:
        synonyms = []
        if name in stored:
            synonyms.append(Synonym(name, _understood(plain.type, stored[name]), source))
        if plain.broker is not None:
            synonyms += [
                Synonym(plain.broker, values[plain.broker], of)
                for values, of in self._levels()
                if plain.broker in values
            ]
            synonyms.append(Synonym(plain.broker, plain.default, ConfigSource.DEFAULT))
        first = synonyms[0] if synonyms else Synonym(name, plain.default, ConfigSource.DEFAULT)
        value = _understood(plain.type, first.value or "")
        return Entry(name, value, first.source, _TYPES[plain.type], False, synonyms, plain.meaning)

    def _levels(self) -> Iterator[tuple[Mapping[str, str], ConfigSource]]:
        """Where a broker-level value may stand, strongest first."""
        yield self._own, ConfigSource.DYNAMIC_BROKER
        yield self._cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER
        yield self._given, ConfigSource.STATIC_BROKER

    def _synonyms(self, setting: Setting, name: str) -> list[Synonym]:
        """Source by source, within each name by name; what stands in front of the name itself is not told, as in Kafka."""
        found = [
            Synonym(entry.name, values[entry.name], source)
            for values, source in self._levels()
            for entry in setting.broker
            if entry.name in values
        ]
        found += [
            Synonym(entry.name, value, ConfigSource.DEFAULT)
            for entry in setting.broker
            if (value := _default(setting, entry)) is not None
        ]
        while found and found[0].name != name:
            del found[0]
        return found

    def _effective(self, setting: Setting) -> tuple[str | None, ConfigSource]:
        """A topic-level setting that the topic leaves to the broker."""
        for entry in setting.broker:
            for values, source in self._levels():
                if entry.name in values:
                    try:
                        value = setting.parse(entry.name, values[entry.name], "", units=False)
                    except SettingError:
                        continue
                    return _text(setting, value), source
        return _text(setting, setting.default), ConfigSource.DEFAULT


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


def _understood(kind: str, text: str) -> str:
    """A value as Kafka prints it after it parsed it (ConfigDef.convertToString); what doesn't parse stays as it is."""
    trimmed = text.strip()
    if kind == "BOOLEAN":
        return trimmed.lower()
    if kind in ("INT", "SHORT", "LONG") and re.fullmatch(r"[+-]?[0-9]{1,30}", trimmed):
        return str(int(trimmed))
    if kind == "DOUBLE":
        try:
            return java_double(float(trimmed.rstrip("dDfF")))
        except ValueError:
            return text
    if kind == "LIST":
        return ",".join(re.split(r"\s*,\s*", trimmed)) if trimmed else ""
    return trimmed if kind in ("STRING", "CLASS") else text


def _without_secrets(entry: Entry) -> Entry:
    return replace(entry, value=None, synonyms=[each._replace(value=None) for each in entry.synonyms], sensitive=True)


def _sentence(meaning: str) -> str:
    return meaning[:1].upper() + meaning[1:] + "."
