"""Settings of topics, groups and subscriptions to metrics that stand in no table of ours: for whom, type, default, meaning.

Topics: those of Kafka's that nothing here acts on; they are kept and told for its sake. Groups and client metrics: all
(Kafka's GroupConfig and ClientMetricsConfigs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PlainSetting(NamedTuple):
    """Kafka's ConfigDef type, the default, the broker's setting that stands behind it, and what it is for."""

    type: str
    default: str
    broker: str | None
    meaning: str


_TIERED = "Of tiered storage, which is not to be had here: stored for Kafka."
_COPIES = "Of copying between brokers, and this node is alone: stored for Kafka."
_SHARE = "Of share groups, which are not served here: stored for Kafka."

TOPIC: Mapping[str, PlainSetting] = {
    "errors.deadletterqueue.group.enable": PlainSetting("BOOLEAN", "false", None, _SHARE),
    "follower.replication.throttled.replicas": PlainSetting("LIST", "", None, _COPIES),
    "leader.replication.throttled.replicas": PlainSetting("LIST", "", None, _COPIES),
    "local.retention.bytes": PlainSetting("LONG", "-2", "log.local.retention.bytes", _TIERED),
    "local.retention.ms": PlainSetting("LONG", "-2", "log.local.retention.ms", _TIERED),
    "remote.copy.lag.bytes": PlainSetting("LONG", "-1", "log.remote.copy.lag.bytes", _TIERED),
    "remote.copy.lag.ms": PlainSetting("LONG", "0", "log.remote.copy.lag.ms", _TIERED),
    "remote.log.copy.disable": PlainSetting("BOOLEAN", "false", None, _TIERED),
    "remote.log.delete.on.disable": PlainSetting("BOOLEAN", "false", None, _TIERED),
    "remote.storage.enable": PlainSetting("BOOLEAN", "false", None, _TIERED),
}

GROUP: Mapping[str, PlainSetting] = {
    "consumer.assignment.interval.ms": PlainSetting(
        "INT",
        "1000",
        "group.consumer.assignment.interval.ms",
        "Least time between two assignments of a consumer group.",
    ),
    "consumer.heartbeat.interval.ms": PlainSetting(
        "INT",
        "5000",
        "group.consumer.heartbeat.interval.ms",
        "How often members of a consumer group say that they live.",
    ),
    "consumer.session.timeout.ms": PlainSetting(
        "INT",
        "45000",
        "group.consumer.session.timeout.ms",
        "A member that was silent for this long is out of its group.",
    ),
    "errors.deadletterqueue.copy.record.enable": PlainSetting(
        "BOOLEAN", "false", "errors.deadletterqueue.copy.record.enable", _SHARE
    ),
    "errors.deadletterqueue.topic.name": PlainSetting("STRING", "", "errors.deadletterqueue.topic.name", _SHARE),
    "share.assignment.interval.ms": PlainSetting("INT", "1000", "group.share.assignment.interval.ms", _SHARE),
    "share.auto.offset.reset": PlainSetting("STRING", "latest", "share.auto.offset.reset", _SHARE),
    "share.delivery.count.limit": PlainSetting("INT", "5", "group.share.delivery.count.limit", _SHARE),
    "share.heartbeat.interval.ms": PlainSetting("INT", "5000", "group.share.heartbeat.interval.ms", _SHARE),
    "share.isolation.level": PlainSetting("STRING", "read_uncommitted", "share.isolation.level", _SHARE),
    "share.partition.max.record.locks": PlainSetting("INT", "2000", "group.share.partition.max.record.locks", _SHARE),
    "share.record.lock.duration.ms": PlainSetting("INT", "30000", "group.share.record.lock.duration.ms", _SHARE),
    "share.renew.acknowledge.enable": PlainSetting("BOOLEAN", "true", "share.renew.acknowledge.enable", _SHARE),
    "share.session.timeout.ms": PlainSetting("INT", "45000", "group.share.session.timeout.ms", _SHARE),
    "streams.assignment.interval.ms": PlainSetting(
        "INT", "1000", "group.streams.assignment.interval.ms", "Least time between two assignments of a streams group."
    ),
    "streams.assignor.name": PlainSetting(
        "STRING",
        "sticky",
        "group.streams.assignors",
        "The assignor of a streams group, one of group.streams.assignors.",
    ),
    "streams.heartbeat.interval.ms": PlainSetting(
        "INT", "5000", "group.streams.heartbeat.interval.ms", "How often members of a streams group say that they live."
    ),
    "streams.initial.rebalance.delay.ms": PlainSetting(
        "INT", "3000", "group.streams.initial.rebalance.delay.ms", "How long a new streams group waits for members."
    ),
    "streams.num.standby.replicas": PlainSetting(
        "INT", "0", "group.streams.num.standby.replicas", "Copies of the state of each task of a streams group."
    ),
    "streams.rack.aware.assignment.tags": PlainSetting(
        "LIST", "", "group.streams.rack.aware.assignment.tags", "Tags of members by which copies of state are spread."
    ),
    "streams.session.timeout.ms": PlainSetting(
        "INT",
        "45000",
        "group.streams.session.timeout.ms",
        "A member that was silent for this long is out of its group.",
    ),
}

CLIENT_METRICS: Mapping[str, PlainSetting] = {
    "interval.ms": PlainSetting("INT", "300000", None, "How often clients that match send their metrics."),
    "match": PlainSetting(
        "LIST", "", None, "Which clients this is for: name and pattern of what they say of themselves."
    ),
    "metrics": PlainSetting("LIST", "", None, "Beginnings of the names of metrics that are wanted."),
}
