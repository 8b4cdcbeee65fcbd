"""A node's settings as names and texts, as they travel to the worker processes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.listener_settings import listener_setting
from compactd.config.setting import Setting
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig, as_text
from compactd.config.table import CLEANER_SETTINGS, STORAGE_SETTINGS

#: CleanerConfig shortens one name of the table.
_FIELDS = {"io_buffer_load_factor": "load_factor"}


def value_of(config: StorageConfig | CleanerConfig | DaemonConfig | TopicConfig, setting: Setting) -> Any:
    """A setting's value in the configuration that has it."""
    return getattr(config, _FIELDS.get(setting.field, setting.field))


def flatten(storage: StorageConfig, cleaner: CleanerConfig, daemon: DaemonConfig) -> dict[str, str]:
    """Broker-level name to value, without units; settings that have none are left out. Holds passwords."""
    flat: dict[str, str] = {}
    for config, settings in ((storage, STORAGE_SETTINGS), (cleaner, CLEANER_SETTINGS), (daemon, DAEMON_SETTINGS)):
        for setting in settings:
            value = value_of(config, setting)
            if value is not None:
                flat[setting.name] = as_text(value)
    return flat | daemon.listener_settings


def unflatten(flat: Mapping[str, str]) -> tuple[StorageConfig, CleanerConfig, DaemonConfig]:
    """The other way. Names that belong to none of the three are passed over."""
    return (
        StorageConfig.from_strings(_some(flat, STORAGE_SETTINGS)),
        CleanerConfig.from_strings(_some(flat, CLEANER_SETTINGS), any_buffer_size=True),
        DaemonConfig.from_strings(
            _some(flat, DAEMON_SETTINGS)
            | {name: value for name, value in flat.items() if listener_setting(name) is not None}
        ),
    )


def _some(flat: Mapping[str, str], settings: tuple[Setting, ...]) -> dict[str, str]:
    return {setting.name: flat[setting.name] for setting in settings if setting.name in flat}
