"""Members of the classic protocol in consumer groups, and groups that change from one protocol to the other (14.6).

A classic group whose members are consumers becomes a consumer group when the first member of the new protocol joins it,
and a classic one again when the last of those has left.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.changes import (
    Change,
    Current,
    Epoch,
    MemberSaid,
    PartitionMetadata,
    Regex,
    Target,
    TargetEpoch,
)
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.heartbeat import Heartbeats, known_static, new_id
from compactd.workers.broker.groups.consumer.java import hash_map, hash_set_capacity, int_hash, listed, uuid_hash
from compactd.workers.broker.groups.consumer.member import Assignment, ClassicMetadata, ConsumerMember, MemberState
from compactd.workers.broker.groups.consumer.planning import Plan
from compactd.workers.broker.groups.consumer.protocol import (
    ProtocolError,
    Subscription,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import NEVER, GroupError, Join, JoinAnswer, Member, Moment, State, SyncAnswer
from compactd.workers.broker.groups.records import group_record
from compactd.workers.broker.groups.subscription import CONSUMER


class Migrations(Heartbeats):
    """Adds: what members of the classic protocol ask."""

    __slots__ = ()

    # ---- JoinGroup, SyncGroup, Heartbeat, LeaveGroup in a consumer group

    def plan_join(self, plan: Plan, join: Join, classic_max_size: int, new_classic: ClassicGroup) -> None:
        """A member of the classic protocol joins. `new_classic`: what the group may become. GroupError."""
        group = plan.group
        if not self.settings.may_migrate:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = join.member_id or new_id()
        self.check_room(group, member_id, join.instance_id)
        if not _supports(group, join):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not join.member_id and join.instance_id is None and join.needs_known_id:
            plan.answer = JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return
        known = group.static_member(join.instance_id)
        if join.instance_id is None:
            old = group.members.get(member_id) or ConsumerMember(member_id)
        elif join.member_id:
            old = known_static(group, member_id, join.instance_id)
        elif known is None:
            old = group.members.get(member_id) or ConsumerMember(member_id)
        else:
            old = self.replaced(plan, known, member_id)
        downgrade = known is not None and self._may_downgrade(group, [known], classic_max_size, replaced=True)
        subscription = self._subscription(join)
        new = replace(
            old,
            instance_id=join.instance_id or old.instance_id,
            rack_id=subscription.rack_id or old.rack_id,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            topic_names=frozenset(subscription.topics),
            said_names=subscription.topics,
            topic_regex="",
            client_id=join.client_id,
            client_host=join.client_host,
            classic=ClassicMetadata(join.session_timeout_ms, join.protocols),
        )
        names_changed = self.said(plan, old, new)
        regex_changed, _ = self.regex_said(plan, old, new)
        changed = names_changed or regex_changed
        epoch, homogeneous = self.bump_epoch(plan, old, new, changed)
        owned = self._reported(subscription)
        if downgrade:
            is_stale = group.assignment_epoch < epoch
            if not is_stale:
                target = group.target_of(self._holder(group, new))
                new = self.reconcile(plan, new, group.assignment_epoch, target, changed, owned)
            self.downgrade(plan, [], new, new_classic, rebalance=is_stale)
        else:
            target_epoch, target = self.retarget(plan, epoch, old, new, homogeneous)
            new = self.reconcile(plan, new, target_epoch, target, changed, owned)
            self._joined(plan, new)
        plan.answer = JoinAnswer(
            ErrorCode.NONE, member_id, new.epoch, CONSUMER, join.protocols[0][0], skip_assignment=False
        )  # fmt: skip

    def _joined(self, plan: Plan, member: ConsumerMember) -> None:
        """It has to sync in time, and then to be heard of."""
        classic = member.classic
        assert classic is not None

        def start() -> None:
            deadline = plan.group.deadline(member.member_id)
            deadline.join = deadline.revocation = NEVER
            deadline.session = plan.now.ticks + classic.session_timeout_ms
            deadline.sync = plan.now.ticks + member.rebalance_timeout_ms

        plan.then.append(start)

    @staticmethod
    def _subscription(join: Join) -> Subscription:
        try:
            return read_subscription(join.protocols[0][1])
        except ProtocolError:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None

    def _reported(self, subscription: Subscription) -> Mapping[uuid.UUID, Sequence[int]]:
        return {
            topic_id: partitions
            for topic, partitions in subscription.owned.items()
            if (topic_id := self.topics.id_of(topic)) is not None
        }

    def sync(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        now: Moment,
    ) -> SyncAnswer:
        """What the member has, as a leader would tell it. GroupError."""
        member = self._classic_member(group, member_id, instance_id)
        assert member.classic is not None
        if generation != member.epoch:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        name, metadata = member.classic.protocols[0]
        if protocol_type not in (None, CONSUMER) or protocol_name not in (None, name):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        deadline = group.deadline(member_id)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            _join_in_time(group, member, now)
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        deadline.sync = NEVER
        deadline.session = now.ticks + member.classic.session_timeout_ms
        partitions = {topic_id: tuple(each) for topic_id, each in member.assigned.items()}
        try:
            assignment = self._written(partitions, metadata)
        except ProtocolError:
            raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
        return SyncAnswer(ErrorCode.NONE, protocol_type, protocol_name, assignment)

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: Moment
    ) -> None:
        """Starts the member's session over. GroupError: REBALANCE_IN_PROGRESS asks it to join, the others refuse it."""
        member = self._classic_member(group, member_id, instance_id)
        assert member.classic is not None
        if generation != member.epoch:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        group.deadline(member_id).session = now.ticks + member.classic.session_timeout_ms
        if (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and not group.waits_for_partitions(member))
        ):
            _join_in_time(group, member, now)
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)

    @staticmethod
    def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = group.member(member_id) if instance_id is None else known_static(group, member_id, instance_id)
        if member.classic is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def plan_classic_leave(self, plan: Plan, who: Sequence[tuple[str, str | None]]) -> None:
        """LeaveGroup, also by whoever administrates the group; the answer is a list of errors."""
        group = plan.group
        errors = []
        leaving: dict[str, ConsumerMember] = {}
        for member_id, instance_id in who:
            try:
                if instance_id is None:
                    member = group.member(member_id)
                else:
                    static = group.static_member(instance_id)
                    member = static if static and not member_id else known_static(group, member_id, instance_id)
                leaving[member.member_id] = member
                errors.append(ErrorCode.NONE)
            except GroupError as error:
                errors.append(error.code)
        plan.answer = errors
        if leaving:
            self.plan_removal(plan, list(leaving.values()))

    # ---- from one protocol to the other

    def plan_removal(self, plan: Plan, members: Collection[ConsumerMember]) -> None:
        """Members are gone. The group may become a classic one, if the last member of the new protocol went."""
        if plan.classic is not None and self._may_downgrade(
            plan.group, members, plan.classic_max_size, replaced=False
        ):  # fmt: skip
            self.downgrade(plan, members, None, plan.classic, rebalance=True)
            return
        super().plan_removal(plan, members)

    def _may_downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember], classic_max_size: int, *, replaced: bool
    ) -> bool:
        gone = {member.member_id for member in leaving}
        left = [member for member in group.members.values() if member.member_id not in gone]
        if any(member.classic is None for member in left) or not self.settings.may_downgrade:
            return False
        if replaced:
            return all(member.classic is None for member in leaving) and len(group.members) <= classic_max_size
        return bool(left) and len(left) <= classic_max_size

    def downgrade(
        self,
        plan: Plan,
        leaving: Collection[ConsumerMember],
        joining: ConsumerMember | None,
        classic: ClassicGroup,
        *,
        rebalance: bool,
    ) -> None:
        """Fills `classic` with the group's members, and has it take the group's place. GroupError."""
        group = plan.group
        replaced = None if joining is None else group.static_member(joining.instance_id)
        plan.changes += end_of(
            group, {} if replaced is None or joining is None else {replaced.member_id: joining.member_id}
        )
        gone = {member.member_id for member in leaving} | ({replaced.member_id} if replaced is not None else set())
        classic.generation = group.epoch
        for member in [group.members[each] for each in group.members.listed() if each not in gone] + (
            [joining] if joining is not None else []
        ):
            assert member.classic is not None
            classic.insert(
                Member(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.classic.session_timeout_ms,
                    member.classic.protocols,
                ),
                CONSUMER,
            )
        classic.state = State.STABLE
        classic.choose_protocol()
        try:
            for each in classic.members.values():
                holder = replaced if joining is not None and each.member_id == joining.member_id else None
                target = group.target_of(each.member_id if holder is None else holder.member_id)
                each.assignment = self._written(target, each.metadata(classic.protocol_name))
                each.keep_alive(plan.now)
        except ProtocolError as error:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
            ) from None
        plan.last.append(group_record(classic))
        plan.becomes = classic
        if rebalance:
            plan.then.append(lambda: classic.prepare_rebalance(plan.now))

    def _written(self, partitions: Assignment, metadata: bytes) -> bytes:
        """An assignment in the version that a member speaks. ProtocolError."""
        version = version_of(metadata)
        ordered = hash_map(partitions, uuid_hash)
        named = {
            name: listed(numbers, int_hash, hash_set_capacity(len(numbers)))
            for topic_id, numbers in ordered.items()
            if (name := self.topics.name_of(topic_id)) is not None
        }
        return write_assignment(version, named)

    def upgrade(self, classic: ClassicGroup, now: Moment) -> tuple[ConsumerGroup, list[Change]]:
        """The consumer group that a classic one becomes, and the changes that make it. GroupError."""
        group_id = classic.group_id
        what = f"Cannot upgrade classic group {group_id} to consumer group because"
        if not self.settings.may_upgrade:
            raise _not_found(f"{what} online upgrade is disabled.")
        if classic.protocol_type != CONSUMER:
            raise _not_found(f"{what} the group does not use the consumer embedded protocol.")
        if len(classic.members) > self.settings.max_size:
            raise _not_found(f"{what} the group size exceeds the consumer group maximum size.")
        group = ConsumerGroup(group_id)
        try:
            members = [self._upgraded(classic, classic.members[member_id]) for member_id in classic.members.listed()]
        except ProtocolError as error:
            if str(error) == _CUSTOM:
                raise _not_found(
                    f"{what} an unsupported custom assignor is in use. "
                    "Please refer to the documentation or switch to a default assignor before re-attempting the upgrade."
                ) from None
            raise _not_found(f"{what} the embedded consumer protocol is malformed.") from None
        # Once, to know the order in which Kafka's table has them; and the hash.
        for member in members:
            group.apply(MemberSaid(member.member_id, member))
        ordered = [group.members[member_id] for member_id in group.members.listed()]
        by_id = {member.member_id: member for member in members}
        ordered = [by_id[member.member_id] for member in ordered]
        hash_now = self.topics.hash_of(group.subscriptions.names())
        changes: list[Change] = [MemberSaid(member.member_id, member) for member in ordered]
        changes.append(Epoch(classic.generation, hash_now))
        changes += [
            Target(member.member_id, {topic_id: tuple(each) for topic_id, each in member.assigned.items()})
            for member in ordered
        ]
        changes.append(TargetEpoch(classic.generation, 0))
        changes += [Current(member.member_id, member) for member in ordered]
        for change in changes:
            group.apply(change)
        for member in members:
            assert member.classic is not None
            group.deadline(member.member_id).session = now.ticks + member.classic.session_timeout_ms
        return group, changes

    def _upgraded(self, classic: ClassicGroup, member: Member) -> ConsumerMember:
        generation = classic.generation
        assigned: dict[uuid.UUID, dict[int, int]] = {}
        if member.assignment:
            partitions, extra = read_assignment(member.assignment)
            if extra:
                raise ProtocolError(_CUSTOM)
            for topic, numbers in partitions.items():
                topic_id = self.topics.id_of(topic)
                if topic_id is not None:
                    assigned[topic_id] = hash_map(dict.fromkeys(numbers, generation), int_hash)
        subscription = read_subscription(member.metadata(classic.protocol_name))
        return ConsumerMember(
            member.member_id,
            generation,
            generation,
            MemberState.STABLE,
            member.instance_id,
            subscription.rack_id,
            member.rebalance_timeout_ms,
            member.client_id,
            member.client_host,
            frozenset(subscription.topics),
            assigned=hash_map(assigned, uuid_hash),
            classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
        )


