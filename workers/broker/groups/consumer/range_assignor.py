"""The assignor "range": of each topic a member gets partitions side by side, in the order of members (Kafka's RangeAssignor)."""

from __future__ import annotations

import uuid
from collections import Counter
from functools import partial

from compactd.workers.broker.groups.consumer.assignment import GroupAssignment, GroupSpec, MemberSpec
from compactd.workers.broker.groups.consumer.java import capacity_of, listed, uuid_hash


class _Range:
    """A topic: what is left of it to be given out."""

    __slots__ = ("count", "extra", "next", "quota")

    def __init__(self, count: int, members: int) -> None:
        self.count = count
        self.quota, self.extra = divmod(count, members)
        self.next = 0

    def take(self) -> tuple[int, ...]:
        size = self.quota + (self.extra > 0)
        self.extra -= self.extra > 0
        start, self.next = self.next, min(self.next + size, self.count)
        return tuple(range(start, self.next))


def assign(group: GroupSpec) -> GroupAssignment:
    """Members with an instance id come first, so that they get the same again. Nobody keeps anything on purpose."""
    order = sorted(group.members, key=partial(_place, group))
    if not order:
        return {}
    if group.homogeneous:
        first = group.members[order[0]].topics
        subscribers = Counter(dict.fromkeys(first, len(order)))
        topics_of = dict.fromkeys(order, first)
        size_of = dict.fromkeys(order, len(first))
    else:
        subscribers = Counter(topic_id for member in group.members.values() for topic_id in member.topics)
        topics_of = {member_id: member.topics for member_id, member in group.members.items()}
        size_of = {member_id: member.subscribed for member_id, member in group.members.items()}
    ranges = {topic_id: _Range(group.partitions_of(topic_id), count) for topic_id, count in subscribers.items()}
    assigned: dict[str, dict[uuid.UUID, tuple[int, ...]]] = {}
    for member_id in order:
        taken = {topic_id: found for topic_id in topics_of[member_id] if (found := ranges[topic_id].take())}
        capacity = capacity_of(int(size_of[member_id] / 0.75 + 1))
        assigned[member_id] = {topic_id: taken[topic_id] for topic_id in listed(taken, uuid_hash, capacity)}
    return assigned


def _place(group: GroupSpec, member_id: str) -> tuple[bool, bytes]:
    member: MemberSpec = group.members[member_id]
    instance_id = member.instance_id
    name = member_id if instance_id is None else instance_id
    # As Java compares texts.
    return instance_id is None, name.encode("utf-16-be", "surrogatepass")
