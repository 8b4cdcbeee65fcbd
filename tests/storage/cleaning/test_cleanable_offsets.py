"""Kafka's LogCleanerManagerTest: from where to where a log may be cleaned (facts 12.2, 4.3, 4.5), by Kafka's test names."""

from __future__ import annotations

import pytest

from compactd.storage import names
from compactd.storage.cleaning.cleanable import Blocker, OffsetsToClean, log_to_clean, offsets_to_clean
from compactd.storage.partition import Partition
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.rounds import load
from tests.storage.cleaning.short_log import ShortLog

HOUR_MS = 3_600_000


def offsets(
    log: ShortLog,
    checkpoint: int | None,
    now_ms: int = NOW_MS,
    high_watermark: int | None = None,
    log_start_offset: int = 0,
) -> tuple[OffsetsToClean, Partition]:
    partition = load(log, now_ms=now_ms, high_watermark=high_watermark, log_start_offset=log_start_offset)
    return offsets_to_clean(partition, checkpoint, now_ms), partition


def fill(log: ShortLog, segments: int) -> None:
    while log.segment_count < segments:
        log.append((log.end_offset, log.end_offset))


def test_cleanable_offsets_for_none(make_log: LogMaker) -> None:
    log = make_log()
    fill(log, 8)
    found, _ = offsets(log, 0, high_watermark=50)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 50)
    assert found.blocker is Blocker.HIGH_WATERMARK


def test_cleanable_offsets_active_segment(make_log: LogMaker) -> None:
    log = make_log()
    fill(log, 8)
    found, partition = offsets(log, 0)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, partition.active_segment.base_offset)
    assert found.blocker is Blocker.ACTIVE_SEGMENT


def test_cleanable_offsets_for_time(make_log: LogMaker) -> None:
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    fill(log, 4)
    active_then = log.active_base
    log.now_ms += HOUR_MS + 1
    fill(log, 8)
    found, _ = offsets(log, 0, now_ms=log.now_ms)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, active_then)
    assert found.blocker is Blocker.MIN_COMPACTION_LAG
    assert found.lagging_segment is not None and found.lagging_segment.base_offset == active_then


def test_cleanable_offsets_for_short_time(make_log: LogMaker) -> None:
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    fill(log, 8)
    found, partition = offsets(log, 0, now_ms=NOW_MS + HOUR_MS + 1)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, partition.active_segment.base_offset)


@pytest.mark.parametrize(("late_ms", "held"), [(-1, True), (0, False)])
def test_min_compaction_lag_at_its_edge(make_log: LogMaker, late_ms: int, held: bool) -> None:
    """A segment is held back while its largest timestamp is later than now - lag."""
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    log.append((0, 0))
    log.roll()
    found, _ = offsets(log, 0, now_ms=NOW_MS + HOUR_MS + late_ms)
    assert found.first_uncleanable_offset == (0 if held else 1)


def test_cleanable_offsets_needs_checkpoint_reset(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=1 << 20)
    for key in range(20):
        log.append((key, key))
    log.roll()
    for start, checkpoint, dirty, reset in ((10, 15, 15, False), (20, 15, 20, True), (20, 25, 20, True)):
        found, _ = offsets(log, checkpoint, log_start_offset=start)
        assert (found.first_dirty_offset, found.force_update_checkpoint) == (dirty, reset)


def test_dirty_offset_reset_if_larger_than_end_offset(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=1 << 20)
    for key in range(20):
        log.append((key, key))
    log.roll()
    found, _ = offsets(log, 200)
    assert (found.first_dirty_offset, found.force_update_checkpoint) == (0, True)


def test_dirty_offset_reset_if_smaller_than_start_offset(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=1 << 20)
    for key in range(20):
        log.append((key, key))
    log.roll()
    found, _ = offsets(log, 0, log_start_offset=10)
    assert (found.first_dirty_offset, found.force_update_checkpoint) == (10, True)


def test_log_start_offset_larger_than_active_segment_base_offset(make_log: LogMaker) -> None:
    """The log starts inside its only segment, the active one: there is nothing to clean."""
    log = make_log(segment_bytes=1 << 20)
    for key in range(4):
        log.append((key, key))
    found, partition = offsets(log, 0, log_start_offset=2)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (2, 2)
    assert log_to_clean(partition, 2, 2, NOW_MS).cleanable_bytes == 0


def test_dirty_offset_larger_than_active_segment_base_offset(make_log: LogMaker) -> None:
    """As after a truncation into the middle of a segment that was clean: nothing to clean, and no error."""
    log = make_log(segment_bytes=1 << 20)
    for key in range(4):
        log.append((key, key))
    found, partition = offsets(log, 3)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (3, 3)
    assert not found.force_update_checkpoint
    weighed = log_to_clean(partition, 3, 3, NOW_MS)
    assert (weighed.clean_bytes, weighed.cleanable_bytes) == (partition.size, 0)
    assert not weighed.wants_cleaning


def test_undecided_transactional_data_not_cleanable(make_log: LogMaker) -> None:
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    log.append(("1", "a"), ("2", "b"), pid=15, transactional=True)
    log.append(("3", "c"), pid=15, transactional=True)
    log.roll()
    log.now_ms += HOUR_MS + 1
    found, _ = offsets(log, 0, now_ms=log.now_ms, high_watermark=3)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 0)
    assert found.blocker is Blocker.OPEN_TRANSACTION

    log.abort(15)
    log.roll()
    found, _ = offsets(log, 0, now_ms=log.now_ms, high_watermark=4)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 3), "the lag holds the marker's segment"

    log.now_ms += HOUR_MS + 1
    found, _ = offsets(log, 0, now_ms=log.now_ms, high_watermark=4)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 4)


def test_a_marker_above_the_high_watermark_decides_nothing_yet(make_log: LogMaker) -> None:
    """As far as the log was read from a snapshot before the marker on; a snapshot after it (as in Kafka) forgets this."""
    log = make_log()
    log.append(("1", "a"), pid=15, transactional=True)
    log.roll()
    log.abort(15)
    log.roll()
    log.close()
    (log.directory / names.snapshot_name(2)).unlink()
    assert offsets(log, 0, high_watermark=1)[0].first_uncleanable_offset == 0
    assert offsets(log, 0, high_watermark=2)[0].first_uncleanable_offset == 2


def test_records_without_timestamps_go_by_the_files_time(make_log: LogMaker) -> None:
    """largestTimestamp of a segment without timestamps is its .log's modification time."""
    log = make_log(min_compaction_lag_ms=HOUR_MS)
    log.append((0, 0, -1))
    log.roll()
    partition = load(log)
    modified = partition.segments[0].last_modified_ms
    assert offsets_to_clean(partition, 0, modified + HOUR_MS - 1).first_uncleanable_offset == 0
    assert offsets_to_clean(partition, 0, modified + HOUR_MS).first_uncleanable_offset == 1
