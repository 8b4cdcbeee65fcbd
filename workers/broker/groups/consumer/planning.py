"""What a request of a member comes to: records, an answer, timers. Nothing is changed yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compactd.config.settings import DaemonConfig
from compactd.workers.broker.context import Context
from compactd.workers.broker.groups.consumer import range_assignor, uniform_assignor
from compactd.workers.broker.groups.consumer.assignment import Assignor, GroupSpec, MemberSpec
from compactd.workers.broker.groups.consumer.changes import (
    Change,
    Epoch,
    PartitionMetadata,
    Target,
    TargetEpoch,
    records_of,
)
from compactd.workers.broker.groups.consumer.group import ConsumerGroup, Subscriptions
from compactd.workers.broker.groups.consumer.java import hash_set_capacity, listed
from compactd.workers.broker.groups.consumer.member import Assignment, ConsumerMember
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import Moment
from compactd.workers.broker.groups.records import KeyValue
from compactd.workers.broker.transactions.java_order import string_hash

ASSIGNORS: dict[str, Assignor] = {"uniform": uniform_assignor.assign, "range": range_assignor.assign}


class GroupSettings:
    """Settings of consumer groups: those of the broker, and in their place those of a group. Times in ms."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._image = context.image

    @property
    def _config(self) -> DaemonConfig:
        """Some may change."""
        return self._context.config

    def _of(self, group_id: str, name: str, default: int) -> int:
        stored = self._image.group_configs.get(group_id, {}).get(f"consumer.{name}")
        return default if stored is None else int(stored)

    def session_timeout_ms(self, group_id: str) -> int:
        config = self._config
        value = self._of(group_id, "session.timeout.ms", config.group_consumer_session_timeout_ms)
        low, high = config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms
        return min(max(value, low), high)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        config = self._config
        value = self._of(group_id, "heartbeat.interval.ms", config.group_consumer_heartbeat_interval_ms)
        low, high = config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms
        return min(max(value, low), high)

    def assignment_interval_ms(self, group_id: str) -> int:
        config = self._config
        value = self._of(group_id, "assignment.interval.ms", config.group_consumer_assignment_interval_ms)
        low, high = config.group_consumer_min_assignment_interval_ms, config.group_consumer_max_assignment_interval_ms
        return min(max(value, low), high)

    @property
    def assignors(self) -> tuple[str, ...]:
        """Names, the default first."""
        return tuple(self._config.group_consumer_assignors)

    @property
    def max_size(self) -> int:
        return self._config.group_consumer_max_size

    @property
    def regex_refresh_ms(self) -> int:
        return self._config.group_consumer_regex_refresh_interval_ms

    @property
    def _policy(self) -> str:
        return self._config.group_consumer_migration_policy.lower()

    @property
    def may_upgrade(self) -> bool:
        """A classic group may become a consumer group while members are in it."""
        return self._policy in ("upgrade", "bidirectional")

    @property
    def may_downgrade(self) -> bool:
        """The other way round."""
        return self._policy in ("downgrade", "bidirectional")

    @property
    def may_migrate(self) -> bool:
        """Either way."""
        return self._policy != "disabled"


@dataclass(slots=True)
class Plan:
    """To be written as one batch, and then to be done."""

    group: ConsumerGroup
    now: Moment
    answer: Any = None
    #: Records in front of those of the changes, which are not of a consumer group.
    first: list[KeyValue] = field(default_factory=list)
    #: Changes that `group` has already: it is a new one that nobody knows.
    made: list[Change] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    #: Records behind them.
    last: list[KeyValue] = field(default_factory=list)
    #: What else is to be done once all is written: timers.
    then: list[Callable[[], None]] = field(default_factory=list)
    #: Regular expressions to be resolved.
    resolve: frozenset[str] = frozenset()
    #: A classic group, empty, that this one may become, and how many members those may have.
    classic: ClassicGroup | None = None
    classic_max_size: int = 0
    #: The group became this one.
    becomes: ClassicGroup | None = None

    def records(self) -> list[KeyValue]:
        group_id = self.group.group_id
        return [
            *self.first,
            *records_of(group_id, self.made),
            *records_of(group_id, self.changes),
            *self.last,
        ]

    def apply(self) -> None:
        """All is written."""
        if self.becomes is None:
            for change in self.changes:
                self.group.apply(change)
        for call in self.then:
            call()


