"""The whole of a cluster's metadata at one offset, never changed: what a snapshot holds (Kafka's MetadataImage).

`read_cluster_metadata` gives people what can be read of a log that may be damaged; an image is what a broker works from,
complete or not there at all. Ids are Kafka's 22-character text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.storage.metadata.record_types import METADATA_VERSION

NO_LEADER = -1

#: Kind and name of what has settings: (2, topic), (4, node id or ""), (16, client metrics), (32, group).
Resource = tuple[int, str]

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition's state. Node ids, and ids of log dirs in the replicas' order (empty in old logs)."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[str, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    #: 0 recovered, 1 recovering (elected after an unclean shutdown; Kafka keeps it for ever).
    recovery_state: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: str
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Everything below `offset`. Mappings must not be changed by who reads them."""

    #: Next offset of the log, raft epoch of the last record below it, append time of its batch (ms; -1 none).
    offset: int = 0
    epoch: int = 0
    timestamp: int = -1
    features: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    #: Topic id to name.
    names: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=dict)
    #: Node id to the fields of its registration as they now stand.
    brokers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    controllers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    #: ((entity type, name or None), ...) in order of type, to quota to value.
    quotas: Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]] = field(default_factory=dict)
    #: First producer id that was never handed out; 0 when none was.
    next_producer_id: int = 0
    #: By id; (name, mechanism); token id: the fields of their records.
    acls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scram: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    tokens: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: From control records: KIP-853's level, and the voters (None: the brokers' settings name them).
    kraft_version: int = 0
    voters: tuple[Mapping[str, Any], ...] | None = None

    @property
    def metadata_version(self) -> int | None:
        """Level of metadata.version; None in a log that never set it."""
        return self.features.get(METADATA_VERSION)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Settings of the topic itself."""
        return self.configs.get((TOPIC_RESOURCE, topic), {})

    def broker_configs(self, node: int | str) -> Mapping[str, str]:
        """Dynamic settings of a node, or of all ("")."""
        return self.configs.get((BROKER_RESOURCE, str(node)), {})

    def topic_by_id(self, topic_id: str) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_id: str, partition: int) -> PartitionImage | None:
        topic = self.topic_by_id(topic_id)
        return None if topic is None else topic.partitions.get(partition)
