"""Fetch sessions: what a consumer reads is remembered, so that it only tells, and is only told, changes (KIP-227).

Rules and limits are those of Kafka's FetchSession (facts: kafka-protocol 7.5).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.fetch_codec import AskedPartition, FetchRequest, TopicKey

NO_SESSION = 0
#: Epochs of a request outside sessions, and of one that begins a session.
FINAL_EPOCH, INITIAL_EPOCH = -1, 0
_LARGEST = 2**31 - 1
#: A session that was not used for this long gives its place away.
_UNUSED_SECONDS = 120.0
_FIRST_TOPIC_IDS = 13
#: Partitions that all sessions remember at most: some hundred megabytes. Kafka's memory is the limit there.
MOST_REMEMBERED = 1_000_000

#: Topic, by name or by id as the version has it, and partition.
Key = tuple[TopicKey, int]


class Wanted:
    """One partition that a consumer reads."""

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "last_epoch",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "number",
        "topic",
    )

    def __init__(self, topic: TopicKey, asked: AskedPartition) -> None:
        self.topic = topic
        self.number = asked.partition
        #: What the last answer told; -1: nothing, or an error.
        self.high_watermark = -1
        self.log_start = -1
        self.update(asked)

    def update(self, asked: AskedPartition) -> None:
        """Takes what the consumer asks for now."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_epoch = asked.last_fetched_epoch


class FetchSession:
    """One consumer's session with this broker."""

    def __init__(self, session_id: int, uses_ids: bool, now: float) -> None:
        self.session_id = session_id
        self.uses_ids = uses_ids
        #: The epoch that the next request has to have.
        self.epoch = 1
        self.partitions: dict[Key, Wanted] = {}
        self.created = self.used = now

    def advance(self, now: float) -> None:
        """A request was taken."""
        self.epoch = 1 if self.epoch == _LARGEST else self.epoch + 1
        self.used = now

    def told(self, answered: Iterable[Key]) -> None:
        """Partitions that gave records are read last the next time."""
        for key in answered:
            wanted = self.partitions.pop(key, None)
            if wanted is not None:
                self.partitions[key] = wanted


class FetchPlan:
    """What one request comes to."""

    __slots__ = ("error", "incremental", "session", "wanted")

    def __init__(
        self,
        wanted: list[Wanted],
        session: FetchSession | None = None,
        incremental: bool = False,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.wanted = wanted
        self.session = session
        self.incremental = incremental
        self.error = error

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.session_id


class FetchSessions:
    """All sessions of this broker: `context.part(FetchSessions)`."""

    def __init__(self, context: Context) -> None:
        self.slots = context.config.max_incremental_fetch_session_cache_slots
        self._clock = context.clock
        self._by_id: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def plan(self, version: int, request: FetchRequest) -> FetchPlan:
        """Finds out what to read, and opens, advances or ends a session."""
        if version < 7:
            return FetchPlan(_all_of(request))
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self._by_id.pop(session_id, None)
            wanted = _all_of(request)
            session = self._open(version, wanted) if epoch == INITIAL_EPOCH else None
            return FetchPlan(wanted, session)
        session = self._by_id.get(session_id)
        if session is None:
            return FetchPlan([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_ids != (version >= _FIRST_TOPIC_IDS):
            return FetchPlan([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if epoch != session.epoch:
            return FetchPlan([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        before = len(session.partitions)
        _change(session, request)
        if len(session.partitions) > before and self._is_too_much(0):
            # The client begins anew, and asks for everything each time if there is still no room.
            del self._by_id[session_id]
            return FetchPlan([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            del self._by_id[session_id]
            return FetchPlan([])
        session.advance(self._clock.monotonic())
        return FetchPlan(list(session.partitions.values()), session, incremental=True)

    def throttled(self, plan: FetchPlan) -> int:
        """The answer was withheld: a session that it would have opened is not. The id for the empty answer."""
        if plan.session is None or plan.incremental:
            return plan.session_id
        self._by_id.pop(plan.session_id, None)
        return NO_SESSION

    def _open(self, version: int, wanted: list[Wanted]) -> FetchSession | None:
        if not wanted or not self._make_room(len(wanted)) or self._is_too_much(len(wanted)):
            return None
        # Who knows it may end it: it must not be guessed.
        session_id = 1 + secrets.randbelow(_LARGEST)
        while session_id in self._by_id:
            session_id = 1 + secrets.randbelow(_LARGEST)
        session = FetchSession(session_id, version >= _FIRST_TOPIC_IDS, self._clock.monotonic())
        session.partitions = {(each.topic, each.number): each for each in wanted}
        self._by_id[session_id] = session
        return session

    def _is_too_much(self, more: int) -> bool:
        """Whether partitions of all sessions, and `more`, are more than are remembered."""
        return more + sum(len(each.partitions) for each in self._by_id.values()) > MOST_REMEMBERED

    def _make_room(self, size: int) -> bool:
        """The longest unused session goes if it was unused for long; else the smallest that is old and smaller."""
        if len(self._by_id) < self.slots:
            return True
        if not self._by_id:
            return False
        before = self._clock.monotonic() - _UNUSED_SECONDS
        oldest = min(self._by_id.values(), key=lambda session: session.used)
        if oldest.used <= before:
            del self._by_id[oldest.session_id]
            return True
        old = [each for each in self._by_id.values() if each.created <= before and len(each.partitions) < size]
        if not old:
            return False
        del self._by_id[min(old, key=lambda session: len(session.partitions)).session_id]
        return True


def _all_of(request: FetchRequest) -> list[Wanted]:
    """Every partition of the request once; of one that is named twice the last counts."""
    found: dict[Key, Wanted] = {}
    for topic, partitions in request.topics:
        for asked in partitions:
            found[topic, asked.partition] = Wanted(topic, asked)
    return list(found.values())


def _change(session: FetchSession, request: FetchRequest) -> None:
    """Applies an incremental request."""
    for topic, partitions in request.topics:
        for asked in partitions:
            known = session.partitions.get((topic, asked.partition))
            if known is None:
                session.partitions[topic, asked.partition] = Wanted(topic, asked)
            else:
                known.update(asked)
    for topic, numbers in request.forgotten:
        for number in numbers:
            session.partitions.pop((topic, number), None)
