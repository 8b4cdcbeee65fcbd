"""Kafka's LogCleanerTest: which segments become one (facts 12.1, 5.5), by Kafka's test names."""

from __future__ import annotations

from itertools import pairwise

from compactd.storage.cleaning.grouping import group_segments
from compactd.storage.kernel.interface import Kernel
from compactd.storage.partition import Partition
from compactd.storage.segment import MAX_RELATIVE_OFFSET, LogSegment
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import segment_bases, size_of
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import ShortLog

UNLIMITED = 2**31 - 1


def say_hello(log: ShortLog, offset: int | None = None) -> None:
    log.append((b"hello", b"hello"), offset=offset)


def grouped(
    partition: Partition, size: int = UNLIMITED, index_size: int = UNLIMITED, bound: int | None = None
) -> list[list[LogSegment]]:
    end = partition.log_end_offset if bound is None else bound
    groups = group_segments([s for s in partition.segments if s.base_offset < end], size, index_size, end)
    bases = [segment.base_offset for group in groups for segment in group]
    assert bases == sorted(set(bases)), "segments in order, each once"
    return groups


def test_segment_grouping(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=300, index_interval_bytes=1)
    while log.segment_count < 10:
        say_hello(log)
    partition = load(log)
    count = len(partition.segments)

    assert [len(group) for group in grouped(partition)] == [count]
    assert [len(group) for group in grouped(partition, size=1)] == [1] * count
    assert [len(group) for group in grouped(partition, index_size=1)] == [1] * count

    size = sum(segment.size for segment in partition.segments[:3]) + 1
    assert {len(group) for group in grouped(partition, size=size)[:-1]} == {3}
    index_size = sum(segment.offset_index.used_bytes for segment in partition.segments[:3]) + 1
    assert partition.segments[0].offset_index.used_bytes > partition.segments[0].time_index.used_bytes
    assert {len(group) for group in grouped(partition, index_size=index_size)[:-1]} == {3}


def test_segment_grouping_by_time_index_size(make_log: LogMaker) -> None:
    """The time index counts for itself: with a new timestamp in every batch it is the larger one."""
    log = make_log(segment_bytes=300, index_interval_bytes=1)
    while log.segment_count < 10:
        log.now_ms += 1
        say_hello(log)
    partition = load(log)
    assert partition.segments[0].time_index.used_bytes > partition.segments[0].offset_index.used_bytes
    index_size = sum(segment.time_index.used_bytes for segment in partition.segments[:3]) + 1
    assert {len(group) for group in grouped(partition, index_size=index_size)[:-1]} == {3}


def test_segment_grouping_with_sparse_offsets_and_empty_segments(make_log: LogMaker, kernel: Kernel) -> None:
    """Each segment spans 2^31 offsets. Those that a clean leaves empty group all the same."""
    log = make_log(segment_bytes=1 << 20)
    for number in range(3):
        say_hello(log)
        say_hello(log, offset=(number + 1) * 2**31 - 1)
        assert log.segment_count == number + 1
    say_hello(log)
    assert log.segment_count == 4
    bound = log.end_offset - 1
    assert [len(group) for group in grouped(load(log), bound=bound)] == [1, 1, 1]

    clean(log, kernel, uncleanable=bound)
    partition = load(log)
    assert [segment.size for segment in partition.segments][:2] == [0, 0]
    assert len(partition.segments) == 4
    assert [len(group) for group in grouped(partition, bound=bound)] == [2, 1]

    clean(log, kernel, uncleanable=bound)
    assert segment_bases(log.directory) == [0, 2 * 2**31, 3 * 2**31]
    log.close()
    assert size_of(log.directory) == 2 * partition.active_segment.size


def test_segment_grouping_with_sparse_offsets(make_log: LogMaker) -> None:
    log = make_log(segment_bytes=400, index_interval_bytes=1)
    while log.segment_count == 1:
        say_hello(log)
    say_hello(log, offset=2**31 - 2)
    say_hello(log)
    partition = load(log)
    assert partition.log_end_offset - 1 == MAX_RELATIVE_OFFSET
    assert [len(group) for group in grouped(partition)] == [2], "offsets 0 to 2^31 - 1 are one segment's"

    say_hello(log)
    assert [len(group) for group in grouped(load(log))] == [1, 1], "one more is too far from the first"

    while log.segment_count < 4:
        say_hello(log)
    partition = load(log)
    groups = grouped(partition)
    assert len(groups) == len(partition.segments) - 1, "further grouping still occurs"
    for group in groups:
        assert group[-1].offset_index.last_entry[0] - group[0].base_offset <= MAX_RELATIVE_OFFSET


def test_segment_grouping_following_load_of_zero_index(make_log: LogMaker) -> None:
    """The range is told by the next base, not by the last entry of an index that has none."""
    log = make_log(segment_bytes=400, index_interval_bytes=400)
    say_hello(log, offset=0)
    say_hello(log, offset=1)
    log.roll(2**30 - 1)
    say_hello(log, offset=2**30 - 1)
    say_hello(log, offset=2**31)
    partition = load(log)
    assert [len(segment.offset_index) for segment in partition.segments] == [0, 0]
    groups = grouped(partition)
    assert [len(group) for group in groups] == [1, 1]
    for group in groups:
        assert group[-1].next_offset() - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET


def test_the_first_segment_of_a_group_is_taken_whatever_its_size(make_log: LogMaker) -> None:
    """Sizes are those before cleaning, and a limit may be passed by one segment but not by two."""
    log = make_log(segment_bytes=300)
    while log.segment_count < 6:
        say_hello(log)
    partition = load(log)
    sizes = [segment.size for segment in partition.segments]
    for size in range(1, sum(sizes) + 2, 17):
        groups = grouped(partition, size=size)
        for group in groups:
            assert len(group) == 1 or sum(segment.size for segment in group) <= size
        for group, following in pairwise(groups):
            assert sum(segment.size for segment in group) + following[0].size > size, "greedy"
