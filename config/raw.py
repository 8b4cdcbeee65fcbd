"""Settings as one source gives them: checked name by name, not yet put together with other sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compactd.config.broker_names import OTHER_TOPIC_NAMES
from compactd.config.errors import SettingError, UsageError
from compactd.config.listener_settings import listener_names_like, listener_setting, shown
from compactd.config.setting import Setting, Value
from compactd.config.settings import as_text, unknown_name
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME
from compactd.config.without_effect import why_unused

_ALL_NAMES = (*BY_TOPIC_NAME, *BY_BROKER_NAME)


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One setting as written: checked against the table, not yet put together with others."""

    name: str
    text: str
    #: Parsed values by field of the table; a broker-level name may feed two settings.
    values: Mapping[str, Value]
    #: `--set`, or file name and line: `server.properties:12`.
    source: str

    def __repr__(self) -> str:
        return f"RawEntry({self.name}={shown(self.name, self.text)!r}, {self.source!r})"


@dataclass(frozen=True, slots=True)
class UnusedSetting:
    """A line of server.properties that has no effect here. Its value is kept only where it decides: others may be secret."""

    name: str
    source: str
    reason: str
    #: Kafka doesn't know the name either, or nothing reads it there: probably a slip.
    unknown: bool = False
    #: Of a setting some of whose values are refused.
    value: str | None = None


@dataclass(frozen=True, slots=True)
class RawSettings:
    """All settings of one source: broker-level ones, topic-level ones for every topic, and those of single topics."""

    broker: Mapping[str, RawEntry] = field(default_factory=dict)
    every_topic: Mapping[str, RawEntry] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, RawEntry]] = field(default_factory=dict)
    #: `partitions` of single topics: how many they are to have.
    topic_partitions: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[UnusedSetting, ...] = ()


def parse_sets(pairs: Iterable[str] | Mapping[str, object]) -> RawSettings:
    """Settings given as `NAME=VALUE` (the last one of a name counts), topic-level or broker-level, units allowed.

    Raises UsageError for a pair without `=`, SettingError for a name or value that isn't valid.
    """
    if isinstance(pairs, Mapping):
        items = [(str(name), as_text(value)) for name, value in pairs.items()]
    else:
        items = []
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals:
                raise UsageError(detail=f"--set {pair}: write NAME=VALUE")
            items.append((name.strip(), text))
    broker: dict[str, RawEntry] = {}
    every_topic: dict[str, RawEntry] = {}
    for name, text in items:
        target = every_topic if name in BY_TOPIC_NAME else broker
        target[name] = strict_entry(name, text, "--set", "--set")
    return RawSettings(broker=broker, every_topic=every_topic)


def strict_entry(name: str, text: str, source: str, where: str) -> RawEntry:
    """An entry of YAML or --set, units allowed: only names that have an effect are taken. `where` goes into errors."""
    if name in BY_TOPIC_NAME or name in BY_BROKER_NAME:
        return make_entry(name, text, source, where, units=True)
    of_listener = listener_setting(name)
    if of_listener is not None:
        return listener_entry(of_listener, name, text, source, where, units=True)
    reason = why_unused(name)
    if reason is None:
        raise unknown_name(name, shown(name, text), where, listener_names_like(name) or _ALL_NAMES)
    if name not in OTHER_TOPIC_NAMES:
        reason += "; only a broker's server.properties may hold it"
    raise SettingError(source=where, name=name, value=shown(name, text), reason=reason)


def listener_entry(setting: Setting, name: str, text: str, source: str, where: str, units: bool) -> RawEntry:
    """An entry of one listener: it feeds no setting of the table, its text is what counts."""
    return RawEntry(name, as_text(setting.parse(name, text, where, units)), {}, source)


def make_entry(name: str, text: str, source: str, where: str, units: bool) -> RawEntry:
    """An entry of a known name, parsed for every setting it feeds: a topic's own, and those it is the default of."""
    fed = dict.fromkeys((*BY_BROKER_NAME.get(name, ()), *((BY_TOPIC_NAME[name],) if name in BY_TOPIC_NAME else ())))
    return RawEntry(name, text, {setting.field: setting.parse(name, text, where, units) for setting in fed}, source)
