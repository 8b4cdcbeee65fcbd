"""What a request of a member of a streams group comes to: records, an answer, timers. See `consumer.planning`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import listed
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.member import NEVER, GroupError, Moment
from compactd.workers.broker.groups.records import KeyValue
from compactd.workers.broker.groups.streams import changes
from compactd.workers.broker.groups.streams.assignor import ASSIGNORS, GroupSpec, MemberSpec
from compactd.workers.broker.groups.streams.changes import Change, Metadata, records_of
from compactd.workers.broker.groups.streams.configured import ConfiguredTopology
from compactd.workers.broker.groups.streams.group import StreamsGroup
from compactd.workers.broker.groups.streams.member import StreamsMember, TaskOffsets
from compactd.workers.broker.groups.streams.settings import RACK_AWARE_TAGS, STANDBY_REPLICAS, StreamsSettings
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.groups.streams.tasks import NO_TASKS, TaskTuple
from compactd.workers.broker.transactions.java_order import string_hash

#: Code and text of an answer's status.
StatusRow = tuple[int, str]


@dataclass(slots=True)
class Plan:
    """To be written as one batch, and then to be done.

    A group that is not there yet is planned with as if it were; what is written makes another one. What was only noted in
    memory is lost with the first one, in Kafka too: its next heartbeat finds it anew.
    """

    group: StreamsGroup
    now: Moment
    #: Where the log ends.
    log_end: int
    #: A group of this id is there; it may be a classic one that ends.
    is_known: bool = True
    answer: Any = None
    #: Records in front of those of the changes, which are not of a streams group.
    first: list[KeyValue] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    #: Timers of the group that is there then.
    then: list[Callable[[StreamsGroup], None]] = field(default_factory=list)
    #: What `group` keeps in memory.
    noted: list[Callable[[], None]] = field(default_factory=list)

    def records(self) -> list[KeyValue]:
        return [*self.first, *records_of(self.group.group_id, self.changes)]

    def apply(self, group: StreamsGroup) -> None:
        """All is written; `group` is the one that it is about."""
        for change in self.changes:
            group.apply(change)
        for note in self.noted:
            note()
        for call in self.then:
            call(group)


@dataclass(frozen=True, slots=True)
class Planner:
    """What all requests have in common: epochs and targets."""

    topics: Topics
    settings: StreamsSettings

    def bump(
        self, plan: Plan, metadata_hash: int, validated_topology_epoch: int, configs: tuple[tuple[str, str], ...]
    ) -> int:
        """The group's next epoch."""
        before = plan.group.metadata
        metadata = Metadata(
            before.epoch + 1,
            metadata_hash,
            validated_topology_epoch,
            configs,
            before.stored_description_epoch,
            before.failed_description_epoch,
        )
        plan.changes.append(changes.Epoch(metadata))
        return metadata.epoch

    def retarget(
        self,
        plan: Plan,
        epoch: int,
        new: StreamsMember | None,
        configured: ConfiguredTopology,
        configs: tuple[tuple[str, str], ...],
        status: list[StatusRow],
        *,
        is_refined: bool = False,
    ) -> tuple[int, TaskTuple]:
        """Computes the target anew where that is due. The epoch of the target, and that of `new`. GroupError.

        `is_refined`: only what members have differed from it, so it stands with another epoch.
        """
        group, now = plan.group, plan.now
        if group.initial_delay != NEVER:
            status.append(
                (Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay.")
            )
            return group.assignment_epoch, NO_TASKS
        present = NO_TASKS if new is None else group.target_of(_holder(group, new))
        if group.assignment_epoch >= epoch:
            return group.assignment_epoch, present
        if is_refined and group.assignment_epoch >= group.epoch:
            plan.changes.append(changes.TargetEpoch(epoch, group.assignment_ms))
            return epoch, present
        interval = self.settings.assignment_interval_ms(group.group_id)
        if group.assignment_ms and interval and now.wall_ms < group.assignment_ms + interval:
            status.append((Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."))
            return group.assignment_epoch, present
        members, targets = _with(group, new)
        found = self._assigned(group, members, configured, configs)
        for member_id in members:
            target = found.get(member_id, NO_TASKS)
            if targets.get(member_id) != target:
                plan.changes.append(changes.Target(member_id, target))
        plan.changes.append(changes.TargetEpoch(epoch, now.wall_ms))
        return epoch, NO_TASKS if new is None else found.get(new.member_id, NO_TASKS)

    def _assigned(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsMember],
        configured: ConfiguredTopology,
        configs: tuple[tuple[str, str], ...],
    ) -> Mapping[str, TaskTuple]:
        if not configured.is_ready or configured.subtopologies is None:
            return {}
        settings = dict(configs)
        tags = settings.get(RACK_AWARE_TAGS, "")
        spec = GroupSpec(
            {member_id: _spec(member, group.task_offsets.get(member_id)) for member_id, member in members.items()},
            int(settings.get(STANDBY_REPLICAS, 0)),
            tuple(tags.split(",")) if tags else (),
        )
        return ASSIGNORS[self.settings.assignor(group.group_id)](spec, configured.subtopologies)


def _holder(group: StreamsGroup, member: StreamsMember) -> str:
    """Whose target a member has: that of the one it replaces."""
    if member.instance_id is None:
        return member.member_id
    return group.static.get(member.instance_id, member.member_id)


def _with(group: StreamsGroup, new: StreamsMember | None) -> tuple[dict[str, StreamsMember], dict[str, TaskTuple]]:
    """Members, in the order of a HashMap, and targets with one member changed, added, or in place of another."""
    members = {member_id: group.members[member_id] for member_id in group.members.listed()}
    targets = dict(group.targets)
    if new is not None:
        members[new.member_id] = new
        replaced = _holder(group, new)
        if replaced != new.member_id:
            if replaced in targets:
                targets[new.member_id] = targets.pop(replaced)
            members.pop(replaced, None)
    return {member_id: members[member_id] for member_id in listed(members, string_hash)}, targets


def _spec(member: StreamsMember, offsets: TaskOffsets | None) -> MemberSpec:
    known = offsets or TaskOffsets()
    has = member.assigned.without_epochs()
    return MemberSpec(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        process_id=member.process_id,
        client_tags=member.client_tags,
        active=has.active,
        standby=has.standby,
        warmup=has.warmup,
        task_offsets=known.reached,
        task_end_offsets=known.ends,
    )


def server_error() -> GroupError:
    """Where Kafka comes to something that it did not expect; the client is told no more."""
    return GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
