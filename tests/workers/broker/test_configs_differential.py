"""Settings of every kind of resource, told by Kafka 4.4.0 and by `compactd serve` that were started with the same file.

What each tells of a setting (value, source, type, whether it can be changed, synonyms) has to be the same, after the start
and after changes at every level, written as people write values. The text of the documentation is ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from compactd.config.broker_names import OTHER_BROKER_NAMES
from compactd.config.table import SETTINGS
from tests.daemon.daemons import Daemon, until
from tests.oracle.broker import Broker
from tests.workers.broker.harness import RawClient

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, REMOVE, APPEND, SUBTRACT = range(4)
NODE = "1"

#: What both are started with: names of each kind and level, some with the value that is the default anyway.
STATIC = {
    "num.partitions": "3",
    "log.retention.hours": "100",
    "log.retention.minutes": "9000",
    "log.roll.hours": "168",
    "log.cleanup.policy": "compact,delete",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.io.max.bytes.per.second": "5e8",
    "log.preallocate": "FALSE",
    "log.segment.bytes": "2000000",
    "message.max.bytes": "2000000",
    "compression.type": "lz4",
    "auto.create.topics.enable": "false",
    "log.index.size.max.bytes": "65536",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "46000",
    "node.id": "1",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.threads": "1",
    "replica.high.watermark.checkpoint.interval.ms": "4000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "log.initial.task.delay.ms": "500",
    "max.connections": "5000",
    "super.users": "User:root",
}
#: Of one node or the other by nature.
OWN_VALUES = (
    "listeners", "advertised.listeners", "log.dirs", "log.dir", "controller.listener.names",
    # Kafka has no default for it, and changes of listeners here take a restart.
    "node.id", "listener.security.protocol.map",
    # Here the system chooses, unless it is told to.
    "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.listen.backlog.size",
)  # fmt: skip


class Side:
    """One of the two brokers."""

    def __init__(self, bootstrap: str) -> None:
        self._port = int(bootstrap.rpartition(":")[2])

    def ask(self, api: int, version: int, body: Mapping[str, Any]) -> Any:
        with RawClient(self._port) as client:
            return client.ask(api, version, body)

    def described(self, kind: int, name: str) -> dict[str, dict[str, Any]]:
        """Name of each setting to all that is told of it."""
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
        (answer,) = self.ask(32, 4, body).results
        assert not answer.error_code, answer
        names = [entry.name for entry in answer.configs]
        assert len(names) == len(set(names))
        return {
            entry.name: {
                "value": entry.value,
                "source": int(entry.config_source),
                "type": int(entry.config_type),
                "read only": entry.read_only,
                "sensitive": entry.is_sensitive,
                "documented": bool(entry.documentation),
                "synonyms": [(each.name, each.value, int(each.source)) for each in entry.synonyms],
            }
            for entry in answer.configs
        }

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
        """The error code."""
        rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        (answer,) = self.ask(44, 1, {"resources": [resource], "validate_only": False}).responses
        return int(answer.error_code)

    def create(self, name: str) -> None:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        until(
            lambda: (
                self.ask(19, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}).topics[0].error_code
                in (0, 36)
            ),
            f"topic {name}",
        )


class Both:
    """Kafka and us."""

    def __init__(self, kafka: Side, ours: Side) -> None:
        self.kafka = kafka
        self.ours = ours

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
        """One by one; both take a change, or refuse it with the same code."""
        for change in changes:
            codes = self.kafka.alter(kind, name, change), self.ours.alter(kind, name, change)
            assert codes[0] == codes[1], f"{change}: Kafka says {codes[0]}, we say {codes[1]}"

    def differences(self, kind: int, name: str, leave: Sequence[str] = ()) -> list[str]:
        """What is told differently of settings that both tell of, once Kafka has heard of all changes."""

        def look() -> list[str]:
            theirs, mine = self.kafka.described(kind, name), self.ours.described(kind, name)
            return [
                f"{key}: {what}: Kafka has {theirs[key][what]!r}, we have {mine[key][what]!r}"
                for key in sorted(theirs.keys() & mine.keys() - set(leave))
                for what in theirs[key]
                if theirs[key][what] != mine[key][what]
            ]

        # Changes reach Kafka's brokers a little later.
        end = time.monotonic() + 20
        while (found := look()) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def names(self, kind: int, name: str) -> tuple[set[str], set[str]]:
        """Those that only Kafka tells of, and those that only we do."""
        theirs, mine = self.kafka.described(kind, name).keys(), self.ours.described(kind, name).keys()
        return theirs - mine, mine - theirs


@pytest.fixture(scope="module")
def both(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    home = tmp_path_factory.mktemp("configs")
    (home / "kafka").mkdir()
    broker = Broker(oracle_classpath, home / "kafka-home", [home / "kafka"], STATIC)
    broker.format()
    (home / "ours").mkdir()
    given = {name.replace(".", "_"): value for name, value in STATIC.items()}
    with broker, Daemon(home / "ours", **given) as daemon:
        found = Both(Side(broker.bootstrap), Side(daemon.bootstrap))
        for side in (found.kafka, found.ours):
            side.create("t")
        yield found
        daemon.stop()


def test_a_broker(both: Both) -> None:
    assert not both.differences(BROKER, NODE, leave=OWN_VALUES)
    only_kafka, only_ours = both.names(BROKER, NODE)
    # What Kafka tells and we don't has no effect here, and whoever gives it is told so; what only we tell is our own, or
    # internal to it. (What a class reads that Kafka loads both tell where it was given.)
    assert only_kafka <= OTHER_BROKER_NAMES
    ours = [setting for setting in SETTINGS if setting.own and not setting.hidden]
    internal = {
        "group.consumer.regex.refresh.interval.ms",
        "group.streams.acceptable.recovery.lag",
        "group.streams.task.offset.interval.ms",
        "group.streams.min.task.offset.interval.ms",
    }
    assert only_ours == {entry.name for setting in ours for entry in setting.broker} | internal
    assert not both.differences(BROKER, "")


def test_topics_groups_metrics_and_loggers_as_they_are(both: Both) -> None:
    for kind, name in ((TOPIC, "t"), (GROUP, "g"), (METRICS, "m")):
        assert both.names(kind, name) == (set(), set())
        assert not both.differences(kind, name)
    theirs, mine = both.kafka.described(LOGGER, NODE), both.ours.described(LOGGER, NODE)
    assert {**theirs["root"], "value": ""} == {**mine["root"], "value": ""}
    shapes = {tuple(str(value) for key, value in entry.items() if key != "value") for entry in mine.values()}
    assert shapes == {tuple(str(value) for key, value in theirs["root"].items() if key != "value")}


def values_for(entry: Mapping[str, Any]) -> list[str]:
    """Another value than it has, as some people write values."""
    kind, value = entry["type"], entry["value"] or "0"
    if kind == 1:
        return ["TRUE" if value == "false" else "False"]
    if kind in (3, 4, 5):
        number = int(value)
        text = str(number - 1 if number > 1 << 30 else number + 1)
        # Kafka 4.4.0 takes others with blanks as well, and then can't apply them, nor anything else.
        return [f" {text} " if entry["name"].startswith("log.") else text]
    if kind == 6:
        return ["2.5e8" if float(value) > 1 else "2.5e-1"]
    return {"log.cleanup.policy": ["compact , delete"], "compression.type": ["zstd"]}.get(entry["name"], [])


def test_every_dynamic_setting_at_both_levels(both: Both) -> None:
    known = both.ours.described(BROKER, NODE)
    dynamic = {
        name: entry
        for name, entry in both.kafka.described(BROKER, NODE).items()
        if not entry["read only"] and name in known
    }
    changes = [
        (name, value) for name, entry in sorted(dynamic.items()) for value in values_for({**entry, "name": name})
    ]
    assert len(changes) > 30
    for where, operation in (("", SET), (NODE, SET), (NODE, REMOVE), ("", REMOVE)):
        both.alter(BROKER, where, *((name, operation, value) for name, value in changes))
        assert not both.differences(BROKER, NODE, leave=OWN_VALUES)
        assert not both.differences(BROKER, "")
        assert not both.differences(TOPIC, "t")


#: A topic's settings as some people write them, some of which are refused.
SPELLINGS = (
    ("cleanup.policy", " compact , delete "), ("cleanup.policy", "compact,compact"), ("cleanup.policy", ""),
    ("cleanup.policy", "none"), ("compression.type", " gzip "), ("compression.type", "GZIP"), ("preallocate", " TRUE "),
    ("preallocate", "yes"), ("retention.ms", " +5 "), ("retention.ms", "-1"), ("retention.ms", "-2"), ("retention.ms", ""),
    ("retention.ms", "1e3"), ("retention.bytes", "00077"), ("min.cleanable.dirty.ratio", "1e-1"),
    ("min.cleanable.dirty.ratio", ".5"), ("min.cleanable.dirty.ratio", "1.5"), ("min.cleanable.dirty.ratio", "0.30000000001"),
    ("segment.bytes", "1048575"), ("segment.bytes", "2147483648"), ("segment.bytes", "1048576"),
    ("message.timestamp.type", "logappendtime"), ("message.timestamp.type", "LogAppendTime"),
    ("max.compaction.lag.ms", "0"), ("max.compaction.lag.ms", "9223372036854775807"), ("min.insync.replicas", "1"),
    ("compression.zstd.level", "22"), ("compression.zstd.level", "23"), ("compression.gzip.level", "0"),
    ("leader.replication.throttled.replicas", "0:1"), ("leader.replication.throttled.replicas", "x"),
    ("remote.storage.enable", "true"), ("local.retention.ms", "5"), ("min.compaction.lag.ms", "12"),
)  # fmt: skip


def test_topics_groups_and_metrics_with_settings_of_their_own(both: Both) -> None:
    both.alter(TOPIC, "t", *((name, SET, value) for name, value in SPELLINGS))
    assert not both.differences(TOPIC, "t")
    both.alter(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"), ("cleanup.policy", APPEND, "compact,delete"))
    both.alter(BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "11"))
    assert not both.differences(TOPIC, "t")
    groups = both.kafka.described(GROUP, "g")
    changes = [(name, SET, str(int(each["value"]) + 1)) for name, each in groups.items() if each["type"] == 3]
    both.alter(
        GROUP, "g", *changes, ("streams.assignor.name", SET, " sticky "), ("share.auto.offset.reset", SET, "earliest")
    )
    assert not both.differences(GROUP, "g")
    both.alter(METRICS, "m", ("interval.ms", SET, "1000"), ("match", SET, "client_id=a.* , client_source_port=9"))
    both.alter(METRICS, "m", ("metrics", SET, "org.apache, x"), ("match", SET, "nothing"), ("interval.ms", SET, "1"))
    assert not both.differences(METRICS, "m")
    for kind, name in ((TOPIC, "t"), (GROUP, "g"), (METRICS, "m")):
        both.alter(kind, name, *((each, REMOVE, None) for each in both.kafka.described(kind, name)))
        assert not both.differences(kind, name)


#: Changes of the running node that depend on what it has, or on each other.
REACHES = (
    ("log.cleaner.threads", "3"), ("log.cleaner.threads", "2"), ("log.cleaner.threads", "0"),
    ("background.threads", "21"), ("background.threads", "4"),
    ("num.recovery.threads.per.data.dir", "5"), ("num.recovery.threads.per.data.dir", "0"),
    ("log.cleaner.dedupe.buffer.size", "1000"), ("log.cleaner.dedupe.buffer.size", "8388608"),
    ("log.cleaner.io.buffer.size", "0"), ("log.cleaner.io.max.bytes.per.second", "0"), ("log.cleaner.backoff.ms", "-1"),
    # Kafka takes a load factor of 2, and its cleaner then dies of a map that is more than full.
    ("log.cleaner.io.buffer.load.factor", "0"),
    ("log.retention.ms", "0"), ("log.retention.ms", "-5"), ("log.retention.bytes", "-5"), ("log.segment.bytes", "100"),
    ("log.cleaner.min.compaction.lag.ms", "100"), ("log.cleaner.max.compaction.lag.ms", "50"),
    ("message.max.bytes", "-1"), ("max.connections", "0"), ("max.connections.per.ip", "0"),
    ("max.connections.per.ip.overrides", "127.0.0.1:5"), ("max.connections.per.ip.overrides", "nonsense"),
    ("producer.id.expiration.ms", "0"), ("min.insync.replicas", "2"), ("log.cleanup.policy", ""),
    ("log.roll.ms", "0"), ("log.index.size.max.bytes", "3"), ("log.message.timestamp.type", "x"),
    ("unclean.leader.election.enable", "true"), ("transaction.partition.verification.enable", "x"),
    ("log.retention.hours", "1"), ("num.partitions", "1"), ("cordoned.log.dirs", "/nowhere"),
)  # fmt: skip


@pytest.mark.parametrize("where", ["", NODE])
def test_what_the_running_node_can_not_do_is_refused(both: Both, where: str) -> None:
    codes = {}
    for side in (both.kafka, both.ours):
        codes[side] = [(name, value, side.alter(BROKER, where, (name, SET, value))) for name, value in REACHES]
        for name in {name for name, _ in REACHES}:
            side.alter(BROKER, where, (name, REMOVE, None))
    differences = [(theirs, mine) for theirs, mine in zip(*codes.values(), strict=True) if theirs != mine]
    assert not differences, "\n".join(map(str, differences))


def test_settings_that_nobody_knows_are_kept_and_not_shown(both: Both) -> None:
    for where in ("", NODE):
        both.alter(BROKER, where, ("of.a.plugin", SET, f"secret of {where}"))
        assert not both.differences(BROKER, NODE, leave=OWN_VALUES)
        assert not both.differences(BROKER, "")
        assert "of.a.plugin" in both.ours.described(BROKER, where)
    for where in (NODE, ""):
        both.alter(BROKER, where, ("of.a.plugin", REMOVE, None))


def test_settings_that_would_do_nothing_here_are_refused_by_name(both: Both) -> None:
    for name in (
        "listeners",
        "listener.security.protocol.map",
        "metric.reporters",
        "listener.name.plaintext.ssl.provider",
    ):
        resource = {
            "resource_type": BROKER,
            "resource_name": NODE,
            "configs": [{"name": name, "config_operation": SET, "value": "x"}],
        }
        (answer,) = both.ours.ask(44, 1, {"resources": [resource], "validate_only": False}).responses
        assert (answer.error_code, answer.error_message) == (
            42, f"compactd does not apply these configs while it runs, only from its file when it starts: [{name}]"
        )  # fmt: skip
        assert both.ours.alter(BROKER, NODE, (name, REMOVE, None)) == 0


def test_levels_of_loggers(both: Both) -> None:
    codes = {}
    for side in (both.kafka, both.ours):
        before = side.described(LOGGER, NODE)["root"]["value"]
        codes[side] = [
            side.alter(LOGGER, NODE, change)
            for change in (
                ("root", SET, "WARN"), ("root", REMOVE, None), ("root", SET, "warn"), ("root", SET, None),
                ("root", APPEND, "WARN"), ("root", SUBTRACT, "WARN"), ("root", 9, "WARN"), ("no.such", SET, "INFO"),
                ("no.such", REMOVE, None), ("no.such", SET, "x"), ("root", SET, before),
            )
        ] + [side.alter(LOGGER, name, ("root", SET, before)) for name in ("", "7", "x")]  # fmt: skip
    assert codes[both.kafka] == codes[both.ours]