@dataclass(frozen=True, slots=True)
class Planner:
    """What all requests have in common: epochs and targets."""

    topics: Topics
    settings: GroupSettings

    def bump_epoch(self, plan: Plan, old: ConsumerMember, new: ConsumerMember, bump: bool) -> tuple[int, bool]:
        """The group's epoch with a member changed, and whether all members subscribe to the same then."""
        group = plan.group
        if not bump and group.checked_version == self.topics.version:
            return group.epoch, _is_homogeneous(group.subscriptions, group.regex_members, len(group.members))
        subscriptions = group.subscriptions_with(old, new)
        epoch = group.epoch
        metadata_hash = self.topics.hash_of(subscriptions.names())
        if bump or metadata_hash != group.metadata_hash:
            epoch += 1
            plan.changes.append(Epoch(epoch, metadata_hash))
        self.checked(plan)
        if group.has_partition_metadata:
            plan.changes.append(PartitionMetadata())
        count = len(group.members)
        if new.member_id not in group.members and (new.instance_id is None or new.instance_id not in group.static):
            count += 1
        return epoch, _is_homogeneous(subscriptions, group.regex_members_with(old, new), count)

    def checked(self, plan: Plan) -> None:
        """The hash is that of the catalogue as it is now."""
        version = self.topics.version

        def set_version() -> None:
            plan.group.checked_version = version

        plan.then.append(set_version)

    def retarget(
        self,
        plan: Plan,
        epoch: int,
        old: ConsumerMember,
        new: ConsumerMember,
        homogeneous: bool,
    ) -> tuple[int, Assignment]:
        """Computes the target anew where that is due. The epoch of the target, and that of `new`."""
        group, now = plan.group, plan.now
        present = group.target_of(self._holder(group, new))
        if group.assignment_epoch >= epoch:
            return group.assignment_epoch, present
        interval = self.settings.assignment_interval_ms(group.group_id)
        if group.assignment_ms and interval and now.wall_ms < group.assignment_ms + interval:
            return group.assignment_epoch, present
        name = group.preferred_assignor_with(old, new)
        assignor = ASSIGNORS[name if name in self.settings.assignors else self.settings.assignors[0]]
        members = [group.members[each] for each in group.members.listed()]
        targets = dict(group.targets)
        replaced = group.static_member(new.instance_id)
        if replaced is not None and replaced.member_id != new.member_id:
            members = [each for each in members if each.member_id != replaced.member_id]
            if replaced.member_id in targets:
                targets[new.member_id] = targets.pop(replaced.member_id)
        if new.member_id in group.members:
            members = [new if each.member_id == new.member_id else each for each in members]
        else:
            members.append(new)
        spec = self.spec(group, members, targets, homogeneous)
        found = assignor(spec)
        for member_id in spec.members:
            target = found.get(member_id, {})
            before = targets.get(member_id)
            if before is None or _sets(before) != _sets(target):
                plan.changes.append(Target(member_id, target))
        plan.changes.append(TargetEpoch(epoch, now.wall_ms))
        return epoch, found.get(new.member_id, {})

    def spec(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        targets: dict[str, Assignment],
        homogeneous: bool,
    ) -> GroupSpec:
        """What an assignor is given."""
        by_id = {member.member_id: member for member in members}
        specs = {
            member_id: self._member_spec(group, by_id[member_id], targets.get(member_id, {}))
            for member_id in listed(by_id, string_hash)
        }
        assigned = frozenset(
            (topic_id, partition)
            for target in group.targets.values()
            for topic_id, partitions in target.items()
            for partition in partitions
        )
        return GroupSpec(specs, homogeneous, assigned, self.topics.partitions_of)

    def _member_spec(self, group: ConsumerGroup, member: ConsumerMember, target: Assignment) -> MemberSpec:
        names = self.names_of(group, member)
        return MemberSpec(member.instance_id, tuple(self.topics.ids_of(names)), len(names), target)

    def names_of(self, group: ConsumerGroup, member: ConsumerMember) -> list[str]:
        """What a member subscribes to, by name and by regular expression, in the order of Kafka's sets."""
        names = _listed_names(member.said_names)
        resolved = None if member.regex is None else group.regexes.get(member.regex)
        if resolved is None or not resolved.topics:
            return names
        found = _listed_names(sorted(resolved.topics))
        large, small = (names, found) if len(names) > len(found) else (found, names)
        known = set(large)
        return [*large, *(name for name in small if name not in known)]

    @staticmethod
    def _holder(group: ConsumerGroup, member: ConsumerMember) -> str:
        """Whose target a member has: that of the one it replaces."""
        if member.instance_id is None:
            return member.member_id
        return group.static.get(member.instance_id, member.member_id)


def _is_homogeneous(subscriptions: Subscriptions, regexes: Mapping[str, int], count: int) -> bool:
    """All members subscribe to the same: to the same names, or to one regular expression and nothing else."""
    names = subscriptions.names()
    if not regexes:
        return all(subscriptions.by_name[name] == count for name in names)
    if next(iter(regexes.values())) != count:
        return False
    return all(subscriptions.by_regex[name] == 1 and subscriptions.by_name[name] <= 0 for name in names)


def _listed_names(names: Sequence[str]) -> list[str]:
    return listed(names, string_hash, hash_set_capacity(len(names)))


def _sets(assignment: Assignment) -> dict[Any, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in assignment.items()}
