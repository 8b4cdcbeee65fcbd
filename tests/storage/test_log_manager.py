"""LogManagerTest: Kafka's cases on log dirs, by name (facts 12.7), and the crash matrix of deleting and moving a partition."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.config.errors import CompactdError, LogDirLockedError, RefusedError, StorageIOError
from compactd.config.settings import StorageConfig, TopicConfig
from compactd.storage import files, names
from compactd.storage.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from compactd.storage.log import PartitionLog
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.log_exchange import MOVED_FROM
from compactd.storage.log_manager import LogManager
from compactd.storage.managed_dir import remove_tree
from compactd.storage.names import TopicPartition
from compactd.storage.placement import log_dirs_by_load
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.file_faults import FaultyLayer, PowerCut

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
CONFIG = TopicConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=500)
OPEN: list[LogManager] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        manager = OPEN.pop()
        for managed in list(manager.dirs.values()):
            for log in managed.logs.values():
                log.close(orderly=False)
            for copy in managed.futures.values():
                copy.close()
        manager.release()


def manager(*dirs: Path, config: TopicConfig = CONFIG, start: bool = True, **settings: object) -> LogManager:
    made = LogManager(dirs, lambda _topic: config, StorageConfig(**settings))  # type: ignore[arg-type]
    OPEN.append(made)
    if start:
        made.start(NOW)
    return made


def append(log: PartitionLog, count: int = 1, ts: int = NOW) -> None:
    for _ in range(count):
        batch = build_batch([Record(0, ts, b"key", b"value" * 10)], base_offset=0)
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)


def entries(path: Path, name: str) -> dict[str, int]:
    return {str(key): offset for key, offset in OffsetCheckpoint(path / name).read().items()}


def test_log_recovery_is_called_upon_broker_crash(tmp_path: Path) -> None:
    """The marker says clean, is gone during the load, and comes back after an orderly stop only."""
    first = manager(tmp_path / "d")
    append(first.create(NAME, NOW), 3)
    first.close()
    assert LogDir(tmp_path / "d").clean_shutdown() is not None
    second = manager(tmp_path / "d")
    assert second.dirs[tmp_path / "d"].session.clean
    assert LogDir(tmp_path / "d").clean_shutdown() is None
    log = second.get(NAME)
    assert log is not None and log.log_end_offset == 3
    log.close(orderly=False)
    second.release()
    third = manager(tmp_path / "d")
    assert not third.dirs[tmp_path / "d"].session.clean


def test_an_io_error_while_loading_takes_the_dir_offline_and_the_others_go_on(tmp_path: Path) -> None:
    dirs = tmp_path / "a", tmp_path / "b"
    first = manager(*dirs)
    for number in range(2):
        append(first.create(TopicPartition("t", number), NOW))
    first.close()
    holder = next(path for path in dirs if (path / "t-0").exists())
    layer = FaultyLayer()
    layer.fail(None, errno.EIO, nth=None, part=f"{holder}/t-0")
    told: list[Path] = []
    second = LogManager(dirs, lambda _topic: CONFIG, on_offline=lambda path, _error: told.append(path))
    OPEN.append(second)
    (holder / "t-0" / names.snapshot_name(1)).unlink()
    with files.replaced(layer):
        second.start(NOW)
    assert told == [holder] == list(second.offline)
    assert second.get(NAME) is None
    assert second.get(TopicPartition("t", 1)) is not None
    assert not (holder / names.LOCK).exists()
    with pytest.raises(StorageIOError, match="offline"):
        second.create(NAME, NOW, is_new=False)
    second.close()
    assert LogDir(holder).clean_shutdown() is None, "a failed load counts as unclean next time"


def test_a_damaged_log_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    first = manager(tmp_path / "d")
    for number in range(2):
        append(first.create(TopicPartition("t", number), NOW))
    first.close()
    with (tmp_path / "d" / "t-0" / names.log_name(0)).open("wb") as file:
        file.truncate(2**31)
    second = manager(tmp_path / "d")
    assert list(second.dirs[tmp_path / "d"].faulty) == [NAME]
    assert second.get(TopicPartition("t", 1)) is not None
    second.close()
    assert LogDir(tmp_path / "d").clean_shutdown() is None


def test_cleanup_expired_segments(tmp_path: Path) -> None:
    made = manager(tmp_path / "d")
    log = made.create(NAME, NOW)
    append(log, 20, ts=NOW - 2000)
    assert len(log.segments) > 3
    count = len(log.segments)
    assert made.retain(NOW) == {NAME: count}
    assert [segment.size for segment in log.segments] == [0]
    log.remove_due(NOW + 501)
    made.close()
    kept = sorted(path.name for path in (tmp_path / "d" / "t-0").iterdir())
    base = log.log_end_offset
    assert kept == [
        names.offset_index_name(base),
        names.log_name(base),
        names.snapshot_name(base),
        names.time_index_name(base),
        names.LEADER_EPOCH_CHECKPOINT,
    ]


def test_cleanup_segments_to_maintain_size(tmp_path: Path) -> None:
    size = len(build_batch([Record(0, NOW, b"key", b"value" * 10)], base_offset=0))
    config = TopicConfig(segment_bytes=10 * size, retention_bytes=5 * 10 * size + 10)
    made = manager(tmp_path / "d", config=config)
    log = made.create(NAME, NOW)
    append(log, 200)
    made.retain(NOW)
    assert len(log.segments) == 6


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_doesnt_clean_logs_with_compact_policy(tmp_path: Path, policy: str) -> None:
    config = TopicConfig(cleanup_policy=frozenset(policy.split(",")), segment_bytes=300, retention_ms=1)
    made = manager(tmp_path / "d", config=config)
    log = made.create(NAME, NOW)
    append(log, 20, ts=1)
    count = len(log.segments)
    assert made.retain(NOW) == {}
    assert len(log.segments) == count


def test_least_loaded_assignment(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "abc"]
    made = manager(*dirs)
    for number in range(20):
        made.create(TopicPartition("t", number), NOW)
        counts = [managed.log_count for managed in made.dirs.values()]
        assert max(counts) - min(counts) <= 1


def test_next_log_dirs_and_cordoned(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    assert log_dirs_by_load([a, b, c], {a: 2, b: 1, c: 1}) == [b, c, a]
    assert log_dirs_by_load([a, b, c], {a: 2, b: 1, c: 1}, {b}) == [c, a]
    assert log_dirs_by_load([a, b], {a: 5, b: 1}, {a, b}) == [a]
    assert log_dirs_by_load([a], {a: 5}, {a}) == [a]
    assert log_dirs_by_load([], {}) == []


def test_update_cordoned_log_dirs(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made = manager(a, b, log_dirs=(str(a), str(b)), cordoned_log_dirs=(str(a),))
    for number in range(4):
        assert made.create(TopicPartition("t", number), NOW).directory.parent == b


def test_create_log_with_log_dir_fallback(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in "abc"]
    made = manager(*dirs)
    layer = FaultyLayer()
    layer.fail("mkdir", errno.EIO, nth=None, part=str(dirs[0]))
    with files.replaced(layer):
        log = made.create(NAME, NOW)
    assert log.directory.parent == dirs[1]
    assert list(made.offline) == [dirs[0]]


def test_invalid_log_dir_not_fail_log_manager(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    made = manager(tmp_path / "file", tmp_path / "good")
    assert list(made.offline) == [tmp_path / "file"]
    assert made.create(NAME, NOW).directory.parent == tmp_path / "good"
    with pytest.raises(CompactdError, match="none of the log dirs"):
        manager(tmp_path / "file")


def test_create_log_on_targeted_log_directory(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for number, path in enumerate((a, b)):
        path.mkdir()
        LogDir(path).write_meta(MetaProperties(1, "c", 1, uuid.UUID(int=(5 + number) << 64)), NOW)
    made = manager(a, b)
    for number in range(3):
        log = made.create(TopicPartition("t", number), NOW, directory_id=uuid.UUID(int=6 << 64))
        assert log.directory.parent == b
    # Reserved and unknown ids leave the choice to the broker.
    for number, directory_id in enumerate((uuid.UUID(int=0), uuid.UUID(int=1), uuid.UUID(int=99 << 64)), start=3):
        assert made.create(TopicPartition("t", number), NOW, directory_id=directory_id).directory.parent == a


def test_two_log_managers_using_same_dir_fails(tmp_path: Path) -> None:
    made = manager(tmp_path / "d")
    with pytest.raises(LogDirLockedError):
        manager(tmp_path / "d")
    with pytest.raises(RefusedError, match="twice"):
        manager(tmp_path / "x", tmp_path / "y" / ".." / "x")
    made.close()
    assert not (tmp_path / "d" / names.LOCK).exists()


def test_handling_exceptions_during_shutdown(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made = manager(a, b)
    for number in range(2):
        append(made.create(TopicPartition("t", number), NOW))
    layer = FaultyLayer()
    layer.fail("fsync", errno.EIO, nth=None, part=f"{a}/t-")
    with files.replaced(layer):
        made.close()
    assert LogDir(a).clean_shutdown() is None
    assert LogDir(b).clean_shutdown() is not None


def test_checkpoint_recovery_points(tmp_path: Path) -> None:
    made = manager(tmp_path / "d")
    for number in range(2):
        log = made.create(TopicPartition("t", number), NOW)
        append(log, 5)
        log.flush()
    made.checkpoint()
    assert entries(tmp_path / "d", RECOVERY_POINTS) == {"t-0": 5, "t-1": 5}


def test_checkpoint_log_start_offset_for_normal_topic(tmp_path: Path) -> None:
    made = manager(tmp_path / "d")
    log = made.create(NAME, NOW)
    append(log, 50)
    log.maybe_increment_log_start_offset(31)
    made.checkpoint()
    assert entries(tmp_path / "d", LOG_START_OFFSETS) == {"t-0": 31}
    made.retain(NOW)
    if log.segments[0].base_offset < 31:
        log.maybe_increment_log_start_offset(log.segments[1].base_offset)
        made.retain(NOW)
    made.checkpoint()
    assert log.segments[0].base_offset == log.log_start_offset
    assert entries(tmp_path / "d", LOG_START_OFFSETS) == {}


def test_file_references_after_async_delete(tmp_path: Path) -> None:
    made = manager(tmp_path / "d")
    log = made.create(NAME, NOW)
    append(log, 3)
    made.checkpoint()
    renamed = made.delete(NAME, NOW)
    assert renamed is not None and renamed == log.directory
    assert names.parse_partition_dir(renamed.name).state == "delete"
    assert made.get(NAME) is None
    assert entries(tmp_path / "d", RECOVERY_POINTS) == {}
    assert made.delete_due(NOW + 499) == []
    again = made.create(NAME, NOW)  # at once, under the plain name
    assert again.log_end_offset == 0
    assert made.delete_due(NOW + 500) == [renamed]
    assert not renamed.exists()
    assert made.delete(TopicPartition("nobody", 0), NOW) is None


def test_create_and_delete_overly_long_topic(tmp_path: Path) -> None:
    name = TopicPartition("n" * 249, 123)
    made = manager(tmp_path / "d")
    made.create(name, NOW)
    renamed = made.delete(name, NOW)
    assert renamed is not None and len(renamed.name) == 255
    assert made.delete_due(NOW + 500) == [renamed]


def test_delete_and_stray_dirs_at_start(tmp_path: Path) -> None:
    first = manager(tmp_path / "d")
    append(first.create(NAME, NOW), 2)
    append(first.create(TopicPartition("s", 0), NOW), 2)
    doomed, stray = first.delete(NAME, NOW), first.set_aside(TopicPartition("s", 0))
    first.close()
    second = manager(tmp_path / "d")
    managed = second.dirs[tmp_path / "d"]
    assert managed.log_count == 0
    assert managed.strays == [stray]
    assert second.delete_due(NOW + 500) == [doomed]
    assert stray is not None and stray.exists(), "kept for a person to look at"


# ---- moves


def _move(made: LogManager, target: Path) -> None:
    made.start_move(NAME, target)
    while not made.continue_move(NAME, 200):
        pass
    made.finish_move(NAME, NOW)


def _values(log: PartitionLog) -> list[int]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        with log.read(offset, 1 << 20, "log_end") as fetched:
            data = fetched.read()
        position = 0
        while position < len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            base = int.from_bytes(data[position : position + 8], "big")
            found.append(base)
            offset = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
            position += size
    return found


def test_replace_current_with_future_log(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made = manager(a, b)
    source = made.create(NAME, NOW)
    append(source, 12)
    made.dirs[a].session.log_dir.cleaner_offsets.write({NAME: 4})
    with pytest.raises(RefusedError, match="not being moved"):
        made.finish_move(NAME, NOW)
    with pytest.raises(RefusedError, match="there already"):
        made.start_move(NAME, a)
    made.start_move(NAME, b)
    with pytest.raises(RefusedError, match="ends at 0"):
        made.finish_move(NAME, NOW)
    assert [path.name.endswith("-future") for path in b.glob("t-0*")] == [True]
    _move(made, b)
    moved = made.get(NAME)
    assert moved is not None and moved.directory == b / "t-0"
    assert _values(moved) == list(range(12))
    assert made.dirs[b].session.log_dir.cleaner_offsets.read() == {NAME: 4}
    assert made.dirs[a].session.log_dir.cleaner_offsets.read() == {}
    assert len(made.delete_due(NOW + 500)) == 1
    assert not list(b.glob("t-0/" + MOVED_FROM))


def test_a_move_that_is_given_up(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made = manager(a, b)
    append(made.create(NAME, NOW), 3)
    made.start_move(NAME, b)
    made.cancel_move(NAME, NOW)
    assert made.get(NAME) is not None
    assert len(made.delete_due(NOW + 500)) == 1


@pytest.mark.parametrize("loss", ["process", "power"])
def test_crash_matrix_of_a_move(tmp_path: Path, loss: str) -> None:
    """Stopped at every call of the exchange: exactly one live copy with every record, after the next start."""
    count = _stopped_move(tmp_path / "count", None, loss)
    assert count > 8
    for number in range(count):
        _stopped_move(tmp_path / str(number), number, loss)
        made = manager(tmp_path / str(number) / "a", tmp_path / str(number) / "b")
        log = made.get(NAME)
        assert log is not None, f"stopped at call {number}"
        assert _values(log) == list(range(12)), f"stopped at call {number}"
        live = list((tmp_path / str(number)).glob("*/t-0"))
        assert len(live) == 1, f"stopped at call {number}"
        assert not list((tmp_path / str(number)).glob("*/t-0/" + MOVED_FROM))


def _stopped_move(path: Path, number: int | None, loss: str) -> int:
    """Everything goes through the layer, so that it can close what the process that died had open."""
    path.mkdir()
    layer = FaultyLayer()
    with files.replaced(layer):
        made = manager(path / "a", path / "b")
        log = made.create(NAME, NOW)
        append(log, 12)
        log.flush()
        made.checkpoint()
        made.start_move(NAME, path / "b")
        while not made.continue_move(NAME):
            pass
        before = layer.count
        if number is None:
            made.finish_move(NAME, NOW)
        else:
            layer.stop_at(before + number, after=number % 2 == 0)
            with pytest.raises(PowerCut):
                made.finish_move(NAME, NOW)
    _die(made, layer, loss)
    return layer.count - before


def _die(made: LogManager, layer: FaultyLayer, loss: str) -> None:
    OPEN.remove(made)
    layer.close_all()
    if loss == "power":
        layer.lose_unsynced()
    made.release()


@pytest.mark.parametrize("loss", ["process", "power"])
def test_crash_matrix_of_a_deletion(tmp_path: Path, loss: str) -> None:
    """Stopped at every call: the partition is whole, or it is on its way out; nothing in between."""
    for number in range(200):
        path = tmp_path / str(number)
        path.mkdir()
        layer = FaultyLayer()
        stopped = False
        with files.replaced(layer):
            made = manager(path / "d")
            log = made.create(NAME, NOW)
            append(log, 5)
            log.flush()
            made.checkpoint()
            layer.stop_at(layer.count + number, after=number % 2 == 0)
            try:
                made.delete(NAME, NOW)
                made.delete_due(NOW + 500)
            except PowerCut:
                stopped = True
        _die(made, layer, loss)
        if not stopped:
            assert number > 5
            return
        again = manager(path / "d")
        left = again.get(NAME)
        if left is not None:
            assert _values(left) == list(range(5)), f"stopped at call {number}"
        again.delete_due(NOW + 10_000)
        assert not list(path.glob("d/*-delete"))


def test_remove_tree_passes_by_what_is_gone(tmp_path: Path) -> None:
    remove_tree(tmp_path / "none")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(b"")
    remove_tree(tmp_path / "d")
    assert not (tmp_path / "d").exists()
