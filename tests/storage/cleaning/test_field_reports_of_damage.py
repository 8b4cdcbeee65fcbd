"""What operators reported in public about cleaning: damage, interruptions, rights, memory. The others: test_field_reports.py.

Where Kafka goes on over damage, compactd stops at it on purpose: bits that rotted are not given a fresh checksum.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactd.config.errors import CorruptBatchError
from compactd.storage import files, names
from compactd.storage.cleaning.run import PartitionReport
from compactd.storage.kernel.interface import Kernel
from compactd.storage.records.batch import scan_headers
from compactd.storage.swap import pending_swap_files, recover_swap
from tests.file_faults import FaultyLayer, PowerCut
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import batches_of, latest_values, pairs_in, picture, segment_bases
from tests.storage.cleaning.partitions import Cleaning
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import ShortLog

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
DAY_MS = 86_400_000


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def check_left_alone(log: ShortLog, before: dict[str, bytes], report: PartitionReport) -> None:
    assert (report.outcome, report.exit_code) == ("faulty", 1), report.reason
    assert picture(log.directory) == before, "a damaged partition stays byte for byte, without temporary files"


# ---- A1: one bad partition


def test_a1_damage_stops_its_partition_only(make_log: LogMaker, kernel: Kernel) -> None:
    bad, good = make_log("t-0"), make_log("t-1")
    for log in (bad, good):
        log.append(("a", 1))
        log.append(("x", 1))
        log.append(("a", 2))
        log.roll()
        log.close()
    path = bad.directory / names.log_name(0)
    second = list(batches_of(bad.directory))[1].header
    flip(path, second.position + second.size - 1)
    before = picture(bad.directory)

    cleaning = Cleaning(bad, kernel)
    for _ in range(3):  # it does not get better by being tried again, nor worse
        report = cleaning.run(stop_first=False)
        check_left_alone(bad, before, report)
        assert str(path) in report.reason
        assert f"damaged batch at byte {second.position}, offsets 1 to 1" in report.reason
        assert f"{second.crc:08x}" in report.reason
    assert cleaning.written == []

    other = Cleaning(good, kernel)
    assert other.run().outcome == "cleaned"
    assert (other.checkpoint, pairs_in(good.directory)) == (3, [("x", "1", 1), ("a", "2", 2)])

    flip(path, second.position + second.size - 1)
    assert cleaning.run(stop_first=False).outcome == "cleaned"
    assert pairs_in(bad.directory) == [("x", "1", 1), ("a", "2", 2)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("section", ["dirty", "clean"])
def test_a1_a51_any_byte_of_a_batch(make_log: LogMaker, kernel: Kernel, codec: str, section: str) -> None:
    """Every byte of a batch that counts, below and above the first dirty offset, each flipped in turn.

    The leader epoch (bytes 12 to 15) is in no checksum and decides nothing here.
    """
    log = make_log(segment_bytes=1 << 20)
    log.append(("a", 1), ("b", "GOOD"), codec=codec)
    log.roll()
    log.append(("a", 2))
    log.roll()
    log.close()
    path = log.directory / names.log_name(0)
    before = picture(log.directory)
    size = path.stat().st_size
    for position in (p for p in range(size) if not 12 <= p < 16):
        flip(path, position)
        damaged = picture(log.directory)
        cleaning = Cleaning(log, kernel, checkpoint=2 if section == "clean" else None)
        check_left_alone(log, damaged, cleaning.run(stop_first=False))
        assert cleaning.written == []
        flip(path, position)
    assert picture(log.directory) == before
    assert Cleaning(log, kernel).run(stop_first=False).outcome == "cleaned"


def test_a1_damage_behind_a_full_map(make_log: LogMaker, kernel: Kernel) -> None:
    """The round does not map so far, but it would rewrite it: found before the first group is swapped."""
    log = make_log(segment_bytes=150)
    for key in (0, 0, 1, 2, 3, 4, 5):
        log.append((key, log.end_offset), (key, log.end_offset))
    log.roll()
    log.close()
    last = segment_bases(log.directory)[-2]
    flip(log.directory / names.log_name(last), 70)
    before = picture(log.directory)
    cleaning = Cleaning(log, kernel)
    report = cleaning.run(stop_first=False, once=True, kafka_map=True, map_memory_bytes=24 * 3, map_load_factor=1.0)
    # That round ends below the damage and may run; the one that comes to it may not.
    assert report.outcome == "cleaned"
    assert report.next_dirty_offset <= last
    while report.outcome == "cleaned":
        before = picture(log.directory)
        report = cleaning.run(stop_first=False, once=True, kafka_map=True, map_memory_bytes=24 * 3, map_load_factor=1.0)
    check_left_alone(log, before, report)


@pytest.mark.parametrize("damage", ["torn", "version", "unordered"])
def test_a1_a_damaged_transaction_index_is_not_read_over(make_log: LogMaker, kernel: Kernel, damage: str) -> None:
    """Without its entries aborted records would look committed."""
    log = make_log()
    for value in (1, 2):
        log.append(("a", value), pid=7, transactional=True)
        log.abort(7)
    log.append(("b", 1))
    log.roll()
    log.close()
    path = log.directory / names.transaction_index_name(0)
    data = path.read_bytes()
    assert len(data) == 2 * 34
    path.write_bytes({"torn": data[:50], "version": b"\0\1" + data[2:], "unordered": data[34:] + data[:34]}[damage])
    before = picture(log.directory)
    check_left_alone(log, before, Cleaning(log, kernel).run(stop_first=False))


# ---- A51: bit rot is not laundered


def test_a51_a_batch_that_would_be_rewritten_over_damage(make_log: LogMaker, kernel: Kernel) -> None:
    """Kafka writes {b=G?OD@1} with a valid CRC here."""
    log = make_log()
    log.append(("a", 1), ("b", "GOOD"))
    log.roll()
    log.append(("a", 2))
    log.roll()
    path = log.directory / names.log_name(0)
    flip(path, path.read_bytes().index(b"GOOD") + 1)
    header = next(scan_headers(path))
    before = picture(log.directory)
    with pytest.raises(CorruptBatchError) as caught:
        clean(log, kernel, partition=load(log))
    log.close()
    error = caught.value
    assert (error.path, error.position, error.base_offset, error.last_offset) == (str(path), 0, 0, 1)
    assert error.expected_crc == header.crc != error.found_crc
    assert {name: data for name, data in picture(log.directory).items() if name in before} == before


# ---- A6: the repro's two ways of leaving an older record behind


def tombstone_over_an_older_record(make_log: LogMaker) -> ShortLog:
    log = make_log(segment_bytes=1, delete_retention_ms=1000)
    log.append(("k", 1))
    log.roll()
    log.append(("k", None))
    log.roll()
    log.close()
    return log


def test_a6_a_damaged_older_segment_keeps_the_tombstone(make_log: LogMaker, kernel: Kernel) -> None:
    log = tombstone_over_an_older_record(make_log)
    flip(log.directory / names.log_name(0), 65)
    before = picture(log.directory)
    cleaning = Cleaning(log, kernel)
    for days in (0, 10, 20):
        check_left_alone(log, before, cleaning.run(NOW_MS + days * DAY_MS, stop_first=False, force=True))


def test_a6_a_map_that_holds_one_key_a_round(make_log: LogMaker, kernel: Kernel) -> None:
    """Round after round long past every horizon: k=1 is never seen again without its tombstone above it."""
    log = tombstone_over_an_older_record(make_log)
    cleaning = Cleaning(log, kernel)
    one_key = {"once": True, "kafka_map": True, "map_memory_bytes": 24, "map_load_factor": 1.0}
    seen = []
    for step in range(5):
        cleaning.run(NOW_MS + step * DAY_MS, **one_key)
        seen.append(pairs_in(log.directory))
        assert latest_values(log.directory).get(b"k") is None
        log.append((f"other{step}", 1))
        log.roll()
    assert seen[0] == [("k", "1", 0), ("k", None, 1)]
    assert all(("k", "1", 0) not in pairs for pairs in seen[2:])


@pytest.mark.parametrize(("checkpoint", "first_dirty", "warned"), [(None, 1, True), (1, 1, False), (1, 0, False)])
def test_a6_a_first_dirty_offset_past_the_checkpoint_is_taken_with_a_warning(
    make_log: LogMaker, kernel: Kernel, checkpoint: int | None, first_dirty: int, warned: bool
) -> None:
    """What lies between them was never cleaned: the rounds rely on it, and only the person who asks can know."""
    log = tombstone_over_an_older_record(make_log)
    report = Cleaning(log, kernel, checkpoint=checkpoint).run(first_dirty_offset=first_dirty)
    notes = [note for note in report.notes if "offsets 0 to 0 were taken for clean as asked" in note]
    assert len(notes) == warned


# ---- A20: crash windows around the swap


def test_a20_a_cleaned_tail_shorter_than_what_it_replaces(make_log: LogMaker, kernel: Kernel) -> None:
    """S(3) holds an expired tombstone, so the swap ends at 3: stopped anywhere, no latest value is lost and none comes back."""
    number, done = 0, False
    while not done:
        log = make_log(f"c{number}-0", segment_bytes=100, delete_retention_ms=1000)
        log.append(("a", 1), ("b", 1))
        log.roll()
        log.append(("a", 2))
        log.roll()
        log.append(("k", None))
        log.roll()
        log.append(("other", 1))
        cleaning = Cleaning(log, kernel, high_watermark=5)
        # The tombstone's time is over when the groups merge.
        cleaning.run(NOW_MS)
        log.config = type(log.config)(cleanup_policy=log.config.cleanup_policy, delete_retention_ms=1000)
        log.close()
        values = latest_values(log.directory)
        layer = FaultyLayer()
        layer.stop_at(number)
        try:
            with files.replaced(layer):
                report = cleaning.run(NOW_MS + 2000, stop_first=False, force=True)
            assert report.outcome == "cleaned"
            assert pairs_in(log.directory) == [("b", "1", 1), ("a", "2", 2), ("other", "1", 4)]
            done = True
        except PowerCut:
            layer.lose_unsynced()
        layer.close_all()
        recover_swap(log.directory)
        assert pending_swap_files(log.directory) == []
        assert latest_values(log.directory) == values == {b"a": b"2", b"b": b"1", b"other": b"1"}
        assert load(log).log_end_offset == 5
        number += 1
    assert number > 20


# ---- A22: rights and owners


def test_a22_a_file_that_may_not_be_written_refuses_its_partition(make_log: LogMaker, kernel: Kernel) -> None:
    log, other = make_log("t-0"), make_log("t-1")
    for one in (log, other):
        one.append(("a", 1))
        one.append(("a", 2))
        one.roll()
        one.close()
    before = picture(log.directory)
    layer = FaultyLayer()
    layer.fail("access", 13, nth=None, part=names.time_index_name(0))
    with files.replaced(layer):
        report = Cleaning(log, kernel).run(stop_first=False)
        assert (report.outcome, report.exit_code) == ("refused", 3)
        assert names.time_index_name(0) in report.reason
        assert picture(log.directory) == before
    assert Cleaning(other, kernel).run().outcome == "cleaned"


def test_a22_new_files_have_the_owner_group_and_mode_of_the_old(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(("a", 1))
    log.append(("a", 2))
    log.append(("b", 1), pid=7, transactional=True)
    log.abort(7)
    log.roll()
    log.close()
    owner = (4321, 8765) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    for path in log.directory.iterdir():
        path.chmod(0o640)
        os.chown(path, *owner)
    assert Cleaning(log, kernel).run(stop_first=False).outcome == "cleaned"
    cleaned = sorted(log.directory.glob(f"{0:020d}.*"))
    assert [path.suffix for path in cleaned] == [".index", ".log", ".timeindex", ".txnindex"]
    for path in cleaned:
        found = path.stat()
        assert ((found.st_uid, found.st_gid), found.st_mode & 0o777) == (owner, 0o640), path.name


# ---- A46: memory


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells resident memory from /proc")
def test_a46_a_large_map_takes_memory_only_as_it_fills(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    for key in range(10):
        log.append((key, 1))
    log.roll()
    cleaning = Cleaning(log, kernel)
    cleaning.run(map_memory_bytes=1 << 20)  # what is loaded once is not counted
    before = resident_bytes()
    log.append(("more", 1))
    log.roll()
    held: list[int] = []
    partition = load(log, now_ms=NOW_MS)
    cleaned = clean(
        log,
        kernel,
        10,
        partition=partition,
        map_memory_bytes=4 << 30,
        before_swap=lambda _: held.append(resident_bytes()),
    )
    assert cleaned.mapped.capacity > 150_000_000
    assert held and held[0] - before < 64 << 20


def test_a46_more_keys_than_the_map_may_hold_take_more_rounds(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=1 << 20)
    for start in range(0, 6000, 500):
        log.append(*((start + n, 1) for n in range(500)))
    log.roll()
    cleaning = Cleaning(log, kernel)
    report = cleaning.run(map_memory_bytes=16 << 10, map_load_factor=0.9)
    assert (report.outcome, report.next_dirty_offset) == ("cleaned", 6000)
    assert report.rounds == len(cleaning.written) > 5
    assert report.map_entries <= report.map_capacity < 1024
    assert len(pairs_in(log.directory)) == 6000


def test_a46_a_map_larger_than_the_machine(make_log: LogMaker, kernel: Kernel) -> None:
    """The limit is only a limit: what is reserved is what the keys need."""
    log = make_log()
    log.append(("a", 1))
    log.append(("a", 2))
    log.roll()
    assert Cleaning(log, kernel).run(map_memory_bytes=1 << 62).outcome == "cleaned"
    assert pairs_in(log.directory) == [("a", "2", 1)]
