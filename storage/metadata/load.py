"""From the files of an opened metadata log to the image they lead to (facts A9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from compactd.config.errors import CorruptFileError
from compactd.storage.metadata.delta import MetadataDelta
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.log import read_snapshot
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.record_types import RecordType
from compactd.storage.metadata.records import decode_control_record, read_body, read_frame
from compactd.storage.records.batch import HEADER_SIZE, Batch
from compactd.storage.records.varint import MalformedError

#: The record area of a batch with one NoOpRecord: an idle Kafka controller writes two a second.
_NO_OP = bytes.fromhex("1400000001080114000000")

_TRANSACTION_RECORDS = (RecordType.BEGIN_TRANSACTION, RecordType.END_TRANSACTION, RecordType.ABORT_TRANSACTION)


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """What a log says, and what the next leader has to know beside it."""

    image: MetadataImage
    #: A metadata transaction was begun and never ended: its records are void, and an abort must be appended.
    open_transaction: bool
    #: Some metadata record is there: the log is past its bootstrap.
    has_records: bool
    #: Id to name of topics removed since the snapshot (or the log's start).
    deleted_topics: dict[str, str] = field(default_factory=dict)


def load_image(log: MetadataLog) -> LoadedImage:
    """Replays the newest snapshot and the log behind it.

    CorruptFileError: a damaged snapshot, a record of an unknown type or version, or one that contradicts those before it.
    Kafka does not start on such a log either. StorageIOError.
    """
    replay = _Replay(log)
    snapshot = log.newest_snapshot
    start = 0
    if snapshot is not None:
        start = snapshot.offset
        replay.apply(read_snapshot(snapshot), of_log=False)
        replay.finish(snapshot.offset, snapshot.epoch)
        replay.delta.deleted_topics.clear()
    replay.apply(log.read(start), of_log=True)
    image = replay.delta.apply(log.end_offset, log.epochs.latest_epoch or 0, replay.timestamp)
    return LoadedImage(image, replay.is_open, replay.has_records, dict(replay.delta.deleted_topics))


def load_bootstrap(log: MetadataLog) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """The 0-0 checkpoint: its metadata records, and its control records between header and footer. Empty without one.

    CorruptFileError, CorruptBatchError: it can't be read.
    """
    values: list[bytes] = []
    controls: list[tuple[bytes, bytes]] = []
    if log.bootstrap is not None:
        batches = read_snapshot(log.bootstrap)
        for batch in batches:
            for record in batch.records():
                if not batch.header.is_control:
                    values.append(record.value or b"")
                elif record.key is not None and record.value is not None and record.key[3] in (5, 6):
                    controls.append((record.key, record.value))
    return values, controls


class _Replay:
    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.delta = MetadataDelta(MetadataImage())
        self.timestamp = -1
        self.has_records = False
        self.is_open = False
        #: Records of the open transaction.
        self.pending: list[tuple[int, dict[str, Any]]] = []

    def finish(self, offset: int, epoch: int) -> None:
        """Settles a snapshot; what follows is replayed on top."""
        self.delta.apply(offset, epoch, self.timestamp)

    def apply(self, batches: Iterable[Batch], of_log: bool) -> None:
        contained = None
        for batch in batches:
            if not batch.header.is_control:
                self.has_records = True
            self.timestamp = batch.header.max_timestamp
            if batch.data[HEADER_SIZE:] == _NO_OP and batch.header.codec == 0:
                continue
            for record in batch.records():
                try:
                    if batch.header.is_control:
                        control = decode_control_record(record.key or b"", record.value)
                        if control["type"] == "SNAPSHOT_HEADER":
                            contained = control["data"]["lastContainedLogTimestamp"]
                        self.delta.control(control["type"], control["data"])
                        continue
                    self._record(record.key, record.value)
                except MalformedError as error:
                    raise self._fault(batch, record.offset, str(error), of_log) from None
        if contained is not None:
            # A snapshot's batches are younger than what they contain.
            self.timestamp = contained

    def _record(self, key: bytes | None, value: bytes | None) -> None:
        if key is not None:
            raise MalformedError("a metadata record has a key")
        frame = read_frame(value)
        assert value is not None
        data = read_body(frame, value)
        if frame.api_key == RecordType.BEGIN_TRANSACTION:
            if self.is_open:
                raise MalformedError("a metadata transaction begins inside of another")
            self.is_open = True
        elif frame.api_key in _TRANSACTION_RECORDS:
            if not self.is_open:
                raise MalformedError("a metadata transaction ends that never began")
            pending, self.pending, self.is_open = self.pending, [], False
            if frame.api_key == RecordType.END_TRANSACTION:
                for api_key, waiting in pending:
                    self.delta.replay(api_key, waiting)
        elif self.is_open:
            self.pending.append((frame.api_key, data))
        else:
            self.delta.replay(frame.api_key, data)

    def _fault(self, batch: Batch, offset: int, reason: str, of_log: bool) -> CorruptFileError:
        place = f"offset {offset}" if of_log else f"record {offset}"
        return CorruptFileError(
            path=batch.path or str(self.log.directory),
            reason=f"{place}: {reason}",
            position=batch.header.position,
            advice="Kafka 4.4.0 does not start on this metadata log either; it may be that of a newer Kafka, or another "
            "program wrote it. Restore the directory from a backup, or use the version that wrote it.",
        )
