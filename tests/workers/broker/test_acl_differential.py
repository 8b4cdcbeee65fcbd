"""Refusals of the StandardAuthorizer: the same requests to Kafka 4.4.0 and to us, from an address that ACLs say nothing of.

Both know their clients by address only: everybody is User:ANONYMOUS. Who comes from 127.0.0.1 may do everything (so may
Kafka's own connections), the guest from 127.0.0.2 what a test allows. Ids, ports, texts and the order of rows may differ;
whether there is a text may not.
"""

from __future__ import annotations

import dataclasses
import enum
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from compactd.workers.acl_messages import Operation as Op
from compactd.workers.acl_messages import PatternType, Permission
from compactd.workers.acl_messages import Resource as Res
from compactd.workers.broker.requests import load_handlers
from tests.oracle.broker import Broker
from tests.workers.broker.batches import batch, fetch_body, produce_body
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import join_body, sync_body

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Until there are ACLs; then they cover every type of resource.
    "allow.everyone.if.no.acl.found": "true",
    "auto.create.topics.enable": "true",
}
GUEST = "127.0.0.2"
TOPICS = ("open", "shut")
_UNTOLD = {"throttle_time", "port", "host", "node_id", "documentation", "cluster_id"}
_TEXTS = {"error_message", "message"}

Ids = Mapping[str, uuid.UUID]
Body = Callable[[Ids], Mapping[str, Any]] | Mapping[str, Any]


class Side:
    """One of the two brokers: somebody who may do everything, and the guest."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.admin = RawClient(port)
        self.guest = RawClient(port, GUEST)
        self.ids: dict[str, uuid.UUID] = {}

    def close(self) -> None:
        self.admin.close()
        self.guest.close()

    def plain(self, value: Any, name: str = "") -> Any:
        """An answer without what is each broker's own."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: self.plain(getattr(value, field.name), field.name)
                for field in dataclasses.fields(value)
                if field.name not in _UNTOLD
            }
        if isinstance(value, tuple):
            return sorted((self.plain(each) for each in value), key=repr)
        if isinstance(value, enum.Enum):
            return int(value.value)
        if isinstance(value, uuid.UUID):
            known = {topic_id: topic for topic, topic_id in self.ids.items()}
            return known.get(value, "unknown")
        if name in _TEXTS and value:
            return "text"
        return value

    def ask(self, api: int, version: int, body: Body) -> Any:
        """What the guest is answered; "closed" where the connection is closed instead."""
        given = body(self.ids) if callable(body) else body
        try:
            return self.plain(self.guest.ask(api, version, given))
        except (ConnectionError, TimeoutError) as error:
            self.guest.close()
            self.guest = RawClient(self.port, GUEST)
            return "closed" if isinstance(error, ConnectionError) else "no answer"

    # ---- ACLs

    def acls(self) -> list[Any]:
        answer = self.admin.ask(29, 3, {**ANY, "host_filter": GUEST})
        return [acl for resource in answer.resources for acl in resource.acls]

    def allow(self, grants: Sequence[Mapping[str, Any]]) -> None:
        """Makes ACLs of the guest; they count when this returns."""
        before = len(self.acls())
        rows = [{"principal": "User:ANONYMOUS", "host": GUEST, "permission_type": Permission.ALLOW, **grant} for grant in grants]
        answer = self.admin.ask(30, 3, {"creations": rows})
        assert [int(result.error_code) for result in answer.results] == [0] * len(grants)
        self.wait(before + len(grants))

    def forbid(self) -> None:
        """Deletes the guest's ACLs."""
        self.admin.ask(31, 3, {"filters": [{**ANY, "host_filter": GUEST}]})
        self.wait(0)

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.acls()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def grant(
    resource: Res, name: str, operation: Op, permission: Permission = Permission.ALLOW, prefixed: bool = False
) -> dict[str, Any]:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return {
        "resource_type": resource,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "operation": operation,
        "permission_type": permission,
    }


def on_cluster(operation: Op) -> dict[str, Any]:
    return grant(Res.CLUSTER, "kafka-cluster", operation)


def on_topic(operation: Op, name: str = "open") -> dict[str, Any]:
    return grant(Res.TOPIC, name, operation)


def on_group(operation: Op, name: str = "g") -> dict[str, Any]:
    return grant(Res.GROUP, name, operation)


def on_id(operation: Op, name: str = "tx") -> dict[str, Any]:
    return grant(Res.TRANSACTIONAL_ID, name, operation)


