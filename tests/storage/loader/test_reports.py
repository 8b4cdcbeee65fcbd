"""Faults that people reported, as small inputs: loading, indexes, checkpoints, start-up (A8, A9, A13, A15, A27, A34, A37, A41)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from compactd.config.errors import StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.kernel import scanning
from compactd.storage.loaded_log import CUT, WARNING
from compactd.storage.orderly_close import close_orderly
from compactd.storage.segment import list_segments
from tests.file_faults import FaultyLayer
from tests.logs import NOW_MS, Entry, LogBuilder
from tests.storage.loader.loading import DENSE, bases, contents, load, offsets, snapshots

GROWN = bytes(10 << 20)


def _log(directory: Path, batches: int = 6) -> None:
    with LogBuilder(directory, DENSE) as log:
        for number in range(batches):
            log.append([Entry(f"k{number}", "v", NOW_MS + number)])


def _damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    entry = 8 if path.suffix == ".index" else 12
    match kind:
        case "zeros":
            path.write_bytes(GROWN)
        case "grown":
            path.write_bytes(content + bytes(1 << 16))
        case "bytes":
            path.write_bytes(bytes(7))
        case "beyond":
            path.write_bytes(content[:-4] + (1 << 30).to_bytes(4, "big"))
        case "decreasing":
            path.write_bytes(content + content[:entry])
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")


@pytest.mark.parametrize("kind", ["zeros", "grown", "bytes", "beyond", "decreasing", "missing", "empty"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a8_a_damaged_index_is_rebuilt_after_an_unclean_stop(tmp_path: Path, kind: str, suffix: str) -> None:
    _log(tmp_path / "t-0")
    before = contents(tmp_path / "t-0")
    _damage(tmp_path / "t-0" / (f"{0:020d}" + suffix), kind)
    load(tmp_path / "t-0")
    assert contents(tmp_path / "t-0") == before


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".index", kind) for kind in ("zeros", "grown", "bytes", "beyond", "missing")]
    + [(".timeindex", kind) for kind in ("zeros", "grown", "bytes", "missing")],
)
def test_a8_so_it_is_after_a_clean_one(tmp_path: Path, suffix: str, kind: str) -> None:
    """Kafka looks at no index content on a clean start; a cheap look at the last entry costs nothing and mends these."""
    _log(tmp_path / "t-0")
    before = contents(tmp_path / "t-0")
    _damage(tmp_path / "t-0" / (f"{0:020d}" + suffix), kind)
    loaded = load(tmp_path / "t-0", clean=True)
    close_orderly(loaded)
    after = contents(tmp_path / "t-0")
    assert after == before
    assert loaded.active_segment.max_timestamp == NOW_MS + 5


@pytest.mark.parametrize("what", ["junk", "zeros", "torn"])
def test_a_torn_tail_after_a_clean_stop_is_cut(tmp_path: Path, what: str) -> None:
    """Kafka would append behind it, where no reader gets past it."""
    _log(tmp_path / "t-0")
    log = tmp_path / "t-0" / names.log_name(0)
    whole = log.read_bytes()
    tail = {"junk": b"\x01\x02" * 40, "zeros": bytes(100), "torn": whole[:50]}[what]
    log.write_bytes(whole + tail)
    loaded = load(tmp_path / "t-0", clean=True)
    assert log.read_bytes() == whole
    assert loaded.log_end_offset == 6
    assert [action.kind for action in loaded.actions if action.kind in (CUT, WARNING)] == [WARNING, CUT]


# ---- A9: a full disk


class FullDisk(FaultyLayer):
    """Nothing that needs room can be done; names can be changed and files removed or shortened."""

    def write(self, fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _killed(directory: Path, producers: bool = False) -> None:
    """As a killed broker leaves a log: preallocated indexes, a torn tail, no snapshot at the end."""
    with LogBuilder(directory, DENSE) as log:
        for number in range(8):
            if number == 4:
                log.roll()
            log.append([Entry(f"k{number}", "v", NOW_MS + number)], pid=7 if producers else -1)
    for path in directory.glob(f"{4:020d}.*index"):
        path.write_bytes(path.read_bytes() + bytes(4096))
    (directory / names.snapshot_name(8)).unlink()
    with (directory / names.log_name(4)).open("ab") as file:
        file.write(b"\x00" * 20)


def test_a9_recovery_works_with_no_byte_free(tmp_path: Path) -> None:
    _killed(tmp_path / "t-0", producers=True)
    layer = FullDisk()
    with files.replaced(layer):
        loaded = load(tmp_path / "t-0", recovery_point=4)
        entry = loaded.producers.get(7)
        assert entry is not None and entry.last_sequence == 7
        assert (loaded.log_end_offset, bases(loaded)) == (8, [0, 4])
    assert any("snapshot" in action.detail for action in loaded.actions), "what could not be written is said"
    assert offsets(tmp_path / "t-0") == list(range(8))
    # The indexes were there already, so only their preallocated tails had to go.
    assert (tmp_path / "t-0" / names.offset_index_name(4)).stat().st_size == 24
    # With room again the next start completes what is missing.
    again = load(tmp_path / "t-0", recovery_point=4)
    assert again.log_end_offset == 8
    assert snapshots(tmp_path / "t-0") == [4, 8]


def test_a9_indexes_that_do_not_fit_are_kept_in_memory(tmp_path: Path) -> None:
    _killed(tmp_path / "t-0")
    (tmp_path / "t-0" / names.offset_index_name(4)).unlink()
    layer = FullDisk()
    with files.replaced(layer):
        loaded = load(tmp_path / "t-0", recovery_point=4)
        active = loaded.active_segment
        assert active.offset_index.lookup(6) == (6, active.offset_index.entries[1][1])
        assert active.max_timestamp == NOW_MS + 7
    assert not (tmp_path / "t-0" / names.offset_index_name(4)).exists(), "so the next start rebuilds it"
    load(tmp_path / "t-0", recovery_point=4)
    assert (tmp_path / "t-0" / names.offset_index_name(4)).stat().st_size == 24


def test_a9_another_error_than_a_full_disk_is_told(tmp_path: Path) -> None:
    _killed(tmp_path / "t-0")
    (tmp_path / "t-0" / names.offset_index_name(4)).unlink()
    layer = FaultyLayer()
    layer.fail("write", errno.EIO)
    with files.replaced(layer), pytest.raises(StorageIOError, match="EIO"):
        load(tmp_path / "t-0", recovery_point=4)


# ---- the others


def test_a13_a_directory_that_vanished_is_an_io_error_of_its_dir(tmp_path: Path) -> None:
    with pytest.raises(StorageIOError):
        load(tmp_path / "t-0")


def test_a27_the_end_is_not_lost_with_the_empty_active_file(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        log.append([("a", "1")], pid=1, transactional=True)
        log.control("abort", 1)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    assert load(tmp_path / "t-0", recovery_point=2).log_end_offset == 2


def test_a34_only_what_was_not_flushed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 segments, recovery point in the 990th."""
    directory = tmp_path / "t-0"
    with LogBuilder(directory, DENSE) as log:
        for number in range(1000):
            if number:
                log.roll()
            log.append([("k", "v")])
    scanned: list[str] = []
    scan = scanning.scan_segment

    def counting(path: str, *args: object, **kwargs: object) -> scanning.SegmentScan:
        scanned.append(Path(path).name)
        return scan(path, *args, **kwargs)  # type: ignore[arg-type]

    for module in ("loader", "segment", "producer_snapshots"):
        monkeypatch.setattr(f"compactd.storage.{module}.scan_segment", counting)
    loaded = load(directory, recovery_point=990)
    assert loaded.log_end_offset == 1000
    assert set(scanned) == {names.log_name(base) for base in range(990, 1000)}


