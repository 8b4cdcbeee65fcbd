"""What the classic group protocol talks about: members, their requests, and the answers they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from compactd.workers.broker.errors import ErrorCode

#: (name, metadata) in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]

#: Whoever waits for an answer; the state machine only hands it back.
Ticket = Any

#: A deadline that does not come.
NEVER = float("inf")


class GroupError(Exception):
    """A request is refused with a code of Kafka's, and with a message where the answer has room for one."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class State(StrEnum):
    """States of a group, by the names that clients are told."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Moment(NamedTuple):
    """The time, twice: of a clock that only grows, for what is due, and of day, for what is written down. Both ms."""

    ticks: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Of the broker; times in ms."""

    initial_rebalance_delay_ms: int = 3000
    max_size: int = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request."""

    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    protocol_type: str = "consumer"
    protocols: Protocols = ()
    #: v4+: a member without an id is told one first, and joins with it (KIP-394).
    needs_known_id: bool = True
    #: v9+: a static member that led is told to skip the assignment (KIP-814).
    may_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    """A member, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """A JoinGroup answer; the defaults are those of a refusal."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """A SyncGroup answer."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Answer = JoinAnswer | SyncAnswer


@dataclass(slots=True)
class Member:
    """One member of a group. Times in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    #: It waits for its first join to complete: it cannot heartbeat, and may have gone unnoticed.
    is_new: bool = False
    #: Its JoinGroup, or SyncGroup, that is not answered yet.
    join: Ticket | None = None
    sync: Ticket | None = None
    #: When its session ends, in ticks.
    deadline: float = NEVER

    @property
    def is_parked(self) -> bool:
        """It waits for an answer, which is as good as a heartbeat, unless it is new."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said under a protocol; empty where it does not know it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def keep_alive(self, now: Moment, timeout_ms: int | None = None) -> None:
        """Starts its session over."""
        self.deadline = now.ticks + (self.session_timeout_ms if timeout_ms is None else timeout_ms)


def refusal(answer: Answer, error: ErrorCode) -> Answer:
    """In place of an answer that must not be given."""
    return JoinAnswer(error, answer.member_id) if isinstance(answer, JoinAnswer) else SyncAnswer(error)
