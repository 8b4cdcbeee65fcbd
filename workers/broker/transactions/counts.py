"""How transactions end: since it was told last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context


class TransactionCounts:
    """`context.part(TransactionCounts)`. Of those that this broker coordinates, once their markers are written."""

    def __init__(self, context: Context) -> None:
        self.committed = self.aborted = 0
        #: Aborted because they were too old, counted when that is decided.
        self.timed_out = 0

    def ended(self, *, committed: bool) -> None:
        """One is over."""
        self.committed += committed
        self.aborted += not committed

    def take(self) -> dict[str, int]:
        """By their names; forgets them."""
        taken = {"committed": self.committed, "aborted": self.aborted, "timed_out": self.timed_out}
        self.committed = self.aborted = self.timed_out = 0
        return taken
