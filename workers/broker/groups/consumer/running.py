"""The consumer groups of one partition at work: plans are written, then done; time passes; topics are looked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.changes import records_of
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.heartbeat import resolver
from compactd.workers.broker.groups.consumer.heartbeat_request import Heartbeat, HeartbeatAnswer
from compactd.workers.broker.groups.consumer.member import JOINING, LEAVING, LEAVING_STATIC, MemberState
from compactd.workers.broker.groups.consumer.migration import Migrations, end_of
from compactd.workers.broker.groups.consumer.planning import GroupSettings, Plan
from compactd.workers.broker.groups.consumer.regex import compiled
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import NEVER, GroupError, Join, Moment, State, SyncAnswer
from compactd.workers.broker.groups.planned import carry_out
from compactd.workers.broker.groups.records import group_tombstone

if TYPE_CHECKING:
    from compactd.workers.broker.groups.shard import Shard

_LOGGER = logging.getLogger(__name__)

#: A longer regular expression takes a while to compile.
_LONG_REGEX = 100

#: Whether whoever asks may know of a topic.
Allowed = Callable[[str], bool]


class GroupMovedError(Exception):
    """A group got another protocol while a request waited for its turn: it is to be asked anew."""


class ConsumerGroups:
    """`Shard.consumers`."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._context = shard.context
        self.settings = GroupSettings(shard.context)
        self.topics = shard.context.part(Topics)
        self.planner = Migrations(self.topics, self.settings)

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._shard.state.consumers.get(group_id)

    # ---- requests

    async def heartbeat(self, request: Heartbeat, allowed: Allowed) -> Any:
        """GroupError."""

        def work(now: Moment) -> Plan:
            if request.epoch in (LEAVING, LEAVING_STATIC):
                plan = self._plan(self._known(request.group_id), now)
                self.planner.plan_leave(plan, request)
            else:
                plan = self._entered(request, now)
                self.planner.plan(plan, request)
            return plan

        if request.topic_regex is not None and len(request.topic_regex) > _LONG_REGEX:
            # Compiled before anybody has to wait for it.
            pattern = request.topic_regex
            await self._context.in_thread(lambda: compiled(pattern))
        plan = await self.run(work)
        self._resolve(plan, allowed)
        return plan.answer

    def _known(self, group_id: str) -> ConsumerGroup:
        """GroupError: GROUP_ID_NOT_FOUND."""
        group = self.get(group_id)
        if group is None:
            is_other = self._shard.state.is_known(group_id)
            text = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group

    def _plan(self, group: ConsumerGroup, now: Moment) -> Plan:
        plan = Plan(group, now)
        plan.classic = self._shard.state.new_group(group.group_id, now.wall_ms)
        plan.classic_max_size = self._context.config.group_max_size
        return plan

    def _entered(self, request: Heartbeat, now: Moment) -> Plan:
        """The group of a member that may be about to join it: a new one, or one that was a classic group. GroupError."""
        group_id = request.group_id
        group = self.get(group_id)
        if group is not None:
            return self._plan(group, now)
        if request.epoch != JOINING:
            is_other = self._shard.state.is_known(group_id)
            text = f"Group {group_id} is not a consumer group." if is_other else f"Consumer group {group_id} not found."
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        classic = self._shard.group(group_id)
        if classic is None:
            if self._shard.state.is_known(group_id):
                raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return self._plan(ConsumerGroup(group_id), now)
        if classic.state is State.EMPTY:
            plan = self._plan(ConsumerGroup(group_id), now)
        else:
            try:
                upgraded, made = self.planner.upgrade(classic, now)
            except GroupError as error:
                _LOGGER.info("group %s: %s", group_id, error)
                raise
            plan = self._plan(upgraded, now)
            plan.made = made
        plan.first.append(group_tombstone(group_id))
        return plan

    async def join(self, join: Join, group: ConsumerGroup, allowed: Allowed) -> Any:
        """A member of the classic protocol. GroupError, GroupMovedError."""

        def work(now: Moment) -> Plan:
            self._check_same(group)
            plan = self._plan(group, now)
            assert plan.classic is not None
            self.planner.plan_join(plan, join, plan.classic_max_size, plan.classic)
            return plan

        plan = await self.run(work)
        self._resolve(plan, allowed)
        return plan.answer

    async def sync(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> SyncAnswer:
        """Of a member of the classic protocol; see `Migrations`. GroupError, GroupMovedError."""
        shard = self._shard
        async with shard.lock:  # what it has is in the log
            shard.check()
            self._check_same(group)
            try:
                return self.planner.sync(
                    group, member_id, instance_id, generation, protocol_type, protocol_name, shard.moment()
                )
            finally:
                shard.watch(group)

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> None:  # fmt: skip
        """Of a member of the classic protocol; see `Migrations`. GroupError."""
        try:
            self.planner.classic_heartbeat(group, member_id, instance_id, generation, self._shard.moment())
        finally:
            deadline = group.deadlines.get(member_id)
            self._shard.watch(group, None if deadline is None else deadline.next())

    async def leave(self, group: ConsumerGroup, who: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """LeaveGroup. GroupMovedError."""

        def work(now: Moment) -> Plan:
            self._check_same(group)
            plan = self._plan(group, now)
            self.planner.plan_classic_leave(plan, who)
            return plan

        errors: list[ErrorCode] = (await self.run(work)).answer
        return errors

    def _check_same(self, group: ConsumerGroup) -> None:
        if self.get(group.group_id) is not group:
            raise GroupMovedError

    # ---- plans

    async def run(self, work: Callable[[Moment], Plan]) -> Plan:
        """Plans, writes, does. GroupError, those of `work` too: nothing was done."""
        return await carry_out(self._shard, work, self._done)

    def _done(self, plan: Plan, has_records: bool) -> list[Any]:
        """Takes a plan in, whose records are written. Answers to whoever waits in a classic group that is none any more."""
        state, group_id = self._shard.state, plan.group.group_id
        plan.apply()
        if plan.becomes is not None:
            state.consumers.pop(group_id, None)
            state.groups[group_id] = plan.becomes
            self._shard.forget_timer(group_id)
            self._shard.watch(plan.becomes)
            return plan.becomes.take_answers()
        classic = None
        if has_records:
            classic = state.groups.pop(group_id, None)
            state.consumers[group_id] = plan.group
        answers: list[Any] = []
        if classic is not None:
            self._shard.forget_timer(group_id)
            classic.die(ErrorCode.REBALANCE_IN_PROGRESS)
            answers = classic.take_answers()
        if state.consumers.get(group_id) is plan.group:
            self._shard.watch(plan.group, self._only_change(plan))
        return answers

    @staticmethod
    def _only_change(plan: Plan) -> float | None:
        """The deadline of a member of which nothing but that has changed; None: look at all."""
        answer = plan.answer
        if plan.changes or not isinstance(answer, HeartbeatAnswer):
            return None
        deadline = plan.group.deadlines.get(answer.member_id)
        return None if deadline is None else deadline.next()

    def become_classic(self, group: ConsumerGroup, now: Moment) -> ClassicGroup:
        """An empty group, as one of the classic protocol; its end is written in front of the first record of that."""
        state, group_id = self._shard.state, group.group_id
        classic = state.new_group(group_id, now.wall_ms)
        classic.preface = records_of(group_id, end_of(group))
        del state.consumers[group_id]
        self._shard.forget_timer(group_id)
        state.groups[group_id] = classic
        return classic

    # ---- regular expressions

    def _resolve(self, plan: Plan, allowed: Allowed) -> None:
        if plan.resolve and not plan.group.is_resolving:
            plan.group.is_resolving = True
            self._context.spawn(self._resolved(plan.group, plan.resolve, allowed))

    async def _resolved(self, group: ConsumerGroup, regexes: frozenset[str], allowed: Allowed) -> None:
        names, version = list(self.topics.names), self.topics.version
        now_ms = self._shard.moment().wall_ms
        try:
            found = await self._context.in_thread(lambda: resolver(regexes, names, version, now_ms))
            found = {regex: each.only(allowed) for regex, each in found.items()}

            def work(now: Moment) -> Plan:
                plan = Plan(group, now)
                if self.get(group.group_id) is group:
                    self.planner.plan_resolved(plan, found)
                return plan

            await self.run(work)
        except GroupError as error:
            _LOGGER.info("group %s: its regular expressions are left for later: %s", group.group_id, error)
        finally:
            group.is_resolving = False

    # ---- time

    def loaded(self, now: Moment) -> None:
        """The log was read: sessions start."""
        for group in self._shard.state.consumers.values():
            timeout = self.settings.session_timeout_ms(group.group_id)
            for member in group.members.values():
                deadline = group.deadline(member.member_id)
                deadline.session = now.ticks + timeout
                if member.state is MemberState.UNREVOKED:
                    deadline.revocation = now.ticks + member.rebalance_timeout_ms
                    deadline.revocation_epoch = member.epoch
            self._shard.watch(group)

    async def expire(self, group: ConsumerGroup) -> None:
        """Does what is due by now, member by member. GroupError."""
        while self.get(group.group_id) is group:
            due = group.next_deadline()
            if due > self._shard.moment().ticks:
                return
            await self.run(lambda now: self._expired(group, now))

    def _expired(self, group: ConsumerGroup, now: Moment) -> Plan:
        plan = self._plan(group, now)
        if self.get(group.group_id) is not group:
            return plan
        for member_id, deadline in list(group.deadlines.items()):
            if deadline.next() > now.ticks:
                continue
            member = group.members.get(member_id)
            if member is None:
                del group.deadlines[member_id]
                continue
            out = min(deadline.session, deadline.join, deadline.sync) <= now.ticks
            if not out and deadline.revocation_epoch != member.epoch:
                deadline.revocation = NEVER
                continue
            self.planner.plan_removal(plan, [member])
            break
        return plan
