"""The first batch of a transaction is let in only when its coordinator knows of it (KIP-890): UnifiedLogTest's cases by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from compactd.storage.live_segment import Resources
from compactd.storage.log import Appended, Origin, PartitionLog
from compactd.storage.producers import Verification
from tests.storage.log.logs import DAY, NOW, batch, new_log, reopened
from tests.storage.log.test_idempotence import PID, mark, refused, send

_STATE = (InvalidTransactionStateError, "INVALID_TXN_STATE")
_EPOCH = (InvalidProducerEpochError, "INVALID_PRODUCER_EPOCH")
_ORDER = (OutOfOrderSequenceError, "OUT_OF_ORDER_SEQUENCE_NUMBER")


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return new_log(tmp_path, options={"resources": Resources(verifies_transactions=True)})


def asked(
    log: PartitionLog, sequence: int = 0, epoch: int = 0, *, bumps: bool = False, now_ms: int = NOW
) -> Verification:
    """What there is to be verified."""
    found = log.start_verification(PID, epoch, sequence, bumps_epoch=bumps, now_ms=now_ms)
    assert found is not None
    return found


def verify(log: PartitionLog, sequence: int = 0, epoch: int = 0, *, bumps: bool = False) -> Verification:
    """Asked, and agreed to."""
    found = asked(log, sequence, epoch, bumps=bumps)
    log.verified(PID, found)
    return found


def write(log: PartitionLog, sequence: int, epoch: int = 0) -> Appended:
    return send(log, sequence, epoch=epoch, txn=True)


@pytest.mark.parametrize("origin", [Origin.CLIENT, Origin.COORDINATOR])
def test_transaction_is_ongoing_and_verification_guard(log: PartitionLog, origin: Origin) -> None:
    def add() -> None:
        data = batch(producer_id=PID, producer_epoch=0, base_sequence=0, transactional=True)
        log.append_as_leader(bytearray(data), leader_epoch=0, now_ms=NOW, origin=origin)

    with pytest.raises(InvalidTransactionStateError):
        add()
    first = asked(log)
    # Asking again is the same question.
    assert asked(log) is first
    with pytest.raises(InvalidTransactionStateError):
        add()
    log.verified(PID, first)
    add()
    assert not log.producers.verifications
    # From here on the log itself knows.
    assert log.start_verification(PID, 0, 1, bumps_epoch=False, now_ms=NOW) is None
    mark(log, "commit", epoch=0)
    assert asked(log, 1) is not first


def test_what_is_no_first_batch_of_a_transaction_needs_none(log: PartitionLog) -> None:
    send(log, 0)
    log.append_as_leader(bytearray(batch()), leader_epoch=0, now_ms=NOW)
    # A repetition is told what came of the first.
    verify(log, 1)
    done = write(log, 1)
    mark(log, "abort")
    again = write(log, 1)
    assert (again.duplicate, again.first_offset) == (True, done.first_offset)
    refused(*_STATE, write, log, 2)


def test_replicas_take_what_the_leader_let_in(log: PartitionLog) -> None:
    log.append_as_follower(
        batch(producer_id=PID, producer_epoch=0, base_sequence=0, transactional=True, leader_epoch=0), now_ms=NOW
    )
    assert log.producers.in_transaction(PID, 0)


def test_an_abort_that_gets_ahead_of_the_answer_counts(log: PartitionLog) -> None:
    first = asked(log)
    mark(log, "abort")
    log.verified(PID, first)
    refused(*_STATE, write, log, 0)
    # Nor does the answer count for the question of the next transaction.
    second = asked(log)
    assert second is not first
    log.verified(PID, first)
    refused(*_STATE, write, log, 0)
    log.verified(PID, second)
    write(log, 0)


def test_an_abort_between_the_answer_and_the_append_counts(log: PartitionLog) -> None:
    verify(log)
    mark(log, "abort")
    refused(*_STATE, write, log, 0)


def test_previous_transaction_marker_does_not_end_the_verification_of_the_next(log: PartitionLog) -> None:
    """The producer of a new client goes on at once, with the epoch that the marker has as well."""
    verify(log, 0, 0, bumps=True)
    write(log, 0)
    following = asked(log, 0, 1, bumps=True)
    mark(log, "commit", epoch=1, tv=2)
    assert log.producers.verifications[PID] is following
    log.verified(PID, following)
    write(log, 0, 1)
    # The marker of an older client has the epoch of its data.
    mark(log, "commit", epoch=2, tv=2)
    older = asked(log, 0, 2)
    log.verified(PID, older)
    mark(log, "abort", epoch=2)
    refused(*_STATE, write, log, 0, epoch=2)


def test_an_old_epoch_is_told_so_before_anybody_is_asked(log: PartitionLog) -> None:
    verify(log, 0, 3)
    write(log, 0, 3)
    with pytest.raises(InvalidProducerEpochError):
        log.start_verification(PID, 2, 0, bumps_epoch=False, now_ms=NOW)
    mark(log, "abort", epoch=3)
    refused(*_EPOCH, write, log, 0, epoch=2)
    refused(*_STATE, write, log, 1, epoch=3)
    refused(*_STATE, write, log, 0, epoch=4)


def test_nothing_may_get_ahead_of_what_waits(log: PartitionLog) -> None:
    """The lower batch is asked about first, and refused for now; the higher one has to wait for it."""
    first = asked(log, 0)
    asked(log, 1)
    log.verified(PID, first)
    refused(*_ORDER, write, log, 1)
    write(log, 0)
    write(log, 1)
    mark(log, "commit")
    # A new epoch begins anew; an older one does not count any more.
    asked(log, 5, 1)
    verify(log, 3, 1)
    assert (log.producers.verifications[PID].epoch, log.producers.verifications[PID].lowest_sequence) == (1, 3)


@pytest.mark.parametrize("bumps", [True, False])
def test_sequences_of_new_clients_start_at_0(tmp_path: Path, bumps: bool) -> None:
    log = new_log(tmp_path, options={"resources": Resources(verifies_transactions=True)})
    verify(log, 4, bumps=bumps)
    if bumps:
        refused(*_ORDER, write, log, 4)
        verify(log, 0, bumps=True)
        write(log, 0)
    else:
        # Of an idempotent producer that is not known any sequence is taken.
        write(log, 4)


def test_verification_is_forgotten_with_the_producer_and_with_a_restart(log: PartitionLog) -> None:
    asked(log)
    log.remove_expired_producers(NOW + DAY - 1)
    assert log.producers.verifications
    log.remove_expired_producers(NOW + DAY)
    assert not log.producers.verifications
    verify(log)
    again = reopened(log)
    again.local.resources.verifies_transactions = True
    refused(*_STATE, write, again, 0)


def test_a_broker_may_do_without(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    write(log, 0)
    mark(log, "commit")
    asked(log, 1)
    write(log, 1)