NULS = bytes(100)


@pytest.mark.parametrize("content", [b"", NULS, b"0\n2\n0 0\n", b"aa", b"0\n1\n0 zero\n", b"7\n0\n", b"0\n1\n0 "])
def test_a37_damaged_epochs_are_read_from_the_batches(tmp_path: Path, content: bytes) -> None:
    directory = tmp_path / "t-0"
    with LogBuilder(directory, DENSE) as log:
        log.append([("a", "1")], leader_epoch=2)
        log.roll()
        log.append([("a", "2")], leader_epoch=5)
    path = directory / names.LEADER_EPOCH_CHECKPOINT
    path.write_bytes(content)
    path.with_name(path.name + ".tmp").write_bytes(b"half")
    loaded = load(directory, clean=True)
    # An empty file is a valid one without entries; a clean start reads no batch then, as in Kafka.
    assert loaded.epochs.entries == ([] if content == b"" else [(2, 0), (5, 1)])
    assert LeaderEpochs.read(path).entries == loaded.epochs.entries
    assert not list(directory.glob("*.tmp"))


def test_a37_damaged_topic_id_is_passed_by(tmp_path: Path) -> None:
    _log(tmp_path / "t-0")
    (tmp_path / "t-0" / names.PARTITION_METADATA).write_bytes(NULS)
    loaded = load(tmp_path / "t-0", clean=True)
    assert loaded.topic_id is None
    assert any(action.kind == WARNING for action in loaded.actions)


