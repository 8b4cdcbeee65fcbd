"""What the native kernel promises beside the reference kernel's results: I/O, callbacks, errors, bounded memory."""

from __future__ import annotations

import os
import random
import resource
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from compactd.config.errors import CorruptBatchError, FaultError, OffsetOverflowError, SettingError, StorageIOError
from compactd.storage.kernel.interface import GroupResult, Kernel, OutputFile, RoundSettings, SourceSegment
from compactd.storage.records.batch import Record, iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.codecs import compress
from compactd.storage.records.crc import crc32c

native_adapter = pytest.importorskip("compactd.storage.kernel.native_adapter", reason="the native kernel was not built")
KERNEL: Kernel = native_adapter.KERNEL

SETTINGS = RoundSettings(
    first_dirty_offset=0,
    high_watermark=1 << 40,
    now_ms=1_700_000_000_000,
    delete_retention_ms=1000,
    index_interval_bytes=100,
    map_memory_bytes=1 << 20,
)


def batch(offset: int, *keys: bytes, value: bytes | None = b"v", codec: int = 0) -> bytes:
    records = [Record(offset + i, 400, key, value, ()) for i, key in enumerate(keys)]
    return build_batch(records, base_offset=offset, codec=codec, leader_epoch=0)


def segment(path: Path, base: int, data: bytes, next_offset: int) -> SourceSegment:
    path.write_bytes(data)
    return SourceSegment(str(path), base, len(data), next_offset)


def clean(
    group: Sequence[SourceSegment], output: Path | None, settings: RoundSettings = SETTINGS, dirty_from: int = 0
) -> GroupResult:
    round_ = KERNEL.begin_round(settings)
    try:
        round_.build_map(group[dirty_from:], [])
        if output is None:
            return round_.clean_group(group, {}, None)
        with output.open("wb", buffering=0) as file:
            return round_.clean_group(group, {}, cast(OutputFile, file))
    finally:
        round_.close()


def test_tombstone_gets_kafkas_horizon(tmp_path: Path) -> None:
    # The golden rewrite of facts 5.7, made by Kafka 4.4.0.
    source = segment(tmp_path / "in", 4, batch(4, b"b", value=None), 5)
    result = clean([source], tmp_path / "out")
    assert (tmp_path / "out").read_bytes().hex() == (
        "00000000000000040000003e0000000002062cd18a0040000000000000018bcfe56be80000000000000190ffffffffffffffffffffffffffff"
        "000000011800afa9abfef9620002620100"
    )
    assert result.stats.tombstones_read == 1
    assert not result.unchanged


def test_unchanged_segment_is_not_written(tmp_path: Path) -> None:
    data = batch(0, b"a", b"b") + batch(2, b"c") + batch(3, b"d", codec=4)
    result = clean([segment(tmp_path / "in", 0, data, 4)], tmp_path / "out")
    assert result.unchanged
    assert result.log_size == len(data)
    assert (tmp_path / "out").read_bytes() == b""
    assert result.stats.batches_copied == 3
    # Two batches of 80 and 69 bytes lie before the third: 149 bytes, more than the interval of 100.
    assert result.offset_index == bytes.fromhex("0000000300000095")
    assert result.time_index == bytes.fromhex("000000000000019000000001")


def test_first_difference_writes_what_was_kept_before(tmp_path: Path) -> None:
    kept = b"".join(batch(i, b"only-%d" % i, value=random.Random(i).randbytes(40_000)) for i in range(100))
    data = kept + batch(100, b"twice") + batch(101, b"twice")
    result = clean([segment(tmp_path / "in", 0, data, 102)], tmp_path / "out")
    assert not result.unchanged
    assert (tmp_path / "out").read_bytes() == kept + batch(101, b"twice")
    assert result.log_size == len(data) - len(batch(100, b"twice"))


def test_counting_alone_writes_nothing_and_counts_the_same(tmp_path: Path) -> None:
    data = batch(0, b"a", b"b", b"a", codec=3) + batch(3, b"b", b"c", codec=1)
    source = segment(tmp_path / "in", 0, data, 5)
    counted, written = clean([source], None), clean([source], tmp_path / "out")
    assert counted == written
    assert (tmp_path / "out").stat().st_size == written.log_size


def test_position_of_the_output_is_respected(tmp_path: Path) -> None:
    source = segment(tmp_path / "in", 0, batch(0, b"a") + batch(1, b"a"), 2)
    round_ = KERNEL.begin_round(SETTINGS)
    round_.build_map([source], [])
    with (tmp_path / "out").open("wb", buffering=0) as file:
        file.write(b"before")
        round_.clean_group([source], {}, file)
        file.write(b"after")
    assert (tmp_path / "out").read_bytes() == b"before" + batch(1, b"a") + b"after"


