"""UnifiedLogTest on retention, start offset and snapshots: its cases by name (facts 12.5)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from compactd.config.errors import LogOfflineError, OffsetOutOfRangeError, StorageIOError
from compactd.storage import files
from tests.file_faults import FaultyLayer
from tests.storage.log.logs import NOW, at, bases, batch, contents, files_of, fill, lead, new_log, offsets_of, reopened

SIZE = len(batch())


def test_should_delete_size_based_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 10)
    fill(log, 15)
    log.delete_old_segments(NOW)
    assert len(log.segments) == 2
    assert log.log_start_offset == 5


def test_should_not_delete_size_based_segments_when_under_retention_size(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 15)
    fill(log, 15)
    assert log.delete_old_segments(NOW) == 0
    assert len(log.segments) == 3


def test_should_delete_time_based_segments_ready_to_be_deleted(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 15, retention_ms=10000)
    fill(log, 15, ts=10)
    log.delete_old_segments(NOW)
    assert [(segment.base_offset, segment.size) for segment in log.segments] == [(15, 0)]
    assert log.log_start_offset == log.log_end_offset == 15


def test_should_not_delete_time_based_segments_when_none_ready_to_be_deleted(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_ms=10_000_000)
    fill(log, 15, ts=NOW)
    log.delete_old_segments(NOW)
    assert len(log.segments) == 3


def test_should_not_delete_segments_when_policy_does_not_include_delete(tmp_path: Path) -> None:
    log = new_log(
        tmp_path, internal_segment_bytes=SIZE * 5, retention_ms=10000, retention_bytes=1, cleanup_policy="compact"
    )
    fill(log, 15, ts=10)
    assert log.delete_old_segments(NOW) == 0
    assert len(log.segments) == 3


def test_should_delete_segments_ready_to_be_deleted_when_cleanup_policy_is_compact_and_delete(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_ms=10000, cleanup_policy="compact, delete")
    fill(log, 15, ts=10)
    log.delete_old_segments(NOW)
    assert len(log.segments) == 1


def test_should_delete_start_offset_breached_segments_when_policy_does_not_include_delete(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_ms=10000, cleanup_policy="compact")
    fill(log, 15)
    log.maybe_increment_log_start_offset(5)
    log.delete_old_segments(NOW)
    assert bases(log) == [5, 10]


@pytest.mark.parametrize(("start", "left"), [(1, 3), (6, 2), (15, 1)])
def test_log_deletion_after_delete_records(tmp_path: Path, start: int, left: int) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5)
    fill(log, 15)
    log.maybe_increment_log_start_offset(start)
    log.delete_old_segments(NOW)
    assert len(log.segments) == left
    assert log.log_start_offset == start


def test_delete_old_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, segment_index_bytes=1000, retention_ms=999)
    for _ in range(100):
        lead(log, batch(ts=NOW - 1000), follow=False)
    assert log.delete_old_segments(NOW) == 0  # nothing is below the high watermark
    log.update_high_watermark(27)
    log.delete_old_segments(NOW)
    assert log.segments[0].base_offset == log.log_start_offset == 25
    for watermark in range(25, 31):
        log.update_high_watermark(watermark)
        log.delete_old_segments(NOW)
        assert log.log_start_offset <= watermark
    log.update_high_watermark(log.log_end_offset)
    log.delete_old_segments(NOW)
    assert len(log.segments) == 1
    assert log.epochs.entries == [(0, 100)]
    fill(log, 100)
    log.delete()
    assert log.segments == ()
    assert log.epochs.entries == []
    assert not log.directory.exists()


def test_segment_deletion_with_high_watermark_initialization(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, segment_index_bytes=1000, retention_ms=999)
    for _ in range(100):
        lead(log, batch(ts=NOW - 1000), follow=False)
    log.update_high_watermark(25)
    assert log.delete_old_segments(NOW) > 0
    assert log.log_start_offset <= 25


def test_cannot_delete_segments_at_or_above_high_watermark(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, segment_index_bytes=1000, retention_ms=999)
    for _ in range(100):
        lead(log, batch(ts=NOW - 1000), follow=False)
    for watermark in range(101):
        log.update_high_watermark(watermark)
        log.delete_old_segments(NOW)
        assert log.log_start_offset <= watermark
        first, *others = bases(log)
        assert first <= watermark
        assert all(base > watermark for base in others)
    assert [(segment.base_offset, segment.size) for segment in log.segments] == [(100, 0)]
    assert log.log_start_offset == 100


def test_cannot_increment_log_start_offset_past_high_watermark(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5)
    for _ in range(100):
        lead(log, batch(), follow=False)
    log.update_high_watermark(25)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.maybe_increment_log_start_offset(26)
    assert caught.value.kafka_name == "OFFSET_OUT_OF_RANGE"
    assert log.log_start_offset == 0


def test_retention_idempotency(tmp_path: Path) -> None:
    log = new_log(tmp_path, retention_ms=900)
    for time in (NOW + 100, NOW, NOW + 100):
        lead(log, batch(ts=time))
        log.roll(now_ms=NOW)
    later = NOW + 901
    log.maybe_increment_log_start_offset(1)
    assert log.delete_old_segments(later) == 2
    assert log.delete_old_segments(later) == 0


def test_async_delete(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_ms=999, file_delete_delay_ms=1000)
    fill(log, 15, ts=NOW - 1000)
    log.delete_old_segments(NOW)
    gone = files_of(log, ".deleted")
    assert [name for name in gone if name.endswith(".log.deleted")] == [
        f"{base:020d}.log.deleted" for base in (0, 5, 10)
    ]
    assert [name for name in gone if name.endswith(".index.deleted")]
    assert log.remove_due(NOW + 999) == 0
    assert files_of(log, ".deleted") == gone
    assert log.remove_due(NOW + 1000) == len(gone)
    assert files_of(log, ".deleted") == []


def test_log_deletion_after_close(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 1)
    log.close()
    log.delete()
    assert not log.directory.exists()


def test_background_deletion_with_io_exception(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5)
    fill(log, 15)
    log.maybe_increment_log_start_offset(6)
    layer = FaultyLayer()
    layer.fail("rename", 5)
    with files.replaced(layer), pytest.raises(StorageIOError):
        log.delete_old_segments(NOW)
    with pytest.raises(LogOfflineError) as caught:
        lead(log, batch())
    assert caught.value.kafka_name == "KAFKA_STORAGE_ERROR"
    log.close(orderly=False)


def test_that_garbage_collecting_segments_doesnt_change_offset(tmp_path: Path) -> None:
    for number, appends in enumerate((0, 1, 25)):
        log = new_log(
            tmp_path / str(number) if _made(tmp_path / str(number)) else tmp_path, internal_segment_bytes=SIZE * 5
        )
        fill(log, appends, ts=NOW - 10)
        end = log.log_end_offset
        log.roll(now_ms=NOW)
        log.update_config(log.config.__class__.from_strings({"internal.segment.bytes": SIZE * 5, "retention.ms": 0}))
        log.delete_old_segments(NOW)
        assert len(log.segments) == 1
        assert log.log_end_offset == end
        assert lead(log, batch()).first_offset == end
        log.close()


def _made(path: Path) -> bool:
    path.mkdir()
    return True


def test_should_truncate_leader_epochs_when_deleting_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 10)
    fill(log, 15)
    log.epochs.entries[:] = [(0, 0), (1, 5), (2, 10)]
    log.delete_old_segments(NOW)
    assert log.epochs.entries == [(1, 5), (2, 10)]


def test_should_update_offset_for_leader_epochs_when_deleting_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 10)
    fill(log, 15)
    log.epochs.entries[:] = [(0, 0), (1, 7), (2, 10)]
    log.delete_old_segments(NOW)
    assert log.epochs.entries == [(0, 5), (1, 7), (2, 10)]


def test_should_truncate_leader_epoch_checkpoint_file_when_truncating_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 10)
    fill(log, 10)
    lead(log, batch(), leader_epoch=1)
    fill_epoch = [lead(log, batch(), leader_epoch=2) for _ in range(5)]
    assert log.epochs.entries == [(0, 0), (1, 10), (2, 11)]
    log.truncate_to(fill_epoch[0].first_offset, NOW)
    assert log.epochs.entries == [(0, 0), (1, 10)]
    log.truncate_to(10, NOW)
    log.save()
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    log.truncate_to(0, NOW)
    assert log.epochs.entries == []


def test_truncate_to_end_offset_clears_epoch_cache(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 5)
    log.epochs.assign(3, 5)  # a leader that wrote nothing
    assert not log.truncate_to(5, NOW)
    assert log.epochs.entries == [(0, 0)]


@pytest.mark.parametrize("empty_active", [False, True])
def test_retention_deletes_producer_state_snapshots(tmp_path: Path, empty_active: bool) -> None:
    log = new_log(
        tmp_path, internal_segment_bytes=100_000, retention_bytes=0, file_delete_delay_ms=0, retention_ms=1000 * 60
    )
    for sequence in range(3):
        lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
        if sequence < 2 or empty_active:
            log.roll(now_ms=NOW)
    assert len(files_of(log, ".snapshot")) == 2 + empty_active
    log.delete_old_segments(NOW)
    log.remove_due(NOW)
    assert len(files_of(log, ".snapshot")) == 1
    assert log.log_start_offset == 3


def test_log_start_offset_movement_deletes_snapshots(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=100_000, retention_bytes=-1, file_delete_delay_ms=0)
    for sequence in range(3):
        lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
        if sequence < 2:
            log.roll(now_ms=NOW)
    assert len(files_of(log, ".snapshot")) == 2
    log.maybe_increment_log_start_offset(3)
    log.delete_old_segments(NOW)
    log.remove_due(NOW)
    assert len(files_of(log, ".snapshot")) == 1
    assert 1 in log.producers


def test_delete_snapshots_on_increment_log_start_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=100_000)
    lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.roll(now_ms=NOW)
    lead(log, batch(producer_id=2, producer_epoch=0, base_sequence=0))
    log.roll(now_ms=NOW)
    assert len(log.producers) == 2
    assert len(files_of(log, ".snapshot")) == 2
    log.maybe_increment_log_start_offset(2)
    log.delete_old_segments(NOW)
    assert len(files_of(log, ".snapshot")) == 1
    assert len(log.producers) == 2


def test_producer_id_expiration_on_segment_deletion(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 5)
    lead(log, batch(value=b"valu2", producer_id=1, producer_epoch=0, base_sequence=0))
    fill(log, 30)
    log.delete_old_segments(NOW)
    assert log.log_start_offset > 0
    assert 1 in log.producers


def test_last_stable_offset_does_not_exceed_log_start_offset_mid_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=100_000)
    lead(log, batch(5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    lead(log, batch(5))
    assert log.first_unstable_offset == 0
    log.maybe_increment_log_start_offset(8)
    assert log.first_unstable_offset == 8
    assert log.last_stable_offset == 8


def test_last_stable_offset_does_not_exceed_log_start_offset_after_segment_deletion(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=100_000)
    lead(log, batch(5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    log.roll(now_ms=NOW)
    lead(log, batch(10))
    log.maybe_increment_log_start_offset(8)
    assert log.delete_old_segments(NOW) == 1
    assert log.first_unstable_offset == 8
    log.update_high_watermark(log.log_end_offset)
    assert log.first_unstable_offset == 8


def test_deletable_segments_iteration(tmp_path: Path) -> None:
    """The empty last segment never goes by itself; a last one with data does."""
    log = new_log(tmp_path, retention_ms=0)
    for time in range(3):
        lead(log, batch(ts=NOW - 10 + time))
        log.roll(now_ms=NOW)
    assert log.delete_old_segments(NOW) == 3
    assert bases(log) == [3]
    lead(log, batch(ts=NOW - 1))
    assert log.delete_old_segments(NOW) == 1
    assert bases(log) == [4]


def test_future_timestamp_blocks_younger_segments(tmp_path: Path) -> None:
    """Report A10: a timestamp in microseconds holds everything behind it, as in Kafka."""
    log = new_log(tmp_path, retention_ms=86_400_000, message_timestamp_after_max_ms=2**62)
    lead(log, batch(ts=NOW * 1000))
    log.roll(now_ms=NOW)
    lead(log, batch(ts=NOW - 10 * 86_400_000))
    log.roll(now_ms=NOW)
    assert log.delete_old_segments(NOW) == 0


def test_seconds_for_milliseconds_go_at_once(tmp_path: Path) -> None:
    """Report A11: 1970 is long ago; with LogAppendTime the log's own clock counts."""
    log = new_log(tmp_path, retention_ms=7 * 86_400_000)
    lead(log, batch(ts=1_760_000_000))
    log.delete_old_segments(NOW)
    assert log.log_start_offset == 1
    log.close()
    (tmp_path / "stamped").mkdir()
    stamped = new_log(tmp_path / "stamped", retention_ms=7 * 86_400_000, message_timestamp_type="LogAppendTime")
    lead(stamped, batch(ts=1_760_000_000))
    stamped.delete_old_segments(NOW)
    assert stamped.log_start_offset == 0


