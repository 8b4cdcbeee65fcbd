"""What operators reported in public about cleaning, each as a small input with its right outcome.

Report numbers are those of the project's collection. Formats: test_field_reports_of_formats.py; damage and interruptions:
test_field_reports_of_damage.py; tombstones (A6): test_deleted_keys.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.storage import names
from compactd.storage.cleaning.cleanable import Blocker, log_to_clean, offsets_to_clean
from compactd.storage.kernel.interface import Kernel
from compactd.storage.partition import Partition
from tests.logs import NOW_MS
from tests.logs import settings as topic
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import (
    aborted_in,
    batch_bases,
    batch_ends,
    batches_of,
    delete_horizons,
    empty_batch_ends,
    latest_values,
    log_bytes,
    offsets_in,
    pairs_in,
    records_of,
    segment_bases,
    size_of,
)
from tests.storage.cleaning.partitions import Cleaning
from tests.storage.cleaning.rounds import load
from tests.storage.cleaning.short_log import ShortLog
from tests.strategies import examples

DAY_MS = 86_400_000


# ---- A2: why isn't my topic compacted


def test_a2_only_an_active_segment(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1))
    log.append(("a", 2))
    partition = load(log)
    offsets = offsets_to_clean(partition, None, NOW_MS)
    assert (offsets.first_uncleanable_offset, offsets.blocker) == (0, Blocker.ACTIVE_SEGMENT)
    cleaning = Cleaning(log, kernel)
    report = cleaning.run()
    assert (report.outcome, report.reason) == ("clean", "nothing is dirty below the first uncleanable offset")
    report = cleaning.run(roll=True)
    assert report.outcome == "cleaned"
    assert pairs_in(log.directory) == [("a", "2", 1)]
    assert segment_bases(log.directory) == [0, 2]
    assert cleaning.checkpoint == 2


@pytest.mark.parametrize(("more_bytes", "wanted"), [(0, False), (1, True)])
def test_a2_dirty_ratio_is_strict_and_in_bytes(make_log: LogMaker, more_bytes: int, wanted: bool) -> None:
    log = make_log(segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.5)
    log.append(("a", "v" * 900))
    log.roll()
    log.append(("b", "v" * (900 + more_bytes)))
    log.roll()
    weighed = log_to_clean(load(log), 1, 2, NOW_MS)
    assert weighed.cleanable_bytes == weighed.clean_bytes + more_bytes
    assert weighed.wants_cleaning is wanted


# ---- A5: tombstones never go away


def test_a5_a_tombstones_life(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1))
    log.append(("a", None))
    log.append(("b", 1))
    log.roll()
    cleaning = Cleaning(log, kernel)
    cleaning.run(NOW_MS)
    assert pairs_in(log.directory) == [("a", None, 1), ("b", "1", 2)]
    assert delete_horizons(log.directory) == {1: NOW_MS + DAY_MS}
    assert [record.timestamp for record in records_of(log.directory)] == [NOW_MS, NOW_MS]

    cleaning.run(NOW_MS + DAY_MS - 1, force=True)
    assert pairs_in(log.directory) == [("a", None, 1), ("b", "1", 2)]

    # Without new data nothing is dirty: as in Kafka the log is left alone, and the report says so.
    report = cleaning.run(NOW_MS + 2 * DAY_MS)
    assert (report.outcome, report.reason) == ("clean", "nothing is dirty below the first uncleanable offset")
    assert pairs_in(log.directory) == [("a", None, 1), ("b", "1", 2)]

    report = cleaning.run(NOW_MS + DAY_MS, force=True)
    assert pairs_in(log.directory) == [("b", "1", 2)]
    assert report.stats.tombstones_expired == 1


def test_a5_changing_the_retention_does_not_move_a_horizon(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(delete_retention_ms=1000)
    log.append(("a", None))
    log.append(("b", 1))
    log.roll()
    cleaning = Cleaning(log, kernel)
    cleaning.run(NOW_MS)
    log.config = type(log.config)(cleanup_policy=log.config.cleanup_policy, delete_retention_ms=10**9)
    cleaning.run(NOW_MS + 999, force=True)
    assert delete_horizons(log.directory) == {0: NOW_MS + 1000}
    cleaning.run(NOW_MS + 1000, force=True)
    assert pairs_in(log.directory) == [("b", "1", 1)]


# ---- A7: consumers stuck in gaps (the part of the log)


def read_at(directory: Path, offset: int) -> int:
    """Last offset of the batch that a fetch at `offset` begins with."""
    return next(end for end in batch_ends(directory) if end >= offset)


def test_a7_every_offset_below_the_end_leads_on(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1), ("b", 1), ("a", 2))
    log.roll()
    log.append(("a", 3))
    log.roll()
    log.append(("b", 2))
    Cleaning(log, kernel).run()
    assert pairs_in(log.directory) == [("b", "1", 1), ("a", "3", 3), ("b", "2", 4)]
    # The rewritten batch still spans 0 to 2.
    assert (batch_bases(log.directory), batch_ends(log.directory)) == ([0, 3, 4], [2, 3, 4])
    assert [read_at(log.directory, offset) for offset in range(5)] == [2, 2, 2, 3, 4]
    assert load(log).log_end_offset == 5


@pytest.mark.parametrize("last", ["keyless", "aborted", "expired"])
def test_a7_a27_the_end_of_the_log_outlives_its_last_record(make_log: LogMaker, kernel: Kernel, last: str) -> None:
    """The batch below the high watermark stays, empty if need be: the end is known even without the active segment's file."""
    log = make_log()
    log.append(("a", 1))
    if last == "keyless":
        log.append((None, 1))
    elif last == "aborted":
        log.append(("b", 1), pid=7, transactional=True)
        log.abort(7)
    else:
        log.append(("b", None))
    log.roll()
    end = log.end_offset
    cleaning = Cleaning(log, kernel)
    cleaning.run(NOW_MS)
    for days in (10, 20, 30):
        cleaning.run(NOW_MS + days * DAY_MS, force=True)
    assert ("b", None, 1) not in pairs_in(log.directory)
    assert batch_ends(log.directory)[-1] == end - 1
    last_batch = list(batches_of(log.directory))[-1]
    assert len(last_batch.data) == 61 and last_batch.records() == []
    for path in log.directory.glob(f"{end:020d}.*"):
        path.unlink()
    assert Partition.load(log.directory, log.config, now_ms=NOW_MS).log_end_offset == end


