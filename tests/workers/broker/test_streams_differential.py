"""The same streams groups in Kafka 4.4.0 and here, topics with the same ids: every answer and every record the same."""

from __future__ import annotations

import itertools
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.metadata.offsets import decode_offsets_record, encode_offsets_record
from compactd.storage.names import uuid_text
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_consumer_group_differential import Twins, batches, differences, plain
from tests.workers.broker.test_groups import create, found

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

COMMIT, OFFSET_FETCH, LIST, DELETE, ALTER, BEAT, CONSUMER_BEAT, CONSUMER_DESCRIBE, DESCRIBE, PUSH = (
    8, 9, 16, 42, 44, 88, 68, 69, 89, 93,
)  # fmt: skip
GROUP_RESOURCE = 32
TOPICS = {"t": 4, "u": 2, "w": 7, "x": 4, "app-rep": 4, "app-store": 4, "app-other": 7, "lone-store": 2}
SETTINGS = {
    "broker.rack": "rack-1",
    "group.coordinator.append.linger.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 1000,
    "group.streams.heartbeat.interval.ms": 1000,
    "group.streams.min.task.offset.interval.ms": 1000,
    "group.streams.max.size": 8,
    # Nobody is out because a machine is slow.
    "group.streams.max.session.timeout.ms": 3_600_000,
    "group.streams.session.timeout.ms": 3_600_000,
}
OURS = {name: value for name, value in SETTINGS.items() if name != "group.coordinator.append.linger.ms"}


