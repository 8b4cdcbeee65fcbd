"""Types and ranges of the settings that clients may store in the catalogue (Kafka 4.4.0's LogConfig, GroupConfig and
DynamicBrokerConfig). What `config.table` has comes from there; the rest, which compactd stores for Kafka's sake and mostly
doesn't act on, is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactd.config.broker_names import OTHER_BROKER_NAMES
from compactd.config.setting import BrokerName, Dynamic, Kind, Setting
from compactd.config.table import BY_BROKER_NAME, TOPIC_SETTINGS


@dataclass(frozen=True, slots=True)
class Rule:
    """What values one name may have. `kind`: Kafka's ConfigDef type in capitals; CHECKED has a check of its own."""

    kind: str
    low: int | float | None = None
    high: int | float | None = None
    also: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    default: str | None = None

    @property
    def is_list(self) -> bool:
        return self.kind in ("LIST", "THROTTLED")


#: name kind lowest..highest|choice,choice
_OTHER_TOPIC = """
errors.deadletterqueue.group.enable BOOLEAN
follower.replication.throttled.replicas THROTTLED
leader.replication.throttled.replicas THROTTLED
local.retention.bytes LONG -2..
local.retention.ms LONG -2..
remote.copy.lag.bytes LONG -1..
remote.copy.lag.ms LONG -1..
remote.log.copy.disable BOOLEAN
remote.log.delete.on.disable BOOLEAN
remote.storage.enable BOOLEAN
"""

_GROUP = """
consumer.assignment.interval.ms INT 0..
consumer.assignor.offload.enable BOOLEAN
consumer.heartbeat.interval.ms INT 1..
consumer.session.timeout.ms INT 1..
errors.deadletterqueue.copy.record.enable BOOLEAN
errors.deadletterqueue.topic.name STRING
share.assignment.interval.ms INT 0..
share.assignor.offload.enable BOOLEAN
share.auto.offset.reset STRING
share.delivery.count.limit INT 2..
share.heartbeat.interval.ms INT 1..
share.isolation.level STRING read_committed,read_uncommitted
share.partition.max.record.locks INT 100..
share.record.lock.duration.ms INT 1000..
share.renew.acknowledge.enable BOOLEAN
share.session.timeout.ms INT 1..
streams.acceptable.recovery.lag LONG 0..
streams.assignment.interval.ms INT 0..
streams.assignor.name STRING
streams.assignor.offload.enable BOOLEAN
streams.heartbeat.interval.ms INT 1..
streams.initial.rebalance.delay.ms INT 0..
streams.num.standby.replicas INT 0..
streams.num.warmup.replicas INT 0..
streams.rack.aware.assignment.tags LIST
streams.session.timeout.ms INT 1..
streams.task.offset.interval.ms INT 1..
"""

_OTHER_DYNAMIC_BROKER = """
config.providers LIST
errors.deadletterqueue.auto.create.topics.enable BOOLEAN
errors.deadletterqueue.topic.name.prefix STRING
follower.fetch.last.tiered.offset.enable BOOLEAN
follower.replication.throttled.rate LONG 0..
group.consumer.assignment.interval.ms INT 0..
group.consumer.assignor.offload.enable BOOLEAN
group.coordinator.cached.buffer.max.bytes INT 524288..
group.share.assignment.interval.ms INT 0..
group.share.assignor.offload.enable BOOLEAN
group.streams.assignment.interval.ms INT 0..
group.streams.assignor.offload.enable BOOLEAN
leader.replication.throttled.rate LONG 0..
log.local.retention.bytes LONG -2..
log.local.retention.ms LONG -2..
log.remote.copy.lag.bytes LONG -1..
log.remote.copy.lag.ms LONG -1..
max.connections INT 0..
max.connections.per.ip INT 0..
metric.reporters LIST
min.insync.replicas INT 1..
num.io.threads INT 1..
num.network.threads INT 1..
num.replica.fetchers INT 1..
remote.fetch.max.wait.ms INT 1..
remote.list.offsets.request.timeout.ms LONG 1..
remote.log.index.file.cache.total.size.bytes LONG 1..
remote.log.manager.copier.thread.pool.size INT 1..
remote.log.manager.copy.max.bytes.per.second LONG 1..
remote.log.manager.expiration.thread.pool.size INT 1..
remote.log.manager.fetch.max.bytes.per.second LONG 1..
remote.log.manager.follower.thread.pool.size INT 1..
remote.log.reader.threads INT 1..
replica.alter.log.dirs.io.max.bytes.per.second LONG 0..
share.coordinator.cached.buffer.max.bytes INT 524288..
transaction.partition.verification.enable BOOLEAN
unclean.leader.election.enable BOOLEAN
"""

