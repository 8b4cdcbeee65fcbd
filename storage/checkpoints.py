"""Checkpoint files: the common text frame, and the four offset checkpoints of a log dir (CheckpointFile; facts 1.5).

Frame: line 1 the version `0`, line 2 the number of entries, then one line per entry. An empty file and a file with only
the version line are valid and mean no entries. A `.tmp` beside the file is a leftover of an unfinished write: ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from compactd.config.errors import CorruptFileError
from compactd.storage import files
from compactd.storage.names import TopicPartition

#: First dirty offset per partition: where the last clean ended.
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
#: Everything below is known to be flushed.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
#: Only of partitions whose log start offset is above their first segment's base.
LOG_START_OFFSETS = "log-start-offset-checkpoint"
#: High watermarks.
HIGH_WATERMARKS = "replication-offset-checkpoint"

#: Far above the entries of the largest broker; a file beyond it is not a checkpoint.
LARGEST_CHECKPOINT = 256 << 20

_VERSION = 0
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_LINE_END = re.compile(r"\r\n|\n|\r")
#: What Java's \s matches; str.split() would also split at other kinds of space.
_SPACES = re.compile(r"[ \t\n\x0b\f\r]+")


class OffsetCheckpoint:
    """One offset checkpoint file: partition to offset."""

    def __init__(self, path: files.StrPath) -> None:
        self.path = os.fspath(path)

    def read(self) -> dict[TopicPartition, int]:
        """All entries; an absent file has none. CorruptFileError names the line that is wrong."""
        found: dict[TopicPartition, int] = {}
        for number, position, (topic, partition, offset) in read_frame(self.path, 3):
            key = TopicPartition(topic, _number(self.path, number, position, partition, 31))
            found[key] = _number(self.path, number, position, offset, 63)
        return found

    def write(self, entries: Mapping[TopicPartition, int]) -> None:
        """Replaces the file atomically, entries in order of topic and partition (Kafka's order is a hash map's)."""
        write_frame(self.path, (f"{key.topic} {key.partition} {entries[key]}" for key in sorted(entries)))


def read_frame(path: files.StrPath, parts: int) -> list[tuple[int, int, list[str]]]:
    """Entry lines as (line number from 1, byte position, the line's parts). An absent file has none.

    CorruptFileError: not UTF-8, another version, a line that has not `parts` parts, or another number of entries.
    """
    name = os.fspath(path)
    raw = files.read_file(name, LARGEST_CHECKPOINT, missing_ok=True)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at_line = raw.count(b"\n", 0, error.start) + 1
        raise corrupt(name, f"line {at_line} is not UTF-8 text", error.start) from None
    lines = _lines(text)
    if not lines:
        return []
    version = _number(name, 1, 0, lines[0][1], 31)
    if version != _VERSION:
        raise corrupt(name, f"line 1 says version {version}, where only version {_VERSION} is known", 0)
    if len(lines) == 1:
        return []
    expected = _number(name, 2, lines[1][0], lines[1][1], 31)
    entries = []
    for number, (position, line) in enumerate(lines[2:], start=3):
        # As Java's split: empty strings at the end fall away, one at the start (a leading space) stays.
        found = _SPACES.split(line)
        while found and not found[-1]:
            found.pop()
        if len(found) != parts:
            raise corrupt(name, f"malformed line {number}: {_shown(line)}", position)
        entries.append((number, position, found))
    if len(entries) != expected:
        raise corrupt(name, f"line 2 promises {expected} entries, but {len(entries)} were found", lines[1][0])
    return entries


def write_frame(path: files.StrPath, entries: Iterable[str]) -> None:
    """Replaces the file atomically with these entry lines."""
    lines = list(entries)
    files.write_atomically(path, "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines]).encode())


def corrupt(path: files.StrPath, reason: str, position: int) -> CorruptFileError:
    """The error for a damaged checkpoint."""
    return CorruptFileError(
        path=os.fspath(path),
        reason=reason,
        position=position,
        advice="Restore the file, or remove it: a broker then starts from its default (offset 0, or no entries).",
    )


def parse_integer(text: str, bits: int) -> int:
    """A number as Java's parseInt (bits 31) and parseLong (bits 63) read it. ValueError otherwise."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{_shown(text)} is not a number")
    value = int(text)
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"{text} does not fit in {bits + 1} bits")
    return value


def _number(path: str, line: int, position: int, text: str, bits: int) -> int:
    try:
        return parse_integer(text, bits)
    except ValueError as error:
        raise corrupt(path, f"malformed line {line}: {error}", position) from None


def _lines(text: str) -> list[tuple[int, str]]:
    """(byte position, line) as Java's BufferedReader sees lines: the last may lack its end."""
    lines, start, position = [], 0, 0
    while start < len(text):
        end = _LINE_END.search(text, start)
        line = text[start : end.start()] if end else text[start:]
        lines.append((position, line))
        start = end.end() if end else len(text)
        position += len(line.encode()) + (end.end() - end.start() if end else 0)
    return lines


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "…")