# ---- A12: a hanging transaction


def test_a12_a_hanging_transaction_holds_the_log(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1))
    log.roll()
    log.append(("a", 2), pid=7, transactional=True)
    log.roll()
    log.append(("a", 3))
    log.append(("a", 4))
    log.roll()
    partition = load(log)
    offsets = offsets_to_clean(partition, None, NOW_MS)
    assert (offsets.first_dirty_offset, offsets.first_uncleanable_offset) == (0, 1)
    assert offsets.blocker is Blocker.OPEN_TRANSACTION
    assert partition.producers.ongoing_txns == {1: 7}
    cleaning = Cleaning(log, kernel)
    cleaning.run()
    assert cleaning.checkpoint == 1
    assert offsets_in(log.directory) == [0, 1, 2, 3]

    log.abort(7)
    log.roll()
    cleaning.run()
    # The marker is kept without a horizon as long as a batch of its transaction was read.
    assert cleaning.checkpoint == 5
    assert offsets_in(log.directory) == [3, 4]
    assert empty_batch_ends(log.directory) == [1]
    assert delete_horizons(log.directory) == {}
    assert aborted_in(log.directory) == [(7, 1, 4, 5)]


# ---- A14: more keys than the map holds


def test_a14_a_round_ends_inside_a_segment(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(*((key, offset) for offset, key in enumerate("abcdad")))
    log.roll()
    cleaning = Cleaning(log, kernel)
    three_keys = {"kafka_map": True, "map_memory_bytes": 4 * 24, "map_load_factor": 0.75}
    report = cleaning.run(once=True, **three_keys)
    assert (report.next_dirty_offset, report.map_capacity, cleaning.checkpoint) == (3, 3, 3)
    assert offsets_in(log.directory) == [0, 1, 2, 3, 4, 5]
    report = cleaning.run(once=True, **three_keys)
    assert cleaning.checkpoint == 6
    assert [(key, offset) for key, _, offset in pairs_in(log.directory)] == [("b", 1), ("c", 2), ("a", 4), ("d", 5)]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5), min_size=1, max_size=12),
    keys=st.integers(1, 7),
)
def test_a14_any_map_gets_to_the_end(fast_dir: Path, kernel: Kernel, batches: list[list[str]], keys: int) -> None:
    """However few keys it holds: every round advances the checkpoint, and at the end each key is there once."""
    shutil.rmtree(fast_dir / "t-0", ignore_errors=True)
    log = ShortLog(fast_dir / "t-0", topic(segment_bytes=200))
    for batch in batches:
        log.append(*((key, log.end_offset + n) for n, key in enumerate(batch)))
    log.roll()
    log.close()
    before = latest_values(log.directory)
    cleaning = Cleaning(log, kernel)
    report = cleaning.run(kafka_map=True, map_memory_bytes=24 * keys, map_load_factor=1.0)
    assert report.outcome == "cleaned"
    assert cleaning.written == sorted(set(cleaning.written))
    assert cleaning.checkpoint == log.end_offset
    assert latest_values(log.directory) == before
    assert len(offsets_in(log.directory)) == len(before)