_CUSTOM = "of a custom assignor"


def _not_found(message: str) -> GroupError:
    return GroupError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _join_in_time(group: ConsumerGroup, member: ConsumerMember, now: Moment) -> None:
    deadline = group.deadline(member.member_id)
    if deadline.join == NEVER:
        deadline.join = now.ticks + member.rebalance_timeout_ms


def _supports(group: ConsumerGroup, join: Join) -> bool:
    """Whether the members of the classic protocol have one in common with whoever joins."""
    if join.protocol_type != CONSUMER or not join.protocols:
        return False
    classics = [member.classic for member in group.members.values() if member.classic is not None]
    return any(
        all(any(name == known for known, _ in classic.protocols) for classic in classics) for name, _ in join.protocols
    )


def end_of(group: ConsumerGroup, instead: Mapping[str, str] | None = None) -> list[Change]:
    """Tombstones of all that a group has, in the order that Kafka asks for. `instead`: of members, others' ids."""
    ids = [(instead or {}).get(member_id, member_id) for member_id in group.members.listed()]
    found: list[Change] = [Current(member_id) for member_id in ids]
    found += [Target(member_id) for member_id in ids]
    found.append(TargetEpoch(None))
    found += [MemberSaid(member_id) for member_id in ids]
    found += [Regex(regex) for regex in group.regexes.listed()]
    found += [PartitionMetadata(), Epoch(None)]
    return found
