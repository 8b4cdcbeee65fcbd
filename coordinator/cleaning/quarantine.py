"""Partitions whose cleaning failed: set aside with file, position and cause, kept over restarts, tried again ever more rarely.

Kafka marks such a partition in memory until the next restart, and says so once in a log (KIP-346). Here an operator can ask
for it, the others go on, and it heals by itself where the cause went away. The file lies in the first log dir, as a plain
file that Kafka passes over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from compactd.config.errors import CompactdError
from compactd.coordinator.control.messages import QuarantineStatus
from compactd.storage import files

_log = logging.getLogger(__name__)

FILE = "compactd-quarantine.json"
VERSION = 1
_LARGEST = 64 << 20

#: Pauses before each further try; the last one repeats.
PAUSES_MS = (60_000, 300_000, 1_800_000, 7_200_000, 43_200_000)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One partition that is set aside."""

    since_ms: int
    attempts: int
    retry_at_ms: int
    error: str
    reason: str
    fields: dict[str, str]


class _File(msgspec.Struct, kw_only=True):
    version: int = VERSION
    partitions: dict[str, Entry] = {}


class Quarantine:
    """In memory, with a file behind it. `load` and `save` touch the disk and belong into a lane; the rest is instant."""

    def __init__(self, log_dir: str | Path) -> None:
        self.path = Path(log_dir) / FILE
        self._entries: dict[str, Entry] = {}

    def load(self) -> None:
        """Reads the file; one that cannot be read counts as empty, and says so: cleaning only tries again sooner."""
        try:
            data = files.read_file(self.path, _LARGEST, missing_ok=True)
            content = msgspec.json.decode(data, type=_File) if data else _File()
        except (CompactdError, msgspec.DecodeError) as error:
            _log.warning(f"{self.path} cannot be read and is begun anew: {error}")
            return
        if content.version == VERSION:
            self._entries = dict(content.partitions)
        else:
            _log.warning(f"{self.path} is of version {content.version}, not {VERSION}, and is begun anew")

    def snapshot(self) -> bytes:
        """What `save` is to write; taken on the loop's thread."""
        return msgspec.json.format(msgspec.json.encode(_File(partitions=dict(self._entries))))

    def save(self, content: bytes) -> None:
        """Replaces the file atomically. StorageIOError."""
        files.write_atomically(self.path, content)

    def add(self, name: str, now_ms: int, error: str, reason: str, fields: Mapping[str, str]) -> Entry:
        """Sets a partition aside, or puts it off further after one more failure."""
        before = self._entries.get(name)
        attempts = 1 if before is None else before.attempts + 1
        pause = PAUSES_MS[min(attempts, len(PAUSES_MS)) - 1]
        entry = Entry(
            since_ms=now_ms if before is None else before.since_ms,
            attempts=attempts,
            retry_at_ms=now_ms + pause,
            error=error,
            reason=reason,
            fields=dict(fields),
        )
        self._entries[name] = entry
        return entry

    def remove(self, names: Iterable[str]) -> list[str]:
        """Lets partitions be cleaned again; those that were set aside."""
        return [name for name in list(names) if self._entries.pop(name, None) is not None]

    def holds(self, name: str, now_ms: int) -> bool:
        """Whether it may not be tried yet."""
        entry = self._entries.get(name)
        return entry is not None and now_ms < entry.retry_at_ms

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def status(self) -> tuple[QuarantineStatus, ...]:
        return tuple(
            QuarantineStatus(
                partition=name,
                since_ms=entry.since_ms,
                retry_at_ms=entry.retry_at_ms,
                attempts=entry.attempts,
                error=entry.error,
                reason=entry.reason,
                fields=entry.fields,
            )
            for name, entry in sorted(self._entries.items())
        )
