"""A consumer group (KIP-848): members, what they are to have and what they have (Kafka's ConsumerGroup, ModernGroup).

Changed only by `apply`, with the changes that are in the log. What is due when is kept beside: it is not in the log.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer import changes
from compactd.workers.broker.groups.consumer.changes import Change, ResolvedRegex
from compactd.workers.broker.groups.consumer.java import HashTable, TimelineMap, copied_capacity
from compactd.workers.broker.groups.consumer.member import LEAVING, Assignment, ConsumerMember, Owned
from compactd.workers.broker.groups.deadlines import Deadlines, MemberDeadlines
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.transactions.java_order import string_hash


class GroupPhase(StrEnum):
    """States of a group, by the names that clients are told."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True)
class Subscriptions:
    """How many members name a topic, and how many regular expressions stand for it."""

    by_name: Counter[str] = field(default_factory=Counter)
    by_regex: Counter[str] = field(default_factory=Counter)

    def names(self) -> set[str]:
        return {name for counts in (self.by_name, self.by_regex) for name, count in counts.items() if count > 0}

    def copy(self) -> Subscriptions:
        return Subscriptions(self.by_name.copy(), self.by_regex.copy())

    def replace_member(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            self.by_name.subtract(old.topic_names)
        if new is not None:
            self.by_name.update(new.topic_names)

    def replace_regex(self, old: Iterable[str], new: Iterable[str]) -> None:
        self.by_regex.subtract(old)
        self.by_regex.update(new)


class ConsumerGroup:
    """One group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        #: When the target was computed; 0: that does not keep anybody waiting.
        self.assignment_ms = 0
        self.members: TimelineMap[ConsumerMember] = TimelineMap()
        #: Instance id to member id.
        self.static: dict[str, str] = {}
        self.targets: TimelineMap[Assignment] = TimelineMap()
        self.regexes: TimelineMap[ResolvedRegex] = TimelineMap()
        #: Members by regular expression.
        self.regex_members: Counter[str] = Counter()
        self.subscriptions = Subscriptions()
        self.assignors: TimelineMap[int] = TimelineMap()
        #: The epoch of whoever has a partition.
        self.owners: dict[tuple[uuid.UUID, int], int] = {}
        #: A record of before 4.1 is there, to be deleted.
        self.has_partition_metadata = False
        #: Version of the catalogue with which the hash was compared last; -1: compare it.
        self.checked_version = -1
        self.deadlines = MemberDeadlines()
        #: Its regular expressions are being resolved.
        self.is_resolving = False

    # ---- what it is

    @property
    def phase(self) -> GroupPhase:
        if not self.members:
            return GroupPhase.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupPhase.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupPhase.STABLE
        return GroupPhase.RECONCILING

    def member(self, member_id: str) -> ConsumerMember:
        """GroupError: UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise GroupError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return found

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that has an instance id."""
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic, by name or by a regular expression."""
        subscriptions = self.subscriptions
        return subscriptions.by_name[topic] > 0 or subscriptions.by_regex[topic] > 0

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, {})

    def owner_epoch(self, topic_id: uuid.UUID, partition: int) -> int:
        """The epoch of the member that has a partition, or has still to give it back; -1: it is free."""
        return self.owners.get((topic_id, partition), -1)

    def waits_for_partitions(self, member: ConsumerMember) -> bool:
        """Whether a member that waits for partitions has to wait on."""
        return any(
            self.owner_epoch(topic_id, partition) != -1
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
            if partition not in member.assigned.get(topic_id, {})
        )

    # ---- what it would be with a change

    def subscriptions_with(self, old: ConsumerMember | None, new: ConsumerMember | None) -> Subscriptions:
        """With one member in place of another."""
        found = self.subscriptions.copy()
        found.replace_member(old, new)
        old_regex = None if old is None else old.regex
        if old_regex is not None and (new is None or new.regex != old_regex) and self.regex_members[old_regex] == 1:
            resolved = self.regexes.get(old_regex)
            if resolved is not None:
                found.replace_regex(resolved.topics, ())
        return found

    def subscriptions_without(self, gone: Iterable[ConsumerMember], regexes: Iterable[str]) -> Subscriptions:
        """Without some members, and without regular expressions that only they had."""
        found = self.subscriptions.copy()
        for member in gone:
            found.replace_member(member, None)
        for regex in regexes:
            resolved = self.regexes.get(regex)
            if resolved is not None:
                found.replace_regex(resolved.topics, ())
        return found

    def regex_members_with(self, old: ConsumerMember | None, new: ConsumerMember | None) -> Counter[str]:
        """Members by regular expression, with one member in place of another."""
        found = self.regex_members.copy()
        _count(found, None if old is None else old.regex, -1)
        _count(found, None if new is None else new.regex, 1)
        return found

    def preferred_assignor(self) -> str | None:
        """The one that most members ask for."""
        return _most(self.assignors, self.assignors.listed())

    def preferred_assignor_with(self, old: ConsumerMember | None, new: ConsumerMember | None) -> str | None:
        """With one member in place of another."""
        counts = dict(self.assignors)
        table = HashTable(string_hash, copied_capacity(len(counts)))
        for name in self.assignors.listed():
            table.put(name)
        for member, step in ((old, -1), (new, 1)):
            if member is None or member.assignor is None:
                continue
            counts[member.assignor] = counts.get(member.assignor, 0) + step
            if counts[member.assignor] > 0:
                table.compute(member.assignor)
            else:
                table.remove(member.assignor)
        return _most(counts, table.listed())

    # ---- changes

    def apply(self, change: Change) -> None:
        """Takes a record in. MalformedError: Kafka would not load a log that says so."""
        match change:
            case changes.Epoch(epoch, metadata_hash):
                if epoch is None:
                    self._end()
                else:
                    self.epoch, self.metadata_hash = epoch, metadata_hash
            case changes.TargetEpoch(epoch, computed_ms):
                if epoch is None and self.targets:
                    raise MalformedError(f"the assignment of group {self.group_id} ends, but members have some still")
                self.assignment_epoch, self.assignment_ms = (-1, 0) if epoch is None else (epoch, computed_ms)
            case changes.MemberSaid(member_id, said):
                self._member_said(member_id, said)
            case changes.Target(member_id, partitions):
                if partitions is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = changes.as_stored(partitions)
            case changes.Current(member_id, current):
                self._current(member_id, current)
            case changes.Regex(regex, resolved):
                before = self.regexes.pop(regex, None)
                self.subscriptions.replace_regex(
                    () if before is None else before.topics, () if resolved is None else resolved.topics
                )
                if resolved is not None:
                    self.regexes[regex] = resolved
            case changes.PartitionMetadata(is_there):
                self.has_partition_metadata = is_there
            case _:
                raise TypeError(f"{change!r} is no change of a group")

    def _end(self) -> None:
        if self.members or self.targets or self.assignment_epoch != -1:
            raise MalformedError(f"group {self.group_id} ends, but it has members or an assignment still")

    def _member_said(self, member_id: str, said: ConsumerMember | None) -> None:
        old = self.members.get(member_id)
        if said is None:
            if old is None:
                return
            if old.epoch != LEAVING or member_id in self.targets:
                raise MalformedError(f"member {member_id} of group {self.group_id} is gone, but has partitions still")
            self._put(old, None)
            return
        before = ConsumerMember(member_id) if old is None else old
        new = replace(
            said,
            said_names=tuple(sorted(said.topic_names)),
            epoch=before.epoch,
            previous_epoch=before.previous_epoch,
            state=before.state,
            assigned=before.assigned,
            revoking=before.revoking,
        )
        self._put(old, new)

    def _current(self, member_id: str, current: ConsumerMember | None) -> None:
        old = self.members.get(member_id)
        if current is None:
            if old is not None:
                self._put(old, replace(old, epoch=LEAVING, previous_epoch=LEAVING, assigned={}, revoking={}))
            return
        before = ConsumerMember(member_id) if old is None else old
        new = replace(
            before,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=current.state,
            assigned=changes.owned_as_stored(current.assigned),
            revoking=changes.owned_as_stored(current.revoking),
        )
        self._put(old, new)

    def _put(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        self.subscriptions.replace_member(old, new)
        if old is not None:
            _count(self.regex_members, old.regex, -1)
            self._count_assignor(old.assignor, -1)
            self._disown(old.assigned, old.epoch)
            self._disown(old.revoking, old.epoch)
            if old.instance_id is not None:
                self.static.pop(old.instance_id, None)
        if new is None:
            if old is not None:
                self.members.pop(old.member_id, None)
                self.deadlines.pop(old.member_id, None)
            return
        _count(self.regex_members, new.regex, 1)
        self._count_assignor(new.assignor, 1)
        self._own(new.assigned, new.epoch)
        self._own(new.revoking, new.epoch)
        if new.instance_id is not None:
            self.static[new.instance_id] = new.member_id
        self.members[new.member_id] = new

    def _count_assignor(self, name: str | None, step: int) -> None:
        if name is None:
            return
        count = self.assignors.get(name, 0) + step
        if count > 0:
            self.assignors[name] = count
        else:
            self.assignors.pop(name, None)

    def _own(self, owned: Owned, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            for partition in partitions:
                if self.owners.get((topic_id, partition), epoch - 1) < epoch:
                    self.owners[topic_id, partition] = epoch

    def _disown(self, owned: Owned, epoch: int) -> None:
        """Not where somebody else has it at another epoch."""
        for topic_id, partitions in owned.items():
            for partition in partitions:
                if self.owners.get((topic_id, partition)) == epoch:
                    del self.owners[topic_id, partition]

    # ---- time

    def deadline(self, member_id: str) -> Deadlines:
        """To be set."""
        return self.deadlines.of(member_id)

    def next_deadline(self) -> float:
        """When something is due next, in ticks."""
        return self.deadlines.next()


def _count(counts: Counter[str], key: str | None, step: int) -> None:
    if key is not None:
        counts[key] += step
        if counts[key] <= 0:
            del counts[key]


def _most(counts: Mapping[str, int], order: Iterable[str]) -> str | None:
    best: str | None = None
    for name in order:
        if counts[name] > 0 and (best is None or counts[name] > counts[best]):
            best = name
    return best
