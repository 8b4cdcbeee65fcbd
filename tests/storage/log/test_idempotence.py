"""Idempotent and transactional producers at append: ProducerStateManagerTest's cases by name (facts 10.3, 12.8; KIP-1228)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactd.config.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from compactd.storage.log import Appended, PartitionLog
from compactd.storage.records.batch import read_header
from compactd.storage.records.builder import build_batch, control_batch, empty_batch
from compactd.storage.records.record import Record
from tests.storage.log.logs import DAY, NOW, at, batch, contents, fill, lead, new_log, offsets_of, reopened

PID = 7
LARGEST = 2**31 - 1


def send(
    log: PartitionLog, sequence: int, *, epoch: int = 0, count: int = 1, txn: bool = False, **more: Any
) -> Appended:
    fields = {"producer_id": PID, "producer_epoch": epoch, "base_sequence": sequence, "transactional": txn, **more}
    done: Appended = lead(log, batch(count, **fields))
    return done


def mark(log: PartitionLog, kind: Any, *, epoch: int = 0, coordinator: int = 0, tv: int = 1) -> Appended:
    done = log.append_marker(
        kind, PID, epoch, coordinator_epoch=coordinator, leader_epoch=0, now_ms=NOW, transaction_version=tv
    )
    log.update_high_watermark(log.log_end_offset)
    return done


def refused(kind: type[LogError], name: str, run: Any, *args: Any, **fields: Any) -> None:
    log = args[0]
    end, size, entry = log.log_end_offset, log.size, log.producers.get(PID)
    before = None if entry is None else (entry.producer_epoch, list(entry.batches), entry.current_txn_first_offset)
    with pytest.raises(kind) as caught:
        run(*args, **fields)
    assert caught.value.kafka_name == name
    after = log.producers.get(PID)
    assert (log.log_end_offset, log.size) == (end, size)
    assert before == (
        None if after is None else (after.producer_epoch, list(after.batches), after.current_txn_first_offset)
    )


def out_of_order(log: PartitionLog, sequence: int, **fields: Any) -> None:
    refused(OutOfOrderSequenceError, "OUT_OF_ORDER_SEQUENCE_NUMBER", send, log, sequence, **fields)


def test_basic_id_mapping(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0)
    send(log, 1)
    out_of_order(log, 3)
    out_of_order(log, 5)
    send(log, 0, epoch=1)  # a new epoch starts at 0
    refused(InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH", send, log, 2, epoch=0)


def test_duplicates_are_answered_with_their_offsets(tmp_path: Path) -> None:
    """Any of the last five batches, sent again, is success with the offsets and time of then; nothing is written."""
    log = new_log(tmp_path)
    sent = [send(log, sequence * 3, count=3) for sequence in range(7)]
    size = log.size
    for number in range(2, 7):
        again = send(log, number * 3, count=3)
        assert again.duplicate
        assert (again.first_offset, again.last_offset) == (sent[number].first_offset, sent[number].last_offset)
    assert log.size == size
    for number in range(2):
        out_of_order(log, number * 3, count=3)
    out_of_order(log, 18, count=2)  # the same start, another end: no duplicate


def test_duplicate_is_not_lost_by_a_restart(tmp_path: Path) -> None:
    """A snapshot keeps the last batch of each producer; older ones are no duplicates then, and are refused."""
    log = new_log(tmp_path)
    for sequence in range(3):
        send(log, sequence)
    log = reopened(log)
    assert send(log, 2).duplicate
    out_of_order(log, 1)
    send(log, 3)
    log = reopened(log, clean=False)
    assert send(log, 3).duplicate
    assert log.log_end_offset == 4


def test_append_empty_state_accepts_any_sequence(tmp_path: Path) -> None:
    """What was known of a producer may have expired: its next batch is taken whatever its sequence."""
    log = new_log(tmp_path)
    send(log, 4711)
    send(log, 4712)


def test_producer_sequence_wrap_around(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, LARGEST - 1, count=2)
    send(log, 0)
    send(log, 1)
    entry = log.producers.get(PID)
    assert entry is not None and entry.last_sequence == 1


def test_producer_sequence_with_wrap_around_batch_record(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, LARGEST - 1, count=12)
    entry = log.producers.get(PID)
    assert entry is not None and entry.last_sequence == 9
    assert send(log, LARGEST - 1, count=12).duplicate
    send(log, 10)


@pytest.mark.parametrize("sequence", [1, 5, LARGEST])
def test_producer_sequence_invalid_wrap_around(tmp_path: Path, sequence: int) -> None:
    log = new_log(tmp_path)
    send(log, LARGEST)
    out_of_order(log, sequence, count=2)


def test_no_validation_on_first_entry_when_loading_log(tmp_path: Path) -> None:
    """A replica takes what its leader has, gaps in sequences and all."""
    log = new_log(tmp_path)
    log.append_as_follower(at(0, producer_id=PID, producer_epoch=5, base_sequence=16), now_ms=NOW)
    log.append_as_follower(at(10, producer_id=PID, producer_epoch=5, base_sequence=99), now_ms=NOW)
    log.append_as_follower(at(20, producer_id=PID, producer_epoch=3, base_sequence=0), now_ms=NOW)
    entry = log.producers.get(PID)
    assert entry is not None and (entry.producer_epoch, entry.last_sequence) == (3, 0)


def test_control_record_bumps_producer_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    mark(log, "abort", epoch=1)
    entry = log.producers.get(PID)
    assert entry is not None and (entry.producer_epoch, len(entry.batches)) == (1, 0)
    out_of_order(log, 5, epoch=1)
    send(log, 0, epoch=1)


def test_old_epoch_for_control_record(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, epoch=5)
    refused(InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH", mark, log, "commit", epoch=4)


def test_coordinator_fencing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    mark(log, "commit", coordinator=1)
    mark(log, "commit", coordinator=1)  # a retry, and a marker of no transaction
    send(log, 1, txn=True)
    refused(TransactionCoordinatorFencedError, "TRANSACTION_COORDINATOR_FENCED", mark, log, "commit", coordinator=0)
    mark(log, "abort", coordinator=2)


def test_coordinator_fenced_after_reload(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    mark(log, "commit", coordinator=3)
    log = reopened(log)
    refused(TransactionCoordinatorFencedError, "TRANSACTION_COORDINATOR_FENCED", mark, log, "commit", coordinator=2)


def test_non_transactional_append_with_ongoing_transaction(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    refused(InvalidTransactionStateError, "INVALID_TXN_STATE", send, log, 1)
    send(log, 1, txn=True)


def test_transaction_version_2_asks_for_a_new_epoch(tmp_path: Path) -> None:
    """KIP-1228: the marker of an open transaction carries a higher epoch than its data."""
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    refused(InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH", mark, log, "commit", epoch=0, tv=2)
    mark(log, "commit", epoch=1, tv=2)
    mark(log, "commit", epoch=1, tv=2)  # its retry: the transaction is over
    send(log, 0, epoch=1, txn=True)
    refused(InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH", mark, log, "commit", epoch=1, tv=2)
    mark(log, "abort", epoch=2, tv=2)


def test_transaction_version_2_at_the_largest_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, epoch=32767, txn=True)
    mark(log, "commit", epoch=32767, tv=2)


def test_transaction_version_1_keeps_the_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    mark(log, "commit", epoch=0, tv=1)
    send(log, 1, txn=True)
    mark(log, "abort", epoch=0, tv=0)


def test_prepare_update_does_not_mutate(tmp_path: Path) -> None:
    """A refused append leaves no trace, also where its own first batches were fine."""
    log = new_log(tmp_path)
    send(log, 0)
    two = at(1, producer_id=PID, producer_epoch=0, base_sequence=1, transactional=True) + at(
        2, producer_id=PID, producer_epoch=0, base_sequence=2
    )
    with pytest.raises(InvalidTransactionStateError):
        log.append_as_follower(two, now_ms=NOW)
    entry = log.producers.get(PID)
    assert entry is not None and entry.last_sequence == 0 and entry.current_txn_first_offset is None
    assert log.first_unstable_offset is None
    assert log.log_end_offset == 1


def test_first_unstable_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.first_unstable_offset is None
    send(log, 0, txn=True)
    assert log.first_unstable_offset == 0
    fill(log, 2)
    lead(log, batch(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True))
    mark(log, "commit")
    assert log.first_unstable_offset == 3
    log.append_marker("abort", 8, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    assert log.first_unstable_offset == 3  # until the high watermark passes the marker
    log.update_high_watermark(log.log_end_offset)
    assert log.first_unstable_offset is None


def test_first_unstable_offset_does_not_exceed_log_start(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    fill(log, 5)
    log.maybe_increment_log_start_offset(4)
    assert log.first_unstable_offset == log.last_stable_offset == 4


def test_last_stable_offset_completed_txn(tmp_path: Path) -> None:
    """What the index notes of an aborted transaction: where the earliest other open one began, else behind its marker."""
    log = new_log(tmp_path)
    for producer in (PID, 8, 9):
        lead(log, batch(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True))
    for producer in (8, PID, 9):
        log.append_marker("abort", producer, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    found = log.collect_aborted(0, 100)
    assert [(each.producer_id, each.last_stable_offset) for each in found] == [(8, 0), (PID, 2), (9, 6)]


def test_periodic_producer_id_expiration(tmp_path: Path) -> None:
    log = new_log(tmp_path, options={"producer_expiration_ms": 1000})
    send(log, 0)
    lead(log, batch(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True))
    assert log.remove_expired_producers(NOW + 999) == []
    assert log.remove_expired_producers(NOW + 1000) == [PID]  # one in a transaction stays
    send(log, 77)
    assert 8 in log.producers


def test_expired_producers_are_not_loaded(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0)
    log = reopened(log, now_ms=NOW + DAY)
    assert PID not in log.producers


def test_rebuild_producer_id_map_with_compacted_data(tmp_path: Path) -> None:
    """Records are gone, the batch's range of sequences is not."""
    log = new_log(tmp_path)
    kept = build_batch(
        [Record(2, NOW, b"c", b"3")], base_offset=0, last_offset=3, producer_id=PID, producer_epoch=0, base_sequence=0
    )
    log.append_as_follower(kept, now_ms=NOW)
    entry = log.producers.get(PID)
    assert entry is not None and (entry.last_sequence, entry.last_data_offset) == (3, 3)
    log = reopened(log, clean=False)
    entry = log.producers.get(PID)
    assert entry is not None and entry.last_sequence == 3


