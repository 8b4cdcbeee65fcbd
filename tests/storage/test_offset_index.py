"""The offset index, and the rule by which appends, recovery and cleaning index (OffsetIndexTest, LogSegmentTest)."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import CorruptFileError, StorageIOError
from compactd.storage.offset_index import OffsetIndex, OffsetIndexBuilder

BASE = 100
#: (relative offset, position), both increasing from entry to entry.
entries = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=20).map(
    lambda steps: [(sum(a for a, _ in steps[: i + 1]), sum(b for _, b in steps[: i + 1])) for i in range(len(steps))]
)


def packed(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">ii", *pair) for pair in pairs)


def index_of(data: bytes, base: int = BASE) -> OffsetIndex:
    return OffsetIndex("x.index", base, data)


def built(interval: int, batches: list[tuple[int, int, int]], base: int = 0) -> OffsetIndexBuilder:
    """From (last offset, max timestamp, size) of each batch."""
    builder, position = OffsetIndexBuilder(base, interval), 0
    for last_offset, timestamp, size in batches:
        builder.append(last_offset, timestamp, position, size)
        position += size
    builder.close()
    return builder


def test_golden(tmp_path: Path) -> None:
    """What Kafka wrote at interval 100 for five batches (facts 5.8)."""
    builder = built(100, [(2, 150, 90), (4, 400, 74), (6, 501, 79), (7, 600, 61), (8, 700, 70)])
    assert builder.offset_index_bytes().hex(" ", 4) == "00000006 000000a4 00000008 00000130"
    assert builder.time_index_bytes().hex(" ", 4) == "00000000 000001f5 00000006 00000000 000002bc 00000008"
    assert builder.offset_index().entries == [(6, 164), (8, 304)]
    assert builder.time_index().entries == [(501, 6), (700, 8)]
    assert (builder.max_timestamp, builder.offset_of_max_timestamp) == (700, 8)
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(builder.offset_index_bytes())
    assert OffsetIndex.read(path, 0).entries == [(6, 164), (8, 304)]


def test_index_for_multiple_batches() -> None:
    """LogSegmentTest.testIndexForMultipleBatchesInMemoryRecords: interval 1, batches at offsets 0, 1 and 2."""
    builder = built(1, [(0, 0, 70), (1, 1, 70), (2, 2, 70)])
    assert [offset for offset, _ in builder.offset_index().entries] == [1, 2]
    assert builder.time_index().entries == [(1, 1), (2, 2)]


def test_non_monotonic_timestamps() -> None:
    """LogSegmentTest.testNonMonotonicTimestampForMultipleBatchesInMemoryRecords: timestamps 1, 0, 2."""
    builder = built(1, [(0, 1, 70), (1, 0, 70), (2, 2, 70)])
    assert [offset for offset, _ in builder.offset_index().entries] == [1, 2]
    assert builder.time_index().entries == [(1, 0), (2, 2)]


def test_interval_0_indexes_all_but_the_first() -> None:
    assert built(0, [(0, 5, 10), (1, 5, 10), (2, 5, 10)]).offset_index().entries == [(1, 10), (2, 20)]


def test_interval_is_exceeded_not_reached() -> None:
    batches = [(0, 1, 100), (1, 2, 100)]
    assert built(100, batches).offset_index().entries == []
    assert built(99, batches).offset_index().entries == [(1, 100)]


def test_without_timestamps_the_time_index_stays_empty() -> None:
    builder = built(0, [(0, -1, 10), (1, -1, 10)])
    assert builder.max_timestamp == -1
    assert builder.time_index_bytes() == b""
    assert len(builder.offset_index()) == 1


def test_the_largest_timestamp_belongs_to_the_batch_that_reached_it_first() -> None:
    builder = built(0, [(3, 7, 10), (5, 7, 10), (6, 7, 10)])
    assert builder.time_index().entries == [(7, 3)]
    assert (builder.max_timestamp, builder.offset_of_max_timestamp) == (7, 3)


def test_closing_twice_adds_once() -> None:
    builder = built(1000, [(5, 42, 10)])
    builder.close()
    assert builder.time_index().entries == [(42, 5)]


def test_builder_refuses_what_does_not_fit() -> None:
    builder = OffsetIndexBuilder(BASE, 0)
    builder.append(BASE, 1, 0, 10)
    with pytest.raises(ValueError, match="does not fit"):
        builder.append(BASE + 2**31, 1, 10, 10)
    with pytest.raises(ValueError, match="does not fit"):
        builder.append(BASE - 1, 1, 10, 10)
    builder.append(BASE + 2**31 - 1, 1, 10, 10)
    assert builder.offset_index().entries == [(BASE + 2**31 - 1, 10)]
    with pytest.raises(ValueError, match="not above"):
        builder.append(BASE + 2**31 - 1, 1, 20, 10)


def test_full_at_the_size_the_settings_give() -> None:
    """Full: as many offset entries as fit, or one time entry less than fit."""
    builder = OffsetIndexBuilder(0, 0, most_index_bytes=23)
    builder.append(0, -1, 0, 10)
    assert builder.is_full  # room for one time entry, and that is the closing one's
    builder = OffsetIndexBuilder(0, 0, most_index_bytes=24)
    for offset in range(4):
        assert not builder.is_full
        builder.append(offset, -1, offset * 10, 10)
    assert builder.is_full
    with pytest.raises(ValueError, match="holds its 3 entries already"):
        builder.append(4, -1, 40, 10)


def test_lookup_is_the_floor() -> None:
    index = index_of(packed([(5, 50), (9, 90)]))
    assert index.lookup(0) == (BASE, 0)
    assert index.lookup(BASE + 4) == (BASE, 0)
    assert index.lookup(BASE + 5) == (BASE + 5, 50)
    assert index.lookup(BASE + 8) == (BASE + 5, 50)
    assert index.lookup(2**63 - 1) == (BASE + 9, 90)


def test_empty() -> None:
    index = OffsetIndex.empty(BASE)
    assert (len(index), index.used_bytes, index.last_entry) == (0, 0, (BASE, 0))
    assert index.lookup(BASE + 7) == (BASE, 0)
    assert list(index.check(0)) == []


@given(entries, st.integers(0, 200))
def test_entries_of_a_preallocated_file_end_at_its_zeros(pairs: list[tuple[int, int]], zeros: int) -> None:
    index = index_of(packed(pairs) + bytes(8 * zeros))
    for left_out in (8 * zeros, 8 * zeros + 3):  # a sparse file may end its data in the middle of an entry's zeros
        data = packed(pairs) + bytes(8 * zeros)
        cut = data[: max(len(data) - left_out, len(data.rstrip(b"\0")))]
        assert OffsetIndex("", BASE, cut, len(data)).entries == index.entries
    assert index.entries == [(BASE + offset, position) for offset, position in pairs]
    assert index.used_bytes == 8 * len(pairs)
    assert index.file_bytes == 8 * (len(pairs) + zeros)
    assert list(index.check(2**31)) == []
    assert index.last_entry == (index.entries[-1] if pairs else (BASE, 0))
    for wanted in range(BASE - 1, BASE + 60):
        below = [entry for entry in index.entries if entry[0] <= wanted]
        assert index.lookup(wanted) == (below[-1] if below else (BASE, 0))


def test_a_last_entry_that_ends_in_zero_bytes_is_whole() -> None:
    index = index_of(packed([(1, 256), (2, 1 << 24)]) + bytes(80))
    assert index.entries == [(BASE + 1, 256), (BASE + 2, 1 << 24)]
    assert list(index.check()) == []


@pytest.mark.parametrize(
    ("data", "kept", "reason"),
    [
        (packed([(1, 10), (1, 20), (3, 30)]), 1, "entry 1 does not increase at byte 8"),
        (packed([(1, 10), (2, 20), (0, 0), (3, 30)]), 2, "entry 2 does not increase at byte 16"),
        (packed([(1, 10), (2, 10)]), 2, "entry 1 goes back to log position 10"),
        (packed([(1, 10), (2, 99)]), 2, "entry 1 has position 99 outside the log"),
        (packed([(1, -10)]), 1, "entry 0 has position -10 outside the log"),
        (packed([(-1, 10)]), 1, "entry 0 lies below the base offset"),
        (packed([(1, 10)]) + b"\0\0\0", 1, "the length 11 is no multiple of 8"),
        (packed([(1, 10)]) + b"\0\0\7", 1, "the length 11 is no multiple of 8"),
        (b"\1", 0, "the length 1 is no multiple of 8"),
    ],
)
def test_damage_is_told_and_left_out(data: bytes, kept: int, reason: str) -> None:
    index = index_of(data)
    assert len(index) == kept
    faults = [str(fault) for fault in index.check(99)]
    assert len(faults) == 1
    assert reason in faults[0]
    assert "x.index" in faults[0]


@given(st.binary(max_size=100))
def test_any_bytes_give_increasing_entries_or_faults(data: bytes) -> None:
    index = index_of(data)
    offsets = [offset for offset, _ in index.entries]
    assert offsets == sorted(set(offsets))
    assert index.used_bytes <= len(data)
    if packed([(offset - BASE, position) for offset, position in index.entries]) != data.rstrip(b"\0"):
        rest = data[index.used_bytes :]
        assert list(index.check()) or not rest.strip(b"\0")


def test_reading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    with pytest.raises(StorageIOError, match="ENOENT"):
        OffsetIndex.read(path, BASE)
    with open(path, "wb") as file:
        file.write(packed([(1, 10)]))
        file.truncate(10 << 20)
    tracemalloc.start()
    index = OffsetIndex.read(path, BASE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.entries == [(BASE + 1, 10)]
    assert index.file_bytes == 10 << 20
    assert peak < 1 << 20
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptFileError, match="more than 2147483647"):
        OffsetIndex.read(path, BASE)
