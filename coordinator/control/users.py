"""Who may log in with SCRAM, for `compactd users`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.coordinator.control.messages import UserReport, Users

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon


def build(daemon: Daemon) -> Users:
    """By user and mechanism; neither salts nor keys."""
    known = sorted(daemon.partitions.credentials, key=lambda each: (each.user, each.mechanism))
    return Users(
        users=tuple(UserReport(user=each.user, mechanism=each.mechanism, iterations=each.iterations) for each in known)
    )
