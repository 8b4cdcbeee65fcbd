"""The daemon's configuration: --set, the file of --config, and what the catalogue holds, put together and read again.

The topics section of the file is written into the catalogue at start and at a reload; from then on the catalogue is what
counts, so that a client's later change is not undone by an old line in a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from compactd.config.errors import SettingError
from compactd.config.flat import flatten, unflatten
from compactd.config.load import load_file, parse_sets, resolve_cleaner, resolve_daemon, resolve_storage, resolve_topic
from compactd.config.raw import RawEntry, RawSettings, UnusedSetting
from compactd.config.setting import LONG_MAX, Dynamic
from compactd.config.settings import TopicConfig, as_text
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME, SETTINGS
from compactd.config.without_effect import NO_EFFECT, why_refused
from compactd.coordinator.interfaces import Settings
from compactd.workers.messages import GivenSettings

_log = logging.getLogger(__name__)

#: Where the data is when nothing says so.
DEFAULT_LOG_DIR = "data/d1"
_SECURITY = ("ssl.", "sasl.", "listener", "principal.")
_MIN_LAG, _MAX_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class CatalogueConfigs:
    """What the catalogue knows of settings, in the form that `config.resolve` asks for."""

    node_id: int | None
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def config_source(self, kind: str, resource: str, name: str) -> str:
        return f"the catalogue, {kind} {resource or 'default'}: {name}"

    def holds(self, names: Collection[str]) -> bool:
        """Whether one of these broker-level names is set."""
        return any(name in configs for configs in self.broker_configs.values() for name in names)

    def without(self, names: Collection[str]) -> CatalogueConfigs:
        """The same without these broker-level names."""
        kept = {
            resource: {name: value for name, value in configs.items() if name not in names}
            for resource, configs in self.broker_configs.items()
        }
        return replace(self, broker_configs=kept)


@dataclass(frozen=True, slots=True)
class TopicSection:
    """A topic of the file: to be created, or altered where it exists."""

    name: str
    #: None: as num.partitions says.
    partitions: int | None
    #: Topic-level names and values, without units.
    configs: Mapping[str, str]


class Configuration:
    """One reading of --set and the file. A reload makes a new one."""

    def __init__(self, sets: Sequence[str], path: Path | None) -> None:
        """UsageError, SettingError: with the line of the file."""
        self._sets_given = tuple(sets)
        self.path = path
        self._sets = parse_sets(sets)
        self._file = RawSettings() if path is None else load_file(path)
        self.unused = (*self._file.unused, *_without_effect(self._file), *_without_effect(self._sets))
        if "log.dirs" not in {*self._sets.broker, *self._file.broker} and "log.dir" not in {
            *self._sets.broker,
            *self._file.broker,
        }:
            broker = {**parse_sets({"log.dirs": DEFAULT_LOG_DIR}).broker, **self._sets.broker}
            self._sets = replace(self._sets, broker=broker)
        # Everything that can be wrong without the catalogue is found now.
        self.resolve(None)
        self.topic_config({}, None)
        self._refuse()

    def _refuse(self) -> None:
        """SettingError for what only Kafka has a use for, where it asks for something that would be missing here."""
        first_log_dir = resolve_storage(self._sets, self._file).config.log_dirs[0]
        for each in self.unused:
            reason = None if each.value is None else why_refused(each.name, each.value, first_log_dir)
            if reason is not None:
                raise SettingError(source=each.source, name=each.name, value=each.value, reason=reason)

    def read_again(self) -> Configuration:
        """The same, from the file as it is now."""
        return Configuration(self._sets_given, self.path)

    def resolve(self, catalogue: CatalogueConfigs | None, strict: bool = False) -> Settings:
        """The settings in force. Log dirs are real, absolute paths. `strict`: SettingError for stored ones that don't fit."""
        sets, file = self._beneath(catalogue)
        storage = resolve_storage(sets, file, catalogue).config
        storage = msgspec.structs.replace(
            storage,
            log_dirs=tuple(os.path.realpath(path) for path in storage.log_dirs),
            cordoned_log_dirs=tuple(
                path if path == "*" else os.path.realpath(path) for path in storage.cordoned_log_dirs
            ),
        )
        daemon = resolve_daemon(sets, file, catalogue, strict)
        for name, why in daemon.unused.items():
            _log.error(f"{name} is passed over, from {why}")
        return Settings(
            storage=storage,
            cleaner=resolve_cleaner(sets, file, catalogue).config,
            daemon=daemon.config,
        )

    def resolve_stored(self, catalogue: CatalogueConfigs, strict: bool = False) -> tuple[Settings, list[str]]:
        """The settings in force with what the catalogue holds, but for what of that is no good: why, in words.

        SettingError for one of listeners and logins that doesn't fit, where this is `strict`: all stays as it was then.
        """
        faults: list[str] = []
        while True:
            try:
                return self.resolve(catalogue, strict), faults
            except SettingError as fault:
                names = _names_of(fault)
                if not catalogue.holds(names) or fault.fields["name"].startswith(_SECURITY):
                    raise
                faults.append(str(fault))
                catalogue = catalogue.without(names)

    def topic_config(self, configs: Mapping[str, str], catalogue: CatalogueConfigs | None) -> TopicConfig:
        """The effective settings of a topic that has these of its own."""
        known = CatalogueConfigs(
            None if catalogue is None else catalogue.node_id,
            {"topic": dict(configs)},
            {} if catalogue is None else catalogue.broker_configs,
        )
        sets, file = self._beneath(known)
        return resolve_topic("topic", sets, replace(file, topics={}), known).config

    def _beneath(self, catalogue: CatalogueConfigs | None) -> tuple[RawSettings, RawSettings]:
        """--set and the file without what the catalogue holds: as in Kafka a dynamic value hides those of the start."""
        if catalogue is None or not any(catalogue.broker_configs.values()):
            return self._sets, self._file
        own = "" if catalogue.node_id is None else str(catalogue.node_id)
        stored = {name for each in {"", own} for name in catalogue.broker_configs.get(each, {}) if _is_dynamic(name)}
        settings = [setting for name in stored for setting in BY_BROKER_NAME.get(name, ())]
        hidden = stored | {entry.name for setting in settings for entry in setting.broker}
        sets, file = (
            replace(source, broker={name: entry for name, entry in source.broker.items() if name not in hidden})
            for source in (self._sets, self._file)
        )
        return sets, file

    @property
    def given(self) -> GivenSettings:
        """What --set and the file say, as it was written; but what was written with a unit, without it."""
        broker: dict[str, str] = {}
        topics: dict[str, str] = {}
        for source in (self._file, self._sets):
            for name, entry in source.broker.items():
                broker[name] = _written(name, entry)
            for name, entry in source.every_topic.items():
                topics[name] = _written(name, entry)
        return GivenSettings(broker=broker, topics=topics)

    @property
    def topics(self) -> list[TopicSection]:
        """The topics section."""
        return [
            TopicSection(
                name,
                self._file.topic_partitions.get(name),
                {entry.name: _plain(entry.values) for entry in entries.values()},
            )
            for name, entries in self._file.topics.items()
        ]


