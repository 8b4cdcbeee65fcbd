"""The table against Kafka 4.4.0's own definitions (tests/data/kafka-4.4.0-settings.tsv)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactd.config.broker_names import OTHER_BROKER_NAMES, OTHER_TOPIC_NAMES, REMOVED_BROKER_NAMES
from compactd.config.setting import Dynamic, Kind, Scope, Setting
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME, SETTINGS

_DATA = Path(__file__).parent.parent / "data" / "kafka-4.4.0-settings.tsv"
_ROWS = [line.split("\t") for line in _DATA.read_text().splitlines() if not line.startswith("#")]
_OWN = {setting.name for setting in SETTINGS if setting.own or setting.plug_in}
_BROKER_ROWS = {row[1]: row for row in _ROWS if row[0] == "broker"}
_TOPIC_ROWS = {row[1]: row for row in _ROWS if row[0] == "topic"}


def _kafka_range(validator: str) -> tuple[float | None, float | None, tuple[int, ...]] | None:
    """Lower bound, upper bound and exceptions of a ConfigDef validator's text; None when it is no range."""
    match = re.fullmatch(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\](?: or (-?\d+))?", validator)
    if match is None:
        return None
    also = (int(match[3]),) if match[3] else ()
    return int(match[1]), None if match[2] is None else int(match[2]), also


def _choices(validator: str) -> tuple[str, ...]:
    return tuple(validator.strip("[]").split(", "))


def test_every_name_of_the_table_is_one_of_kafkas_and_the_other_way_round() -> None:
    assert set(BY_TOPIC_NAME) == set(_TOPIC_ROWS)
    assert set(BY_BROKER_NAME) - _OWN == set(_BROKER_ROWS)
    assert set(BY_BROKER_NAME) >= _OWN
    assert not OTHER_BROKER_NAMES & set(BY_BROKER_NAME)
    assert not OTHER_TOPIC_NAMES & set(BY_TOPIC_NAME)
    assert not REMOVED_BROKER_NAMES & (OTHER_BROKER_NAMES | set(BY_BROKER_NAME))


@pytest.mark.parametrize("name", sorted(_TOPIC_ROWS))
def test_a_topic_level_setting_has_kafkas_type_default_and_range(name: str) -> None:
    setting = BY_TOPIC_NAME[name]
    _, _, kind, default, validator, internal, _ = _TOPIC_ROWS[name]
    assert setting.kind.name == kind
    assert setting.hidden == (internal == "true")
    _assert_default(setting, default)
    if name == "internal.segment.bytes":
        # Kafka takes any number here; a segment of 0 bytes or less could hold nothing.
        assert setting.low == 1
        return
    if setting.choices:
        assert setting.choices == _choices(validator)
        return
    expected = _kafka_range(validator) or ((0, 1, ()) if validator == "[0,...,1]" else (None, None, ()))
    assert (setting.low, setting.high, setting.also) == expected


# Kafka rebinds a running broker's listeners; here they need a restart.
_RESTART_HERE = {"listeners", "advertised.listeners", "listener.security.protocol.map"}

# Where KafkaConfig itself checks what its definition doesn't, or compactd is stricter with good reason.
_CHECKED_ELSEWHERE = {
    "log.roll.ms": (1, None),
    "log.roll.jitter.ms": (0, None),
    "log.retention.ms": (1, None),
    "log.retention.minutes": (1, None),
    "log.retention.hours": (1, None),
    "log.flush.interval.ms": (0, None),
    "log.cleaner.dedupe.buffer.size": (1, None),
    "log.cleaner.io.buffer.load.factor": (None, 1),
    # Kafka takes any number; a period of 0 would never end.
    "replica.high.watermark.checkpoint.interval.ms": (1, None),
}


@pytest.mark.parametrize("name", sorted(_BROKER_ROWS))
def test_a_broker_level_name_has_kafkas_type_range_and_dynamics(name: str) -> None:
    _, _, kind, _, validator, _, dynamic = _BROKER_ROWS[name]
    for setting in BY_BROKER_NAME[name]:
        entry = setting.broker_name(name)
        assert entry is not None
        assert (entry.kind or setting.kind).name == kind
        assert (entry.dynamic is not Dynamic.NO) == (dynamic == "dynamic" and name not in _RESTART_HERE)
        if setting.choices or setting.kind is Kind.LIST:
            continue
        low = setting.low if entry.low is None else entry.low
        if name in _CHECKED_ELSEWHERE:
            assert (low, setting.high) == _CHECKED_ELSEWHERE[name]
        elif name == "log.flush.scheduler.interval.ms":
            assert low == (0 if setting.topic else None)
        else:
            expected = _kafka_range(validator) or ((0, 1, ()) if validator == "[0,...,1]" else (None, None, ()))
            assert (low, setting.high, setting.also) == expected


def _assert_default(setting: Setting, text: str) -> None:
    if text == "null":
        assert setting.default is None
    elif setting.kind is Kind.LIST:
        assert setting.default == tuple(item for item in text.strip("[]").split(", ") if item)
    else:
        # Kafka's defaults of type CLASS print as Java prints classes.
        assert setting.parse(setting.name, text.removeprefix("class "), "test", units=False) == setting.default


def test_cleaner_storage_and_daemon_defaults_are_kafkas_but_for_five() -> None:
    sockets = {"socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.listen.backlog.size"}
    others = {"node.id", "listeners"} | sockets
    for setting in SETTINGS:
        if setting.scope is not Scope.TOPIC and setting.name not in others | _OWN:
            name = "log.dir" if setting.field == "log_dirs" else setting.name
            _assert_default(setting, _BROKER_ROWS[name][3])


def test_every_row_has_a_field_of_a_configuration_and_every_field_a_row() -> None:
    fields = {scope: {setting.field for setting in SETTINGS if setting.scope is scope} for scope in Scope}
    assert fields[Scope.TOPIC] == set(TopicConfig.__struct_fields__)
    assert fields[Scope.STORAGE] == set(StorageConfig.__struct_fields__)
    assert fields[Scope.DAEMON] == set(DaemonConfig.__struct_fields__) - {"listener_settings"}
    cleaner = {"io_buffer_load_factor" if name == "load_factor" else name for name in CleanerConfig.__struct_fields__}
    assert fields[Scope.CLEANER] == cleaner
    assert all(setting.meaning for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
