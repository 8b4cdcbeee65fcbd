"""LogLoaderTest: Kafka's cases on start-up, by name (facts 12.4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactd.config.errors import RefusedError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.log import PartitionLog
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.records.batch import read_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from compactd.storage.segment import list_segments
from compactd.storage.split import split_segment
from compactd.storage.swap import segment_file_names
from compactd.storage.transaction_index import read_transaction_index
from tests.logs import NOW_MS, Entry, LogBuilder
from tests.storage.loader.loading import DENSE, bases, contents, leftovers, load, offsets, reload, snapshots


def ten_segments(directory: Path, count: int = 10, *, pid: int = -1) -> LogBuilder:
    """One-record segments from offset 0 on, the last of them active."""
    with LogBuilder(directory, DENSE) as log:
        for number in range(count):
            if number:
                log.roll()
            log.append([(f"k{number}", "v")], pid=pid)
    return log


def test_producer_snapshots_recovery_after_unclean_shutdown(tmp_path: Path) -> None:
    ten_segments(tmp_path / "t-0", pid=9)
    for offset in range(1, 8):
        (tmp_path / "t-0" / names.snapshot_name(offset)).unlink()
    loaded = load(tmp_path / "t-0", recovery_point=6)
    # Older segments are read to rebuild the state, those from the recovery point on are recovered.
    assert snapshots(tmp_path / "t-0") == [6, 7, 8, 9, 10]
    entry = loaded.producers.get(9)
    assert entry is not None and entry.last_sequence == 9


def test_recover_after_non_monotonic_coordinator_epoch_write(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        log.append([("a", "1")], pid=5, transactional=True)
        log.control("commit", 5, coordinator_epoch=5)
        log.append([("a", "2")], pid=5, transactional=True)
        log.control("abort", 5, coordinator_epoch=3)
    loaded = load(tmp_path / "t-0")
    entry = loaded.producers.get(5)
    assert entry is not None and entry.coordinator_epoch == 3


def test_skip_truncate_and_reload_if_new_message_format_and_clean_shutdown(tmp_path: Path) -> None:
    ten_segments(tmp_path / "t-0", 3, pid=9)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    loaded = load(tmp_path / "t-0", clean=True)
    assert len(loaded.producers) == 0, "the log is not read"
    assert snapshots(tmp_path / "t-0") == [1, 2, 3]


def test_load_producers_after_delete_records_mid_segment(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        log.append([("a", "1")], pid=1)
        log.append([("a", "2")], pid=2)
    loaded = load(tmp_path / "t-0", clean=True, log_start_offset=1)
    assert {1, 2} <= set(loaded.producers.active_producers(NOW_MS))
    assert set(reload(loaded).producers.active_producers(NOW_MS)) == {1, 2}


def test_load_producers_after_delete_records_on_segment(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        log.append([("a", "1")], pid=1)
        log.roll()
        log.append([("a", "2")], pid=2)
    for name in segment_file_names(0):
        (tmp_path / "t-0" / name).unlink(missing_ok=True)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    loaded = load(tmp_path / "t-0", log_start_offset=1)
    assert set(loaded.producers.active_producers(NOW_MS)) == {2}


def test_loading_log_keeps_largest_stray_producer_state_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with LogBuilder(directory, DENSE) as log:
        log.append([("a", "1")], pid=1)
        log.roll()
        log.append([("a", "2")], pid=1)
        log.roll()
        log.append([("a", "3"), ("a", "4")], pid=1)
    (directory / names.snapshot_name(3)).write_bytes((directory / names.snapshot_name(2)).read_bytes())
    assert snapshots(directory) == [1, 2, 3, 4]
    load(directory, clean=True)
    assert snapshots(directory) == [1, 2, 4]


@pytest.mark.parametrize("clean", [True, False])
def test_log_recovers_to_correct_offset(tmp_path: Path, clean: bool) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig(index_interval_bytes=100, segment_bytes=4000)) as log:
        for number in range(100):
            log.append([Entry(f"k{number}", "v" * 20, NOW_MS + number)])
    before = contents(tmp_path / "t-0")
    loaded = load(tmp_path / "t-0", clean=clean, config=log.config, recovery_point=10)
    assert loaded.log_end_offset == 100
    assert loaded.recovery_point == (100 if clean else 10)
    assert contents(tmp_path / "t-0") == before, "index entry counts are as before"
    again = reload(loaded)
    assert again.log_end_offset == again.recovery_point == 100


@pytest.mark.parametrize("clean", [True, False])
def test_index_rebuild(tmp_path: Path, clean: bool) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig(index_interval_bytes=1, segment_bytes=2000)) as log:
        for number in range(60):
            log.append([Entry(f"k{number}", "v", NOW_MS + number * 10)])
    before = contents(tmp_path / "t-0")
    for pattern in ("*.index", "*.timeindex"):
        for path in (tmp_path / "t-0").glob(pattern):
            path.unlink()
    loaded = load(tmp_path / "t-0", clean=clean, config=log.config, recovery_point=0 if not clean else 60)
    rebuilt = contents(tmp_path / "t-0")
    for name in (name for name in before if name.endswith("index")):
        assert rebuilt[name] == before[name], name
    segment = loaded.segments[1]
    assert segment.offset_index.lookup(segment.base_offset + 5)[0] == segment.base_offset + 5
    assert segment.time_index.lookup(NOW_MS + segment.base_offset * 10 + 30)[1] == segment.base_offset + 3


def test_corrupt_index_rebuild(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig(index_interval_bytes=1, segment_bytes=2000)) as log:
        for number in range(60):
            log.append([Entry(f"k{number}", "v", NOW_MS + number * 10)])
    before = contents(tmp_path / "t-0")
    for name in before:
        if name.endswith("index"):
            (tmp_path / "t-0" / name).write_bytes(b"  ")
    load(tmp_path / "t-0", config=log.config)
    assert contents(tmp_path / "t-0") == before


def test_bogus_index_segments_are_removed(tmp_path: Path) -> None:
    ten_segments(tmp_path / "t-0", 2)
    for base in (5, 9):
        for name in (names.offset_index_name(base), names.time_index_name(base), names.transaction_index_name(base)):
            (tmp_path / "t-0" / name).write_bytes(b"bogus")
    loaded = load(tmp_path / "t-0", clean=True)
    assert bases(loaded) == [0, 1]
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.read_bytes() == b"bogus"]


def test_open_deletes_obsolete_files(tmp_path: Path) -> None:
    ten_segments(tmp_path / "t-0", 3)
    for base in (0, 1):
        for name in segment_file_names(base):
            path = tmp_path / "t-0" / name
            if path.exists():
                path.rename(path.with_name(name + names.DELETED))
    loaded = load(tmp_path / "t-0", clean=True)
    assert bases(loaded) == [2]
    assert not list((tmp_path / "t-0").glob("*" + names.DELETED))


@pytest.mark.parametrize("junk", [1, 12, 17, 61, 200])
def test_corrupt_log(tmp_path: Path, junk: int) -> None:
    for turn in range(4):
        directory = tmp_path / f"t-{turn}"
        with LogBuilder(directory, DENSE) as log:
            for number in range(20):
                log.append([(f"k{number}", "v")])
        for path in (directory / names.log_name(0), directory / names.offset_index_name(0)):
            with path.open("ab") as file:
                file.write(bytes((turn * 31 + n * 7) % 256 for n in range(junk)))
        loaded = load(directory)
        assert loaded.log_end_offset == 20
        assert offsets(directory) == list(range(20))
        assert (directory / names.log_name(0)).stat().st_size == loaded.active_segment.size


def test_over_compacted_log_recovery(tmp_path: Path) -> None:
    """Offset 0, then 2^31 + 1: they do not fit one segment, so a load of such a segment makes two."""
    far = 2**31 + 1
    _overflowing(tmp_path / "t-0", [0, far, far + 1])
    loaded = load(tmp_path / "t-0")
    assert bases(loaded) == [0, far]
    assert offsets(tmp_path / "t-0") == [0, far, far + 1]
    assert loaded.log_end_offset == far + 2


def test_over_compacted_log_recovery_multi_record_v1(tmp_path: Path) -> None:
    """A compressed wrapper of magic 1 tells its first offset only when it is decompressed."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    far = 2**31 + 10
    sets = [
        build_message_set([Record(first, NOW_MS, b"k", b"v"), Record(first + 1, NOW_MS, b"k", b"w")], 1, 1)
        for first in (0, far)
    ]
    (directory / names.log_name(0)).write_bytes(b"".join(sets))
    loaded = load(directory)
    assert bases(loaded) == [0, far]
    assert offsets(directory) == [0, 1, far, far + 1]


