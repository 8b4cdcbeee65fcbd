"""ConsumerGroupHeartbeat: members join, say what they have, are told what to have, and leave (facts: kafka-protocol 14.2).

Kafka's GroupMetadataManager, consumerGroupHeartbeat and what it calls. Everything here plans: see `planning`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace

from compactd.storage.names import uuid_text
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.changes import (
    Change,
    Current,
    Epoch,
    MemberSaid,
    Regex,
    ResolvedRegex,
    Target,
    TargetEpoch,
)
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.heartbeat_request import Heartbeat, HeartbeatAnswer
from compactd.workers.broker.groups.consumer.member import (
    JOINING,
    LEAVING_STATIC,
    Assignment,
    ConsumerMember,
    MemberState,
    Owned,
)
from compactd.workers.broker.groups.consumer.planning import Plan, Planner
from compactd.workers.broker.groups.consumer.reconcile import Reported, Step
from compactd.workers.broker.groups.consumer.regex import compiled
from compactd.workers.broker.groups.consumer.regex_syntax import RegexError
from compactd.workers.broker.groups.member import NEVER, GroupError

_LOGGER = logging.getLogger(__name__)

#: Regular expressions are not resolved more often than this.
MIN_RESOLVE_MS = 10_000


class Heartbeats(Planner):
    """Plans for heartbeats."""

    __slots__ = ()

    def plan(self, plan: Plan, request: Heartbeat) -> None:
        """A member that is in the group, or wants to be. GroupError."""
        group = plan.group
        self.check_room(group, request.member_id, request.instance_id)
        member_id = request.member_id or new_id()
        if request.instance_id is None:
            old = self.dynamic_member(plan, member_id, request)
        else:
            old = self.static_member(plan, member_id, request.instance_id, request)
        new = replace(
            old,
            instance_id=request.instance_id or old.instance_id,
            rack_id=request.rack_id or old.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if request.rebalance_timeout_ms != -1
            else old.rebalance_timeout_ms,
            assignor=request.assignor or old.assignor,
            topic_names=old.topic_names if request.topic_names is None else frozenset(request.topic_names),
            said_names=old.said_names if request.topic_names is None else tuple(request.topic_names),
            topic_regex=old.topic_regex if request.topic_regex is None else request.topic_regex,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=None,
        )
        names_changed = self.said(plan, old, new)
        regex_changed, is_resolved = self.regex_said(plan, old, new)
        assignor_changed = old.assignor != new.assignor and self._prefers_another(group, old, new)
        epoch, homogeneous = self.bump_epoch(plan, old, new, names_changed or is_resolved or assignor_changed)
        target_epoch, target = self.retarget(plan, epoch, old, new, homogeneous)
        reconciled = self.reconcile(
            plan, new, target_epoch, target, names_changed or regex_changed, request.owned
        )  # fmt: skip
        self.keep_alive(plan, member_id, self.settings.session_timeout_ms(group.group_id))
        tell = request.epoch == JOINING or request.is_full or not _same(new.assigned, reconciled.assigned)
        plan.answer = HeartbeatAnswer(
            member_id,
            reconciled.epoch,
            self.settings.heartbeat_interval_ms(group.group_id),
            reconciled.assigned if tell else None,
        )

    def _prefers_another(self, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember) -> bool:
        """Whether the group's assignor is another one with the member changed.

        Kafka 4.4.0 asks so at every heartbeat, and looks through its counts in two different orders: in a group with as
        many members for "range" as for "uniform" each heartbeat brings a new epoch, for ever. Here only a member that
        changes its mind may change that of the group.
        """
        default = self.settings.assignors[0]
        return (group.preferred_assignor() or default) != (group.preferred_assignor_with(old, new) or default)

    # ---- who it is

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """GroupError: nobody more may join."""
        if instance_id is not None and instance_id in group.static:
            return
        most = self.settings.max_size
        if len(group.members) >= most and member_id not in group.members:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def dynamic_member(self, plan: Plan, member_id: str, request: Heartbeat) -> ConsumerMember:
        group = plan.group
        if request.epoch == JOINING:
            return group.members.get(member_id) or ConsumerMember(member_id)
        member = group.member(member_id)
        _check_epoch(member, request.epoch, request.owned)
        return member

    def static_member(self, plan: Plan, member_id: str, instance_id: str, request: Heartbeat) -> ConsumerMember:
        group = plan.group
        known = group.static_member(instance_id)
        if request.epoch == JOINING:
            if known is None:
                return group.members.get(member_id) or ConsumerMember(member_id)
            if known.classic is None and known.epoch != LEAVING_STATIC:
                raise unreleased(member_id, instance_id, known.member_id)
            return self.replaced(plan, known, member_id)
        member = known_static(group, member_id, instance_id)
        _check_epoch(member, request.epoch, request.owned)
        return member

    @staticmethod
    def replaced(plan: Plan, known: ConsumerMember, member_id: str) -> ConsumerMember:
        """Another member in place of one with the same instance id: it has what that had."""
        new = replace(known, member_id=member_id, epoch=0, previous_epoch=0)
        plan.changes += removal(known.member_id)
        plan.changes += [
            MemberSaid(member_id, new),
            Target(member_id, plan.group.target_of(known.member_id)),
            Current(member_id, new),
        ]
        return new

    # ---- what it said

    @staticmethod
    def said(plan: Plan, old: ConsumerMember, new: ConsumerMember) -> bool:
        """Notes what a member said of itself; whether it reads other topics by name."""
        if new == old:
            return False
        plan.changes.append(MemberSaid(new.member_id, new))
        return new.topic_names != old.topic_names

    def regex_said(self, plan: Plan, old: ConsumerMember, new: ConsumerMember) -> tuple[bool, bool]:
        """Whether a member reads other topics by regular expression, and whether it is known which. GroupError."""
        group, now_ms = plan.group, plan.now.wall_ms
        is_new = is_resolved = False
        changed = old.topic_regex != new.topic_regex
        if changed:
            if old.regex is not None and group.regex_members[old.regex] == 1:
                plan.changes.append(Regex(old.regex))
            if new.regex is None:
                is_resolved = old.regex is not None
            elif group.regex_members[new.regex] == 0:
                _check_regex(new.regex)
                is_new = True
            else:
                is_resolved = new.regex in group.regexes
        if (not is_new and not group.regex_members) or group.is_resolving:
            return changed, is_resolved
        first = next(iter(group.regexes.listed()), None)
        last = None if first is None else group.regexes[first]
        if last is not None and now_ms <= last.resolved_ms + MIN_RESOLVE_MS:
            return changed, is_resolved
        wanted = frozenset(group.regex_members_with(old, new))
        is_due = (
            is_new
            or len(wanted) != len(group.regexes)
            or (0 if last is None else last.version) < self.topics.version_with_new
            or last is None
            or now_ms > last.resolved_ms + self.settings.regex_refresh_ms
        )
        if is_due and wanted:
            plan.resolve = wanted
        return changed, is_resolved

    # ---- what it gets

    def reconcile(
        self,
        plan: Plan,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        resubscribed: bool,
        reported: Reported,
    ) -> ConsumerMember:
        """The member one step nearer to its target. GroupError: it has to join anew."""
        group = plan.group
        if not resubscribed and member.is_reconciled_to(target_epoch):
            return member
        subscribed = frozenset(self.topics.ids_of(self.names_of(group, member)))
        step = Step(target_epoch, target, subscribed, resubscribed, group.owner_epoch, reported)
        found = step.of(member)
        if _is_same_state(found, member):
            return found
        plan.changes.append(Current(found.member_id, found))
        if found.classic is None:
            at = NEVER
            if found.state is MemberState.UNREVOKED:
                at = plan.now.ticks + found.rebalance_timeout_ms

            def set_timer() -> None:
                deadline = group.deadline(found.member_id)
                deadline.revocation, deadline.revocation_epoch = at, found.epoch

            plan.then.append(set_timer)
        return found

    @staticmethod
    def keep_alive(plan: Plan, member_id: str, timeout_ms: int) -> None:
        """Starts the member's session over."""

        def start() -> None:
            deadline = plan.group.deadline(member_id)
            deadline.session = plan.now.ticks + timeout_ms
            if plan.group.members[member_id].classic is None:
                deadline.join = deadline.sync = NEVER

        plan.then.append(start)

    # ---- members go

    def plan_leave(self, plan: Plan, request: Heartbeat) -> None:
        """A member leaves, for ever or (epoch -2) for a while. GroupError."""
        group = plan.group
        plan.answer = HeartbeatAnswer(request.member_id, request.epoch)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = known_static(group, request.member_id, request.instance_id)
            if request.epoch == LEAVING_STATIC:
                # With epochs of assignment of 0 whoever comes back may commit.
                assigned = {topic_id: dict.fromkeys(each, 0) for topic_id, each in member.assigned.items()}
                gone = replace(member, epoch=LEAVING_STATIC, assigned=assigned, revoking={})
                plan.changes.append(Current(member.member_id, gone))
                return
        self.plan_removal(plan, [member])

    def plan_removal(self, plan: Plan, members: Collection[ConsumerMember]) -> None:
        """Members are gone; the group goes on without them."""
        group = plan.group
        for member in members:
            plan.changes += removal(member.member_id)
        regexes = []
        for regex in dict.fromkeys(member.regex for member in members if member.regex is not None):
            if group.regex_members[regex] == sum(member.regex == regex for member in members):
                plan.changes.append(Regex(regex))
                regexes.append(regex)
        left = group.subscriptions_without(members, regexes)
        epoch = group.epoch + 1
        plan.changes.append(Epoch(epoch, self.topics.hash_of(left.names())))
        if len(members) == len(group.members):
            # Of an empty group: whoever comes next does not wait for his assignment.
            plan.changes.append(TargetEpoch(epoch, 0))

    # ---- regular expressions

    def plan_resolved(self, plan: Plan, found: Mapping[str, ResolvedRegex]) -> None:
        """Notes what regular expressions stand for."""
        group = plan.group
        subscriptions = group.subscriptions.copy()
        bump = False
        for regex, resolved in found.items():
            if group.regex_members[regex] == 0:
                continue
            before = group.regexes.get(regex, ResolvedRegex()).topics
            if before != resolved.topics:
                bump = True
                subscriptions.replace_regex(before, resolved.topics)
            plan.changes.append(Regex(regex, resolved))
        metadata_hash = self.topics.hash_of(subscriptions.names())
        if bump or metadata_hash != group.metadata_hash:
            plan.changes.append(Epoch(group.epoch + 1, metadata_hash))
            self.checked(plan)


