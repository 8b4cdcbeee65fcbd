"""Kafka's LogCleanerTest: what a round keeps, drops and counts (facts 12.1). One test for each of Kafka's, by its name.

Kafka's tests pretend a map ("these keys have later offsets"); here a segment that holds those later records stands for it.

daemon: issue 5, where there are threads to configure and measure: testMaxCleanTimeSecs,
testReconfigureLogCleanerIoMaxBytesPerSecond, testMaxBufferUtilizationPercentMetric, testMaxCleanTimeMetric,
testMaxCompactionDelayMetrics, testRemoveMetricsOnClose, testMetricsActiveAfterReconfiguration. Kafka's trunk only, not in
the release that compactd follows: testCleanedSegmentSizeOverflow, testCleanedSegmentOffsetOverflow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import CleaningAbortedError
from compactd.storage import names
from compactd.storage.cleaning.cleanable import log_to_clean
from compactd.storage.cleaning.round import CleanedGroup
from compactd.storage.kernel.interface import Kernel
from compactd.storage.segment import LogSegment
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import (
    batch_ends,
    batches_of,
    keys_in,
    log_bytes,
    offsets_in,
    records_of,
    segment_bases,
    size_of,
)
from tests.storage.cleaning.rounds import FIRST_PASS_MS, clean, load
from tests.storage.cleaning.short_log import ShortLog


def fill(log: ShortLog, segments: int, keys: int | None = None) -> None:
    """Records with key = value = offset (modulo `keys`), one a batch, until the log has so many segments."""
    while log.segment_count < segments:
        key = log.end_offset if keys is None else log.end_offset % keys
        log.append((key, log.end_offset))


def append_keys(log: ShortLog, *keys: int) -> None:
    for key in keys:
        log.append((key, key))


def test_clean_segments(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    fill(log, 4)
    before = keys_in_closed(log)
    append_keys(log, 1, 3, 5, 7, 9)
    log.roll()
    partition = load(log)
    source_bytes = sum(segment.size for segment in partition.segments[:-1])

    cleaned = clean(log, kernel)

    remaining = [key for key in before if key not in (1, 3, 5, 7, 9)]
    assert keys_in(log.directory) == [*remaining, 1, 3, 5, 7, 9]
    assert cleaned.stats.bytes_read == source_bytes
    assert cleaned.stats.bytes_written == size_of(log.directory)
    assert cleaned.stats.superseded == 5


def keys_in_closed(log: ShortLog) -> list[int]:
    log.close()
    return keys_in(log.directory)


def test_clean_segments_with_concurrent_segment_deletion(make_log: LogMaker, kernel: Kernel) -> None:
    """Retention takes the sources away after they were filtered and before the cleaned segment is swapped in."""
    log = make_log()
    for _ in range(2):
        log.append((0, log.end_offset))
        log.roll()
    assert log.segment_count == 3
    renames: list[Path] = []

    def delete_old_segments(group: CleanedGroup) -> None:
        """As deleteOldSegments with the log start at the active segment: everything below it becomes .deleted."""
        assert group.source_bases == (0, 1)
        for base in group.source_bases:
            for path in LogSegment(log.directory, base, 0, 0).existing_files():
                renames.append(path.rename(f"{path}{names.DELETED}"))

    cleaned = clean(log, kernel, before_swap=delete_old_segments, keep_deleted=True)

    assert segment_bases(log.directory) == [0, 2]
    assert len(renames) == 6 and all(path.exists() for path in renames)
    assert sorted(p.name for p in log.directory.glob("*.log.deleted")) == [
        f"{base:020d}.log.deleted" for base in (0, 1)
    ]
    # The segments' files were renamed once, by retention; only the snapshot of the vanished base was left to the swap.
    assert [path.name for path in cleaned.deleted] == [names.snapshot_name(1, names.DELETED)]
    assert not list(log.directory.glob("*.swap")) and not list(log.directory.glob("*.cleaned"))


def test_size_trimmed_for_preallocated_and_compacted_topic(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(preallocate=True)
    append_keys(log, 0, 1, 0, 1, 0)
    log.roll()
    clean(log, kernel, first=2, slots=2)
    path = log.directory / names.log_name(0)
    assert path.stat().st_size == sum(batch.header.size for batch in batches_of(log.directory))
    assert path.stat().st_blocks * 512 <= 4096


def test_cleaning_with_deletes(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    fill(log, 2)
    end = log.end_offset
    for key in range(0, end, 2):
        log.append((key, None))
    fill(log, 4)
    clean(log, kernel)
    assert set(keys_in(log.directory)) == {key for key in range(log.end_offset) if key >= end or key % 2} - set(
        tombstone_offsets(log)
    )


def tombstone_offsets(log: ShortLog) -> list[int]:
    return [record.offset for record in records_of(log.directory) if record.value is None]


def test_log_cleaner_stats(make_log: LogMaker, kernel: Kernel) -> None:
    """A map of 4 slots at 0.75 holds 3 keys."""
    log = make_log()
    append_keys(log, 0, 1, 0, 1, 0)
    log.roll()
    before = size_of(log.directory)
    cleaned = clean(log, kernel, first=2, slots=4)
    assert cleaned.next_dirty == 5
    assert cleaned.stats.messages_read == 5
    assert cleaned.stats.bytes_read == before
    assert cleaned.stats.messages_written == 2
    assert cleaned.stats.bytes_written == size_of(log.directory)
    assert cleaned.stats.invalid_messages_read == 0
    assert (cleaned.mapped.slots, cleaned.mapped.capacity, cleaned.mapped.entries) == (4, 3, 2)


def test_partial_segment_clean(make_log: LogMaker, kernel: Kernel) -> None:
    """A map of one key takes one record further a round."""
    log = make_log()
    append_keys(log, 0, 1, 0, 1, 0)
    log.roll()
    for first, keys, offsets in (
        (2, [1, 0, 1, 0], [1, 2, 3, 4]),
        (3, [0, 1, 0], [2, 3, 4]),
        (4, [1, 0], [3, 4]),
    ):
        cleaned = clean(log, kernel, first=first, slots=2)
        assert cleaned.next_dirty == first + 1
        assert keys_in(log.directory) == keys
        assert offsets_in(log.directory) == offsets


def test_cleaning_with_uncleanable_section(make_log: LogMaker, kernel: Kernel) -> None:
    """The whole segment that holds the first uncleanable offset is left alone, and all behind it."""
    log = make_log()
    fill(log, 3, keys=10)
    first_uncleanable = log.end_offset + 1  # past the third segment's base
    fill(log, 6, keys=10)
    log.close()
    bases = segment_bases(log.directory)
    before = {base: log_bytes(log.directory, base) for base in bases}
    cleaned = clean(log, kernel, uncleanable=first_uncleanable)
    assert cleaned.next_dirty == bases[2]
    assert size_of(log.directory) < sum(map(len, before.values()))
    assert len([record for record in records_of(log.directory) if record.offset < bases[2]]) == 10
    assert {base: log_bytes(log.directory, base) for base in bases[2:]} == {base: before[base] for base in bases[2:]}


def test_log_to_clean(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=100)
    for _ in range(6):
        log.append((1, b"\0" * 25))
    partition = load(log)
    assert len(partition.segments) == 6
    active = partition.active_segment
    found = log_to_clean(partition, active.base_offset, active.base_offset, NOW_MS)
    assert found.total_bytes == partition.size - active.size
    assert found.cleanable_bytes == 0


def test_log_to_clean_with_uncleanable_section(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=100)
    for _ in range(6):
        log.append((1, b"\0" * 25))
    partition = load(log)
    segments = partition.segments
    found = log_to_clean(partition, segments[2].base_offset, segments[4].base_offset, NOW_MS)
    clean_bytes, cleanable = sum(s.size for s in segments[:2]), sum(s.size for s in segments[2:4])
    assert (found.clean_bytes, found.cleanable_bytes) == (clean_bytes, cleanable)
    assert found.total_bytes == clean_bytes + cleanable
    assert found.cleanable_ratio == cleanable / (clean_bytes + cleanable) == 0.5


def test_cleaning_with_unkeyed_messages(make_log: LogMaker, kernel: Kernel) -> None:
    """Written while the topic was not compacted yet."""
    log = make_log()
    while log.segment_count < 2:
        log.append((None, log.end_offset))
    unkeyed, log_size = log.end_offset, size_of_all(log)
    fill(log, 3)
    expected = size_of_all(log) - log_size
    cleaned = clean(log, kernel)
    assert [record for record in records_of(log.directory) if record.key is None] == []
    assert size_of(log.directory) == expected
    assert cleaned.stats.invalid_messages_read == unkeyed


def size_of_all(log: ShortLog) -> int:
    log.close()
    return size_of(log.directory)


def test_clean_segments_with_abort(make_log: LogMaker, kernel: Kernel) -> None:
    """The owner says stop: the round ends with its error, and the group that was not done leaves nothing behind."""
    log = make_log(segment_bytes=5 << 20)
    value = b"\0" * (1 << 20)
    while log.segment_count < 4:
        log.append((log.end_offset % 3, value))
    log.close()
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    def check_aborted(_read: int, _written: int) -> None:
        raise CleaningAbortedError(path=log.directory, reason="a test asked for it")

    with pytest.raises(CleaningAbortedError, match="a test asked for it"):
        clean(log, kernel, progress=check_aborted)
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


def test_clean_segments_with_abort_in_pass_two(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=20 << 20)
    value = b"\0" * (1 << 20)
    for key in (*range(12), 0):
        log.append((key, value))
    log.roll()
    log.close()
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}

    def check_aborted(_read: int, written: int) -> None:
        if written:
            raise CleaningAbortedError(path=log.directory, reason="a test asked for it")

    with pytest.raises(CleaningAbortedError, match="a test asked for it"):
        clean(log, kernel, progress=check_aborted)
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


def superseded_log(make_log: LogMaker) -> tuple[ShortLog, int]:
    """Three segments of unique keys, then one that supersedes every key; and where the three end."""
    log = make_log(segment_bytes=1 << 20)
    for _ in range(3):
        for _ in range(10):
            log.append((log.end_offset, log.end_offset))
        log.roll()
    end = log.end_offset
    for key in range(end):
        log.append((key, b"later"))
    log.roll()
    return log, end


def test_clean_segments_retaining_last_empty_batch(make_log: LogMaker, kernel: Kernel) -> None:
    """The batch that ends at the high watermark stays without its records, so that the log's end stays known."""
    log, end = superseded_log(make_log)
    clean(log, kernel, partition=load(log, now_ms=FIRST_PASS_MS, high_watermark=end))
    kept = [batch for batch in batches_of(log.directory) if batch.header.last_offset < end]
    assert [(b.header.base_offset, b.header.last_offset, b.header.record_count) for b in kept] == [
        (end - 1, end - 1, 0)
    ]
    assert len(kept[0].data) == 61