def _overflowing(directory: Path, at: list[int]) -> Path:
    directory.mkdir(parents=True)
    log = directory / names.log_name(0)
    log.write_bytes(
        b"".join(build_batch([Record(n, NOW_MS, b"%d" % n, b"v")], base_offset=n, leader_epoch=0) for n in at)
    )
    return log


_FAR = 2**31 + 7


def test_recovery_of_segment_with_offset_overflow(tmp_path: Path) -> None:
    log = _overflowing(tmp_path / "t-0", [0, 5, _FAR, _FAR + 3])
    before = log.read_bytes()
    loaded = load(tmp_path / "t-0")
    assert bases(loaded) == [0, _FAR]
    assert b"".join(segment.log_path.read_bytes() for segment in loaded.segments) == before
    assert leftovers(tmp_path / "t-0") == []
    for segment in loaded.segments:
        with pytest.raises(RefusedError, match="fit one segment"):
            split_segment(segment)


def test_degenerate_segment_split(tmp_path: Path) -> None:
    """All of it overflows: exactly one new segment with another base."""
    _overflowing(tmp_path / "t-0", [_FAR, _FAR + 3])
    loaded = load(tmp_path / "t-0")
    assert bases(loaded) == [_FAR]
    assert offsets(tmp_path / "t-0") == [_FAR, _FAR + 3]


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
def test_recovery_after_crash_during_split_phase(tmp_path: Path, phase: int) -> None:
    """(1) all outputs .cleaned, (2) the last one .swap, (3) all .swap, (4) the source gone, (5) one done, one .swap."""
    directory = tmp_path / "t-0"
    _overflowing(directory, [0, 5, _FAR, _FAR + 3])
    shutil.copytree(directory, tmp_path / "split-0")
    split = load(tmp_path / "split-0")
    parts = [segment.base_offset for segment in split.segments]
    suffixes = {
        1: {parts[0]: names.CLEANED, parts[1]: names.CLEANED},
        2: {parts[0]: names.CLEANED, parts[1]: names.SWAP},
        3: {parts[0]: names.SWAP, parts[1]: names.SWAP},
        4: {parts[0]: names.SWAP, parts[1]: names.SWAP},
        5: {parts[0]: "", parts[1]: names.SWAP},
    }[phase]
    if phase >= 4:
        for name in segment_file_names(0):
            (directory / name).unlink(missing_ok=True)
    for base, suffix in suffixes.items():
        for name in segment_file_names(base):
            source = tmp_path / "split-0" / name
            if source.exists():
                shutil.copy(source, directory / (name + suffix))
    loaded = load(directory)
    assert bases(loaded) == [0, _FAR]
    assert offsets(directory) == [0, 5, _FAR, _FAR + 3]
    assert leftovers(directory) == []


