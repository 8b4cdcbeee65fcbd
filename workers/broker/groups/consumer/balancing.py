"""The assignor "uniform" where members subscribe to different topics (Kafka's UniformHeterogeneousAssignmentBuilder).

What has an owner stays; what has none goes to whoever has least; then partitions move, topic by topic, from those with
most to those with least, as long as that makes a difference.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from compactd.workers.broker.groups.consumer.assignment import Draft, GroupAssignment, GroupSpec
from compactd.workers.broker.groups.consumer.java import capacity_of

_MOST_ROUNDS = 16
_NOBODY = -1


def assign(group: GroupSpec) -> GroupAssignment:
    """Members by their place in `group.members`."""
    return _Builder(group).build()


class _Builder:
    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._ids = list(group.members)
        #: Members by topic.
        self._subscribers: dict[uuid.UUID, list[int]] = {}
        for index, member in enumerate(group.members.values()):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(index)
        self._sizes = [0] * len(self._ids)
        self._drafts = [Draft(member.assignment) for member in group.members.values()]
        self._changed = [False] * len(self._ids)
        self._owners = {topic_id: [_NOBODY] * group.partitions_of(topic_id) for topic_id in self._subscribers}

    def build(self) -> GroupAssignment:
        if not self._subscribers:
            return {}
        self._keep()
        for topic_id in self._sorted([each for each, owners in self._owners.items() if _NOBODY in owners]):
            balance = _Balance(self._sizes, self._subscribers[topic_id])
            for partition, owner in enumerate(self._owners[topic_id]):
                if owner == _NOBODY:
                    self._give(topic_id, partition, balance.least_loaded())
        self._balance()
        return {
            member_id: self._drafts[index].finished()
            if self._changed[index]
            else self._group.members[member_id].assignment
            for index, member_id in enumerate(self._ids)
        }

    def _sorted(self, topics: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """Most partitions for each subscriber first, then fewest subscribers."""

        def place(topic_id: uuid.UUID) -> tuple[float, int, int, int]:
            subscribers = len(self._subscribers[topic_id])
            high, low = topic_id.int >> 64, topic_id.int & (1 << 64) - 1
            # Java compares the halves as signed numbers.
            return (
                -len(self._owners[topic_id]) / subscribers,
                subscribers,
                high - (high >> 63 << 64),
                low - (low >> 63 << 64),
            )

        return sorted(topics, key=place)

    def _keep(self) -> None:
        for index, member in enumerate(self._group.members.values()):
            subscribed = set(member.topics)
            for topic_id, partitions in member.assignment.items():
                if topic_id not in subscribed:
                    self._drafts[index].drop(topic_id)
                    self._changed[index] = True
                    continue
                self._sizes[index] += len(partitions)
                owners = self._owners[topic_id]
                for partition in partitions:
                    if partition < len(owners):
                        owners[partition] = index

    def _balance(self) -> None:
        order = self._sorted([each for each, members in self._subscribers.items() if len(members) > 1])
        last_change = -1
        for _ in range(_MOST_ROUNDS):
            for place, topic_id in enumerate(order):
                if place == last_change:
                    return
                if self._balance_topic(topic_id) or last_change == -1:
                    last_change = place

    def _balance_topic(self, topic_id: uuid.UUID) -> int:
        """How many partitions moved."""
        balance = _Balance(self._sizes, self._subscribers[topic_id])
        if balance.difference <= 1:
            return 0
        owners = self._owners[topic_id]
        #: Partitions of each member, ascending; the last one goes first.
        of_member: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            of_member.setdefault(owner, []).append(partition)
        moved = 0
        while not balance.is_balanced:
            giver = balance.most_loaded()
            while giver != _NOBODY and not of_member.get(giver):
                balance.exclude_most_loaded()
                giver = balance.most_loaded()
            if giver == _NOBODY:
                break
            partition = of_member[giver].pop()
            taker = balance.least_loaded()
            if balance.is_balanced:
                break
            self._give(topic_id, partition, taker)
            moved += 1
        return moved

    def _give(self, topic_id: uuid.UUID, partition: int, taker: int) -> None:
        giver = self._owners[topic_id][partition]
        if giver != _NOBODY:
            self._drafts[giver].remove(topic_id, partition)
            self._changed[giver] = True
            self._sizes[giver] -= 1
        subscribers = len(self._subscribers[topic_id])
        expected = (len(self._owners[topic_id]) + subscribers - 1) // subscribers
        self._drafts[taker].add(topic_id, partition, capacity_of(int(expected / 0.75 + 1)))
        self._changed[taker] = True
        self._sizes[taker] += 1
        self._owners[topic_id][partition] = taker


class _Balance:
    """The subscribers of a topic from the one with fewest partitions to the one with most, looked at from both ends.

    From below a range of members is filled up level by level, from above another one is taken from.
    """

    def __init__(self, sizes: list[int], members: list[int]) -> None:
        self._sizes = sizes
        self._order = sorted(members, key=lambda index: (sizes[index], index))
        count = len(members)
        self._low_end = 0
        self._low_level = sizes[self._order[0]] - 1
        self._low_next = 0
        self._high_start = self._high_end = count
        self._high_level = sizes[self._order[-1]] + 1
        self._high_next = count - 1
        self.difference = sizes[self._order[-1]] - sizes[self._order[0]]

    @property
    def is_balanced(self) -> bool:
        return self._high_level - self._low_level <= 1

    def least_loaded(self) -> int:
        """Who gets the next partition."""
        if self._low_next >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._order) and self._sizes[self._order[self._low_end]] == self._low_level:
                self._low_end += 1
            self._low_next = 0
        self._low_next += 1
        return self._order[self._low_next - 1]

    def most_loaded(self) -> int:
        """Who gives the next partition; -1: nobody is left who could."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                self._high_level = self._sizes[self._order[self._high_start - 1]]
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._sizes[self._order[self._high_start - 1]] == self._high_level:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return _NOBODY
        self._high_next -= 1
        return self._order[self._high_next + 1]

    def exclude_most_loaded(self) -> None:
        """The member that was named last has nothing of this topic to give."""
        place, end = self._high_next + 1, self._high_end - 1
        self._order[place], self._order[end] = self._order[end], self._order[place]
        self._high_end -= 1