def removal(member_id: str) -> list[Change]:
    """A member's end; the order is looked at when the log is loaded."""
    return [Current(member_id), Target(member_id), MemberSaid(member_id)]


def known_static(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """The member with this instance id. GroupError where it is another one, or nobody."""
    member = group.static_member(instance_id)
    not_fenced(member_id, instance_id, None if member is None else member.member_id)
    assert member is not None
    return member


def not_fenced(member_id: str, instance_id: str, holder: str | None) -> None:
    """GroupError: a member with an instance id is not the one that has it, `holder`; None: nobody has it."""
    if holder is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )


def unreleased(member_id: str, instance_id: str, holder: str) -> GroupError:
    """A member joins with the instance id of one that did not go."""
    return GroupError(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
        f"instance id is owned by {holder} member.",
    )


def resolver(
    regexes: Collection[str], names: Collection[str], version: int, now_ms: int
) -> dict[str, ResolvedRegex]:  # fmt: skip
    """What regular expressions stand for. Takes as long as it takes: for a thread."""
    found = {}
    for regex in regexes:
        pattern = compiled(regex)
        topics: frozenset[str] = frozenset()
        try:
            # One that is none comes from a log: what members say is checked.
            topics = topics if isinstance(pattern, RegexError) else pattern.topics(names)
        except RegexError as error:
            _LOGGER.warning("the expression %r stands for no topics: %s", regex, error)
        found[regex] = ResolvedRegex(topics, version, now_ms)
    return found


