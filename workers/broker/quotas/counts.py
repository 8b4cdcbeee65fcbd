"""How often quotas had clients keep still, and for how long: by kind of quota, since it was told last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.workers.messages import Throttles

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context


class ThrottleCounts:
    """`context.part(ThrottleCounts)`. Of two quotas that ask for a pause at once, the one that asks for more is counted."""

    def __init__(self, context: Context) -> None:
        self._counts: dict[Throttles, list[int]] = {}

    def count(self, quota: Throttles, milliseconds: int) -> None:
        """One answer, or one connection, that has to wait."""
        known = self._counts.setdefault(quota, [0, 0])
        known[0] += 1
        known[1] += milliseconds

    def take(self) -> dict[str, tuple[int, int]]:
        """How many and how many milliseconds; forgets them."""
        taken, self._counts = self._counts, {}
        return {str(quota): (count, milliseconds) for quota, (count, milliseconds) in taken.items()}
