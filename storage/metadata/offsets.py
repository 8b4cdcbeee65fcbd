"""Records of `__consumer_offsets`: offsets and groups of every kind, KIP-848 included (facts B2; Kafka 4.4.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactd.storage.metadata.coordinator import (
    CoordinatorRecord,
    decode_coordinator_record,
    encode_coordinator_record,
)
from compactd.storage.metadata.schema import Field, Schema, array, fields, tag

_GROUP = fields("groupId:str")
_MEMBER = fields("groupId:str memberId:str")
_PARTITION = fields("group:str topic:str partition:i32")
_TARGET = (Field("assignmentEpoch", "i32"), tag(0, "assignmentTimestamp", "i64", 0))
_TOPIC_PARTITIONS = fields("topicId:uuid partitions:i32[]")
_EPOCHS = tag(0, "assignmentEpochs", "i32", [], array=True, nullable=True)
_OWNED = (*_TOPIC_PARTITIONS, _EPOCHS)
_NAMED_PARTITIONS = fields("topicId:uuid topicName:str partitions:i32[]")
_TASKS = fields("subtopologyId:str partitions:i32[]")
_OWNED_TASKS = (*_TASKS, _EPOCHS)
_KEY_VALUE = fields("key:str value:str")
_TOPIC_INFO = (*fields("name:str partitions:i32 replicationFactor:i16"), array("topicConfigs", _KEY_VALUE))

_CLASSIC_MEMBER = (
    Field("memberId", "str"),
    Field("groupInstanceId", "str", nullable=True, since=3),
    *fields("clientId:str clientHost:str"),
    Field("rebalanceTimeout", "i32", since=1),
    *fields("sessionTimeout:i32 subscription:bytes assignment:bytes"),
)

# A left-out tag reads as this empty struct, not as null: "uses the classic protocol" (facts B2.3).
_CLASSIC_METADATA = tag(
    0,
    "classicMemberMetadata",
    (Field("sessionTimeoutMs", "i32"), array("supportedProtocols", fields("name:str metadata:bytes"))),
    {"sessionTimeoutMs": 0, "supportedProtocols": []},
    nullable=True,
)

_SUBTOPOLOGY = (
    *fields("subtopologyId:str sourceTopics:str[] sourceTopicRegex:str[]"),
    array("stateChangelogTopics", _TOPIC_INFO),
    array("repartitionSinkTopics", "str"),
    array("repartitionSourceTopics", _TOPIC_INFO),
    array("copartitionGroups", fields("sourceTopics:i16[] sourceTopicRegex:i16[] repartitionSourceTopics:i16[]")),
)


def _record(key: tuple[Field, ...], name: str, *value: Field) -> CoordinatorRecord:
    """A type whose value has only version 0, flexible."""
    return CoordinatorRecord(key, Schema(name, value))


#: Record type (the key's int16) to key and value. Numbers 9 and 18 aren't used.
OFFSETS_RECORDS: dict[int, CoordinatorRecord] = {
    0: CoordinatorRecord(
        _PARTITION,
        Schema("LEGACY_OFFSET_COMMIT", fields("offset:i64 metadata:str commitTimestamp:i64"), flexible_since=None),
    ),
    1: CoordinatorRecord(
        _PARTITION,
        Schema(
            "OFFSET_COMMIT",
            (
                Field("offset", "i64"),
                Field("leaderEpoch", "i32", since=3),
                *fields("metadata:str commitTimestamp:i64"),
                Field("expireTimestamp", "i64", since=1, until=1),
                tag(0, "topicId", "uuid", "AAAAAAAAAAAAAAAAAAAAAA", since=4),
            ),
            high=4,
            flexible_since=4,
        ),
    ),
    2: CoordinatorRecord(
        fields("group:str"),
        Schema(
            "GROUP_METADATA",
            (
                *fields("protocolType:str generation:i32 protocol:str? leader:str?"),
                Field("currentStateTimestamp", "i64", since=2),
                array("members", _CLASSIC_MEMBER),
            ),
            high=4,
            flexible_since=4,
        ),
    ),
    3: _record(_GROUP, "CONSUMER_GROUP_METADATA", Field("epoch", "i32"), tag(0, "metadataHash", "i64", 0)),
    4: _record(
        _GROUP,
        "CONSUMER_GROUP_PARTITION_METADATA",
        array(
            "topics",
            (
                *fields("topicId:uuid topicName:str numPartitions:i32"),
                array("partitionMetadata", fields("partition:i32 racks:str[]")),
            ),
        ),
    ),
    5: _record(
        _MEMBER,
        "CONSUMER_GROUP_MEMBER_METADATA",
        *fields("instanceId:str? rackId:str? clientId:str clientHost:str subscribedTopicNames:str[]"),
        *fields("subscribedTopicRegex:str? rebalanceTimeoutMs:i32 serverAssignor:str?"),
        _CLASSIC_METADATA,
    ),
    6: _record(_GROUP, "CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA", *_TARGET),
    7: _record(_MEMBER, "CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER", array("topicPartitions", _TOPIC_PARTITIONS)),
    8: _record(
        _MEMBER,
        "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        *fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
        array("assignedPartitions", _OWNED),
        array("partitionsPendingRevocation", _OWNED),
    ),
    10: _record(
        _MEMBER,
        "SHARE_GROUP_MEMBER_METADATA",
        *fields("rackId:str? clientId:str clientHost:str subscribedTopicNames:str[]"),
    ),
    11: _record(_GROUP, "SHARE_GROUP_METADATA", *fields("epoch:i32 metadataHash:i64")),
    12: _record(_GROUP, "SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", *_TARGET),
    13: _record(_MEMBER, "SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", array("topicPartitions", _TOPIC_PARTITIONS)),
    14: _record(
        _MEMBER,
        "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        *fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
        array("assignedPartitions", _TOPIC_PARTITIONS),
    ),
    15: _record(
        _GROUP,
        "SHARE_GROUP_STATE_PARTITION_METADATA",
        array("initializingTopics", _NAMED_PARTITIONS),
        array("initializedTopics", _NAMED_PARTITIONS),
        array("deletingTopics", fields("topicId:uuid topicName:str")),
    ),
    16: _record(
        fields("groupId:str regularExpression:str"),
        "CONSUMER_GROUP_REGULAR_EXPRESSION",
        *fields("topics:str[] version:i64 timestamp:i64"),
    ),
    17: _record(
        _GROUP,
        "STREAMS_GROUP_METADATA",
        *fields("epoch:i32 metadataHash:i64"),
        tag(0, "validatedTopologyEpoch", "i32", -1),
        tag(1, "lastAssignmentConfigs", _KEY_VALUE, [], array=True, nullable=True),
        tag(2, "storedDescriptionTopologyEpoch", "i32", -1),
        tag(3, "failedDescriptionTopologyEpoch", "i32", -1),
    ),
    19: _record(
        _MEMBER,
        "STREAMS_GROUP_MEMBER_METADATA",
        *fields("instanceId:str? rackId:str? clientId:str clientHost:str rebalanceTimeoutMs:i32 topologyEpoch:i32"),
        Field("processId", "str"),
        Field("userEndpoint", fields("host:str port:u16"), nullable=True),
        array("clientTags", _KEY_VALUE),
    ),
    20: _record(_GROUP, "STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", *_TARGET),
    21: _record(
        _MEMBER,
        "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        array("activeTasks", _TASKS),
        array("standbyTasks", _TASKS),
        array("warmupTasks", _TASKS),
    ),
    22: _record(
        _MEMBER,
        "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        *fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
        array("activeTasks", _OWNED_TASKS),
        array("standbyTasks", _OWNED_TASKS),
        array("warmupTasks", _OWNED_TASKS),
        array("activeTasksPendingRevocation", _OWNED_TASKS),
        array("standbyTasksPendingRevocation", _OWNED_TASKS),
        array("warmupTasksPendingRevocation", _OWNED_TASKS),
    ),
    23: _record(_GROUP, "STREAMS_GROUP_TOPOLOGY", Field("epoch", "i32"), array("subtopologies", _SUBTOPOLOGY)),
}


def decode_offsets_record(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """One record of `__consumer_offsets`, in the form of `decode_coordinator_record`. Raises MalformedError."""
    return decode_coordinator_record(OFFSETS_RECORDS, key, value)


def encode_offsets_record(
    number: int, key: Mapping[str, Any], version: int = 0, value: Mapping[str, Any] | None = None
) -> tuple[bytes, bytes | None]:
    """Key and value of a record of type `number`, from fields as they are decoded; value None is a tombstone.

    Raises ValueError for an unknown type or version and for fields that don't fit.
    """
    return encode_coordinator_record(OFFSETS_RECORDS, number, key, version, value)
