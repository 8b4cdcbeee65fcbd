"""Appending to a live log (UnifiedLog.append; facts 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from compactd.config.errors import (
    CorruptMessageError,
    FaultError,
    InvalidProducerEpochError,
    InvalidRecordError,
    RecordListTooLargeError,
    StorageIOError,
    UnexpectedOffsetError,
)
from compactd.config.settings import TopicConfig
from compactd.storage.kernel.validating import Admission, Admitted
from compactd.storage.local_log import OffsetPosition
from compactd.storage.log_flushing import LogFlushing
from compactd.storage.producer_append import (
    Origin,
    ProducerChanges,
    follows_on,
    is_in_transaction,
    next_of,
    note_batch,
)
from compactd.storage.producers import Verification
from compactd.storage.records.batch import Batch, BatchHeader, read_header
from compactd.storage.records.builder import control_batch
from compactd.storage.records.control import EndTransactionMarker, parse_end_transaction
from compactd.storage.records.varint import MalformedError
from compactd.storage.time_index import LARGEST_RELATIVE
from compactd.storage.validator import (
    AppendRules,
    Buffer,
    admission_of,
    read_batches_of,
    validate_for_leader,
    writable,
)

#: Makes a named tuple of a tuple, in half the time that its class needs.
_new = tuple.__new__


class Appended(NamedTuple):
    """What an append did. Offsets absolute; -1 where nothing was appended."""

    first_offset: int
    last_offset: int
    #: Largest record timestamp in ms, -1 for none.
    max_timestamp: int
    #: Timestamp given to every record by a topic of type LogAppendTime; of a duplicate its batch's; else -1.
    log_append_time: int
    log_start_offset: int
    #: The producer had sent this before: nothing was written, the offsets are those of then.
    duplicate: bool = False
    #: flush.messages asks for a flush before this is acknowledged.
    flush_due: bool = False


class LogAppending(LogFlushing):
    """Adds writing at the end. Only the log's owner calls these methods."""

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
    ) -> Appended:
        """Validates batches, gives them offsets and appends them (UnifiedLog.appendAsLeader).

        A bytearray, or a memoryview of one, is changed in place. Raises the refusals of storage.validator and
        storage.producer_append, RecordListTooLargeError, StorageIOError, LogOfflineError: nothing was appended then.
        """
        local = self.local
        if self._closed or local.failure is not None:
            self._check_open()
        if self._topic_id_unsaved:
            self._save_topic_id()
        if origin is Origin.CLIENT:
            if local.config is not self._admission_config:
                self._admission, self._admission_config = admission_of(local.config), local.config
            if self._admission is not None:
                done = self._append_usual(data, self._admission, leader_epoch, now_ms)
                if done is not None:
                    return done
        return self._append_any(data, leader_epoch, now_ms, origin, transaction_version)

    def _append_any(
        self, data: Buffer, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int
    ) -> Appended:
        """Whatever was sent, with every check."""
        headers = read_batches_of(data, self.home.path)
        if not headers:
            return self._nothing()
        rules = AppendRules(self.home.path, self.config, origin, now_ms, leader_epoch, self.log_end_offset)
        valid = validate_for_leader(data, headers, rules)
        return self._append(
            valid.data, valid.headers, valid.headers[0].base_offset, valid.max_timestamp, valid.log_append_time, origin,
            now_ms, transaction_version,
        )  # fmt: skip

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, bumps_epoch: bool, now_ms: int
    ) -> Verification | None:
        """To be asked before a client's transactional batch is appended (UnifiedLog.maybeStartTransactionVerification; KIP-890).

        None: the transaction is open here, append. Else ask its coordinator, and if it agrees `verified(...)` what this
        returned. InvalidProducerEpochError: the producer was fenced.
        """
        producers = self.producers
        entry = producers.get(producer_id)
        if entry is not None and epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                path=self.home.path,
                producer_id=producer_id,
                offset=self.log_end_offset,
                detail=f"its epoch {epoch} is below the last seen, {entry.producer_epoch}",
            )
        if producers.in_transaction(producer_id, epoch):
            return None
        asked = producers.verifications.get(producer_id)
        if asked is None:
            asked = producers.verifications[producer_id] = Verification(now_ms, epoch, sequence, bumps_epoch)
        else:
            asked.note(sequence, epoch)
        return asked

    def verified(self, producer_id: int, asked: Verification) -> None:
        """The coordinator has agreed. Without effect if the transaction ended meanwhile."""
        if self.producers.verifications.get(producer_id) is asked:
            asked.verified = True

    def unknown_producer(self, producer_id: int, asked: Verification) -> None:
        """The coordinator knows no such producer: nothing of it is kept. (Kafka keeps it for producer.id.expiration.ms.)"""
        if self.producers.verifications.get(producer_id) is asked and not asked.verified:
            del self.producers.verifications[producer_id]

    def append_marker(
        self,
        kind: Literal["commit", "abort"],
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int = 1,
        timestamp: int | None = None,
    ) -> Appended:
        """Appends the marker that ends a producer's transaction (WriteTxnMarkers).

        `transaction_version` 2: the marker has to carry a newer epoch than the data (KIP-1228). Raises
        InvalidProducerEpochError, TransactionCoordinatorFencedError, and what `append_as_leader` raises.
        """
        batch = control_batch(
            kind,
            0,
            now_ms if timestamp is None else timestamp,
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        return self.append_as_leader(
            bytearray(batch),
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            origin=Origin.COORDINATOR,
            transaction_version=transaction_version,
        )

    def append_as_follower(self, data: Buffer, *, leader_epoch: int = LARGEST_RELATIVE, now_ms: int) -> Appended:
        """Appends batches of a leader's log as they are, offsets included (UnifiedLog.appendAsFollower).

        Batches of a later epoch than `leader_epoch`, and a part of one at the end, are left out. Raises
        CorruptMessageError, UnexpectedOffsetError, RecordListTooLargeError, StorageIOError, LogOfflineError.
        """
        self._check_open()
        self._save_topic_id()
        headers: list[BatchHeader] = []
        for header in read_batches_of(data, self.home.path):
            if header.leader_epoch > leader_epoch:
                break
            _check_replicated(data, header, headers[-1] if headers else None, self.home.path)
            headers.append(header)
        if not headers:
            return self._nothing()
        first, last = headers[0], headers[-1]
        if (first.base_offset if first.magic == 2 else first.last_offset) < self.log_end_offset:
            raise UnexpectedOffsetError(
                path=self.home.path,
                detail=f"they start with offset {first.base_offset}, below the log's end {self.log_end_offset}",
            )
        if last.last_offset - first.base_offset > LARGEST_RELATIVE:
            raise UnexpectedOffsetError(
                path=self.home.path,
                detail=f"offsets {first.base_offset} to {last.last_offset} do not fit one segment; append them in parts",
            )
        size = last.position + last.size
        return self._append(
            data if size == len(data) else memoryview(data)[:size],
            headers,
            # Message sets before V2 do not tell their first offset: this is surely not above it.
            first.base_offset if first.magic == 2 else max(last.last_offset - LARGEST_RELATIVE, 0),
            max(header.max_timestamp for header in headers),
            -1,
            Origin.REPLICATION,
            now_ms,
            0,
        )

    def _append(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        roll_offset: int,
        max_timestamp: int,
        log_append_time: int,
        origin: Origin,
        now_ms: int,
        transaction_version: int,
    ) -> Appended:
        local = self.local
        first, last = headers[0], headers[-1]
        self._assign_epochs(headers)
        if len(data) > local.config.segment_bytes:
            raise RecordListTooLargeError(path=self.home.path, size=len(data), limit=local.config.segment_bytes)
        if local.active.must_roll(local.config, len(data), max_timestamp, last.last_offset, now_ms):
            self.roll(roll_offset, now_ms=now_ms)
        changes: ProducerChanges | None = None
        for header in headers:
            if header.producer_id >= 0:
                if changes is None:
                    changes = ProducerChanges(
                        self.producers,
                        origin,
                        self.home.path,
                        transaction_version,
                        local.resources.verifies_transactions,
                    )
                if origin is Origin.CLIENT and (known := changes.duplicate(header)) is not None:
                    return Appended(
                        known.first_offset,
                        known.last_offset,
                        known.timestamp,
                        known.timestamp,
                        self.log_start_offset,
                        duplicate=True,
                        flush_due=known.last_offset >= local.recovery_point and self._wants_flush(),
                    )
                changes.add(header, _marker(data, header, self.home.path) if header.is_control else None)
        local.append(data, headers)
        if changes is not None:
            self._apply(changes)
        self.snapshots.map_end_offset = local.end.offset
        if self.sole_replica:
            self.update_high_watermark(local.end.offset)
        flush_due = self._wants_flush()
        if flush_due and not self.group_commit:
            self.flush(now_ms)
            flush_due = False
        return Appended(
            first.base_offset, last.last_offset, max_timestamp, log_append_time, self.log_start_offset, False, flush_due
        )

    def _append_usual(self, data: Buffer, admission: Admission, leader_epoch: int, now_ms: int) -> Appended | None:
        """The usual batch of a producer; None, and nothing is done, where it is another, or has to be refused."""
        local = self.local
        stamped = data if type(data) is bytearray else writable(data, len(data))
        first_offset = local.end.offset
        entries = self.epochs.entries
        if not entries or entries[-1][0] != leader_epoch or entries[-1][1] > first_offset:
            admitted = admission.admit(stamped, first_offset, leader_epoch, now_ms)
            return None if admitted is None else self._append_admitted(stamped, admitted, leader_epoch, now_ms)
        config, active = local.config, local.active
        known, in_transaction, entry = None, False, self._last_producer
        if entry is not None:
            known = next_of(self.producers, entry)
            in_transaction = is_in_transaction(entry)
        try:
            found = active.append_batch(
                admission, stamped, first_offset, leader_epoch, now_ms, config, known, in_transaction
            )
        except StorageIOError as error:
            local.failed(error)
            raise
        if found is None:
            return None
        if not found[6]:
            return self._append_admitted(stamped, found[:6], leader_epoch, now_ms)
        last_offset, max_timestamp = found[0], found[1]
        if found[2] >= 0 and entry is not None:
            note_batch(entry, found[4], first_offset, last_offset, max_timestamp)
        segment = active.segment
        local.end = end = _new(OffsetPosition, (last_offset + 1, segment.base_offset, segment.size))
        return self._noted(end, first_offset, max_timestamp, config, now_ms)

    def _noted(
        self, end: OffsetPosition, first_offset: int, max_timestamp: int, config: TopicConfig, now_ms: int
    ) -> Appended:
        """The usual batch is in the log, which ends at `end` now."""
        self.snapshots.map_end_offset = end.offset
        if self.sole_replica:
            # Such a batch neither begins nor ends a transaction, so those that are open stay what they are.
            self._high_watermark = end
        flush_due = end.offset - self.local.recovery_point >= config.flush_messages
        if flush_due and not self.group_commit:
            self.flush(now_ms)
            flush_due = False
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        return _new(
            Appended,
            (first_offset, end.offset - 1, max_timestamp, append_time, self.log_start_offset, False, flush_due),
        )

    def _append_admitted(
        self, data: bytearray | memoryview, admitted: Admitted, leader_epoch: int, now_ms: int
    ) -> Appended:
        """`_append` of the usual batch of a producer, checked and stamped already: the same steps, without a header."""
        last_offset, max_timestamp, producer_id, producer_epoch, base_sequence, transactional = admitted
        local = self.local
        config, first_offset, size = local.config, local.end.offset, len(data)
        entries = self.epochs.entries
        is_known = entries and entries[-1][0] == leader_epoch and entries[-1][1] <= first_offset
        if not is_known and leader_epoch >= 0 and self.epochs.assign(leader_epoch, first_offset):
            self._write_epochs()
        if size > config.segment_bytes:
            raise RecordListTooLargeError(path=self.home.path, size=size, limit=config.segment_bytes)
        entry = None
        if producer_id >= 0:
            entry = follows_on(self.producers, producer_id, producer_epoch, base_sequence, transactional)
            if entry is None:
                headers = [read_header(data, 0, self.home.path)]
                append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
                return self._append(data, headers, first_offset, max_timestamp, append_time, Origin.CLIENT, now_ms, 0)
        if local.active.must_roll(config, size, max_timestamp, last_offset, now_ms):
            self.roll(first_offset, now_ms=now_ms)
        active = local.active
        try:
            position = active.append_one(data, size, last_offset, max_timestamp)
        except StorageIOError as error:
            local.failed(error)
            raise
        local.end = end = OffsetPosition(last_offset + 1, active.segment.base_offset, position)
        if entry is not None:
            note_batch(entry, base_sequence, first_offset, last_offset, max_timestamp)
            self._last_producer = entry
        return self._noted(end, first_offset, max_timestamp, config, now_ms)

    def _apply(self, changes: ProducerChanges) -> None:
        """The append is in the log: its effect on producers, transactions and the transaction index."""
        completed = changes.apply()
        aborted = [each.as_aborted() for each in completed if each.is_aborted]
        if aborted:
            try:
                self.local.active.add_aborted(aborted)
            except StorageIOError as error:
                self.local.failed(error)
                raise
        self._note_first_unstable()

    def _assign_epochs(self, headers: Sequence[BatchHeader]) -> None:
        changed = False
        for header in headers:
            if header.magic < 2:
                changed |= bool(self.epochs.entries)
                self.epochs.entries.clear()
            elif header.leader_epoch >= 0:
                changed |= self.epochs.assign(header.leader_epoch, header.base_offset)
        if changed:
            self._write_epochs()

    def _nothing(self) -> Appended:
        return Appended(-1, -1, -1, -1, self.log_start_offset)


def _check_replicated(data: Buffer, header: BatchHeader, before: BatchHeader | None, path: str) -> None:
    try:
        Batch(header, bytes(data[header.position : header.position + header.size]), path).check()
    except FaultError as error:
        raise CorruptMessageError(path=path, detail=str(error)) from None
    if before is not None and header.last_offset <= before.last_offset:
        raise UnexpectedOffsetError(path=path, detail=f"offset {header.last_offset} comes after {before.last_offset}")


def _marker(data: Buffer, header: BatchHeader, path: str) -> EndTransactionMarker | None:
    """The marker of a control batch; None where compaction left it without a record."""
    if header.record_count == 0:
        return None
    raw = bytes(memoryview(data)[header.position : header.position + header.size])
    try:
        record = Batch(header, raw, path).records()[0]
        return parse_end_transaction(record.key, record.value)
    except (FaultError, MalformedError) as error:
        raise InvalidRecordError(path=path, detail=str(error), record_errors=()) from None