def test_clean_segments_not_retaining_last_empty_batch(make_log: LogMaker, kernel: Kernel) -> None:
    """The high watermark is further on: nothing of the superseded segments is needed."""
    log, end = superseded_log(make_log)
    clean(log, kernel, partition=load(log, now_ms=FIRST_PASS_MS, high_watermark=end + 1))
    assert [last for last in batch_ends(log.directory) if last < end] == []


def test_clean_segments_not_retaining_last_empty_batch_leaves_an_empty_segment(
    make_log: LogMaker, kernel: Kernel
) -> None:
    """A group that keeps nothing is a segment of 0 bytes with empty indexes; it merges into the next one later."""
    log, end = superseded_log(make_log)
    # Groups of one segment each.
    partition = load(log, now_ms=FIRST_PASS_MS, high_watermark=end + 1)
    partition.config = type(log.config)(cleanup_policy=log.config.cleanup_policy, segment_bytes=1)
    clean(log, kernel, partition=partition)
    assert segment_bases(log.directory) == [0, 10, 20, 30, 60]
    for base in (0, 10, 20):
        for path in LogSegment(log.directory, base, 0, 0).existing_files():
            assert path.stat().st_size == 0
    clean(log, kernel)
    assert segment_bases(log.directory) == [0, 60]
    assert keys_in(log.directory) == list(range(30))


