from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import LogDirLockedError, RefusedError
from compactd.coordinator.logs.log_dirs import LogDirs, mark_deleted
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.coordinator.logs.test_partitions import state

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


def test_dirs_are_made_and_locked_and_a_bad_one_is_offline(tmp_path: Path) -> None:
    good, bad = tmp_path / "deep" / "d1", tmp_path / "d2"
    bad.write_text("a file")
    dirs = LogDirs([str(good), str(bad)])
    dirs.open()
    assert dirs.online == [good]
    assert "has to be a directory" in dirs.offline[bad]
    with pytest.raises(LogDirLockedError):
        LogDir(good).lock()
    assert [each.offline_because != "" for each in dirs.status({}, ())] == [False, True]
    dirs.release()
    assert not (good / ".lock").exists()


def test_what_can_not_be_begun(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="lists it twice"):
        LogDirs([str(tmp_path), str(tmp_path)]).open()
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="no log dir can be used"):
        LogDirs([str(tmp_path / "file")]).open()
    held = LogDir(tmp_path).lock()
    dirs = LogDirs([str(tmp_path / "other"), str(tmp_path)])
    with pytest.raises(LogDirLockedError):
        dirs.open()
    # Nothing stays locked behind a refusal.
    LogDir(tmp_path / "other").lock().release()
    held.release()


def test_checkpoints_keep_what_is_not_loaded_and_lose_what_is_gone(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path)
    log_dir.recovery_points.write({A0: 1, B0: 2})
    log_dir.high_watermarks.write({B0: 2})
    log_dir.write_clean_shutdown(5)
    for name in ("a-0", "b-0", "c-0.0123456789abcdef0123456789abcdef-delete"):
        (tmp_path / name).mkdir()
    dirs = LogDirs([str(tmp_path)])
    dirs.open()
    assert dirs.stopped_cleanly(tmp_path)
    found = dirs.begin_use(tmp_path)
    assert log_dir.clean_shutdown() is None
    assert found.live == {A0, B0}
    assert [Path(path).name for path in found.deleted] == ["c-0.0123456789abcdef0123456789abcdef-delete"]
    assert dirs.offsets(str(tmp_path), B0) == (2, 0, 2)
    assert dirs.offsets(str(tmp_path), A0) == (1, 0, -1)
    assert dirs.offsets("/nowhere", A0) == (0, 0, -1)
    dirs.write_offsets(tmp_path, [state("a", 0, str(tmp_path))], [])
    assert log_dir.recovery_points.read() == {A0: 9, B0: 2}
    dirs.write_offsets(tmp_path, [state("a", 0, str(tmp_path))], [B0])
    dirs.write_high_watermarks(tmp_path, [state("a", 0, str(tmp_path))], [B0])
    assert log_dir.recovery_points.read() == log_dir.high_watermarks.read() == {A0: 9}
    dirs.write_marker(tmp_path, 8)
    marker = log_dir.clean_shutdown()
    assert marker is not None
    assert marker.broker_epoch == 8
    dirs.look_at_space(tmp_path)
    (status,) = dirs.status({str(tmp_path): 2}, ("*",))
    assert (status.partitions, status.cordoned) == (2, True)
    assert 0 < status.free_bytes <= status.total_bytes
    dirs.release()


def test_a_dir_fails_once(tmp_path: Path) -> None:
    dirs = LogDirs([str(tmp_path)])
    dirs.open()
    assert dirs.fail(tmp_path, "it burnt")
    assert not dirs.fail(tmp_path, "again")
    assert not dirs.fail(tmp_path / "other", "not ours")
    assert (dirs.online, dirs.offline) == ([], {tmp_path: "it burnt"})
    dirs.release_one(tmp_path)
    LogDir(tmp_path).lock().release()
    dirs.release()


def test_a_directory_is_put_away_without_its_owner(tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()
    marked = mark_deleted(tmp_path / "a-0", A0)
    assert marked.name.startswith("a-0.")
    assert marked.name.endswith("-delete")
    assert marked.is_dir()