@pytest.mark.parametrize("codec", range(5))
def test_batch_larger_than_any_buffer(tmp_path: Path, codec: int) -> None:
    value = random.Random(codec).randbytes(3 << 20)
    data = batch(0, b"a", b"b", value=value, codec=codec) + batch(2, b"a")
    clean([segment(tmp_path / "in", 0, data, 3)], tmp_path / "out")
    records = [r for b in iter_batches((tmp_path / "out").read_bytes()) for r in b.records()]
    assert [(r.offset, r.key) for r in records] == [(1, b"b"), (2, b"a")]
    assert records[0].value == value


def test_full_map_ends_the_pass_even_for_a_known_key(tmp_path: Path) -> None:
    settings = RoundSettings(0, 100, 0, 0, 4096, map_memory_bytes=72, kafka_map=True)
    source = segment(tmp_path / "in", 0, batch(0, b"a", b"b", b"a", b"c"), 50)
    round_ = KERNEL.begin_round(settings)
    result = round_.build_map([source], [])
    assert (result.slots, result.capacity, result.entries) == (3, 2, 2)
    assert result.full
    # The third record does not fit although its key is there.
    assert result.latest_offset == 1
    assert [round_.contains(key) for key in (b"a", b"b", b"c")] == [True, True, False]


def test_map_grows_and_stays_right(tmp_path: Path) -> None:
    keys = [b"key-%d" % (i * 7919 % 150_000) for i in range(300_000)]
    data = b"".join(batch(i, *keys[i : i + 1000]) for i in range(0, len(keys), 1000))
    source = segment(tmp_path / "in", 0, data, len(keys))
    settings = RoundSettings(0, 1 << 40, 0, 0, 4096, map_memory_bytes=64 << 20)
    result = clean([source], tmp_path / "out", settings)
    assert result.stats.superseded == 150_000
    offsets = [r.offset for b in iter_batches((tmp_path / "out").read_bytes()) for r in b.records()]
    assert offsets == list(range(150_000, 300_000))


def test_clean_head_loses_to_dirty_records(tmp_path: Path) -> None:
    head = segment(tmp_path / "0", 0, b"".join(batch(i, b"k%d" % i, b"x%d" % i) for i in range(0, 100, 2)), 100)
    dirty = segment(tmp_path / "1", 100, batch(100, b"k10", b"x20", b"k98"), 103)
    settings = RoundSettings(100, 1 << 40, 0, 0, 4096)
    result = clean([head, dirty], tmp_path / "out", settings, dirty_from=1)
    keys = [r.key for b in iter_batches((tmp_path / "out").read_bytes()) for r in b.records()]
    assert result.stats.superseded == 3
    assert sorted(keys) == sorted({*keys})
    assert keys[-3:] == [b"k10", b"x20", b"k98"]


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    data = b"".join(batch(i, b"k%d" % (i % 150), value=bytes(100_000)) for i in range(200))
    source = segment(tmp_path / "in", 0, data, 200)
    round_ = KERNEL.begin_round(SETTINGS)
    calls: list[tuple[int, int]] = []
    round_.build_map([source], [], lambda *counts: calls.append(counts))
    assert sum(read for read, _ in calls) == len(data)
    assert len(calls) >= len(data) // (5 << 20)
    calls.clear()
    with (tmp_path / "out").open("wb", buffering=0) as file:
        result = round_.clean_group([source], {}, file, lambda *counts: calls.append(counts))
    assert sum(read for read, _ in calls) == len(data)
    assert sum(written for _, written in calls) == result.log_size


