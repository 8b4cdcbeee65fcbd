"""How many clients proved who they are, and how many failed to: by listener, since it was told last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context


class LoginCounts:
    """`context.part(LoginCounts)`. As Kafka counts: SASL logins, and handshakes of TLS listeners that ask for no login."""

    def __init__(self, context: Context) -> None:
        self._counts: dict[str, list[int]] = {}

    def count(self, listener: str, *, succeeded: bool, again: bool = False) -> None:
        """`again`: a client that had logged in before."""
        self._counts.setdefault(listener, [0, 0, 0, 0])[2 * again + (not succeeded)] += 1

    def take(self) -> dict[str, list[int]]:
        """Succeeded, failed, succeeded again, failed again; forgets them."""
        taken, self._counts = self._counts, {}
        return taken