class Pair:
    """Both."""

    def __init__(self, kafka: Broker, ours: CatalogueBroker) -> None:
        self.sides = [Side(int(kafka.bootstrap.split(":")[1])), Side(ours.port)]

    def close(self) -> None:
        for side in self.sides:
            side.close()

    def same(self, api: int, version: int, body: Body) -> Any:
        """Asserts that both answer the guest alike; returns the answer."""
        kafka, ours = (side.ask(api, version, body) for side in self.sides)
        found = "\n".join(_differences(kafka, ours))
        assert not found, found
        return ours

    def allow(self, *grants: Mapping[str, Any]) -> None:
        for side in self.sides:
            side.allow(grants)

    def forbid(self) -> None:
        for side in self.sides:
            side.forbid()


def _differences(kafka: Any, ours: Any, place: str = "") -> Iterator[str]:
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in {**kafka, **ours}:
            yield from _differences(kafka.get(name), ours.get(name), f"{place}.{name}")
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for index, (left, right) in enumerate(zip(kafka, ours, strict=True)):
            yield from _differences(left, right, f"{place}[{index}]")
    elif kafka != ours:
        yield f"{place}: Kafka {kafka!r}, compactd {ours!r}"


@pytest.fixture(scope="module")
def brokers(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("acls-against-kafka")
    dirs = [home / "kafka", home / "ours"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, home, [dirs[0]], SETTINGS)
    kafka.format()
    with kafka, CatalogueBroker([dirs[1]], SETTINGS) as ours:
        pair = Pair(kafka, ours)
        try:
            for side in pair.sides:
                _furnish(side)
            yield pair
        finally:
            pair.close()


@pytest.fixture
def pair(brokers: Pair) -> Pair:
    """Nothing is allowed to the guest."""
    brokers.forbid()
    return brokers


def _furnish(side: Side) -> None:
    everything = [
        {**grant(kind, name, Op.ALL), "principal": "User:ANONYMOUS", "host": "127.0.0.1"}
        for kind, name in (
            (Res.CLUSTER, "kafka-cluster"), (Res.TOPIC, "*"), (Res.GROUP, "*"), (Res.TRANSACTIONAL_ID, "*"),
            (Res.DELEGATION_TOKEN, "*"), (Res.USER, "*"),
        )
    ]  # fmt: skip
    answer = side.admin.ask(30, 3, {"creations": everything})
    assert [int(each.error_code) for each in answer.results] == [0] * len(everything)
    deadline = time.monotonic() + 30
    while sum(len(each.acls) for each in side.admin.ask(29, 3, ANY).resources) < len(everything):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in TOPICS]
    made = side.admin.ask(19, 7, {"topics": rows, "timeout": 30_000})
    assert [int(topic.error_code) for topic in made.topics] == [0] * len(TOPICS)
    side.ids = {topic.name: topic.topic_id for topic in made.topics}
    find = {"key_type": 0, "coordinator_keys": ["g"]}
    while side.admin.ask(10, 6, find).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while side.admin.ask(10, 6, {"key_type": 1, "coordinator_keys": ["tx"]}).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]}
            for name in TOPICS
        ],
    }
    while any(each.error_code for topic in side.admin.ask(8, 9, commit).topics for each in topic.partitions):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for name in TOPICS:
        while side.admin.ask(0, 9, produce_body(_BATCH, name)).responses[0].partition_responses[0].error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)


_NOW = int(time.time() * 1000)
_BATCH = batch([b"v", b"w"], timestamp=_NOW)
_IN_TRANSACTION = batch(
    [b"v"], timestamp=_NOW, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0
)


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def _offsets(*names: str) -> list[dict[str, Any]]:
    row = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    return [{"name": name, "partitions": [row, {**row, "partition_index": 7}]} for name in names]


def _by_ids(names: Sequence[str], row: Mapping[str, Any], ids: Ids) -> list[dict[str, Any]]:
    known = {**ids, "nowhere": uuid.UUID(int=77)}
    return [{"topic_id": known[name], **row} for name in names]


_THREE = ("open", "shut", "nowhere")
_ROWS = [named(name, partitions=[{"partition_index": 0, "timestamp": -1}]) for name in _THREE]
_TXN_TOPICS = [named(name, partitions=[0, 9]) for name in _THREE]
_CONFIG_KINDS = ((2, "open"), (2, "nowhere"), (2, "bad/name"), (4, "1"), (4, ""), (8, "1"), (16, "m"), (32, "g"))


def _alter(kind: int, name: str, incremental: bool = True) -> dict[str, Any]:
    key = {2: "retention.ms", 4: "log.cleaner.threads", 16: "interval.ms", 32: "consumer.session.timeout.ms"}.get(kind, "kafka")
    value = "INFO" if kind == 8 else "50000" if kind == 32 else "2000" if kind == 16 else "1"
    operation = {"config_operation": 0} if incremental else {}
    return {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value, **operation}]}


