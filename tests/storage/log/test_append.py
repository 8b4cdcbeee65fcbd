"""Appending, rolling and flushing: UnifiedLogTest and LogSegmentTest by name (facts 10, 12.6, 12.8), and a failing disk."""

from __future__ import annotations

import errno
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from compactd.config.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    LogError,
    LogOfflineError,
    MessageTooLargeError,
    RecordListTooLargeError,
    StorageIOError,
    UnexpectedOffsetError,
)
from compactd.storage import files, names
from compactd.storage.log import PartitionLog, Resources
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.open_files import OpenFiles
from compactd.storage.partition_metadata import read_partition_metadata
from compactd.storage.producers import read_snapshot
from compactd.storage.time_index import TimeIndex
from tests.file_faults import FaultyLayer
from tests.storage.log.logs import (
    DAY,
    NOW,
    at,
    bases,
    batch,
    config,
    contents,
    files_of,
    fill,
    lead,
    new_log,
    offsets_of,
    reopened,
)

SIZE = len(batch())


# ---- rolling


def test_time_based_log_roll_during_append(tmp_path: Path) -> None:
    hour = 3_600_000
    log = new_log(tmp_path, segment_ms=hour)
    now = NOW + hour + 1
    lead(log, batch(ts=-1), now_ms=now)
    assert len(log.segments) == 1  # an empty segment never rolls
    lead(log, batch(ts=-1), now_ms=now)
    assert len(log.segments) == 2  # no timestamps: the clock since the segment was made
    now += hour + 1
    lead(log, batch(ts=-1), now_ms=now)
    assert len(log.segments) == 3
    # A segment whose first batch has a timestamp goes by record time only.
    now += hour + 1
    stamp = now
    lead(log, batch(ts=stamp), now_ms=now)
    assert len(log.segments) == 4
    lead(log, batch(ts=stamp + hour), now_ms=now + 5 * hour)
    assert len(log.segments) == 4
    lead(log, batch(ts=stamp + hour + 1), now_ms=now + 5 * hour)
    assert len(log.segments) == 5
    lead(log, batch(ts=stamp), now_ms=now)
    assert len(log.segments) == 5  # an older timestamp rolls nothing


def test_time_based_log_roll_jitter(tmp_path: Path) -> None:
    log = new_log(tmp_path, segment_ms=3_600_000, segment_jitter_ms=1_200_000)
    lead(log, batch(ts=-1))
    jitter = log.active_segment.roll_jitter_ms
    assert 0 <= jitter < 1_200_000
    due = NOW + 3_600_000 - jitter
    lead(log, batch(ts=-1), now_ms=due)
    assert len(log.segments) == 1
    lead(log, batch(ts=-1), now_ms=due + 1)
    assert len(log.segments) == 2


def test_size_based_log_roll(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 9)
    fill(log, 10)
    assert [segment.size for segment in log.segments] == [SIZE * 9, SIZE]


def test_log_rolls(tmp_path: Path) -> None:
    """A roll flushes what it closes."""
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 5)
    fill(log, 5)
    assert log.recovery_point == 0
    fill(log, 1)
    assert log.recovery_point == 5
    assert bases(log) == [0, 5]


def test_max_compaction_lag_rolls_compacted_topics(tmp_path: Path) -> None:
    log = new_log(tmp_path, cleanup_policy="compact", max_compaction_lag_ms=1000)
    lead(log, batch(ts=NOW))
    lead(log, batch(ts=NOW + 1000))
    assert len(log.segments) == 1
    lead(log, batch(ts=NOW + 1001))
    assert len(log.segments) == 2
    log.update_config(config(cleanup_policy="delete", max_compaction_lag_ms=1000))
    lead(log, batch(ts=NOW + 100_000))
    assert len(log.segments) == 2


def test_index_full_rolls(tmp_path: Path) -> None:
    """Room for four time entries: the last place is kept for the closing one, which three more batches made needless."""
    log = new_log(tmp_path, index_interval_bytes=0, segment_index_bytes=48)
    fill(log, 9, ts=iter(range(NOW, NOW + 9)))
    assert bases(log) == [0, 4, 8]
    for segment in log.segments[:-1]:
        assert len(TimeIndex.read(segment.path(names.time_index_name), segment.base_offset)) == 3


