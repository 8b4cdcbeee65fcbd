"""Kafka's LogCleanerTest: transactions, their markers and their index under cleaning (facts 12.1), by Kafka's test names.

Where Kafka's own test cleans a log without new data, its map of keys stays as the round before left it; here such a pass
reads the log from its start again, with the same outcome for every record and marker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.kernel.interface import AbortedTransaction, Kernel
from compactd.storage.loader import load_log
from compactd.storage.records.batch import Batch
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.record import Record
from compactd.storage.segment import list_segments
from compactd.storage.split import split_segment
from compactd.storage.transaction_index import encode_transaction, read_transaction_index
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import (
    aborted_in,
    batch_bases,
    batch_ends,
    batches_of,
    empty_batch_ends,
    keys_in,
    offsets_in,
    pairs_in,
)
from tests.storage.cleaning.partitions import Cleaning
from tests.storage.cleaning.rounds import FIRST_PASS_MS, SECOND_PASS_MS, clean, load, two_passes
from tests.storage.cleaning.short_log import ShortLog


def put(log: ShortLog, pid: int, *keys: int, sequence: int | None = None) -> None:
    """One transactional batch with these keys."""
    log.append(*((key, key) for key in keys), pid=pid, transactional=True, sequence=sequence)


def horizons(log: ShortLog) -> dict[int, int]:
    """Delete horizons by the batches' last offsets."""
    headers = (batch.header for batch in batches_of(log.directory))
    return {h.last_offset: h.delete_horizon_ms for h in headers if h.delete_horizon_ms is not None}


