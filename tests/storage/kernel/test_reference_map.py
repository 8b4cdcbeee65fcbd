"""Pass one (facts 5.2, 5.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import SettingError
from compactd.storage.kernel.interface import AbortedTransaction, SourceSegment
from compactd.storage.kernel.reference.offset_map import OffsetMap
from compactd.storage.records.builder import control_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from tests.storage.kernel.reference_support import begin, plain, segment


@pytest.mark.parametrize(
    ("memory", "load", "kafka", "slots", "capacity"),
    [
        (134217728, 0.9, True, 5592405, 5033164),
        (134217728, 0.9, False, 8388608, 7549747),
        (95, 0.75, True, 3, 2),
        (96, 0.75, True, 4, 3),
        (96, 0.75, False, 6, 4),
        (24, 1.0, True, 1, 1),
    ],
)
def test_capacity(memory: int, load: float, kafka: bool, slots: int, capacity: int) -> None:
    made = OffsetMap(memory, load, kafka)
    assert (made.slots, made.capacity) == (slots, capacity)


@pytest.mark.parametrize(("memory", "load"), [(23, 1.0), (24, 0.9), (0, 0.9)])
def test_a_map_without_room_for_a_key_is_refused(memory: int, load: float) -> None:
    with pytest.raises(SettingError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        begin(map_memory_bytes=memory, map_load_factor=load, kafka_map=True)


def test_put_get_clear() -> None:
    made = OffsetMap(24 * 4, 0.75, True)
    made.put(b"a", 5)
    made.put(b"b", 6)
    made.put(b"a", 7)
    assert (made.get(b"a"), made.get(b"b"), made.get(b"c"), len(made)) == (7, 6, -1, 2)
    assert made.latest_offset == 7
    assert not made.is_full
    made.put(b"c", 8)
    assert made.is_full
    made.clear()
    assert (made.get(b"a"), len(made), made.latest_offset) == (-1, 0, -1)


def rows(*offsets: int) -> list[bytes]:
    """Single-record batches, key = offset."""
    return [plain(n, (b"%d" % n, b"v")) for n in offsets]


def three_slots(source: SourceSegment, first: int) -> tuple[int, int, int, bool]:
    """A map for two keys: (latest offset, entries, messages read, full)."""
    result = begin(map_memory_bytes=72, map_load_factor=0.9, kafka_map=True, first_dirty_offset=first).build_map(
        [source], []
    )
    return result.latest_offset, result.entries, result.messages_read, result.full


def test_build_offset_map(tmp_path: Path) -> None:
    """LogCleanerTest.testBuildOffsetMap: keys of the dirty range are there, their neighbours are not."""
    source = segment(tmp_path, *rows(*range(500)))
    done = begin(first_dirty_offset=200)
    result = done.build_map([source], [])
    assert (result.latest_offset, result.entries, result.messages_read, result.full) == (499, 300, 500, False)
    assert result.bytes_read == source.size
    assert not done.contains(b"199")
    assert all(done.contains(b"%d" % n) for n in range(200, 500))
    done.close()
    assert not done.contains(b"200")


def test_build_partial_offset_map(tmp_path: Path) -> None:
    """LogCleanerTest.testBuildPartialOffsetMap: two keys fit; the record that met the limit is not counted."""
    assert three_slots(segment(tmp_path, *rows(*range(8))), 2) == (3, 2, 4, True)


def test_a_key_that_is_in_the_full_map_stops_the_round_too(tmp_path: Path) -> None:
    source = segment(tmp_path, plain(0, (b"a", b""), (b"b", b""), (b"a", b"")))
    assert three_slots(source, 0) == (1, 2, 2, True)


def test_a_full_map_stops_within_a_batch_after_unkeyed_records(tmp_path: Path) -> None:
    source = segment(tmp_path, plain(0, (b"a", b""), (b"b", b""), (None, b""), (b"c", b"")))
    assert three_slots(source, 0) == (1, 2, 3, True)


def test_a_full_map_after_a_whole_batch_has_passed_it(tmp_path: Path) -> None:
    source = segment(tmp_path, plain(0, (b"a", b""), (b"b", b"")), plain(2, (None, b"")), *rows(3))
    assert three_slots(source, 0) == (2, 2, 3, True)


def test_gaps_between_segments_are_passed_over(tmp_path: Path) -> None:
    """LogCleanerTest.testCleaningBeyondMissingOffsets…"""
    sources = [segment(tmp_path, *rows(0, 1), next_offset=10), segment(tmp_path, *rows(10), next_offset=50)]
    assert begin().build_map(sources, []).latest_offset == 49


def test_offsets_far_apart(tmp_path: Path) -> None:
    """LogCleanerTest.testBuildOffsetMapFakeLarge"""
    done = begin()
    assert done.build_map([segment(tmp_path, *rows(0, 7206178))], []).latest_offset == 7206178
    assert done.contains(b"0")
    assert done.contains(b"7206178")


def test_no_segments() -> None:
    result = begin().build_map([], [])
    assert (result.latest_offset, result.entries, result.bytes_read, result.full) == (-1, 0, 0, False)


def test_the_map_starts_empty_each_time(tmp_path: Path) -> None:
    done = begin()
    done.build_map([segment(tmp_path, *rows(1))], [])
    assert done.build_map([], []).entries == 0
    assert not done.contains(b"1")


def test_reading_starts_at_the_position_from_the_index(tmp_path: Path) -> None:
    first, second = rows(0, 1)
    source = segment(tmp_path, first, second, start_position=len(first))
    done = begin(first_dirty_offset=1)
    assert done.build_map([source], []).bytes_read == len(second)
    assert not done.contains(b"0")
    assert done.contains(b"1")


def test_aborted_records_and_markers_do_not_enter(tmp_path: Path) -> None:
    aborted = plain(0, (b"gone", b"1"), (b"gone too", b"2"), transactional=True, producer_id=7, producer_epoch=0)
    committed = plain(2, (b"here", b"3"), transactional=True, producer_id=8, producer_epoch=0)
    source = segment(
        tmp_path,
        aborted,
        committed,
        control_batch("abort", 3, 0, 7, 0),
        control_batch("commit", 4, 0, 8, 0),
        plain(5, (b"later", b"4"), transactional=True, producer_id=7, producer_epoch=0),
    )
    done = begin()
    result = done.build_map([source], [AbortedTransaction(7, 0, 3, 4)])
    assert [done.contains(k) for k in (b"gone", b"gone too", b"here", b"later")] == [False, False, True, True]
    assert (result.entries, result.messages_read, result.latest_offset) == (2, 6, 5)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_message_sets(tmp_path: Path, magic: int, codec: int) -> None:
    made = [Record(20 + n, 5, b"%d" % n, b"v") for n in range(4)]
    done = begin(first_dirty_offset=22)
    assert done.build_map([segment(tmp_path, build_message_set(made, magic, codec), base=20)], []).entries == 2
    assert not done.contains(b"1")
    assert done.contains(b"2")