def test_offset_range_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.append_as_follower(at(0), now_ms=NOW)
    log.append_as_follower(at(2**31 - 1), now_ms=NOW)
    assert bases(log) == [0]
    log.append_as_follower(at(2**31), now_ms=NOW)
    assert bases(log) == [0, 2**31]


def test_roll_segment_that_already_exists(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert bases(log) == [0]
    log.roll(now_ms=NOW)
    assert bases(log) == [0]  # made anew
    fill(log, 1)
    log.roll(now_ms=NOW)
    log.roll(now_ms=NOW)
    assert bases(log) == [0, 1]
    assert offsets_of(contents(log)) == [0]


def test_roll_segment_error_when_next_offset_is_illegal(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    log.roll(now_ms=NOW)
    log.local.end = log.local.end._replace(offset=1)  # as a defect would leave it
    with pytest.raises(LogError):
        log.roll(now_ms=NOW)


def test_stale_files_of_a_new_base_are_removed(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=0)
    fill(log, 3)
    for name in (names.log_name(3), names.offset_index_name(3), names.transaction_index_name(3)):
        (log.directory / name).write_bytes(b"stale" * 10)
    log.roll(now_ms=NOW)
    fill(log, 2)
    assert offsets_of(contents(log)) == [0, 1, 2, 3, 4]
    log = reopened(log)
    assert offsets_of(contents(log)) == [0, 1, 2, 3, 4]
    assert not (log.directory / names.transaction_index_name(3)).exists()


def test_producer_snapshot_after_segment_roll_on_append(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 2)
    lead(log, batch(producer_id=7, producer_epoch=0, base_sequence=0))
    lead(log, batch(producer_id=7, producer_epoch=0, base_sequence=1))
    lead(log, batch(producer_id=7, producer_epoch=0, base_sequence=2))
    [entry] = read_snapshot(log.directory / names.snapshot_name(2))
    assert (entry.producer_id, entry.last_sequence, entry.last_data_offset) == (7, 1, 1)


def test_take_snapshot_on_roll_and_delete_snapshot_on_recovery_point_checkpoint(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 1)
    log.roll(now_ms=NOW)
    assert files_of(log, ".snapshot") == [names.snapshot_name(1)]
    fill(log, 1)
    log.roll(now_ms=NOW)
    log.flush()
    assert files_of(log, ".snapshot") == [names.snapshot_name(1), names.snapshot_name(2)]


# ---- index entries


def test_index_for_multiple_batches_in_memory_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=1)
    log.append_as_follower(at(0, ts=1) + at(1, ts=1), now_ms=NOW)
    log.append_as_follower(at(2, ts=2), now_ms=NOW)
    log.close()
    index = OffsetIndex.read(log.directory / names.offset_index_name(0), 0)
    assert [offset for offset, _ in index.entries] == [1, 2]
    assert TimeIndex.read(log.directory / names.time_index_name(0), 0).entries == [(1, 0), (2, 2)]


def test_non_monotonic_timestamp_for_multiple_batches_in_memory_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=1)
    log.append_as_follower(at(0, ts=1) + at(1, ts=0) + at(2, ts=2), now_ms=NOW)
    log.close()
    index = OffsetIndex.read(log.directory / names.offset_index_name(0), 0)
    assert [offset for offset, _ in index.entries] == [1, 2]
    assert TimeIndex.read(log.directory / names.time_index_name(0), 0).entries == [(1, 0), (2, 2)]


def test_index_counter_starts_at_zero_after_a_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=SIZE)
    fill(log, 2)
    log = reopened(log)
    fill(log, 2)
    log.close()
    # Batches of SIZE bytes: without the restart an entry would be due at the third.
    assert OffsetIndex.read(log.directory / names.offset_index_name(0), 0).entries == []


def test_index_write_out_in_pieces(tmp_path: Path) -> None:
    """Entries beyond 64 KiB go to the file on the way, and lookups go on to find them."""
    log = new_log(tmp_path, index_interval_bytes=0)
    one = bytearray(at(0, ts=5))
    for offset in range(9000):
        one[:8] = struct.pack(">q", offset)
        log.append_as_follower(bytes(one), now_ms=NOW)
    log.update_high_watermark(9000)
    assert (log.directory / names.offset_index_name(0)).stat().st_size == 1 << 16
    for offset in (0, 1, 8191, 8192, 8193, 8999):
        with log.read(offset, 1) as fetched:
            assert fetched.first_offset == offset
    log.close()
    index = OffsetIndex.read(log.directory / names.offset_index_name(0), 0)
    assert [offset for offset, _ in index.entries] == list(range(1, 9000))
    assert [position for _, position in index.entries] == [len(one) * n for n in range(1, 9000)]


