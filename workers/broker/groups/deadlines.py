"""What is due when of the members of a group whose assignment the broker makes. None of it is in the log."""

from __future__ import annotations

from dataclasses import dataclass

from compactd.workers.broker.groups.member import NEVER


@dataclass(slots=True)
class Deadlines:
    """Of one member, in ticks."""

    session: float = NEVER
    #: It has to give back what it was asked for by then, and the epoch at which it was asked.
    revocation: float = NEVER
    revocation_epoch: int = 0
    #: A member of the classic protocol has to join, or to sync.
    join: float = NEVER
    sync: float = NEVER

    def next(self) -> float:
        return min(self.session, self.revocation, self.join, self.sync)


class MemberDeadlines(dict[str, Deadlines]):
    """By member id."""

    def of(self, member_id: str) -> Deadlines:
        """To be set."""
        return self.setdefault(member_id, Deadlines())

    def next(self) -> float:
        """When something is due next, in ticks."""
        return min((each.next() for each in self.values()), default=NEVER)
