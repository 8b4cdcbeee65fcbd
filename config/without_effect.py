"""What becomes of Kafka's settings that `config.table` doesn't have: why each has no effect here, or is refused.

Nothing is passed over in silence. A value that asks for what this node can not do, and whose absence clients or people
would notice, is refused when the daemon starts; everything else has a reason, which is told.
"""

from __future__ import annotations

from collections.abc import Callable

from compactd.config.broker_names import (
    OPEN_PREFIXES,
    OTHER_BROKER_NAMES,
    OTHER_TOPIC_NAMES,
    REMOVED_BROKER_NAMES,
)
from compactd.config.daemon_table import DAEMON_SETTINGS

_LISTENER_PREFIX = "listener.name."
_OF_DAEMON = frozenset(setting.name for setting in DAEMON_SETTINGS)

#: What reasons begin with.
NO_EFFECT = "a Kafka setting that has no effect here: "

_ALONE = "this node is alone and connects to no other"
_COPIES = "there is one copy of each partition, on this node"
_QUORUM = "this node is its own quorum, without elections"
_JAVA_TLS = "it is about Java's own TLS"
_TIERED = "there is no tiered storage"
_PURGATORY = "it is about how Kafka keeps requests that wait"
_METRICS = "metrics are had at metrics.listener"
_SHARE = "there are no share groups"
_NO_WARMUPS = "Kafka 4.4.0 assigns no warmup tasks"
_PROCESSES = "requests are handled in processes, whose number is broker.workers"
_AT_ONCE = "records of groups are written at once, in the loop of their broker"
_TESTS = "it is one of Kafka's for its own tests"
_CONTROLLER = "it is about Kafka's controller"

#: Beginnings of names, the first that fits counts, and why those have no effect.
_REASONS: tuple[tuple[str, str], ...] = (
    # Of names about security, which nobody should take for what protects this node.
    ("security.inter.broker.protocol", _ALONE),
    ("inter.broker.listener.name", _ALONE),
    ("early.start.listeners", _ALONE),
    ("sasl.mechanism.inter.broker.protocol", _ALONE),
    ("sasl.mechanism.controller.protocol", _ALONE),
    ("ssl.endpoint.identification.algorithm", _ALONE),
    ("ssl.allow.", _ALONE),
    ("sasl.client.callback.handler.class", _ALONE),
    ("sasl.login.", _ALONE),
    ("sasl.jaas.config", "as in Kafka, users stand under listener.name.NAME.MECHANISM.sasl.jaas.config"),
    ("sasl.kerberos.", "GSSAPI cannot be had"),
    ("sasl.oauthbearer.", "OAUTHBEARER cannot be had"),
    ("ssl.protocol", f"{_JAVA_TLS}; versions are chosen with ssl.enabled.protocols"),
    ("ssl.", _JAVA_TLS),
    ("security.providers", _JAVA_TLS),
    ("delegation.token.", "there are no delegation tokens"),
    # Of other brokers and controllers.
    ("process.roles", "this node always is broker and controller"),
    ("broker.id", "node.id says it, too"),
    ("broker.", _ALONE),
    ("controlled.shutdown.", _COPIES),
    ("controller.quorum.", _QUORUM),
    ("controller.performance.", _CONTROLLER),
    ("controller.socket.", _ALONE),
    ("initial.broker.registration.", _ALONE),
    ("auto.leader.", _COPIES),
    ("leader.imbalance.", _COPIES),
    ("unclean.leader.", _COPIES),
    ("num.replica.fetchers", _COPIES),
    ("replica.", _COPIES),
    ("replication.quota.", _COPIES),
    ("request.timeout.ms", _ALONE),
    ("socket.connection.setup.", _ALONE),
    ("default.replication.factor", _COPIES),
    ("offsets.topic.replication.factor", _COPIES),
    ("transaction.state.log.replication.factor", _COPIES),
    ("offsets.commit.timeout.ms", f"{_COPIES}: nothing is waited for"),
    # Of the metadata log.
    ("metadata.log.dir", "the metadata log is in the first of log.dirs"),
    ("metadata.max.idle.interval.ms", f"{_QUORUM}: nobody has to be told that it lives"),
    # Of what is not there.
    ("remote.", _TIERED),
    ("log.remote.", _TIERED),
    ("log.local.", _TIERED),
    ("follower.fetch.last.tiered.", _TIERED),
    ("share.", _SHARE),
    ("group.share.", _SHARE),
    ("errors.deadletterqueue.", _SHARE),
    ("group.streams.assignor.offload.enable", _AT_ONCE),
    ("group.streams.topology.description.plugin.class", "no class is named"),
    ("group.streams.", _NO_WARMUPS),
    ("telemetry.", "clients are not asked for their metrics"),
    ("transaction.two.phase.commit.enable", "transactions are committed in one phase"),
    ("alter.config.policy.class.name", "no class is named"),
    ("create.topic.policy.class.name", "no class is named"),
    ("client.quota.callback.class", "no class is named"),
    ("config.providers", "values stand in the file itself"),
    ("offsets.topic.compression.codec", "records of groups are not compressed"),
    # Of how Kafka is made.
    ("alter.log.dirs.replication.quota.", "replica.alter.log.dirs.io.max.bytes.per.second is held to at each step"),
    ("num.io.threads", _PROCESSES),
    ("num.network.threads", _PROCESSES),
    ("queued.max.requests", "queued.max.request.bytes bounds what waits, and a client has one request served at a time"),
    ("delete.records.purgatory.", _PURGATORY),
    ("fetch.purgatory.", _PURGATORY),
    ("producer.purgatory.", _PURGATORY),
    ("group.consumer.assignor.offload.enable", _AT_ONCE),
    ("group.coordinator.", _AT_ONCE),
    ("kafka.metrics.", _METRICS),
    ("metric.reporters", _METRICS),
    ("metrics.", _METRICS),
    ("internal.", _TESTS),
    ("server.max.startup.time.ms", "worker.start.timeout.ms bounds a start"),
    ("unstable.", "what Kafka has not finished is not served"),
)  # fmt: skip