def test_flushing_empty_active_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 1)
    log.roll(now_ms=NOW)
    assert len(files_of(log, ".log")) == 2
    assert files_of(log, ".index") == [names.offset_index_name(0)]
    log.close()
    assert len(files_of(log, ".index")) == len(files_of(log, ".timeindex")) == 2


def test_preallocated_segments_are_cut_when_closed(tmp_path: Path) -> None:
    log = new_log(tmp_path, preallocate=True, internal_segment_bytes=10_000)
    fill(log, 3)
    path = log.directory / names.log_name(0)
    assert path.stat().st_size == 10_000
    assert offsets_of(contents(log)) == [0, 1, 2]
    log.roll(now_ms=NOW)
    assert path.stat().st_size == SIZE * 3
    log.close()
    assert (log.directory / names.log_name(3)).stat().st_size == 0


def test_preallocated_segment_goes_on_after_a_crash(tmp_path: Path) -> None:
    log = new_log(tmp_path, preallocate=True, internal_segment_bytes=10_000)
    fill(log, 3)
    log = reopened(log, clean=False)
    fill(log, 2)
    assert offsets_of(contents(log)) == [0, 1, 2, 3, 4]


# ---- sizes and refusals


def test_message_set_size_check(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE - 1)
    with pytest.raises(RecordListTooLargeError) as caught:
        lead(log, batch())
    assert (caught.value.kafka_name, caught.value.kafka_code) == ("RECORD_LIST_TOO_LARGE", 18)
    assert log.log_end_offset == 0


def test_message_size_check(tmp_path: Path) -> None:
    log = new_log(tmp_path, max_message_bytes=SIZE)
    fill(log, 1)
    with pytest.raises(MessageTooLargeError) as caught:
        lead(log, batch(value=b"x" * 100))
    assert (caught.value.kafka_name, caught.value.kafka_code) == ("MESSAGE_TOO_LARGE", 10)
    assert log.log_end_offset == 1


def test_message_size_check_in_append_as_follower(tmp_path: Path) -> None:
    """A leader's setting may have been larger: what it took has to be replicated."""
    log = new_log(tmp_path, max_message_bytes=10)
    log.append_as_follower(at(0), now_ms=NOW)
    assert log.log_end_offset == 1


