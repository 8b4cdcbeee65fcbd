"""Whether settings of one group fit the limits of its broker, as Kafka's GroupConfig.validate has it (KIP-1331 and before).

The limits of consumer and streams groups are the daemon's own; share groups are kept untouched, so theirs are Kafka's
defaults: what is stored has to be something that Kafka takes again.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactd.config.settings import DaemonConfig

#: Least and most of what cannot be set for the broker here; None: no such limit.
_BOUNDS: dict[str, tuple[int | None, int | None]] = {
    "share.heartbeat.interval.ms": (5_000, 15_000),
    "share.session.timeout.ms": (45_000, 60_000),
    "share.record.lock.duration.ms": (15_000, 60_000),
    "share.delivery.count.limit": (2, 10),
    "share.partition.max.record.locks": (100, 4_000),
    "share.assignment.interval.ms": (0, 15_000),
    "streams.num.warmup.replicas": (None, 20),
}
_TAGS = "streams.rack.aware.assignment.tags"
_DEAD_LETTERS = "errors.deadletterqueue.topic.name"


def limits_error(configs: Mapping[str, str], daemon: DaemonConfig) -> str | None:
    """Why these settings of one group (all of them, each good by itself) can't be stored; None when they can."""
    for name, (least, most) in {**_consumer_bounds(daemon), **_streams_bounds(daemon), **_BOUNDS}.items():
        value = int(configs.get(name, least if least is not None else most or 0))
        if least is not None and most is not None and not least <= value <= most:
            return f"{name} must be in the range {least} to {most} inclusive."
        if least is not None and value < least:
            return f"{name} must be greater than or equal to group.{_limit(name, 'min')}, which is {least}"
        if most is not None and value > most:
            return f"{name} must be less than or equal to group.{_limit(name, 'max')}, which is {most}"
    tags = [each.strip() for each in configs.get(_TAGS, "").split(",")]
    if len(set(tags)) < len(tags):
        return f"{_TAGS} must not contain duplicate tag keys."
    assignors = daemon.group_streams_assignors
    assignor = configs.get("streams.assignor.name", assignors[0]).strip()
    if assignor not in assignors:
        return f"streams.assignor.name must be one of {', '.join(assignors)}, not {assignor}"
    defaults = {
        "consumer": (daemon.group_consumer_session_timeout_ms, daemon.group_consumer_heartbeat_interval_ms),
        "share": (45_000, 5_000),
        "streams": (daemon.group_streams_session_timeout_ms, daemon.group_streams_heartbeat_interval_ms),
    }
    for kind, (session, heartbeat) in defaults.items():
        names = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if int(configs.get(names[0], session)) <= int(configs.get(names[1], heartbeat)):
            return f"{names[0]} must be greater than {names[1]}"
    if configs.get(_DEAD_LETTERS, "").startswith("__"):
        return f"{_DEAD_LETTERS}: a topic of dead letters must not start with '__'"
    return None


def _consumer_bounds(daemon: DaemonConfig) -> dict[str, tuple[int, int]]:
    return {
        "consumer.heartbeat.interval.ms": (
            daemon.group_consumer_min_heartbeat_interval_ms,
            daemon.group_consumer_max_heartbeat_interval_ms,
        ),
        "consumer.session.timeout.ms": (
            daemon.group_consumer_min_session_timeout_ms,
            daemon.group_consumer_max_session_timeout_ms,
        ),
        "consumer.assignment.interval.ms": (
            daemon.group_consumer_min_assignment_interval_ms,
            daemon.group_consumer_max_assignment_interval_ms,
        ),
    }


def _streams_bounds(daemon: DaemonConfig) -> dict[str, tuple[int | None, int | None]]:
    return {
        "streams.heartbeat.interval.ms": (
            daemon.group_streams_min_heartbeat_interval_ms,
            daemon.group_streams_max_heartbeat_interval_ms,
        ),
        "streams.session.timeout.ms": (
            daemon.group_streams_min_session_timeout_ms,
            daemon.group_streams_max_session_timeout_ms,
        ),
        "streams.num.standby.replicas": (None, daemon.group_streams_max_standby_replicas),
        "streams.assignment.interval.ms": (
            daemon.group_streams_min_assignment_interval_ms,
            daemon.group_streams_max_assignment_interval_ms,
        ),
        "streams.task.offset.interval.ms": (daemon.group_streams_min_task_offset_interval_ms, None),
    }


def _limit(name: str, bound: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{kind}.{bound}.{rest.removeprefix('num.')}"
