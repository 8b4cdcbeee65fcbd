"""Kafka's LogCleanerTest: what a log still knows of its producers after a clean (facts 12.1), by Kafka's test names."""

from __future__ import annotations

from compactd.storage import names
from compactd.storage.kernel.interface import Kernel
from compactd.storage.partition import Partition
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import batch_ends, empty_batch_ends, keys_in, last_sequences, offsets_in
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import NEVER_MS, ShortLog


def put(log: ShortLog, pid: int, *keys: int, transactional: bool = False) -> None:
    log.append(*((key, key) for key in keys), pid=pid, transactional=transactional)


def last_batches(partition: Partition) -> dict[int, tuple[int, int, int, int]]:
    """Producer id to (first sequence, last sequence, first offset, last offset) of the batch a duplicate is told by."""
    found = {}
    for entry in partition.producers.entries():
        batch = entry.batches[-1]
        found[entry.producer_id] = (batch.first_sequence, batch.last_sequence, batch.first_offset, batch.last_offset)
    return found


def reloaded_from_batches(log: ShortLog) -> Partition:
    """As after the loss of every snapshot: what is known of producers comes from the cleaned batches alone."""
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    return Partition.load(
        log.directory, log.config, now_ms=NOW_MS, clean_shutdown=False, producer_expiration_ms=NEVER_MS
    )


def test_duplicate_check_after_cleaning(make_log: LogMaker, kernel: Kernel) -> None:
    """A batch sent again is known by its sequences, and answered with the offsets it had, whatever is left of it."""
    log = make_log(segment_bytes=2048)
    put(log, 1, 1, 2, 3)
    put(log, 2, 3, 1, 4)
    put(log, 3, 1, 4)
    log.roll()
    clean(log, kernel)
    assert batch_ends(log.directory) == [2, 5, 7]
    assert last_sequences(log.directory) == {1: 2, 2: 2, 3: 1}
    assert keys_in(log.directory) == [2, 3, 1, 4]
    assert offsets_in(log.directory) == [1, 3, 6, 7]
    known = {1: (0, 2, 0, 2), 2: (0, 2, 3, 5), 3: (0, 1, 6, 7)}
    assert last_batches(load(log)) == known
    assert last_batches(reloaded_from_batches(log)) == known

    put(log, 4, 2)
    log.roll()
    clean(log, kernel)
    assert last_sequences(log.directory) == {1: 2, 2: 2, 3: 1, 4: 0}
    assert batch_ends(log.directory) == [2, 5, 7, 8]
    assert empty_batch_ends(log.directory) == [2]
    assert keys_in(log.directory) == [3, 1, 4, 2]
    assert offsets_in(log.directory) == [3, 6, 7, 8]
    known[4] = (0, 0, 8, 8)
    assert last_batches(load(log)) == known
    assert last_batches(reloaded_from_batches(log)) == known


def test_log_cleaner_retains_producer_last_sequence(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append((0, 0))
    log.append((0, 1), pid=1)
    log.append((0, 2), pid=2)
    log.append((0, 3), pid=3)
    log.append((1, 1), pid=2)
    log.roll()
    clean(log, kernel)
    assert batch_ends(log.directory) == [1, 3, 4]
    assert empty_batch_ends(log.directory) == [1]
    assert last_sequences(log.directory) == {1: 0, 2: 1, 3: 0}
    assert keys_in(log.directory) == [0, 1]
    assert offsets_in(log.directory) == [3, 4]


def test_log_cleaner_retains_last_sequence_even_if_transaction_aborted(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    put(log, 1, 1, transactional=True)
    put(log, 1, 2, 3, transactional=True)
    log.abort(1)
    log.roll()
    clean(log, kernel)
    assert batch_ends(log.directory) == [2, 3]
    assert empty_batch_ends(log.directory) == [2]
    assert last_sequences(log.directory) == {1: 2}
    assert keys_in(log.directory) == []
    assert offsets_in(log.directory) == [3]

    put(log, 1, 1, 5, transactional=True)
    log.roll()
    clean(log, kernel)
    assert batch_ends(log.directory) == [3, 5]
    assert last_sequences(log.directory) == {1: 4}
    assert keys_in(log.directory) == [1, 5]
    assert offsets_in(log.directory) == [3, 4, 5]


def test_an_expired_producer_keeps_no_empty_batch(make_log: LogMaker, kernel: Kernel) -> None:
    """producer.id.expiration.ms after its last record nobody can send its batch again."""
    for idle_ms, kept in ((86_399_999, [0]), (86_400_000, [])):
        log = make_log()
        log.append((0, 0), pid=1)
        log.append((0, 1))
        log.roll()
        now = NOW_MS + idle_ms
        partition = load(log, now_ms=now, expiration_ms=86_400_000)
        clean(log, kernel, now_ms=now, partition=partition)
        assert empty_batch_ends(log.directory) == kept
        assert offsets_in(log.directory) == [1]


def test_snapshots_of_vanished_segments_go_with_them(make_log: LogMaker, kernel: Kernel) -> None:
    """The snapshot at the group's first base stays, those inside it go, the one at the next segment stays."""
    log = make_log()
    for key in range(4):
        put(log, 1, key)
        log.roll()
    clean(log, kernel)
    log.close()
    snapshots = sorted(path.name for path in log.directory.glob("*.snapshot"))
    assert snapshots == [names.snapshot_name(4)]
    assert last_batches(load(log)) == {1: (3, 3, 3, 3)}