def _produce_by_id(ids: Ids) -> dict[str, Any]:
    rows = [{"index": 0, "records": _BATCH}]
    return {"acks": -1, "timeout": 1000, "topic_data": [{**each, "partition_data": rows} for each in _by_ids(_THREE, {}, ids)]}


def _fetch_by_id(ids: Ids) -> dict[str, Any]:
    return {
        **fetch_body(),
        "topics": _by_ids(
            _THREE, {"partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}, ids
        ),
    }


def _fetch_all(**more: Any) -> dict[str, Any]:
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    return {**fetch_body(), "topics": [{"topic": name, "partitions": rows} for name in _THREE], **more}


def _acl(**more: Any) -> dict[str, Any]:
    return {**grant(Res.TOPIC, "x", Op.READ), "principal": "User:x", "host": "*", **more}


#: API, versions, request. Made so that it would come to the same on both if it were allowed.
REQUESTS: dict[str, tuple[int, range, Body]] = {
    "Produce": (0, range(3, 13), {
        "acks": -1, "timeout": 1000,
        "topic_data": [
            named(name, partition_data=[{"index": 0, "records": _BATCH}, {"index": 8, "records": _BATCH}]) for name in _THREE
        ],
    }),
    "Produce by id": (0, range(13, 14), _produce_by_id),
    "Produce without answer": (0, range(9, 10), produce_body(_BATCH, "shut", acks=0)),
    "Produce in a transaction": (0, range(3, 13), produce_body(_IN_TRANSACTION, "open", transactional_id="tx")),
    "Fetch": (1, range(4, 13), _fetch_all()),
    "Fetch by id": (1, range(13, 19), _fetch_by_id),
    "Fetch of a follower": (1, range(12, 13), _fetch_all(replica_id=2)),
    "ListOffsets": (2, range(1, 12), {"replica_id": -1, "topics": _ROWS}),
    "Metadata of all": (3, range(1, 14), {"topics": None}),
    "Metadata of all at first": (3, range(0, 1), {"topics": []}),
    "Metadata": (3, range(0, 14), {
        "topics": [named(name) for name in (*_THREE, "bad/name")], "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True, "include_cluster_authorized_operations": True,
    }),
    "Metadata that creates": (3, range(4, 14), {"topics": [named("made")], "allow_auto_topic_creation": True}),
    "Metadata by id": (3, range(12, 14), lambda ids: {
        "topics": _by_ids(_THREE, {"name": None}, ids), "include_topic_authorized_operations": True,
    }),
    "OffsetCommit": (8, range(2, 10), {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": _offsets(*_THREE),
    }),
    "OffsetCommit by id": (8, range(10, 11), lambda ids: {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": _by_ids(_THREE, {"partitions": _offsets("x")[0]["partitions"]}, ids),
    }),
    "OffsetFetch": (9, range(1, 8), {
        "group_id": "g", "topics": [named(name, partition_indexes=[0, 7]) for name in _THREE],
    }),
    "OffsetFetch of all": (9, range(2, 8), {"group_id": "g", "topics": None}),
    "OffsetFetch of groups": (9, range(8, 10), {"groups": [
        {"group_id": "g", "topics": [named(name, partition_indexes=[0, 7]) for name in _THREE]},
        {"group_id": "h", "topics": None},
    ]}),
    "OffsetFetch by id": (9, range(10, 11), lambda ids: {"groups": [
        {"group_id": "g", "topics": _by_ids(_THREE, {"partition_indexes": [0, 7]}, ids)}, {"group_id": "h", "topics": None},
    ]}),
    "FindCoordinator of a group": (10, range(0, 7), {"key_type": 0, "key": "g", "coordinator_keys": ["g", "h", ""]}),
    "FindCoordinator of a transaction": (10, range(1, 7), {"key_type": 1, "key": "tx", "coordinator_keys": ["tx", "ty"]}),
    "FindCoordinator of nothing": (10, range(1, 7), {"key_type": 5, "key": "tx", "coordinator_keys": ["tx"]}),
    "JoinGroup": (11, range(0, 10), join_body("j")),
    "JoinGroup as a member": (11, range(0, 10), join_body("j", "somebody")),
    "JoinGroup without id": (11, range(5, 6), join_body("")),
    "Heartbeat": (12, range(0, 5), {"group_id": "g", "generation_id": 1, "member_id": "m"}),
    "LeaveGroup": (13, range(0, 6), {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]}),
    "SyncGroup": (14, range(0, 6), sync_body("g", "m", 1)),
    "SyncGroup without protocol": (14, range(5, 6), {**sync_body("g", "m", 1), "protocol_name": None}),
    "DescribeGroups": (15, range(0, 7), {"groups": ["g", "h"], "include_authorized_operations": True}),
    "ListGroups": (16, range(0, 6), {}),
    "CreateTopics": (19, range(2, 8), {"timeout": 10_000, "topics": [
        named("made", num_partitions=1, replication_factor=1), named("open", num_partitions=1, replication_factor=1),
        named("__cluster_metadata", num_partitions=1, replication_factor=1),
        named("bad/name", num_partitions=1, replication_factor=1),
    ]}),
    "DeleteTopics": (20, range(1, 6), {"timeout": 10_000, "topic_names": ["nowhere", "shut", "bad/name"]}),
    "DeleteTopics by id": (20, range(6, 7), lambda ids: {"timeout": 10_000, "topics": [
        *_by_ids(("shut", "nowhere"), {"name": None}, ids), named("shut", topic_id=None), named("nowhere", topic_id=None),
        named("twice", topic_id=None), named("twice", topic_id=None),
    ]}),
    "DeleteRecords": (21, range(0, 3), {"timeout": 1000, "topics": [
        named(name, partitions=[{"partition_index": 0, "offset": 0}, {"partition_index": 5, "offset": 0}]) for name in _THREE
    ]}),
    "InitProducerId": (22, range(0, 6), {"transactional_id": None, "transaction_timeout": 60_000}),
    "InitProducerId of a transaction": (22, range(0, 6), {"transactional_id": "tx", "transaction_timeout": 60_000}),
    "InitProducerId with half a producer": (22, range(3, 6), {
        "transactional_id": "tx", "transaction_timeout": 60_000, "producer_id": 5,
    }),
    "OffsetForLeaderEpoch": (23, range(2, 5), {"replica_id": -1, "topics": [
        {"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]} for name in _THREE
    ]}),
    "AddPartitionsToTxn": (24, range(0, 4), {
        "v3_and_below_transactional_id": "tx", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": _TXN_TOPICS,
    }),
    "AddPartitionsToTxn of a broker": (24, range(4, 6), {"transactions": [
        {"transactional_id": "tx", "producer_id": 7, "producer_epoch": 0, "verify_only": True, "topics": _TXN_TOPICS},
    ]}),
    "AddOffsetsToTxn": (25, range(0, 5), {
        "transactional_id": "tx", "producer_id": 7, "producer_epoch": 0, "group_id": "g",
    }),
    "EndTxn": (26, range(0, 6), {"transactional_id": "tx", "producer_id": 7, "producer_epoch": 0, "committed": True}),
    "WriteTxnMarkers": (27, range(1, 3), {"markers": [
        {"producer_id": 7, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
         "topics": [named("nowhere", partition_indexes=[0])]},
    ]}),
    "TxnOffsetCommit": (28, range(0, 6), {
        "transactional_id": "tx", "group_id": "g", "producer_id": 7, "producer_epoch": 0, "topics": _offsets(*_THREE),
    }),
    "TxnOffsetCommit by id": (28, range(6, 7), lambda ids: {
        "transactional_id": "tx", "group_id": "g", "producer_id": 7, "producer_epoch": 0,
        "topics": _by_ids(_THREE, {"partitions": _offsets("x")[0]["partitions"]}, ids),
    }),
    "DescribeAcls": (29, range(1, 4), {**ANY, "principal_filter": "User:x"}),
    "CreateAcls": (30, range(1, 4), {"creations": [_acl(), _acl(resource_name="")]}),
    "DeleteAcls": (31, range(1, 4), {"filters": [{**ANY, "principal_filter": "User:x"}, {**ANY, "host_filter": "9.9.9.9"}]}),
    "DescribeConfigs": (32, range(1, 5), {"resources": [
        {"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms", "log.cleaner.threads"]}
        for kind, name in _CONFIG_KINDS
    ]}),
    "AlterConfigs": (33, range(0, 3), {
        "validate_only": True, "resources": [_alter(*each, incremental=False) for each in _CONFIG_KINDS],
    }),
    "AlterReplicaLogDirs": (34, range(1, 3), {"dirs": [{"path": "/none", "topics": [named("open", partitions=[0])]}]}),
    "DescribeLogDirs": (35, range(1, 6), {"topics": [{"topic": "nowhere", "partitions": [0]}]}),
    "CreatePartitions": (37, range(0, 4), {"timeout": 1000, "topics": [
        named(name, count=1, assignments=None) for name in (*_THREE, "bad/name")
    ]}),
    "DeleteGroups": (42, range(0, 4), {"groups_names": ["h", "k"]}),
    "ElectLeaders": (43, range(0, 3), {"election_type": 0, "topic_partitions": [{"topic": "open", "partitions": [0]}]}),
    "ElectLeaders of all": (43, range(0, 3), {"election_type": 0, "topic_partitions": None}),
    "IncrementalAlterConfigs": (44, range(0, 2), {
        "validate_only": True, "resources": [_alter(*each) for each in _CONFIG_KINDS if each[0] != 8],
    }),
    "IncrementalAlterConfigs that are wrong": (44, range(0, 2), {"validate_only": True, "resources": [
        {**_alter(2, "open"), "configs": [{"name": "retention.ms", "value": None, "config_operation": 0}]},
        {**_alter(4, "1"), "configs": [{"name": "node.id", "value": "3", "config_operation": 0}]},
        {**_alter(4, ""), "configs": [{"name": "log.cleaner.threads", "value": None, "config_operation": 0}]},
        _alter(4, "77"), _alter(8, "1"), _alter(8, "77"),
        {**_alter(32, "g"), "configs": [{"name": "no.such", "value": "3", "config_operation": 0}]},
        _alter(2, "shut"), _alter(2, "shut"), _alter(99, "x"),
    ]}),
    "AlterPartitionReassignments": (45, range(0, 2), {"timeout": 1000, "topics": [
        named("open", partitions=[{"partition_index": 0, "replicas": [1]}]),
    ]}),
    "ListPartitionReassignments": (46, range(0, 1), {"timeout": 1000, "topics": None}),
    "OffsetDelete": (47, range(0, 1), {"group_id": "g", "topics": [
        named(name, partitions=[{"partition_index": 6}]) for name in _THREE
    ]}),
    "DescribeClientQuotas": (48, range(0, 2), {"components": [], "strict": False}),
    "AlterClientQuotas": (49, range(0, 2), {"validate_only": True, "entries": [
        {"entity": [{"entity_type": "user", "entity_name": "u"}],
         "ops": [{"key": "producer_byte_rate", "value": 5.0, "remove": False}]},
    ]}),
    "DescribeUserScramCredentials": (50, range(0, 1), {"users": [named("u"), named("u"), named("")]}),
    "AlterUserScramCredentials": (51, range(0, 1), {
        "deletions": [named("nobody", mechanism=1)],
        "upsertions": [named("u", mechanism=1, iterations=1, salt=b"s", salted_password=b"p")],
    }),
    "DescribeQuorum": (55, range(0, 3), {"topics": [
        {"topic_name": "open", "partitions": [{"partition_index": 0}]},
    ]}),
    "UpdateFeatures": (57, range(0, 3), {"timeout": 1000, "validate_only": True, "feature_updates": [
        {"feature": "no.such", "max_version_level": 1, "upgrade_type": 1},
    ]}),
    "DescribeCluster": (60, range(0, 3), {"include_cluster_authorized_operations": True}),
    "DescribeProducers": (61, range(0, 1), {"topics": [named(name, partition_indexes=[5]) for name in (*_THREE, "bad/name")]}),
    "DescribeTransactions": (65, range(0, 1), {"transactional_ids": ["tx", "ty"]}),
    "ListTransactions": (66, range(0, 3), {}),
    "ConsumerGroupHeartbeat": (68, range(0, 2), {
        "group_id": "c", "member_id": "m" * 22, "member_epoch": 3, "subscribed_topic_names": ["open", "shut"],
    }),
    "ConsumerGroupDescribe": (69, range(0, 2), {"group_ids": ["g", "h"], "include_authorized_operations": True}),
    "ListConfigResources": (74, range(0, 2), {}),
    "DescribeTopicPartitions": (75, range(0, 1), {"topics": [named(name) for name in (*_THREE, "bad/name")]}),
    "DescribeTopicPartitions of all": (75, range(0, 1), {"topics": []}),
}  # fmt: skip
VERSIONS = [
    pytest.param(label, version, id=f"{label} v{version}")
    for label, (_, versions, _) in REQUESTS.items()
    for version in versions
]


@pytest.mark.parametrize(("label", "version"), VERSIONS)
def test_what_a_guest_without_permission_is_told(pair: Pair, label: str, version: int) -> None:
    api, _, body = REQUESTS[label]
    if api not in load_handlers().apis:
        pytest.skip("not there yet")
    pair.same(api, version, body)
