"""A member of a streams group (KIP-1071): what it said, and what it has (Kafka's StreamsGroupMember)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from compactd.workers.broker.groups.streams.tasks import OWNS_NOTHING, OwnedTuple

#: Host and port at which a member's application may be asked for its state.
Endpoint = tuple[str, int]


class MemberState(IntEnum):
    """How far a member is on its way to its target; other numbers than those of consumer groups."""

    STABLE = 1
    #: It has to give tasks back before it goes on.
    UNREVOKED = 2
    #: It waits for tasks that others have to give back.
    UNRELEASED = 3
    #: Of a later version of Kafka.
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """Never changed: a change makes a new one. Times in ms."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    #: Of the process that it is a thread of: members of one process share their state.
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    assigned: OwnedTuple = OWNS_NOTHING
    #: To be given back.
    revoking: OwnedTuple = OWNS_NOTHING

    def is_reconciled_to(self, epoch: int) -> bool:
        """It has what the assignment of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def moved_to(
        self, epoch: int, state: MemberState, assigned: OwnedTuple, revoking: OwnedTuple = OWNS_NOTHING
    ) -> StreamsMember:
        """At an epoch, with what it has there and what it has to give back."""
        return replace(
            self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking
        )  # fmt: skip

    def says_other_than(self, before: StreamsMember) -> bool:
        """Whether something changed that the assignment depends on."""
        return (
            self.topology_epoch != before.topology_epoch
            or self.rack_id != before.rack_id
            or self.client_tags != before.client_tags
            or self.process_id != before.process_id
        )


@dataclass(frozen=True, slots=True)
class TaskOffsets:
    """How far a member has got with its tasks: subtopology id to partition to the sum of offsets."""

    reached: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
