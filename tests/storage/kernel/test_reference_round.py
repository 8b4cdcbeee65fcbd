"""Both passes together: groups, indexes, what is written and what is not, damage, progress (facts 5.2 to 5.11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.config.errors import CompactdError, CorruptBatchError, FaultError, OffsetOverflowError, StorageIOError
from compactd.storage.kernel import reference_kernel
from compactd.storage.kernel.interface import SourceSegment
from compactd.storage.kernel.reference import round as round_module
from compactd.storage.kernel.reference.index_builder import SegmentIndexBuilder
from compactd.storage.records.batch import Record, iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.codecs import Codec
from tests.storage.kernel.reference_support import Sink, begin, clean, contents, offsets, plain, segment


def test_it_is_the_reference_kernel() -> None:
    assert reference_kernel().name == "reference"


class TestIndexes:
    def test_golden(self) -> None:
        """Facts 5.8: interval 100, batches of 90, 74, 79, 61 and 70 bytes."""
        (batch,) = iter_batches(plain(0, (b"k", b"v")))
        index = SegmentIndexBuilder(0, 100)
        position = 0
        rows = [(90, 2, 150), (74, 4, 400), (79, 6, 501), (61, 7, 600), (70, 8, 700)]
        for size, last, timestamp in rows:
            header = replace(batch.header, size=size, last_offset=last, max_timestamp=timestamp)
            index.append(header, position, "x", 0)
            position += size
        assert [data.hex() for data in index.finish("x", 0)] == [
            "00000006000000a40000000800000130",
            "00000000000001f500000006" + "00000000000002bc00000008",
        ]

    @pytest.mark.parametrize(("interval", "entries"), [(0, 3), (1, 3), (70, 1), (10000, 0)])
    def test_intervals(self, tmp_path: Path, interval: int, entries: int) -> None:
        source = segment(tmp_path, *[plain(n, (b"%d" % n, b"v"), ts=100 - n) for n in range(4)])
        result, data = clean([source], index_interval_bytes=interval)
        assert len(data) == 4 * 70
        assert len(result.offset_index) == 8 * entries
        assert result.time_index.hex() == "0000000000000064" + "00000000", "timestamps fall: only the closing entry"

    def test_a_log_without_timestamps_has_no_time_index(self, tmp_path: Path) -> None:
        source = segment(tmp_path, *[plain(n, (b"%d" % n, b"v"), ts=-1) for n in range(4)])
        result, _ = clean([source], index_interval_bytes=0)
        assert (len(result.offset_index), result.time_index) == (24, b"")

    def test_the_counter_runs_across_the_sources_of_a_group(self, tmp_path: Path) -> None:
        sources = [segment(tmp_path, plain(n, (b"%d" % n, b"v"))) for n in range(4)]
        result, _ = clean(sources, index_interval_bytes=100)
        assert result.offset_index.hex() == "00000002" + f"{140:08x}"


class TestGroups:
    def test_one_segment_out_of_several(self, tmp_path: Path) -> None:
        sources = [segment(tmp_path, plain(n, (b"a", b"%d" % n), (b"k%d" % n, b""))) for n in (0, 2, 4)]
        result, data = clean(sources)
        assert offsets(data) == [1, 3, 4, 5]
        assert not result.unchanged

    def test_several_segments_are_never_unchanged(self, tmp_path: Path) -> None:
        sources = [segment(tmp_path, plain(n, (b"%d" % n, b""))) for n in (0, 1)]
        result, data = clean(sources)
        assert not result.unchanged
        assert data == b"".join(Path(s.path).read_bytes() for s in sources)

    def test_nothing_left(self, tmp_path: Path) -> None:
        result, data = clean([segment(tmp_path, plain(0, (None, b"1")))])
        assert (data, result.log_size, result.offset_index, result.time_index) == (b"", 0, b"", b"")
        assert not result.unchanged

    def test_empty_segments(self, tmp_path: Path) -> None:
        empty = segment(tmp_path, base=3)
        assert clean([empty])[0].unchanged
        result, _ = clean([empty, segment(tmp_path, base=5)])
        assert (result.unchanged, result.log_size) == (False, 0)

    def test_unchanged_writes_nothing_and_reports_everything(self, tmp_path: Path) -> None:
        source = segment(tmp_path, *[plain(n, (b"%d" % n, b"v")) for n in range(3)])
        result, _ = clean([source], index_interval_bytes=0)
        assert result.unchanged
        assert (result.log_size, len(result.offset_index), len(result.time_index)) == (source.size, 16, 12)
        assert (result.stats.batches_copied, result.stats.messages_written) == (3, 3)

    def test_the_unchanged_start_is_copied_when_a_later_batch_changes(self, tmp_path: Path) -> None:
        first = [plain(n, (b"%d" % n, bytes(900_000))) for n in range(3)]
        source = segment(tmp_path, *first, plain(3, (b"a", b""), (b"b", b"")), plain(5, (b"a", b"")))
        result, data = clean([source])
        assert not result.unchanged
        assert data[: sum(map(len, first))] == b"".join(first)
        assert offsets(data) == [0, 1, 2, 4, 5]

    def test_counting_without_an_output(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1")), plain(1, (b"a", b"2")), plain(2, (b"b", b"3")))
        written, data = clean([source])
        done = begin()
        done.build_map([source], [])
        assert done.clean_group([source], {}, None) == written
        assert written.log_size == len(data) == 140


class TestLimits:
    def test_offset_overflow(self, tmp_path: Path) -> None:
        far = 1 << 31
        first = segment(tmp_path, plain(0, (b"a", b"")))
        at_the_limit = segment(tmp_path, plain(far - 1, (b"b", b"")))
        assert offsets(clean([first, at_the_limit])[1]) == [0, far - 1]
        too_far = segment(tmp_path, plain(far, (b"b", b"")))
        with pytest.raises(OffsetOverflowError) as caught:
            clean([first, too_far])
        error = caught.value
        assert (error.path, error.offset, error.base_offset, error.source) == (too_far.path, far, 0, 1)

    def test_a_rewritten_batch_counts_up_to_its_last_record(self, tmp_path: Path) -> None:
        """As in Kafka: the range check of a rewritten batch takes its last retained record, not its last offset."""
        far = (1 << 31) - 2
        made = [Record(far, 0, b"a", b""), Record(far + 1, 0, b"b", b""), Record(far + 2, 0, b"c", b"")]
        first = segment(tmp_path, plain(0, (b"x", b"")))
        last = segment(tmp_path, build_batch(made, base_offset=far), plain(far + 3, (b"y", b"")))
        done = begin()
        newer = segment(tmp_path, plain(far + 4, (b"c", b"")), plain(far + 5, (b"y", b"")), next_offset=far + 6)
        done.build_map([first, last, newer], [])
        assert done.clean_group([first, last], {}, None).stats.messages_written == 3

    def test_index_entries_have_to_fit_as_well(self, tmp_path: Path) -> None:
        far = (1 << 31) - 2
        made = [Record(far, 0, b"a", b""), Record(far + 2, 0, b"c", b"")]
        first = segment(tmp_path, plain(0, (b"x", b"")))
        last = segment(tmp_path, build_batch(made, base_offset=far))
        done = begin(index_interval_bytes=0)
        done.build_map([first, last, segment(tmp_path, plain(far + 3, (b"c", b"")))], [])
        with pytest.raises(OffsetOverflowError):
            done.clean_group([first, last], {}, None)

    def test_a_cleaned_segment_that_grows_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(round_module, "MAX_SEGMENT_BYTES", 139)
        sources = [segment(tmp_path, plain(n, (b"%d" % n, b"v"))) for n in (0, 1)]
        with pytest.raises(FaultError, match="would pass 139 bytes"):
            clean(sources)


def both_passes(source: SourceSegment) -> list[Callable[[], object]]:
    return [
        lambda: begin().build_map([source], []),
        lambda: begin().clean_group([source], {}, Sink()),
        lambda: begin().verify([source]),
    ]


class TestDamage:
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
    def test_any_flipped_byte_is_found_in_both_passes(self, tmp_path: Path, codec: Codec) -> None:
        """Offset and length too, which no CRC covers. Only the leader epoch (bytes 12 to 15) cannot be checked."""
        first = plain(0, (b"a", b"1"), (b"b", None), codec=codec)
        second = plain(2, (b"c", b"3"), codec=codec)
        source = segment(tmp_path, first, second)
        whole = first + second
        for at in range(len(whole)):
            if 12 <= at % len(first) < 16 or 12 <= at - len(first) < 16:
                continue
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            Path(source.path).write_bytes(damaged)
            for run in both_passes(source):
                with pytest.raises(CorruptBatchError) as caught:
                    run()
                assert caught.value.path == source.path
                assert caught.value.position in (0, len(first))

    def test_the_fault_is_described(self, tmp_path: Path) -> None:
        first, second = plain(0, (b"a", b"1")), plain(1, (b"b", b"2"))
        source = segment(tmp_path, first, second)
        damaged = bytearray(first + second)
        damaged[-1] ^= 1
        Path(source.path).write_bytes(damaged)
        for run in both_passes(source):
            with pytest.raises(CorruptBatchError) as caught:
                run()
            error = caught.value
            assert (error.position, error.base_offset, error.last_offset) == (len(first), 1, 1)
            assert error.expected_crc == int.from_bytes(second[17:21], "big")
            assert error.found_crc != error.expected_crc

    def test_a_file_that_became_shorter(self, tmp_path: Path) -> None:
        first, second = plain(0, (b"a", b"1")), plain(1, (b"b", b"2"))
        source = segment(tmp_path, first, second)
        for size in range(len(first), len(first + second)):
            Path(source.path).write_bytes((first + second)[:size])
            for run in both_passes(source):
                with pytest.raises(CorruptBatchError, match="truncated") as caught:
                    run()
                assert caught.value.position == len(first)

    def test_offsets_of_another_place(self, tmp_path: Path) -> None:
        low, high = plain(5, (b"a", b"1")), plain(9, (b"b", b"2"))
        for source in (
            segment(tmp_path, low, high, base=6),
            segment(tmp_path, low, high, next_offset=9),
            segment(tmp_path, high, low, base=5, next_offset=20),
            segment(tmp_path, low, low, next_offset=20),
        ):
            for run in both_passes(source):
                with pytest.raises(CorruptBatchError, match="its offsets are not between"):
                    run()

    def test_a_missing_file(self, tmp_path: Path) -> None:
        source = SourceSegment(str(tmp_path / "none.log"), 0, 70, 1)
        for run in both_passes(source):
            with pytest.raises(StorageIOError, match=r"none\.log: reading failed"):
                run()

    @settings(deadline=None, max_examples=300)
    @given(data=st.data())
    def test_rubbish_ends_in_a_named_error(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        good = plain(0, (b"a", b"1"), codec=data.draw(st.sampled_from(list(Codec))))
        noise = data.draw(st.binary(min_size=1, max_size=150))
        at = data.draw(st.integers(0, len(good)))
        path = tmp_path_factory.getbasetemp() / "rubbish.log"
        path.write_bytes(good[:at] + noise)
        source = SourceSegment(str(path), 0, at + len(noise), 1 << 62)
        for run in both_passes(source):
            with pytest.raises(CompactdError):
                run()


class TestProgress:
    def test_bytes_read_and_written(self, tmp_path: Path) -> None:
        source = segment(
            tmp_path, *[plain(n, (b"%d" % n, bytes(1 << 20))) for n in range(9)], plain(9, (b"8", b"")), base=0
        )
        calls: list[tuple[int, int]] = []
        done = begin()
        done.build_map([source], [], lambda read, written: calls.append((read, written)))
        assert len(calls) == 3
        assert [sum(column) for column in zip(*calls, strict=True)] == [source.size, 0]
        calls.clear()
        result = done.clean_group([source], {}, Sink(), lambda read, written: calls.append((read, written)))
        assert [sum(column) for column in zip(*calls, strict=True)] == [source.size, result.log_size]
        assert len(calls) == 3

    def test_it_may_stop_the_round(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1")))

        def stop(read: int, written: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            begin().build_map([source], [], stop)
        with pytest.raises(KeyboardInterrupt):
            begin().clean_group([source], {}, Sink(), stop)
        with pytest.raises(KeyboardInterrupt):
            begin().verify([source], stop)


def test_verify_accepts_what_is_whole(tmp_path: Path) -> None:
    first, second = plain(0, (b"a", b"1")), plain(1, (b"b", b"2"), codec=Codec.GZIP)
    source = segment(tmp_path, first, second, start_position=len(first))
    seen: list[int] = []
    begin().verify([source], lambda read, written: seen.append(read))
    assert seen == [len(second)]


class TestRounds:
    """LogCleanerTest cases that need no log around the kernel."""

    def rows(self, directory: Path, keys: list[int]) -> SourceSegment:
        return segment(directory, *[plain(n, (b"%d" % key, b"%d" % n)) for n, key in enumerate(keys)])

    def test_log_cleaner_stats(self, tmp_path: Path) -> None:
        """testLogCleanerStats"""
        source = self.rows(tmp_path, [0, 1, 0, 1, 0])
        done = begin(first_dirty_offset=2, map_memory_bytes=96, map_load_factor=0.75, kafka_map=True, high_watermark=5)
        assert done.build_map([source], []).latest_offset == 4
        sink = Sink()
        stats = done.clean_group([source], {}, sink).stats
        assert (stats.messages_read, stats.bytes_read) == (5, source.size)
        assert (stats.messages_written, stats.bytes_written) == (2, len(sink.data))
        assert stats.invalid_messages_read == 0

    def test_partial_segment_clean(self, tmp_path: Path) -> None:
        """testPartialSegmentClean: a map for one key, the dirty offset moves by one each round."""
        data = Path(self.rows(tmp_path, [0, 1, 0, 1, 0]).path).read_bytes()
        for first, expected in [(2, [1, 2, 3, 4]), (3, [2, 3, 4]), (4, [3, 4])]:
            source = segment(tmp_path, data, base=0)
            _, data = clean(
                [source], first_dirty_offset=first, map_memory_bytes=48, map_load_factor=0.75, kafka_map=True
            )
            assert offsets(data) == expected


entries = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"d", b"", None]), st.sampled_from([b"", b"value", None]), st.integers(0, 2)
)


@settings(deadline=None)
@given(
    st.lists(st.lists(entries, min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from(list(Codec)),
    st.integers(1, 6),
    st.integers(0, 10),
)
def test_no_latest_value_is_ever_lost(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[tuple[bytes | None, bytes | None, int]]],
    codec: Codec,
    capacity: int,
    first_dirty: int,
) -> None:
    """Whatever the map's size and the dirty offset: the latest record of each key is there before and after."""
    directory = tmp_path_factory.getbasetemp()
    made, offset, latest = [], 0, {}
    for row in rows:
        records = []
        for key, value, skip in row:
            offset += skip
            records.append(Record(offset, offset, key, value))
            if key is not None:
                latest[key] = (offset, key, value)
            offset += 1
        made.append(build_batch(records, base_offset=records[0].offset, codec=codec))
    source = segment(directory, *made, base=0)
    first_dirty = min(first_dirty, source.next_offset - 1)
    changes = {"map_memory_bytes": 24 * capacity, "map_load_factor": 1.0, "kafka_map": True}
    before = contents(b"".join(made))
    while first_dirty < source.next_offset:
        done = begin(first_dirty_offset=first_dirty, **changes)
        latest_offset = done.build_map([source], []).latest_offset
        assert latest_offset >= first_dirty, "every round makes progress"
        sink = Sink()
        if not done.clean_group([source], {}, sink).unchanged:
            source = segment(directory, sink.data, base=0, next_offset=source.next_offset)
        after = contents(Path(source.path).read_bytes())
        assert set(latest.values()) <= set(after) <= set(before)
        first_dirty = latest_offset + 1
    keys = [key for _, key, _ in after if key is not None]
    assert set(keys) == set(latest)