def info(name: str, partitions: int = 0, factor: int = 0, **configs: str) -> dict[str, Any]:
    rows = [{"key": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "partitions": partitions, "replication_factor": factor, "topic_configs": rows}


def subtopology(subtopology_id: str, *sources: str, **more: Any) -> dict[str, Any]:
    return {
        "subtopology_id": subtopology_id,
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    } | more


def group_of(*sources: int, repartition: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "source_topics": list(sources),
        "source_topic_regex": [],
        "repartition_source_topics": list(repartition),
    }


READS = [subtopology("0", "t")]
COUNTS = [
    subtopology("1", repartition_source_topics=[info("app-rep")], state_changelog_topics=[info("app-store")]),
    subtopology("0", "t", repartition_sink_topics=["app-rep"]),
]
WIDE = [
    subtopology("0", "w", state_changelog_topics=[info("app-other", cleanup_policy="compact")]),
    subtopology("1", "t", "x", copartition_groups=[group_of(0, 1)]),
    subtopology("a-b", "u", state_changelog_topics=[info("lone-store")]),
]
TOPOLOGIES = [READS, COUNTS, WIDE]


class StreamTwins(Twins):
    """Compares what has an order in Kafka: not the topics of a member's endpoint, which come out of an immutable map."""

    def ask(self, api: int, version: int, body: Mapping[str, Any]) -> Any:
        self.history.append(f"{api} v{version} {body}")
        theirs, mine = self.kafka.ask(api, version, body), self.ours.ask(api, version, body)
        expected, answered = settled(plain(theirs)), settled(plain(mine))
        assert answered == expected, f"Kafka: {expected}\nhere:  {answered}\nafter\n" + "\n".join(self.history[-40:])
        return theirs


def settled(answer: dict[str, Any]) -> dict[str, Any]:
    endpoints = answer.get("partitions_by_user_endpoint") or []
    for row in endpoints:
        row["active_partitions"].sort(key=repr)
    endpoints.sort(key=repr)
    return answer


class Streams:
    """Both brokers, and groups of the new protocol in them."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins

    def beat(self, group: str, member: str, epoch: int, *, version: int = 1, **more: Any) -> Any:
        body: dict[str, Any] = {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "endpoint_information_epoch": 0,
            "active_tasks": None,
            "standby_tasks": None,
            "warmup_tasks": None,
            "client_tags": None,
            "task_offsets": None,
            "task_end_offsets": None,
        }
        return self.twins.ask(BEAT, version, body | more)

    def join(
        self, group: str, member: str, subtopologies: list[dict[str, Any]] = READS, topology_epoch: int = 0, **more: Any
    ) -> Any:
        body: dict[str, Any] = {
            "rebalance_timeout": 300_000,
            "topology": {"epoch": topology_epoch, "subtopologies": subtopologies},
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            "process_id": f"process-{member}",
            "client_tags": [],
        }
        return self.beat(group, member, 0, **(body | more))

    def describe(self, *groups: str, version: int = 1) -> Any:
        body: dict[str, Any] = {"group_ids": list(groups), "include_authorized_operations": True}
        if version:
            body["include_topology_description"] = True
        return self.twins.ask(DESCRIBE, version, body)

    def described(self, group: str) -> Any:
        """What Kafka says of a group."""
        body = {"group_ids": [group], "include_authorized_operations": False, "include_topology_description": False}
        return self.twins.kafka.ask(DESCRIBE, 1, body).groups[0]

    def set(self, group: str, **settings: object) -> None:
        configs = [
            {"name": name.replace("_", "."), "config_operation": 0, "value": str(value)}
            for name, value in settings.items()
        ]
        row = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": configs}
        self.twins.ask(ALTER, 1, {"resources": [row], "validate_only": False})
        time.sleep(0.5)  # Kafka publishes it later

    def commit(self, group: str, member: str, epoch: int) -> None:
        row = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [row]}]
        body = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": member, "topics": topics}
        self.twins.ask(COMMIT, 9, body)

    def compare_logs(self, seen: Callable[[Any], Any] = lambda rows: rows) -> None:
        """Batches, keys and values of the coordinator's topic."""
        for partition in range(2):
            theirs = seen(batches(self.twins.kafka, self.twins.ids, partition))
            mine = seen(batches(self.twins.ours, self.twins.ids, partition))
            for number, (expected, written) in enumerate(zip(theirs, mine, strict=False)):
                assert written == expected, (
                    f"batch {number} of {partition}: {differences(expected, written)}\nafter\n"
                    + "\n".join(self.twins.history[-60:])
                )
            assert len(mine) == len(theirs)


@pytest.fixture(scope="module")
def catalogue(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kafka's disk with topics, and nothing else."""
    home = tmp_path_factory.mktemp("catalogue")
    maker = Broker(oracle_classpath, home / "kafka", [home / "disk"], SETTINGS)
    maker.format()
    with maker, RawClient(int(maker.bootstrap.split(":")[1])) as client:
        for name, partitions in TOPICS.items():
            create(client, name, partitions)
        found(client, "g")
        found(client, "h")
    return home / "disk"


@pytest.fixture
def disks(catalogue: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The same for each of the two."""
    for name in ("kafka", "ours"):
        shutil.copytree(catalogue, tmp_path / name)
    return tmp_path / "kafka", tmp_path / "ours"


@contextmanager
def both(oracle_classpath: str, disks: tuple[Path, Path], home: Path, **more: object) -> Iterator[Streams]:
    """Runs both, until they are stopped in order. `more`: settings with underscores for dots."""
    theirs, mine = disks
    other = {name.replace("_", "."): value for name, value in more.items()}
    with (
        Broker(oracle_classpath, home, [theirs], SETTINGS | other) as kafka,
        CatalogueBroker([mine], OURS | other) as ours,
    ):
        ids: dict[str, uuid.UUID] = ours.in_loop(
            lambda context: {topic.name: topic.topic_id for topic in context.image.topics.values()}
        )
        with RawClient(int(kafka.bootstrap.split(":")[1])) as their_client, ours.connect() as my_client:
            found(their_client, "g")
            found(their_client, "h")
            yield Streams(StreamTwins(their_client, my_client, ids))


def tasks(rows: Any) -> list[dict[str, Any]]:
    return [{"subtopology_id": row.subtopology_id, "partitions": list(row.partitions)} for row in rows or ()]


def a_life(streams: Streams) -> None:
    group = "life"
    streams.describe(group)
    streams.join(group, "a", COUNTS)
    streams.describe(group)
    streams.describe(group, version=0)
    streams.beat(group, "a", 1)
    streams.join(group, "b", COUNTS)
    streams.beat(group, "a", 2)
    streams.describe(group)
    for row in streams.described(group).members:
        now = {
            "active_tasks": tasks(row.assignment.active_tasks),
            "standby_tasks": [],
            "warmup_tasks": [],
        }
        streams.beat(group, row.member_id, row.member_epoch, **now)
    streams.beat(group, "b", 2)
    streams.beat(group, "b", 3)
    streams.beat(group, "a", 3, user_endpoint={"host": "here", "port": 9}, endpoint_information_epoch=5)
    streams.beat(group, "b", 3, user_endpoint={"host": "there", "port": 65535}, rack_id="r")
    streams.beat(group, "a", 3, endpoint_information_epoch=-1)
    streams.beat(group, "b", 3, client_tags=[{"key": "zone", "value": "z"}, {"key": "a", "value": "b"}])
    streams.beat(group, "b", 3, client_tags=[{"key": "a", "value": "b"}, {"key": "a", "value": "c"}])
    streams.beat(
        group, "b", 3, task_offsets=[{"subtopology_id": "1", "partition": 1, "offset": 5}], task_end_offsets=[]
    )
    streams.beat(group, "b", 3, task_offsets=[{"subtopology_id": "1", "partition": 1, "offset": 5}] * 2)
    streams.describe(group)
    for epoch in (-2, -1, 0, 1, 2, 9):
        streams.beat(group, "who", epoch)
        streams.beat(group, "a", epoch, instance_id="i")
    for body in (
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": " "},
        {"rack_id": ""},
        {"rebalance_timeout": -1},
        {"topology": None},
        {"active_tasks": None},
        {"standby_tasks": None},
        {"active_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
        {"member_epoch": -5},
        {"process_id": None},
        {"member_epoch": 3, "topology": None, "active_tasks": [{"subtopology_id": "9", "partitions": [0]}]},
        {"member_epoch": 3, "topology": None, "standby_tasks": [{"subtopology_id": "0", "partitions": [77]}]},
        {"member_epoch": 3},
    ):
        streams.join(group, "b" if body.get("member_epoch") == 3 else "c", COUNTS, **body)
    streams.commit(group, "a", 3)
    streams.commit(group, "a", 2)
    streams.commit(group, "nobody", 3)
    streams.commit(group, "", -1)
    streams.describe(group, "other", "")
    for kinds in (["STREAMS"], ["streams"], ["consumer"], []):
        streams.twins.ask(LIST, 5, {"states_filter": [], "types_filter": kinds})
    for state in ("Stable", "NotReady", "Reconciling", "Assigning", "Empty"):
        streams.twins.ask(LIST, 5, {"states_filter": [state], "types_filter": []})
    streams.twins.ask(15, 6, {"groups": [group], "include_authorized_operations": False})
    streams.twins.ask(CONSUMER_DESCRIBE, 1, {"group_ids": [group], "include_authorized_operations": False})
    streams.twins.ask(DELETE, 2, {"groups_names": [group, "other"]})
    streams.beat(group, "a", 4, shutdown_application=True)
    streams.beat(group, "b", 4)
    for member in ("a", "b", "c"):
        streams.beat(group, member, -1)
    streams.describe(group)
    streams.twins.ask(OFFSET_FETCH, 9, {"groups": [{"group_id": group, "topics": None}]})
    streams.twins.ask(DELETE, 2, {"groups_names": [group]})
    streams.compare_logs()


def topologies(streams: Streams) -> None:
    """What does not fit, at first, later, or never."""
    group = "shapes"
    cases: list[list[dict[str, Any]]] = [
        [],
        [subtopology("0", "nowhere", "t"), subtopology("1", "no-1", "no-2", "no-3")],
        [subtopology("0", "t", "u", copartition_groups=[group_of(0, 1)])],
        [subtopology("0", "t", copartition_groups=[group_of(1)])],
        [subtopology("0", "t"), subtopology("0", "u")],
        [subtopology("0", "t", state_changelog_topics=[info("app-store", 3)])],
        [subtopology("0", "u", state_changelog_topics=[info("app-store")])],
        [subtopology("0")],
        [subtopology("0", repartition_source_topics=[info("app-rep")])],
        [subtopology("0", repartition_source_topics=[info("app-rep")], repartition_sink_topics=["app-rep"])],
        [subtopology("0", "t", repartition_source_topics=[info("app-rep", -4)])],
        [subtopology("0", "__consumer_offsets", "t"), subtopology("1", "__transaction_state")],
        [subtopology("0", "a b", ".", "t"), subtopology("1", state_changelog_topics=[info("")])],
        [subtopology("0", "t") | {"source_topic_regex": ["t.*"]}],
    ]
    for number, rows in enumerate(cases):
        for version in (0, 1):
            streams.join(f"{group}{number}", f"m{version}", rows, version=version)
        streams.describe(f"{group}{number}")
        for member in ("m0", "m1"):
            streams.beat(f"{group}{number}", member, -1)
    streams.join(group, "a", READS)
    streams.join(group, "b", COUNTS)
    streams.join(group, "b", COUNTS, topology_epoch=1)
    streams.beat(group, "a", 2)
    streams.beat(group, "a", 3)
    streams.join(group, "c", READS)
    streams.join(group, "c", READS, topology_epoch=-1)
    streams.describe(group)
    streams.join(group, "b", list(reversed(COUNTS)), topology_epoch=1)
    streams.join(group, "a", WIDE, topology_epoch=2)
    streams.beat(group, "b", 4)
    streams.describe(group)
    for member in ("a", "b", "c"):
        streams.beat(group, member, -1)
    streams.join(group, "d", READS, topology_epoch=3)
    streams.beat(group, "d", -1)
    streams.compare_logs()


def static_members(streams: Streams) -> None:
    group = "static"
    streams.join(group, "a", COUNTS, instance_id="i")
    streams.join(group, "b", COUNTS, instance_id="j")
    streams.beat(group, "a", 2, instance_id="i")
    streams.beat(group, "a", -2, instance_id="i")
    streams.describe(group)
    streams.beat(group, "b", 3, instance_id="j")
    streams.join(group, "d", COUNTS, instance_id="i")
    streams.describe(group)
    streams.beat(group, "d", 3, instance_id="i")
    streams.beat(group, "d", -2, instance_id="i")
    streams.join(group, "e", COUNTS, instance_id="i", process_id="process-b")
    streams.describe(group)
    # Who is refused takes the place of who is there in what Kafka remembers of the assignment: nobody goes on after this.
    streams.join(group, "c", COUNTS, instance_id="i")
    streams.beat(group, "c", 2, instance_id="i")
    streams.beat(group, "a", 2, instance_id="j")
    streams.beat(group, "a", -1, instance_id="i")
    streams.beat(group, "e", -1, instance_id="i")
    streams.beat(group, "b", -1, instance_id="j")
    streams.compare_logs()


def other_kinds(streams: Streams) -> None:
    """Groups of other protocols under the same name, and calls that are not for streams groups."""
    body = {
        "rebalance_timeout": 300_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        "member_id": "m",
        "member_epoch": 0,
    }
    streams.twins.ask(CONSUMER_BEAT, 1, body | {"group_id": "consumers"})
    streams.join("consumers", "a")
    streams.beat("consumers", "a", 1)
    streams.describe("consumers")
    streams.join("mine", "a")
    streams.twins.ask(CONSUMER_BEAT, 1, body | {"group_id": "mine"})
    streams.twins.ask(11, 9, _classic("mine"))
    streams.twins.ask(CONSUMER_BEAT, 1, body | {"group_id": "consumers", "member_epoch": -1, "topic_partitions": None})
    streams.join("consumers", "a")
    streams.beat("mine", "a", -1)
    streams.twins.ask(CONSUMER_BEAT, 1, body | {"group_id": "mine"})
    # Offsets of nobody, then a streams group.
    streams.commit("offsets", "", -1)
    streams.join("offsets", "a")
    streams.commit("offsets", "a", 1)
    streams.describe("offsets")
    streams.beat("offsets", "a", -1)
    streams.beat("consumers", "a", -1)
    description = {"subtopologies": [], "global_stores": []}
    push = {"group_id": "offsets", "member_id": "a", "topology_epoch": 0, "topology_description": description}
    streams.twins.ask(PUSH, 0, push)
    streams.compare_logs()


def _classic(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }


class Member:
    """What a client knows."""

    def __init__(self, member_id: str, instance_id: str | None, process: str) -> None:
        self.member_id, self.instance_id, self.process = member_id, instance_id, process
        self.epoch = 0
        self.owned: dict[str, list[dict[str, Any]]] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}

    def told(self, answer: Any) -> None:
        if answer.error_code:
            if answer.error_code in (110, 25):
                self.epoch = 0
                self.owned = {kind: [] for kind in self.owned}
            return
        self.epoch = answer.member_epoch
        for kind in self.owned:
            if getattr(answer, kind) is not None:
                self.owned[kind] = tasks(getattr(answer, kind))


def any_story(streams: Streams, seed: int) -> None:
    chance = random.Random(seed)
    group = f"story{seed}"
    topology = TOPOLOGIES[seed % 3]
    standbys = seed % 4 if seed % 4 < 3 else 1
    if standbys:
        streams.set(group, streams_num_standby_replicas=standbys)
    members: list[Member] = []
    instances = itertools.count()
    epoch_of_topology = 0

    def join() -> None:
        identity = uuid_text(uuid.UUID(int=chance.getrandbits(128)))
        away = [each.instance_id for each in members if each.epoch == -2]
        instance = f"i{next(instances)}" if chance.random() < 0.25 else None
        if away and chance.random() < 0.6:
            instance = chance.choice(away)
        member = Member(identity, instance, f"process{chance.randrange(4)}")
        more: dict[str, Any] = {} if instance is None else {"instance_id": instance}
        if chance.random() < 0.3:
            more["client_tags"] = [{"key": "zone", "value": chance.choice("ab")}]
        if chance.random() < 0.3:
            more["user_endpoint"] = {"host": "h", "port": chance.randrange(1000)}
        answer = streams.join(
            group, identity, topology, topology_epoch=epoch_of_topology, process_id=member.process, **more
        )
        if not answer.error_code:
            members[:] = [each for each in members if instance is None or each.instance_id != instance]
            members.append(member)
            member.told(answer)

    def beat(member: Member) -> None:
        if member.epoch == 0:
            more: dict[str, Any] = {"instance_id": member.instance_id, "process_id": member.process}
            member.told(streams.join(group, member.member_id, topology, topology_epoch=epoch_of_topology, **more))
            return
        more = {"instance_id": member.instance_id, "endpoint_information_epoch": chance.choice([-1, 0, 1, 2])}
        if chance.random() < 0.6:
            more |= member.owned
        if chance.random() < 0.1:
            more["rebalance_timeout"] = chance.choice([200_000, 300_000])
        if chance.random() < 0.1:
            more["process_id"] = f"process{chance.randrange(4)}"
        if chance.random() < 0.1:
            more["user_endpoint"] = {"host": "h", "port": chance.randrange(1000)}
        if chance.random() < 0.2:
            rows = [each for kind in member.owned.values() for each in kind]
            offsets = {
                (row["subtopology_id"], number): chance.randrange(9) for row in rows for number in row["partitions"]
            }
            more["task_offsets"] = [
                {"subtopology_id": key, "partition": number, "offset": offset}
                for (key, number), offset in offsets.items()
            ]
        epoch = member.epoch + chance.choice([-1, 1]) if chance.random() < 0.06 else member.epoch
        if epoch > 0:
            member.told(streams.beat(group, member.member_id, epoch, **more))

    def leave(member: Member) -> None:
        for_a_while = member.instance_id is not None and chance.random() < 0.6
        streams.beat(group, member.member_id, -2 if for_a_while else -1, instance_id=member.instance_id)
        member.epoch = -2
        if not for_a_while:
            members.remove(member)

    for turn in range(90):
        what = chance.random()
        if turn == 45 and seed % 2:
            topology, epoch_of_topology = TOPOLOGIES[(seed + 1) % 3], 1
        if not members or (what < 0.15 and len(members) < 9):
            join()
        elif what < 0.22:
            leave(chance.choice(members))
        elif what < 0.28:
            member = chance.choice(members)
            streams.commit(group, member.member_id, max(member.epoch - chance.choice([0, 0, 0, 1, -1]), 0))
        elif what < 0.34:
            streams.describe(group)
        else:
            beat(chance.choice(members))
    streams.describe(group)
    for row in streams.described(group).members:
        streams.beat(group, row.member_id, -1, instance_id=row.instance_id)
    streams.compare_logs()


def created_topics(streams: Streams) -> None:
    """Topics that the brokers make: under ids of their own, so that the hashes differ."""
    group = "makes"
    configs = {"cleanup_policy": "compact", "segment_bytes": "52428800", "message_timestamp_type": "CreateTime"}
    topology = [
        subtopology("0", "w", repartition_sink_topics=["new-rep"]),
        subtopology(
            "1",
            repartition_source_topics=[info("new-rep", retention_ms="-1", cleanup_policy="delete")],
            state_changelog_topics=[info("new-store", **configs), info("wide-store", factor=3)],
        ),
    ]
    streams.join(group, "a", topology)
    time.sleep(1)
    streams.beat(group, "a", 1)
    streams.describe(group)
    time.sleep(2.5)
    # The error is forgotten; it is tried again.
    streams.beat(group, "a", 1)
    streams.beat(group, "b", -1)
    topology[1]["state_changelog_topics"][1] |= {"replication_factor": 1}
    streams.join(group, "a", topology, topology_epoch=1)
    time.sleep(1)
    streams.beat(group, "a", 2)
    streams.beat(group, "a", 3)
    streams.describe(group)
    names = ["new-rep", "new-store", "wide-store"]
    rows = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names]
    answers = [
        client.ask(32, 4, {"resources": rows, "include_synonyms": False, "include_documentation": False})
        for client in (streams.twins.kafka, streams.twins.ours)
    ]
    told = [
        {
            (row.resource_name, each.name): each.value
            for row in answer.results
            for each in row.configs
            if each.config_source == 1
        }
        for answer in answers
    ]
    assert told[0] == told[1] and told[0]["new-store", "segment.bytes"] == "52428800"
    streams.beat(group, "a", -1)
    streams.compare_logs(without_hashes)


def without_hashes(found: list[Any]) -> list[Any]:
    """Batches in which groups' metadata says nothing of ids."""
    return [(said, [_without_hash(key, value) for key, value in records]) for said, records in found]


def _without_hash(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    if value is None or key[:2] != b"\0\x11":
        return key, value
    decoded = decode_offsets_record(key, value)
    fields = decoded["value"] | {"metadataHash": min(abs(decoded["value"]["metadataHash"]), 1)}
    return encode_offsets_record(17, decoded["key"], 0, fields)


def refused_member(streams: Streams) -> None:
    """It takes nothing away; in Kafka it does: see docs/differences.md."""
    streams.join("g", "a", READS, instance_id="i")
    streams.join("g", "b", READS)
    streams.join("g", "impostor", READS, instance_id="i")
    body = {
        "group_id": "g",
        "member_id": "a",
        "member_epoch": 2,
        "instance_id": "i",
        "endpoint_information_epoch": 0,
    }
    body |= dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks", "client_tags", "task_offsets"))
    body["task_end_offsets"] = None
    theirs = streams.twins.kafka.ask(BEAT, 1, body)
    mine = streams.twins.ours.ask(BEAT, 1, body)
    assert (theirs.error_code, mine.error_code) == (0, 0)
    assert tasks(theirs.active_tasks) == []
    assert [len(row["partitions"]) for row in tasks(mine.active_tasks)] == [2]


def test_answers_and_records_are_kafkas(oracle_classpath: str, disks: tuple[Path, Path], tmp_path: Path) -> None:
    with both(oracle_classpath, disks, tmp_path / "second") as streams:
        for scenario in (a_life, topologies, static_members, other_kinds):
            scenario(streams)
        for seed in range(8):
            any_story(streams, seed)
        created_topics(streams)
        refused_member(streams)


def test_groups_go_on_after_a_restart(oracle_classpath: str, disks: tuple[Path, Path], tmp_path: Path) -> None:
    """What was written is read, and no more is known: not how far state was, nor who asked for the end."""
    tags = [{"key": "zone", "value": "z"}]
    with both(oracle_classpath, disks, tmp_path / "second") as streams:
        streams.set("counts", streams_num_standby_replicas=1)
        for number, member in enumerate(("a", "b", "c")):
            streams.join("counts", member, COUNTS, client_tags=tags, user_endpoint={"host": "h", "port": number})
        streams.beat("counts", "a", 3, task_offsets=[{"subtopology_id": "1", "partition": 1, "offset": 5}])
        streams.join("static", "a", WIDE, instance_id="i", rack_id="r")
        streams.join("static", "b", WIDE, instance_id="j")
        streams.beat("static", "a", -2, instance_id="i")
        streams.join("lacks", "a", [subtopology("0", "nowhere", state_changelog_topics=[info("new-store")])])
        streams.join("empty", "a", READS)
        streams.commit("empty", "a", 2)
        streams.beat("empty", "a", -1)
        streams.join("ends", "a", READS)
        streams.beat("ends", "a", 2, shutdown_application=True)
    with both(oracle_classpath, disks, tmp_path / "third") as streams:
        groups = ["counts", "static", "lacks", "empty", "ends"]
        streams.describe(*groups)
        streams.twins.ask(LIST, 5, {"states_filter": [], "types_filter": ["streams"]})
        for group in groups:
            for row in streams.described(group).members:
                now = {
                    "active_tasks": tasks(row.assignment.active_tasks),
                    "standby_tasks": tasks(row.assignment.standby_tasks),
                    "warmup_tasks": [],
                    "instance_id": row.instance_id,
                }
                if row.member_epoch > 0:
                    streams.beat(group, row.member_id, row.member_epoch, **now)
        streams.describe(*groups)
        streams.join("static", "c", WIDE, instance_id="i")
        streams.join("empty", "b", COUNTS)
        streams.join("empty", "b", READS)
        streams.beat("counts", "c", -1)
        for member in ("a", "b"):
            epoch = {row.member_id: row.member_epoch for row in streams.described("counts").members}[member]
            streams.beat("counts", member, epoch)
        streams.describe(*groups)
        for group in groups:
            for row in streams.described(group).members:
                streams.beat(group, row.member_id, -1, instance_id=row.instance_id)
        streams.twins.ask(DELETE, 2, {"groups_names": groups})
        streams.compare_logs()


def test_what_waits_waits_for_the_same(oracle_classpath: str, disks: tuple[Path, Path], tmp_path: Path) -> None:
    """The first assignment, one that comes too soon after another, sessions and tasks that nobody gives back."""
    delays = {"group_streams_initial_rebalance_delay_ms": 4000, "group_streams_assignment_interval_ms": 7000}
    with both(
        oracle_classpath, disks, tmp_path / "second", group_streams_min_session_timeout_ms=1000, **delays
    ) as streams:
        streams.join("first", "a", COUNTS)
        streams.join("first", "b", COUNTS)
        streams.describe("first")
        streams.beat("first", "a", 1)
        time.sleep(5)
        streams.describe("first")
        for member in ("a", "b"):
            streams.beat("first", member, 1)
        # The interval since the first assignment is not over.
        streams.join("first", "c", COUNTS)
        streams.beat("first", "a", 2)
        streams.describe("first")
        time.sleep(7)
        for member, epoch in (("c", 2), ("c", 3), ("a", 2), ("b", 2)):
            streams.beat("first", member, epoch)
        streams.describe("first")
        streams.set("short", streams_session_timeout_ms=3000, streams_initial_rebalance_delay_ms=0)
        streams.join("short", "a", COUNTS, rebalance_timeout=1000)
        streams.join("short", "b", COUNTS)
        time.sleep(5)
        streams.describe("short")
        streams.beat("short", "a", 2)
        streams.compare_logs(by_group)
        streams.join("short", "c", COUNTS, rebalance_timeout=1000)
        time.sleep(5)
        for row in streams.described("first").members:
            streams.beat("first", row.member_id, -1)
        streams.describe("first", "short")
        streams.compare_logs(by_group)


def by_group(found: list[Any]) -> list[Any]:
    """Records, without the offsets of their batches: of several timers the one or the other may be the first."""
    return [
        [
            record
            for _, records in found
            for record in records
            if decode_offsets_record(*record)["key"]["groupId"] == group
        ]
        for group in ("first", "short")
    ]