def test_progress_may_abort_either_pass(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(read: int, written: int) -> None:
        raise EnoughError

    data = b"".join(batch(i, b"a", value=bytes(100_000)) for i in range(100))
    source = segment(tmp_path / "in", 0, data, 100)
    round_ = KERNEL.begin_round(SETTINGS)
    with pytest.raises(EnoughError):
        round_.build_map([source], [], stop)
    with pytest.raises(EnoughError):
        round_.clean_group([source], {}, None, stop)


def test_other_threads_run_meanwhile(tmp_path: Path) -> None:
    """A pass that held the interpreter lock could never be ended by another thread."""
    fifo_reached = threading.Event()
    data = b"".join(batch(i, b"a", value=bytes(100_000)) for i in range(100))
    source = segment(tmp_path / "in", 0, data, 100)
    waiting = threading.Event()

    def other() -> None:
        waiting.wait(30)
        fifo_reached.set()

    thread = threading.Thread(target=other)
    thread.start()
    seen: list[bool] = []

    def progress(read: int, written: int) -> None:
        waiting.set()
        seen.append(fifo_reached.wait(30))

    KERNEL.begin_round(SETTINGS).build_map([source], [], progress)
    thread.join()
    assert seen
    assert all(seen)


def test_wrong_crc_says_where_and_what(tmp_path: Path) -> None:
    good = batch(0, b"a")
    bad = bytearray(batch(1, b"b", b"c"))
    bad[-1] ^= 1
    source = segment(tmp_path / "in", 0, good + bad, 3)
    with pytest.raises(CorruptBatchError) as caught:
        clean([source], None)
    error = caught.value
    assert error.path == str(tmp_path / "in")
    assert (error.position, error.base_offset, error.last_offset) == (len(good), 1, 2)
    assert error.expected_crc != error.found_crc
    assert error.expected_crc == int.from_bytes(bad[17:21], "big")
    assert "CRC-32C" in str(error)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(100), "zeros"),
        (bytes(5), "truncated"),
        (batch(1, b"b")[:-1], "truncated"),
        (batch(1, b"b")[:40], "truncated"),
        (batch(1, b"b")[:8] + b"\x00\x00\x00\x0d" + batch(1, b"b")[12:], "length field is 13"),
        (batch(1, b"b")[:16] + b"\x03" + batch(1, b"b")[17:], "unknown magic 3"),
        (batch(0, b"b"), "does not follow"),
        (batch(9, b"b"), "next segment"),
    ],
)
def test_damage_has_a_reason(tmp_path: Path, tail: bytes, reason: str) -> None:
    source = segment(tmp_path / "in", 0, batch(0, b"a") + tail, 9)
    round_ = KERNEL.begin_round(SETTINGS)
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        round_.build_map([source], [])
    assert caught.value.position == len(batch(0, b"a"))
    with pytest.raises(CorruptBatchError, match=reason):
        round_.verify([source])


def test_file_that_shrank_is_truncated(tmp_path: Path) -> None:
    source = segment(tmp_path / "in", 0, batch(0, b"a") + batch(1, b"b"), 2)
    os.truncate(source.path, source.size - 1)
    with pytest.raises(CorruptBatchError, match="truncated"):
        clean([source], None)


def test_file_that_changed_between_the_passes(tmp_path: Path) -> None:
    source = segment(tmp_path / "in", 0, batch(0, b"a") + batch(1, b"b"), 2)
    round_ = KERNEL.begin_round(SETTINGS)
    round_.build_map([source], [])
    segment(tmp_path / "in", 0, batch(0, b"a") + batch(1, b"c"), 2)
    with pytest.raises(FaultError, match="changed"):
        round_.clean_group([source], {}, None)


def test_offset_too_far_names_the_source(tmp_path: Path) -> None:
    first = segment(tmp_path / "0", 0, batch(0, b"a"), 5)
    second = segment(tmp_path / "1", 5, batch(2**31, b"b"), 2**31 + 1)
    with pytest.raises(OffsetOverflowError) as caught:
        clean([first, second], None)
    assert (caught.value.source, caught.value.offset, caught.value.base_offset) == (1, 2**31, 0)


def test_missing_file_and_full_disk(tmp_path: Path) -> None:
    with pytest.raises(StorageIOError, match="open"):
        clean([SourceSegment(str(tmp_path / "none"), 0, 100, 1)], None)
    source = segment(tmp_path / "in", 0, batch(0, b"a") + batch(1, b"a"), 2)
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full to stand for a full disk")
    with pytest.raises(StorageIOError, match="no space left"):
        clean([source], Path("/dev/full"))


def test_bomb_costs_no_more_than_its_records(tmp_path: Path) -> None:
    """A batch that claims 2147483647 records and holds none is refused at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for codec in range(5):
        body = compress(codec, b"") if codec else b""
        rest = struct.pack(">hiqqqhii", codec, 2**31 - 1, 0, 0, -1, -1, -1, 2**31 - 1) + body
        head = struct.pack(">qiibI", 0, 9 + len(rest), 0, 2, crc32c(rest))
        source = segment(tmp_path / f"in{codec}", 0, head + rest, 2**33)
        with pytest.raises(CorruptBatchError):
            clean([source], None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_map_too_small_for_any_key() -> None:
    with pytest.raises(SettingError, match="hold no key"):
        KERNEL.begin_round(RoundSettings(0, 0, 0, 0, 0, map_memory_bytes=15))


def test_closed_round_refuses(tmp_path: Path) -> None:
    round_ = KERNEL.begin_round(SETTINGS)
    round_.close()
    round_.close()
    with pytest.raises(ValueError, match="closed"):
        round_.contains(b"a")
