"""Types of metadata records by name, and the versions that a cluster's metadata.version writes them in (facts A6, A7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from compactd.storage.metadata.records import encode_metadata_record

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
ELR_VERSION = "eligible.leader.replicas.version"

#: Levels that Kafka 4.4.0 works with; others keep it, and us, from starting.
SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (7, 33),
    KRAFT_VERSION: (0, 1),
    ELR_VERSION: (0, 1),
    "group.version": (0, 1),
    "share.version": (0, 2),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}

#: What `kafka-storage format` of 4.4.0 writes, in its order.
DEFAULT_FEATURES: Mapping[str, int] = {
    METADATA_VERSION: 33,
    ELR_VERSION: 1,
    "group.version": 1,
    "share.version": 2,
    "streams.version": 1,
    "transaction.version": 2,
}


class RecordType(IntEnum):
    """apiKey of the metadata records that are written or replayed by name."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    REMOVE_TOPIC = 9
    DELEGATION_TOKEN = 10
    USER_SCRAM_CREDENTIAL = 11
    FEATURE_LEVEL = 12
    CLIENT_QUOTA = 14
    PRODUCER_IDS = 15
    BROKER_REGISTRATION_CHANGE = 17
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    NO_OP = 20
    ZK_MIGRATION_STATE = 21
    REMOVE_USER_SCRAM_CREDENTIAL = 22
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REMOVE_DELEGATION_TOKEN = 26
    REGISTER_CONTROLLER = 27
    CLEAR_ELR = 28
    UNREGISTER_CONTROLLER = 29


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """One record to write. `data`: fields as `records.read_body` gives them."""

    type: RecordType
    data: Mapping[str, Any]
    version: int = 0

    @property
    def value(self) -> bytes:
        """Its bytes. Raises ValueError for fields that don't fit."""
        return encode_metadata_record(self.type, self.version, self.data)


@dataclass(frozen=True, slots=True)
class RecordVersions:
    """Versions of the records whose version depends on the features; all others are version 0."""

    register_broker: int
    partition: int
    partition_change: int
    #: ELR (KIP-966) is on: partitions without leader remember who may lead them.
    elr: bool

    @classmethod
    def of(cls, features: Mapping[str, int]) -> RecordVersions:
        """The versions for these finalized features; metadata.version must be among them."""
        level = features[METADATA_VERSION]
        partition = 2 if level >= 23 else 1 if level >= 17 else 0
        register = 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1
        return cls(register, partition, partition, features.get(ELR_VERSION, 0) > 0)

    @property
    def has_directories(self) -> bool:
        """Partition records name the log dir that holds a replica."""
        return self.partition >= 1
