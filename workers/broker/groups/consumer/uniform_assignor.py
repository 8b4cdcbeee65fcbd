"""The assignor "uniform": everybody gets as many partitions as anybody, and keeps what it has (Kafka's UniformAssignor)."""

from __future__ import annotations

import uuid

from compactd.workers.broker.groups.consumer import balancing
from compactd.workers.broker.groups.consumer.assignment import Draft, GroupAssignment, GroupSpec
from compactd.workers.broker.groups.consumer.java import DEFAULT_CAPACITY, capacity_of, listed, uuid_hash
from compactd.workers.broker.groups.consumer.member import Assignment


def assign(group: GroupSpec) -> GroupAssignment:
    """Where all subscribe to the same, exactly equal shares; else nearly so."""
    if not group.members:
        return {}
    return _equal_shares(group) if group.homogeneous else balancing.assign(group)


def _equal_shares(group: GroupSpec) -> GroupAssignment:
    first = next(iter(group.members.values()))
    topics = listed(
        first.topics, uuid_hash, capacity_of(max(int(first.subscribed / 0.75) + 1, DEFAULT_CAPACITY))
    )  # fmt: skip
    if not first.subscribed:
        return {}
    total = sum(group.partitions_of(topic_id) for topic_id in topics)
    free = [
        (topic_id, number)
        for topic_id in topics
        for number in range(group.partitions_of(topic_id))
        if (topic_id, number) not in group.assigned
    ]
    shares = _Shares(set(topics), free, total, len(group.members))
    for member_id, member in group.members.items():
        shares.keep(member_id, member.assignment)
    return shares.fill()


class _Shares:
    """Who keeps what, who may have more, and what is left."""

    def __init__(self, topics: set[uuid.UUID], free: list[tuple[uuid.UUID, int]], total: int, members: int) -> None:
        self._topics = topics
        self._free = free
        self._left = members
        #: What everybody gets, and how many get one more.
        self._share, self._extras = divmod(total, members)
        self._unfilled: list[tuple[str, int]] = []
        self._kept: dict[str, Assignment] = {}
        self._drafts: dict[str, Draft] = {}

    def keep(self, member_id: str, before: Assignment) -> None:
        """The next member keeps what it subscribes to, up to its share."""
        has_extra = self._extras > 0
        quota = self._share + has_extra
        draft: Draft | None = None
        for topic_id, partitions in before.items():
            if topic_id not in self._topics:
                draft = draft or Draft(before)
                draft.drop(topic_id)
            elif len(partitions) <= quota:
                quota -= len(partitions)
            else:
                for partition in partitions[quota:]:
                    draft = draft or Draft(before)
                    draft.remove(topic_id, partition)
                    self._free.append((topic_id, partition))
                quota = 0
        if quota > 0 and has_extra and self._left > self._extras:
            # Somebody else may take the one more; the last ones have to.
            quota -= 1
            has_extra = False
        if quota > 0:
            self._unfilled.append((member_id, quota))
        self._extras -= has_extra
        self._left -= 1
        self._kept[member_id] = before
        if draft is not None:
            self._drafts[member_id] = draft

    def fill(self) -> GroupAssignment:
        """Gives out what is left."""
        left = iter(self._free)
        for member_id, quota in self._unfilled:
            draft = self._drafts.get(member_id)
            if draft is None:
                draft = self._drafts[member_id] = Draft(self._kept[member_id])
            for _, (topic_id, partition) in zip(range(quota), left, strict=False):
                draft.add(topic_id, partition)
        return {
            member_id: self._drafts[member_id].finished() if member_id in self._drafts else before
            for member_id, before in self._kept.items()
        }
