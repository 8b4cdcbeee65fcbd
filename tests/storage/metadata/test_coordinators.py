"""Records of the group, transaction and share coordinators against bytes that Kafka 4.4.0 wrote (facts B6)."""

from __future__ import annotations

from typing import Any

import pytest

from compactd.storage.metadata import decode_record
from compactd.storage.records.batch import iter_batches
from tests.storage.metadata.golden import golden

ALPHA = "6Uj_rraSRxmXbTfDP7kXfA"
ZERO_ID = "A" * 22
GROUP_KEY = b"\0\3\0\1g"
MEMBER_KEY = b"\0\1g\0\1m"


def offsets(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    decoded = decode_record("__consumer_offsets", key, value)
    assert decoded is not None
    assert "error" not in decoded, decoded
    return decoded


def batch_of(topic: str, name: str) -> list[dict[str, Any]]:
    (batch,) = iter_batches(golden(name))
    batch.check()
    decoded = [decode_record(topic, record.key, record.value) for record in batch.records()]
    return [record for record in decoded if record is not None]


def test_an_offset_commit() -> None:
    decoded = offsets(golden("offsetcommit key"), golden("value v4"))
    assert decoded == {
        "type": "OFFSET_COMMIT",
        "typeId": 1,
        "key": {"group": "classic-g", "topic": "alpha", "partition": 0},
        "version": 4,
        "value": {
            "offset": 8,
            "leaderEpoch": 0,
            "metadata": "",
            "commitTimestamp": 0x1A22A858572,
            "topicId": ALPHA,
        },
    }


def test_whole_batches_of_offsets() -> None:
    (simple,) = batch_of("__consumer_offsets", "whole batch simple")
    assert (simple["key"]["partition"], simple["value"]["offset"], simple["value"]["leaderEpoch"]) == (2, 3, -1)
    (transactional,) = batch_of("__consumer_offsets", "whole batch transactional")
    assert transactional["value"]["offset"] == 7


def test_tombstones_of_an_offset_and_a_group() -> None:
    first, second = batch_of("__consumer_offsets", "whole batch offset group tombstones")
    assert (first["type"], first["value"], first["version"]) == ("OFFSET_COMMIT", None, None)
    assert (second["type"], second["key"], second["value"]) == ("GROUP_METADATA", {"group": "simple-g"}, None)


@pytest.mark.parametrize(
    ("hex_value", "fields"),
    [
        (
            "0000" + "0000000000000005" + "00026d64" + "0000000000000007",
            {"offset": 5, "metadata": "md", "commitTimestamp": 7},
        ),
        (
            "0001" + "0000000000000005" + "0000" + "0000000000000007" + "0000000000000009",
            {"offset": 5, "metadata": "", "commitTimestamp": 7, "expireTimestamp": 9},
        ),
        (
            "0002" + "0000000000000005" + "0000" + "0000000000000007",
            {"offset": 5, "metadata": "", "commitTimestamp": 7},
        ),
        (
            "0003" + "0000000000000005" + "ffffffff" + "0000" + "0000000000000007",
            {"offset": 5, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 7},
        ),
        (
            "0004" + "0000000000000005" + "ffffffff" + "01" + "0000000000000007" + "00",
            {"offset": 5, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 7, "topicId": ZERO_ID},
        ),
    ],
)
def test_every_version_of_an_offset_commit(hex_value: str, fields: dict[str, Any]) -> None:
    assert offsets(golden("offsetcommit key"), bytes.fromhex(hex_value))["value"] == fields


def test_classic_groups() -> None:
    key = golden("groupmetadata key", 0)
    empty = offsets(key, golden("groupmetadata key", 1))
    assert empty["version"] == 3
    assert empty["value"] == {
        "protocolType": "",
        "generation": 0,
        "protocol": None,
        "leader": None,
        "currentStateTimestamp": 0x1A22A858442,
        "members": [],
    }
    group = offsets(key, golden("groupmetadata v3 one member"))["value"]
    assert (group["protocolType"], group["generation"], group["protocol"]) == ("consumer", 1, "range")
    (member,) = group["members"]
    assert (member["clientId"], member["clientHost"], member["groupInstanceId"]) == ("cons1", "/127.0.0.1", None)
    assert (member["rebalanceTimeout"], member["sessionTimeout"]) == (300_000, 45_000)
    assert offsets(key, golden("groupmetadata v3 emptied"))["value"]["generation"] == 2


def test_members_of_the_consumer_protocol() -> None:
    key, value = golden("type 5 key value", 0), golden("type 5 key value", 1)
    decoded = offsets(key, value)
    assert decoded["key"] == {"groupId": "new-g", "memberId": "WTaVd1pZSSGzPG1j5bW8Ww"}
    assert decoded["value"]["subscribedTopicNames"] == ["alpha"]
    assert decoded["value"]["classicMemberMetadata"] is None
    regex = offsets(key, golden("type 5 value regex"))["value"]
    assert (regex["subscribedTopicRegex"], regex["serverAssignor"]) == ("(^al.*)", "range")
    classic = offsets(key, golden("type 5 value with classic"))["value"]["classicMemberMetadata"]
    assert classic["sessionTimeoutMs"] == 45_000
    assert [protocol["name"] for protocol in classic["supportedProtocols"]] == ["range"]


def test_a_missing_classic_metadata_tag_reads_as_an_empty_struct_not_as_null() -> None:
    value = golden("type 5 key value", 1)
    assert value.endswith(bytes.fromhex("01000100"))
    without = value[:-4] + b"\0"
    decoded = offsets(golden("type 5 key value", 0), without)["value"]
    assert decoded["classicMemberMetadata"] == {"sessionTimeoutMs": 0, "supportedProtocols": []}


def test_groups_and_assignments_of_the_consumer_protocol() -> None:
    assert offsets(GROUP_KEY, golden("type 3 value", 0))["value"] == {"epoch": 2, "metadataHash": -1583172472802459887}
    assert offsets(GROUP_KEY, golden("type 3 value", 1))["value"] == {"epoch": 6, "metadataHash": 0}
    assert offsets(b"\0\6\0\1g", golden("type 6 value"))["value"]["assignmentEpoch"] == 2
    target = offsets(b"\0\7" + MEMBER_KEY, golden("type 7 value"))["value"]
    assert target == {"topicPartitions": [{"topicId": ALPHA, "partitions": [0, 1, 2]}]}
    stable = offsets(b"\0\x08" + MEMBER_KEY, golden("type 8 stable", 0))["value"]
    assert (stable["memberEpoch"], stable["state"]) == (2, 0)
    assert stable["assignedPartitions"] == [{"topicId": ALPHA, "partitions": [0, 1, 2], "assignmentEpochs": [2, 2, 2]}]
    revoking = offsets(b"\0\x08" + MEMBER_KEY, golden("type 8 stable", 1))["value"]
    assert revoking["partitionsPendingRevocation"][0]["partitions"] == [2]
    pattern = offsets(golden("type 16", 0), golden("type 16", 1))
    assert pattern["type"] == "CONSUMER_GROUP_REGULAR_EXPRESSION"
    assert pattern["value"]["topics"] == ["alpha"]


def test_transactions() -> None:
    key = golden("transactionlog key", 0)

    def decode(value: bytes | None) -> dict[str, Any]:
        decoded = decode_record("__transaction_state", key, value)
        assert decoded is not None
        return decoded

    empty = decode(golden("transactionlog key", 1))
    assert (empty["key"], empty["version"], empty["statusName"]) == ({"transactionalId": "tx-1"}, 1, "Empty")
    assert empty["value"] == {
        "producerId": 1,
        "previousProducerId": 1,
        "nextProducerId": -1,
        "producerEpoch": 0,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": 0,
        "nextProducerEpoch": -1,
        "transactionPartitions": None,
        "transactionLastUpdateTimestampMs": 0x1A22A857701,
        "transactionStartTimestampMs": -1,
        "clientTransactionVersion": 0,
    }
    ongoing = decode(golden("ongoing alpha"))
    assert ongoing["statusName"] == "Ongoing"
    assert ongoing["value"]["transactionPartitions"] == [
        {"topic": "alpha", "partitionIds": [0]},
        {"topic": "gamma", "partitionIds": [0]},
    ]
    states = [decode(golden("ongoing preparecommit", index)) for index in range(3)]
    assert [state["statusName"] for state in states] == ["Ongoing", "PrepareCommit", "CompleteCommit"]
    assert [state["value"]["producerEpoch"] for state in states] == [0, 1, 1]
    assert [state["value"]["clientTransactionVersion"] for state in states] == [2, 2, 2]
    assert decode(None)["value"] is None
    version_0 = bytes.fromhex("0000000000000000000700010000ea6001ffffffff0000000000000005ffffffffffffffff")
    assert decode(version_0)["value"]["transactionPartitions"] is None


def test_a_whole_batch_of_a_transaction() -> None:
    (record,) = batch_of("__transaction_state", "whole batch of the first")
    assert record["key"] == {"transactionalId": "tx-1"}


def test_markers() -> None:
    for name, kind, epoch in (("commit marker", "COMMIT", 0), ("abort marker", "ABORT", 0)):
        (batch,) = iter_batches(golden(name))
        (record,) = batch.records()
        decoded = decode_record("users", record.key, record.value, control=True)
        assert decoded is not None
        assert (decoded["type"], decoded["data"]) == (kind, {"coordinatorEpoch": epoch})


def test_a_share_snapshot() -> None:
    decoded = decode_record("__share_group_state", golden("share snapshot", 0), golden("share snapshot", 1))
    assert decoded is not None
    assert decoded["key"] == {"groupId": "shg", "topicId": "R0h2GY22SfSFe562CeoJag", "partition": 0}
    assert decoded["value"]["startOffset"] == -1
    assert decoded["value"]["stateBatches"] == []


def test_other_topics_have_no_decoder() -> None:
    assert decode_record("users", b"k", b"v") is None


@pytest.mark.parametrize(
    ("topic", "key", "value", "reason"),
    [
        ("__consumer_offsets", None, None, "its key has 0 bytes, of 2 at least"),
        ("__consumer_offsets", b"\0", None, "its key has 1 bytes"),
        ("__consumer_offsets", b"\0\x09\0\1g", None, "unknown record type 9"),
        ("__consumer_offsets", b"\xff\xff", None, "unknown record type -1"),
        ("__consumer_offsets", b"\0\2\xff\xff", None, "group is null"),
        ("__consumer_offsets", b"\0\2\x7f\xffg", None, "group at byte 4 of the record needs 32767 bytes, 1 are left"),
        ("__consumer_offsets", b"\0\2\0\1gx", None, "1 bytes are left at the end of its key"),
        ("__consumer_offsets", b"\0\2\0\1g", b"\0\5", "GROUP_METADATA has version 5, known are 0 to 4"),
        ("__consumer_offsets", b"\0\2\0\1g", b"\0", "its value has 1 bytes"),
        (
            "__consumer_offsets",
            b"\0\2\0\1g",
            b"\0\0\0\0\0\0\0\0\xff\xff\xff\xff\x7f\xff\xff\xff",
            "array members at byte 16 of the record needs 2147483647 bytes, 0 are left",
        ),
        ("__transaction_state", b"\0\1\0\1t", None, "unknown record type 1"),
        ("__transaction_state", b"\0\0\0\1t", b"\0\2", "TRANSACTION_LOG has version 2"),
        ("__share_group_state", b"\0\2", None, "unknown record type 2"),
    ],
)
def test_bytes_that_do_not_follow_their_format_give_an_error(
    topic: str, key: bytes | None, value: bytes | None, reason: str
) -> None:
    decoded = decode_record(topic, key, value)
    assert decoded is not None
    assert reason in decoded["error"]