_MY_CLASSES = "classes of your own cannot be loaded"
_ONE_COPY = "this node is alone, and Kafka, too, makes no topic with more copies than there are brokers: write 1"


def _is_off(value: str) -> bool:
    return value.lower() == "false"


def _is_empty(value: str) -> bool:
    return not value


def _is_one(value: str) -> bool:
    return value == "1"


def _is_single(value: str) -> bool:
    return "," not in value.strip(",")


#: Settings whose other values are refused: what is harmless, and the reason that is told for the rest.
_REFUSED: dict[str, tuple[Callable[[str], bool], str]] = {
    "transaction.two.phase.commit.enable": (_is_off, "two-phase commit cannot be had"),
    "remote.log.storage.system.enable": (_is_off, "tiered storage cannot be had"),
    "unstable.api.versions.enable": (_is_off, "what Kafka has not finished cannot be had"),
    "unstable.feature.versions.enable": (_is_off, "what Kafka has not finished cannot be had"),
    "alter.config.policy.class.name": (_is_empty, _MY_CLASSES),
    "create.topic.policy.class.name": (_is_empty, _MY_CLASSES),
    "client.quota.callback.class": (_is_empty, _MY_CLASSES),
    "config.providers": (_is_empty, f"{_MY_CLASSES}, and what they give would be missing; write the values themselves"),
    "default.replication.factor": (_is_one, _ONE_COPY),
    "offsets.topic.replication.factor": (_is_one, _ONE_COPY),
    "transaction.state.log.replication.factor": (_is_one, _ONE_COPY),
    "offsets.topic.compression.codec": (lambda value: value == "0", "records of groups are not compressed: write 0"),
    "process.roles": (
        lambda value: "broker" in {role.strip() for role in value.split(",")},
        "a node that is no broker would serve nobody; write broker,controller",
    ),
    "controller.quorum.voters": (_is_single, "this node is its own quorum, and there are no other voters"),
    "controller.quorum.bootstrap.servers": (_is_single, "this node is its own quorum, and there are no other voters"),
}  # fmt: skip

#: Names whose value decides whether they are refused.
DECIDING: frozenset[str] = frozenset(_REFUSED) | {"metadata.log.dir"}


def _why_of_listener(name: str) -> str | None:
    """Of a name that `config.listener_settings` lacks: whether there is such a setting at all."""
    rest = name[len(_LISTENER_PREFIX) :]
    while "." in rest:
        rest = rest.partition(".")[2]
        if rest in OTHER_BROKER_NAMES or rest in _OF_DAEMON:
            return why_unused(rest) or "a Kafka setting that no listener has of its own here"
    return None


def why_unused(name: str) -> str | None:
    """Why a name that `config.table` lacks has no effect here; None for a name that Kafka doesn't know either."""
    if name in OTHER_BROKER_NAMES:
        reason = next(reason for beginning, reason in _REASONS if name.startswith(beginning))
        return f"{NO_EFFECT}{reason}"
    if name.startswith(_LISTENER_PREFIX):
        return _why_of_listener(name)
    if name.startswith(OPEN_PREFIXES):
        return "a setting of a class that Kafka would load"
    if name in REMOVED_BROKER_NAMES:
        return "a setting of earlier Kafka, removed in 4.0"
    if name in OTHER_TOPIC_NAMES:
        what = "there are no share groups" if name.startswith("errors.") else _COPIES if "repl" in name else _TIERED
        return f"a topic-level Kafka setting that has no effect here: {what}"
    return None


def why_refused(name: str, value: str, first_log_dir: str | None = None) -> str | None:
    """Why the daemon can not start with this value of a name that `config.table` lacks; None where it can.

    `first_log_dir`: where the metadata log is, as it is written.
    """
    value = value.strip()
    if name == "metadata.log.dir":
        if not value or first_log_dir is None or value.rstrip("/") == first_log_dir.rstrip("/"):
            return None
        return f"the metadata log has to be in the first of log.dirs, {first_log_dir}: put this one first"
    harmless, reason = _REFUSED.get(name, (None, ""))
    return None if harmless is None or harmless(value) else reason
