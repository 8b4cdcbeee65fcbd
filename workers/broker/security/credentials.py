"""SCRAM credentials of users, as the catalogue has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.workers.catalogue_update import ScramCredential

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context


class ScramCredentials:
    """`context.part(ScramCredentials)`."""

    def __init__(self, context: Context) -> None:
        self._image = context.image
        self._known: tuple[ScramCredential, ...] | None = None
        self._by_user: dict[str, dict[int, ScramCredential]] = {}

    def all(self) -> dict[str, dict[int, ScramCredential]]:
        """By user, then by number of the mechanism. To look at only."""
        if self._known is not self._image.credentials:
            self._known, self._by_user = self._image.credentials, {}
            for each in self._known:
                self._by_user.setdefault(each.user, {})[each.mechanism] = each
        return self._by_user

    def find(self, user: str, mechanism: int) -> ScramCredential | None:
        return self.all().get(user, {}).get(mechanism)
