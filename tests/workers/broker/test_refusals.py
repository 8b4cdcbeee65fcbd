"""Every request of a client that may do nothing: the codes that Kafka 4.4.0 answers (test_acl_differential compares all).

The guest comes from another address than the client that may do everything, as there.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.config.authorization import STANDARD_AUTHORIZER
from compactd.workers.acl_messages import Operation, Resource
from compactd.workers.broker.requests import load_handlers
from tests.workers.broker.acl_requests import ANY, REQUESTS, grant
from tests.workers.broker.batches import batch, fetch, fetch_body, produce, records_of
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

#: Until there are ACLs.
FIRST = {"allow.everyone.if.no.acl.found": "true", "auto.create.topics.enable": "true"}
#: Of the newest version of each request; `closed`: the connection is closed instead.
CODES: dict[str, str] = {
    "Produce": "29",
    "Produce by id": "29 100",
    "Produce in a transaction": "53",
    "Fetch": "0 29",
    "Fetch by id": "0 29 100",
    "Fetch of a follower": "0 29",
    "ListOffsets": "29",
    "Metadata of all": "0",
    "Metadata of all at first": "",
    "Metadata": "0 29",
    "Metadata that creates": "0 29",
    "Metadata by id": "0 29 100",
    "OffsetCommit": "30",
    "OffsetCommit by id": "30",
    "OffsetFetch": "30",
    "OffsetFetch of all": "30",
    "OffsetFetch of groups": "30",
    "OffsetFetch by id": "30",
    "FindCoordinator of a group": "30",
    "FindCoordinator of a transaction": "53",
    "FindCoordinator of a share group": "31",
    "FindCoordinator of nothing": "42",
    "JoinGroup": "30",
    "JoinGroup as a member": "30",
    "JoinGroup without id": "30",
    "Heartbeat": "30",
    "LeaveGroup": "30",
    "SyncGroup": "30",
    "SyncGroup without protocol": "23",
    "DescribeGroups": "30",
    "ListGroups": "0",
    "CreateTopics": "0 29 42",
    "CreateTopics to see": "0 29",
    "DeleteTopics": "29",
    "DeleteTopics by id": "29 42 100",
    "DeleteRecords": "29",
    "InitProducerId": "31",
    "InitProducerId of a transaction": "53",
    "InitProducerId with half a producer": "53",
    "OffsetForLeaderEpoch": "29",
    "AddPartitionsToTxn": "53",
    "AddPartitionsToTxn of a broker": "31",
    "AddOffsetsToTxn": "53",
    "EndTxn": "53",
    "WriteTxnMarkers": "31",
    "TxnOffsetCommit": "53",
    "TxnOffsetCommit by id": "53",
    "DescribeAcls": "31",
    "CreateAcls": "31",
    "DeleteAcls": "31",
    "DescribeConfigs": "29 30 31",
    "AlterConfigs": "29 30 31 42",
    "AlterReplicaLogDirs": "31",
    "DescribeLogDirs": "31",
    "CreatePartitions": "29",
    "DeleteGroups": "30",
    "ElectLeaders": "31",
    "ElectLeaders of all": "31",
    "IncrementalAlterConfigs": "29 30 31",
    "IncrementalAlterConfigs that are wrong": "30 31 42",
    "AlterPartitionReassignments": "31",
    "ListPartitionReassignments": "31",
    "OffsetDelete": "30",
    "DescribeClientQuotas": "31",
    "AlterClientQuotas": "31",
    "DescribeUserScramCredentials": "31",
    "AlterUserScramCredentials": "31",
    "DescribeQuorum": "31",
    "UpdateFeatures": "31",
    "DescribeCluster": "0",
    "DescribeProducers": "17 29",
    "DescribeTransactions": "53",
    "ListTransactions": "0",
    "ConsumerGroupHeartbeat": "30",
    "ConsumerGroupDescribe": "30",
    "ListConfigResources": "31",
    "DescribeTopicPartitions": "29",
    "DescribeTopicPartitions of all": "",
    "StreamsGroupHeartbeat": "30",
    "StreamsGroupHeartbeat that creates": "30",
    "StreamsGroupHeartbeat with a topic of Kafka's own": "30",
    "StreamsGroupDescribe": "30",
    "StreamsGroupTopologyDescriptionUpdate": "30",
}


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RawClient, dict[str, uuid.UUID]]]:
    """With the ids of two topics."""
    log_dir = tmp_path_factory.mktemp("refusals")
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, **FIRST}
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as admin:
        ids = _furnish(admin)
        with RawClient(broker.port, "127.0.0.2") as client:
            client.ask(2, 5, _ends(ids))
            yield client, ids


def codes(value: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield int(found)
            else:
                yield from codes(found)
    elif isinstance(value, tuple):
        for each in value:
            yield from codes(each)


@pytest.mark.parametrize("label", [label for label in REQUESTS if label != "Produce without answer"])
def test_a_guest_without_permission(guest: tuple[RawClient, dict[str, uuid.UUID]], label: str) -> None:
    client, ids = guest
    api, versions, body = REQUESTS[label]
    answer = client.ask(api, versions[-1], body(ids) if callable(body) else body)
    assert " ".join(map(str, sorted(set(codes(answer))))) == CODES[label]


def test_every_api_that_asks_for_permission_is_asked() -> None:
    free = {17, 18, 36}
    assert {api for api, _, _ in REQUESTS.values()} | free == set(load_handlers().apis)


def test_produce_without_an_answer_is_closed(log_dir: Path) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER}
    _, _, body = REQUESTS["Produce without answer"]
    assert not callable(body)
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as client:
        client.send(0, 9, body)
        assert client.is_closed()


def test_a_topic_that_may_not_be_read_does_not_end_the_wait_for_others(broker_with_acls: CatalogueBroker) -> None:
    def produce_one(topic: str) -> None:
        assert produce(admin, batch([b"v"]), topic).error_code == 0

    with broker_with_acls.connect() as admin, RawClient(broker_with_acls.port, "127.0.0.2") as client:
        _grant(admin, {**grant(Resource.TOPIC, "open", Operation.READ), "host": "127.0.0.2"})
        rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        body = {
            **fetch_body(max_wait=30_000),
            "topics": [{"topic": name, "partitions": rows} for name in ("shut", "open")],
        }
        client.send(1, 12, body)
        broker_with_acls.wait_for_watchers("open")
        produce_one("shut")
        produce_one("open")
        opened, shut = (topic.partitions[0] for topic in client.receive(1, 12).responses)
        assert (shut.error_code, shut.records) == (29, b"")
        assert (opened.error_code, [record.value for record in records_of(opened.records)]) == (0, [b"v"])
        # Of nothing but what may not be read it is told at once; the other way round it waits again.
        assert fetch(client, topic="shut", max_wait=30_000).error_code == 29
        client.send(1, 12, {**body, "topics": [{"topic": "open", "partitions": [{**rows[0], "fetch_offset": 1}]}]})
        broker_with_acls.wait_for_watchers("open")
        _revoke(admin, "127.0.0.2")
        produce_one("open")
        assert client.receive(1, 12).responses[0].partitions[0].error_code == 29


def test_permission_that_is_taken_back_counts_at_once(broker_with_acls: CatalogueBroker) -> None:
    with broker_with_acls.connect() as admin, RawClient(broker_with_acls.port, "127.0.0.2") as client:
        for _ in range(3):
            assert produce(client, batch([b"v"]), "open").error_code == 29
            _grant(admin, {**grant(Resource.TOPIC, "open", Operation.WRITE), "host": "127.0.0.2"})
            assert produce(client, batch([b"v"]), "open").error_code == 0
            _revoke(admin, "127.0.0.2")


@pytest.fixture
def broker_with_acls(log_dir: Path) -> Iterator[CatalogueBroker]:
    """With topics open and shut, where 127.0.0.1 may do everything."""
    with CatalogueBroker([log_dir], {"authorizer.class.name": STANDARD_AUTHORIZER, **FIRST}) as broker:
        with broker.connect() as admin:
            _furnish(admin)
        yield broker


def _grant(admin: RawClient, *acls: dict[str, Any]) -> None:
    rows = [{"principal": "User:ANONYMOUS", "host": "127.0.0.1", **each} for each in acls]
    assert [result.error_code for result in admin.ask(30, 3, {"creations": rows}).results] == [0] * len(acls)


def _revoke(admin: RawClient, host: str) -> None:
    assert len(admin.ask(31, 3, {"filters": [{**ANY, "host_filter": host}]}).filter_results[0].matching_acls) == 1


def _furnish(admin: RawClient) -> dict[str, uuid.UUID]:
    """ACLs for whoever is at 127.0.0.1, and topics; their ids."""
    kinds = ((Resource.CLUSTER, "kafka-cluster"), *((each, "*") for each in (2, 3, 5)))
    _grant(admin, *(grant(kind, name, Operation.ALL) for kind, name in kinds))  # type: ignore[arg-type]
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("open", "shut")]
    ids = {topic.name: topic.topic_id for topic in admin.ask(19, 7, {"topics": rows, "timeout": 1000}).topics}
    while any(each.partitions[0].error_code for each in admin.ask(2, 5, _ends(ids)).topics):
        time.sleep(0.01)
    return ids


def _ends(names: Iterable[str]) -> dict[str, Any]:
    rows = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in names]
    return {"replica_id": -1, "topics": rows}
