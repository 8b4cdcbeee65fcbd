"""Fields of every KRaft metadata record and control record, by type and version (facts A4, A6; Kafka 4.4.0)."""

from __future__ import annotations

from compactd.storage.metadata.schema import Field, Schema, array, fields, tag

_ENDPOINTS = fields("name:str host:str port:u16 securityProtocol:i16")
_FEATURES = fields("name:str minSupportedVersion:i16 maxSupportedVersion:i16")
_QUOTA_ENTITY = fields("entityType:str entityName:str?")

#: apiKey to schema. All bodies are flexible.
METADATA_RECORDS: dict[int, Schema] = {
    0: Schema(
        "REGISTER_BROKER_RECORD",
        (
            Field("brokerId", "i32"),
            Field("isMigratingZkBroker", "bool", since=2),
            *fields("incarnationId:uuid brokerEpoch:i64"),
            array("endPoints", _ENDPOINTS),
            array("features", _FEATURES),
            *fields("rack:str? fenced:bool"),
            Field("inControlledShutdown", "bool", since=1),
            tag(0, "logDirs", "uuid", [], array=True, since=3),
            tag(1, "cordonedLogDirs", "uuid", None, array=True, nullable=True, since=4),
        ),
        high=4,
    ),
    1: Schema("UNREGISTER_BROKER_RECORD", fields("brokerId:i32 brokerEpoch:i64")),
    2: Schema("TOPIC_RECORD", fields("name:str topicId:uuid")),
    3: Schema(
        "PARTITION_RECORD",
        (
            *fields("partitionId:i32 topicId:uuid replicas:i32[] isr:i32[] removingReplicas:i32[]"),
            *fields("addingReplicas:i32[] leader:i32"),
            tag(0, "leaderRecoveryState", "i8", 0),
            *fields("leaderEpoch:i32 partitionEpoch:i32"),
            array("directories", "uuid", since=1),
            tag(1, "eligibleLeaderReplicas", "i32", None, array=True, nullable=True, since=2),
            tag(2, "lastKnownElr", "i32", None, array=True, nullable=True, since=2),
        ),
        high=2,
    ),
    4: Schema("CONFIG_RECORD", fields("resourceType:i8 resourceName:str name:str value:str?")),
    5: Schema(
        "PARTITION_CHANGE_RECORD",
        (
            *fields("partitionId:i32 topicId:uuid"),
            tag(0, "isr", "i32", None, array=True, nullable=True),
            tag(1, "leader", "i32", -2),
            tag(2, "replicas", "i32", None, array=True, nullable=True),
            tag(3, "removingReplicas", "i32", None, array=True, nullable=True),
            tag(4, "addingReplicas", "i32", None, array=True, nullable=True),
            tag(5, "leaderRecoveryState", "i8", -1),
            tag(6, "eligibleLeaderReplicas", "i32", None, array=True, nullable=True, since=2),
            tag(7, "lastKnownElr", "i32", None, array=True, nullable=True, since=2),
            tag(8, "directories", "uuid", None, array=True, nullable=True, since=1),
        ),
        high=2,
    ),
    7: Schema("FENCE_BROKER_RECORD", fields("id:i32 epoch:i64")),
    8: Schema("UNFENCE_BROKER_RECORD", fields("id:i32 epoch:i64")),
    9: Schema("REMOVE_TOPIC_RECORD", fields("topicId:uuid")),
    10: Schema(
        "DELEGATION_TOKEN_RECORD",
        fields(
            "owner:str requester:str renewers:str[] issueTimestamp:i64 maxTimestamp:i64 expirationTimestamp:i64 "
            "tokenId:str"
        ),
    ),
    11: Schema(
        "USER_SCRAM_CREDENTIAL_RECORD",
        (
            *fields("name:str mechanism:i8"),
            Field("salt", "bytes", secret=True),
            Field("storedKey", "bytes", secret=True),
            Field("serverKey", "bytes", secret=True),
            Field("iterations", "i32"),
        ),
    ),
    12: Schema("FEATURE_LEVEL_RECORD", fields("name:str featureLevel:i16")),
    14: Schema("CLIENT_QUOTA_RECORD", (array("entity", _QUOTA_ENTITY), *fields("key:str value:f64 remove:bool"))),
    15: Schema("PRODUCER_IDS_RECORD", fields("brokerId:i32 brokerEpoch:i64 nextProducerId:i64")),
    17: Schema(
        "BROKER_REGISTRATION_CHANGE_RECORD",
        (
            *fields("brokerId:i32 brokerEpoch:i64"),
            tag(0, "fenced", "i8", 0),
            tag(1, "inControlledShutdown", "i8", 0, since=1),
            tag(2, "logDirs", "uuid", [], array=True, since=2),
            tag(3, "cordonedLogDirs", "uuid", None, array=True, nullable=True, since=3),
        ),
        high=3,
    ),
    18: Schema(
        "ACCESS_CONTROL_ENTRY_RECORD",
        fields(
            "id:uuid resourceType:i8 resourceName:str patternType:i8 principal:str host:str operation:i8 "
            "permissionType:i8"
        ),
    ),
    19: Schema("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", fields("id:uuid")),
    20: Schema("NO_OP_RECORD", ()),
    21: Schema("ZK_MIGRATION_STATE_RECORD", fields("zkMigrationState:i8")),
    22: Schema("REMOVE_USER_SCRAM_CREDENTIAL_RECORD", fields("name:str mechanism:i8")),
    23: Schema("BEGIN_TRANSACTION_RECORD", (tag(0, "name", "str", None, nullable=True),)),
    24: Schema("END_TRANSACTION_RECORD", ()),
    25: Schema("ABORT_TRANSACTION_RECORD", (tag(0, "reason", "str", None, nullable=True),)),
    26: Schema("REMOVE_DELEGATION_TOKEN_RECORD", fields("tokenId:str")),
    27: Schema(
        "REGISTER_CONTROLLER_RECORD",
        (
            *fields("controllerId:i32 incarnationId:uuid zkMigrationReady:bool"),
            array("endPoints", _ENDPOINTS),
            array("features", _FEATURES),
        ),
    ),
    28: Schema("CLEAR_ELR_RECORD", fields("topicName:str")),
    29: Schema("UNREGISTER_CONTROLLER_RECORD", fields("controllerId:i32")),
}

_VOTER = (Field("voterId", "i32"), Field("voterDirectoryId", "uuid", since=1))

#: Control record type to schema of its value, whose leading int16 is the version. 0 and 1 are transaction markers.
CONTROL_RECORDS: dict[int, Schema] = {
    0: Schema("ABORT", fields("coordinatorEpoch:i32"), flexible_since=None),
    1: Schema("COMMIT", fields("coordinatorEpoch:i32"), flexible_since=None),
    2: Schema(
        "LEADER_CHANGE", (Field("leaderId", "i32"), array("voters", _VOTER), array("grantingVoters", _VOTER)), high=1
    ),
    3: Schema("SNAPSHOT_HEADER", fields("lastContainedLogTimestamp:i64")),
    4: Schema("SNAPSHOT_FOOTER", ()),
    5: Schema("KRAFT_VERSION", fields("kRaftVersion:i16")),
    6: Schema(
        "KRAFT_VOTERS",
        (
            array(
                "voters",
                (
                    *fields("voterId:i32 voterDirectoryId:uuid"),
                    array("endpoints", fields("name:str host:str port:u16")),
                    Field("kRaftVersionFeature", fields("minSupportedVersion:i16 maxSupportedVersion:i16")),
                ),
            ),
        ),
    ),
}
