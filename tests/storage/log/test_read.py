"""Reading: fetches, isolation, gaps, lookups by time, aborted transactions (UnifiedLogTest and LogSegmentTest by name)."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from compactd.config.errors import CorruptBatchError, CorruptFileError, OffsetOutOfRangeError
from compactd.storage import names
from compactd.storage.live_index import IndexCache
from compactd.storage.live_segment import LiveSegment
from compactd.storage.log import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    PartitionLog,
    Resources,
    TimestampOffset,
)
from compactd.storage.open_files import OpenFile, OpenFiles
from compactd.storage.records.batch import iter_batches
from tests.storage.log.logs import (
    NOW,
    at,
    batch,
    contents,
    fill,
    lead,
    new_log,
    offsets_of,
    reopened,
)

SIZE = len(batch())


def first_of(log: PartitionLog, offset: int, most: int = 1 << 20) -> int:
    with log.read(offset, most) as fetched:
        return fetched.first_offset if fetched.length else -1


def test_read_at_log_gap(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 3)
    fill(log, 3)
    log.append_as_follower(at(200), now_ms=NOW)
    log.update_high_watermark(201)
    for offset in range(3, 201):
        assert first_of(log, offset) == 200


def test_fetch_inside_compacted_gaps_is_never_empty(tmp_path: Path) -> None:
    """Report A7: every offset below the end gives the batch that holds it or the next one, across segments."""
    log = new_log(tmp_path, index_interval_bytes=0)
    layout = [(0, 1, 2), (7, 2, 0), (20, 1, 9), (50, 3, 0)]
    for number, (base, count, gap) in enumerate(layout):
        log.append_as_follower(at(base, count, gap=gap), now_ms=NOW)
        if number == 1:
            log.roll(now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)
    expected = [next(base for base, count, gap in layout if offset <= base + count - 1 + gap) for offset in range(53)]
    assert [first_of(log, offset) for offset in range(53)] == expected
    assert first_of(log, 53) == -1


def test_read_out_of_range(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    log.maybe_increment_log_start_offset(1)
    for offset in (-1, 0, 4):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 100)
        assert (caught.value.kafka_name, caught.value.kafka_code) == ("OFFSET_OUT_OF_RANGE", 1)
    with log.read(3, 100) as fetched:
        assert fetched.read() == b""


def test_read_with_min_message(tmp_path: Path) -> None:
    """The first batch is given whole, however small the fetch; without that rule it is cut."""
    log = new_log(tmp_path)
    lead(log, batch(50))
    lead(log, batch(1))
    with log.read(0, 1) as fetched:
        data = fetched.read()
        assert [len(each.data) for each in iter_batches(data)] == [len(batch(50))]
        assert not fetched.first_batch_incomplete
    with log.read(0, 10, at_least_one=False) as fetched:
        assert len(fetched.read()) == 10
        assert fetched.first_batch_incomplete
    with log.read(0, 0, at_least_one=False) as fetched:
        assert fetched.read() == b""


def test_read_max_bytes_within_one_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4)
    fill(log, 10)
    with log.read(1, SIZE * 2) as fetched:
        assert fetched.length == SIZE * 2
    with log.read(1, SIZE * 100) as fetched:
        assert fetched.length == SIZE * 3


def test_isolation(tmp_path: Path) -> None:
    log = new_log(tmp_path, index_interval_bytes=0)
    for _ in range(4):
        lead(log, batch(3), follow=False)
    assert offsets_of(contents(log)) == list(range(12))
    assert offsets_of(contents(log, isolation="high_watermark")) == []
    log.update_high_watermark(6)
    assert offsets_of(contents(log, isolation="high_watermark")) == list(range(6))
    assert first_of(log, 8) == -1  # above the high watermark, inside the log: empty, not an error
    log.update_high_watermark(12)
    lead(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    lead(log, batch(2))
    assert log.last_stable_offset == 12
    assert offsets_of(contents(log, isolation="committed")) == list(range(12))
    assert offsets_of(contents(log, isolation="high_watermark")) == list(range(16))
    log.append_marker("commit", 1, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    assert log.last_stable_offset == 12  # the marker is not below the high watermark yet
    log.update_high_watermark(17)
    assert log.last_stable_offset == 17
    assert offsets_of(contents(log, isolation="committed")) == list(range(17))


def test_sendfile(tmp_path: Path) -> None:
    """A range is what os.sendfile takes, and stays good whatever happens to the names."""
    log = new_log(tmp_path)
    fill(log, 3)
    left, right = socket.socketpair()
    with left, right, log.read(1, SIZE * 2) as fetched:
        shutil.move(log.directory, tmp_path / "elsewhere")
        sent = os.sendfile(left.fileno(), fetched.range.fileno(), fetched.range.position, fetched.length)
        assert sent == SIZE * 2
        assert [each.base_offset for each in iter_batches(right.recv(1 << 16))] == [1, 2]
        shutil.move(tmp_path / "elsewhere", log.directory)


# ---- transactions


def transaction(log: PartitionLog, producer: int, sequence: int, count: int = 1) -> None:
    lead(log, batch(count, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True))


def end(log: PartitionLog, producer: int, kind: str = "abort") -> int:
    done = log.append_marker(kind, producer, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)  # type: ignore[arg-type]
    log.update_high_watermark(log.log_end_offset)
    return done.last_offset


def aborted(log: PartitionLog, offset: int, most: int = 1 << 20) -> list[tuple[int, int]]:
    with log.read(offset, most, "committed") as fetched:
        assert fetched.aborted is not None
        return [(each.producer_id, each.first_offset) for each in fetched.aborted]


def test_transaction_index_updated(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    transaction(log, 1, 0)  # 0
    transaction(log, 2, 0)  # 1
    fill(log, 1)  # 2
    transaction(log, 3, 0)  # 3
    assert end(log, 1) == 4
    transaction(log, 4, 0)  # 5
    assert end(log, 2) == 6
    assert end(log, 3, "commit") == 7
    assert end(log, 4) == 8
    found = log.collect_aborted(0, 100)
    assert [(a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in found] == [
        (1, 0, 4, 1),
        (2, 1, 6, 3),
        (4, 5, 8, 9),
    ]
    assert aborted(log, 0) == [(1, 0), (2, 1), (4, 5)]
    assert aborted(log, 7) == [(4, 5)]
    again = reopened(log)
    assert again.collect_aborted(0, 100) == found


def test_aborted_transaction_spanning_multiple_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 2)
    transaction(log, 1, 0, 1)
    fill(log, 3)
    transaction(log, 1, 1, 1)
    fill(log, 2)
    end(log, 1)
    fill(log, 2)
    assert len(log.segments) > 3
    holder = log.view.floor(7)
    assert [bool(segment.aborted()) for segment in log.segments] == [n == holder for n in range(len(log.segments))]
    # A fetch from any segment of the transaction has to know of it.
    assert aborted(log, 0) == aborted(log, 4) == [(1, 0)]
    assert aborted(log, 8) == []


def test_commits_and_empty_transactions_are_not_indexed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    transaction(log, 1, 0)
    end(log, 1, "commit")
    end(log, 2)
    assert log.collect_aborted(0, 100) == []
    assert not (log.directory / names.transaction_index_name(0)).exists()


def test_damaged_transaction_index_is_not_passed_over(tmp_path: Path) -> None:
    """Aborted records would look committed."""
    log = new_log(tmp_path)
    transaction(log, 1, 0)
    end(log, 1)
    log = reopened(log)
    path = log.directory / names.transaction_index_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        log.read(0, 100, "committed")


# ---- by time


def test_fetch_offset_by_timestamp(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 3, index_interval_bytes=0)
    assert log.offset_for_timestamp(0) is None
    assert log.offset_for_timestamp(LATEST_TIMESTAMP) == TimestampOffset(-1, 0, -1)
    for time in (10, 30, 20, 40, 60, 50, 70):
        lead(log, batch(ts=NOW + time), leader_epoch=4)
    assert log.offset_for_timestamp(NOW) == TimestampOffset(NOW + 10, 0, 4)
    assert log.offset_for_timestamp(NOW + 15) == TimestampOffset(NOW + 30, 1, 4)
    assert log.offset_for_timestamp(NOW + 41) == TimestampOffset(NOW + 60, 4, 4)
    assert log.offset_for_timestamp(NOW + 71) is None
    assert log.offset_for_timestamp(EARLIEST_TIMESTAMP) == TimestampOffset(-1, 0, 4)
    assert log.offset_for_timestamp(LATEST_TIMESTAMP) == TimestampOffset(-1, 7, 4)
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == TimestampOffset(NOW + 70, 6, 4)
    log.maybe_increment_log_start_offset(5)
    assert log.offset_for_timestamp(NOW) is None or log.offset_for_timestamp(NOW).offset >= 5  # type: ignore[union-attr]
    log.delete_old_segments(NOW)
    assert log.offset_for_timestamp(NOW) == TimestampOffset(NOW + 50, 5, 4)
    assert log.offset_for_timestamp(EARLIEST_TIMESTAMP) == TimestampOffset(-1, 5, 4)


def test_timestamp_lookup_finds_records_inside_a_batch(tmp_path: Path) -> None:
    from compactd.storage.records.builder import build_batch  # noqa: PLC0415
    from compactd.storage.records.record import Record  # noqa: PLC0415

    log = new_log(tmp_path)
    made = [Record(n, NOW + time, b"k", b"v") for n, time in enumerate((5, 9, 7))]
    for codec in (0, 1, 3, 4):
        lead(log, build_batch(made, base_offset=0, codec=codec))
    assert log.offset_for_timestamp(NOW + 6) == TimestampOffset(NOW + 9, 1, 0)
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == TimestampOffset(NOW + 9, 1, 0)


# ---- damage and limits


def test_wrong_index_entries_are_not_believed(tmp_path: Path) -> None:
    """An index that points elsewhere costs time, it never gives another batch."""
    log = new_log(tmp_path, index_interval_bytes=0)
    fill(log, 20)
    log = reopened(log)
    path = log.directory / names.offset_index_name(0)
    good = path.read_bytes()
    for wrong in (
        b"\0" * len(good),
        good[8:] + good[:8],
        bytes(b ^ 0x11 for b in good),
        b"".join(good[n : n + 4] + b"\0\0\0\x05" for n in range(0, len(good), 8)),
        b"".join(good[n : n + 4] + b"\x7f\xff\xff\xff" for n in range(0, len(good), 8)),
    ):
        path.write_bytes(wrong)
        log.active_segment.offsets.forget()
        for offset in range(20):
            with log.read(offset, 1) as fetched:
                assert fetched.first_offset == offset
                assert fetched.length == SIZE


def test_index_of_several_batches_at_once_leads_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers before 3.9 indexed what a follower or the cleaner appended at once as one: start of the first, end of the last.

    Kafka reads on from there; to search such a segment from its start for every fetch takes minutes where it has 1 GiB.
    """
    log = new_log(tmp_path, index_interval_bytes=0)
    fill(log, 20)
    log = reopened(log)
    entries = [(first + 3, first * SIZE) for first in range(4, 20, 4)]
    (log.directory / names.offset_index_name(0)).write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    log.active_segment.offsets.forget()
    search, starts = LiveSegment._search, []

    def noted(self: LiveSegment, held: OpenFile, position: int, *more: Any) -> Any:
        starts.append(position)
        return search(self, held, position, *more)

    monkeypatch.setattr(LiveSegment, "_search", noted)
    for offset in range(7, 20):
        assert first_of(log, offset, 1) == offset
    assert 0 not in starts


