"""What operators reported in public about cleaning, each as a small input with its right outcome.

This file: keys, offsets, transactions and formats out of the ordinary. The others: test_field_reports.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.storage import names
from compactd.storage.kernel.interface import Kernel
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.storage.targets import find_targets
from tests.logs import NOW_MS
from tests.md5_twins import MD5_TWINS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import (
    aborted_in,
    batch_ends,
    batches_of,
    delete_horizons,
    empty_batch_ends,
    offsets_in,
    pairs_in,
    records_of,
    segment_bases,
)
from tests.storage.cleaning.partitions import Cleaning
from tests.storage.cleaning.rounds import load

DAY_MS = 86_400_000


# ---- A15: offsets further apart than 2^31 - 1


def test_a15_groups_do_not_reach_over_two_to_the_31st(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(segment_bytes=1 << 30, index_interval_bytes=0)
    for base in (0, 2**31 - 1, 2**31):
        log.append(("abc"[log.segment_count - 1], 1), offset=base)
        log.roll()
    log.roll(2**31 + 52)
    log.append(("z", 1))
    for base in segment_bases(log.directory)[:3]:
        assert (log.directory / names.log_name(base)).stat().st_size
    report = Cleaning(log, kernel).run()
    assert (report.outcome, report.groups) == ("cleaned", 2)
    assert segment_bases(log.directory)[:2] == [0, 2**31]
    assert [offset for _, _, offset in pairs_in(log.directory)] == [0, 2**31 - 1, 2**31, log.end_offset - 1]
    for segment in load(log).segments:
        assert list(segment.offset_index.check(segment.size)) == []
        assert all(0 <= offset - segment.base_offset < 2**31 for offset, _ in segment.offset_index.entries)


def test_a15_a_segment_that_overflowed_is_split(make_log: LogMaker, kernel: Kernel) -> None:
    """Kafka's LogCleanerTest.testSegmentWithOffsetOverflow: written by a broker that did not look (KAFKA-5413)."""
    log = make_log(segment_bytes=1 << 30, index_interval_bytes=0)
    log.append(("k0", 1))
    log.roll()
    far = 1 + 2**31
    batches = [
        build_batch([Record(offset, NOW_MS, key, b"1")], base_offset=offset, leader_epoch=0)
        for offset, key in ((1, b"k1"), (2, b"k0"), (far, b"k2"), (far + 1, b"k1"))
    ]
    log.close()
    directory = log.directory
    (directory / names.log_name(1)).write_bytes(b"".join(batches))
    for name in (names.offset_index_name(1), names.time_index_name(1)):
        (directory / name).write_bytes(b"")
    for name in (names.log_name(far + 2), names.offset_index_name(far + 2), names.time_index_name(far + 2)):
        (directory / name).write_bytes(b"")
    cleaning = Cleaning(log, kernel)
    report = cleaning.run(stop_first=False)
    assert report.outcome == "cleaned"
    assert any("was split" in note for note in report.notes)
    assert cleaning.checkpoint == far + 2
    assert [(key, offset) for key, _, offset in pairs_in(directory)] == [("k0", 2), ("k2", far), ("k1", far + 1)]
    # The first two stay apart: by the next base the second could reach 2^31 past the first.
    assert segment_bases(directory) == [0, 1, far, far + 2]


# ---- A16: null keys and empty keys


