"""The time index (TimeIndexTest; facts 2.6)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import StorageIOError
from compactd.storage.time_index import TimeIndex, TimeIndexBuilder

BASE = 100
entries = st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 1000)), max_size=20).map(
    lambda steps: [(sum(a for a, _ in steps[: i + 1]), sum(b for _, b in steps[: i + 1])) for i in range(len(steps))]
)


def packed(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qi", *pair) for pair in pairs)


def index_of(data: bytes) -> TimeIndex:
    return TimeIndex("x.timeindex", BASE, data)


def test_golden(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.timeindex"
    path.write_bytes(bytes.fromhex("00000000000001f500000006 00000000000002bc00000008"))
    index = TimeIndex.read(path, 0)
    assert index.entries == [(501, 6), (700, 8)]
    assert index.last_entry == (700, 8)
    assert index.used_bytes == 24
    assert list(index.check()) == []
    with pytest.raises(StorageIOError, match="ENOENT"):
        TimeIndex.read(tmp_path / "absent", 0)


def test_empty() -> None:
    index = TimeIndex.empty(BASE)
    assert (len(index), index.used_bytes, index.last_entry, index.entries) == (0, 0, (-1, BASE), [])
    assert index.lookup(10**15) == (-1, BASE)
    assert list(index.check()) == []


def test_lookup_is_the_floor() -> None:
    index = index_of(packed([(50, 5), (90, 9)]))
    assert index.lookup(49) == (-1, BASE)
    assert index.lookup(50) == (50, BASE + 5)
    assert index.lookup(89) == (50, BASE + 5)
    assert index.lookup(10**15) == (90, BASE + 9)


@given(entries, st.integers(2, 100))
def test_entries_of_a_preallocated_file_end_at_its_zeros(pairs: list[tuple[int, int]], zeros: int) -> None:
    index = index_of(packed(pairs) + bytes(12 * zeros))
    data = packed(pairs) + bytes(12 * zeros)
    assert TimeIndex("", BASE, data.rstrip(b"\0"), len(data)).entries == index.entries
    assert index.entries == [(time, BASE + offset) for time, offset in pairs]
    assert index.used_bytes == 12 * len(pairs)
    assert index.file_bytes == 12 * (len(pairs) + zeros)
    assert list(index.check()) == []


def test_timestamp_0_at_the_base_offset() -> None:
    """The one entry that looks like preallocated room: it counts where the file ends with it, or another follows."""
    assert index_of(packed([(0, 0)])).entries == [(0, BASE)]
    assert index_of(packed([(0, 0), (7, 1)])).entries == [(0, BASE), (7, BASE + 1)]
    assert index_of(packed([(0, 0), (7, 1)]) + bytes(120)).entries == [(0, BASE), (7, BASE + 1)]
    assert index_of(bytes(24)).entries == []
    assert TimeIndex("", BASE, b"", 12).entries == [(0, BASE)]
    assert TimeIndex("", BASE, b"", 24).entries == []


@pytest.mark.parametrize(
    ("data", "kept", "reason"),
    [
        (packed([(5, 1), (5, 2)]), 1, "entry 1 does not increase at byte 12"),
        (packed([(5, 2), (6, 1), (7, 3)]), 1, "entry 1 does not increase at byte 12"),
        (packed([(5, 2), (0, 0), (7, 3)]), 1, "entry 1 does not increase at byte 12"),
        (packed([(-5, 1), (6, 2)]), 2, "entry 0 has timestamp -5"),
        (packed([(5, -1), (6, 2)]), 2, "entry 0 lies below the base offset"),
        (packed([(5, 1)]) + b"\0", 1, "the length 13 is no multiple of 12"),
    ],
)
def test_damage_is_told_and_left_out(data: bytes, kept: int, reason: str) -> None:
    index = index_of(data)
    assert len(index) == kept
    faults = [str(fault) for fault in index.check()]
    assert len(faults) == 1
    assert reason in faults[0]
    assert "x.timeindex" in faults[0]


@given(st.binary(max_size=100))
def test_any_bytes_give_increasing_entries(data: bytes) -> None:
    index = index_of(data)
    times = [time for time, _ in index.entries]
    assert times == sorted(set(times))
    assert index.used_bytes <= len(data)
    assert data[index.used_bytes :].strip(b"\0") == b"" or list(index.check())


def test_builder_appends_only_what_rises() -> None:
    builder = TimeIndexBuilder(BASE)
    builder.maybe_append(-1, BASE)
    assert bytes(builder) == b""
    builder.maybe_append(0, BASE)
    builder.maybe_append(0, BASE + 3)
    builder.maybe_append(9, BASE + 4)
    assert index_of(bytes(builder)).entries == [(0, BASE), (9, BASE + 4)]


def test_builder_refuses_what_kafka_refuses() -> None:
    builder = TimeIndexBuilder(BASE)
    builder.maybe_append(9, BASE + 4)
    with pytest.raises(ValueError, match="below the last entry's 104"):
        builder.maybe_append(10, BASE + 3)
    with pytest.raises(ValueError, match="below the last entry's 9"):
        builder.maybe_append(8, BASE + 5)
    for offset in (BASE - 1, BASE + 2**31):
        with pytest.raises(ValueError, match="does not fit"):
            builder.maybe_append(10, offset)


def test_builder_keeps_the_last_place_for_the_closing_entry() -> None:
    builder = TimeIndexBuilder(BASE, most_bytes=35)
    assert not builder.is_full
    builder.maybe_append(1, BASE)
    assert builder.is_full
    with pytest.raises(ValueError, match="holds its 1 entries already"):
        builder.maybe_append(2, BASE + 1)
    builder.maybe_append(2, BASE + 1, closing=True)
    assert len(builder) == 2
