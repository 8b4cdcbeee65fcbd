"""KRaft records against bytes that Kafka 4.4.0 wrote (facts A17)."""

from __future__ import annotations

from typing import Any

import pytest

from compactd.storage.metadata import decode_record
from compactd.storage.metadata.kraft_schemas import METADATA_RECORDS
from compactd.storage.metadata.records import decode_metadata_record
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.varint import MalformedError
from tests.storage.metadata.golden import golden
from tests.storage.metadata.logs import broker_config

ALPHA = "6Uj_rraSRxmXbTfDP7kXfA"


def decode(name: str, index: int = 0) -> dict[str, Any]:
    return decode_metadata_record(None, golden(name, index), secrets=True)


def decode_batches(name: str) -> list[dict[str, Any]]:
    decoded = []
    for batch in iter_batches(golden(name)):
        batch.check()
        for record in batch.records():
            result = decode_record("__cluster_metadata", record.key, record.value, control=batch.header.is_control)
            assert result is not None
            decoded.append(result)
    return decoded


def test_the_bootstrap_transaction() -> None:
    records = decode_batches("bootstrap transaction")
    assert [record["type"] for record in records] == [
        "BEGIN_TRANSACTION_RECORD",
        *["FEATURE_LEVEL_RECORD"] * 6,
        "CONFIG_RECORD",
        "END_TRANSACTION_RECORD",
    ]
    assert records[0]["data"] == {"name": "Bootstrap records"}
    assert records[1]["data"] == {"name": "metadata.version", "featureLevel": 33}
    assert records[7]["data"] == {"resourceType": 4, "resourceName": "", "name": "min.insync.replicas", "value": "1"}


def test_a_broker_registration() -> None:
    (record,) = decode_batches("registerbroker")
    data = record["data"]
    assert (record["version"], data["brokerId"], data["brokerEpoch"], data["fenced"]) == (4, 1, 12, True)
    assert data["endPoints"] == [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 29092, "securityProtocol": 0}]
    assert {"name": "metadata.version", "minSupportedVersion": 7, "maxSupportedVersion": 33} in data["features"]
    assert data["rack"] is None
    assert len(data["logDirs"]) == 2
    assert data["cordonedLogDirs"] is None


def test_a_created_topic() -> None:
    records = decode_batches("createtopics")
    assert records[0]["data"] == {"name": "alpha", "topicId": ALPHA}
    assert [record["data"]["value"] for record in records[1:3]] == ["compact", "1048576"]
    assert [record["data"]["partitionId"] for record in records[3:]] == [0, 1, 2]
    assert records[3]["data"] == {
        "partitionId": 0,
        "topicId": ALPHA,
        "replicas": [1],
        "isr": [1],
        "removingReplicas": [],
        "addingReplicas": [],
        "leader": 1,
        "leaderRecoveryState": 0,
        "leaderEpoch": 0,
        "partitionEpoch": 0,
        "directories": ["AAAAAAAAAAAAAAAAAAAAAQ"],
        "eligibleLeaderReplicas": None,
        "lastKnownElr": None,
    }


def test_assigned_directories() -> None:
    records = decode_batches("partitionchange batch")
    assert len(records) == 3
    first = records[0]["data"]
    assert first["directories"] == ["ZB_77nN03m9JOjsCJCv4-A"]
    assert (first["leader"], first["isr"]) == (-2, None)


def test_a_bootstrap_checkpoint_and_a_leader_change() -> None:
    records = decode_batches("0 0 checkpoint")
    assert [record["type"] for record in records] == [
        "SNAPSHOT_HEADER",
        *["FEATURE_LEVEL_RECORD"] * 6,
        "SNAPSHOT_FOOTER",
    ]
    (change,) = decode_batches("leaderchange batch")
    assert change["data"] == {"leaderId": 1, "voters": [{"voterId": 1}], "grantingVoters": [{"voterId": 1}]}
    assert change["control"] is True
    assert [record["type"] for record in decode_batches("noop batch")] == ["NO_OP_RECORD"]


