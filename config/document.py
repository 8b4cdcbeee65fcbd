"""Makes docs/settings.md from the table of settings: `python -m compactd.config.document > docs/settings.md`."""

from __future__ import annotations

import sys

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.listener_settings import ALONE, OF_MECHANISM
from compactd.config.setting import BrokerName, Setting, Unit
from compactd.config.table import CLEANER_SETTINGS, STORAGE_SETTINGS, TOPIC_SETTINGS

_HEAD = """# Settings

<!-- Made from config/table.py by: python -m compactd.config.document > docs/settings.md -->

Names, types, defaults and ranges are those of Apache Kafka 4.4.0.

## Where values come from

For a topic-level setting, the first of these that has it:

1. `--set NAME=VALUE`, topic-level or broker-level name
2. `--config FILE`, YAML: under `topics: {TOPIC: {...}}`, then a topic-level name at the top of the file
3. the topic's config in the metadata log (`__cluster_metadata-0` in one of the log dirs, snapshots included)
4. a broker-level name in `--config FILE`, YAML or `server.properties`
5. the broker's own dynamic config in the metadata log, then the cluster-wide one
6. the default

So a `server.properties` never overrides what a topic was given, and an explicit `--set` overrides everything. Settings
of the cleaner and of storage as a whole have broker-level names only: 1, 4, 5, 6. Where a setting has several
broker-level names, the leftmost one that is set in a source wins. A file named with `--config` beats dynamic broker
configs; a running Kafka has these two the other way round.

In YAML and in `--set`, durations (`500ms`, `90s`, `15m`, `12h`, `7d`, `2w`) and sizes (`512KiB`, `128MiB`, `1GiB`, and
`kB`, `MB`, `GB` as powers of 1000) may have units; plain numbers are ms or bytes. `server.properties` is read as Kafka
reads it, without units. Names that compactd doesn't know or act on are refused in YAML and in `--set`, with the nearest
known name. Those of a `server.properties` are told with the reason why they have no effect here; where that would be a
loss, such as `transaction.two.phase.commit.enable=true` or replication factors above 1, `compactd serve` does not start.

A running Kafka applies changes of the settings marked *dynamic* without a restart. Topic-level values always may change.

## Settings of one listener

`listener.name.NAME.SETTING`, with the listener's name in small letters, is that listener's alone and stands before
SETTING; `listener.name.NAME.MECHANISM.SETTING` is one mechanism's (`plain`, `scram-sha-256`, `scram-sha-512`) of it. They
may change without a restart, and count for who connects from then on.

%s

`compactd config`, logs and clients are shown no value of `sasl.jaas.config`, keys and passwords.
"""


def settings_markdown() -> str:
    """The text of docs/settings.md."""
    alone = ", ".join(f"`{name}`" for name in sorted(ALONE))
    mechanism = ", ".join(f"`{name}`" for name in sorted(OF_MECHANISM))
    parts = [_HEAD % f"A listener may have: {alone}.\n\nA mechanism of it: {mechanism}."]
    parts += _section("Topics", "Each has a topic-level name and, mostly, a broker-level default.", TOPIC_SETTINGS)
    parts += _section("Cleaner", "Sizes and rates are totals over all cleaner threads.", CLEANER_SETTINGS)
    parts += _section("Storage as a whole", "Settings of the log manager.", STORAGE_SETTINGS)
    kafkas = tuple(setting for setting in DAEMON_SETTINGS if not setting.own)
    own = tuple(setting for setting in DAEMON_SETTINGS if setting.own)
    lead = "Kafka's names; node.id, listeners and the three of sockets have other defaults than there."
    parts += _section("The daemon, to its clients", lead, kafkas)
    parts += _section(
        "The daemon itself", "Not Kafka's: a `server.properties` may hold them, and Kafka ignores them.", own
    )
    return "\n".join(parts)


def _section(title: str, lead: str, settings: tuple[Setting, ...]) -> list[str]:
    rows = [_row(setting) for setting in settings]
    head = ["| topic | broker | type | default | range | dynamic | meaning |", "|---|---|---|---|---|---|---|"]
    return [f"## {title}\n", f"{lead}\n", *head, *rows, ""]


def _row(setting: Setting) -> str:
    topic = f"`{setting.topic}`" if setting.topic else ""
    if setting.hidden:
        topic = f"{topic} (internal)".strip()
    broker = "<br>".join(_broker(entry) for entry in setting.broker)
    kind = setting.kind.value + (f", {setting.unit.value}" if setting.unit is not Unit.NONE else "")
    ranges = dict.fromkeys(setting.range_text(entry) for entry in setting.broker) or {setting.range_text(): None}
    span = setting.range_text()
    if setting.topic and list(ranges) != [span]:
        span = "<br>".join((f"topic: {span}", *(f"broker: {text}" for text in ranges if text != span)))
    dynamic = ", ".join(dict.fromkeys(entry.dynamic.value for entry in setting.broker)) or ""
    if len(setting.broker) > 1 and dynamic not in ("yes", "no"):
        changing = [f"`{entry.name}`" for entry in setting.broker if entry.dynamic.value == "yes"]
        dynamic = f"{', '.join(changing)} only"
    default = f"`{setting.format(setting.default)}`" if setting.format(setting.default) else "none"
    cells = (topic, broker, kind, default, span, dynamic, setting.description)
    return "| " + " | ".join(cells) + " |"


def _broker(entry: BrokerName) -> str:
    return f"`{entry.name}`"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
