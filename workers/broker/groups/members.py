"""The members of a classic group, and what is known of it: the part of the state machine that the others stand on."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import JavaHashMap
from compactd.workers.broker.groups.member import (
    NEVER,
    Answer,
    GroupError,
    GroupSettings,
    JoinAnswer,
    Member,
    Moment,
    State,
    SyncAnswer,
    Ticket,
)
from compactd.workers.broker.groups.subscription import CONSUMER, subscribed_topics


class GroupMembers:
    """Members by id, in the order in which they came; deadlines are in ticks of the Moments it is given."""

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
        #: Those that lead, and those that the leader is told of, come in the order of Kafka's table.
        self.members: JavaHashMap[Member] = JavaHashMap()
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
        #: Records that belong in front of its first one: the end of what it was before.
        self.preface: list[tuple[bytes, bytes | None]] = []
        self.assigning: dict[str, bytes] | None = None

    def take_answers(self) -> list[tuple[Ticket, Answer]]:
        """Answers since the last call, to be delivered once what is to be stored is stored."""
        answers, self._answers = self._answers, []
        return answers

    def next_deadline(self) -> float:
        """When `expire` is to be called next, in ticks."""
        sessions = (member.deadline for member in self.members.values())
        return min(self.join_deadline, self.sync_deadline, *self.pending.values(), *sessions)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic; a consumer group whose topics are not known may read any."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed

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

    def insert(self, member: Member, protocol_type: str) -> None:
        """Puts a member into the group; the first one leads."""
        if not self.members:
            self.protocol_type = protocol_type
        self.leader = self.leader or member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)

    def _dismiss(self, member: Member) -> None:
        """Takes out a member that may be waiting."""
        self._answer_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._remove(member.member_id)

    def _remove(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.remove(member_id)
        if member is not None and member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if member_id and member_id == self.leader:
            self.leader = self.members.first()
        if member is not None:
            self._answer_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))

    def _enter(self, state: State, now: Moment) -> None:
        self.previous_state, self.state = self.state, state
        self.state_ms = now.wall_ms

    def _find_subscribed(self) -> None:
        self.subscribed = None
        if self.protocol_type is not None and not self.members:
            self.subscribed = frozenset()
        elif self.protocol_type == CONSUMER and self.protocol_name is not None:
            self.subscribed = subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())

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