#: Dynamic, but only for one broker at a time.
_OTHER_PER_BROKER = """
listener.security.protocol.map STRING
listeners LIST
sasl.jaas.config STRING
sasl.kerberos.kinit.cmd STRING
sasl.kerberos.min.time.before.relogin LONG
sasl.kerberos.principal.to.local.rules LIST
sasl.kerberos.service.name STRING
sasl.kerberos.ticket.renew.jitter DOUBLE
sasl.kerberos.ticket.renew.window.factor DOUBLE
sasl.login.refresh.buffer.seconds SHORT
sasl.login.refresh.min.period.seconds SHORT
sasl.login.refresh.window.factor DOUBLE
sasl.login.refresh.window.jitter DOUBLE
sasl.mechanism.inter.broker.protocol STRING
ssl.endpoint.identification.algorithm STRING
ssl.keymanager.algorithm STRING
ssl.protocol STRING
ssl.provider STRING
ssl.secure.random.implementation STRING
ssl.trustmanager.algorithm STRING
"""


def _parsed(text: str) -> dict[str, Rule]:
    rules = {}
    for line in text.split("\n"):
        if not line:
            continue
        name, kind, *rest = line.split()
        low: int | None = None
        choices: tuple[str, ...] = ()
        if rest and rest[0].endswith(".."):
            low = int(rest[0].removesuffix(".."))
        elif rest:
            choices = tuple(rest[0].split(","))
        rules[name] = Rule(kind, low=low, choices=choices, default="" if kind in ("LIST", "THROTTLED") else None)
    return rules


def _from_setting(setting: Setting, broker: BrokerName | None = None) -> Rule:
    kind = setting.kind if broker is None or broker.kind is None else broker.kind
    low = setting.low if broker is None or broker.low is None else broker.low
    if broker is not None and broker.negative_is_off:
        low = None
    default = setting.default
    text = ",".join(map(str, default)) if kind is Kind.LIST and isinstance(default, tuple) else None
    return Rule(kind.value.upper(), low, setting.high, setting.also, setting.choices, text)


def _broker_rules(*modes: Dynamic) -> dict[str, Rule]:
    return {
        name: _from_setting(setting, entry)
        for name, settings in _broker_settings().items()
        for setting, entry in settings
        if entry.dynamic in modes
    }


def _broker_settings() -> dict[str, list[tuple[Setting, BrokerName]]]:
    found: dict[str, list[tuple[Setting, BrokerName]]] = {}
    for name, settings in BY_BROKER_NAME.items():
        for setting in settings:
            entry = setting.broker_name(name)
            if entry is not None:
                found.setdefault(name, []).append((setting, entry))
    return found


TOPIC_RULES: Mapping[str, Rule] = {
    **{setting.topic: _from_setting(setting) for setting in TOPIC_SETTINGS if setting.topic is not None},
    **_parsed(_OTHER_TOPIC),
}

GROUP_RULES: Mapping[str, Rule] = _parsed(_GROUP)

CLIENT_METRICS_RULES: Mapping[str, Rule] = _parsed("interval.ms INT\nmatch LIST\nmetrics LIST")

#: Broker settings that may be changed for one broker or for all.
CLUSTER_RULES: Mapping[str, Rule] = {**_parsed(_OTHER_DYNAMIC_BROKER), **_broker_rules(Dynamic.YES)}

#: Broker settings that may be changed for one broker only.
PER_BROKER_RULES: Mapping[str, Rule] = {**_parsed(_OTHER_PER_BROKER), **_broker_rules(Dynamic.PER_BROKER)}

#: Broker settings that take a restart.
STATIC_BROKER_NAMES: frozenset[str] = (OTHER_BROKER_NAMES | frozenset(BY_BROKER_NAME)) - set(CLUSTER_RULES) - set(
    PER_BROKER_RULES
)  # fmt: skip

#: Settings that Kafka changes while it runs, with consequences that here they don't have: of the listeners and their
#: security, which count from the start on, and of plug-ins.
NOT_APPLIED_NAMES: frozenset[str] = frozenset(
    name
    for name in (*_parsed(_OTHER_PER_BROKER), "config.providers", "metric.reporters")
    if name not in _broker_rules(Dynamic.YES, Dynamic.PER_BROKER)
)

#: Settings of keys and certificates, which Kafka changes only under `listener.name.<name>.`.
LISTENER_ONLY_NAMES: frozenset[str] = frozenset(
    f"ssl.{name}"
    for name in (
        "key.password",
        *("keystore.type", "keystore.location", "keystore.password", "keystore.key", "keystore.certificate.chain"),
        *("truststore.type", "truststore.location", "truststore.password", "truststore.certificates"),
    )
)

#: Under a listener's prefix these count for the whole cluster, too.
CLUSTER_LISTENER_NAMES: frozenset[str] = frozenset(
    ("max.connections", "max.connection.creation.rate", "num.network.threads")
)
