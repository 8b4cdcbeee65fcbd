"""`compactd config`: every setting with its value, where that comes from, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.errors import UsageError
from compactd.config.flat import value_of
from compactd.config.listener_settings import listener_setting
from compactd.config.load import (
    load_file,
    parse_sets,
    resolve_cleaner,
    resolve_daemon,
    resolve_storage,
    resolve_topic,
)
from compactd.config.raw import RawSettings, UnusedSetting
from compactd.config.resolve import DEFAULT
from compactd.config.setting import HIDDEN, BrokerName, Dynamic, Kind, Setting, Value
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig
from compactd.config.table import CLEANER_SETTINGS, STORAGE_SETTINGS, TOPIC_SETTINGS
from compactd.config.without_effect import NO_EFFECT
from compactd.coordinator.configuration import DEFAULT_LOG_DIR, Configuration
from compactd.scripts.output import Table, print_json, print_line, warn
from compactd.storage.metadata.cluster import read_cluster_metadata

_Config = TopicConfig | CleanerConfig | StorageConfig | DaemonConfig


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting as it stands."""

    setting: Setting
    value: Value
    source: str

    def to_json(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "name": setting.name,
            "brokerNames": [each.name for each in setting.broker],
            "scope": setting.scope.value,
            "value": HIDDEN if setting.kind is Kind.PASSWORD and self.value is not None else _plain(self.value),
            "default": _plain(setting.default),
            "source": self.source,
            "type": setting.kind.value,
            "unit": setting.unit.value,
            "range": setting.range_text(),
            "dynamic": setting.topic is not None or any(each.dynamic.value != "no" for each in setting.broker),
            "meaning": setting.description,
        }


@click.command(
    name="config",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all of it is valid, 2 it is not (the message has the line).",
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-c", "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The same as FILE."
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting; wins over FILE. May be repeated.")
@click.option("--topic", metavar="TOPIC", help="Show the settings of this topic in place of the defaults of topics.")
@click.option("--changed", is_flag=True, help="Only settings that do not have their default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line for each setting.")
def command(
    file: Path | None, config: Path | None, sets: tuple[str, ...], topic: str | None, changed: bool, as_json: bool
) -> None:
    """Show every setting that compactd serve would run with: its value, where that comes from, what it means.

    FILE is a compactd.yaml or Kafka's server.properties. What clients changed while the daemon ran is in the catalogue,
    which is read from the log dirs where there is one.

    \b
    Examples:
      compactd config
      compactd config compactd.yaml --changed
      compactd config server.properties --topic users
    """
    if file is not None and config is not None and file != config:
        raise UsageError(detail="give the file once, as FILE or with --config")
    path = file or config
    raw = RawSettings() if path is None else load_file(path)
    configuration = Configuration(sets, path)
    sections = _resolve(sets, configuration, raw, topic)
    for unused in configuration.unused:
        if unused.unknown:
            warn(f"{unused.source}: {unused.name} is not used: {unused.reason}.")
    shown = {
        title: [each for each in rows if not changed or each.source != DEFAULT] for title, rows in sections.items()
    }
    if as_json:
        for rows in shown.values():
            for row in rows:
                print_json(row.to_json())
        return
    _show(shown, [unused for unused in configuration.unused if not unused.unknown])


def _resolve(
    sets: tuple[str, ...], configuration: Configuration, raw: RawSettings, topic: str | None
) -> dict[str, list[ShownSetting]]:
    # Finds whatever is wrong, as the daemon does at its start; then once more for the sources.
    log_dirs = configuration.resolve(None).storage.log_dirs
    given = parse_sets(sets)
    metadata = read_cluster_metadata(log_dirs)
    for warning in () if metadata is None else metadata.warnings:
        warn(warning)
    if topic is not None and topic not in {*raw.topics, *({} if metadata is None else metadata.topics)}:
        raise UsageError(detail=f"no topic {topic!r} in the file or the catalogue")
    found: dict[str, list[ShownSetting]] = {}
    topics = resolve_topic(topic or "", given, raw, metadata)
    found["Topics, unless they have their own" if topic is None else f"Topic {topic}"] = _rows(
        TOPIC_SETTINGS, topics.config, topics.sources
    )
    cleaner = resolve_cleaner(given, raw, metadata)
    found["Cleaner"] = _rows(CLEANER_SETTINGS, cleaner.config, cleaner.sources)
    storage = resolve_storage(given, raw, metadata)
    rows = _rows(STORAGE_SETTINGS, storage.config, storage.sources)
    found["Storage"] = [_with_default_dir(row) for row in rows]
    daemon = resolve_daemon(given, raw, metadata)
    for name, why in daemon.unused.items():
        warn(f"{name} is passed over, from {why}")
    found["Daemon"] = _rows(DAEMON_SETTINGS, daemon.config, daemon.sources) + [
        ShownSetting(
            replace(setting, broker=(BrokerName(name, Dynamic.PER_BROKER),)),
            setting.parse(name, text, "", units=False),
            daemon.sources[name],
        )
        for name, text in sorted(daemon.config.listener_settings.items())
        if (setting := listener_setting(name)) is not None
    ]
    return found


def _rows(settings: tuple[Setting, ...], config: _Config, sources: Mapping[str, str]) -> list[ShownSetting]:
    return [
        ShownSetting(setting, _value(config, setting), sources[setting.name])
        for setting in settings
        if not (setting.hidden and sources[setting.name] == DEFAULT)
    ]


def _value(config: _Config, setting: Setting) -> Value:
    # Where internal.segment.bytes is set, it is what segment.bytes comes to: the source says so.
    value = value_of(config, setting)
    return tuple(sorted(value)) if isinstance(value, frozenset) else value


def _with_default_dir(row: ShownSetting) -> ShownSetting:
    """Where nothing names a log dir, the daemon has a default of its own."""
    if row.setting.name == "log.dirs" and row.source == DEFAULT:
        return ShownSetting(row.setting, (DEFAULT_LOG_DIR,), DEFAULT)
    return row


def _show(sections: Mapping[str, list[ShownSetting]], unused: Sequence[UnusedSetting]) -> None:
    shown = [(title, rows) for title, rows in sections.items() if rows]
    for number, (title, rows) in enumerate(shown):
        if number:
            print_line("")
        table = Table(("setting", "value", "source", "meaning"), title=title, droppable=("meaning", "source"))
        for row in rows:
            table.row(row.setting.name, row.setting.format(row.value) or "(none)", row.source, row.setting.description)
        table.show()
    if not shown:
        print_line("every setting has its default")
    if unused:
        print_line("")
        table = Table(("setting", "source", "why"), title="Given, but not used", droppable=("source",))
        for each in unused:
            table.row(each.name, each.source, each.reason.removeprefix(NO_EFFECT))
        table.show()


def _plain(value: Value) -> Any:
    return list(value) if isinstance(value, (tuple, frozenset)) else value
