"""A log dir: its lock, meta.properties, the clean-shutdown marker, its partitions (facts 1.1 to 1.4)."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import (
    CorruptFileError,
    LogDirLockedError,
    NotWritableError,
    RefusedError,
    StorageIOError,
)
from compactd.storage import files, log_dir
from compactd.storage.log_dir import (
    CleanShutdown,
    LogDir,
    MetaProperties,
    format_meta_properties,
    read_clean_shutdown,
    read_meta_properties,
)
from compactd.storage.names import TopicPartition
from tests.file_faults import FaultyLayer, PowerCut

DIRECTORY_ID = uuid.UUID("c26b1b07-cdc8-abe8-141a-b92048e56221")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def try_lock_elsewhere(path: Path) -> str:
    """What another process gets that asks for the lock: "" or the error's class."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "the child died"
        try:
            with LogDir(path).lock():
                answer = ""
        except Exception as error:
            answer = type(error).__name__
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read().decode()


@contextmanager
def held_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the lock as a broker does: a record lock over the whole file."""
    ready, stop = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(ready[1], b"x")
            os.close(stop[1])
            os.read(stop[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    os.close(stop[0])
    try:
        assert os.read(ready[0], 1) == b"x"
        yield
    finally:
        os.close(ready[0])
        os.close(stop[1])
        os.waitpid(child, 0)


def test_lock_keeps_other_processes_out_and_is_removed(tmp_path: Path) -> None:
    with LogDir(tmp_path).lock() as lock:
        assert lock.is_held
        assert (tmp_path / ".lock").stat().st_size == 0  # never opened: closing it would give the lock away
        assert try_lock_elsewhere(tmp_path) == "LogDirLockedError"
    assert not lock.is_held
    assert not (tmp_path / ".lock").exists()
    assert try_lock_elsewhere(tmp_path) == ""


def test_lock_of_a_running_broker(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path):
        with pytest.raises(LogDirLockedError) as caught:
            LogDir(tmp_path).lock()
        assert str(tmp_path) in str(caught.value)
        assert caught.value.exit_code == 3
        assert (tmp_path / ".lock").exists()
    # Killed, it leaves the file behind, unlocked.
    with LogDir(tmp_path).lock():
        pass
    assert not (tmp_path / ".lock").exists()


def test_a_second_lock_in_the_process_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    """A POSIX lock would be lost as soon as any descriptor of the file is closed."""
    (tmp_path / "alias").symlink_to(tmp_path)
    lock = LogDir(tmp_path).lock()
    for path in (tmp_path, tmp_path / ".." / tmp_path.name, tmp_path / "alias"):
        with pytest.raises(LogDirLockedError):
            LogDir(path).lock()
    assert try_lock_elsewhere(tmp_path) == "LogDirLockedError"
    lock.release()
    lock.release()
    LogDir(tmp_path).lock().release()


def test_only_one_of_many_threads_gets_the_lock(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    got: list[log_dir.LogDirLock] = []
    refused: list[Exception] = []

    def take() -> None:
        barrier.wait()
        try:
            got.append(LogDir(tmp_path).lock())
        except LogDirLockedError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].release()


def test_lock_is_given_up_on_errors_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), LogDir(tmp_path).lock():
        raise RuntimeError
    assert try_lock_elsewhere(tmp_path) == ""


def test_a_killed_process_leaves_the_file_and_no_lock(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.stop_at(1)  # 0 opens .lock, 1 would remove it
    with files.replaced(layer), pytest.raises(PowerCut), LogDir(tmp_path).lock():
        assert layer.count == 1
    assert (tmp_path / ".lock").exists()
    LogDir(tmp_path).lock().release()


def test_a_lock_file_that_cannot_be_removed_is_still_given_up(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.fail("unlink", errno.EACCES)
    with files.replaced(layer), LogDir(tmp_path).lock():
        pass
    assert (tmp_path / ".lock").exists()
    assert try_lock_elsewhere(tmp_path) == ""


def test_a_lock_file_removed_between_open_and_lock_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder stops at that very moment; a lock on the nameless file would keep nobody out."""
    real, times = fcntl.lockf, []

    def lockf(fd: int, flags: int) -> None:
        times.append(fd)
        if len(times) == 1:
            (tmp_path / ".lock").unlink()
        real(fd, flags)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with LogDir(tmp_path).lock():
        assert len(times) == 2
        assert try_lock_elsewhere(tmp_path) == "LogDirLockedError"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_lock_file_that_may_not_be_made(tmp_path: Path, code: int) -> None:
    layer = FaultyLayer()
    layer.fail("open_lock", code)
    with files.replaced(layer), pytest.raises(NotWritableError, match=r"\.lock: this process may not"):
        LogDir(tmp_path).lock()
    LogDir(tmp_path).lock().release()


def test_lock_errors_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(fd: int, flags: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with pytest.raises(StorageIOError, match="lock failed"):
        LogDir(tmp_path / "absent").lock()
    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(StorageIOError, match="ENOLCK"):
        LogDir(tmp_path).lock()


@AS_ROOT
def test_a_lock_file_made_by_root_belongs_to_the_dirs_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 4321)
    with LogDir(tmp_path).lock():
        found = (tmp_path / ".lock").stat()
    assert (found.st_uid, found.st_gid) == (1234, 4321)


META_V1 = """#
#Mon Nov 30 02:34:22 UTC 2026
node.id=1
directory.id=wmsbB83Iq-gUGrkgSOViIQ
version=1
cluster.id=MkU3OEVBNTcwNTJENDM2Qg
"""


def meta_of(tmp_path: Path, text: str) -> MetaProperties | None:
    (tmp_path / "meta.properties").write_text(text)
    return LogDir(tmp_path).meta()