def _check_regex(regex: str) -> None:
    found = compiled(regex)
    if isinstance(found, RegexError):
        raise GroupError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {found}.",
        )


def _check_epoch(member: ConsumerMember, epoch: int, owned: Reported) -> None:
    """A member comes with the epoch that it was told last, or with the one before, if the answer was lost. GroupError."""
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        which = "greater"
    elif epoch == member.previous_epoch and _is_subset(owned, member.assigned):
        return
    else:
        which = "smaller"
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: Reported, assigned: Owned) -> bool:
    return owned is not None and all(
        topic_id in assigned and all(partition in assigned[topic_id] for partition in partitions)
        for topic_id, partitions in owned.items()
    )


def _same(first: Owned, second: Owned) -> bool:
    return {each: dict(first[each]) for each in first} == {each: dict(second[each]) for each in second}


def _is_same_state(first: ConsumerMember, second: ConsumerMember) -> bool:
    return (
        first.epoch == second.epoch
        and first.previous_epoch == second.previous_epoch
        and first.state == second.state
        and _same(first.assigned, second.assigned)
        and _same(first.revoking, second.revoking)
    )


def new_id() -> str:
    """Kafka's Uuid.randomUuid, as text that does not begin with a minus."""
    while True:
        text = uuid_text(uuid.uuid4())
        if not text.startswith("-"):
            return text