def test_rebuild_producer_state_with_empty_compacted_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    whole = at(0, 2, producer_id=PID, producer_epoch=0, base_sequence=0)
    log.append_as_follower(empty_batch(read_header(whole, 0)), now_ms=NOW)
    assert log.log_end_offset == 2
    log = reopened(log, clean=False)
    entry = log.producers.get(PID)
    assert entry is not None and entry.last_sequence == 1
    assert send(log, 2).first_offset == 2
    assert offsets_of(contents(log)) == [2]


def test_empty_control_batch_changes_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, 0, txn=True)
    marker = control_batch("commit", 1, NOW, PID, 5)
    log.append_as_follower(empty_batch(read_header(marker, 0)), now_ms=NOW)
    entry = log.producers.get(PID)
    assert entry is not None and (entry.producer_epoch, entry.current_txn_first_offset) == (0, 0)


def test_transactions_of_one_replicated_append(tmp_path: Path) -> None:
    """Kafka takes in the whole append before it completes any of its transactions: what began later in it counts."""
    log = new_log(tmp_path)
    data = (
        at(0, producer_id=PID, producer_epoch=0, base_sequence=0, transactional=True)
        + control_batch("abort", 1, NOW, PID, 0, leader_epoch=0)
        + at(5, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    )
    log.append_as_follower(data, now_ms=NOW)
    [found] = log.collect_aborted(0, 100)
    assert (found.first_offset, found.last_offset, found.last_stable_offset) == (0, 1, 5)
    assert log.first_unstable_offset == 0
    log.update_high_watermark(6)
    assert log.first_unstable_offset == 5


def test_producers_survive_rolls_and_crashes(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=len(batch()) * 2)
    for sequence in range(9):
        send(log, sequence, txn=sequence >= 6)
    before = (log.producers.entries(), log.first_unstable_offset, log.epochs.entries)
    for clean in (False, True, False):
        log = reopened(log, clean=clean)
        entry = log.producers.get(PID)
        assert entry is not None
        assert (entry.last_sequence, entry.current_txn_first_offset) == (8, 6)
        assert log.first_unstable_offset == before[1]
        assert log.epochs.entries == before[2]
    mark(log, "commit")
    assert log.last_stable_offset == log.log_end_offset
