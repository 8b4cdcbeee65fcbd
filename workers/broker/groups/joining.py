"""Who may join a classic group, and what that does to it (facts: kafka-protocol 13.2, 13.4)."""

from __future__ import annotations

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.member import (
    GroupError,
    Join,
    JoinAnswer,
    Member,
    Moment,
    Protocols,
    State,
    SyncAnswer,
    Ticket,
)
from compactd.workers.broker.groups.rebalancing import Rebalancing

#: A member that has not been told its id has this long to be let in: a client that went away is not noticed.
NEW_MEMBER_JOIN_MS = 5 * 60 * 1000


class Joining(Rebalancing):
    """Adds JoinGroup."""

    def join(self, request: Join, ticket: Ticket, now: Moment) -> None:
        """The ticket is answered now, or when the rebalance completes."""
        if not self._has_room(request.member_id):
            self._remove(request.member_id)
            self._answer(ticket, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        try:
            self._join(request, ticket, now)
        except GroupError as error:
            self._answer(ticket, JoinAnswer(error.code, request.member_id))

    def _has_room(self, member_id: str) -> bool:
        if self.state in (State.EMPTY, State.DEAD):
            return True
        member = self.members.get(member_id)
        if self.state is State.PREPARING:
            # The parked ones are counted: the size may lie above a maximum that was lowered.
            return (member is not None and member.join is not None) or self._parked() < self.settings.max_size
        return member is not None or len(self.members) < self.settings.max_size

    def _join(self, request: Join, ticket: Ticket, now: Moment) -> None:
        if self.state is State.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not self._supports(request.protocol_type, request.protocols):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.member_id:
            self._join_newcomer(request, ticket, now)
        elif request.member_id in self.pending:
            if request.instance_id is not None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._add(request, request.member_id, ticket, now)
        else:
            self._rejoin(self.member(request.member_id, request.instance_id), request, ticket, now)

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and not self._common().isdisjoint(name for name, _ in protocols)

    def _join_newcomer(self, request: Join, ticket: Ticket, now: Moment) -> None:
        if request.instance_id is not None:
            member_id = f"{request.instance_id}-{self._random_id()}"
            old_id = self.static.get(request.instance_id)
            if old_id is None:
                self._add(request, member_id, ticket, now)
            else:
                self._replace_static(request, old_id, member_id, ticket, now)
            return
        member_id = f"{request.client_id}-{self._random_id()}"
        if request.needs_known_id:
            self.pending[member_id] = now.ticks + request.session_timeout_ms
            self._answer(ticket, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, ticket, now)

    def _add(self, request: Join, member_id: str, ticket: Ticket, now: Moment) -> None:
        if self.state is State.PREPARING and self.previous_state is State.EMPTY:
            self._member_added = True
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
            join=ticket,
        )
        member.keep_alive(now, NEW_MEMBER_JOIN_MS)
        self.insert(member, request.protocol_type)
        self._prepare_or_complete(now)

    def _rejoin(self, member: Member, request: Join, ticket: Ticket, now: Moment) -> None:
        if self.state is State.EMPTY:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        same = member.protocols == request.protocols
        if self.state is State.COMPLETING and same:
            # Most probably it did not get the answer.
            self._answer(ticket, self._joined(member))
        elif self.state is State.STABLE and same and member.member_id != self.leader:
            self._answer(ticket, self._joined(member))
        else:
            self._update(member, request, ticket)
            self._prepare_or_complete(now)

    def _update(self, member: Member, request: Join, ticket: Ticket) -> None:
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self._answer_join(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join = ticket

    def _replace_static(self, request: Join, old_id: str, new_id: str, ticket: Ticket, now: Moment) -> None:
        leader_before = self.leader
        old = self.members[old_id]
        self.members.remove(old_id)
        self._answer_join(old, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._answer_sync(old, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        member = Member(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            old.assignment,
            is_new=old.is_new,
            join=ticket,
        )
        self.members[new_id] = member
        self.static[request.instance_id or ""] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        member.keep_alive(now)
        if self.state is State.STABLE and self._select_protocol() == self.protocol_name:
            self.unsaved = True
            self._find_subscribed()
            answer = self._joined(member)
            if request.may_skip_assignment:
                answer = answer._replace(skip_assignment=self.leader == new_id)
            else:
                # Before v9 it is to act as a follower: the assignment stands.
                answer = answer._replace(leader=leader_before or "", members=())
            self._answer_join(member, answer)
        else:
            self._prepare_or_complete(now)
