"""The state machine of a classic group (Kafka's ClassicGroup and GroupMetadataManager; facts: kafka-protocol 13).

No I/O and no clock: every call is given the time. What a call comes to is left in three places: `take_answers`, for the
caller to deliver; `unsaved`, which asks for the group to be written to the log before that; and `assigning`, the
leader's assignment, which counts once it is written (`assignment_stored`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.joining import Joining
from compactd.workers.broker.groups.member import (
    NEVER,
    GroupError,
    JoinAnswer,
    Member,
    Moment,
    State,
    SyncAnswer,
    Ticket,
)


class ClassicGroup(Joining):
    """One group: everything that members ask, and everything that time does."""

    def expire(self, now: Moment) -> None:
        """Does what is due by now."""
        for member_id in [each for each, deadline in self.pending.items() if deadline <= now.ticks]:
            self._remove(member_id)
            self._complete_if_all_joined(now)
        for member in [each for each in self.members.values() if each.deadline <= now.ticks]:
            if member.member_id not in self.members:
                continue
            if member.is_parked:
                member.deadline = NEVER  # it starts anew with the answer
            elif member.deadline <= now.ticks:  # a rebalance that another one's end brought may have renewed it
                self._dismiss(member)
                self._rebalance_or_complete(now)
        if self.join_deadline <= now.ticks:
            self._join_time_is_up(now)
        if self.sync_deadline <= now.ticks:
            self._sync_time_is_up(now)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
        ticket: Ticket,
        now: Moment,
    ) -> None:
        """The ticket is answered now, or when the leader's assignment is stored."""
        try:
            self._sync(member_id, instance_id, generation, protocol_type, protocol_name, assignments, ticket, now)
        except GroupError as error:
            self._answer(ticket, SyncAnswer(error.code))

    def _sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
        ticket: Ticket,
        now: Moment,
    ) -> None:
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        if (protocol_type is not None and protocol_type != self.protocol_type) or (
            protocol_name is not None and protocol_name != self.protocol_name
        ):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is State.PREPARING:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        self.pending_sync.discard(member_id)
        if not self.pending_sync:
            self.sync_deadline = NEVER
        if self.state is State.STABLE:
            self._answer(ticket, self._synced(member))
            return
        self._answer_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = ticket
        if member_id == self.leader:
            self.assigning = {each: assignments.get(each, b"") for each in self.members}

    def assignment_stored(self, now: Moment) -> None:
        """The leader's assignment is in the log: it counts, and whoever waits for it is told."""
        assigning, self.assigning = self.assigning, None
        for member in self.members.values():
            member.assignment = (assigning or {}).get(member.member_id, b"")
        self._enter(State.STABLE, now)
        for member in self.members.values():
            if member.sync is not None:
                self._answer_sync(member, self._synced(member))
                member.keep_alive(now)

    def assignment_refused(self, error: ErrorCode, now: Moment) -> None:
        """It could not be stored: everybody joins again."""
        self.assigning = None
        self._refuse_syncs(error)
        self.prepare_rebalance(now)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _sync_time_is_up(self, now: Moment) -> None:
        self.sync_deadline = NEVER
        if self.state in (State.COMPLETING, State.STABLE) and self.pending_sync:
            for member_id in list(self.pending_sync):
                self._remove(member_id)
            self.prepare_rebalance(now)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> None:
        """Starts the member's session over. GroupError: REBALANCE_IN_PROGRESS asks it to join, the others refuse it."""
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        if not member.is_new:
            member.keep_alive(now)
        if self.state is State.PREPARING:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, who: Iterable[tuple[str, str | None]], now: Moment) -> list[ErrorCode]:
        """Members by (id, instance id); an empty id with an instance id removes whoever has that."""
        errors = []
        has_left = False
        for member_id, instance_id in who:
            try:
                if member_id in self.pending:
                    self._remove(member_id)
                else:
                    if not member_id:
                        member_id = self.static.get(instance_id or "", "")
                    self._dismiss(self.member(member_id, instance_id))
                has_left = True
                errors.append(ErrorCode.NONE)
            except GroupError as error:
                errors.append(error.code)
        if has_left:
            self._rebalance_or_complete(now)
        return errors

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: Moment, *, transactional: bool = False
    ) -> None:
        """Whether this member may commit offsets now, which is as good as a heartbeat. GroupError.

        In a transaction whoever says nothing of membership may, in every state (as clients before KIP-447 do).
        """
        if self.state is State.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            if transactional:
                return
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        if transactional:
            return
        if self.state is State.COMPLETING:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.is_new:
            member.keep_alive(now)

    def loaded(self, now: Moment) -> None:
        """It was read from the log: sessions start, and a group that is too large by now rebalances."""
        for member in self.members.values():
            member.keep_alive(now)
        self._find_subscribed()
        if len(self.members) > self.settings.max_size:
            self.prepare_rebalance(now)

    def die(self, error: ErrorCode) -> None:
        """Not coordinated here any more: everybody who waits is told so."""
        self.state = State.DEAD
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(error, member.member_id))
            self._answer_sync(member, SyncAnswer(error))
        self.join_deadline = self.sync_deadline = NEVER
        self.members.clear()
        self.pending.clear()