def test_clean_tombstone(make_log: LogMaker, kernel: Kernel) -> None:
    """A horizon counts from the clean, not from the record's time."""
    log = make_log(delete_retention_ms=86_400_000)
    far = 86_400_000 + 10_000
    log.append((0, 0, NOW_MS + far))
    log.roll()
    clean(log, kernel, now_ms=NOW_MS)
    log.append((0, None, NOW_MS - far))
    log.roll()
    clean(log, kernel, first=1, now_ms=NOW_MS)
    assert batch_ends(log.directory)[0] == 1, "the tombstone should be retained"
    log.append((1, 1, NOW_MS))
    log.roll()
    clean(log, kernel, first=2, now_ms=NOW_MS)
    assert batch_ends(log.directory) == [1, 2], "the tombstone should be retained"
    tombstone = next(batches_of(log.directory))
    assert tombstone.header.delete_horizon_ms == NOW_MS + 86_400_000
    assert tombstone.records()[0].timestamp == NOW_MS - far


def test_cleaning_beyond_missing_offsets_single_segment(make_log: LogMaker, kernel: Kernel) -> None:
    """A roll left offsets 9 and 10 out: the next dirty offset lies behind the gap."""
    log = make_log(segment_bytes=1 << 20)
    append_keys(log, *range(9))
    log.roll(11)
    log.append((1015, 1015), offset=11)
    assert clean(log, kernel).next_dirty == log.active_base == 11


def test_cleaning_beyond_missing_offsets_multiple_segments(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=1 << 20)
    append_keys(log, *range(10))
    log.roll(15)
    append_keys(log, *range(15, 25))
    log.roll(30)
    log.append((1015, 1015), offset=30)
    assert clean(log, kernel).next_dirty == log.active_base == 30
