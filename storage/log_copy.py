"""A partition's copy in another log dir, made while the log is in use, until it takes the log's place (KIP-113; facts 9).

    copy = LogCopy(log, target / names.future_dir_name(log.topic_partition))
    copy.begin()
    while copy.step(1 << 20): ...      # in any thread; the log's owner appends on
    # from here on nobody appends
    copy.finish()                      # level with the log, checked and durable
    moved = PartitionLog(copy.load(now_ms), now_ms=now_ms)
    moved.take_over(log)
    ...the catalogue records the new place...
    exchange(log, moved, recorded=True)                     # storage.log_exchange
    ...the deleter is told of what was moved...
    forget_origin(moved.directory)

Kafka fetches batches from the log and appends them to a future log of its own segments. Here the segments' files are copied
as they are, so the copy has the same bytes, indexes, snapshots and times, and no batch is looked at but for its CRC. A copy
that was interrupted is compared with the log as it then is, and what is equal is kept.

Nothing acknowledged is lost, wherever it ends:

    before `finish` returned     the log counts, the copy is a `-future` directory like any other
    note `.moved-from` in it     it is complete; the log still counts, unless it is gone or the catalogue names the copy's dir
    recorded in the catalogue    the copy counts: whoever starts next finishes the two renames, compactd or Kafka
    log renamed to `-delete`     the same
    copy renamed                 it is the partition; the note goes
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from compactd.config.errors import FaultError, StorageIOError
from compactd.storage import files, names
from compactd.storage.kernel.scanning import scan_segment
from compactd.storage.live_segment import LiveSegment
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.loader import load_log
from compactd.storage.local_log import OffsetPosition, View
from compactd.storage.log import PartitionLog
from compactd.storage.log_exchange import MOVED_FROM
from compactd.storage.partition_metadata import write_partition_metadata
from compactd.storage.producers import PRODUCER_EXPIRATION_MS
from compactd.storage.swap import segment_file_names
from compactd.storage.transaction_index import encode_transaction

#: Copied at a time where nobody asks for less.
CHUNK = 1 << 20
_NO_PRODUCERS = 1 << 62


class _Piece:
    """The segment that is being copied. `position`: bytes of it that are in the copy."""

    def __init__(self, segment: LiveSegment, path: str) -> None:
        self.segment = segment
        self.path = path
        self.position = 0
        #: Up to here its batches have been checked.
        self.checked = 0
        #: What an earlier attempt left is compared before it is written over.
        self.compares = os.path.exists(path)  # noqa: PTH110
        self.output = files.open_existing(path) if self.compares else files.create_output(path)

    def copy(self, until: int, most_bytes: int) -> int:
        """Brings the copy further, up to byte `until`; returns by how much."""
        wanted = min(most_bytes, until - self.position)
        if wanted <= 0:
            return 0
        data = self.segment.read(self.position, wanted)
        if not data:
            raise StorageIOError(
                path=str(self.segment.log_path),
                action="read",
                reason=f"it has {self.position} bytes where {until} were written",
                errno=0,
            )
        if self.compares and self._there(len(data)) != data:
            self.compares = False
            self.output.truncate(self.position)
            self.output.seek(self.position)
        if not self.compares:
            self.output.write(data)
        self.position += len(data)
        return len(data)

    def seal(self, index_interval_bytes: int) -> None:
        """Makes what was copied durable, cuts what lies behind it, and checks the batches. CorruptBatchError."""
        if self.compares:
            self.output.truncate(self.position)
            self.output.seek(self.position)
        self.output.sync()
        if self.checked >= self.position:
            return
        scan = scan_segment(
            self.path,
            self.segment.base_offset,
            index_interval_bytes,
            self.position,
            produced_from=_NO_PRODUCERS,
            start_position=self.checked,
        )
        if scan.fault is not None:
            raise type(scan.fault)(**{**scan.fault.fields, "path": str(self.segment.log_path)})
        if scan.valid_bytes != self.position:
            raise FaultError(
                path=str(self.segment.log_path),
                reason=f"its batches end at byte {scan.valid_bytes}, {self.position} were written",
            )
        self.checked = self.position

    def close(self) -> None:
        with contextlib.suppress(StorageIOError):
            self.output.close()

    def _there(self, length: int) -> bytes:
        try:
            return os.pread(self.output.fileno(), length, self.position)
        except OSError as error:
            raise files.failed(self.path, "read", error) from error


class LogCopy:
    """See the module. One call at a time, each in any thread; offsets absolute, sizes bytes, times ms.

    Errors are StorageIOError, whose path tells which of the two log dirs it concerns, and FaultError for a damaged batch
    of the log.
    """

    def __init__(self, log: PartitionLog, directory: Path) -> None:
        self.log = log
        self.directory = directory
        #: Every record of the log below is in the copy.
        self.end_offset = log.segments[0].base_offset
        #: By base offset: closed segments that are whole here.
        self._whole: dict[int, LiveSegment] = {}
        self._piece: _Piece | None = None
        self._seen: View | None = None

    @property
    def size(self) -> int:
        """Bytes of the log's batches that are here."""
        piece = self._piece
        return sum(segment.size for segment in tuple(self._whole.values())) + (0 if piece is None else piece.position)

    def bytes_on_disk(self) -> int:
        """What the directory takes, also of an earlier attempt that is not compared yet. StorageIOError."""
        try:
            with os.scandir(self.directory) as entries:
                return sum(entry.stat().st_size for entry in entries)
        except OSError as error:
            raise files.failed(self.directory, "list", error) from error

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind the log."""
        return max(self.log.log_end_offset - self.end_offset, 0)

    def begin(self) -> None:
        """Makes the directory; or takes over one that an interrupted move left.

        It gets its name when it says whose copy it is: one that does not, Kafka would set aside for ever.
        """
        if self.directory.exists():
            self._tidy()
            self._name_topic(self.directory)
            return
        unborn = self.directory.with_name(names.delete_dir_name(self.log.topic_partition))
        files.make_dir(unborn)
        self._name_topic(unborn)
        files.rename(unborn, self.directory)
        files.fsync_dir(self.directory.parent)

    def step(self, most_bytes: int = CHUNK) -> int:
        """Copies up to so many bytes more; returns how many. 0: the copy is level with the log as it was a moment ago."""
        while True:
            view = self.log.view
            try:
                copied = self._step(view, self.log.local.end, most_bytes)
            except (FileNotFoundError, StorageIOError) as error:
                # Retention may have taken the segment, and the deleter its files.
                if getattr(error, "errno", 0) != errno.ENOENT or self.log.view is view:
                    raise _read_error(self.log, error) from error
                continue
            if copied is not None:
                return copied

    def _step(self, view: View, end: OffsetPosition, most_bytes: int) -> int | None:
        """Bytes that were copied; None: look again."""
        piece = self._piece if view is self._seen else self._look_anew(view)
        piece = piece or self._next(view)
        is_active = piece.segment is view.segments[-1]
        if is_active and end.segment_base != piece.segment.base_offset:
            return None  # the log was rolled between our two looks
        copied = piece.copy(end.position if is_active else piece.segment.size, most_bytes)
        if copied or is_active:
            if not copied:
                self.end_offset = end.offset
            return copied
        self._complete(piece)
        self.end_offset = view.bases[view.floor(piece.segment.base_offset) + 1]
        return None

    def sync(self) -> None:
        """Makes what was copied so far durable, so that little is left to do for `finish`."""
        if self._piece is not None:
            self._piece.seal(self.log.config.index_interval_bytes)

    def finish(self) -> None:
        """Copies the rest, and makes everything durable. The caller sees to it that nobody appends or swaps meanwhile."""
        log = self.log
        log.local.close_form()
        while self.step() or self.lag:
            pass
        piece = self._piece
        assert piece is not None, "the active segment is never whole"
        piece.seal(log.config.index_interval_bytes)
        self._copy_beside(piece.segment)
        for offset in log.snapshots.offsets:
            self._copy_snapshot(offset)
        end = log.log_end_offset
        files.write_file(self.directory / names.snapshot_name(end), log.producers.take_snapshot())
        log.epochs.write(self.directory / names.LEADER_EPOCH_CHECKPOINT)
        files.fsync_dir(self.directory)
        files.write_atomically(self.directory / MOVED_FROM, os.fsencode(log.directory))

    def load(self, now_ms: int, producer_expiration_ms: int = PRODUCER_EXPIRATION_MS) -> LoadedLog:
        """The finished copy, as a broker loads a log. FaultError unless it says of itself what the log does."""
        log = self.log
        self.close()
        loaded = load_log(
            self.directory,
            log.config,
            clean_shutdown=True,
            recovery_point=log.log_end_offset,
            log_start_offset=log.log_start_offset,
            now_ms=now_ms,
            topic_partition=log.topic_partition,
            producer_expiration_ms=producer_expiration_ms,
        )
        wanted, found = (
            (each.log_start_offset, each.log_end_offset, [(s.base_offset, s.size) for s in each.segments])
            for each in (log, loaded)
        )
        if found != wanted:
            raise FaultError(path=str(self.directory), reason=f"the copy holds {found}, the log {wanted}")
        return loaded

    def close(self) -> None:
        """Closes the file that is being written; the copy stays as it is."""
        if self._piece is not None:
            self._piece.close()

    # ---- inside

    def _next(self, view: View) -> _Piece:
        segment = self._wanted(view)
        self._piece = _Piece(segment, f"{self.directory}/{names.log_name(segment.base_offset)}")
        return self._piece

    def _complete(self, piece: _Piece) -> None:
        """A closed segment is all here."""
        segment = piece.segment
        piece.seal(self.log.config.index_interval_bytes)
        piece.close()
        self._piece = None
        files.set_mtime_ms(piece.path, segment.last_modified_ms)
        self._copy_beside(segment)
        if segment.base_offset in self.log.snapshots.offsets:
            self._copy_snapshot(segment.base_offset)
        self._whole[segment.base_offset] = segment

    def _copy_beside(self, segment: LiveSegment) -> None:
        """Indexes and aborted transactions, as they would be in the files of a log that was closed."""
        base = segment.base_offset
        aborted = b"".join(encode_transaction(each) for each in segment.aborted())
        for name, content in (
            (names.offset_index_name(base), segment.offsets.all_bytes()),
            (names.time_index_name(base), segment.times.all_bytes()),
            (names.transaction_index_name(base), aborted),
        ):
            if content or name != names.transaction_index_name(base):
                files.write_file(self.directory / name, content)
            else:
                files.remove(self.directory / name, missing_ok=True)

    def _copy_snapshot(self, offset: int) -> None:
        content = files.read_file(self.log.snapshots.path(offset), 1 << 30, missing_ok=True)
        if content:
            files.write_file(self.directory / names.snapshot_name(offset), content)

    def _name_topic(self, directory: Path) -> None:
        if self.log.topic_id is not None:
            write_partition_metadata(directory / names.PARTITION_METADATA, self.log.topic_id)
        self.log.epochs.write(directory / names.LEADER_EPOCH_CHECKPOINT)

    def _look_anew(self, view: View) -> _Piece | None:
        """Drops what the log has no more: segments that retention took, or that a clean replaced. The piece to go on with."""
        there = set(map(id, view.segments))
        for base, segment in list(self._whole.items()):
            if id(segment) not in there:
                del self._whole[base]
                self._remove(base)
        piece = self._piece
        if piece is not None:
            is_gone = id(piece.segment) not in there
            if is_gone or piece.segment is not self._wanted(view):
                piece.close()
                self._piece = None
            if is_gone:
                self._remove(piece.segment.base_offset)
        self._seen = view
        return self._piece

    def _wanted(self, view: View) -> LiveSegment:
        """The first segment that is not whole here."""
        return next((each for each in view.segments[:-1] if each.base_offset not in self._whole), view.segments[-1])

    def _remove(self, base: int) -> None:
        for name in (*segment_file_names(base), names.snapshot_name(base)):
            files.remove(self.directory / name, missing_ok=True)

    def _tidy(self) -> None:
        """Of what an interrupted move left only segments' batches are of use."""
        bases = set(self.log.view.bases)
        for path in sorted(self.directory.iterdir()):
            parsed = names.parse_segment_name(path.name)
            is_batches = parsed is not None and parsed.kind == "log" and not parsed.suffix
            if not path.is_dir() and not (is_batches and parsed is not None and parsed.base_offset in bases):
                files.remove(path, missing_ok=True)


def _read_error(log: PartitionLog, error: FileNotFoundError | StorageIOError) -> StorageIOError:
    if isinstance(error, StorageIOError):
        return error
    return StorageIOError(
        path=str(log.directory), action="read", reason="a segment's file is missing (ENOENT)", errno=errno.ENOENT
    )
