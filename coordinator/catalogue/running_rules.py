"""What a running node can't be changed to, although the value as such is one of the setting's: Kafka's checks before it
reconfigures itself (DynamicThreadPool, LogCleaner.validateReconfiguration, AbstractKafkaConfig.validateValues), its texts.

Values that Kafka would take and that then would stand in its way at the next start are refused with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactd.config.connection_limits import parse_overrides
from compactd.coordinator.interfaces import Settings

_LEAST_MAP_BYTES = 1 << 20
#: Pools of threads that Kafka resizes; those that nothing here has, with Kafka's defaults.
_OTHER_POOLS = {"num.io.threads": 8, "num.network.threads": 3, "num.replica.fetchers": 1}


def running_fault(changes: Mapping[str, str], stored: Mapping[str, str], settings: Settings) -> str | None:
    """Why these values, each good as such, can't be had now; None when they can.

    `changes`: what becomes effective with them. `stored`: dynamic settings that count now. `settings`: those in force.
    """
    for name, value in changes.items():
        fault = _thread_fault(name, value, stored, settings) or _value_fault(name, value, changes, stored, settings)
        if fault is not None:
            return fault
    return None


def _thread_fault(name: str, value: str, stored: Mapping[str, str], settings: Settings) -> str | None:
    current = {
        "background.threads": settings.storage.background_threads,
        "num.recovery.threads.per.data.dir": settings.storage.num_recovery_threads_per_data_dir,
        **{pool: int(stored.get(pool, default)) for pool, default in _OTHER_POOLS.items()},
    }
    if name == "log.cleaner.threads":
        threads, before = int(value), settings.cleaner.threads
        if threads < 1:
            return "Log cleaner threads should be at least 1"
        if threads < before // 2:
            return f"Log cleaner threads cannot be reduced to less than half the current value {before}"
        if threads > before * 2:
            return f"Log cleaner threads cannot be increased to more than double the current value {before}"
    elif name in current:
        threads, before = int(value), current[name]
        start = f"Dynamic thread count update validation failed for {name}={threads}, value should"
        if threads < before // 2:
            return f"{start} be at least half the current value {before}"
        if threads > before * 2:
            return f"{start} not be greater than double the current value {before}"
    return None


def _value_fault(
    name: str, value: str, changes: Mapping[str, str], stored: Mapping[str, str], settings: Settings
) -> str | None:
    if name in ("log.cleaner.dedupe.buffer.size", "log.cleaner.threads"):
        threads = int(changes.get("log.cleaner.threads", settings.cleaner.threads))
        size = int(changes.get("log.cleaner.dedupe.buffer.size", settings.cleaner.dedupe_buffer_size))
        if size // max(1, threads) <= _LEAST_MAP_BYTES:
            return "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    if name == "log.retention.ms" and int(value) == 0:
        return "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    if name == "max.connections" and int(value) == 0:
        return "Invalid max.connections 0"
    if name == "max.connections.per.ip.overrides":
        try:
            parse_overrides(value)
        except ValueError as fault:
            return f"Error parsing configuration property '{name}': {fault}"
    if name == "max.connections.per.ip" and int(value) == 0:
        overrides = {**stored, **changes}.get("max.connections.per.ip.overrides")
        given = settings.daemon.max_connections_per_ip_overrides if overrides is None else overrides
        if not given:
            return (
                "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
            )  # fmt: skip
    return None
