"""What an assignor is given and what it makes (Kafka's GroupSpec and MemberAssignment)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compactd.workers.broker.groups.consumer.java import (
    DEFAULT_CAPACITY,
    capacity_of,
    hash_set_capacity,
    int_hash,
    listed,
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

    __slots__ = ("_capacity", "_most", "_sizes", "topics")

    def __init__(self, before: Assignment) -> None:
        self.topics: dict[uuid.UUID, dict[int, None]] = {each: dict.fromkeys(before[each]) for each in before}
        self._capacity = capacity_of(len(before))
        self._most = len(before)
        #: Capacity of each topic's set, and how many it ever had.
        self._sizes = {each: [hash_set_capacity(len(before[each])), len(before[each])] for each in before}

    def add(self, topic_id: uuid.UUID, partition: int) -> None:
        """A partition more."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = {}
            self._sizes[topic_id] = [DEFAULT_CAPACITY, 0]
            self._most = max(self._most, len(self.topics))
        found[partition] = None
        sizes = self._sizes[topic_id]
        sizes[1] = max(sizes[1], len(found))

    def remove(self, topic_id: uuid.UUID, partition: int) -> None:
        """A partition less."""
        found = self.topics.get(topic_id)
        if found is not None:
            found.pop(partition, None)
            if not found:
                self.drop(topic_id)

    def drop(self, topic_id: uuid.UUID) -> None:
        """A topic less."""
        self.topics.pop(topic_id, None)

    def finished(self) -> Assignment:
        """As Java lists it."""
        return {
            topic_id: tuple(listed(self.topics[topic_id], int_hash, _grown(*self._sizes[topic_id])))
            for topic_id in listed(self.topics, uuid_hash, _grown(self._capacity, self._most))
        }


def _grown(capacity: int, most: int) -> int:
    while most > capacity * 3 // 4:
        capacity *= 2
    return capacity
