"""The streams groups of one partition at work: plans are written, then done; time passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.member import JOINING, LEAVING, LEAVING_STATIC
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import NEVER, GroupError, Moment, State
from compactd.workers.broker.groups.planned import carry_out
from compactd.workers.broker.groups.records import group_tombstone
from compactd.workers.broker.groups.streams.changes import records_of
from compactd.workers.broker.groups.streams.group import StreamsGroup, end_of
from compactd.workers.broker.groups.streams.heartbeat import Heartbeats
from compactd.workers.broker.groups.streams.heartbeat_request import Heartbeat, HeartbeatAnswer
from compactd.workers.broker.groups.streams.member import MemberState
from compactd.workers.broker.groups.streams.planning import Plan
from compactd.workers.broker.groups.streams.settings import StreamsSettings

if TYPE_CHECKING:
    from compactd.workers.broker.groups.shard import Shard


class StreamsGroups:
    """`Shard.streams`."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.settings = StreamsSettings(shard.context)
        self.planner = Heartbeats(shard.context.part(Topics), self.settings)

    def get(self, group_id: str) -> StreamsGroup | None:
        return self._shard.state.streams.get(group_id)

    # ---- requests

    async def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """GroupError."""

        def work(now: Moment) -> Plan:
            if request.epoch in (LEAVING, LEAVING_STATIC):
                plan = self._plan(self._known(request.group_id, "Group"), now)
                self.planner.plan_leave(plan, request)
            else:
                plan = self._entered(request, now)
                self.planner.plan(plan, request)
            return plan

        answer: HeartbeatAnswer = (await self._run(work)).answer
        return answer

    def _known(self, group_id: str, kind: str) -> StreamsGroup:
        """GroupError: GROUP_ID_NOT_FOUND; `kind`: what is missed."""
        group = self.get(group_id)
        if group is None:
            is_other = self._shard.state.is_known(group_id)
            text = f"Group {group_id} is not a streams group." if is_other else f"{kind} {group_id} not found."
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        return group

    def _plan(self, group: StreamsGroup, now: Moment) -> Plan:
        is_known = self._shard.state.is_known(group.group_id)
        return Plan(group, now, self._shard.partition.log.log_end_offset, is_known)

    def _entered(self, request: Heartbeat, now: Moment) -> Plan:
        """The group of a member that may be about to join it: a new one, or one that was a classic group. GroupError."""
        group_id = request.group_id
        group = self.get(group_id)
        if group is not None:
            return self._plan(group, now)
        classic = self._shard.group(group_id)
        if request.epoch != JOINING or (classic is None and self._shard.state.is_known(group_id)):
            return self._plan(self._known(group_id, "Streams group"), now)
        plan = self._plan(StreamsGroup(group_id), now)
        if classic is not None:
            if classic.state is not State.EMPTY:
                self._known(group_id, "Streams group")
            plan.first.append(group_tombstone(group_id))
        return plan

    # ---- plans

    async def _run(self, work: Callable[[Moment], Plan]) -> Plan:
        """Plans, writes, does. GroupError, those of `work` too: nothing was done."""
        return await carry_out(self._shard, work, self._done)

    def _done(self, plan: Plan, has_records: bool) -> list[Any]:
        """Takes a plan in, whose records are written. Answers to whoever waits in a classic group that is none any more."""
        state, group_id = self._shard.state, plan.group.group_id
        group = self.get(group_id)
        answers: list[Any] = []
        if group is None:
            if not has_records:
                return answers
            group = state.streams[group_id] = StreamsGroup(group_id)
            classic = state.groups.pop(group_id, None)
            if classic is not None:
                self._shard.forget_timer(group_id)
                classic.die(ErrorCode.REBALANCE_IN_PROGRESS)
                answers = classic.take_answers()
        plan.apply(group)
        self._shard.watch(group, self._only_change(plan, group))
        return answers

    @staticmethod
    def _only_change(plan: Plan, group: StreamsGroup) -> float | None:
        """The deadline of a member of which nothing but that has changed; None: look at all."""
        answer = plan.answer
        if plan.changes or not isinstance(answer, HeartbeatAnswer):
            return None
        deadline = group.deadlines.get(answer.member_id)
        return None if deadline is None else min(deadline.next(), group.initial_delay)

    def become_classic(self, group: StreamsGroup, now: Moment) -> ClassicGroup:
        """An empty group, as one of the classic protocol; its end is written in front of the first record of that."""
        state, group_id = self._shard.state, group.group_id
        classic = state.new_group(group_id, now.wall_ms)
        classic.preface = records_of(group_id, end_of(group))
        del state.streams[group_id]
        self._shard.forget_timer(group_id)
        state.groups[group_id] = classic
        return classic

    # ---- time

    def loaded(self, now: Moment) -> None:
        """The log was read: sessions start."""
        for group in self._shard.state.streams.values():
            timeout = self.settings.session_timeout_ms(group.group_id)
            for member in group.members.values():
                deadline = group.deadline(member.member_id)
                deadline.session = now.ticks + timeout
                if member.state is MemberState.UNREVOKED:
                    deadline.revocation = now.ticks + member.rebalance_timeout_ms
                    deadline.revocation_epoch = member.epoch
            self._shard.watch(group)

    async def expire(self, group: StreamsGroup) -> None:
        """Does what is due by now, one thing after another. GroupError."""
        while self.get(group.group_id) is group:
            due = group.next_deadline()
            if due > self._shard.moment().ticks:
                return
            await self._run(lambda now: self._expired(group, now))

    def _expired(self, group: StreamsGroup, now: Moment) -> Plan:
        plan = self._plan(group, now)
        if self.get(group.group_id) is not group:
            return plan
        if group.initial_delay <= now.ticks:
            group.initial_delay = NEVER
            self.planner.plan_delayed(plan)
            return plan
        for member_id, deadline in list(group.deadlines.items()):
            if deadline.next() > now.ticks:
                continue
            member = group.members.get(member_id)
            if member is None:
                del group.deadlines[member_id]
                continue
            if deadline.session > now.ticks and deadline.revocation_epoch != member.epoch:
                deadline.revocation = NEVER
                continue
            self.planner.plan_removal(plan, member)
            break
        return plan