def test_multi_pass_segment_cleaning_with_aborted_transactions(make_log: LogMaker, kernel: Kernel) -> None:
    """The transaction index is the whole range's even when the map was full half-way through it."""
    log = make_log(delete_retention_ms=50_000)
    put(log, 1, 1, 2)  # 0, 1
    put(log, 2, 2, 3)  # 2, 3
    put(log, 1, 3, 4)  # 4, 5
    log.commit(1)  # 6
    log.commit(2)  # 7
    put(log, 1, 2, 3)  # 8, 9
    log.abort(1)  # 10
    put(log, 2, 4, 5)  # 11, 12
    put(log, 1, 5, 6)  # 13, 14
    log.commit(1)  # 15
    log.abort(2)  # 16
    put(log, 2, 6, 7)  # 17, 18
    log.commit(2)  # 19
    assert log.roll() == 20
    aborted = [(1, 8, 10, 11), (2, 11, 16, 17)]
    assert aborted_in(log.directory) == aborted
    assert load(log).last_stable_offset == 20

    bases = [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert clean(log, kernel, now_ms=NOW_MS, slots=4).next_dirty == 4
    assert batch_bases(log.directory) == bases
    assert offsets_in(log.directory) == [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert aborted_in(log.directory) == aborted
    assert load(log).last_stable_offset == 20

    assert clean(log, kernel, first=4, now_ms=NOW_MS, slots=4).next_dirty == 14
    assert batch_bases(log.directory) == bases
    assert offsets_in(log.directory) == [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert aborted_in(log.directory) == []

    assert clean(log, kernel, first=14, now_ms=NOW_MS + 50_000, slots=4).next_dirty == 20
    assert batch_bases(log.directory) == [base for base in bases if base not in (10, 16)]
    assert offsets_in(log.directory) == [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19]
    assert aborted_in(log.directory) == []


def test_basic_transaction_aware_cleaning(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=2048)
    put(log, 1, 1, 2)
    put(log, 2, 2, 3)
    put(log, 1, 3, 4)
    log.abort(1)
    log.commit(2)
    put(log, 1, 2)
    log.commit(1)
    log.roll()
    aborted = aborted_in(log.directory)
    assert aborted == [(1, 0, 6, 2)]
    clean(log, kernel)
    assert keys_in(log.directory) == [3, 2]
    assert offsets_in(log.directory) == [3, 6, 7, 8, 9]
    assert aborted_in(log.directory) == aborted


def test_clean_with_transactions_spanning_segments(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    put(log, 1, 1, 2)
    put(log, 3, 2, 3)
    put(log, 2, 3, 4)
    log.roll()
    put(log, 2, 5, 6)
    put(log, 3, 6, 7)
    put(log, 1, 7, 8)
    log.abort(2)
    put(log, 3, 8, 9)
    log.commit(3)
    put(log, 1, 9, 10)
    log.abort(1)

    # Only the first segment is closed. What was aborted in it goes, also where the marker lies behind it.
    first = clean(log, kernel)
    assert keys_in(log.directory) == [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]

    log.roll()
    # So that the producers' last sequences are known from later batches.
    put(log, 2, 11)
    put(log, 1, 12)
    clean(log, kernel, first=first.next_dirty)
    assert keys_in_log(log) == [2, 3, 6, 7, 8, 9, 11, 12]


def keys_in_log(log: ShortLog) -> list[int]:
    log.close()
    return keys_in(log.directory)


def test_commit_marker_removal(make_log: LogMaker, kernel: Kernel) -> None:
    """A marker lives three passes: one that sees data of its transaction, one that sets the horizon, one after it."""
    log = make_log(segment_bytes=256)
    put(log, 1, 1)
    put(log, 1, 2, 3)
    log.commit(1)
    put(log, 1, 2)
    log.commit(1)
    log.roll()
    dirty = clean(log, kernel).next_dirty
    assert keys_in(log.directory) == [1, 3, 2]
    assert offsets_in(log.directory) == [0, 2, 3, 4, 5]

    put(log, 1, 1, 3)
    log.commit(1)
    log.roll()
    clean(log, kernel, first=dirty)
    assert keys_in(log.directory) == [2, 1, 3]
    assert offsets_in(log.directory) == [3, 4, 5, 6, 7, 8]
    assert horizons(log) == {}, "data of the transaction was still seen"

    clean(log, kernel)
    assert keys_in(log.directory) == [2, 1, 3]
    assert offsets_in(log.directory) == [3, 4, 5, 6, 7, 8]
    assert horizons(log) == {3: FIRST_PASS_MS + 86_400_000}

    clean(log, kernel)
    assert offsets_in(log.directory) == [3, 4, 5, 6, 7, 8], "not before its horizon"

    clean(log, kernel, now_ms=SECOND_PASS_MS)
    assert keys_in(log.directory) == [2, 1, 3]
    assert offsets_in(log.directory) == [4, 5, 6, 7, 8]


def test_deleted_batches_with_no_messages_read(make_log: LogMaker, kernel: Kernel) -> None:
    """Batches that go without a look at their records do not end the reading."""
    log = make_log(segment_bytes=1000, max_message_bytes=100)
    put(log, 1, 1)
    log.abort(1)
    put(log, 1, 2)
    put(log, 1, 2)
    log.commit(1)
    log.roll()
    clean(log, kernel)
    assert keys_in(log.directory) == [2]
    assert offsets_in(log.directory) == [1, 3, 4]
    two_passes(log, kernel)
    assert keys_in(log.directory) == [2]
    assert offsets_in(log.directory) == [3, 4]


def test_commit_marker_retention_with_empty_batch(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=256)
    put(log, 1, 2, 3)  # 0, 1
    log.roll()
    put(log, 2, 2, 3)  # 2, 3
    log.commit(2)  # 4
    log.roll()
    log.append((2, 2))  # 5
    log.append((3, 3))  # 6
    log.commit(1)  # 7
    log.roll()

    dirty = clean(log, kernel).next_dirty
    for _ in range(2):  # cleaned again, the empty batches still hold the last sequences
        assert keys_in(log.directory) == [2, 3]
        assert offsets_in(log.directory) == [4, 5, 6, 7]
        assert batch_ends(log.directory) == [1, 3, 4, 5, 6, 7]
        assert empty_batch_ends(log.directory) == [1, 3]
        two_passes(log, kernel)

    # Its producer writes again: the empty batch is not needed any more.
    put(log, 2, 1)  # 8
    log.commit(2)  # 9
    log.roll()
    clean(log, kernel, first=dirty)
    assert keys_in(log.directory) == [2, 3, 1]
    assert offsets_in(log.directory) == [4, 5, 6, 7, 8, 9]
    assert batch_ends(log.directory) == [1, 4, 5, 6, 7, 8, 9]

    two_passes(log, kernel)
    assert keys_in(log.directory) == [2, 3, 1]
    assert offsets_in(log.directory) == [5, 6, 7, 8, 9]
    assert batch_ends(log.directory) == [1, 5, 6, 7, 8, 9]


def test_clean_empty_control_batch(make_log: LogMaker, kernel: Kernel) -> None:
    """The only batch that tells of a producer loses its record, not itself."""
    log = make_log(segment_bytes=256)
    log.commit(1)
    log.append((2, 2))
    log.append((3, 3))
    log.roll()
    two_passes(log, kernel)
    for _ in range(2):
        assert keys_in(log.directory) == [2, 3]
        assert offsets_in(log.directory) == [1, 2]
        assert batch_ends(log.directory) == [0, 1, 2]
        control = next(batches_of(log.directory)).header
        assert (control.is_control, control.record_count, control.producer_id, control.size) == (True, 0, 1, 61)
        clean(log, kernel, now_ms=SECOND_PASS_MS)


def test_committed_transaction_spanning_segments(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=128)
    put(log, 1, 1)
    log.roll()
    log.commit(1)
    log.roll()
    two_passes(log, kernel)
    assert offsets_in(log.directory) == [0, 1]
    assert batch_ends(log.directory) == [0, 1]


def test_aborted_transaction_spanning_segments(make_log: LogMaker, kernel: Kernel) -> None:
    """The batch is its producer's last, and as long as it is read the marker stays."""
    log = make_log(segment_bytes=128)
    put(log, 1, 1)
    log.roll()
    log.abort(1)
    log.roll()
    clean(log, kernel)
    for _ in range(2):
        assert offsets_in(log.directory) == [1]
        assert batch_ends(log.directory) == [0, 1]
        assert empty_batch_ends(log.directory) == [0]
        assert horizons(log) == {}
        clean(log, kernel, now_ms=SECOND_PASS_MS)


def test_abort_marker_removal(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=256)
    put(log, 1, 1)
    put(log, 1, 2, 3)
    log.abort(1)
    put(log, 1, 3)
    log.commit(1)
    log.roll()
    clean(log, kernel)
    assert keys_in(log.directory) == [3]
    assert offsets_in(log.directory) == [3, 4, 5]
    two_passes(log, kernel)
    assert keys_in(log.directory) == [3]
    assert offsets_in(log.directory) == [4, 5]


def test_empty_batch_removal_with_sequence_reuse(make_log: LogMaker, kernel: Kernel) -> None:
    """The group coordinator begins every transaction with sequence 0: old empty batches and markers go all the same."""
    log = make_log(segment_bytes=2048)
    put(log, 1, 1, sequence=0)
    log.commit(1)
    put(log, 1, 2, sequence=0)
    log.commit(1)
    log.append((1, 1))
    log.append((2, 1))
    log.roll()
    clean(log, kernel)
    assert offsets_in(log.directory) == [1, 3, 4, 5]
    assert batch_ends(log.directory) == [1, 2, 3, 4, 5]
    assert empty_batch_ends(log.directory) == [2]
    two_passes(log, kernel)
    assert offsets_in(log.directory) == [3, 4, 5]
    assert batch_ends(log.directory) == [2, 3, 4, 5]


def test_abort_marker_retention_with_empty_batch(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=256)
    put(log, 1, 2, 3)  # 0, 1
    log.abort(1)  # 2
    log.roll()
    indexed = [(1, 0, 2, 3)]
    assert aborted_in(log.directory) == indexed

    dirty = clean(log, kernel).next_dirty
    for _ in range(2):
        assert aborted_in(log.directory) == indexed
        assert keys_in(log.directory) == []
        assert offsets_in(log.directory) == [2]
        assert batch_ends(log.directory) == [1, 2]
        assert empty_batch_ends(log.directory) == [1]
        two_passes(log, kernel)

    put(log, 1, 1)  # 3
    log.roll()
    clean(log, kernel, first=dirty)
    assert aborted_in(log.directory) == indexed
    assert keys_in(log.directory) == [1]
    assert offsets_in(log.directory) == [2, 3], "the marker is not gone: the empty batch was still read"
    assert batch_ends(log.directory) == [2, 3], "but the empty batch is"

    two_passes(log, kernel)
    assert keys_in(log.directory) == [1]
    assert offsets_in(log.directory) == [3]
    assert batch_ends(log.directory) == [3]
    assert aborted_in(log.directory) == []


def test_cleaning_with_keys_conflicting_with_txn_marker_keys(make_log: LogMaker, kernel: Kernel) -> None:
    """Markers are no data: a user's key with a COMMIT marker's bytes neither goes for it nor takes it away."""
    marker_key = b"\x00\x00\x00\x01"
    log = make_log()
    log.append((marker_key, b"user data"))  # 0
    put(log, 1, 7)  # 1
    assert log.commit(1) == 2
    assert stored(log)[-1].records()[0].key == marker_key
    log.append((8, 8))  # 3
    log.roll()
    two_passes(log, kernel)
    assert offsets_in(log.directory) == [0, 1, 2, 3]
    # Nor does a later record of that key take an earlier marker away.
    log.append((marker_key, b"newer"))  # 4
    log.roll()
    clean(log, kernel)
    assert offsets_in(log.directory) == [1, 2, 3, 4]


def stored(log: ShortLog) -> list[Batch]:
    log.close()
    return list(batches_of(log.directory))


def test_aborted_transactions_of_lost_indexes_are_recovered(make_log: LogMaker, kernel: Kernel) -> None:
    """Whoever wants indexes built anew removes all of them; Kafka's next start recovers each segment without .index."""
    log = make_log()
    put(log, 2, 1)  # 0
    log.append((1, "kept"))  # 1
    log.roll()
    put(log, 1, 1, 7)  # 2, 3
    put(log, 2, 2)  # 4
    log.roll()
    log.abort(1)  # 5
    log.commit(2)  # 6
    log.roll()
    log.close()
    expected = aborted_in(log.directory)
    assert expected == [(1, 2, 5, 0)]
    for path in log.directory.glob("*index"):
        path.unlink()
    clean(log, kernel)
    assert [(key, offset) for key, _, offset in pairs_in(log.directory)] == [("1", 1), ("2", 4)]


@pytest.mark.parametrize("clean_shutdown", [True, False])
def test_a_roll_keeps_aborted_transactions_of_lost_indexes(
    make_log: LogMaker, kernel: Kernel, clean_shutdown: bool
) -> None:
    """An abort in a closed segment whose index is lost, and one in the active segment that --roll closes."""
    log = make_log()
    log.append((1, "kept"), (2, "kept"))  # 0, 1
    put(log, 1, 1)  # 2
    log.abort(1)  # 3
    log.roll()
    put(log, 1, 2)  # 4
    log.abort(1)  # 5
    log.close()
    for path in log.directory.glob("*index" if clean_shutdown else "*.txnindex"):
        path.unlink()
    report = Cleaning(log, kernel, clean_shutdown=clean_shutdown).run(stop_first=False, roll=True)
    assert report.outcome == "cleaned"
    assert [(key, offset) for key, _, offset in pairs_in(log.directory)] == [("1", 0), ("2", 1)]


@pytest.mark.parametrize("lost", [None, "index", "txnindex"])
def test_parts_of_a_split_segment_keep_its_aborted_transactions(tmp_path: Path, lost: str | None) -> None:
    """Kafka drops the transaction index with the source: aborted records are then committed ones to every reader."""
    far = 1 + 2**31
    directory = tmp_path / "t-0"
    directory.mkdir()

    def put_one(offset: int, sequence: int) -> bytes:
        made = [Record(offset, NOW_MS, b"a", b"v")]
        return build_batch(
            made, base_offset=offset, producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    batches = [
        put_one(0, 0),
        control_batch("abort", 1, NOW_MS, 5, 0),
        put_one(far, 1),
        control_batch("abort", far + 1, NOW_MS, 5, 0),
    ]
    (directory / names.log_name(0)).write_bytes(b"".join(batches))
    for name in (names.offset_index_name, names.time_index_name):
        (directory / name(0)).write_bytes(b"")
    entries = [AbortedTransaction(5, 0, 1, 2), AbortedTransaction(5, far, far + 1, far + 2)]
    (directory / names.transaction_index_name(0)).write_bytes(b"".join(map(encode_transaction, entries)))
    if lost == "index":
        (directory / names.offset_index_name(0)).unlink()
    elif lost == "txnindex":
        (directory / names.transaction_index_name(0)).write_bytes(b"damaged")
    if lost is None:
        split_segment(list_segments(directory)[0])
    else:
        load_log(directory, TopicConfig(), clean_shutdown=True, now_ms=NOW_MS)
    assert [segment.base_offset for segment in list_segments(directory)] == [0, far]
    for base, entry in zip((0, far), entries, strict=True):
        assert read_transaction_index(directory / names.transaction_index_name(base)) == [entry]
        assert (directory / names.offset_index_name(base)).exists()