def test_append_with_out_of_order_offsets_throws_exception(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(UnexpectedOffsetError):
        log.append_as_follower(at(5) + at(3), now_ms=NOW)
    log.append_as_follower(at(5), now_ms=NOW)
    with pytest.raises(UnexpectedOffsetError):
        log.append_as_follower(at(4), now_ms=NOW)
    with pytest.raises(UnexpectedOffsetError):
        log.append_as_follower(at(6) + at(2**31 + 7), now_ms=NOW)
    assert log.log_end_offset == 6


def test_append_as_follower_leaves_out_later_epochs_and_torn_batches(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = at(0, leader_epoch=1) + at(1, leader_epoch=2) + at(2, leader_epoch=1)
    done = log.append_as_follower(data, leader_epoch=1, now_ms=NOW)
    assert (done.first_offset, done.last_offset) == (0, 0)
    log.append_as_follower(at(1) + at(2)[:-3], now_ms=NOW)
    assert log.log_end_offset == 2
    assert log.append_as_follower(b"", now_ms=NOW).last_offset == -1


def test_follower_refuses_damage(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    damaged = bytearray(at(0) + at(1))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError) as caught:
        log.append_as_follower(bytes(damaged), now_ms=NOW)
    assert caught.value.kafka_name == "CORRUPT_MESSAGE"
    assert log.log_end_offset == 0


def test_leader_epochs_follow_batches(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.append_as_follower(at(0, leader_epoch=1) + at(1, leader_epoch=1) + at(2, leader_epoch=4), now_ms=NOW)
    assert log.epochs.entries == [(1, 0), (4, 2)]
    assert (log.directory / names.LEADER_EPOCH_CHECKPOINT).read_text() == "0\n2\n1 0\n4 2\n"


# ---- flushing


def counted(log: PartitionLog, name: str, run: Any) -> list[str]:
    layer = FaultyLayer()
    with files.replaced(layer):
        run()
    return [Path(call.paths[0]).name for call in layer.calls if call.name == name]


def test_flush_messages(tmp_path: Path) -> None:
    log = new_log(tmp_path, flush_messages=3)
    fill(log, 2)
    assert log.recovery_point == 0
    fill(log, 1)
    assert log.recovery_point == 3


def test_group_commit(tmp_path: Path) -> None:
    """Many appends, one fsync: nothing is flushed until the owner asks, and then everything at once."""
    log = new_log(tmp_path, flush_messages=1, options={"group_commit": True})
    fill(log, 1)

    def many() -> None:
        assert all(lead(log, batch()).flush_due for _ in range(10))
        assert log.flush_due(NOW)

    assert counted(log, "fsync", many) == []
    assert len(counted(log, "fsync", lambda: log.flush(NOW))) == 1
    assert log.recovery_point == 11
    assert not log.flush_due(NOW + DAY)


def test_flush_job_runs_beside_appends(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 2)
    job = log.flush_job()
    assert job is not None
    fill(log, 3)
    log.roll(now_ms=NOW)
    job.run()
    log.flushed(job, NOW)
    assert log.recovery_point == 5  # the roll was further
    assert log.flush_job() is None


def test_a_flush_from_before_a_truncation_says_nothing(tmp_path: Path) -> None:
    """What is appended in place of what was cut is not on disk because the old one was."""
    log = new_log(tmp_path)
    fill(log, 10)
    job = log.flush_job()
    assert job is not None
    job.run()
    log.truncate_to(5, NOW)
    fill(log, 5)
    log.flushed(job, NOW)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 10


def test_flush_ms(tmp_path: Path) -> None:
    log = new_log(tmp_path, flush_ms=1000)
    fill(log, 1)
    assert not log.flush_due(NOW + 999)
    assert log.flush_due(NOW + 1000)
    log.flush(NOW + 1000)
    fill(log, 1)
    assert not log.flush_due(NOW + 1999)


def test_failed_fsync_takes_the_log_offline(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 1)
    layer = FaultyLayer()
    layer.fail("fsync", errno.EIO)
    with files.replaced(layer), pytest.raises(StorageIOError):
        log.flush()
    assert log.recovery_point == 0
    with pytest.raises(LogOfflineError):
        log.flush()
    with pytest.raises(LogOfflineError):
        lead(log, batch())
    assert offsets_of(contents(log)) == [0]  # readers go on


def test_recovery_point_not_incremented_on_producer_state_snapshot_flush_failure(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 1)
    layer = FaultyLayer()
    layer.fail("fsync", errno.EIO, part=".snapshot")
    with files.replaced(layer), pytest.raises(StorageIOError):
        log.roll(now_ms=NOW)
    assert log.recovery_point == 0


def test_rolled_segment_flushes_in_the_background(tmp_path: Path) -> None:
    waiting: list[Any] = []
    log = new_log(tmp_path, options={"background": waiting.append})
    fill(log, 2)
    log.roll(now_ms=NOW)
    fill(log, 1)
    assert log.recovery_point == 0
    for task in waiting:
        task()
    assert log.recovery_point == 2
    assert log.log_end_offset == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failed_write_is_taken_back(tmp_path: Path, code: int) -> None:
    log = new_log(tmp_path)
    fill(log, 2)
    layer = FaultyLayer()
    layer.short_writes(40)
    layer.fail("write", code, nth=1)
    with files.replaced(layer), pytest.raises(StorageIOError) as caught:
        lead(log, batch())
    assert caught.value.errno == code
    assert (log.directory / names.log_name(0)).stat().st_size == SIZE * 2
    assert log.log_end_offset == 2
    with pytest.raises(LogOfflineError):
        lead(log, batch())
    again = reopened_after_failure(log)
    assert offsets_of(contents(again)) == [0, 1]
    fill(again, 1)
    assert offsets_of(contents(again)) == [0, 1, 2]


def reopened_after_failure(log: PartitionLog) -> PartitionLog:
    return reopened(log, clean=False)


def test_short_writes_are_completed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    layer = FaultyLayer()
    layer.short_writes(7)
    with files.replaced(layer):
        fill(log, 3)
    assert offsets_of(contents(log)) == [0, 1, 2]
    log = reopened(log)
    assert offsets_of(contents(log)) == [0, 1, 2]


def test_vanished_file_is_noticed(tmp_path: Path) -> None:
    """Report A13: something removed the file. Nothing may be written into a new one of its name."""
    log = new_log(tmp_path, options={"resources": Resources(files=OpenFiles(limit=0))})
    fill(log, 1)
    log.active_segment.close()
    (log.directory / names.log_name(0)).unlink()
    with pytest.raises(StorageIOError):
        lead(log, batch())
    with pytest.raises(StorageIOError):
        log.read(0, 100)
    assert not (log.directory / names.log_name(0)).exists()


def test_shortened_file_is_noticed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 2)
    log.active_segment.close()
    with (log.directory / names.log_name(0)).open("r+b") as file:
        file.truncate(SIZE)
    with pytest.raises(StorageIOError):
        lead(log, batch())


# ---- topic id, directory, end


def test_log_flushes_partition_metadata_on_append(tmp_path: Path) -> None:
    topic_id = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
    log = new_log(tmp_path, options={"topic_id": topic_id})
    path = log.directory / names.PARTITION_METADATA
    assert not path.exists()
    fill(log, 1)
    found = read_partition_metadata(path)
    assert found is not None and found.topic_id == topic_id


def test_log_flushes_partition_metadata_on_close(tmp_path: Path) -> None:
    topic_id = uuid.UUID(int=77)
    log = new_log(tmp_path, options={"topic_id": topic_id})
    log = reopened(log)
    assert log.topic_id == topic_id


def test_log_fails_when_inconsistent_topic_id_set(tmp_path: Path) -> None:
    log = new_log(tmp_path, options={"topic_id": uuid.UUID(int=77)})
    log.assign_topic_id(uuid.UUID(int=77))
    with pytest.raises(InconsistentTopicIdError) as caught:
        log.assign_topic_id(uuid.UUID(int=78))
    assert caught.value.kafka_name == "INCONSISTENT_TOPIC_ID"


def test_topic_id_transfers_after_directory_rename(tmp_path: Path) -> None:
    log = new_log(tmp_path, options={"topic_id": uuid.UUID(int=77)})
    log.rename_dir("t-1")
    assert log.directory == tmp_path / "t-1"
    found = read_partition_metadata(tmp_path / "t-1" / names.PARTITION_METADATA)
    assert found is not None and found.topic_id == uuid.UUID(int=77)


def test_write_leader_epoch_checkpoint_after_directory_rename(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    lead(log, batch(), leader_epoch=5)
    log.rename_dir("t-2")
    lead(log, batch(), leader_epoch=10)
    assert (tmp_path / "t-2" / names.LEADER_EPOCH_CHECKPOINT).read_text() == "0\n2\n5 0\n10 1\n"
    log.roll(now_ms=NOW)
    assert offsets_of(contents(log)) == [0, 1]
    assert files_of(log, ".snapshot") == [names.snapshot_name(2)]


def test_renaming_dir_without_reinitialization(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    log.rename_dir("t-0.0123456789abcdef0123456789abcdef-delete", keep_using=False)
    assert log.epochs.entries == []
    log.close(orderly=False)
    log.delete()
    assert list(tmp_path.iterdir()) == []


def test_closed_log_refuses(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(LogError):
        lead(log, batch())


def test_orderly_close_leaves_what_a_clean_start_needs(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, index_interval_bytes=0)
    for sequence in range(10):
        lead(log, batch(ts=NOW + sequence, producer_id=3, producer_epoch=0, base_sequence=sequence))
    log = reopened(log, now_ms=NOW)
    assert log.recovery_point == log.log_end_offset == 10
    assert files_of(log, ".snapshot")[-1] == names.snapshot_name(10)
    assert lead(log, batch(producer_id=3, producer_epoch=0, base_sequence=9)).duplicate
    lead(log, batch(producer_id=3, producer_epoch=0, base_sequence=10))
    assert offsets_of(contents(log)) == list(range(11))
