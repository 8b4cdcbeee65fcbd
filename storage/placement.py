"""Where a new partition goes among the log dirs (LogManager.nextLogDirs; facts 9, KIP-1066)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

#: Directory ids that name no dir (facts 1.4): the controller then leaves the choice to the broker.
RESERVED_DIRECTORY_IDS = frozenset(uuid.UUID(int=number) for number in range(100))


def log_dirs_by_load(live: Sequence[Path], logs: Mapping[Path, int], cordoned: Collection[Path] = ()) -> list[Path]:
    """Live log dirs in the order in which a new partition should be tried: fewest logs first, ties in listing order.

    `logs`: how many logs, current and future, a dir holds. `cordoned`: dirs that get nothing new; if all are, the first
    live one is taken all the same, as in Kafka.
    """
    if len(live) <= 1:
        return list(live)
    open_dirs = [path for path in live if path not in cordoned]
    if not open_dirs:
        return [live[0]]
    return sorted(open_dirs, key=lambda path: logs.get(path, 0))


def assigned_log_dir(directory_id: uuid.UUID | None, ids: Mapping[Path, uuid.UUID | None]) -> Path | None:
    """The log dir that a directory id names; None for a reserved or unknown id."""
    if directory_id is None or directory_id in RESERVED_DIRECTORY_IDS:
        return None
    return next((path for path, each in ids.items() if each == directory_id), None)