def test_meta_properties_golden(tmp_path: Path) -> None:
    expected = MetaProperties(1, "MkU3OEVBNTcwNTJENDM2Qg", 1, DIRECTORY_ID)
    assert meta_of(tmp_path, META_V1) == expected
    LogDir(tmp_path).write_meta(expected, 1_796_006_062_000)
    assert (tmp_path / "meta.properties").read_text() == META_V1


def test_meta_properties_absent(tmp_path: Path) -> None:
    assert LogDir(tmp_path).meta() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", MetaProperties(0, None, None)),
        ("version=0\nbroker.id=7\ncluster.id=abc\n", MetaProperties(0, "abc", 7)),
        ("broker.id : 7", MetaProperties(0, None, 7)),
        ("! note\n  version = 1\ncluster.id a\\u0062\\\n   c\nnode.id:2", MetaProperties(1, "abc", 2)),
        ("version=1\ncluster.id=a\ncluster.id=b\nnode.id=2\nunknown=x\n", MetaProperties(1, "b", 2)),
        ("cluster\\.id=a\\=b\\:c\nversion=0\n", MetaProperties(0, "a=b:c", None)),
    ],
)
def test_meta_properties_of_every_form(tmp_path: Path, text: str, expected: MetaProperties) -> None:
    assert meta_of(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version=2\ncluster.id=a\nnode.id=1\n", "version=2"),
        ("version=x\n", "'x' is not a number"),
        ("version=1\nnode.id=1\n", "cluster.id is missing"),
        ("version=1\ncluster.id=a\n", "node.id is missing"),
        ("version=1\ncluster.id=a\nbroker.id=1\n", "node.id is missing"),
        ("version=1\ncluster.id=a\nnode.id=one\n", "'one' is not a number"),
        ("version=1\ncluster.id=a\nnode.id=1\ndirectory.id=abc\n", "id"),
        ("version=\\u00zz\n", "four hex digits"),
    ],
)
def test_meta_properties_damage(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        meta_of(tmp_path, text)
    assert reason in str(caught.value)
    assert "meta.properties" in str(caught.value)


@given(
    st.builds(
        MetaProperties,
        st.just(1),
        st.text(max_size=20).filter(lambda text: not any(0xD800 <= ord(char) <= 0xFFFF for char in text)),
        st.integers(0, 2**31 - 1),
        st.none() | st.uuids(),
    ),
    st.integers(0, 4_102_444_800_000),
)
def test_meta_properties_round_trip(
    tmp_path_factory: pytest.TempPathFactory, meta: MetaProperties, now_ms: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip-meta.properties"
    path.write_bytes(format_meta_properties(meta, now_ms))
    found = read_meta_properties(path)
    assert found is not None
    # A character beyond 16 bits is written as its two surrogates, as Java does.
    cluster_id = (found.cluster_id or "").encode("utf-16", "surrogatepass").decode("utf-16")
    assert MetaProperties(found.version, cluster_id, found.node_id, found.directory_id) == meta


@given(st.binary(max_size=60))
def test_meta_properties_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-meta.properties"
    path.write_bytes(b"version=1\n" + data)
    with pytest.raises(CorruptFileError, match=r"is missing|four hex digits|version|number"):
        read_meta_properties(path)


def test_clean_shutdown_golden(tmp_path: Path) -> None:
    dir_ = LogDir(tmp_path)
    assert dir_.clean_shutdown() is None
    dir_.write_clean_shutdown(42)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":42}'
    assert dir_.clean_shutdown() == CleanShutdown(42)
    dir_.write_clean_shutdown()
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":-1}'


@pytest.mark.parametrize(
    ("content", "epoch"),
    [
        (b"", None),
        (b'{"version":0,"brokerEpoch":7,"new":[1]}', 7),
        (b'{"version":0}', None),
        (b'{"brokerEpoch":"7"}', None),
        (b'{"brokerEpoch":true}', None),
        (b"[1]", None),
        (b"null", None),
        (b"\xff\xfe", None),
        (b"{", None),
        (b"[" * 100_000, None),
        (b" " * (2 << 20), None),
    ],
)
def test_a_clean_shutdown_counts_by_existing(tmp_path: Path, content: bytes, epoch: int | None) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert read_clean_shutdown(tmp_path / ".kafka_cleanshutdown") == CleanShutdown(epoch)


def test_partition_dirs(tmp_path: Path) -> None:
    unique = "0123456789abcdef0123456789abcdef"
    for name in (
        "orders-1",
        "orders-0",
        f"users-0.{unique}-delete",
        f"users-1.{unique}-future",
        f"users-2.{unique}-stray",
        "__cluster_metadata-0",
        "remote-log-index-cache",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").write_text(META_V1)
    (tmp_path / "a-file-without-a-number").touch()
    found = LogDir(tmp_path).partition_dirs()
    assert [(str(entry.topic_partition), entry.state, entry.is_cluster_metadata) for entry in found] == [
        ("__cluster_metadata-0", "live", True),
        ("orders-0", "live", False),
        ("orders-1", "live", False),
        ("users-0", "delete", False),
        ("users-1", "future", False),
        ("users-2", "stray", False),
    ]
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(RefusedError, match=r"lost\+found"):
        LogDir(tmp_path).partition_dirs()
    with pytest.raises(StorageIOError, match="list failed"):
        LogDir(tmp_path / "absent").partition_dirs()


def test_checkpoints_have_their_files(tmp_path: Path) -> None:
    dir_ = LogDir(tmp_path)
    entry = {TopicPartition("t", 0): 5}
    for checkpoint in (dir_.cleaner_offsets, dir_.recovery_points, dir_.log_start_offsets, dir_.high_watermarks):
        checkpoint.write(entry)
        assert checkpoint.read() == entry
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
