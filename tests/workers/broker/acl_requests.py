"""Requests of every API that asks for permission, and what permission each needs: for the comparison with Kafka.

Each would come to the same on both brokers if it were allowed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactd.workers.acl_messages import Operation as Op
from compactd.workers.acl_messages import PatternType, Permission
from compactd.workers.acl_messages import Resource as Res
from tests.workers.broker.batches import batch, fetch_body, produce_body
from tests.workers.broker.test_groups import join_body, sync_body

Ids = Mapping[str, uuid.UUID]
Body = Callable[[Ids], Mapping[str, Any]] | Mapping[str, Any]

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


_NOW = int(time.time() * 1000)
BATCH = batch([b"v", b"w"], timestamp=_NOW)
_IN_TRANSACTION = batch([b"v"], timestamp=_NOW, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)


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
    key = {2: "retention.ms", 4: "log.cleaner.threads", 16: "interval.ms", 32: "consumer.session.timeout.ms"}.get(
        kind, "kafka"
    )
    value = "INFO" if kind == 8 else "50000" if kind == 32 else "2000" if kind == 16 else "1"
    operation = {"config_operation": 0} if incremental else {}
    return {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value, **operation}]}


def _produce_by_id(ids: Ids) -> dict[str, Any]:
    rows = [{"index": 0, "records": BATCH}]
    return {
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{**each, "partition_data": rows} for each in _by_ids(_THREE, {}, ids)],
    }


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


def _streams(group: str, epoch: int, sources: Sequence[str], *changelogs: str) -> dict[str, Any]:
    """A heartbeat of a streams group, whose topology has these topics."""
    subtopology = {
        "subtopology_id": "0",
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [
            named(name, partitions=0, replication_factor=0, topic_configs=[]) for name in changelogs
        ],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    nothing = dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets"))
    return {
        "group_id": group,
        "member_id": "m",
        "member_epoch": epoch,
        "endpoint_information_epoch": 0,
        "rebalance_timeout": 300_000,
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        "process_id": "p",
        **{role: [] for role in ("active_tasks", "standby_tasks", "warmup_tasks")},
        **nothing,
    }


def new_acl(**more: Any) -> dict[str, Any]:
    return {**grant(Res.TOPIC, "x", Op.READ), "principal": "User:x", "host": "*", **more}


#: API, versions, request. Made so that it would come to the same on both if it were allowed.
REQUESTS: dict[str, tuple[int, range, Body]] = {
    "Produce": (0, range(3, 13), {
        "acks": -1, "timeout": 1000,
        "topic_data": [
            named(name, partition_data=[{"index": 0, "records": BATCH}, {"index": 8, "records": BATCH}]) for name in _THREE
        ],
    }),
    "Produce by id": (0, range(13, 14), _produce_by_id),
    "Produce without answer": (0, range(9, 10), produce_body(BATCH, "shut", acks=0)),
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
    "FindCoordinator of a share group": (10, range(5, 7), {"key_type": 2, "coordinator_keys": ["s:AAAAAAAAAAAAAAAAAAAABA:0"]}),
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
    "CreateTopics to see": (19, range(2, 8), {"timeout": 10_000, "validate_only": True, "topics": [
        named(name, num_partitions=1, replication_factor=1) for name in ("seen", "open")
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
    "CreateAcls": (30, range(1, 4), {"creations": [new_acl(), new_acl(resource_name="")]}),
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
    "StreamsGroupHeartbeat": (88, range(0, 2), _streams("s", 3, ["open", "shut"])),
    "StreamsGroupHeartbeat that creates": (88, range(0, 2), _streams("sd", 0, ["open"], "made-store")),
    "StreamsGroupHeartbeat with a topic of Kafka's own": (88, range(0, 2), _streams("s", 0, ["__consumer_offsets"])),
    "StreamsGroupDescribe": (89, range(0, 2), {"group_ids": ["sd", "h"], "include_authorized_operations": True}),
    "StreamsGroupTopologyDescriptionUpdate": (93, range(0, 1), {
        "group_id": "s", "member_id": "m", "topology_epoch": 0,
        "topology_description": {"subtopologies": [], "global_stores": []},
    }),
}  # fmt: skip

#: What has to be allowed, one after the other: after each the answer is another.
GRANTS: list[tuple[str, int, list[dict[str, Any]]]] = [
    ("Produce", 9, [on_topic(Op.DESCRIBE), on_topic(Op.WRITE), on_topic(Op.ALL, "nowhere")]),
    ("Produce by id", 13, [on_topic(Op.WRITE)]),
    ("Produce in a transaction", 9, [on_topic(Op.WRITE)]),
    ("Produce in a transaction", 3, [on_id(Op.WRITE, "ty"), on_id(Op.WRITE)]),
    ("Fetch", 12, [on_topic(Op.WRITE), on_topic(Op.READ), on_topic(Op.READ, "nowhere")]),
    ("Fetch by id", 17, [on_topic(Op.READ)]),
    ("Fetch of a follower", 12, [on_topic(Op.READ)]),
    ("ListOffsets", 8, [on_topic(Op.READ), on_topic(Op.DESCRIBE, "nowhere")]),
    ("Metadata of all", 9, [on_topic(Op.DELETE), on_topic(Op.CREATE, "shut"), grant(Res.TOPIC, "sh", Op.ALTER, prefixed=True)]),
    ("Metadata", 8, [
        on_topic(Op.READ), on_topic(Op.DESCRIBE, "nowhere"), on_topic(Op.DESCRIBE, "bad/name"), on_cluster(Op.ALTER_CONFIGS),
        on_cluster(Op.DESCRIBE), on_topic(Op.ALL), grant(Res.TOPIC, "o", Op.DELETE, Permission.DENY, prefixed=True),
    ]),
    ("Metadata", 11, [on_cluster(Op.DESCRIBE)]),
    ("Metadata that creates", 9, [on_topic(Op.DESCRIBE, "made")]),
    ("Metadata by id", 12, [on_topic(Op.DESCRIBE, "shut")]),
    ("OffsetCommit", 9, [on_group(Op.READ), on_topic(Op.READ), on_topic(Op.READ, "nowhere")]),
    ("OffsetCommit by id", 10, [on_group(Op.READ), on_topic(Op.READ)]),
    ("OffsetFetch", 7, [on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE), on_topic(Op.READ, "nowhere")]),
    ("OffsetFetch of all", 7, [on_group(Op.DELETE), on_topic(Op.DESCRIBE)]),
    ("OffsetFetch of groups", 9, [on_group(Op.READ), on_topic(Op.DESCRIBE), on_group(Op.READ, "h")]),
    ("OffsetFetch by id", 10, [on_group(Op.READ), on_topic(Op.DESCRIBE)]),
    ("FindCoordinator of a group", 5, [on_group(Op.DESCRIBE)]),
    ("FindCoordinator of a group", 1, [on_group(Op.DESCRIBE)]),
    ("FindCoordinator of a transaction", 5, [on_id(Op.WRITE)]),
    ("JoinGroup as a member", 7, [on_group(Op.DESCRIBE, "j"), on_group(Op.READ, "j")]),
    ("Heartbeat", 4, [on_group(Op.DESCRIBE), on_group(Op.READ)]),
    ("LeaveGroup", 4, [on_group(Op.READ)]),
    ("SyncGroup", 5, [on_group(Op.READ)]),
    ("DescribeGroups", 6, [on_group(Op.DESCRIBE), on_group(Op.ALL), on_group(Op.DELETE, "h")]),
    ("DescribeGroups", 5, [on_group(Op.DESCRIBE), on_group(Op.DELETE, "h")]),
    ("ListGroups", 5, [on_group(Op.DESCRIBE, "h"), on_group(Op.DESCRIBE), on_cluster(Op.DESCRIBE)]),
    ("CreateTopics to see", 6, [
        on_topic(Op.CREATE, "seen"), on_topic(Op.DESCRIBE_CONFIGS, "seen"), on_cluster(Op.CREATE),
    ]),
    ("CreateTopics to see", 2, [on_cluster(Op.CREATE)]),
    ("DeleteTopics", 5, [on_topic(Op.DESCRIBE, "nowhere"), on_topic(Op.DESCRIBE, "shut"), on_topic(Op.DELETE, "bad/name")]),
    ("DeleteTopics by id", 6, [on_topic(Op.DESCRIBE, "shut"), on_topic(Op.DESCRIBE, "nowhere")]),
    ("DeleteRecords", 2, [on_topic(Op.DELETE), on_topic(Op.DELETE, "nowhere")]),
    ("InitProducerId", 4, [on_topic(Op.READ), on_group(Op.ALL), on_topic(Op.WRITE)]),
    ("InitProducerId", 4, [on_cluster(Op.WRITE), on_cluster(Op.IDEMPOTENT_WRITE)]),
    ("InitProducerId", 4, [
        grant(Res.TOPIC, "a", Op.WRITE, Permission.DENY, prefixed=True), on_topic(Op.WRITE, "ab"), on_topic(Op.ALL, "b"),
        grant(Res.TOPIC, "*", Op.ALL, Permission.DENY),
    ]),
    ("InitProducerId with half a producer", 4, [on_id(Op.WRITE)]),
    ("OffsetForLeaderEpoch", 4, [on_topic(Op.DESCRIBE), on_cluster(Op.CLUSTER_ACTION)]),
    ("AddPartitionsToTxn", 3, [on_id(Op.WRITE), on_topic(Op.WRITE), on_topic(Op.WRITE, "shut"), on_topic(Op.WRITE, "nowhere")]),
    ("AddPartitionsToTxn of a broker", 4, [on_id(Op.WRITE), on_cluster(Op.CLUSTER_ACTION)]),
    ("AddOffsetsToTxn", 4, [on_group(Op.READ), on_id(Op.WRITE)]),
    ("AddOffsetsToTxn", 1, [on_id(Op.WRITE)]),
    ("EndTxn", 3, [on_id(Op.DESCRIBE), on_id(Op.WRITE)]),
    ("WriteTxnMarkers", 1, [on_cluster(Op.CLUSTER_ACTION)]),
    ("WriteTxnMarkers", 1, [on_cluster(Op.DESCRIBE), on_cluster(Op.ALTER)]),
    ("TxnOffsetCommit", 3, [on_id(Op.WRITE), on_group(Op.READ), on_topic(Op.READ), on_topic(Op.READ, "nowhere")]),
    ("TxnOffsetCommit", 4, [on_group(Op.READ)]),
    ("TxnOffsetCommit by id", 6, [on_id(Op.WRITE), on_group(Op.READ)]),
    ("DescribeAcls", 3, [on_cluster(Op.DESCRIBE)]),
    ("CreateAcls", 3, [on_cluster(Op.CREATE), on_cluster(Op.ALTER)]),
    ("DescribeAcls", 1, [on_cluster(Op.ALTER)]),
    ("DeleteAcls", 3, [on_cluster(Op.ALTER)]),
    ("DescribeConfigs", 4, [
        on_topic(Op.DESCRIBE_CONFIGS), on_topic(Op.ALTER_CONFIGS, "nowhere"), on_group(Op.ALTER_CONFIGS),
        on_topic(Op.DESCRIBE_CONFIGS, "bad/name"), on_cluster(Op.DESCRIBE_CONFIGS),
    ]),
    ("AlterConfigs", 2, [on_topic(Op.ALTER_CONFIGS), on_topic(Op.ALTER_CONFIGS, "nowhere"), on_cluster(Op.ALTER_CONFIGS)]),
    ("IncrementalAlterConfigs", 1, [on_topic(Op.ALTER_CONFIGS), on_group(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS)]),
    ("CreatePartitions", 3, [on_topic(Op.ALTER), on_topic(Op.ALTER, "nowhere"), on_topic(Op.ALTER, "bad/name")]),
    ("DeleteGroups", 2, [on_group(Op.DELETE, "h")]),
    ("ElectLeaders", 2, [on_cluster(Op.ALTER)]),
    ("AlterPartitionReassignments", 1, [on_cluster(Op.ALTER)]),
    ("ListPartitionReassignments", 0, [on_cluster(Op.DESCRIBE)]),
    ("OffsetDelete", 0, [on_group(Op.READ), on_group(Op.DELETE), on_topic(Op.READ), on_topic(Op.READ, "nowhere")]),
    ("DescribeClientQuotas", 1, [on_cluster(Op.DESCRIBE_CONFIGS)]),
    ("AlterClientQuotas", 1, [on_cluster(Op.ALTER_CONFIGS)]),
    ("DescribeUserScramCredentials", 0, [on_cluster(Op.DESCRIBE)]),
    ("AlterUserScramCredentials", 0, [on_cluster(Op.ALTER)]),
    ("DescribeQuorum", 2, [on_cluster(Op.DESCRIBE)]),
    ("UpdateFeatures", 1, [on_cluster(Op.ALTER)]),
    ("DescribeCluster", 2, [on_cluster(Op.ALTER_CONFIGS), on_cluster(Op.DESCRIBE)]),
    ("DescribeProducers", 0, [on_topic(Op.READ), on_topic(Op.READ, "nowhere")]),
    ("DescribeTransactions", 0, [on_id(Op.WRITE)]),
    ("ListTransactions", 1, [on_id(Op.DESCRIBE)]),
    ("ConsumerGroupHeartbeat", 1, [on_group(Op.READ, "c"), on_topic(Op.DESCRIBE), on_topic(Op.READ, "shut")]),
    ("ConsumerGroupDescribe", 1, [on_group(Op.DESCRIBE)]),
    ("ListConfigResources", 0, [on_cluster(Op.DESCRIBE_CONFIGS)]),
    ("DescribeTopicPartitions", 0, [on_topic(Op.DESCRIBE), on_topic(Op.READ, "nowhere")]),
    ("DescribeTopicPartitions of all", 0, [on_topic(Op.READ, "shut")]),
    ("StreamsGroupHeartbeat", 1, [on_group(Op.READ, "s"), on_topic(Op.DESCRIBE), on_topic(Op.READ, "shut")]),
    ("StreamsGroupHeartbeat that creates", 1, [
        on_group(Op.READ, "sd"), on_topic(Op.DESCRIBE), on_topic(Op.DESCRIBE, "made-store"), on_topic(Op.CREATE, "shut"),
    ]),
    ("StreamsGroupDescribe", 1, [
        on_group(Op.DESCRIBE, "sd"), on_topic(Op.DESCRIBE), on_topic(Op.READ, "made-store"), on_group(Op.DELETE, "sd"),
    ]),
    ("StreamsGroupTopologyDescriptionUpdate", 0, [on_group(Op.READ, "s")]),
]  # fmt: skip


#: Some of what is allowed is not what was needed, or tells nothing more.
NO_DIFFERENCE = {
    ("Produce in a transaction", 9), ("Fetch of a follower", 12), ("Metadata", 11), ("Metadata that creates", 9),
    ("InitProducerId", 4), ("TxnOffsetCommit", 4), ("ListTransactions", 1),
}  # fmt: skip
#: ACLs that a client may write as it likes, and the request in which it asks.
WEIRD_ACLS: list[dict[str, Any]] = [
    {"resource_type": 0}, {"resource_type": 1}, {"resource_type": 4}, {"resource_type": 4, "resource_name": "kafka-cluster"},
    {"resource_type": 7, "operation": 13}, {"resource_type": 8}, {"resource_type": 99}, {"resource_name": ""},
    {"resource_pattern_type": 0}, {"resource_pattern_type": 1}, {"resource_pattern_type": 2}, {"resource_pattern_type": 5},
    {"operation": 0}, {"operation": 1}, {"operation": 15}, {"operation": 16}, {"permission_type": 0}, {"permission_type": 1},
    {"permission_type": 2}, {"permission_type": 4}, {"principal": "x"}, {"principal": ""}, {"principal": ":"},
    {"principal": "Group:x:y"}, {"host": ""}, {"host": "nowhere.example"}, {"host": "10.0.0.0/8"}, {"host": "10.0.0.0/40"},
    {"host": "2001:db8::/32"}, {"host": "::1/x"}, {"host": "/"}, {"resource_name": "x y"},
]  # fmt: skip
FILTERS: list[dict[str, Any]] = [
    {}, {"resource_type_filter": 2}, {"resource_type_filter": 99}, {"resource_type_filter": 0},
    {"pattern_type_filter": 2}, {"pattern_type_filter": 3}, {"pattern_type_filter": 4}, {"pattern_type_filter": 9},
    {"pattern_type_filter": 0}, {"resource_name_filter": "abc"}, {"resource_name_filter": ""},
    {"resource_name_filter": "abc", "pattern_type_filter": 2}, {"resource_name_filter": "ab", "pattern_type_filter": 4},
    {"resource_name_filter": "*"}, {"resource_name_filter": "*", "pattern_type_filter": 2},
    {"principal_filter": "User:x"}, {"principal_filter": ""}, {"principal_filter": "User:*"}, {"host_filter": "10.0.0.0/8"},
    {"host_filter": "10.1.1.1"}, {"operation": 2}, {"operation": 3}, {"operation": 77}, {"operation": 0},
    {"permission_type": 2}, {"permission_type": 0}, {"permission_type": 33},
]  # fmt: skip