def test_damaged_batch_header_is_a_named_fault(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    path = log.directory / names.log_name(0)
    data = bytearray(path.read_bytes())
    data[SIZE + 8 : SIZE + 12] = (0x7FFFFFFF).to_bytes(4, "big")
    path.write_bytes(data)
    with log.read(0, SIZE) as fetched:
        assert fetched.length == SIZE
    with pytest.raises(CorruptBatchError) as caught:
        log.read(2, 100)
    assert caught.value.position == SIZE
    assert caught.value.path.endswith(names.log_name(0))


def test_open_files_are_bounded(tmp_path: Path) -> None:
    resources = Resources(files=OpenFiles(limit=4))
    logs = []
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        logs.append(new_log(tmp_path / str(number), options={"resources": resources}))
    for _ in range(3):
        for log in logs:
            fill(log, 1)
            assert len(resources.files) <= 4
    held = [log.read(0, SIZE) for log in logs]
    assert len(resources.files) >= 12  # what is held stays open
    for log, fetched in zip(logs, held, strict=True):
        assert [each.base_offset for each in iter_batches(fetched.read())] == [0]
        fetched.close()
        fetched.close()
        assert offsets_of(contents(log)) == [0, 1, 2]
    assert len(resources.files) <= 4


def test_index_memory_is_bounded(tmp_path: Path) -> None:
    resources = Resources(indexes=IndexCache(most_bytes=100))
    log = new_log(tmp_path, index_interval_bytes=0, internal_segment_bytes=SIZE * 10, options={"resources": resources})
    fill(log, 100)
    log = reopened_with(log, resources)
    for offset in range(100):
        assert first_of(log, offset, 1) == offset
        assert resources.indexes.bytes <= 100


def reopened_with(log: PartitionLog, resources: Resources) -> PartitionLog:
    from compactd.storage.loader import load_log  # noqa: PLC0415
    from tests.storage.log import logs  # noqa: PLC0415

    log.close()
    loaded = load_log(
        log.directory, log.config, clean_shutdown=True, log_start_offset=0, recovery_point=100, now_ms=NOW
    )
    again = PartitionLog(loaded, now_ms=NOW, resources=resources)
    logs.MADE.append(again)
    again.update_high_watermark(again.log_end_offset)
    return again


def test_read_into_a_buffer(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    buffer = bytearray(SIZE * 4)
    with log.read(1, SIZE * 2) as fetched:
        assert fetched.range.read_into(buffer) == SIZE * 2
        assert bytes(buffer[: SIZE * 2]) == fetched.read()
    with log.read(3, 100) as fetched:
        assert fetched.range.read_into(buffer) == 0
