"""Metadata, DescribeTopicPartitions and DescribeCluster (facts: kafka-protocol 4 and 5)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.names import parse_uuid
from tests.workers.broker.harness import CLUSTER_ID, NODE_ID, InProcessBroker

METADATA, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 3, 60, 75


@pytest.mark.parametrize("version", range(14))
def test_every_version_tells_nodes_and_topics(broker: InProcessBroker, version: int) -> None:
    made = broker.create("t", 2, leader_epoch=4)
    broker.create("__consumer_offsets", cleanup_policy="compact")
    with broker.connect() as client:
        answer = client.ask(METADATA, version, {"topics": None if version else []})
        assert [(node.node_id, node.host, node.port) for node in answer.brokers] == [
            (NODE_ID, "127.0.0.1", broker.port)
        ]
        assert [topic.name for topic in answer.topics] == ["__consumer_offsets", "t"]
        topic = answer.topics[1]
        assert topic.error_code == 0
        assert [each.partition_index for each in topic.partitions] == [0, 1]
        assert all(
            each.leader_id == NODE_ID and each.replica_nodes == each.isr_nodes == (NODE_ID,)
            for each in topic.partitions
        )
        if version >= 1:
            assert answer.controller_id == NODE_ID
            assert [each.is_internal for each in answer.topics] == [True, False]
            assert client.ask(METADATA, version, {"topics": []}).topics == ()
        if version >= 2:
            assert answer.cluster_id == CLUSTER_ID
        if version >= 7:
            assert topic.partitions[0].leader_epoch == 4
        if version >= 10:
            assert topic.topic_id == parse_uuid(made.topic_id)


def test_topics_by_name_and_by_id(broker: InProcessBroker) -> None:
    made = broker.create("t")
    broker.create("u")
    topic_id, unknown = parse_uuid(made.topic_id), uuid.uuid4()
    with broker.connect() as client:
        named = [{"name": "u"}, {"name": "none"}, {"name": "a b"}]
        by_name = client.ask(METADATA, 12, {"topics": named, "allow_auto_topic_creation": False})
        assert [(each.name, int(each.error_code)) for each in by_name.topics] == [("u", 0), ("none", 3), ("a b", 17)]
        # Where one is asked for by id, those by name are not looked at.
        mixed = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": unknown}, {"name": "u"}]
        by_id = client.ask(METADATA, 12, {"topics": mixed})
        assert [(each.name, each.topic_id, int(each.error_code)) for each in by_id.topics] == [
            ("t", topic_id, 0),
            (None, unknown, 100),
        ]
        refused = client.ask(METADATA, 10, {"topics": [{"name": "t", "topic_id": topic_id}]})
        assert [int(each.error_code) for each in refused.topics] == [42]
        assert (refused.brokers, refused.cluster_id, refused.controller_id) == ((), None, -1)


def test_a_topic_that_is_missing_is_made(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        answer = client.ask(METADATA, 4, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True})
        assert [(each.name, int(each.error_code)) for each in answer.topics] == [("new", 0)]
        internal = client.ask(
            METADATA, 4, {"topics": [{"name": "__consumer_offsets"}], "allow_auto_topic_creation": True}
        )
        assert internal.topics[0].error_code == 3


def test_topics_are_not_made_where_that_is_off(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"auto.create.topics.enable": "false"}) as broker, broker.connect() as client:
        answer = client.ask(METADATA, 1, {"topics": [{"name": "new"}]})
        assert answer.topics[0].error_code == 3


def test_operations_are_told_when_asked(broker: InProcessBroker) -> None:
    broker.create("t")
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    with broker.connect() as client:
        answer = client.ask(METADATA, 9, {"topics": None, **asked})
        assert answer.topics[0].topic_authorized_operations == 3576
        assert answer.cluster_authorized_operations == 8096
        answer = client.ask(METADATA, 9, {"topics": None})
        assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (
            -(2**31),
            -(2**31),
        )


def test_several_workers_are_several_nodes(log_dir: Path) -> None:
    with InProcessBroker([log_dir], nodes=2) as broker, broker.connect() as client:
        broker.create("t", 2, others={1: 1})
        answer = client.ask(METADATA, 12, {"topics": None})
        assert [node.node_id for node in answer.brokers] == [NODE_ID, NODE_ID + 1_000_000]
        assert [each.leader_id for each in answer.topics[0].partitions] == [NODE_ID, NODE_ID + 1_000_000]
        broker.create("lost", 1, others={0: 7})
        lost = client.ask(METADATA, 12, {"topics": [{"name": "lost"}]}).topics[0].partitions[0]
        assert (lost.error_code, lost.leader_id) == (5, -1)


def test_deleted_topics_are_gone(broker: InProcessBroker) -> None:
    broker.create("t")
    broker.drop("t")
    with broker.connect() as client:
        broker.in_loop(lambda _: None)
        assert client.ask(METADATA, 12, {"topics": None}).topics == ()


# ---- DescribeTopicPartitions


def _pages(client: Any, **more: Any) -> list[list[tuple[str, list[int]]]]:
    pages, cursor = [], None
    while True:
        answer = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "cursor": cursor, **more})
        pages.append([(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics])
        if answer.next_cursor is None:
            return pages
        cursor = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}


def test_topics_come_page_by_page(broker: InProcessBroker) -> None:
    broker.create("b", 3)
    broker.create("a", 2)
    with broker.connect() as client:
        assert _pages(client) == [[("a", [0, 1]), ("b", [0, 1, 2])]]
        assert _pages(client, response_partition_limit=2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
        assert _pages(client, response_partition_limit=0) == [
            [("a", [0])],
            [("a", [1])],
            [("b", [0])],
            [("b", [1])],
            [("b", [2])],
        ]
        named = [{"name": "b"}, {"name": "no"}, {"name": "a b"}]
        listed = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": named, "response_partition_limit": 2000})
        assert [(each.name, int(each.error_code)) for each in listed.topics] == [("a b", 17), ("b", 0), ("no", 3)]
        assert listed.topics[1].topic_authorized_operations == 3576
        bad = client.ask(
            DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": "b"}], "cursor": {"topic_name": "a", "partition_index": 0}},
        )
        assert [int(each.error_code) for each in bad.topics] == [42]


# ---- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(broker: InProcessBroker, version: int) -> None:
    with broker.connect() as client:
        answer = client.ask(DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": True})
        assert (answer.cluster_id, answer.controller_id, answer.cluster_authorized_operations) == (
            CLUSTER_ID,
            NODE_ID,
            8096,
        )
        assert [(each.broker_id, each.port) for each in answer.brokers] == [(NODE_ID, broker.port)]
        if version >= 1:
            assert client.ask(DESCRIBE_CLUSTER, version, {"endpoint_type": 2}).error_code == 114
            assert client.ask(DESCRIBE_CLUSTER, version, {"endpoint_type": 7}).error_code == 115
