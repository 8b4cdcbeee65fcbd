"""The catalogue as this broker knows it: topics, their partitions and owners, nodes, features (from CatalogueUpdate)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactd.storage.names import parse_uuid
from compactd.workers.catalogue_update import (
    AccessRule,
    CataloguePartition,
    CatalogueTopic,
    CatalogueUpdate,
    ClientQuota,
    ScramCredential,
)
from compactd.workers.message import Endpoint

#: Topics that the broker itself writes; clients are told so.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(frozen=True, slots=True)
class Node:
    """One broker worker, which to clients is a broker."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    #: By number, ascending.
    partitions: Mapping[int, CataloguePartition]
    #: Topic-level overrides.
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class CatalogueImage:
    """Changed on the broker's loop only, by `apply`."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.metadata_offset = -1
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        #: Dynamic settings that are set, by name: "" (default of all brokers) or a node id, group, metrics subscription.
        self.broker_configs: dict[str, Mapping[str, str]] = {}
        self.group_configs: dict[str, Mapping[str, str]] = {}
        self.client_metrics: dict[str, Mapping[str, str]] = {}
        #: Finalized features: name to level.
        self.features: Mapping[str, int] = {}
        #: By worker number.
        self.nodes: tuple[Node, ...] = ()
        self._nodes_at: dict[str, tuple[Node, ...]] = {}
        self.offline_log_dirs: set[str] = set()
        #: Replaced, never changed: who derives something from them compares by identity.
        self.quotas: tuple[ClientQuota, ...] = ()
        self.credentials: tuple[ScramCredential, ...] = ()
        self.acls: tuple[AccessRule, ...] = ()

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_of_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        return None if topic_id is None else self.by_id.get(topic_id)

    def partition(self, topic: str, number: int) -> CataloguePartition | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(number)

    def nodes_at(self, listener: str) -> tuple[Node, ...]:
        """By worker number, as clients of a listener are told of them; none where clients are not told of the listener."""
        return self._nodes_at.get(listener, ()) if self._nodes_at else self.nodes

    def leader(self, partition: CataloguePartition, listener: str | None = None) -> Node | None:
        """The node that serves a partition, as clients of a listener reach it; None: its worker is not known yet."""
        nodes = self.nodes if listener is None else self.nodes_at(listener)
        return nodes[partition.worker] if 0 <= partition.worker < len(nodes) else None

    def __iter__(self) -> Iterator[Topic]:
        """Topics by name, ascending."""
        return iter([self.topics[name] for name in sorted(self.topics)])

    def apply(self, update: CatalogueUpdate) -> list[str]:
        """Takes an update; returns names of topics that are gone (also those replaced by a new one of the same name)."""
        gone: list[str] = []
        if update.full:
            kept = {topic.name: topic.topic_id for topic in update.topics}
            for name in list(self.topics):
                if name not in kept:
                    gone += self._drop(name)
        for name in update.deleted:
            gone += self._drop(name)
        for topic in map(_topic, update.topics):
            before = self.topics.get(topic.name)
            if before is not None and before.topic_id != topic.topic_id:
                gone += self._drop(topic.name)
            self.topics[topic.name] = topic
            self.by_id[topic.topic_id] = topic
        self.metadata_offset = update.metadata_offset
        self.cluster_id = update.cluster_id or self.cluster_id
        _merge(self.broker_configs, update.broker_configs, update.full)
        _merge(self.group_configs, update.group_configs, update.full)
        _merge(self.client_metrics, update.client_metrics, update.full)
        if update.full or update.features:
            self.features = update.features
        if update.nodes:
            self.nodes = tuple(Node(*node) for node in update.nodes)
            self._nodes_at = _by_listener(self.nodes, update.endpoints)
        if update.quotas is not None:
            self.quotas = update.quotas
        if update.credentials is not None:
            self.credentials = update.credentials
        if update.acls is not None:
            self.acls = update.acls
        return gone

    def _drop(self, name: str) -> list[str]:
        topic = self.topics.pop(name, None)
        if topic is None:
            return []
        self.by_id.pop(topic.topic_id, None)
        return [name]


def _by_listener(nodes: Sequence[Node], endpoints: Sequence[Sequence[Endpoint]]) -> dict[str, tuple[Node, ...]]:
    found: dict[str, list[Node]] = {}
    for node, of_node in zip(nodes, endpoints, strict=False):
        for each in of_node:
            found.setdefault(each.listener, []).append(Node(node.node_id, each.host, each.port))
    return {listener: tuple(at) for listener, at in found.items()}


def _merge(known: dict[str, Mapping[str, str]], changed: Mapping[str, Mapping[str, str]], full: bool) -> None:
    if full:
        known.clear()
    for name, values in changed.items():
        if values:
            known[name] = values
        else:
            known.pop(name, None)


def _topic(found: CatalogueTopic) -> Topic:
    return Topic(found.name, parse_uuid(found.topic_id), dict(_by_number(found.partitions)), found.configs)


def _by_number(partitions: Iterable[CataloguePartition]) -> list[tuple[int, CataloguePartition]]:
    return sorted((each.partition, each) for each in partitions)