def test_clean_shutdown_file(tmp_path: Path) -> None:
    """Recovery point 0, and yet nothing is recovered: the log was closed in good order."""
    ten_segments(tmp_path / "t-0", 5)
    loaded = load(tmp_path / "t-0", clean=True, recovery_point=0)
    assert loaded.log_end_offset == 5
    assert [action for action in loaded.actions if action.kind == "rebuilt"] == []


def test_log_recovers_for_leader_epoch(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        log.append([("a", "1")], leader_epoch=1)
        log.append([("a", "2"), ("a", "3")], leader_epoch=2)
        log.append([("a", "4"), ("a", "5")], leader_epoch=3)
    path = tmp_path / "t-0" / names.LEADER_EPOCH_CHECKPOINT
    assert LeaderEpochs.read(path).entries == [(1, 0), (2, 1), (3, 3)]
    for cut in ("0\n0\n", "0\n1\n1 0\n", "0\n2\n1 0\n2 1\n"):
        path.write_text(cut)
        assert load(tmp_path / "t-0").epochs.entries == [(1, 0), (2, 1), (3, 3)]
        assert LeaderEpochs.read(path).entries == [(1, 0), (2, 1), (3, 3)]


def _two_transactions(directory: Path) -> LogBuilder:
    """Producers 1 and 2 in turn over three segments; both abort: 1 at offset 29, 2 at 74."""
    with LogBuilder(directory, DENSE) as log:
        while log.log_end_offset < 75:
            at = log.log_end_offset
            if at == 29:
                log.control("abort", 1)
            elif at == 74:
                log.control("abort", 2)
            else:
                log.append([(f"k{at}", "v")], pid=1 if at < 8 else 2, transactional=True)
            if at in (25, 50):
                log.roll()
    return log


_ABORTED = [AbortedTransaction(1, 0, 29, 8), AbortedTransaction(2, 8, 74, 75)]


def _stored(directory: Path) -> list[AbortedTransaction]:
    return [
        entry
        for segment in list_segments(directory)
        for entry in read_transaction_index(segment.transaction_index_path)
    ]


def test_full_transaction_index_recovery(tmp_path: Path) -> None:
    _two_transactions(tmp_path / "t-0")
    assert _stored(tmp_path / "t-0") == _ABORTED
    for path in [*(tmp_path / "t-0").glob("*.index"), *(tmp_path / "t-0").glob("*.txnindex")]:
        path.unlink()
    load(tmp_path / "t-0")
    assert _stored(tmp_path / "t-0") == _ABORTED


def test_recover_only_last_segment(tmp_path: Path) -> None:
    _two_transactions(tmp_path / "t-0")
    for name in (names.offset_index_name(51), names.transaction_index_name(51)):
        (tmp_path / "t-0" / name).unlink()
    load(tmp_path / "t-0", recovery_point=51)
    assert _stored(tmp_path / "t-0") == _ABORTED


def test_recover_last_segment_with_no_snapshots(tmp_path: Path) -> None:
    _two_transactions(tmp_path / "t-0")
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    for name in (names.offset_index_name(51), names.transaction_index_name(51)):
        (tmp_path / "t-0" / name).unlink()
    load(tmp_path / "t-0", recovery_point=51)
    assert _stored(tmp_path / "t-0") == _ABORTED


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_log_end_less_than_start_after_reopen(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    ten_segments(directory, 5)
    _flip(directory / names.log_name(1), 65)
    loaded = load(directory, log_start_offset=4)
    assert bases(loaded) == [4]
    assert loaded.log_start_offset == loaded.log_end_offset == 4
    assert loaded.epochs.entries == []
    assert (directory / names.offset_index_name(4)).exists()
    assert (directory / names.time_index_name(4)).exists()


def test_corrupted_log_recovery_does_not_delete_producer_state_snapshots_post_recovery(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    ten_segments(directory, 5, pid=9)
    _flip(directory / names.log_name(1), 65)
    loaded = load(directory, log_start_offset=4)
    assert all(path.name.endswith(names.DELETED) for path in loaded.deleted_files)
    log = PartitionLog(loaded, now_ms=NOW_MS)
    for number in range(5):
        batch = build_batch([Record(0, NOW_MS, b"k", b"%d" % number)], base_offset=0)
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        log.roll(now_ms=NOW_MS)
    log.remove_due(NOW_MS + log.config.file_delete_delay_ms)
    log.close(orderly=False)
    assert snapshots(directory) == [5, 6, 7, 8, 9]
    assert not list(directory.glob("*" + names.DELETED))


def test_recover_with_empty_active_segment(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with LogBuilder(directory, DENSE) as log:
        log.append([("a", "1")])
        log.roll()
    for name in (names.offset_index_name(1), names.time_index_name(1)):
        (directory / name).unlink(missing_ok=True)
    loaded = load(directory, recovery_point=1)
    assert bases(loaded) == [0, 1]
    assert (directory / names.offset_index_name(1)).exists()
    assert (directory / names.time_index_name(1)).exists()


def test_load_partition_dir_with_no_segments_should_not_throw(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    loaded = load(directory, clean=True, log_start_offset=7)
    assert (bases(loaded), loaded.log_start_offset, loaded.log_end_offset) == ([7], 7, 7)


def test_loading_log_deletes_producer_state_snapshots_past_log_end_offset(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for offset in (1, 2, 4):
        (directory / names.snapshot_name(offset)).write_bytes(bytes.fromhex("000148674bc700000000"))
    load(directory)
    assert snapshots(directory) == []


def test_recovery_truncates_corrupt_leader_epochs_beyond_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    ten_segments(directory, 3)
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n7 900\n")
    assert load(directory, clean=True).epochs.entries == [(0, 0)]


def test_delete_directories_are_loaded_without_recovery(tmp_path: Path) -> None:
    directory = tmp_path / ("t-0." + "a" * 32 + "-delete")
    ten_segments(tmp_path / "t-0", 3)
    (tmp_path / "t-0").rename(directory)
    _flip(directory / names.log_name(0), 65)
    before = (directory / names.log_name(0)).read_bytes()
    loaded = load(directory)
    assert loaded.log_end_offset == 0
    assert (directory / names.log_name(0)).read_bytes() == before
    assert (directory / names.LEADER_EPOCH_CHECKPOINT).read_text() == "0\n0\n"


def test_index_entries_of_a_recovered_segment_point_at_batches(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with LogBuilder(directory, TopicConfig(index_interval_bytes=150)) as log:
        for number in range(50):
            log.append([(f"k{number}", "v" * (number % 7))])
    (directory / names.offset_index_name(0)).unlink()
    load(directory, config=log.config)
    starts = {batch.header.last_offset: batch.header.position for batch in read_batches(directory / names.log_name(0))}
    index = OffsetIndex.read(directory / names.offset_index_name(0), 0)
    assert len(index) > 10
    assert all(starts[offset] == position for offset, position in index.entries)
