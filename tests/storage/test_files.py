"""The file layer: atomic replacement, owners and modes kept, errors that name the file."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactd.config.errors import CorruptFileError, NotWritableError, StorageIOError
from compactd.storage import files
from tests.file_faults import FaultyLayer

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away and to become another user")
NOBODY = 65534


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user may reach; pytest's own belongs to its user alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_nobody(work: Callable[[], None]) -> str:
    """Runs `work` in a child process of another user; returns the name of the error's class, or ''."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "the child died"
        try:
            os.setgroups([])
            os.setegid(NOBODY)
            os.seteuid(NOBODY)  # the real user stays root: the effective one decides
            work()
            answer = ""
        except BaseException as error:
            answer = type(error).__name__
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read().decode()


def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    (tmp_path / "checkpoint.tmp").write_bytes(b"left over from an earlier crash, and longer")
    files.write_atomically(target, b"one")
    files.write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["checkpoint"]  # noqa: PTH208


def test_write_atomically_keeps_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    target.write_bytes(b"old")
    target.chmod(0o640)
    files.write_atomically(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@AS_ROOT
def test_owner_and_group_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    target.write_bytes(b"old")
    os.chown(target, 1234, 4321)
    files.write_atomically(target, b"new")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 4321)


@AS_ROOT
def test_a_new_file_of_root_belongs_to_the_directorys_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 4321)
    files.write_atomically(tmp_path / "checkpoint", b"new")
    files.make_dir(tmp_path / "topic-0")
    for path in (tmp_path / "checkpoint", tmp_path / "topic-0"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_output_takes_after_another_file(tmp_path: Path) -> None:
    source = tmp_path / "a.log"
    source.write_bytes(b"old")
    source.chmod(0o600)
    with files.create_output(tmp_path / "a.log.cleaned", like=source) as output:
        output.write(b"ab")
        output.write(memoryview(b"cd"))
        assert output.size == 4
        os.pwrite(output.fileno(), b"e", 4)
        output.sync()
    assert (tmp_path / "a.log.cleaned").read_bytes() == b"abcde"
    assert stat.S_IMODE((tmp_path / "a.log.cleaned").stat().st_mode) == 0o600
    output.close()
    with pytest.raises(ValueError, match="closed"):
        output.fileno()


def test_output_writes_the_rest_after_a_short_write(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.short_writes(3)
    with files.replaced(layer):
        files.write_file(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_output_gives_up_on_writes_without_progress(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.short_writes(0)
    with files.replaced(layer), pytest.raises(StorageIOError, match="no progress"):
        files.write_file(tmp_path / "a", b"x")


@pytest.mark.parametrize("call", ["open_output", "write", "fsync", "close", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_atomic_write_keeps_the_old_content(tmp_path: Path, call: str, code: int) -> None:
    target = tmp_path / "checkpoint"
    target.write_bytes(b"old")
    layer = FaultyLayer()
    layer.fail(call, code)
    with files.replaced(layer), pytest.raises(StorageIOError) as caught:
        files.write_atomically(target, b"new")
    assert errno.errorcode[code] in str(caught.value)
    assert str(target) in str(caught.value)
    assert caught.value.errno == code
    assert caught.value.exit_code == 4
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint"]  # noqa: PTH208
    assert layer.open_descriptors == 0


def test_a_failed_directory_fsync_is_told(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.fail("fsync_dir", errno.EIO)
    with files.replaced(layer), pytest.raises(StorageIOError, match="fsync directory failed"):
        files.write_atomically(tmp_path / "checkpoint", b"new")


def test_fsync_is_not_tried_again(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.fail("fsync", errno.EIO)
    with files.replaced(layer), pytest.raises(StorageIOError, match="fsync failed"):
        files.write_file(tmp_path / "a", b"x")
    assert [call.name for call in layer.calls].count("fsync") == 1


def test_an_owner_that_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"")
    layer = FaultyLayer()
    layer.fail("chown", errno.EPERM)
    found = os.stat(source)  # noqa: PTH116
    other = os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))
    monkeypatch.setattr(files, "_stat_of", lambda path: other)
    with files.replaced(layer), pytest.raises(NotWritableError, match="give owner"):
        files.create_output(tmp_path / "b", like=source)
    assert layer.open_descriptors == 0


def test_rename_remove_truncate(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"gone")
    files.truncate(tmp_path / "a", 2)
    files.rename(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"12"
    files.remove(tmp_path / "b")
    files.remove(tmp_path / "b", missing_ok=True)
    with pytest.raises(StorageIOError, match=r"remove failed.*ENOENT"):
        files.remove(tmp_path / "b")
    with pytest.raises(StorageIOError, match=r"rename to .*c failed.*ENOENT"):
        files.rename(tmp_path / "b", tmp_path / "c")


def test_times_round_as_javas(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    os.utime(path, ns=(111, 1_700_000_000_123_999_999))
    assert files.mtime_ms(path) == 1_700_000_000_123
    files.set_mtime_ms(path, 1_600_000_000_456)
    assert path.stat().st_mtime_ns == 1_600_000_000_456_000_000
    assert path.stat().st_atime_ns == 111
    os.utime(path, ns=(0, -1))
    assert files.mtime_ms(path) == -1


def test_free_bytes(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 < files.free_bytes(tmp_path) <= found.f_blocks * found.f_frsize
    with pytest.raises(StorageIOError, match="ask free space"):
        files.free_bytes(tmp_path / "absent")


def test_read_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_file(tmp_path / "a", 5) == b"12345"
    assert files.read_file(tmp_path / "absent", 5, missing_ok=True) == b""
    with pytest.raises(CorruptFileError, match="5 bytes, more than 4"):
        files.read_file(tmp_path / "a", 4)
    with pytest.raises(StorageIOError, match="ENOENT"):
        files.read_file(tmp_path / "absent", 5)
    with pytest.raises(CorruptFileError, match="not a regular file"):
        files.read_file(tmp_path, 5)


def test_read_sparse_leaves_out_only_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open(path, "wb") as file:
        for position in (0, 1 << 20, 2 << 20):
            file.seek(position)
            file.write(b"data")
        file.truncate(10 << 20)
    data, size = files.read_sparse(path, 10 << 20)
    assert size == 10 << 20
    assert data.rstrip(b"\0") == path.read_bytes().rstrip(b"\0")
    assert data[2 << 20 :].startswith(b"data")
    path.write_bytes(b"")
    assert files.read_sparse(path, 5) == (b"", 0)
    path.write_bytes(b"12345")
    assert files.read_sparse(path, 5) == (b"12345", 5)
    with pytest.raises(CorruptFileError, match="more than 4"):
        files.read_sparse(path, 4)
    with pytest.raises(StorageIOError, match="ENOENT"):
        files.read_sparse(tmp_path / "absent", 5)


def test_read_sparse_where_the_file_system_knows_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lseek

    def lseek(fd: int, position: int, whence: int) -> int:
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, position, whence)

    monkeypatch.setattr(os, "lseek", lseek)
    (tmp_path / "a").write_bytes(b"12" + bytes(10_000))
    assert files.read_sparse(tmp_path / "a", 20_000) == (b"12" + bytes(10_000), 10_002)


def test_read_file_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(CorruptFileError, match="not a regular file"):
        files.read_file(tmp_path / "a", 5)


def test_read_file_refuses_a_huge_sparse_file_unread(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptFileError, match="1099511627776 bytes"):
        files.read_file(tmp_path / "a", 1 << 20)


def test_check_writable_passes_what_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    for path in (tmp_path, tmp_path / "a", tmp_path / "absent"):
        files.check_writable(path)
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


@pytest.mark.parametrize(("part", "action"), [("a.log", "write"), ("", "make or remove files in")])
def test_check_writable_asks_the_layer(tmp_path: Path, part: str, action: str) -> None:
    (tmp_path / "a.log").write_bytes(b"")
    layer = FaultyLayer()
    layer.fail("access", errno.EACCES, nth=None, part=part)
    with files.replaced(layer), pytest.raises(NotWritableError, match=f"may not {action}"):
        files.check_writable(tmp_path / "a.log")


def test_check_writable_of_another_owners_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group write is not enough: the file that replaces it could not get its owner."""
    (tmp_path / "a").write_bytes(b"")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(NotWritableError, match="keep owner"):
        files.check_writable(tmp_path / "a")


def test_check_writable_of_a_foreign_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    found = (tmp_path / "a").stat()
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid or 4321)
    monkeypatch.setattr(os, "getegid", lambda: found.st_gid + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [])
    with pytest.raises(NotWritableError, match=r"keep owner|keep group"):
        files.check_writable(tmp_path / "a")


@AS_ROOT
def test_root_may_write_a_read_only_file_and_others_may_not(open_dir: Path) -> None:
    path = open_dir / "a"
    path.write_bytes(b"")
    os.chown(open_dir, NOBODY, NOBODY)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o400)
    files.check_writable(path)
    assert as_nobody(lambda: files.check_writable(path)) == "NotWritableError"
    path.chmod(0o600)
    assert as_nobody(lambda: files.check_writable(path)) == ""
    open_dir.chmod(0o555)
    assert as_nobody(lambda: files.check_writable(path)) == "NotWritableError"
    assert as_nobody(lambda: files.check_writable(open_dir)) == "NotWritableError"
    assert as_nobody(lambda: files.check_writable(open_dir / "new")) == "NotWritableError"


def test_another_layer_serves_all_threads_and_goes_again(tmp_path: Path) -> None:
    layer = FaultyLayer()
    before = files.layer()
    with files.replaced(layer):
        thread = threading.Thread(target=files.write_file, args=(tmp_path / "a", b"x"))
        thread.start()
        thread.join()
    assert layer.count == 4
    assert files.layer() is before