def test_age_of_exactly_retention_ms_is_kept(tmp_path: Path) -> None:
    """Reports A3 and A49: strictly older."""
    log = new_log(tmp_path, retention_ms=3_600_000)
    lead(log, batch(ts=NOW))
    log.roll(now_ms=NOW)
    lead(log, batch(ts=NOW + 600_000))
    assert log.delete_old_segments(NOW + 3_600_000) == 0
    assert log.delete_old_segments(NOW + 3_600_001) == 1
    assert log.log_start_offset == 1


def test_restart_does_not_expire_anything(tmp_path: Path) -> None:
    """Report A41: timestamps come from the time index after a start, not from 0."""
    log = new_log(tmp_path, retention_ms=3_600_000)
    for _ in range(3):
        lead(log, batch())
        log.roll(now_ms=NOW)
    log = reopened(log)
    assert log.delete_old_segments(NOW) == 0
    log.close()


def test_delete_records_inside_a_batch_keeps_it_whole(tmp_path: Path) -> None:
    """Report A31: the log starts inside the batch, which stays and is given whole."""
    log = new_log(tmp_path, cleanup_policy="compact,delete")
    lead(log, batch(3))
    log.maybe_increment_log_start_offset(1)
    log.delete_old_segments(NOW)
    assert log.log_start_offset == 1
    assert offsets_of(contents(log)) == [0, 1, 2]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, 100)