@pytest.mark.parametrize(
    ("name", "index", "data"),
    [
        ("begin name", 0, {"name": "Bootstrap records"}),
        ("begin name", 1, {}),
        ("featurelevel", 0, {"name": "metadata.version", "featureLevel": 33}),
        ("topic gamma", 0, {"name": "gamma", "topicId": "R0h2GY22SfSFe562CeoJag"}),
        ("config topic", 0, {"resourceType": 2, "resourceName": "alpha", "name": "segment.bytes", "value": None}),
        ("config topic", 1, {"resourceType": 2, "resourceName": "alpha", "name": "retention.ms", "value": "12345"}),
        ("config broker", 0, {"resourceType": 4, "resourceName": "1", "name": "log.cleaner.threads", "value": "2"}),
        ("config broker", 1, {"resourceType": 4, "resourceName": "", "name": "message.max.bytes", "value": "2000000"}),
        (
            "config group",
            0,
            {"resourceType": 32, "resourceName": "gg", "name": "consumer.session.timeout.ms", "value": "50000"},
        ),
        ("config group", 1, {"resourceType": 16, "resourceName": "cm1", "name": "interval.ms", "value": "1000"}),
        ("removetopic", 0, {"topicId": "eNtnTRb2QzqaBM5RMWrRJw"}),
        (
            "brokerregistrationchange",
            0,
            {"brokerId": 1, "brokerEpoch": 11, "fenced": 1},
        ),
        ("brokerregistrationchange", 1, {"brokerId": 1, "brokerEpoch": 12, "fenced": -1}),
        ("brokerregistrationchange", 2, {"brokerId": 1, "brokerEpoch": 11, "fenced": 0, "inControlledShutdown": 1}),
        (
            "brokerregistrationchange",
            3,
            {
                "brokerId": 1,
                "brokerEpoch": 12,
                "fenced": 0,
                "inControlledShutdown": 0,
                "logDirs": [],
                "cordonedLogDirs": [],
            },
        ),
        ("producerids", 0, {"brokerId": 1, "brokerEpoch": 13, "nextProducerId": 1000}),
        ("clearelr", 0, {"topicName": "__transaction_state"}),
        ("clearelr", 1, {"topicName": ""}),
        ("remove scram", 0, {"name": "alice", "mechanism": 1}),
        ("removedelegationtoken", 0, {"tokenId": "DmuEYL3GTmaZIRFNKzM73A"}),
        ("removedelegationtoken", 1, {"reason": "Controller failover"}),
        ("removedelegationtoken", 2, {"brokerId": 2, "brokerEpoch": 7}),
        ("removedelegationtoken", 3, {"controllerId": 2}),
        (
            "quota user",
            0,
            {
                "entity": [{"entityType": "user", "entityName": "bob"}],
                "key": "producer_byte_rate",
                "value": 1024.0,
                "remove": False,
            },
        ),
        (
            "quota client",
            0,
            {
                "entity": [
                    {"entityType": "client-id", "entityName": "default-x"},
                    {"entityType": "user", "entityName": None},
                ],
                "key": "request_percentage",
                "value": 50.0,
                "remove": False,
            },
        ),
    ],
)
def test_values(name: str, index: int, data: dict[str, Any]) -> None:
    assert decode(name, index)["data"] == data


def test_partition_changes() -> None:
    stop = decode("partitionchange stop", 0)["data"]
    assert (stop["isr"], stop["leader"], stop["eligibleLeaderReplicas"], stop["lastKnownElr"]) == ([], -1, [1], [1])
    start = decode("partitionchange stop", 1)["data"]
    assert (start["isr"], start["leader"], start["eligibleLeaderReplicas"]) == ([1], 1, [])
    assert decode("partitionchange stop", 2)["data"]["leaderRecoveryState"] == 1
    assert decode("partitionchange stop", 3)["data"]["lastKnownElr"] is None


def test_an_acl_and_a_delegation_token() -> None:
    acl = decode("acl topic")["data"]
    assert (acl["principal"], acl["host"], acl["resourceName"], acl["permissionType"]) == (
        "User:bob",
        "10.0.0.1",
        "al",
        3,
    )
    token = decode("delegationtoken")["data"]
    assert (token["owner"], token["renewers"]) == ("User:admin", ["User:bob"])


def test_secrets_are_hidden_unless_asked_for() -> None:
    value = golden("scram 256")
    hidden = decode_metadata_record(None, value)["data"]
    assert (hidden["salt"], hidden["storedKey"], hidden["serverKey"]) == ("(hidden)",) * 3
    assert hidden["iterations"] == 4096
    assert len(decode_metadata_record(None, value, secrets=True)["data"]["storedKey"]) == 44
    password = broker_config("1", "ssl.keystore.password", "geheim")
    assert decode_metadata_record(None, password)["data"]["value"] == "(hidden)"
    assert decode_metadata_record(None, password, secrets=True)["data"]["value"] == "geheim"


def test_control_values() -> None:
    def control(kind: int, index: int) -> dict[str, Any]:
        key = b"\0\0\0" + bytes((kind,))
        decoded = decode_record("__cluster_metadata", key, golden("control values", index), control=True)
        assert decoded is not None
        return decoded

    assert control(3, 0)["type"] == "SNAPSHOT_HEADER"
    assert control(4, 1)["data"] == {}
    assert control(5, 2)["data"] == {"kRaftVersion": 1}
    (voter,) = control(6, 3)["data"]["voters"]
    assert voter["endpoints"] == [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 29093}]
    assert voter["kRaftVersionFeature"] == {"minSupportedVersion": 0, "maxSupportedVersion": 1}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "no value"),
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x63\x00\x00", "unknown metadata record type 99"),
        (b"\x01\x06\x00\x00", "unknown metadata record type 6"),
        (golden("topic gamma") + b"x", "1 bytes are left at the end of TOPIC_RECORD"),
        (golden("topic gamma")[:-1], "the record ends inside a varint"),
        (b"\x01\x02\x01" + golden("topic gamma")[3:], "TOPIC_RECORD has version 1, known are 0 to 0"),
        (b"\x01\x02\x00\xff\xff\xff\xff\x0f", "name at byte 8 of the record needs 4294967294 bytes, 0 are left"),
        (b"\x01\x02\x00\x00", "name is null"),
        (b"\x01" + b"\x80" * 10, "longer than 32 bits"),
    ],
)
def test_values_that_do_not_follow_their_format_are_refused_by_name(value: bytes | None, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode_metadata_record(None, value)
    assert reason in str(caught.value)
    decoded = decode_record("__cluster_metadata", None, value)
    assert decoded is not None
    assert reason in decoded["error"]


def test_record_types_are_those_of_kafka() -> None:
    assert set(METADATA_RECORDS) == set(range(30)) - {6, 13, 16}
