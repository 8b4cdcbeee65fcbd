"""Rebuilding the files that belong to one `.log`: its three indexes (LogSegment.recover; facts 8.3).

The order keeps every stop harmless: the old `.index` goes first and the new one comes last, and a segment without
`.index` is recovered at the next start. Nothing is written that is there already, so that a full disk stops nothing.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from compactd.config.errors import CorruptFileError, StorageIOError
from compactd.storage import files, names, offset_index, time_index
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.scanning import SegmentScan
from compactd.storage.producer_snapshots import is_no_space
from compactd.storage.segment import LogSegment
from compactd.storage.transaction_index import encode_transaction, read_transaction_index

_CHUNK = 1 << 20
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def transaction_index_fault(segment: LogSegment) -> str | None:
    """Why the segment's transaction index cannot be used; None where it can, or where there is none."""
    path = segment.transaction_index_path
    if not path.exists():
        return None
    try:
        read_transaction_index(path, segment.base_offset)
    except CorruptFileError as error:
        return f"its transaction index is damaged ({error.reason})"
    return None


def index_tail_fault(segment: LogSegment) -> str | None:
    """What is wrong with the last entries of the segment's offset and time index, at the cost of two small reads.

    None: nothing. An interior fault is found when the index is used, or by `compactd verify`.
    """
    size, last = _tail(segment.offset_index_path, offset_index.ENTRY_SIZE)
    if size % offset_index.ENTRY_SIZE:
        return f"its offset index has {size} bytes"
    if last:
        relative, position = _OFFSET_ENTRY.unpack(last)
        if relative <= 0 or position <= 0:
            return "its offset index ends in zeros"
        if position >= segment.size:
            return f"its offset index points to byte {position} of a log of {segment.size}"
    if not segment.time_index_path.exists():
        return "its time index is missing"
    size, last = _tail(segment.time_index_path, time_index.ENTRY_SIZE)
    if size % time_index.ENTRY_SIZE:
        return f"its time index has {size} bytes"
    if last:
        timestamp, relative = _TIME_ENTRY.unpack(last)
        if timestamp < 0 or relative < 0 or (timestamp == 0 and relative == 0 and size > time_index.ENTRY_SIZE):
            return "its time index ends in zeros"
        if segment.size == 0:
            return "its time index has entries for an empty log"
    return None


def rebuild_segment_files(
    segment: LogSegment, scan: SegmentScan, aborted: Sequence[AbortedTransaction] | None, *, sync: bool
) -> list[str]:
    """Makes the segment's indexes what `scan` found; `aborted` None leaves the transaction index alone.

    `sync`: make them durable now; without it a later flush does, and until then the recovery point has to stay below.
    Returns notes: on a full disk the indexes are kept in memory and on disk there is none. StorageIOError otherwise.
    """
    transactions = None if aborted is None else b"".join(encode_transaction(entry) for entry in aborted)
    wanted: list[tuple[Path, bytes]] = [(segment.time_index_path, scan.time_index)]
    if transactions or (transactions is not None and segment.transaction_index_path.exists()):
        # Like Kafka's, an index that lost its last entry stays as an empty file.
        wanted.append((segment.transaction_index_path, transactions))
    wanted.append((segment.offset_index_path, scan.offset_index))
    try:
        if all(_trimmed_to(path, content, sync) for path, content in wanted):
            return []
        files.remove(segment.offset_index_path, missing_ok=True)
        for path, content in wanted[:-1]:
            if not _trimmed_to(path, content, sync):
                files.write_file(path, content, like=segment.log_path, sync=sync)
        _place(segment.offset_index_path, scan.offset_index, segment.log_path, sync)
    except StorageIOError as error:
        if not is_no_space(error):
            raise
        for path, _ in wanted:
            files.remove(path, missing_ok=True)
        segment.remember(scan, tuple(aborted or ()))
        return [f"its indexes were not written ({error.reason}); they are kept in memory and rebuilt at the next start"]
    return []


def has_only_zeros(path: Path, position: int) -> bool:
    """Whether a file holds nothing but zeros from `position` on, as a preallocated one does."""
    with path.open("rb") as file:
        file.seek(position)
        while chunk := file.read(_CHUNK):
            if chunk.count(0) != len(chunk):
                return False
    return True


def keep_tail(path: Path, position: int, suffix: str) -> Path:
    """Copies what a file holds from `position` on into a file beside it; returns its path. Durable."""
    kept = path.with_name(f"{path.name}.{position}{suffix}")
    with files.create_output(kept, like=path) as output, path.open("rb") as source:
        source.seek(position)
        while chunk := source.read(_CHUNK):
            output.write(chunk)
        output.sync()
    files.fsync_dir(path.parent)
    return kept


def _tail(path: Path, entry_size: int) -> tuple[int, bytes]:
    """Size of a file and its last whole entry (empty where it has none)."""
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size < entry_size or size % entry_size:
                return size, b""
            file.seek(-entry_size, os.SEEK_END)
            return size, file.read(entry_size)
    except OSError as error:
        raise files.failed(path, "read", error) from error


def _trimmed_to(path: Path, content: bytes, sync: bool) -> bool:
    """Whether the file has this content, a preallocated tail apart, which is cut off."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(content) or file.read(len(content)) != content:
                return False
    except OSError:
        return False
    if size > len(content):
        with files.open_existing(path) as output:
            output.truncate(len(content))
            if sync:
                output.sync()
    return True


def _place(path: Path, content: bytes, like: Path, sync: bool) -> None:
    """Puts a whole file in its place by a rename, so that it is never there in part.

    What a stop leaves is named `.cleaned`: Kafka's next start removes that, and would leave a `.tmp` for ever.
    """
    temporary = path.with_name(path.name + names.CLEANED)
    try:
        files.write_file(temporary, content, like=like, sync=sync)
        files.rename(temporary, path)
    except Exception:
        with contextlib.suppress(StorageIOError):
            files.remove(temporary, missing_ok=True)
        raise
    if sync:
        files.fsync_dir(path.parent)
