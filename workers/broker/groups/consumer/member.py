"""A member of a consumer group (KIP-848): what it said, and what it has (Kafka's ConsumerGroupMember)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

#: Topic id to partitions; both in the order in which Java lists them.
Assignment = Mapping[uuid.UUID, tuple[int, ...]]
#: Topic id to partition to the epoch at which it was assigned.
Owned = Mapping[uuid.UUID, Mapping[int, int]]

#: Epochs with a meaning: a member joins, leaves, leaves for a while.
JOINING, LEAVING, LEAVING_STATIC = 0, -1, -2


class MemberState(IntEnum):
    """How far a member is on its way to its target."""

    STABLE = 0
    #: It has to give partitions back before it goes on.
    UNREVOKED = 1
    #: It waits for partitions that others have to give back.
    UNRELEASED = 2
    #: Of a later version of Kafka.
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """Of a member that uses the classic protocol."""

    session_timeout_ms: int = 0
    #: (name, metadata) in its order of preference.
    protocols: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """Never changed: a change makes a new one. Times in ms."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    #: The same, in the order in which the client said them, or the record has them.
    said_names: tuple[str, ...] = field(default=(), compare=False)
    topic_regex: str | None = ""
    assignor: str | None = None
    assigned: Owned = field(default_factory=dict)
    #: To be given back.
    revoking: Owned = field(default_factory=dict)
    #: None: it uses the consumer protocol.
    classic: ClassicMetadata | None = None

    @property
    def regex(self) -> str | None:
        """None where there is none, also where the client said so with an empty one."""
        return self.topic_regex or None

    def is_reconciled_to(self, epoch: int) -> bool:
        """It has what the assignment of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def moved_to(
        self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned | None = None
    ) -> ConsumerMember:
        """At an epoch, with what it has there; what is to be given back stays unless it is told."""
        return replace(
            self,
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=self.revoking if revoking is None else revoking,
        )


def without_epochs(owned: Owned) -> dict[uuid.UUID, tuple[int, ...]]:
    """Only the partitions."""
    return {topic_id: tuple(partitions) for topic_id, partitions in owned.items()}