@pytest.mark.parametrize("clean", [True, False])
def test_a41_timestamps_are_there_after_a_restart(tmp_path: Path, clean: bool) -> None:
    with LogBuilder(tmp_path / "t-0", DENSE) as log:
        for number in range(3):
            log.append([Entry("k", "v", NOW_MS + number)])
            log.roll()
    loaded = load(tmp_path / "t-0", clean=clean)
    assert [segment.largest_timestamp for segment in loaded.segments[:3]] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]


def test_an_offset_that_goes_back_is_damage(tmp_path: Path) -> None:
    """The CRC does not cover the base offset: Kafka takes the batch over, or empties the whole segment."""
    _log(tmp_path / "t-0")
    log = tmp_path / "t-0" / names.log_name(0)
    data = bytearray(log.read_bytes())
    size = len(data) // 6
    data[3 * size + 7] = 1
    log.write_bytes(bytes(data))
    loaded = load(tmp_path / "t-0")
    assert loaded.log_end_offset == 3
    assert offsets(tmp_path / "t-0") == [0, 1, 2]


def test_of_two_batches_that_contradict_each_other_neither_is_served(tmp_path: Path) -> None:
    """Offset 3 became 5 by one bit; batch 4 behind it is right, and nobody can tell."""
    _log(tmp_path / "t-0")
    log = tmp_path / "t-0" / names.log_name(0)
    data = bytearray(log.read_bytes())
    size = len(data) // 6
    data[3 * size + 7] = 5
    log.write_bytes(bytes(data))
    assert load(tmp_path / "t-0").log_end_offset == 3
    assert offsets(tmp_path / "t-0") == [0, 1, 2]


def test_a_far_offset_in_the_middle_is_damage_and_no_reason_to_split(tmp_path: Path) -> None:
    _log(tmp_path / "t-0")
    log = tmp_path / "t-0" / names.log_name(0)
    data = bytearray(log.read_bytes())
    size = len(data) // 6
    data[3 * size + 1] = 1
    log.write_bytes(bytes(data))
    loaded = load(tmp_path / "t-0")
    assert bases(loaded) == [0]
    assert loaded.log_end_offset == 3


def test_what_a_repair_cuts_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with LogBuilder(directory, DENSE) as log:
        for number in range(6):
            if number == 3:
                log.roll()
            log.append([(f"k{number}", "v")])
    path = directory / names.log_name(0)
    size = path.stat().st_size // 3
    data = bytearray(path.read_bytes())
    data[size + 65] ^= 4
    path.write_bytes(bytes(data))
    later = (directory / names.log_name(3)).read_bytes()
    loaded = load(directory, keep_cut=True)
    assert loaded.log_end_offset == 1
    assert (directory / f"{names.log_name(0)}.{size}.cut").read_bytes() == bytes(data[size:])
    assert (directory / f"{names.log_name(3)}.cut").read_bytes() == later
    assert [segment.base_offset for segment in list_segments(directory)] == [0]
    assert loaded.deleted_files == []
    # Nobody takes the kept files for anything.
    assert load(directory, config=TopicConfig()).log_end_offset == 1
