"""The transaction tracker, call by call (facts 5.4)."""

from __future__ import annotations

from typing import Literal

import pytest

from compactd.config.errors import CorruptBatchError
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.kernel.reference.transactions import CleanedTransactionMetadata
from compactd.storage.records.batch import Batch, Record, iter_batches
from compactd.storage.records.builder import build_batch, control_batch, empty_batch
from tests.storage.kernel.reference_support import plain


def only(data: bytes) -> Batch:
    (batch,) = iter_batches(data, 0, "a.log")
    return batch


class Tracker:
    def __init__(self, *aborted: AbortedTransaction) -> None:
        self.state = CleanedTransactionMetadata()
        self.state.add_aborted(aborted)

    def data(self, offset: int, producer: int = 1, transactional: bool = True) -> bool:
        batch = plain(offset, (b"k", b"v"), producer_id=producer, producer_epoch=0, transactional=transactional)
        return self.state.on_batch_read(only(batch).header)

    def marker(self, kind: Literal["commit", "abort"], offset: int, producer: int = 1) -> bool:
        return self.state.on_control_batch_read(only(control_batch(kind, offset, 0, producer, 0)))


def test_batches_of_an_aborted_transaction_go_and_its_marker_stays_indexed() -> None:
    aborted = AbortedTransaction(1, 5, 9, 10)
    tracker = Tracker(aborted)
    assert not tracker.data(4), "before the transaction's first offset"
    assert tracker.data(5)
    assert tracker.data(8)
    assert not tracker.marker("abort", 9)
    assert tracker.state.cleaned_index == [aborted]
    assert not tracker.data(10), "the next transaction of the same producer"


def test_an_abort_marker_without_batches_is_needless() -> None:
    tracker = Tracker(AbortedTransaction(1, 5, 9, 10))
    assert tracker.marker("abort", 9)
    assert tracker.state.cleaned_index == []
    assert Tracker().marker("abort", 9)


def test_a_commit_marker_is_needed_as_long_as_a_batch_was_seen() -> None:
    tracker = Tracker()
    assert tracker.marker("commit", 1)
    assert not tracker.data(2)
    assert not tracker.marker("commit", 3)
    assert tracker.marker("commit", 4), "the batch belonged to the marker before"


def test_a_batch_of_a_producer_does_not_speak_for_another_one() -> None:
    tracker = Tracker()
    tracker.data(0, producer=1)
    assert tracker.marker("commit", 1, producer=2)
    assert not tracker.marker("commit", 2, producer=1)


def test_an_abort_leaves_the_committed_ones_alone() -> None:
    """As in Kafka: a committed batch before an abort marker still keeps the next commit marker."""
    tracker = Tracker()
    tracker.data(0)
    assert tracker.marker("abort", 1)
    assert not tracker.marker("commit", 2)


def test_batches_outside_transactions_stay() -> None:
    tracker = Tracker(AbortedTransaction(1, 0, 9, 10))
    assert not tracker.data(5, transactional=False)
    assert tracker.data(6)


def test_the_same_transaction_may_be_added_for_each_segment() -> None:
    aborted = AbortedTransaction(1, 0, 9, 10)
    tracker = Tracker(aborted)
    assert tracker.data(0)
    tracker.state.add_aborted([aborted])
    assert tracker.data(5)
    assert not tracker.marker("abort", 9)
    assert tracker.state.cleaned_index == [aborted]
    assert not tracker.data(10)


def test_interleaved_transactions_begin_at_their_first_offsets() -> None:
    tracker = Tracker(AbortedTransaction(2, 4, 9, 10), AbortedTransaction(1, 0, 8, 4))
    assert tracker.data(0, producer=1)
    assert not tracker.data(2, producer=2)
    assert tracker.data(4, producer=2)
    assert not tracker.marker("abort", 8, producer=1)
    assert not tracker.marker("abort", 9, producer=2)
    assert [t.producer_id for t in tracker.state.cleaned_index] == [1, 2]


def test_an_empty_control_batch_is_needless() -> None:
    header = only(control_batch("commit", 3, 0, 1, 0)).header
    assert CleanedTransactionMetadata().on_control_batch_read(only(empty_batch(header)))


def control(key: bytes | None) -> Batch:
    record = Record(0, 0, key, b"")
    return only(build_batch([record], base_offset=0, control=True, transactional=True, producer_id=1, producer_epoch=0))


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 99])
def test_other_control_records_are_always_needed(kind: int) -> None:
    assert not CleanedTransactionMetadata().on_control_batch_read(control(b"\0\0\0" + bytes((kind,))))


@pytest.mark.parametrize("key", [None, b"\0\0", b"\xff\xff\0\0"])
def test_control_records_with_a_broken_key(key: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="control record has a key"):
        CleanedTransactionMetadata().on_control_batch_read(control(key))
