"""Messages about the catalogue: what brokers are told, and how they ask for changes; see `workers.messages`."""

from __future__ import annotations

import msgspec

from compactd.workers.message import Endpoint, Message


class CataloguePartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader_epoch: int
    partition_epoch: int
    log_dir: str
    #: Number of the broker worker that owns it.
    worker: int
    #: It has a leader; False: its log dir is offline.
    online: bool = True


class CatalogueTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: tuple[CataloguePartition, ...]
    #: Topic-level overrides, as written by whoever set them.
    configs: dict[str, str]


class ClientQuota(msgspec.Struct, frozen=True):
    """Quotas of one entity: ((type, name or None for the default), ...) by type, and the values by key."""

    entity: tuple[tuple[str, str | None], ...]
    values: dict[str, float]


class ScramCredential(msgspec.Struct, frozen=True):
    """What a user proves a password with. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    user: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class AccessRule(msgspec.Struct, frozen=True):
    """An ACL; numbers as in the protocol (facts: kafka-protocol 0.1)."""

    id: str
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class CatalogueUpdate(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to every broker: what a change came to, or the whole catalogue when `full`."""

    full: bool
    #: Offset of the newest record of the metadata log.
    metadata_offset: int
    cluster_id: str
    #: Topics new or changed, whole; names of those that are gone: to be dropped before the former are taken over.
    topics: tuple[CatalogueTopic, ...]
    deleted: tuple[str, ...] = ()
    #: Dynamic configs of brokers ("" is the cluster default, else a node id), of groups, of client-metrics subscriptions:
    #: each one that changed, whole; an empty mapping where the last value was removed.
    broker_configs: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    client_metrics: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    #: Finalized features: name to level.
    features: dict[str, int] = msgspec.field(default_factory=dict)
    #: Broker workers as Kafka nodes: node id, host, port by worker number; and what clients of each listener are told in
    #: place of host and port. Where there is none of that, there is one listener.
    nodes: tuple[tuple[int, str, int], ...] = ()
    endpoints: tuple[tuple[Endpoint, ...], ...] = ()
    #: What concerns who a client is: all there is, or None where nothing of the kind changed.
    quotas: tuple[ClientQuota, ...] | None = None
    credentials: tuple[ScramCredential, ...] | None = None
    acls: tuple[AccessRule, ...] | None = None


class CatalogueChange(Message, frozen=True, kw_only=True, tag=True):
    """Broker to coordinator: a client asks for a change. `operation` and `arguments` as workers.catalogue_messages defines them."""

    request_id: int
    #: "create_topics", "delete_topics", "create_partitions", "alter_configs", "allocate_producer_ids".
    operation: str
    arguments: msgspec.Raw


class CatalogueChanged(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to broker: the answer, after the change is fsynced and every broker has been told."""

    request_id: int
    results: msgspec.Raw
