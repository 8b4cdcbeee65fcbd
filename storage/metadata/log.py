"""The files of `__cluster_metadata-0`: which snapshot counts, which segments follow, their batches (facts A1, A11, A16).

As Kafka's raft layer reads them: the first damaged batch ends the log, and a snapshot counts only when it is complete,
from its header to its footer.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from compactd.config.errors import CorruptBatchError, CorruptFileError, FaultError, StorageIOError
from compactd.storage.records.batch import HEADER_SIZE, Batch, read_header
from compactd.storage.records.control import ControlRecordType, parse_control_key
from compactd.storage.records.varint import MalformedError

METADATA_DIR = "__cluster_metadata-0"

#: Kafka's raft layer writes batches of at most 8 MiB; a longer one is damage.
MAX_BATCH_BYTES = 64 << 20

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class Snapshot(NamedTuple):
    """A `*.checkpoint` file: `offset` is the first log offset it doesn't contain."""

    offset: int
    epoch: int
    path: Path


class Segment(NamedTuple):
    """A segment of the metadata log."""

    base_offset: int
    path: Path


def metadata_dirs(log_dirs: Sequence[Path]) -> list[Path]:
    """Every `__cluster_metadata-0` in `log_dirs`. Kafka allows one, in its metadata dir."""
    return [path for log_dir in log_dirs if (path := Path(log_dir) / METADATA_DIR).is_dir()]


def list_files(directory: Path) -> tuple[list[Snapshot], list[Segment]]:
    """Snapshots, newest first, and segments, oldest first. Other files don't matter. Raises StorageIOError."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as fault:
        raise StorageIOError(path=directory, action="listing", reason=fault.strerror) from fault
    snapshots = [
        Snapshot(int(match[1]), int(match[2]), directory / name)
        for name in names
        if (match := _SNAPSHOT.fullmatch(name))
    ]
    segments = [Segment(int(match[1]), directory / name) for name in names if (match := _SEGMENT.fullmatch(name))]
    return sorted(snapshots, reverse=True), segments


def read_checked(path: Path) -> Generator[Batch, None, None]:
    """The batches of a file, CRC checked, one in memory at a time; zeros up to the end of the file are no fault.

    Raises CorruptBatchError at the first batch that is damaged or cut off, StorageIOError.
    """
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            position = 0
            while position < size:
                file.seek(position)
                head = file.read(HEADER_SIZE)
                if not head.strip(b"\0") and _only_zeros(path, position):
                    return
                header = read_header(head, 0, str(path), file_position=position)
                if header.size > MAX_BATCH_BYTES:
                    header.corrupt(str(path), f"its size of {header.size} bytes is beyond any metadata batch")
                if header.magic != 2:
                    header.corrupt(str(path), f"magic {header.magic} has no place in the metadata log")
                file.seek(position)
                batch = Batch(header, file.read(header.size), str(path))
                batch.check()
                yield batch
                position += header.size
    except OSError as fault:
        raise StorageIOError(path=path, action="reading", reason=fault.strerror) from fault


def read_snapshot(snapshot: Snapshot) -> list[Batch]:
    """All batches of a complete snapshot, header and footer included. Raises FaultError for one that isn't."""
    batches = list(read_checked(snapshot.path))
    _require(batches[:1], ControlRecordType.SNAPSHOT_HEADER, 0, snapshot)
    _require(batches[-1:], ControlRecordType.SNAPSHOT_FOOTER, -1, snapshot)
    return batches


def newest_snapshot(snapshots: Sequence[Snapshot], faults: list[FaultError]) -> tuple[Snapshot, list[Batch]] | None:
    """The newest complete snapshot with an offset above 0 (the one at 0 holds bootstrap records, which are no state).

    Damaged ones are passed over, their faults added to `faults`.
    """
    for snapshot in snapshots:
        if snapshot.offset > 0:
            try:
                return snapshot, read_snapshot(snapshot)
            except FaultError as fault:
                faults.append(fault)
    return None


def read_log(segments: Sequence[Segment], start: int, faults: list[FaultError]) -> Generator[Batch, None, None]:
    """The batches with offsets from `start` on, to the first damaged one, whose fault is added to `faults`.

    Offsets missing before a segment (a file that was lost) are a fault too; as in Kafka, the log goes on behind them.
    """
    expected = start
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if following is not None and following <= start:
            continue
        if segment.base_offset > expected:
            reason = f"offsets {expected} to {segment.base_offset - 1} are missing before this segment"
            faults.append(_fault(segment.path, reason, 0))
        try:
            with closing(read_checked(segment.path)) as batches:
                for batch in batches:
                    if batch.header.last_offset >= start:
                        yield batch
                    expected = max(expected, batch.header.next_offset)
        except CorruptBatchError as fault:
            faults.append(fault)
            return


def _require(batches: Sequence[Batch], kind: ControlRecordType, record: int, snapshot: Snapshot) -> None:
    """The batch has `kind` as its first (0) or last (-1) record."""
    if batches and batches[0].header.is_control:
        records = batches[0].records()
        try:
            if records and parse_control_key(records[record].key) is kind:
                return
        except MalformedError as fault:
            batches[0].header.corrupt(str(snapshot.path), str(fault))
    position = batches[0].header.position if batches else 0
    raise _fault(snapshot.path, f"the snapshot is not complete, its {kind.name} record is missing", position)


def _fault(path: Path, reason: str, position: int) -> CorruptFileError:
    advice = "Copy the metadata log anew from the broker, or name the settings with --set or --config."
    return CorruptFileError(path=path, reason=reason, position=position, advice=advice)


def _only_zeros(path: Path, position: int) -> bool:
    with open(path, "rb") as file:
        file.seek(position)
        while chunk := file.read(1 << 20):
            if chunk.strip(b"\0"):
                return False
    return True
