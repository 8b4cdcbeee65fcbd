"""Swaps of cleaned segments and deletions under readers: nobody waits, nobody gets wrong or missing data (facts 5.9)."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from compactd.config.errors import LogError, LogOfflineError, OffsetOutOfRangeError, StorageIOError
from compactd.storage import files, names
from compactd.storage.log import PartitionLog, Resources
from compactd.storage.open_files import OpenFiles
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.file_faults import FaultyLayer
from tests.storage.log.cleaned import write_cleaned
from tests.storage.log.logs import NOW, bases, batch, contents, files_of, fill, lead, new_log, offsets_of, reopened

SIZE = len(batch())


def even(record: Record) -> bool:
    return record.offset % 2 == 0


def test_replace_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, index_interval_bytes=0, file_delete_delay_ms=100)
    fill(log, 18)
    assert bases(log) == [0, 4, 8, 12, 16]
    new = write_cleaned(log, [0, 4, 8], even)
    log.replace_segments([new], [0, 4, 8], NOW)
    assert bases(log) == [0, 12, 16]
    assert offsets_of(contents(log)) == [0, 2, 4, 6, 8, 10, *range(12, 18)]
    assert files_of(log, ".cleaned") == files_of(log, ".swap") == []
    assert [name for name in files_of(log, ".deleted") if ".log." in name] == [
        names.log_name(base, ".deleted") for base in (0, 4, 8)
    ]
    # Snapshots of bases that vanished go; that of the group's first base would stay.
    assert [offset for offset in log.snapshots.offsets if offset in (0, 4, 8, 12, 16)] == [12, 16]
    log.remove_due(NOW + 100)
    log = reopened(log)
    assert offsets_of(contents(log)) == [0, 2, 4, 6, 8, 10, *range(12, 18)]
    fill(log, 2)
    assert log.log_end_offset == 20


def test_compaction_deletes_producer_state_snapshots(tmp_path: Path) -> None:
    log = new_log(tmp_path, cleanup_policy="compact", file_delete_delay_ms=0)
    for sequence in range(3):
        lead(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
        log.roll(now_ms=NOW)
    assert log.snapshots.offsets == [1, 2, 3]
    new = write_cleaned(log, [0, 1, 2], lambda record: record.offset == 2)
    log.replace_segments([new], [0, 1, 2], NOW)
    log.remove_due(NOW)
    assert bases(log) == [0, 3]
    assert log.snapshots.offsets == [3]
    assert files_of(log, ".snapshot") == [names.snapshot_name(3)]


def test_source_that_retention_took_is_passed_by(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, index_interval_bytes=0)
    fill(log, 10)
    new = write_cleaned(log, [4], even)
    log.replace_segments([new], [2, 4], NOW)
    assert offsets_of(contents(log)) == [0, 1, 2, 3, 4, 6, 8, 9]


def test_active_segment_is_never_replaced(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    fill(log, 3)
    with pytest.raises(LogError):
        log.replace_segments([0], [0], NOW)
    assert offsets_of(contents(log)) == [0, 1, 2]


def test_high_watermark_inside_a_cleaned_segment(tmp_path: Path) -> None:
    """Its position in the old file means nothing in the new one."""
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, index_interval_bytes=0)
    fill(log, 10)
    log.update_high_watermark(3)
    assert offsets_of(contents(log, isolation="high_watermark")) == [0, 1, 2]
    log.replace_segments([write_cleaned(log, [0], lambda record: record.offset in (1, 3))], [0], NOW)
    assert offsets_of(contents(log, isolation="high_watermark")) == [1]


def test_readers_keep_what_they_hold(tmp_path: Path) -> None:
    """A fetch under way sends the old bytes to the end, whatever became of the files."""
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, file_delete_delay_ms=0)
    fill(log, 10)
    with log.read(0, SIZE * 4) as fetched, log.read(4, SIZE * 4) as second:
        log.replace_segments([write_cleaned(log, [0], even)], [0], NOW)
        log.maybe_increment_log_start_offset(8)
        log.delete_old_segments(NOW)
        log.remove_due(NOW)
        assert files_of(log, ".deleted") == []
        assert [each.base_offset for each in iter_batches(fetched.read())] == [0, 1, 2, 3]
        assert [each.base_offset for each in iter_batches(second.read())] == [4, 5, 6, 7]


def test_a_view_taken_before_a_swap_still_reads(tmp_path: Path) -> None:
    """Segments that nobody has open yet are found under their new names."""
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4, options={"resources": Resources(files=OpenFiles(limit=0))})
    fill(log, 10)
    before = log.view.segments
    log.replace_segments([write_cleaned(log, [0, 4], even)], [0, 4], NOW)
    assert [header.base_offset for header in before[0].headers()] == [0, 1, 2, 3]
    assert [header.base_offset for header in before[1].headers()] == [4, 5, 6, 7]
    log.rename_dir("t-7")
    assert [header.base_offset for header in before[0].headers()] == [0, 1, 2, 3]
    assert offsets_of(contents(log)) == [0, 2, 4, 6, 8, 9]


def test_failed_swap_takes_the_log_offline_and_is_finished_at_the_next_load(tmp_path: Path) -> None:
    log = new_log(tmp_path, internal_segment_bytes=SIZE * 4)
    fill(log, 10)
    new = write_cleaned(log, [0, 4], even)
    layer = FaultyLayer()
    layer.fail("rename", errno.EIO, nth=4)
    with files.replaced(layer), pytest.raises(StorageIOError):
        log.replace_segments([new], [0, 4], NOW)
    with pytest.raises(LogOfflineError):
        fill(log, 1)
    log = reopened(log, clean=False)
    assert offsets_of(contents(log)) == [0, 2, 4, 6, 8, 9]


class Reader(threading.Thread):
    """Fetches from the log's start to its end again and again and checks what it gets."""

    def __init__(self, log: PartitionLog, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.log, self.stop = log, stop
        self.errors: list[BaseException] = []
        self.rounds = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._once()
                self.rounds += 1
        except BaseException as error:
            self.errors.append(error)

    def _once(self) -> None:
        offset = self.log.log_start_offset
        end = self.log.log_end_offset
        while offset < end:
            try:
                fetched = self.log.read(offset, 4000, "log_end")
            except OffsetOutOfRangeError:
                offset = max(offset, self.log.log_start_offset)
                continue
            with fetched:
                data = fetched.read()
                length = fetched.length
            assert len(data) == length, "a range was cut"
            assert data, f"nothing at {offset} where the log ends at {end}"
            position = 0
            while len(data) - position >= 61:
                size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
                if size > len(data) - position:
                    break
                [each] = iter_batches(data[position : position + size])
                each.check()
                assert each.header.last_offset >= offset, "an offset came again"
                for record in each.records():
                    assert record.value == b"%d" % record.offset, "a record of another offset"
                offset = each.header.next_offset
                position += size


@pytest.mark.parametrize("limit", [0, 100])
def test_readers_beside_appends_swaps_and_deletions(tmp_path: Path, limit: int) -> None:
    """`limit` 0: no file stays open, every read has to find it by its name of that moment."""
    resources = Resources(files=OpenFiles(limit=limit))
    log = new_log(
        tmp_path,
        internal_segment_bytes=700,
        index_interval_bytes=100,
        file_delete_delay_ms=5,
        options={"resources": resources},
    )
    stop = threading.Event()
    readers = [Reader(log, stop) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(200):
            offset = log.log_end_offset
            made = [Record(n, NOW, b"k", b"%d" % (offset + n)) for n in range(1 + turn % 3)]
            lead(log, build_batch(made, base_offset=0))
            closed = bases(log)[:-1]
            if turn % 7 == 3 and len(closed) > 3:
                group = closed[1:3]
                log.replace_segments([write_cleaned(log, group, lambda record: record.offset % 5 != 1)], group, NOW)
            if turn % 20 == 19 and len(closed) > 8:
                log.maybe_increment_log_start_offset(closed[2])
                log.delete_old_segments(NOW)
            if turn % 50 == 49:
                log.rename_dir(f"t-{turn}")
            log.remove_due(NOW + turn)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert [reader.errors for reader in readers] == [[], [], []]
    assert all(reader.rounds for reader in readers)
