"""Which partitions there are, who is to serve each, and what is known of them.

What there is comes from the catalogue's updates; what is known, from the brokers. A partition whose directory is being put
away (its topic was deleted) comes back under the same name only when that is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from compactd.config.settings import TopicConfig
from compactd.coordinator.interfaces import WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import (
    AccessRule,
    CataloguePartition,
    CatalogueTopic,
    CatalogueUpdate,
    ClientQuota,
    ScramCredential,
)
from compactd.workers.message import Endpoint
from compactd.workers.partition_messages import PartitionState


@dataclass(slots=True)
class Entry:
    """A partition of the catalogue."""

    name: TopicPartition
    topic_id: str
    place: CataloguePartition
    #: Its directory has to be made.
    is_new: bool = False
    #: Given to its broker, and loaded by it.
    is_assigned: bool = False
    is_ready: bool = False
    #: Why nobody serves it, in words; empty: somebody does, or is about to.
    offline: str = ""

    @property
    def owner(self) -> WorkerId:
        return WorkerId("broker", self.place.worker)


@dataclass(slots=True)
class Changes:
    """What an update asks for."""

    assign: list[Entry] = field(default_factory=list)
    release: list[Entry] = field(default_factory=list)
    #: Topics whose own settings are other ones now.
    configs: list[str] = field(default_factory=list)


class Partitions:
    """See the module."""

    def __init__(self) -> None:
        self.topics: dict[str, CatalogueTopic] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        #: What only brokers act on, kept for those that start late.
        self.group_configs: dict[str, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        self.quotas: tuple[ClientQuota, ...] = ()
        self.credentials: tuple[ScramCredential, ...] = ()
        self.acls: tuple[AccessRule, ...] = ()
        self.features: dict[str, int] = {}
        self.cluster_id = ""
        self.metadata_offset = -1
        self.entries: dict[TopicPartition, Entry] = {}
        self.states: dict[TopicPartition, PartitionState] = {}
        self.configs: dict[str, TopicConfig] = {}
        #: Being put away: nobody may make a directory of this name yet.
        self.releasing: set[TopicPartition] = set()

    def apply(self, update: CatalogueUpdate, new: bool) -> Changes:
        """Takes an update over. `new`: partitions that it brings have no directory yet."""
        changes = Changes()
        gone = set(self.topics) - {topic.name for topic in update.topics} if update.full else set(update.deleted)
        for name in gone - {topic.name for topic in update.topics}:
            self._drop(name, changes)
        for topic in update.topics:
            self._take(topic, new, changes)
        self.broker_configs = _merged(self.broker_configs, update.broker_configs, update.full)
        self.group_configs = _merged(self.group_configs, update.group_configs, update.full)
        self.client_metrics = _merged(self.client_metrics, update.client_metrics, update.full)
        self.quotas = self.quotas if update.quotas is None else update.quotas
        self.credentials = self.credentials if update.credentials is None else update.credentials
        self.acls = self.acls if update.acls is None else update.acls
        self.features, self.cluster_id = dict(update.features), update.cluster_id
        self.metadata_offset = update.metadata_offset
        return changes

    def full_update(
        self, nodes: tuple[tuple[int, str, int], ...], endpoints: tuple[tuple[Endpoint, ...], ...] = ()
    ) -> CatalogueUpdate:
        """The whole catalogue as it is known here, for a broker that has just started."""
        return CatalogueUpdate(
            full=True,
            metadata_offset=self.metadata_offset,
            cluster_id=self.cluster_id,
            topics=tuple(self.topics.values()),
            broker_configs=self.broker_configs,
            group_configs=self.group_configs,
            client_metrics=self.client_metrics,
            features=self.features,
            nodes=nodes,
            endpoints=endpoints,
            quotas=self.quotas,
            credentials=self.credentials,
            acls=self.acls,
        )

    def of(self, owner: WorkerId) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.owner == owner]

    def loaded(self, states: Iterable[PartitionState]) -> list[PartitionState]:
        """States that a broker told; those of partitions that are gone are dropped."""
        known = []
        for state in states:
            name = TopicPartition(state.topic, state.partition)
            entry = self.entries.get(name)
            if entry is None or entry.offline or entry.place.log_dir != state.log_dir:
                continue
            entry.is_ready, entry.is_new = True, False
            self.states[name] = state
            known.append(state)
        return known

    def moved(self, states: Iterable[PartitionState]) -> list[tuple[TopicPartition, str, str]]:
        """Partitions that these states, not taken over yet, show in another log dir than before: it, and the new one."""
        found = []
        for state in states:
            name = TopicPartition(state.topic, state.partition)
            before, entry = self.states.get(name), self.entries.get(name)
            if before is None or before.log_dir == state.log_dir or entry is None:
                continue
            if entry.place.log_dir == state.log_dir and not entry.offline:
                found.append((name, before.log_dir, state.log_dir))
        return found

    def failed(self, name: TopicPartition, reason: str) -> None:
        entry = self.entries.get(name)
        if entry is not None:
            entry.offline, entry.is_ready = reason, False

    def owner_gone(self, owner: WorkerId) -> None:
        """Its partitions are nobody's until it is back. What was known of them stays: it is what recovery begins with."""
        for entry in self.of(owner):
            entry.is_assigned = entry.is_ready = False

    def log_dir_failed(self, log_dir: str, reason: str) -> list[TopicPartition]:
        """The partitions that went offline with it."""
        lost = [entry for entry in self.entries.values() if entry.place.log_dir == log_dir]
        for entry in lost:
            entry.offline, entry.is_ready = reason, False
            self.states.pop(entry.name, None)
        return [entry.name for entry in lost]

    def count_by_log_dir(self) -> Counter[str]:
        return Counter(entry.place.log_dir for entry in self.entries.values())

    def offline(self) -> dict[str, str]:
        """topic-partition to why nobody serves it."""
        return {
            str(entry.name): entry.offline or f"{entry.owner} is loading it"
            for entry in self.entries.values()
            if not entry.is_ready
        }

    # ---- inside

    def _take(self, topic: CatalogueTopic, new: bool, changes: Changes) -> None:
        before = self.topics.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            # Deleted, and created again under its name.
            self._drop(topic.name, changes)
            before = None
        self.topics[topic.name] = topic
        if before is None or before.configs != topic.configs:
            changes.configs.append(topic.name)
        for place in topic.partitions:
            name = TopicPartition(topic.name, place.partition)
            entry = self.entries.get(name)
            if entry is None:
                entry = self.entries[name] = Entry(name, topic.topic_id, place, is_new=new)
                changes.assign.append(entry)
            else:
                entry.place = place

    def _drop(self, topic: str, changes: Changes) -> None:
        old = self.topics.pop(topic, None)
        self.configs.pop(topic, None)
        for place in () if old is None else old.partitions:
            name = TopicPartition(topic, place.partition)
            entry = self.entries.pop(name, None)
            self.states.pop(name, None)
            if entry is not None:
                changes.release.append(entry)


def _merged(
    known: dict[str, dict[str, str]], changed: dict[str, dict[str, str]], full: bool
) -> dict[str, dict[str, str]]:
    return dict(changed) if full else {**known, **changed}
