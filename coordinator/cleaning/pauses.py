"""What `compactd pause` holds back from cleaning, kept over restarts: whoever paused a topic does not expect it cleaned
because a machine was started again.

The file lies in the first log dir, as a plain file that Kafka passes over.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from compactd.config.errors import CompactdError
from compactd.storage import files

_log = logging.getLogger(__name__)

FILE = "compactd-paused.json"
VERSION = 1
_LARGEST = 64 << 20

#: All cleaning.
EVERYTHING = "*"


class _File(msgspec.Struct, kw_only=True):
    version: int
    names: list[str]


class Pauses:
    """In memory, with a file behind it. `load` and `save` touch the disk and belong into a lane; the rest is instant."""

    def __init__(self, log_dir: str | Path) -> None:
        self.path = Path(log_dir) / FILE
        #: Topics, partitions ("users-0"), and "*" for everything.
        self.names: set[str] = set()

    def load(self) -> None:
        """Reads the file. One that can't be read pauses everything: somebody wanted something left alone."""
        try:
            data = files.read_file(self.path, _LARGEST, missing_ok=True)
            content = msgspec.json.decode(data, type=_File) if data else _File(version=VERSION, names=[])
        except (CompactdError, msgspec.DecodeError) as error:
            self._give_up(f"cannot be read: {error}")
            return
        if content.version != VERSION:
            self._give_up(f"is of version {content.version}, not {VERSION}")
            return
        self.names = set(content.names)
        if self.names:
            _log.info(f"still paused: {', '.join(sorted(self.names))}; `compactd resume` goes on")

    def snapshot(self) -> bytes:
        """What `save` is to write; taken on the loop's thread."""
        return msgspec.json.format(msgspec.json.encode(_File(version=VERSION, names=sorted(self.names))))

    def save(self, content: bytes) -> None:
        """Replaces the file atomically. StorageIOError."""
        files.write_atomically(self.path, content)

    def _give_up(self, reason: str) -> None:
        self.names = {EVERYTHING}
        _log.error(f"{self.path} {reason}; all cleaning is paused until `compactd resume`")
