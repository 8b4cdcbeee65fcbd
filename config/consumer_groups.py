"""Settings of groups that have to fit each other, as Kafka's GroupCoordinatorConfig demands it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.config.errors import SettingError

if TYPE_CHECKING:
    from compactd.config.settings import DaemonConfig

_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def check_groups(config: DaemonConfig, source: str) -> None:
    """SettingError."""
    prefix = "group.consumer"
    for what in ("heartbeat.interval", "session.timeout", "assignment.interval"):
        value, least, most = (
            getattr(config, f"group_consumer_{bound}{what.replace('.', '_')}_ms") for bound in ("", "min_", "max_")
        )
        name, low, high = (f"{prefix}.{bound}{what}.ms" for bound in ("", "min.", "max."))
        if most < least:
            raise _refused(source, high, most, f"must be at least {low}, which is {least}")
        if value < least:
            raise _refused(source, name, value, f"must be at least {low}, which is {least}")
        if value > most:
            raise _refused(source, name, value, f"must be at most {high}, which is {most}")
    heartbeat, session = config.group_consumer_heartbeat_interval_ms, config.group_consumer_session_timeout_ms
    if heartbeat >= session:
        name = f"{prefix}.heartbeat.interval.ms"
        raise _refused(source, name, heartbeat, f"must be less than {prefix}.session.timeout.ms, which is {session}")
    policy = config.group_consumer_migration_policy
    if policy.lower() not in _POLICIES:
        raise _refused(source, f"{prefix}.migration.policy", policy, f"must be one of {', '.join(_POLICIES)}")
    protocols = config.group_coordinator_rebalance_protocols
    if "classic" not in protocols:
        text = ",".join(protocols)
        raise _refused(source, "group.coordinator.rebalance.protocols", text, "must name classic: Kafka demands it")
    if "share" in protocols:
        text = ",".join(protocols)
        raise _refused(
            source, "group.coordinator.rebalance.protocols", text, "share groups are not served: leave share out"
        )


def _refused(source: str, name: str, value: object, reason: str) -> SettingError:
    return SettingError(source=source, name=name, value=str(value), reason=reason)
