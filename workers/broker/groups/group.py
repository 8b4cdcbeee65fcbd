"""The state machine of a classic group (Kafka's ClassicGroup and GroupMetadataManager; facts: kafka-protocol 13).

No I/O and no clock: every call is given the time. What a call comes to is left in three places: `answers`, which the
caller takes and delivers; `unsaved`, which asks for the group to be written to the log before that; and `assigning`,
the leader's assignment, which counts once it is written (`assignment_stored`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.member import (
    NEVER,
    Answer,
    GroupSettings,
    Join,
    JoinAnswer,
    JoinedMember,
    Member,
    Moment,
    Protocols,
    State,
    SyncAnswer,
    Ticket,
)
from compactd.workers.broker.groups.subscription import CONSUMER, subscribed_topics

#: A member that has not been told its id has this long to be let in: a client that went away is not noticed.
NEW_MEMBER_JOIN_MS = 5 * 60 * 1000


class GroupError(Exception):
    """A request is refused with a code of Kafka's."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ClassicGroup:
    """One group. Deadlines are in ticks of the Moments it is given."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        wall_ms: int,
        random_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.group_id = group_id
        self.settings = settings
        self.state = State.EMPTY
        self.previous_state = State.EMPTY
        #: When the state was entered, time of day; -1: not known.
        self.state_ms = wall_ms
        self.generation = 0
        #: None: nobody ever joined.
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: Instance id to member id.
        self.static: dict[str, str] = {}
        #: Members that were told an id and have not joined with it yet, with their deadlines.
        self.pending: dict[str, float] = {}
        #: Members of this generation that have not synced yet.
        self.pending_sync: set[str] = set()
        #: Topics that the members read; None: not known.
        self.subscribed: frozenset[str] | None = None
        self.join_deadline = NEVER
        self.sync_deadline = NEVER
        #: Of the initial rebalance: how long the present delay is, and how much may follow; None in others.
        self._initial: tuple[int, int] | None = None
        self._member_added = False
        self._random_id = random_id
        self._answers: list[tuple[Ticket, Answer]] = []
        self.unsaved = False
        self.assigning: dict[str, bytes] | None = None

    def take_answers(self) -> list[tuple[Ticket, Answer]]:
        """Answers since the last call, to be delivered once what is to be stored is stored."""
        answers, self._answers = self._answers, []
        return answers

    # ---- what is due

    def next_deadline(self) -> float:
        """When `expire` is to be called next, in ticks."""
        sessions = (member.deadline for member in self.members.values())
        return min(self.join_deadline, self.sync_deadline, *self.pending.values(), *sessions)

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

    # ---- JoinGroup

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

    def _common(self) -> set[str]:
        """Protocols that every member knows."""
        known = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in known.items() if count == len(self.members)}

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

    def insert(self, member: Member, protocol_type: str) -> None:
        """Puts a member into the group; the first one leads."""
        if not self.members:
            self.protocol_type = protocol_type
        self.leader = self.leader or member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)

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
            for member in self.members.values()
        ]

    # ---- static members

    def _replace_static(self, request: Join, old_id: str, new_id: str, ticket: Ticket, now: Moment) -> None:
        leader_before = self.leader
        old = self.members.pop(old_id)
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

    # ---- rebalances

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

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

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
        """Makes the first who joined the leader, if the leader did not join."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is None:
            first = next((member for member in self.members.values() if member.join is not None), None)
            if first is None:
                return False
            self.leader = first.member_id
        return True

    def _select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know."""
        common = self._common()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max(votes, key=lambda name: votes[name])

    def _enter(self, state: State, now: Moment) -> None:
        self.previous_state, self.state = self.state, state
        self.state_ms = now.wall_ms

    def _find_subscribed(self) -> None:
        self.subscribed = None
        if self.protocol_type is not None and not self.members:
            self.subscribed = frozenset()
        elif self.protocol_type == CONSUMER and self.protocol_name is not None:
            self.subscribed = subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())

    # ---- SyncGroup

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

    def _refuse_syncs(self, error: ErrorCode) -> None:
        for member in self.members.values():
            member.assignment = b""
            self._answer_sync(member, SyncAnswer(error))

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _sync_time_is_up(self, now: Moment) -> None:
        self.sync_deadline = NEVER
        if self.state in (State.COMPLETING, State.STABLE) and self.pending_sync:
            for member_id in list(self.pending_sync):
                self._remove(member_id)
            self.prepare_rebalance(now)

    # ---- Heartbeat, LeaveGroup, OffsetCommit

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

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: Moment) -> None:
        """Whether this member may commit offsets now, which is as good as a heartbeat. GroupError."""
        if self.state is State.DEAD:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is State.EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        if self.state is State.COMPLETING:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.is_new:
            member.keep_alive(now)

    # ---- members

    def member(self, member_id: str, instance_id: str | None = None) -> Member:
        """GroupError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another one has the instance id now."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
        found = self.members.get(member_id)
        if found is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return found

    def _dismiss(self, member: Member) -> None:
        """Takes out a member that may be waiting."""
        self._answer_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._remove(member.member_id)

    def _remove(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if member_id and member_id == self.leader:
            self.leader = next(iter(self.members), None)
        if member is not None:
            self._answer_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))

    # ---- the rest of its life

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

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic; a consumer group whose topics are not known may read any."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed

    # ---- answers

    def _answer(self, ticket: Ticket, answer: Answer) -> None:
        self._answers.append((ticket, answer))

    def _answer_join(self, member: Member, answer: JoinAnswer) -> None:
        ticket, member.join = member.join, None
        if ticket is not None:
            self._answer(ticket, answer)

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        ticket, member.sync = member.sync, None
        if ticket is not None:
            self._answer(ticket, answer)
