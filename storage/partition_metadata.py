"""The topic id of a partition, `partition.metadata` (Kafka's PartitionMetadataFile; facts 1.8)."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass

from compactd.config.errors import CorruptFileError
from compactd.storage import files
from compactd.storage.checkpoints import parse_integer
from compactd.storage.names import parse_uuid, uuid_text

_VERSION = 0
_LARGEST_FILE = 4096
_COLON = re.compile(r":[ \t\n\x0b\f\r]+")
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """What the file says. str(topic_id) is not Kafka's form: `text` is."""

    topic_id: uuid.UUID
    version: int = _VERSION

    @property
    def text(self) -> str:
        """The topic id in Kafka's form, 22 characters."""
        return uuid_text(self.topic_id)


def read_partition_metadata(path: files.StrPath) -> PartitionMetadata | None:
    """Reads the file; None when there is none (topics from before topic ids). CorruptFileError otherwise.

    Any version from 0 up is read, so that a downgraded broker's files can be.
    """
    name = os.fspath(path)
    raw = files.read_file(name, _LARGEST_FILE, missing_ok=True)
    if not raw and not os.path.exists(name):  # noqa: PTH110
        return None
    lines = _LINE_END.split(raw.decode("utf-8", errors="replace"))
    try:
        version = parse_integer(_value(lines, 0, "version"), 31)
        if version < _VERSION:
            raise ValueError(f"line 1 says version {version}")
        topic_id = parse_uuid(_value(lines, 1, "topic_id"))
        if topic_id.int == 0:
            raise ValueError("the topic id is all zeros")
    except ValueError as error:
        raise CorruptFileError(
            path=name,
            reason=str(error),
            position=0,
            advice="Remove the file: Kafka writes it anew with the topic id of the cluster's metadata.",
        ) from None
    return PartitionMetadata(topic_id, version)


def write_partition_metadata(path: files.StrPath, topic_id: uuid.UUID) -> None:
    """Writes the file atomically: two lines, the last without its end."""
    files.write_atomically(path, f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode())


def _value(lines: list[str], index: int, field: str) -> str:
    """As Kafka reads it: the line splits into two at a colon and blanks; the field's name is not looked at."""
    parts = _COLON.split(lines[index]) if index < len(lines) else []
    if len(parts) != 2:
        raise ValueError(f"line {index + 1} is not `{field}: VALUE`")
    return parts[1]
