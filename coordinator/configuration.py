"""The daemon's configuration: --set, the file of --config, and what the catalogue holds, put together and read again.

The topics section of the file is written into the catalogue at start and at a reload; from then on the catalogue is what
counts, so that a client's later change is not undone by an old line in a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from compactd.config.errors import CompactdError, SettingError
from compactd.config.flat import flatten, unflatten
from compactd.config.load import load_file, parse_sets, resolve_cleaner, resolve_daemon, resolve_storage, resolve_topic
from compactd.config.raw import RawEntry, RawSettings
from compactd.config.setting import Dynamic
from compactd.config.settings import TopicConfig, as_text
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME, SETTINGS
from compactd.coordinator.interfaces import Settings
from compactd.workers.messages import GivenSettings

_log = logging.getLogger(__name__)

#: Where the data is when nothing says so.
DEFAULT_LOG_DIR = "data/d1"


@dataclass(frozen=True, slots=True)
class CatalogueConfigs:
    """What the catalogue knows of settings, in the form that `config.resolve` asks for."""

    node_id: int | None
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def config_source(self, kind: str, resource: str, name: str) -> str:
        return f"the catalogue, {kind} {resource or 'default'}: {name}"


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
        self.unused = self._file.unused
        if "log.dirs" not in {*self._sets.broker, *self._file.broker} and "log.dir" not in {
            *self._sets.broker,
            *self._file.broker,
        }:
            broker = {**parse_sets({"log.dirs": DEFAULT_LOG_DIR}).broker, **self._sets.broker}
            self._sets = replace(self._sets, broker=broker)
        # Everything that can be wrong without the catalogue is found now.
        self.resolve(None)
        self.topic_config({}, None)

    def read_again(self) -> Configuration:
        """The same, from the file as it is now."""
        return Configuration(self._sets_given, self.path)

    def resolve(self, catalogue: CatalogueConfigs | None, strict: bool = False) -> Settings:
        """The settings in force. Log dirs are real, absolute paths. `strict`: SettingError for stored ones that don't fit."""
        storage = resolve_storage(self._sets, self._file, catalogue).config
        storage = msgspec.structs.replace(
            storage,
            log_dirs=tuple(os.path.realpath(path) for path in storage.log_dirs),
            cordoned_log_dirs=tuple(
                path if path == "*" else os.path.realpath(path) for path in storage.cordoned_log_dirs
            ),
        )
        daemon = resolve_daemon(self._sets, self._file, catalogue, strict)
        for name, why in daemon.unused.items():
            _log.error(f"{name} is passed over, from {why}")
        return Settings(
            storage=storage,
            cleaner=resolve_cleaner(self._sets, self._file, catalogue).config,
            daemon=daemon.config,
        )

    def topic_config(self, configs: Mapping[str, str], catalogue: CatalogueConfigs | None) -> TopicConfig:
        """The effective settings of a topic that has these of its own."""
        known = CatalogueConfigs(
            None if catalogue is None else catalogue.node_id,
            {"topic": dict(configs)},
            {} if catalogue is None else catalogue.broker_configs,
        )
        return resolve_topic("topic", self._sets, replace(self._file, topics={}), known).config

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
        """Settings that don't hold together cost the topic its own ones, and are noted in `faults`."""
        key = tuple(sorted(configs.items()))
        found = self._known.get(key)
        if found is None:
            try:
                found = self._configuration.topic_config(configs, self._catalogue)
            except CompactdError as error:
                self.faults[topic] = str(error)
                found = self._configuration.topic_config({}, self._catalogue)
            self._known[key] = found
        return found


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