class TopicConfigs:
    """Effective settings of all topics, each distinct set worked out once."""

    def __init__(self, configuration: Configuration, catalogue: CatalogueConfigs) -> None:
        self._configuration = configuration
        self._catalogue = catalogue
        self._known: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        #: Settings of the catalogue that could not be used, with why.
        self.faults: dict[str, str] = {}

    def of(self, topic: str, configs: Mapping[str, str]) -> TopicConfig:
        """Settings that don't hold together are left out, the fewest that will do, and noted in `faults`."""
        key = tuple(sorted(configs.items()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._work_out(topic, configs)
        return found

    def _work_out(self, topic: str, configs: Mapping[str, str]) -> TopicConfig:
        own, catalogue = dict(configs), self._catalogue
        while True:
            try:
                return self._configuration.topic_config(own, catalogue)
            except SettingError as fault:
                self.faults[topic] = str(fault)
                names = _names_of(fault)
                if not catalogue.holds(names) and not own.keys() & names:
                    raise
                if fault.fields["name"] == _MIN_LAG and "must be at most" in fault.fields["reason"]:
                    # Shorter than the least, the longest lag is the least: as Kafka carries the two out.
                    own[_MAX_LAG] = str(LONG_MAX)
                    own[_MAX_LAG] = str(self._configuration.topic_config(own, catalogue).min_compaction_lag_ms)
                    continue
                if own.keys() & names:
                    own = {name: value for name, value in own.items() if name not in names}
                else:
                    catalogue = catalogue.without(names)


def _names_of(fault: SettingError) -> frozenset[str]:
    """What may be to blame: the names of the setting that is no good, and of what it doesn't fit."""
    name: str = fault.fields["name"]
    settings = [*BY_BROKER_NAME.get(name, ()), *filter(None, (BY_TOPIC_NAME.get(name),))]
    settings += [BY_TOPIC_NAME[_MAX_LAG]] if name == _MIN_LAG else []
    found = {name} | {entry.name for setting in settings for entry in setting.broker}
    found |= {setting.topic for setting in settings if setting.topic is not None}
    return frozenset(found | ({"log.cleaner.threads"} if name == "log.cleaner.dedupe.buffer.size" else set()))


def changed_names(before: Settings, after: Settings) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """What a reload may apply, name to new value; and what only a restart can, name to (in force, written now)."""
    old, new = settings_text(before), settings_text(after)
    # Settings of single listeners are not in the table: they count for who connects from then on.
    dynamic = {
        setting.broker[0].name: any(name.dynamic is not Dynamic.NO for name in setting.broker)
        for setting in SETTINGS
        if setting.broker
    }
    apply: dict[str, str] = {}
    refuse: dict[str, tuple[str, str]] = {}
    for name in sorted(set(old) | set(new)):
        was, now = old.get(name, ""), new.get(name, "")
        if was == now:
            continue
        if dynamic.get(name, True):
            apply[name] = now
        else:
            refuse[name] = (was, now)
    return apply, refuse


def keep_static(before: Settings, after: Settings) -> Settings:
    """`after`, but for what only a restart can change."""
    flat = settings_text(after)
    for name, (was, _) in changed_names(before, after)[1].items():
        flat[name] = was
    storage, cleaner, daemon = unflatten({name: value for name, value in flat.items() if value})
    return Settings(storage=storage, cleaner=cleaner, daemon=daemon)


def settings_text(settings: Settings) -> dict[str, str]:
    """Every setting of the node with its value, as Welcome carries them."""
    return flatten(settings.storage, settings.cleaner, settings.daemon)


def given_now(before: GivenSettings, after: GivenSettings) -> GivenSettings:
    """`after`, but for what only a restart can change."""
    broker = {name: text for name, text in after.broker.items() if _is_dynamic(name)}
    broker |= {name: text for name, text in before.broker.items() if not _is_dynamic(name)}
    return GivenSettings(broker=broker, topics=after.topics)


def _without_effect(given: RawSettings) -> list[UnusedSetting]:
    """What is given of the table's settings that nothing acts on."""
    found: list[UnusedSetting] = []
    for entries in (given.broker, given.every_topic, *given.topics.values()):
        for name, entry in entries.items():
            fed = (*BY_BROKER_NAME.get(name, ()), *filter(None, (BY_TOPIC_NAME.get(name),)))
            reason = next((setting.no_effect for setting in fed if setting.no_effect), "")
            if reason:
                found.append(UnusedSetting(name, entry.source, f"{NO_EFFECT}{reason}"))
    return found


def _is_dynamic(name: str) -> bool:
    settings = BY_BROKER_NAME.get(name)
    # Those of single listeners are not in the table.
    return settings is None or any(
        entry.name == name and entry.dynamic is not Dynamic.NO for setting in settings for entry in setting.broker
    )


def _written(name: str, entry: RawEntry) -> str:
    """Its text, in the form that a server.properties would have."""
    for setting in (*BY_BROKER_NAME.get(name, ()), *filter(None, (BY_TOPIC_NAME.get(name),))):
        try:
            setting.parse(name, entry.text, "", units=False)
        except SettingError:
            value = entry.values[setting.field]
            broker = setting.broker_name(name)
            if isinstance(value, int) and broker is not None and broker.scale != 1:
                value //= broker.scale
            return as_text(value)
    return entry.text


def _plain(values: Mapping[str, object]) -> str:
    """A value as the catalogue keeps it. A name of the topics section feeds one setting."""
    return as_text(next(iter(values.values())))
