"""The crash matrix of a clean: stop before and after every call of the file layer, with and without losing unsynced writes.

After each stop the directory is loaded as the next start does (interrupted swaps finished or dropped): every key must have
its latest value, no offset may appear twice, and no temporary file may be left.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel import reference_kernel
from compactd.storage.names import TopicPartition
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.partition import Partition
from compactd.storage.records.batch import iter_batches, read_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.storage.swap import pending_swap_files, recover_swap
from tests.file_faults import FaultyLayer, PowerCut

NOW_MS = 1_700_000_000_000
#: Small groups: the first two segments merge, the third stays alone, so a round has two swaps.
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=350, index_interval_bytes=0)
JOB_TOPIC = TopicPartition("t", 0)

SEGMENTS: list[list[list[tuple[int, bytes, bytes | None]]]] = [
    [[(0, b"a", b"1"), (1, b"b", b"1")], [(2, b"c", b"1")]],
    [[(3, b"a", b"2")], [(4, b"d", None)]],
    [[(5, b"c", b"2"), (6, b"e", b"1")], [(7, b"b", b"2")]],
    [[(8, b"e", b"2")]],
]


def write_log(directory: Path) -> None:
    """The segments above as a stopped broker leaves them; the last one is active."""
    directory.mkdir()
    for batches in SEGMENTS:
        base = batches[0][0][0]
        builder, position, data = OffsetIndexBuilder(base, CONFIG.index_interval_bytes), 0, b""
        for batch in batches:
            records = [Record(offset, NOW_MS + offset, key, value, ()) for offset, key, value in batch]
            encoded = build_batch(records, base_offset=batch[0][0], leader_epoch=0)
            builder.append(batch[-1][0], NOW_MS + batch[-1][0], position, len(encoded))
            data, position = data + encoded, position + len(encoded)
        builder.close()
        (directory / names.log_name(base)).write_bytes(data)
        (directory / names.offset_index_name(base)).write_bytes(builder.offset_index_bytes())
        (directory / names.time_index_name(base)).write_bytes(builder.time_index_bytes())
        if base:
            (directory / names.snapshot_name(base)).write_bytes(bytes.fromhex("000148674bc700000000"))


def clean(directory: Path) -> PartitionReport:
    job = CleanJob(JOB_TOPIC, directory, CONFIG, checkpoint=None, high_watermark=None)
    return clean_partition(job, CleanOptions(now_ms=NOW_MS + 1000), reference_kernel(), time.perf_counter)


def latest_values(directory: Path) -> dict[bytes, bytes | None]:
    """Key to latest value over all plain .log files; fails on an offset that appears twice or goes back."""
    values: dict[bytes, bytes | None] = {}
    last = -1
    for path in sorted(directory.glob("*.log")):
        for batch in read_batches(path):
            batch.check()
            for record in batch.records():
                assert record.offset > last, f"offset {record.offset} after {last}"
                assert record.key is not None
                last, values[record.key] = record.offset, record.value
    return values


EXPECTED = {b"a": b"2", b"b": b"2", b"c": b"2", b"d": None, b"e": b"2"}


def test_a_clean_without_a_crash_merges_and_keeps_the_latest_values(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0")
    report = clean(tmp_path / "t-0")
    assert (report.outcome, report.rounds, report.groups, report.next_dirty_offset) == ("cleaned", 1, 2, 8)
    assert latest_values(tmp_path / "t-0") == EXPECTED
    bases = sorted(p.name for p in (tmp_path / "t-0").glob("*.log"))
    assert bases == [names.log_name(0), names.log_name(5), names.log_name(8)]
    assert not (tmp_path / "t-0" / names.snapshot_name(3)).exists(), "the snapshot of a merged segment goes with it"


def _calls(tmp_path: Path) -> int:
    write_log(tmp_path / "count-0")
    layer = FaultyLayer()
    with files.replaced(layer):
        clean(tmp_path / "count-0")
    layer.close_all()
    return layer.count


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("loss", ["process", "power", "power-partly"])
def test_stop_at_every_call(tmp_path: Path, after: bool, loss: str) -> None:
    count = _calls(tmp_path)
    assert count > 40
    for number in range(count):
        directory = tmp_path / f"t{number}-0"
        write_log(directory)
        layer = FaultyLayer()
        layer.stop_at(number, after=after)
        with files.replaced(layer), pytest.raises(PowerCut):
            clean(directory)
        if loss != "process":
            layer.lose_unsynced(seed=number if loss == "power-partly" else None)
        layer.close_all()
        where = f"stopped {'after' if after else 'before'} call {number}: {layer.calls[-1]}"

        recover_swap(directory)
        assert pending_swap_files(directory) == [], where
        assert latest_values(directory) == EXPECTED, where
        partition = Partition.load(directory, CONFIG, topic_partition=JOB_TOPIC, now_ms=NOW_MS)
        assert partition.log_end_offset == 9, where
        # What the crash interrupted can be done again, to the same end.
        assert clean(directory).outcome == "cleaned", where
        assert latest_values(directory) == EXPECTED, where


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_stop_at_every_call_of_the_recovery_itself(tmp_path: Path, after: bool) -> None:
    """Recovery is stopped too, and begun anew: at every stop of every fourth crash image of a clean."""
    for crash in range(0, _calls(tmp_path), 4):
        stop, done = 0, False
        while not done:
            directory = tmp_path / f"t{crash}.{stop}-0"
            write_log(directory)
            crashed = FaultyLayer()
            crashed.stop_at(crash)
            with files.replaced(crashed), pytest.raises(PowerCut):
                clean(directory)
            crashed.close_all()
            layer = FaultyLayer()
            layer.stop_at(stop, after=after)
            try:
                with files.replaced(layer):
                    recover_swap(directory)
                done = True
            except PowerCut:
                layer.lose_unsynced()
                recover_swap(directory)
            layer.close_all()
            assert pending_swap_files(directory) == []
            assert latest_values(directory) == EXPECTED
            stop += 1


@pytest.mark.parametrize("name", ["write", "fsync", "rename", "open_output", "fsync_dir", "utime", "unlink"])
@pytest.mark.parametrize("code", [28, 5], ids=["ENOSPC", "EIO"])
def test_every_failing_call_ends_in_a_report_and_loses_nothing(tmp_path: Path, name: str, code: int) -> None:
    nth = 0
    while True:
        directory = tmp_path / f"t{nth}-0"
        write_log(directory)
        layer = FaultyLayer()
        layer.fail(name, code, nth=nth)
        with files.replaced(layer):
            report = clean(directory)
        layer.close_all()
        failed = report.outcome != "cleaned"
        if failed:
            assert (report.outcome, report.exit_code) == ("failed", 4)
            assert str(directory) in report.reason
            assert not list(directory.glob("*.cleaned")), "an unfinished output stays behind"
        recover_swap(directory)
        assert latest_values(directory) == EXPECTED
        if not failed:
            break
        nth += 1
    assert nth > 0 or name == "unlink", "the call was never met"


def test_batches_of_the_model_are_sound(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0")
    for path in (tmp_path / "t-0").glob("*.log"):
        for batch in iter_batches(path.read_bytes()):
            batch.check()
