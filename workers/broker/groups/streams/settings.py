"""Settings of streams groups: those of the broker, and in their place those of a group. Times in ms."""

from __future__ import annotations

from compactd.config.settings import DaemonConfig
from compactd.workers.broker.context import Context

STANDBY_REPLICAS, RACK_AWARE_TAGS = "num.standby.replicas", "rack.aware.assignment.tags"


class StreamsSettings:
    """Where a group's own value lies outside of the broker's limits, the limit counts (Kafka's GroupConfig.evaluate)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._image = context.image

    @property
    def _config(self) -> DaemonConfig:
        """Some may change."""
        return self._context.config

    def _of(self, group_id: str, name: str) -> str | None:
        return self._image.group_configs.get(group_id, {}).get(f"streams.{name}")

    def _number(self, group_id: str, name: str, default: int, low: int | None = None, high: int | None = None) -> int:
        stored = self._of(group_id, name)
        if stored is None:
            return default
        value = int(stored)
        if low is not None:
            value = max(value, low)
        return value if high is None else min(value, high)

    def session_timeout_ms(self, group_id: str) -> int:
        config = self._config
        low, high = config.group_streams_min_session_timeout_ms, config.group_streams_max_session_timeout_ms
        return self._number(group_id, "session.timeout.ms", config.group_streams_session_timeout_ms, low, high)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        config = self._config
        low, high = config.group_streams_min_heartbeat_interval_ms, config.group_streams_max_heartbeat_interval_ms
        return self._number(group_id, "heartbeat.interval.ms", config.group_streams_heartbeat_interval_ms, low, high)

    def assignment_interval_ms(self, group_id: str) -> int:
        config = self._config
        low, high = config.group_streams_min_assignment_interval_ms, config.group_streams_max_assignment_interval_ms
        return self._number(group_id, "assignment.interval.ms", config.group_streams_assignment_interval_ms, low, high)

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        default = self._config.group_streams_initial_rebalance_delay_ms
        return self._number(group_id, "initial.rebalance.delay.ms", default)

    def task_offset_interval_ms(self, group_id: str) -> int:
        """How often members tell how far they have got."""
        config = self._config
        low = config.group_streams_min_task_offset_interval_ms
        return self._number(group_id, "task.offset.interval.ms", config.group_streams_task_offset_interval_ms, low)

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """Offsets that a copy may be behind to be as good as its original."""
        return self._number(group_id, "acceptable.recovery.lag", self._config.group_streams_acceptable_recovery_lag)

    def assignor(self, group_id: str) -> str:
        """The group's, or the broker's first one where that is not to be had."""
        known = self._config.group_streams_assignors
        wanted = self._of(group_id, "assignor.name")
        return wanted if wanted in known else known[0]

    def assignment_configs(self, group_id: str) -> tuple[tuple[str, str], ...]:
        """What the assignment depends on, as it is stored with the group's epoch."""
        config = self._config
        high = config.group_streams_max_standby_replicas
        standby = self._number(group_id, "num.standby.replicas", config.group_streams_num_standby_replicas, None, high)
        found = [(STANDBY_REPLICAS, str(standby))]
        tags = self._of(group_id, RACK_AWARE_TAGS)
        listed = config.group_streams_rack_aware_assignment_tags if tags is None else _list_of(tags)
        if listed:
            found.append((RACK_AWARE_TAGS, ",".join(listed)))
        return tuple(found)

    @property
    def max_size(self) -> int:
        return self._config.group_streams_max_size


def _list_of(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")] if text.strip() else []
