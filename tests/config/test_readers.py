"""No setting is taken without effect: each has code that reads it, or a reason why it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.config.broker_names import OTHER_BROKER_NAMES, OTHER_TOPIC_NAMES, REMOVED_BROKER_NAMES
from compactd.config.flat import _FIELDS
from compactd.config.setting import Scope, Setting
from compactd.config.table import BY_BROKER_NAME, SETTINGS
from compactd.config.without_effect import DECIDING, why_refused, why_unused

_ROOT = Path(__file__).parents[2]
#: The program, but for what only lists settings, checks or shows them.
_LISTS = (
    "config/table.py",
    "config/daemon_table.py",
    "config/access_table.py",
    "config/coordination_table.py",
    "config/broker_names.py",
    "config/document.py",
)
_LISTS += (
    "config/listener_settings.py",
    "config/flat.py",
    "config/resolve.py",
    "coordinator/catalogue/running_rules.py",
)
#: Read as a whole group: by the beginning of the names, or by names that are put together.
_TOGETHER = {
    "config/listener_security.py": ("principal.builder.class", "sasl.", "connections.max.reauth.ms", "max.conn"),
    "config/tls.py": ("ssl.",),
}


def _words() -> dict[str, set[str]]:
    """By file: attributes that are read, and texts."""
    found: dict[str, set[str]] = {}
    for top in ("config", "coordinator", "workers", "storage", "scripts"):
        for path in sorted((_ROOT / top).rglob("*.py")):
            name = path.relative_to(_ROOT).as_posix()
            if name not in _LISTS:
                found[name] = set(_of(ast.parse(path.read_text("utf-8"))))
    return found


def _of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


_WORDS = _words()


def readers(setting: Setting) -> list[str]:
    """Files that read the field, or ask for the setting by a name of it; those that only check it count as well."""
    field = f".{_FIELDS.get(setting.field, setting.field)}"
    names = {entry.name for entry in setting.broker} | {setting.topic}
    found = []
    for path, words in _WORDS.items():
        # config.settings declares every field by its name; what it reads, it reads as an attribute.
        by_name = path in _TOGETHER or path == "workers/io_pressure.py"
        if field in words or (by_name and names & words):
            found.append(path)
    return found


#: Put together from parts where they are read.
_SUFFIXES = ("keystore.", "truststore.")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_of_the_table_is_read_by_somebody_or_says_why_not(setting: Setting) -> None:
    read = readers(setting)
    if setting.name == "internal.segment.bytes":
        return  # becomes segment_bytes in TopicConfig.from_values
    if setting.name.startswith("ssl.") and any(part in setting.name for part in _SUFFIXES):
        tail = setting.name.removeprefix("ssl.").partition(".")[2]
        assert any(word.endswith(tail) for word in _WORDS["config/tls.py"]), setting.name
        return
    if setting.no_effect:
        assert not read, f"{setting.name} is said to have no effect, but {read} reads it"
    else:
        assert read, f"nothing reads {setting.name}: make it act, or say why it has no effect"


def test_a_setting_that_nobody_reads_would_be_found() -> None:
    base = next(setting for setting in SETTINGS if setting.name == "num.partitions")
    assert readers(base)
    made_up = Setting("num_of_nothing", Scope.DAEMON, base.kind, 1, "nothing", broker=base.broker[:0])
    assert readers(made_up) == []


@pytest.mark.parametrize("name", sorted(OTHER_BROKER_NAMES | OTHER_TOPIC_NAMES | REMOVED_BROKER_NAMES))
def test_every_other_name_of_kafkas_says_why_it_has_no_effect(name: str) -> None:
    reason = why_unused(name)
    assert reason is not None
    assert reason.partition(": ")[2] or name in REMOVED_BROKER_NAMES


#: Kafka's defaults (KafkaConfig 4.4.0) that are not to be had here would stop every node.
_KAFKAS_DEFAULTS = {
    "transaction.two.phase.commit.enable": "false",
    "remote.log.storage.system.enable": "false",
    "unstable.api.versions.enable": "false",
    "unstable.feature.versions.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.compression.codec": "0",
    "process.roles": "broker,controller",
}
_REFUSED = {
    "transaction.two.phase.commit.enable": "true",
    "remote.log.storage.system.enable": "TRUE",
    "unstable.api.versions.enable": "true",
    "unstable.feature.versions.enable": "true",
    "alter.config.policy.class.name": "org.example.Policy",
    "create.topic.policy.class.name": "org.example.Policy",
    "client.quota.callback.class": "org.example.Quotas",
    "config.providers": "file",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "2",
    "offsets.topic.compression.codec": "1",
    "process.roles": "controller",
    "controller.quorum.voters": "1@a:9093,2@b:9093",
    "controller.quorum.bootstrap.servers": "a:9093, b:9093",
    "metadata.log.dir": "/elsewhere",
}


def test_what_would_be_missing_is_refused_and_the_rest_is_not() -> None:
    assert set(_REFUSED) == DECIDING
    assert not DECIDING & set(BY_BROKER_NAME)
    for name, value in _REFUSED.items():
        assert why_refused(name, value, "/d1"), name
    for name, value in _KAFKAS_DEFAULTS.items():
        assert why_refused(name, value, "/d1") is None, name
    assert why_refused("metadata.log.dir", "/d1/", "/d1") is None
    assert why_refused("controller.quorum.voters", "1@localhost:9093", "/d1") is None
    assert why_refused("num.io.threads", "8", "/d1") is None
