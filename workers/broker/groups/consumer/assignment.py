"""What an assignor is given and what it makes (Kafka's GroupSpec and MemberAssignment)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compactd.workers.broker.groups.consumer.java import (
    DEFAULT_CAPACITY,
    HashTable,
    capacity_of,
    hash_set_capacity,
    int_hash,
    uuid_hash,
)
from compactd.workers.broker.groups.consumer.member import Assignment


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member."""

    instance_id: str | None
    #: Ids of topics that there are, in the order of their names in a HashSet.
    topics: tuple[uuid.UUID, ...]
    #: Names that it subscribes to, also of topics that are not there.
    subscribed: int
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group."""

    #: In the order of a HashMap of their ids.
    members: Mapping[str, MemberSpec]
    #: All members subscribe to the same topics.
    homogeneous: bool
    #: What has an owner in the present target, whoever that is.
    assigned: frozenset[tuple[uuid.UUID, int]]
    #: Number of partitions.
    partitions_of: Callable[[uuid.UUID], int]


#: By member; who is not named gets nothing.
GroupAssignment = Mapping[str, Assignment]
Assignor = Callable[[GroupSpec], GroupAssignment]


class Draft:
    """A member's assignment while it is made: a deep copy in Kafka, with the tables that this has."""

    __slots__ = ("_sets", "_topics")

    def __init__(self, before: Assignment) -> None:
        self._topics = HashTable(uuid_hash, capacity_of(len(before)))
        self._sets: dict[uuid.UUID, tuple[HashTable[int], set[int]]] = {}
        for topic_id, partitions in before.items():
            self._topics.put(topic_id)
            table = HashTable(int_hash, hash_set_capacity(len(partitions)))
            for partition in partitions:
                table.put(partition)
            self._sets[topic_id] = (table, set(partitions))

    def add(self, topic_id: uuid.UUID, partition: int, capacity: int = DEFAULT_CAPACITY) -> None:
        """A partition more; `capacity`: of the topic's set, if there is none."""
        self._topics.compute(topic_id)
        found = self._sets.get(topic_id)
        if found is None:
            found = self._sets[topic_id] = (HashTable(int_hash, capacity), set())
        found[0].put(partition)
        found[1].add(partition)

    def remove(self, topic_id: uuid.UUID, partition: int) -> None:
        """A partition less."""
        found = self._sets.get(topic_id)
        if found is not None:
            found[0].remove(partition)
            found[1].discard(partition)
            if not found[1]:
                self.drop(topic_id)

    def drop(self, topic_id: uuid.UUID) -> None:
        """A topic less."""
        self._topics.remove(topic_id)
        self._sets.pop(topic_id, None)

    def finished(self) -> Assignment:
        """As Java lists it."""
        return {topic_id: tuple(self._sets[topic_id][0].listed()) for topic_id in self._topics.listed()}
