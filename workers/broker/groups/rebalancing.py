"""How a classic group comes to a new generation (Kafka's ClassicGroup; facts: kafka-protocol 13.1, 13.3)."""

from __future__ import annotations

from collections import Counter

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import listed
from compactd.workers.broker.groups.member import NEVER, JoinAnswer, JoinedMember, Member, Moment, State, SyncAnswer
from compactd.workers.broker.groups.members import GroupMembers
from compactd.workers.broker.transactions.java_order import string_hash


class Rebalancing(GroupMembers):
    """Adds: everybody joins, a leader and a protocol are found, all are told."""

    def prepare_rebalance(self, now: Moment) -> None:
        """Has all members join again."""
        if self.state is State.COMPLETING:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self.sync_deadline = NEVER
        is_initial = self.state is State.EMPTY
        self._enter(State.PREPARING, now)
        if is_initial:
            delay = self.settings.initial_rebalance_delay_ms
            self._member_added = False
            self._initial = (delay, max(self.rebalance_timeout_ms - delay, 0))
            self.join_deadline = now.ticks + delay
            return
        self._initial = None
        if self._all_joined():
            self._complete_join(now)
        else:
            self.join_deadline = now.ticks + self.rebalance_timeout_ms

    def _prepare_or_complete(self, now: Moment) -> None:
        if self.state is State.PREPARING:
            self._complete_if_all_joined(now)
        else:
            self.prepare_rebalance(now)

    def _rebalance_or_complete(self, now: Moment) -> None:
        """After a member went."""
        if self.state in (State.COMPLETING, State.STABLE):
            self.prepare_rebalance(now)
        else:
            self._complete_if_all_joined(now)

    def _parked(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    def _all_joined(self) -> bool:
        return not self.pending and self._parked() == len(self.members)

    def _complete_if_all_joined(self, now: Moment) -> None:
        if self.state is State.PREPARING and self.previous_state is not State.EMPTY and self._all_joined():
            self._complete_join(now)

    def _join_time_is_up(self, now: Moment) -> None:
        if self._initial is not None and self._member_added and self._initial[1]:
            delay, remaining = self._initial
            self._member_added = False
            following = min(self.settings.initial_rebalance_delay_ms, remaining)
            self._initial = (following, max(remaining - delay, 0))
            self.join_deadline = now.ticks + following
        else:
            self._complete_join(now)

    def _complete_join(self, now: Moment) -> None:
        """A new generation of those who joined, and of static members, who stay until their session ends."""
        self.join_deadline = NEVER
        for member in list(self.members.values()):
            if member.join is None and member.instance_id is None:
                self._remove(member.member_id)
        if self.members and not self._has_joined_leader():
            self.join_deadline = now.ticks + self.rebalance_timeout_ms
            return
        self._initial = None
        self.generation += 1
        self.pending_sync.clear()
        if not self.members:
            self.protocol_name = None
            self._enter(State.EMPTY, now)
            self._find_subscribed()
            self.unsaved = True
            return
        self.protocol_name = self._select_protocol()
        self._enter(State.COMPLETING, now)
        self._find_subscribed()
        for member in self.members.values():
            self._answer_join(member, self._joined(member))
            member.keep_alive(now)
            member.is_new = False
            self.pending_sync.add(member.member_id)
        self.sync_deadline = now.ticks + self.rebalance_timeout_ms

    def _has_joined_leader(self) -> bool:
        """Makes the first who joined the leader, first in Kafka's table of members, if the leader did not join."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is None:
            first = next((each for each in self.members.listed() if self.members[each].join is not None), None)
            if first is None:
                return False
            self.leader = first
        return True

    def _common(self) -> set[str]:
        """Protocols that every member knows."""
        known = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in known.items() if count == len(self.members)}

    def choose_protocol(self) -> None:
        """Of a group that was put together from members of another protocol."""
        self.protocol_name = self._select_protocol()
        self._find_subscribed()

    def _select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know."""
        common = self._common()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        # Of those with as many, the first in Kafka's table.
        return max(listed(votes, string_hash), key=lambda name: votes[name])

    def _joined(self, member: Member) -> JoinAnswer:
        """The present generation, as a member is told of it."""
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            self._joined_members() if member.member_id == self.leader else (),
        )

    def _joined_members(self) -> list[JoinedMember]:
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in map(self.members.__getitem__, self.members.listed())
        ]

    def _refuse_syncs(self, error: ErrorCode) -> None:
        for member in self.members.values():
            member.assignment = b""
            self._answer_sync(member, SyncAnswer(error))
