"""A log's copy in another log dir: level with a log that is appended to, cleaned and cut at its start, and the crash matrix."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.config.errors import CorruptBatchError, FaultError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog
from compactd.storage.log_copy import LogCopy
from compactd.storage.log_exchange import (
    MOVED_FROM,
    exchange,
    finish_interrupted,
    forget_origin,
    future_copies,
    origin_of,
)
from compactd.storage.names import TopicPartition
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.file_faults import FaultyLayer, PowerCut

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
CONFIG = TopicConfig(segment_bytes=400, retention_ms=-1, retention_bytes=-1, file_delete_delay_ms=500)

#: Records of the crash matrix: three segments.
_FEW = 9
OPEN: list[PartitionLog | LogCopy] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        each = OPEN.pop()
        if isinstance(each, LogCopy):
            each.close()
        else:
            each.close(orderly=False)
            each.local.close()


def opened(log: PartitionLog) -> PartitionLog:
    OPEN.append(log)
    return log


def make(root: Path, config: TopicConfig = CONFIG, topic_id: bool = True) -> PartitionLog:
    """An empty log in `a`, beside an empty `b`."""
    for each in ("a", "b"):
        (root / each).mkdir(parents=True)
    identity = names.parse_uuid("R0h2GY22SfSFe562CeoJag") if topic_id else None
    return opened(PartitionLog.create(root / "a" / "t-0", config, now_ms=NOW, topic_id=identity))


def append(log: PartitionLog, count: int = 1, **more: object) -> None:
    for _ in range(count):
        number = log.log_end_offset
        batch = build_batch(
            [Record(0, NOW + number, b"k%d" % (number % 5), b"v%d" % number * 9)], base_offset=0, **more
        )  # type: ignore[arg-type]
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)


def begin(log: PartitionLog, root: Path) -> LogCopy:
    copy = LogCopy(log, root / "b" / names.future_dir_name(NAME, "0" * 32))
    OPEN.append(copy)
    copy.begin()
    return copy


def run(copy: LogCopy, most: int = 100) -> None:
    while copy.step(most):
        pass


def finish(copy: LogCopy, recorded: bool = True) -> PartitionLog:
    copy.finish()
    moved = opened(PartitionLog(copy.load(NOW), now_ms=NOW))
    moved.take_over(copy.log)
    assert exchange(copy.log, moved, recorded=recorded) is None
    forget_origin(moved.directory)
    return moved


def batches(log: PartitionLog) -> bytes:
    return b"".join(segment.read(0, segment.size) for segment in log.segments)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith(names.DELETED)}


def test_the_copy_is_the_log_as_an_orderly_stop_leaves_it(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 4)
    append(log, 1, producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, 9)
    append(log, 1, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_marker("abort", 8, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    append(log, 1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    copy = begin(log, tmp_path)
    run(copy)
    assert copy.lag == 0 and copy.size == log.size
    append(log, 7)
    assert copy.lag == 7
    state = log.producers
    stable = log.last_stable_offset
    moved = finish(copy)
    assert moved.directory == tmp_path / "b" / "t-0"
    assert moved.offsets() == log.offsets() and moved.last_stable_offset == stable < moved.log_end_offset
    assert moved.producers is state and sorted(e.producer_id for e in state.entries()) == [7, 8, 9]
    assert batches(moved) == batches(log)
    assert not (moved.directory / MOVED_FROM).exists()
    assert not (tmp_path / "a" / "t-0").exists()
    # Every file, as if the log had been closed where it was.
    log.close()
    theirs = contents(log.directory)
    assert contents(moved.directory) == theirs
    append(moved, 3)
    assert moved.log_end_offset == log.log_end_offset + 3
    moved.close()
    again = load_log(moved.directory, CONFIG, clean_shutdown=True, now_ms=NOW)
    assert not again.actions and again.log_end_offset == moved.log_end_offset


def test_a_log_in_full_use(tmp_path: Path) -> None:
    """Appends, rolls, retention and records that are deleted, while the copy is made in another thread."""
    log = make(
        tmp_path, TopicConfig(segment_bytes=4000, retention_ms=-1, retention_bytes=60_000, file_delete_delay_ms=0)
    )
    append(log, 300)
    copy = begin(log, tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                copy.step(500)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(150):
        append(log, 10)
        if number % 10 == 0:
            log.delete_old_segments(NOW)
            log.remove_due(NOW + 1)
        if number % 17 == 0:
            log.maybe_increment_log_start_offset(log.log_start_offset + 11)
    stop.set()
    thread.join()
    assert not failures
    moved = finish(copy)
    assert moved.offsets() == log.offsets() and batches(moved) == batches(log)
    assert len(list(moved.directory.glob("*.log"))) == len(moved.segments)
    moved.close()
    assert load_log(
        moved.directory, CONFIG, clean_shutdown=True, now_ms=NOW, log_start_offset=log.log_start_offset
    ).actions == []  # fmt: skip


def test_segments_that_a_clean_replaced_are_copied_anew(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 20)
    copy = begin(log, tmp_path)
    run(copy)
    old = [segment.base_offset for segment in log.segments[:3]]
    first = log.segments[0]
    kept = first.read(0, first.size)
    for name in (names.log_name, names.offset_index_name, names.time_index_name):
        path = Path(first.path(name))
        (path.with_name(path.name + names.CLEANED)).write_bytes(kept if name is names.log_name else path.read_bytes())
    log.replace_segments([old[0]], old, NOW)
    moved = finish(copy)
    assert batches(moved) == batches(log) and len(moved.segments) == len(log.segments)


def test_a_copy_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 30)
    copy = begin(log, tmp_path)
    for _ in range(12):
        copy.step(100)
    copy.close()
    half = sorted(path.name for path in copy.directory.glob("*.log"))
    (copy.directory / "leftover").write_bytes(b"x")
    # One segment that is not what the log has, one that the log never had.
    spoiled = copy.directory / half[0]
    spoiled.write_bytes(spoiled.read_bytes()[:-3] + b"???more")
    (copy.directory / names.log_name(999)).write_bytes(b"x")
    append(log, 5)
    again = LogCopy(log, copy.directory)
    OPEN.append(again)
    again.begin()
    moved = finish(again)
    assert batches(moved) == batches(log)
    log.close()
    assert contents(moved.directory) == contents(log.directory)


def test_an_empty_log_and_one_whose_records_are_gone(tmp_path: Path) -> None:
    log = make(tmp_path / "empty")
    assert finish(begin(log, tmp_path / "empty")).log_end_offset == 0
    gone = make(
        tmp_path / "gone", TopicConfig(segment_bytes=400, retention_ms=1, file_delete_delay_ms=0), topic_id=False
    )
    append(gone, 10)
    gone.delete_old_segments(NOW + 10_000)
    moved = finish(begin(gone, tmp_path / "gone"))
    assert moved.log_start_offset == moved.log_end_offset == 10
    append(moved, 1)


def test_a_damaged_batch_is_not_carried_over(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 20)
    path = log.segments[1].log_path
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    copy = begin(log, tmp_path)
    with pytest.raises(CorruptBatchError) as caught:
        run(copy)
    assert caught.value.path == str(path)
    append(log, 1)


@pytest.mark.parametrize("call", ["write", "fsync", "open_output", "fsync_dir"])
def test_an_error_of_the_target_names_it(tmp_path: Path, call: str) -> None:
    log = make(tmp_path)
    append(log, 20)
    layer = FaultyLayer()
    with files.replaced(layer):
        copy = begin(log, tmp_path)
        layer.fail(call, errno.EIO, part=str(tmp_path / "b"))
        with pytest.raises(StorageIOError) as caught:
            run(copy)
            copy.finish()
        assert caught.value.path.startswith(str(tmp_path / "b"))
        copy.close()
    append(log, 1)


def test_what_is_not_the_log_is_not_taken(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 20)
    copy = begin(log, tmp_path)
    copy.finish()
    append(log, 1)
    with pytest.raises(FaultError, match="the copy holds"):
        copy.load(NOW)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_copy_that_cannot_be_renamed_leaves_the_log_in_place(tmp_path: Path, recorded: bool) -> None:
    log = make(tmp_path)
    append(log, 20)
    copy = begin(log, tmp_path)
    copy.finish()
    moved = opened(PartitionLog(copy.load(NOW), now_ms=NOW))
    layer = FaultyLayer()
    layer.fail("rename", errno.EIO, part=names.FUTURE_DIR)
    with files.replaced(layer), pytest.raises(StorageIOError):
        exchange(log, moved, recorded=recorded)
    assert log.directory == tmp_path / "a" / "t-0" and log.directory.is_dir()
    append(log, 2)


def test_a_log_whose_own_disk_fails_is_left_behind(tmp_path: Path) -> None:
    log = make(tmp_path)
    append(log, 20)
    copy = begin(log, tmp_path)
    copy.finish()
    moved = opened(PartitionLog(copy.load(NOW), now_ms=NOW))
    layer = FaultyLayer()
    layer.fail("rename", errno.EIO, part=str(tmp_path / "a"))
    with files.replaced(layer):
        assert exchange(log, moved, recorded=True) is not None
    forget_origin(moved.directory)
    assert origin_of(moved.directory) == tmp_path / "a" / "t-0"
    append(moved, 2)
    # Its disk is back with the next start.
    (retired,) = finish_interrupted(moved.directory)
    assert retired.parent == tmp_path / "a" and not (tmp_path / "a" / "t-0").exists()
    forget_origin(moved.directory)
    assert origin_of(moved.directory) is None and finish_interrupted(moved.directory) == []


@pytest.mark.parametrize("loss", ["process", "power"])
def test_crash_matrix(tmp_path: Path, loss: str) -> None:
    """Stopped at every call from the first to the last: the log is there, whole, where the catalogue says."""
    count = _stopped(tmp_path / "count", None, loss)[0]
    assert count > 40
    for number in range(0, count, 1 if loss == "process" else 2):
        root = tmp_path / str(number)
        _, recorded = _stopped(root, number, loss)
        wanted = root / ("b" if recorded else "a") / "t-0"
        finish_interrupted(wanted)
        forget_origin(wanted)
        loaded = load_log(wanted, CONFIG, clean_shutdown=False, now_ms=NOW, recovery_point=_FEW)
        log = opened(PartitionLog(loaded, now_ms=NOW))
        assert log.log_end_offset == _FEW and log.log_start_offset == 0, f"stopped at call {number}"
        assert len(list(root.glob("*/t-0"))) == 1, f"stopped at call {number}"
        assert origin_of(wanted) is None
        if not recorded:
            for path in future_copies(root / "b").get(NAME, ()):
                again = LogCopy(log, path)
                OPEN.append(again)
                again.begin()
                moved = finish(again)
                assert batches(moved) == batches(log)
                moved.close(orderly=False)
        log.close(orderly=False)
        shutil.rmtree(root)


def _stopped(root: Path, number: int | None, loss: str) -> tuple[int, bool]:
    """Calls that were made, and whether the catalogue had recorded the move."""
    layer = FaultyLayer()
    recorded = False
    with files.replaced(layer):
        log = make(root)
        append(log, _FEW)
        log.close()
        loaded = load_log(log.directory, CONFIG, clean_shutdown=True, now_ms=NOW)
        log = opened(PartitionLog(loaded, now_ms=NOW, high_watermark=_FEW))
        before = layer.count
        if number is not None:
            layer.stop_at(before + number, after=True)
        try:
            copy = begin(log, root)
            run(copy)
            copy.sync()
            copy.finish()
            moved = opened(PartitionLog(copy.load(NOW), now_ms=NOW))
            moved.take_over(log)
            recorded = True
            exchange(log, moved, recorded=True)
        except PowerCut:
            assert number is not None
        count = layer.count - before
        layer.close_all()
        if loss == "power":
            layer.lose_unsynced()
    return count, recorded
