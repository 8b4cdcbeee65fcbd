"""One step of a member towards its target (Kafka's CurrentAssignmentBuilder; facts: kafka-protocol 14.3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import (
    DEFAULT_CAPACITY,
    HashTable,
    copied_capacity,
    hash_map,
    int_hash,
    listed,
    uuid_hash,
)
from compactd.workers.broker.groups.consumer.member import Assignment, ConsumerMember, MemberState, Owned
from compactd.workers.broker.groups.member import GroupError

#: What a client says that it has; None: it did not say.
Reported = Mapping[uuid.UUID, Sequence[int]] | None


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is taken by."""

    target_epoch: int
    target: Assignment
    #: Ids of the topics that the member subscribes to now.
    subscribed: frozenset[uuid.UUID]
    #: The subscription changed with this very request.
    resubscribed: bool
    #: Epoch of whoever has a partition, -1: nobody.
    owner_epoch: Callable[[uuid.UUID, int], int]
    reported: Reported

    def of(self, member: ConsumerMember) -> ConsumerMember:
        """The member after it; the same one where there is none to take. GroupError: it has to join anew."""
        if member.state is MemberState.STABLE:
            if member.epoch != self.target_epoch:
                return self._next(member, member.epoch)
            return self._unsubscribed(member) if self.resubscribed else member
        if member.state is MemberState.UNREVOKED and self._has(member.revoking):
            return self._unsubscribed(member) if self.resubscribed else member
        if member.state is MemberState.UNKNOWN:
            if self.reported is None or self.reported:
                raise GroupError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
            return self._next(member, self.target_epoch)
        return self._next(member, member.epoch)

    def _has(self, owned: Owned) -> bool:
        """Whether the client may have one of these still."""
        if self.reported is None:
            return True
        return any(
            partition in owned.get(topic_id, {})
            for topic_id, partitions in self.reported.items()
            for partition in partitions
        )

    def _unsubscribed(self, member: ConsumerMember) -> ConsumerMember:
        """Takes what it does not subscribe to any more; nothing is added."""
        dropped = {topic_id: each for topic_id, each in member.assigned.items() if topic_id not in self.subscribed}
        drops_all = not self.subscribed and not member.revoking
        if not dropped and not drops_all:
            return member
        if drops_all:
            kept: Owned = {}
            revoking: Owned = member.assigned
        else:
            copy = hash_map(member.assigned, uuid_hash, copied_capacity(len(member.assigned)))
            kept = {topic_id: each for topic_id, each in copy.items() if topic_id in self.subscribed}
            merged: dict[uuid.UUID, Mapping[int, int]] = dict(member.revoking)
            table = HashTable(uuid_hash, copied_capacity(len(member.revoking)))
            for topic_id in member.revoking:
                table.put(topic_id)
            for topic_id, epochs in dropped.items():
                table.compute(topic_id)
                merged[topic_id] = _merged(merged[topic_id], epochs) if topic_id in merged else epochs
            revoking = {topic_id: merged[topic_id] for topic_id in table.listed()}
        if revoking and self._has(revoking):
            return member.moved_to(member.epoch, MemberState.UNREVOKED, kept, revoking)
        return member.moved_to(member.epoch, member.state, kept)

    def _next(self, member: ConsumerMember, epoch: int) -> ConsumerMember:
        kept: dict[uuid.UUID, dict[int, int]] = {}
        revoking: dict[uuid.UUID, dict[int, int]] = {}
        adding: dict[uuid.UUID, list[int]] = {}
        is_waiting = False
        for topic_id in self._topics(member):
            target = set(self.target.get(topic_id, ())) if topic_id in self.subscribed else set()
            has = member.assigned.get(topic_id, {})
            stays = {partition: since for partition, since in has.items() if partition in target}
            goes = {partition: since for partition, since in has.items() if partition not in target}
            missing = [partition for partition in self.target.get(topic_id, ()) if partition in target - stays.keys()]
            mine = member.revoking.get(topic_id, {})
            free = [each for each in missing if each in mine or self.owner_epoch(topic_id, each) == -1]
            is_waiting |= len(free) < len(missing)
            size = copied_capacity(len(has))
            if stays:
                kept[topic_id] = hash_map(stays, int_hash, size)
            if goes:
                revoking[topic_id] = hash_map(goes, int_hash, size)
            if free:
                adding[topic_id] = free
        if revoking and self._has(revoking):
            return member.moved_to(epoch, MemberState.UNREVOKED, _ordered(kept), _ordered(revoking))
        table = HashTable(uuid_hash)
        for topic_id in kept:
            table.put(topic_id)
        for topic_id, partitions in hash_map(adding, uuid_hash).items():
            table.compute(topic_id)
            size = copied_capacity(len(member.assigned.get(topic_id, {}))) if topic_id in kept else DEFAULT_CAPACITY
            both = kept.get(topic_id, {}) | dict.fromkeys(partitions, self.target_epoch)
            kept[topic_id] = hash_map(both, int_hash, size)
        state = MemberState.UNRELEASED if is_waiting else MemberState.STABLE
        return member.moved_to(self.target_epoch, state, {topic_id: kept[topic_id] for topic_id in table.listed()}, {})

    def _topics(self, member: ConsumerMember) -> list[uuid.UUID]:
        size = max(int(len(self.target) / 0.75) + 1, DEFAULT_CAPACITY)
        return listed(dict.fromkeys([*self.target, *member.assigned]), uuid_hash, 1 << (size - 1).bit_length())


def _merged(first: Mapping[int, int], second: Mapping[int, int]) -> Mapping[int, int]:
    table = HashTable(int_hash, copied_capacity(len(first)))
    table.put_all(first)
    table.put_all(second)
    return {partition: second.get(partition, first.get(partition, 0)) for partition in table.listed()}


def _ordered(owned: dict[uuid.UUID, dict[int, int]]) -> Owned:
    return hash_map(owned, uuid_hash)
