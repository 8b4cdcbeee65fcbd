"""Truncation: UnifiedLogTest's and LogSegmentTest's cases by name (facts 12.6, 12.8)."""

from __future__ import annotations

from pathlib import Path

from compactd.storage import names
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.time_index import TimeIndex
from tests.storage.log.logs import NOW, at, bases, batch, contents, files_of, fill, lead, new_log, offsets_of, reopened

SIZE = len(batch())


def test_truncate_to(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 10)
    fill(log, 10)
    log.truncate_to(log.log_end_offset, NOW)
    assert log.log_end_offset == 10
    log.truncate_to(log.log_end_offset + 1, NOW)
    assert log.log_end_offset == 10
    log.truncate_to(5, NOW)
    assert log.log_end_offset == 5
    assert log.size == SIZE * 5
    log.truncate_to(0, NOW)
    assert (log.log_end_offset, log.size) == (0, 0)
    fill(log, 10)
    assert log.size == SIZE * 10
    log.truncate_fully_and_start_at(log.log_end_offset - 2, NOW)
    assert (log.log_end_offset, log.size, log.log_start_offset) == (8, 0, 8)
    fill(log, 10)
    assert offsets_of(contents(log)) == list(range(8, 18))


def test_truncate_across_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 3, file_delete_delay_ms=100)
    fill(log, 10)
    log.flush()
    assert log.recovery_point == 10
    log.truncate_to(4, NOW)
    assert bases(log) == [0, 3]
    assert log.recovery_point == log.log_end_offset == log.high_watermark == 4
    assert [name for name in files_of(log, ".deleted") if ".log." in name] == [
        names.log_name(6, ".deleted"),
        names.log_name(9, ".deleted"),
    ]
    fill(log, 4)
    assert offsets_of(contents(log)) == list(range(8))
    log.remove_due(NOW + 100)
    log = reopened(log)
    assert offsets_of(contents(log)) == list(range(8))


def test_truncate_drops_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    lead(log, batch(5))
    lead(log, batch(5))
    log.truncate_to(7, NOW)
    # As in Kafka the log then ends at the offset asked for, with nothing between.
    assert log.log_end_offset == 7
    assert offsets_of(contents(log)) == [0, 1, 2, 3, 4]
    assert lead(log, batch()).first_offset == 7


def test_index_resizing_at_truncation(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 10, index_interval_bytes=SIZE - 1, segment_index_bytes=1000)
    fill(log, 10, ts=iter(range(NOW, NOW + 10)))
    fill(log, 10, ts=iter(range(NOW + 10, NOW + 20)))
    first = log.segments[0]
    assert len(OffsetIndex.read(first.path(names.offset_index_name), 0)) == 9
    assert len(TimeIndex.read(first.path(names.time_index_name), 0)) == 9
    log.truncate_to(10, NOW)
    assert len(log.segments) == 2
    log.truncate_to(1, NOW)
    assert bases(log) == [0]
    assert len(log.active_segment.offsets) == 0
    log.truncate_to(0, NOW)
    assert log.active_segment.offsets.most_entries == 1000 // 8
    assert log.active_segment.times.most_entries == 1000 // 12
    fill(log, 5)
    assert len(log.active_segment.offsets) == 4
    log.close()
    assert (log.directory / names.offset_index_name(0)).stat().st_size == 4 * 8


def test_truncate_reloads_the_largest_timestamp(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=0)
    for time in (5, 9, 7, 30, 20):
        lead(log, batch(ts=NOW + time))
    assert log.active_segment.largest == (NOW + 30, 3)
    log.truncate_to(3, NOW)
    assert log.active_segment.largest == (NOW + 9, 1)
    lead(log, batch(ts=NOW + 10))
    log.close()
    assert TimeIndex.read(log.directory / names.time_index_name(0), 0).entries == [(NOW + 9, 1), (NOW + 10, 3)]


def test_truncate_empty_segment_and_gap(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.append_as_follower(at(10), now_ms=NOW)
    log.append_as_follower(at(100), now_ms=NOW)
    log.truncate_to(50, NOW)  # inside the gap
    assert offsets_of(contents(log)) == [10]
    assert log.log_end_offset == 50
    log.roll(now_ms=NOW)
    log.truncate_to(50, NOW)
    assert bases(log) == [0, 50]
    log.truncate_to(20, NOW)
    assert bases(log) == [0]


def test_truncate_below_the_first_segment_starts_over(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.truncate_fully_and_start_at(100, NOW)
    fill(log, 3)
    log.truncate_to(50, NOW)
    assert bases(log) == [50]
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


def test_truncation_rebuilds_producers(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 2)
    for sequence in range(6):
        lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
    lead(log, batch(producer_id=2, producer_epoch=0, base_sequence=0, transactional=True))
    log.truncate_to(4, NOW)
    assert 2 not in log.producers
    entry = log.producers.get(1)
    assert entry is not None and entry.last_sequence == 3
    assert log.first_unstable_offset is None
    assert lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=4)).first_offset == 4


def test_truncation_cuts_the_transaction_index(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for sequence in range(2):
        lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True))
        log.append_marker("abort", 1, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)
    assert [each.last_offset for each in log.collect_aborted(0, 100)] == [1, 3]
    log.truncate_to(3, NOW)
    assert [each.last_offset for each in log.collect_aborted(0, 100)] == [1]
    assert log.first_unstable_offset == 2
    log = reopened(log)
    assert [each.last_offset for each in log.collect_aborted(0, 100)] == [1]
    assert log.first_unstable_offset == 2


def test_an_undecided_marker_stays_undecided_across_a_truncation(tmp_path: Path) -> None:
    """Kafka forgets it and counts the transaction as stable before its marker is replicated."""
    log = new_log(tmp_path)
    fill(log, 1)
    lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), follow=False)
    log.append_marker("commit", 1, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    lead(log, batch(), follow=False)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 1
    log.truncate_to(3, NOW)
    lead(log, batch(), follow=False)
    assert log.last_stable_offset == 1
    log.update_high_watermark(3)
    assert log.last_stable_offset == 3


def test_reopen_then_truncate(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 3)
    fill(log, 12)
    log = reopened(log)
    log.truncate_to(3, NOW)
    assert log.log_end_offset == 3
    assert offsets_of(contents(log)) == [0, 1, 2]