# ---- A19: checkpoints that do not fit the log


def test_a19_checkpoint_below_the_log_start(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.roll(100)
    log.append(("a", 1), offset=100)
    log.append(("a", 2))
    log.roll()
    log.close()
    for path in log.directory.glob(f"{0:020d}.*"):
        path.unlink()
    cleaning = Cleaning(log, kernel, checkpoint=50, log_start_offset=100)
    report = cleaning.run()
    assert cleaning.written == [100, 102], "corrected at once, then the clean's own"
    assert sum("lies outside the log [100, 102]" in note for note in report.notes) == 1
    assert pairs_in(log.directory) == [("a", "2", 101)]


def test_a19_checkpoint_above_the_log_end(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1))
    log.append(("a", 2))
    log.roll()
    cleaning = Cleaning(log, kernel, checkpoint=500)
    report = cleaning.run()
    assert cleaning.written == [0, 2]
    assert report.first_dirty_offset == 0
    assert pairs_in(log.directory) == [("a", "2", 1)]


@pytest.mark.parametrize("checkpoint", range(9))
def test_a19_any_checkpoint_inside_the_log(make_log: LogMaker, kernel: Kernel, checkpoint: int) -> None:
    """Wherever it stands, the round ends at the active segment and the latest values stay."""
    log = make_log()
    for start in (0, 4):
        log.append(*((key, start + n) for n, key in enumerate("abab")))
        log.roll()
    log.close()
    before = latest_values(log.directory)
    cleaning = Cleaning(log, kernel, checkpoint=checkpoint)
    report = cleaning.run()
    assert latest_values(log.directory) == before
    assert cleaning.checkpoint == (8 if report.outcome == "cleaned" else checkpoint)
    assert (report.outcome == "clean") == (checkpoint == 8)


# ---- A26: the high watermark


@pytest.mark.parametrize("high_watermark", range(7))
def test_a26_nothing_at_or_above_the_high_watermark_counts(
    make_log: LogMaker, kernel: Kernel, high_watermark: int
) -> None:
    """What is not replicated yet is neither removed nor a reason to remove."""
    log = make_log()
    for offset in range(6):
        log.append(("a", offset))
        if offset % 2:
            log.roll()
    log.close()
    before = {base: log_bytes(log.directory, base) for base in segment_bases(log.directory)}
    cleaning = Cleaning(log, kernel, high_watermark=high_watermark)
    cleaning.run()
    cleaned_below = high_watermark - high_watermark % 2
    assert (cleaning.checkpoint or 0) == cleaned_below
    kept = [offset for _, _, offset in pairs_in(log.directory)]
    assert kept == ([cleaned_below - 1] if cleaned_below else []) + list(range(cleaned_below, 6))
    untouched = {base: data for base, data in before.items() if base >= cleaned_below}
    assert {base: log_bytes(log.directory, base) for base in untouched} == untouched


# ---- A47: cleaning without benefit


def test_a47_a_second_clean_of_fresh_tombstones_does_nothing(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0)
    for key in range(20):
        log.append((key, None))
    log.roll()
    cleaning = Cleaning(log, kernel)
    cleaning.run()
    size, inode = size_of(log.directory), (log.directory / names.log_name(0)).stat().st_ino
    report = cleaning.run()
    assert (report.outcome, report.rounds, report.stats.bytes_read) == ("clean", 0, 0)
    # Asked for, it reads and finds that every byte stays: nothing is rewritten.
    report = cleaning.run(force=True)
    assert (report.groups, report.unchanged_groups) == (1, 1)
    assert (log.directory / names.log_name(0)).stat().st_ino == inode
    assert size_of(log.directory) == size
