"""The `.snapshot` files of a partition: when one is written, loaded, and when it goes (ProducerStateManager; facts 2.9, 8.4).

A snapshot holds what was known of producers up to, exclusive, the offset that is its name. `ProducerSnapshots` keeps the
state of a log together with the offset that it has reached and the snapshots there are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from compactd.config.errors import CompactdError, CorruptBatchError, CorruptFileError, StorageIOError
from compactd.storage import files, names
from compactd.storage.index_lookup import IndexedSegment, start_position
from compactd.storage.kernel.scanning import scan_segment
from compactd.storage.names import DELETED
from compactd.storage.producer_append import Origin, ProducerChanges
from compactd.storage.producers import PRODUCER_EXPIRATION_MS, ProducedBatch, ProducerState, read_snapshot
from compactd.storage.records.batch import read_batches, scan_headers
from compactd.storage.records.control import EndTransactionMarker, parse_end_transaction
from compactd.storage.records.varint import MalformedError


class ReplayedSegment(IndexedSegment, Protocol):
    """What a replay asks of a segment; LogSegment and LiveSegment have it."""

    @property
    def base_offset(self) -> int: ...


class ProducerSnapshots:
    """A log's producer state and its snapshots. Offsets absolute, times ms. For one thread."""

    def __init__(
        self, directory: Path | Callable[[], Path], expiration_ms: int = PRODUCER_EXPIRATION_MS, tolerant: bool = True
    ) -> None:
        """`directory`: a callable where the partition's directory can be renamed.

        `tolerant`: a snapshot that does not fit on a full disk is only noted, for a log can be loaded without it.
        """
        self._directory = directory if callable(directory) else lambda: directory
        self.state = ProducerState(expiration_ms)
        self.tolerant = tolerant
        #: The state holds every batch below this offset (lastMapOffset).
        self.map_end_offset = 0
        #: Offset of the newest snapshot, or from where on there is something new (lastSnapOffset).
        self.last_snapshot_offset = 0
        #: Offsets of the snapshots there are, ascending.
        self.offsets = list_snapshots(self._directory())
        #: What a person should know about what happened.
        self.notes: list[str] = []

    def moved(self, directory: Callable[[], Path]) -> None:
        """The directory is asked for here from now on."""
        self._directory = directory

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def path(self, offset: int, suffix: str = "") -> Path:
        return self._directory() / names.snapshot_name(offset, suffix)

    def advance(self, offset: int) -> None:
        """The state now holds every batch below `offset`."""
        self.map_end_offset = offset

    def take(self, sync: bool = True) -> int | None:
        """Writes a snapshot at `map_end_offset` unless there is nothing new since the last; returns its offset."""
        if self.map_end_offset <= self.last_snapshot_offset:
            return None
        offset = self.map_end_offset
        try:
            files.write_file(self.path(offset), self.state.take_snapshot(), sync=sync)
        except StorageIOError as error:
            if not (self.tolerant and is_no_space(error)):
                raise
            files.remove(self.path(offset), missing_ok=True)
            self.notes.append(f"the producer snapshot at {offset} was not written ({error.reason})")
            return None
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()
        self.last_snapshot_offset = offset
        return offset

    def remove(self, offset: int) -> None:
        """Deletes a snapshot at once; an absent one is passed by."""
        if offset in self.offsets:
            self.offsets.remove(offset)
            files.remove(self.path(offset), missing_ok=True)

    def mark_for_deletion(self, offset: int, suffix: str = DELETED) -> Path | None:
        """Renames the snapshot to `.deleted`; returns its new path, None where there is no such snapshot."""
        if offset not in self.offsets:
            return None
        self.offsets.remove(offset)
        if not self.path(offset).exists():
            return None
        renamed = self.path(offset, suffix)
        files.rename(self.path(offset), renamed)
        return renamed

    def remove_stray(self, segment_bases: Sequence[int]) -> list[int]:
        """Deletes snapshots at no segment's base, but for the newest one when it is above the last base.

        Returns their offsets (removeStraySnapshots).
        """
        bases = set(segment_bases)
        strays = [offset for offset in self.offsets if offset not in bases]
        if (strays and bases and strays[-1] >= max(bases)) or (strays and not bases):
            strays.pop()
        for offset in strays:
            self.remove(offset)
        return strays

    def raise_log_start(self, log_start_offset: int) -> None:
        """The log now starts higher (onLogStartOffsetIncremented)."""
        self.state.raise_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = log_start_offset if self.latest is None else self.latest

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forgets everything, snapshots too; the log starts at `offset`."""
        self.state.clear()
        for each in list(self.offsets):
            self.remove(each)
        self.last_snapshot_offset = 0
        self.map_end_offset = offset

    def truncate_and_reload(self, log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """Drops snapshots outside the log and, unless the state is that of `end_offset`, loads the newest usable one."""
        for each in list(self.offsets):
            if each > end_offset or each <= log_start_offset:
                self.remove(each)
        if end_offset == self.map_end_offset:
            self.raise_log_start(log_start_offset)
            return
        self.state.clear()
        self._load_newest(log_start_offset, now_ms)

    def _load_newest(self, log_start_offset: int, now_ms: int) -> None:
        while self.offsets:
            newest = self.offsets[-1]
            try:
                entries = read_snapshot(self.path(newest))
            except CorruptFileError as error:
                self.notes.append(str(error))
                self.remove(newest)
                continue
            self.state.load(entries, now_ms)
            self.last_snapshot_offset = self.map_end_offset = newest
            return
        self.last_snapshot_offset = self.map_end_offset = log_start_offset

    def rebuild(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        end_offset: int,
        now_ms: int,
        *,
        from_clean_shutdown: bool = False,
    ) -> None:
        """Brings the state to `end_offset`: newest usable snapshot, then every batch above it (rebuildProducerState).

        Snapshots are written on the way at the bases of the last two segments, and one at the end. After a clean stop
        without any snapshot nothing is read: nobody has written with a producer id. Raises CorruptBatchError, and
        InvalidTransactionStateError for data outside a transaction that its producer has open.
        """
        bases = [segment.base_offset for segment in segments]
        to_snapshot = [*bases[-2:], end_offset]
        if self.latest is None and from_clean_shutdown:
            for offset in to_snapshot:
                self.map_end_offset = offset
                self.take()
            return
        empty = not len(self.state) and not self.state.unreplicated_txns and self.map_end_offset >= end_offset
        self.truncate_and_reload(log_start_offset, end_offset, now_ms)
        if end_offset > self.map_end_offset and not empty:
            last = max((base for base in bases if base <= end_offset), default=None)
            first = max((base for base in bases if base <= self.map_end_offset), default=-1)
            for segment in segments:
                if not first <= segment.base_offset < end_offset:
                    continue
                self.map_end_offset = max(segment.base_offset, self.map_end_offset, log_start_offset)
                if segment.base_offset in to_snapshot:
                    self.take()
                self._replay(segment, self.map_end_offset, end_offset if segment.base_offset == last else None)
        self.map_end_offset = end_offset
        self.take()

    def _replay(self, segment: ReplayedSegment, first_offset: int, end_offset: int | None) -> None:
        changes = ProducerChanges(self.state, Origin.REPLICATION, str(segment.log_path))
        for header, marker in produced_batches(segment, first_offset, end_offset):
            changes.add(header, marker)
        changes.apply()


def produced_batches(
    segment: ReplayedSegment, first_offset: int, end_offset: int | None = None
) -> Iterator[tuple[ProducedBatch, EndTransactionMarker | None]]:
    """Batches with a producer id, markers read: from the one that holds `first_offset` to before that of `end_offset`.

    Not all of them, but all that the producer state depends on (storage.kernel.scanning). Raises CorruptBatchError.
    """
    if segment.size == 0:
        return
    path = segment.log_path
    start = start_position(segment, first_offset)
    limit = segment.size if end_offset is None else _position_of(segment, end_offset)
    scan = scan_segment(
        path,
        segment.base_offset,
        limit=limit,
        check_crc=False,
        produced_from=first_offset,
        start_position=start,
    )
    for batch in scan.produced():
        yield batch, batch.marker
    if scan.is_overflow:
        yield from _far_batches(path, max(first_offset, scan.next_offset), scan.valid_bytes, limit)
    elif scan.fault is not None:
        raise scan.fault


def _far_batches(
    path: Path, first_offset: int, position: int, limit: int
) -> Iterator[tuple[ProducedBatch, EndTransactionMarker | None]]:
    """Of the part of a segment that lies too far from its base: it is split at an unclean start, and read at a clean one."""
    for batch in read_batches(path, position, limit):
        header = batch.header
        if header.producer_id >= 0 and header.last_offset >= first_offset:
            records = batch.records() if header.is_control else []
            try:
                yield header, parse_end_transaction(records[0].key, records[0].value) if records else None
            except MalformedError as error:
                header.corrupt(str(path), str(error))


def _position_of(segment: ReplayedSegment, offset: int) -> int:
    """Where the batch that holds or follows `offset` starts; the segment's size where there is none."""
    try:
        for header in scan_headers(segment.log_path, start_position(segment, offset), segment.size):
            if header.last_offset >= offset:
                return header.position
    except CorruptBatchError:
        pass  # the scan that follows names it
    return segment.size


def is_no_space(error: CompactdError) -> bool:
    """Whether a StorageIOError says that the disk is full, or a quota reached."""
    return error.fields.get("errno") in (errno.ENOSPC, errno.EDQUOT)


def list_snapshots(directory: Path) -> list[int]:
    """Offsets of the plain `.snapshot` files of a directory, ascending."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = names.parse_segment_name(entry.name)
            if parsed is not None and parsed.kind == names.SNAPSHOT and not parsed.suffix:
                found.append(parsed.base_offset)
    return sorted(found)