def test_one_call_reaches_the_fixed_point(tmp_path: Path) -> None:
    """Report A31: raising the start past every closed segment takes them in one call, compact only as well."""
    log = new_log(tmp_path, cleanup_policy="compact")
    for count in itertools.repeat(10, 3):
        lead(log, batch(count))
        log.roll(now_ms=NOW)
    log.maybe_increment_log_start_offset(20)
    assert log.delete_old_segments(NOW) == 2
    assert log.delete_old_segments(NOW) == 0
    assert bases(log) == [20, 30]


def test_followers_keep_segments_of_a_gap(tmp_path: Path) -> None:
    """Bases of segments need not touch: the walk goes by base offsets."""
    log = new_log(tmp_path, internal_segment_bytes=SIZE, retention_ms=0)
    for offset in (0, 50, 200):
        log.append_as_follower(at(offset, ts=NOW - 1), now_ms=NOW)
    log.update_high_watermark(60)
    log.delete_old_segments(NOW)
    assert bases(log) == [50, 200]
    assert log.log_start_offset == 50


def test_retention_size_in_percent_metric(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=SIZE * 10)
    fill(log, 15)
    assert log.retention_size_percent == 150
    log.delete_old_segments(NOW)
    assert log.retention_size_percent == 100


def test_retention_size_in_percent_with_infinite_retention(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5, retention_bytes=-1)
    fill(log, 10)
    assert log.retention_size_percent == 0


def test_get_first_batch_timestamp_for_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert [segment.first_batch_timestamp for segment in log.segments] == [2**63 - 1]
    lead(log, batch(ts=1000))
    lead(log, batch(ts=5000))
    log.roll(now_ms=NOW)
    lead(log, batch(ts=-1))
    assert [segment.first_batch_timestamp for segment in log.segments] == [1000, 2**63 - 1]
    log = reopened(log)
    assert [segment.first_batch_timestamp for segment in log.segments] == [1000, 2**63 - 1]
