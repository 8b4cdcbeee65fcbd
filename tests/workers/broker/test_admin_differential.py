"""The same requests to Kafka 4.4.0 and to us: the answers have to be the same, but for ids, ports, texts and order."""

from __future__ import annotations

import dataclasses
import enum
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.hearing import heard
from tests.workers.broker.test_groups import join_body, sync_body

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

_MEMBER_ID = re.compile(r"(raw|i1|i2)-[0-9a-f-]{36}|raw-[A-Za-z0-9_-]{22}")
_UNTOLD = {"throttle_time", "port", "error_message", "documentation"}


class Script:
    """Asks one broker, and writes down what it answers: ids by the order in which they came."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.log: list[tuple[str, Any]] = []
        self._ids: dict[str, str] = {}

    def ask(self, label: str, api: int, version: int, body: Mapping[str, Any]) -> Any:
        answer = self.client.ask(api, version, body)
        self.log.append((f"{label}, API {api} v{version}", self._plain(answer)))
        return answer

    def _plain(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: self._plain(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if field.name not in _UNTOLD
            }
        if isinstance(value, tuple):
            # Kafka answers in the order of its hash maps, mostly; synonyms have one that counts.
            rows = [self._plain(each) for each in value]
            return rows if rows and isinstance(rows[0], dict) and "source" in rows[0] else sorted(rows, key=repr)
        if isinstance(value, enum.Enum):
            return int(value.value)
        if isinstance(value, uuid.UUID):
            return self._name(str(value))
        if isinstance(value, str):
            return _MEMBER_ID.sub(lambda found: self._name(found[0]), value)
        return value

    def _name(self, identity: str) -> str:
        return self._ids.setdefault(identity, f"#{len(self._ids)}")

    # ---- requests that are made again and again

    def create(self, *topics: dict[str, Any], **more: Any) -> Any:
        rows = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in topics]
        return self.ask("create", 19, 7, {"topics": rows, "timeout": 10_000, **more})

    def enter(self, group: str, **more: Any) -> Any:
        first = self.ask("join", 11, 9, join_body(group, **more))
        if first.error_code != 79:
            return first
        return self.ask("join with id", 11, 9, join_body(group, first.member_id, **more))

    def heartbeat(self, group: str, member: str, generation: int, instance: str | None = None) -> None:
        body = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": instance}
        self.ask("heartbeat", 12, 4, body)

    def commit(self, group: str, member: str = "", generation: int = -1, version: int = 9, **more: Any) -> None:
        row = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "", **more}
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [
                {"name": "t", "partitions": [row, {**row, "partition_index": 7}]},
                {"name": "no", "partitions": [row]},
            ],
        }
        self.ask("commit", 8, version, body)

    def fetch(self, group: str, version: int = 9, topics: Any = None) -> None:
        self.ask("fetch", 9, version, {"groups": [{"group_id": group, "topics": topics}]})

    def describe(self, *groups: str, version: int = 6) -> None:
        self.ask("describe", 15, version, {"groups": groups})

    def configs(self, kind: int, name: str, keys: Any = None, **more: Any) -> None:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        answer = self.client.ask(32, 4, {"resources": [resource], "include_synonyms": True, **more}).results[0]
        found = self._plain(answer)
        self.log.append((f"configs of {kind} {name!r}", found))

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
        rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        self.ask(f"alter {changes}", 44, 1, {"resources": [resource], "validate_only": False, **more})
        heard(self.client)


def groups(script: Script) -> None:
    """A group of one dynamic member, and everything that it must not do."""
    for kind, version in ((0, 6), (9, 6), (2, 5), (9, 1)):
        keys = {"coordinator_keys": ["g", ""]} if version >= 4 else {"key": "g"}
        script.ask("find", 10, version, {"key_type": kind, **keys})
    for change in (
        {"group_id": ""}, {"session_timeout": 5999}, {"member_id": "nobody"}, {"protocols": []}, {"protocol_type": ""},
    ):  # fmt: skip
        script.ask(f"join {change}", 11, 9, {**join_body("g"), **change})
        script.ask(f"join {change}", 11, 5, {**join_body("g"), **change})
    script.describe("g", "none")
    script.describe("g", "none", version=5)
    script.heartbeat("none", "m", 1)
    script.heartbeat("g", "m", 0)
    joined = script.enter("g")
    member, generation = joined.member_id, joined.generation_id
    script.describe("g")
    script.heartbeat("g", member, generation)
    script.commit("g", member, generation)
    script.ask("join again", 11, 9, join_body("g", member))
    for change in (
        {"generation_id": 9}, {"member_id": "nobody"}, {"protocol_name": None}, {"protocol_name": "x"},
        {"protocol_type": "x"}, {"group_id": "none"}, {"group_id": ""},
    ):  # fmt: skip
        script.ask(f"sync {change}", 14, 5, {**sync_body("g", member, generation), **change})
    script.ask("sync", 14, 5, sync_body("g", member, generation, it=b"mine"))
    script.ask("sync again", 14, 5, sync_body("g", member, generation))
    script.heartbeat("g", member, generation)
    script.heartbeat("g", member, generation + 1)
    script.heartbeat("g", "nobody", generation)
    script.heartbeat("g", member, generation, "i1")
    script.describe("g")
    script.ask("list", 16, 5, {})
    script.ask("list", 16, 5, {"states_filter": ["stable"], "types_filter": ["CLASSIC"]})
    script.ask("list", 16, 5, {"states_filter": ["nonsense"]})
    script.ask("delete", 42, 2, {"groups_names": ["g", "none"]})
    script.ask("other protocol", 11, 9, {**join_body("g"), "protocols": [{"name": "other", "metadata": b""}]})
    script.ask("other type", 11, 9, {**join_body("g"), "protocol_type": "connect"})
    for one in ((member, generation), (member, generation + 1), ("nobody", generation), ("", -1), (member, -1)):
        script.commit("g", *one)
        script.commit("g", *one, version=7)
    script.commit("g", member, generation, committed_metadata="x" * 4097)
    script.commit("none", "m", 3)
    script.commit("none", "m", 3, version=8)
    script.commit("simple")
    script.fetch("g")
    script.fetch(
        "simple", topics=[{"name": "t", "partition_indexes": [0, 5]}, {"name": "no", "partition_indexes": [0]}]
    )
    script.fetch("none")
    script.ask("fetch v1", 9, 1, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0, 1]}]})
    script.ask("fetch v5", 9, 5, {"group_id": "g", "topics": None})
    rows = [
        {"name": "t", "partitions": [{"partition_index": 0}]},
        {"name": "no", "partitions": [{"partition_index": 0}]},
    ]
    for group in ("g", "none", "", "simple"):
        script.ask(f"delete offsets of {group}", 47, 0, {"group_id": group, "topics": rows})
    script.ask("leave", 13, 5, {"group_id": "g", "members": [{"member_id": "nobody"}, {"member_id": member}]})
    script.ask("leave", 13, 2, {"group_id": "g", "member_id": member})
    script.ask("leave", 13, 5, {"group_id": "none", "members": [{"member_id": member}]})
    script.describe("g")
    script.heartbeat("g", member, generation)
    script.ask("join the empty one with an old id", 11, 9, join_body("g", member))
    script.commit("g")
    script.commit("g", "nobody", 0)
    script.ask("delete", 42, 2, {"groups_names": ["g", "simple"]})
    script.describe("g")
    script.fetch("g")


def static_members(script: Script) -> None:
    """One instance, that comes back, is fenced, and is removed."""
    first = script.enter("s", group_instance_id="i1")
    member, generation = first.member_id, first.generation_id
    script.ask("sync", 14, 5, sync_body("s", member, generation, it=b"mine") | {"group_instance_id": "i1"})
    second = script.enter("s", group_instance_id="i1")
    script.ask("sync", 14, 5, sync_body("s", second.member_id, second.generation_id) | {"group_instance_id": "i1"})
    script.ask("old version", 11, 8, join_body("s", group_instance_id="i1"))
    script.heartbeat("s", member, generation, "i1")
    script.heartbeat("s", member, generation)
    script.heartbeat("s", second.member_id, generation, "i2")
    script.ask("join fenced", 11, 9, join_body("s", member, group_instance_id="i1"))
    script.ask("join unknown", 11, 9, join_body("s", member, group_instance_id="i2"))
    script.describe("s")
    for who in (
        {"member_id": member, "group_instance_id": "i1"}, {"member_id": "", "group_instance_id": "i2"},
        {"member_id": "", "group_instance_id": "i1"},
    ):  # fmt: skip
        script.ask("leave", 13, 5, {"group_id": "s", "members": [who]})
    script.describe("s")
    # Kafka is the same for all scripts: none lists what another one made.
    script.ask("delete", 42, 2, {"groups_names": ["s"]})


def topics(script: Script) -> None:
    """Created, grown, deleted, and refused."""
    script.create({"name": "made", "num_partitions": 2, "configs": [{"name": "segment.ms", "value": "99"}]})
    script.create({"name": "default", "num_partitions": -1, "replication_factor": -1}, {"name": "made"})
    # Kafka tells an id here that nothing gets.
    made = script.client.ask(19, 7, {"topics": [_row("maybe", 3)], "timeout": 10_000, "validate_only": True}).topics[0]
    script.log.append(("validate", (made.error_code, made.num_partitions, made.replication_factor, len(made.configs))))
    for topic in (
        {"name": "two", "replication_factor": 2}, {"name": "none", "num_partitions": 0}, {"name": "bad name"},
        {"name": ""}, {"name": "made", "num_partitions": 0}, {"name": "__cluster_metadata"},
        {"name": "wrong", "configs": [{"name": "cleanup.policy", "value": "shred"}]},
        {"name": "wrong", "configs": [{"name": "no.such", "value": "1"}]},
        {"name": "wrong", "configs": [{"name": "segment.ms", "value": None}]},
        {"name": "far", "num_partitions": -1, "replication_factor": -1,
         "assignments": [{"partition_index": 0, "broker_ids": [9]}]},
        {"name": "both", "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
    ):  # fmt: skip
        script.create(topic)
    for name, count, given in (
        ("made", 3, None), ("made", 3, None), ("made", 2, None), ("nothing", 2, None), ("made", 4, []),
        ("made", 4, [{"broker_ids": [1]}]), ("made", 5, [{"broker_ids": [7]}]), ("made", 20_000, None),
    ):  # fmt: skip
        row = {"name": name, "count": count, "assignments": given}
        script.ask("grow", 37, 3, {"topics": [row], "timeout": 10_000, "validate_only": False})
    for row in ({"name": "nothing"}, {"topic_id": uuid.UUID(int=5)}, {}, {"name": "made"}, {"name": "made"}):
        script.ask("delete", 20, 6, {"topics": [row], "timeout": 10_000})
    script.ask("delete", 20, 4, {"topic_names": ["default"], "timeout": 10_000})


def settings(script: Script) -> None:
    """Described and changed."""
    script.create({"name": "c", "configs": [{"name": "retention.ms", "value": "100000"}]})
    heard(script.client)
    script.configs(2, "c")
    script.configs(2, "c", ["retention.ms", "no.such"])
    script.configs(2, "c", [])
    for kind, name in ((2, "nothing"), (4, "7"), (4, "x"), (8, ""), (8, "7"), (32, ""), (16, ""), (3, "x")):
        script.configs(kind, name)
    script.configs(32, "g")
    script.configs(16, "m")
    script.alter(4, "", ("log.retention.ms", 0, "77777"), ("log.cleaner.threads", 0, "1"))
    script.alter(4, "1", ("log.retention.ms", 0, "66666"), ("log.roll.ms", 0, "5555555"))
    script.configs(2, "c", ["retention.ms", "segment.ms"])
    script.configs(4, "1", ["log.retention.ms", "log.retention.hours", "log.roll.ms", "log.cleaner.threads"])
    script.configs(4, "", ["log.retention.ms", "log.cleaner.threads"])
    for name, operation, value in (
        ("cleanup.policy", 2, "compact"), ("cleanup.policy", 3, "delete"), ("retention.ms", 1, None),
        ("retention.ms", 0, "soon"), ("retention.ms", 0, None), ("retention.ms", 2, "1"), ("no.such", 0, "1"),
    ):  # fmt: skip
        script.alter(2, "c", (name, operation, value))
        script.configs(2, "c", ["cleanup.policy", "retention.ms"])
    for kind, resource, one in (
        (2, "nothing", ("retention.ms", 0, "1")), (2, "", ("retention.ms", 0, "1")),
        (4, "7", ("log.retention.ms", 0, "1")), (4, "1", ("node.id", 0, "1")), (32, "g", ("no.such", 0, "1")),
        (32, "g", ("consumer.session.timeout.ms", 0, "50000")), (32, "", ("consumer.session.timeout.ms", 0, "1")),
        (16, "m", ("interval.ms", 0, "1000")), (3, "x", ("a", 0, "1")),
    ):  # fmt: skip
        script.alter(kind, resource, one)
    script.configs(32, "g", ["consumer.session.timeout.ms"])
    script.configs(16, "m")
    for kinds in ([16], [32], [3]):
        script.ask(f"list {kinds}", 74, 1, {"resource_types": kinds})
    script.ask("list", 74, 0, {})
    row = {"resource_type": 2, "resource_name": "c", "configs": [{"name": "segment.ms", "value": "9"}]}
    script.ask("replace", 33, 2, {"resources": [row], "validate_only": False})
    heard(script.client)
    script.configs(2, "c", ["segment.ms", "cleanup.policy"])
    # Topics of other scripts are told with the broker's.
    script.alter(4, "", ("log.retention.ms", 1, None), ("log.cleaner.threads", 1, None))
    script.alter(4, "1", ("log.retention.ms", 1, None), ("log.roll.ms", 1, None))
    for body in ({}, {"producer_id": 5}, {"transactional_id": ""}):
        answer = script.client.ask(22, 5, {"transactional_id": None, "transaction_timeout": 1000, **body})
        script.log.append((f"producer id {body}", (int(answer.error_code), answer.producer_epoch)))


def _row(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


SCRIPTS: tuple[Callable[[Script], None], ...] = (groups, static_members, topics, settings)
SETTINGS = {"log.index.size.max.bytes": "65536", "log.roll.jitter.hours": "1"}


def ready(client: RawClient) -> None:
    """Until topics can be made, producers have ids, and the coordinator is there."""

    def works() -> bool:
        made = client.ask(19, 7, {"topics": [_row("t", 2)], "timeout": 10_000}).topics[0]
        found = client.ask(10, 6, {"key_type": 0, "coordinator_keys": ["g"]}).coordinators[0]
        ids = client.ask(22, 5, {"transactional_id": None, "transaction_timeout": 1000})
        asked = [{"group_id": group, "topics": None} for group in ("g", "s", "simple", "none", "")]
        loaded = client.ask(9, 9, {"groups": asked})
        codes = [each.error_code for each in loaded.groups]
        return made.error_code in (0, 36) and not any((found.error_code, ids.error_code, *codes))

    end = time.monotonic() + 60
    while not works():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def kafka(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    home = tmp_path_factory.mktemp("kafka")
    (home / "d").mkdir()
    broker = Broker(oracle_classpath, home / "home", [home / "d"], SETTINGS)
    broker.format()
    with broker:
        with RawClient(int(broker.bootstrap.split(":")[1])) as client:
            ready(client)
        yield broker


@pytest.mark.parametrize("run", SCRIPTS, ids=lambda run: run.__name__)
def test_we_answer_as_kafka_does(run: Callable[[Script], None], kafka: Broker, log_dir: Path) -> None:
    with RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        theirs = Script(client)
        run(theirs)
    with CatalogueBroker([log_dir], topic_defaults=SETTINGS) as broker, broker.connect() as client:
        ready(client)
        ours = Script(client)
        run(ours)
    differences = [
        f"{label}{_difference(expected, found)}"
        for (label, expected), (_, found) in zip(theirs.log, ours.log, strict=True)
        if expected != found
    ]
    assert not differences, "\n".join(differences)


def _difference(expected: Any, found: Any, where: str = "") -> str:
    """Where two answers differ, line by line."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return "".join(_difference(expected[key], found[key], f"{where}.{key}") for key in expected)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return "".join(_difference(one, other, f"{where}[{index}]") for index, (one, other) in pairs)
    return "" if expected == found else f"\n  {where}: Kafka has {expected!r}, we have {found!r}"
