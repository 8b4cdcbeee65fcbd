"""`__cluster_metadata-0` as its only voter keeps it: opened, recovered, appended to, rolled, trimmed (facts A1, A3, A4, A11).

One object a log dir, used by one thread at a time, under the lock of the log dir. Every append is one batch, which is
Kafka's unit of all-or-nothing, and is on disk when the call returns. Indexes and producer snapshots are not written:
Kafka throws them away and rebuilds them at every start.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from compactd.config.errors import CorruptBatchError, CorruptFileError, LogOfflineError, RefusedError, StorageIOError
from compactd.storage import files, names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.kernel.scanning import SegmentScan, scan_segment
from compactd.storage.metadata import raft_state
from compactd.storage.metadata.log import METADATA_DIR, Segment, Snapshot, list_files, read_snapshot
from compactd.storage.metadata.raft_state import METADATA_TOPIC_ID
from compactd.storage.metadata.records import encode_control_record
from compactd.storage.metadata.tail import intact_batch_after
from compactd.storage.offset_index import ENTRY_SIZE
from compactd.storage.partition_metadata import read_partition_metadata, write_partition_metadata
from compactd.storage.records.batch import Batch, read_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.control import ControlRecordType
from compactd.storage.records.record import Record

#: Kafka's raft layer neither writes nor reads a longer batch.
MAX_BATCH_BYTES = 8 << 20

_LEFTOVER = re.compile(r"\d{20}-\d{10}.*\.checkpoint(\.part|\.deleted)|.*\.deleted|.*\.tmp|.*\.cleaned|.*\.swap")


class MetadataLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's metadata.log.* and metadata.max.* settings, with its defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 3_600_000
    max_retention_bytes: int = 100 << 20
    max_retention_ms: int = 7 * 24 * 3_600_000


class MetadataLog:
    """The log, open at its end. Make it with `open`."""

    def __init__(self, directory: Path, settings: MetadataLogSettings) -> None:
        self.directory = directory
        self.settings = settings
        #: Oldest first; the last one takes the appends.
        self.segments: list[Segment] = []
        #: Oldest first.
        self.snapshots: list[Snapshot] = []
        self.end_offset = 0
        #: Bytes of the log above `snapshot_offset`; what a snapshot made now would save the next start.
        self.bytes_since_snapshot = 0
        #: What opening did to the files, a sentence each.
        self.actions: list[str] = []
        self.epochs = LeaderEpochs()
        self._quorum_epoch = 0
        self._output: files.Output | None = None
        self._segment_bytes = 0
        self._segment_since_ms: int | None = None
        self._offline: str | None = None
        #: Offset index of each segment that was there at opening, for `read`.
        self._indexes: dict[int, bytes] = {}

    @classmethod
    def open(cls, log_dir: Path, settings: MetadataLogSettings | None = None) -> MetadataLog:
        """Opens the metadata log of a log dir, made if absent; a torn tail is cut off, leftovers are removed.

        RefusedError: intact batches stand behind a damaged one (Kafka would drop them without a word), or offsets
        between the snapshots and the log are missing. CorruptFileError: the newest snapshot or quorum-state can't be
        read. StorageIOError.
        """
        log = cls(Path(log_dir) / METADATA_DIR, settings or MetadataLogSettings())
        if not log.directory.is_dir():
            files.make_dir(log.directory)
        try:
            log._recover()
        except BaseException:
            log._let_go()
            raise
        return log

    # ---- what is there

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def last_epoch(self) -> int:
        """The highest raft epoch known: of quorum-state, of the last batch, of the newest snapshot."""
        newest = self.snapshots[-1].epoch if self.snapshots else 0
        return max(self._quorum_epoch, self.epochs.latest_epoch or 0, newest)

    @property
    def newest_snapshot(self) -> Snapshot | None:
        """The snapshot that a replay starts from: the newest one above offset 0."""
        return self.snapshots[-1] if self.snapshots and self.snapshots[-1].offset > 0 else None

    @property
    def bootstrap(self) -> Snapshot | None:
        """The 0-0 checkpoint, which holds the records that a formatted log dir begins with."""
        return self.snapshots[0] if self.snapshots and self.snapshots[0].offset == 0 else None

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.path.stat().st_size for segment in self.segments)

    def read(self, start: int) -> Iterator[Batch]:
        """The batches with offsets from `start` to the end. They were checked when the log was opened."""
        for index, segment in enumerate(self.segments):
            following = self.segments[index + 1].base_offset if index + 1 < len(self.segments) else self.end_offset
            if following <= start:
                continue
            position = _lookup(self._indexes.get(segment.base_offset, b""), start - segment.base_offset)
            with contextlib.closing(read_batches(segment.path, position)) as batches:
                for batch in batches:
                    if batch.header.last_offset >= start:
                        yield batch

    # ---- changes

    def begin_epoch(
        self, node_id: int, now_ms: int, kraft_version: int = 0, extra: Sequence[tuple[bytes, bytes]] = ()
    ) -> int:
        """Becomes leader of a new raft epoch: quorum-state, LeaderChange batch, leader-epoch-checkpoint. The epoch.

        `extra`: control records that go with it, which are KRaftVersion and Voters at the first start of a dynamic quorum.
        """
        epoch = self.last_epoch + 1
        self._identify()
        raft_state.write_quorum_state(self.directory, node_id, epoch, kraft_version)
        self._quorum_epoch = epoch
        voters = [{"voterId": node_id}]
        leader_change = encode_control_record(
            ControlRecordType.LEADER_CHANGE, 0, {"leaderId": node_id, "voters": voters, "grantingVoters": voters}
        )
        self._append([leader_change, *extra], now_ms, epoch, control=True)
        return epoch

    def append(self, values: Sequence[bytes], now_ms: int) -> int:
        """Appends metadata records as one batch in the current epoch; the offset of the first. Durable on return.

        Raises ValueError for no records and for a batch above 8 MiB, LogOfflineError after an earlier I/O error that
        left the end of the log in doubt, StorageIOError: the batch is not in the log, unless the log is offline now.
        """
        if not values:
            raise ValueError("a batch needs a record")
        return self._append([(None, value) for value in values], now_ms, self.last_epoch, control=False)

    def append_controls(self, records: Sequence[tuple[bytes, bytes]], now_ms: int) -> int:
        """Appends control records, such as those of another kraft.version; the offset of the first. As `append`."""
        return self._append(records, now_ms, self.last_epoch, control=True)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Takes a finished snapshot of this log over; what it makes superfluous goes with `trim`."""
        self.snapshots = sorted({*self.snapshots, snapshot})
        self.bytes_since_snapshot = self._bytes_from(snapshot.offset)

    def trim(self, now_ms: int) -> list[Path]:
        """Deletes old snapshots, and segments below the oldest one left (KafkaRaftLog.maybeClean); what went.

        A snapshot goes when a newer one is there and either is older than max_retention_ms, or log and snapshots
        together have more than max_retention_bytes. The newest always stays.
        """
        removed: list[Path] = []
        while len(self.snapshots) > 1 and self._is_due(self.snapshots[0], now_ms):
            below = self.snapshots[1].offset
            removed.append(self.snapshots[0].path)
            files.remove(self.snapshots.pop(0).path)
            while len(self.segments) > 1 and self.segments[1].base_offset <= below:
                removed += self._remove_segment(self.segments.pop(0))
            files.fsync_dir(self.directory)
        if removed and self.epochs.truncate_from_start(self.start_offset):
            raft_state.write_epochs(self.directory, self.epochs)
        return removed

    def close(self) -> None:
        """Gives the file up; everything is on disk already."""
        output, self._output = self._output, None
        if output is not None:
            output.close()

    # ---- inside: appending

    def _append(self, entries: Sequence[tuple[bytes | None, bytes]], now_ms: int, epoch: int, control: bool) -> int:
        if self._offline is not None:
            raise LogOfflineError(path=str(self.directory), detail=self._offline)
        base = self.end_offset
        records = [Record(base + index, now_ms, key, value) for index, (key, value) in enumerate(entries)]
        batch = build_batch(records, base_offset=base, leader_epoch=epoch, control=control)
        if len(batch) > MAX_BATCH_BYTES:
            raise ValueError(f"a metadata batch of {len(batch)} bytes, above {MAX_BATCH_BYTES}")
        if self._segment_bytes and self._roll_is_due(len(batch), now_ms):
            self._roll()
        self._write(batch)
        if self.epochs.latest_epoch is None or epoch > self.epochs.latest_epoch:
            self.epochs.assign(epoch, base)
            raft_state.write_epochs(self.directory, self.epochs)
        if self._segment_since_ms is None:
            self._segment_since_ms = now_ms
        self.end_offset = base + len(records)
        self.bytes_since_snapshot += len(batch)
        return base

    def _write(self, batch: bytes) -> None:
        output = self._output
        assert output is not None
        try:
            output.write(batch)
        except StorageIOError:
            # Nobody was told of the batch yet; without a part of it behind, the next one may follow.
            self._cut_back()
            raise
        try:
            output.sync()
        except StorageIOError as error:
            # Whether the batch is on disk only a reader after a restart can tell (fsync is never tried again).
            self._offline = f"whether the batch at offset {self.end_offset} is on disk is unknown, {error.reason}"
            raise
        self._segment_bytes += len(batch)

    def _cut_back(self) -> None:
        assert self._output is not None
        try:
            self._output.truncate(self._segment_bytes)
            self._output.seek(self._segment_bytes)
            self._output.sync()
        except StorageIOError as error:
            self._offline = f"a half-written batch at offset {self.end_offset} could not be cut off, {error.reason}"

    def _roll_is_due(self, size: int, now_ms: int) -> bool:
        since = self._segment_since_ms
        is_old = since is not None and now_ms - since > self.settings.segment_ms
        return is_old or self._segment_bytes + size > self.settings.segment_bytes

    def _roll(self) -> None:
        old = self._output
        self._start_segment(self.end_offset)
        if old is not None:
            with contextlib.suppress(StorageIOError):  # all of it is on disk
                old.close()

    def _start_segment(self, base_offset: int) -> None:
        path = self.directory / names.log_name(base_offset)
        output = files.create_output(path)
        try:
            files.fsync_dir(self.directory)
        except StorageIOError:
            output.close()
            raise
        self._output = output
        self.segments.append(Segment(base_offset, path))
        self._segment_bytes, self._segment_since_ms = 0, None

    # ---- inside: opening

    def _recover(self) -> None:
        for path in sorted(self.directory.iterdir()):
            if path.is_file() and _LEFTOVER.fullmatch(path.name):
                files.remove(path)
                self.actions.append(f"removed the leftover {path.name}")
        snapshots, self.segments = list_files(self.directory)
        self.snapshots = sorted(snapshots)
        state = raft_state.read_quorum_state(self.directory)
        self._quorum_epoch = 0 if state is None else state.epoch
        self._scan()
        self._settle_snapshots()
        if self._output is None:
            self._open_active()
        self.bytes_since_snapshot = self._bytes_from(self.newest_snapshot.offset if self.newest_snapshot else 0)

    def _scan(self) -> None:
        """Reads every batch once, as Kafka does at every start of this log, and ends the log at the first bad one."""
        covered = self.newest_snapshot.offset if self.newest_snapshot else 0
        for index, segment in enumerate(self.segments):
            if index and segment.base_offset > max(self.end_offset, covered):
                raise RefusedError(
                    path=str(segment.path),
                    reason=f"offsets {self.end_offset} to {segment.base_offset - 1} are missing before this segment",
                    advice="Restore the missing .log file from a backup; without it topics and settings are lost.",
                )
            scan = scan_segment(segment.path, segment.base_offset)
            for epoch, offset in scan.epochs:
                if (self.epochs.latest_epoch or 0) < epoch or not self.epochs.entries:
                    self.epochs.assign(epoch, offset)
            self._indexes[segment.base_offset] = scan.offset_index
            self.end_offset = scan.next_offset
            if scan.fault is not None:
                self._cut_tail(segment, scan, scan.fault, self.segments[index + 1 :])
                del self.segments[index + 1 :]
                return

    def _cut_tail(
        self, segment: Segment, scan: SegmentScan, fault: CorruptBatchError, later: Sequence[Segment]
    ) -> None:
        behind = intact_batch_after(segment.path, scan.valid_bytes, scan.next_offset)
        if behind is None:
            behind = next((found for path in later if (found := intact_batch_after(path.path, 0, 0))), None)
        if behind is not None:
            raise RefusedError(
                path=str(segment.path),
                reason=f"a damaged batch at byte {scan.valid_bytes} ({fault.reason}), and intact ones behind it, "
                f"the first of them at offset {behind}",
                advice=f"Kafka would drop everything from offset {scan.next_offset} on without a word, and set the "
                "directories of topics made since then aside. Restore this directory from a backup; or, to give "
                f"those changes up, cut the file to {scan.valid_bytes} bytes.",
            )
        cut = segment.path.stat().st_size - scan.valid_bytes
        files.truncate(segment.path, scan.valid_bytes)
        self.actions.append(
            f"cut {cut} bytes off {segment.path.name}: {fault.reason} behind the last whole batch, "
            f"the log ends at offset {scan.next_offset}"
        )
        for empty in later:
            self._remove_segment(empty)

    def _settle_snapshots(self) -> None:
        newest = self.newest_snapshot
        if newest is not None and (newest.epoch, newest.offset) > (self.epochs.latest_epoch or 0, self.end_offset):
            read_snapshot(newest)
            for segment in self.segments:
                self._remove_segment(segment)
            if self.segments:
                self.actions.append(
                    f"the log ended at offset {self.end_offset}, before the snapshot {newest.path.name}: "
                    "it goes on behind the snapshot"
                )
            self.segments, self._indexes, self.epochs = [], {}, LeaderEpochs()
            self.epochs.assign(newest.epoch, newest.offset)
            self.end_offset = newest.offset
            self._start_segment(newest.offset)
        elif not self.segments:
            self._start_segment(0)
        if self.start_offset > (self.snapshots[-1].offset if self.snapshots else 0):
            raise RefusedError(
                path=str(self.directory),
                reason=f"the log begins at offset {self.start_offset} and no snapshot covers the offsets before it",
                advice="Kafka does not start on it either. Restore the missing *.checkpoint or .log files.",
            )
        for snapshot in [entry for entry in self.snapshots if entry.offset < self.start_offset]:
            files.remove(snapshot.path)
            self.snapshots.remove(snapshot)
            self.actions.append(f"removed {snapshot.path.name}, from before the log's start {self.start_offset}")

    def _identify(self) -> None:
        path = self.directory / names.PARTITION_METADATA
        try:
            found = read_partition_metadata(path)
        except CorruptFileError:
            found = None
        if found is None or found.topic_id != METADATA_TOPIC_ID:
            write_partition_metadata(path, METADATA_TOPIC_ID)

    def _open_active(self) -> None:
        active = self.segments[-1]
        self._segment_bytes = active.path.stat().st_size
        self._output = files.open_append(active.path, self._segment_bytes)
        with contextlib.closing(read_batches(active.path)) as batches:
            first = next(batches, None)
        self._segment_since_ms = None if first is None else first.header.max_timestamp

    def _let_go(self) -> None:
        with contextlib.suppress(StorageIOError):
            self.close()

    # ---- inside: old files

    def _bytes_from(self, offset: int) -> int:
        total = 0
        for index, segment in enumerate(self.segments):
            following = self.segments[index + 1].base_offset if index + 1 < len(self.segments) else self.end_offset
            if following <= offset:
                continue
            skipped = _lookup(self._indexes.get(segment.base_offset, b""), offset - segment.base_offset)
            total += segment.path.stat().st_size - skipped
        return total

    def _is_due(self, snapshot: Snapshot, now_ms: int) -> bool:
        kept = self.size + sum(entry.path.stat().st_size for entry in self.snapshots)
        if self.settings.max_retention_bytes >= 0 and kept > self.settings.max_retention_bytes:
            return True
        if self.settings.max_retention_ms < 0:
            return False
        made_ms = raft_state.snapshot_timestamp(snapshot)
        return made_ms is not None and now_ms - made_ms > self.settings.max_retention_ms

    def _remove_segment(self, segment: Segment) -> list[Path]:
        """The `.log` last: what is left of a removal that was stopped is found by it and removed again."""
        removed = []
        for kind in (names.OFFSET_INDEX, names.TIME_INDEX, names.SNAPSHOT, names.TRANSACTION_INDEX):
            path = segment.path.with_suffix(f".{kind}")
            if path.exists():
                files.remove(path)
                removed.append(path)
        files.remove(segment.path)
        return [*removed, segment.path]


def _lookup(index: bytes, relative: int) -> int:
    """Byte position of the last index entry at or below a relative offset; 0 when there is none."""
    low, high = 0, len(index) // ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        if int.from_bytes(index[middle * ENTRY_SIZE : middle * ENTRY_SIZE + 4], "big") <= relative:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0
    at = (low - 1) * ENTRY_SIZE
    return int.from_bytes(index[at + 4 : at + 8], "big")