def test_a16_null_keys_go_and_are_counted_empty_keys_are_keys(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append((None, "x"))
    log.append(("", "y"))
    log.append((None, "z"))
    log.append(("", "w"))
    log.roll()
    log.append((None, "q"))
    cleaning = Cleaning(log, kernel)
    measured = cleaning.run(dry_run=True)
    assert (measured.outcome, measured.stats.invalid_messages_read) == ("measured", 2)
    report = cleaning.run()
    assert pairs_in(log.directory) == [("", "w", 3), (None, "q", 4)]
    assert report.stats.invalid_messages_read == 2


# ---- A24: batches without records


def test_a24_empty_batches_are_read_and_dropped(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log(index_interval_bytes=0)
    log.append(("a", 1))
    log.append_empty(6)
    log.append_empty(1, pid=9, epoch=0, transactional=True, control=True)
    log.append_empty(2, pid=8, epoch=0, sequence=0)
    log.append(("a", 2))
    log.append(("b", 2))
    log.roll()
    partition = load(log, expiration_ms=DAY_MS)
    assert partition.active_producers(NOW_MS)[8].last_data_offset == 9
    assert partition.segments[0].scan().next_offset == 12
    cleaning = Cleaning(log, kernel)
    cleaning.run()
    # Of producer 8 its last batch stays; an empty control batch tells nothing that would have to stay.
    assert batch_ends(log.directory) == [9, 10, 11]
    assert empty_batch_ends(log.directory) == [9]
    cleaning.run(NOW_MS + DAY_MS, force=True)
    assert batch_ends(log.directory) == [10, 11]


# ---- A25: markers and their index


def test_a25_a_transaction_over_several_groups(make_log: LogMaker, kernel: Kernel) -> None:
    """Every segment its own group, the producer forgotten: the state of the transaction is carried from group to group."""
    log = make_log(segment_bytes=1)
    log.append(("a", 1), pid=1, transactional=True)
    log.roll()
    log.append(("b", 1), pid=1, transactional=True)
    log.roll()
    log.abort(1)
    log.append(("c", 1))
    log.roll()
    indexed = aborted_in(log.directory)
    assert indexed == [(1, 0, 2, 3)]
    cleaning = Cleaning(log, kernel)
    now = NOW_MS + 2 * DAY_MS

    cleaning.run(now)
    assert offsets_in(log.directory) == [2, 3]
    assert empty_batch_ends(log.directory) == []
    assert (aborted_in(log.directory), delete_horizons(log.directory)) == (indexed, {})

    for step, horizons, offsets in ((0, {2: now + DAY_MS}, [2, 3, 4]), (DAY_MS, {}, [3, 4, 5])):
        log.append(("d" if step else "e", 1))
        log.roll()
        cleaning.run(now + step)
        assert (offsets_in(log.directory), delete_horizons(log.directory)) == (offsets, horizons)
        assert aborted_in(log.directory) == []


# ---- A42: old formats in one log


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_a42_compressed_and_plain_messages_of_both_old_formats(make_log: LogMaker, kernel: Kernel, codec: str) -> None:
    """Wrapped, plain, wrapped: inner offsets of magic 1 are relative, of magic 0 absolute, and V0 has no times."""
    log = make_log()
    log.append(("a", 0), ("b", 1), (None, 2), codec=codec, magic=1)
    log.append(("a", 3), magic=1)
    log.append(("c", 4), ("b", 5), ("d", None), codec=codec, magic=0)
    log.append(("e", 7), magic=0)
    log.append(("a", 8), ("f", 9), codec=codec, magic=1)
    log.append(("end", 10))
    log.roll()
    report = Cleaning(log, kernel).run()
    assert report.stats.invalid_messages_read == 1
    expected = [
        ("c", "4", 4),
        ("b", "5", 5),
        ("d", None, 6),
        ("e", "7", 7),
        ("a", "8", 8),
        ("f", "9", 9),
        ("end", "10", 10),
    ]
    assert pairs_in(log.directory) == expected
    assert {batch.header.magic for batch in batches_of(log.directory)} == {2}
    times = {record.offset: record.timestamp for record in records_of(log.directory)}
    assert [times[offset] for offset in (4, 5, 6, 7, 8, 9)] == [-1, -1, -1, -1, NOW_MS, NOW_MS]


# ---- A45: directories that are not live partitions


def test_a45_partitions_in_other_states_are_never_targets(make_log: LogMaker, log_dir: Path) -> None:
    unique = "0123456789abcdef" * 2
    for name in ("t-0", f"t-1.{unique}-delete", f"t-2.{unique}-stray", f"t-3.{unique}-future", "__cluster_metadata-0"):
        log = make_log(name)
        log.append(("a", 1))
    targets = find_targets([log_dir])
    assert [target.directory.name for target in targets.partitions] == ["t-0"]
    for name, why in (("delete", "being deleted"), ("stray", "set the partition aside"), ("future", "being moved")):
        (directory,) = log_dir.glob(f"*-{name}")
        (refused,) = find_targets([directory]).refused
        assert why in str(refused)
        assert find_targets([directory]).partitions == []


def test_of_foreign_directories_only_that_of_tiered_storage_goes_without_a_word(make_log: LogMaker) -> None:
    log_dir = make_log("t-0").directory.parent
    for name in ("remote-log-index-cache", "lost+found"):
        (log_dir / name).mkdir()
    targets = find_targets([log_dir])
    assert [target.directory.name for target in targets.partitions] == ["t-0"]
    (note,) = targets.notes
    assert note.startswith(f"{log_dir / 'lost+found'}: not a topic-partition dir")


# ---- two keys, one MD5


@pytest.mark.parametrize("kafka_map", [False, True])
def test_two_keys_of_one_md5_are_two_keys(make_log: LogMaker, kernel: Kernel, kafka_map: bool) -> None:
    """Kafka 4.4.0 keeps only the second record: its map compares digests."""
    log = make_log()
    for key in MD5_TWINS:
        log.append((key, 1))
    log.roll()
    Cleaning(log, kernel).run(kafka_map=kafka_map)
    assert [record.key for record in records_of(log.directory)] == MD5_TWINS
