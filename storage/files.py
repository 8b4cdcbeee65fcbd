"""The only place that changes files. Everything above calls these functions; nothing else opens a file for writing.

Each system call is a method of `FileLayer`; the functions below compose them through one replaceable layer. Tests put
another layer in its place (`replaced`) that stops at the n-th call, answers ENOSPC, or forgets what was never fsynced.

Rules kept here: a file that replaces another takes its owner, group and mode; a file new to its directory takes the
directory's owner, so that a log dir touched by root stays the broker's; a replacement is written beside its target,
fsynced, renamed, and then the directory is fsynced (Kafka's CheckpointFile and Utils.atomicMoveWithFallback). fsync is
never tried again after it failed: the kernel may have dropped the pages already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from types import TracebackType

from compactd.config.errors import CorruptFileError, NotWritableError, StorageIOError
from compactd.storage.file_layer import FileLayer

StrPath = str | os.PathLike[str]

#: Suffix of the file that an atomic write fills before it takes its target's place. Readers ignore it.
TEMPORARY = ".tmp"

_NEW_FILE_MODE = 0o666
_NEW_DIRECTORY_MODE = 0o777
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


_layer = _system = FileLayer()


def layer() -> FileLayer:
    """The layer in use."""
    return _layer


def is_direct() -> bool:
    """Whether calls go to the system as they are: then the kernel may write to an open descriptor by itself."""
    return _layer is _system


@contextlib.contextmanager
def replaced(other: FileLayer) -> Iterator[FileLayer]:
    """For tests: every function here goes through `other` until the block ends, in all threads."""
    global _layer  # noqa: PLW0603
    before, _layer = _layer, other
    try:
        yield other
    finally:
        _layer = before


class Output:
    """A file being written. Closing does not fsync: call `sync` for that. Errors are StorageIOError."""

    def __init__(self, path: StrPath, fd: int) -> None:
        self.path = os.fspath(path)
        self.size = 0
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, for a kernel that writes by itself (its bytes do not count in `size`)."""
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes all of it, however many calls that takes."""
        try:
            count = _layer.write(self._fd, data)
            self.size += count
            if count == len(data):
                return
            rest = memoryview(data).cast("B")
            while True:
                if count <= 0:
                    raise OSError(errno.EIO, "write made no progress")
                rest = rest[count:]
                if not rest:
                    return
                count = _layer.write(self.fileno(), rest)
                self.size += count
        except OSError as error:
            raise failed(self.path, "write", error) from error

    def sync(self) -> None:
        with _reported(self.path, "fsync"):
            _layer.fsync(self.fileno())

    def truncate(self, size: int) -> None:
        with _reported(self.path, "truncate"):
            _layer.truncate(self.fileno(), size)

    def set_mode(self, mode: int) -> None:
        with _reported(self.path, "chmod"):
            _layer.chmod(self.fileno(), mode)

    def seek(self, position: int) -> None:
        """Where the next `write` goes, in bytes from the start."""
        with _reported(self.path, "seek"):
            os.lseek(self.fileno(), position, os.SEEK_SET)

    def close(self) -> None:
        """Closes once; further calls do nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _reported(self.path, "close"):
                _layer.close(fd)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:  # the first error is the one to tell
            with contextlib.suppress(StorageIOError):
                self.close()


def create_output(path: StrPath, like: StrPath | None = None) -> Output:
    """Opens `path` for writing, empty, with owner, group and mode of `like` (which may be `path` itself).

    Without `like` the file gets the mode the umask gives and, when root writes, its directory's owner and group.
    NotWritableError when the owner cannot be kept; StorageIOError otherwise.
    """
    name = os.fspath(path)
    wanted = _stat_of(like) if like is not None else None
    with _reported(name, "open"):
        output = Output(name, _layer.open_output(name, _NEW_FILE_MODE))
    try:
        if wanted is not None:
            _take_owner(output, wanted.st_uid, wanted.st_gid)
            mode = stat.S_IMODE(wanted.st_mode)
            if stat.S_IMODE(os.fstat(output.fileno()).st_mode) != mode:
                with _reported(name, "chmod"):
                    _layer.chmod(output.fileno(), mode)
        elif os.geteuid() == 0:
            parent = _stat_of(_parent(name))
            if parent is not None:
                _take_owner(output, parent.st_uid, parent.st_gid)
    except BaseException:
        with contextlib.suppress(StorageIOError):
            output.close()
        raise
    return output


def open_existing(path: StrPath) -> Output:
    """Opens a file to change it in place; the position is its start."""
    name = os.fspath(path)
    with _reported(name, "open"):
        return Output(name, _layer.open_existing(name))


def open_append(path: StrPath, position: int) -> Output:
    """Opens a file that grows: made if absent, content untouched; the next write goes to byte `position`.

    Made by root, it gets its directory's owner and group.
    """
    name = os.fspath(path)
    existed = _stat_of(name) is not None
    with _reported(name, "open"):
        output = Output(name, _layer.open_append(name, _NEW_FILE_MODE))
    try:
        if not existed and os.geteuid() == 0 and (parent := _stat_of(_parent(name))) is not None:
            _take_owner(output, parent.st_uid, parent.st_gid)
        output.seek(position)
    except Exception:
        with contextlib.suppress(StorageIOError):
            output.close()
        raise
    return output


def write_file(path: StrPath, data: bytes, like: StrPath | None = None, sync: bool = True) -> None:
    """Writes a whole file in place: not atomic, for files whose name says that they are unfinished."""
    with create_output(path, like) as output:
        output.write(data)
        if sync:
            output.sync()


def write_atomically(path: StrPath, data: bytes) -> None:
    """Replaces `path`: after a crash it has the old content or all of `data`. Durable when this returns.

    A leftover `.tmp` is overwritten. On failure the old content stays, and the `.tmp` is removed as far as possible.
    """
    name = os.fspath(path)
    temporary = name + TEMPORARY
    try:
        write_file(temporary, data, like=name if _stat_of(name) is not None else None)
        rename(temporary, name)
    except Exception:
        with contextlib.suppress(OSError):
            _layer.unlink(temporary)
        raise
    fsync_dir(_parent(name))


def rename(source: StrPath, target: StrPath) -> None:
    """Renames, replacing `target`. Durable only after `fsync_dir`."""
    name = os.fspath(source)
    with _reported(name, f"rename to {os.fspath(target)}"):
        _layer.rename(name, os.fspath(target))


def remove(path: StrPath, missing_ok: bool = False) -> None:
    """Removes a file."""
    name = os.fspath(path)
    with _reported(name, "remove"):
        try:
            _layer.unlink(name)
        except FileNotFoundError:
            if not missing_ok:
                raise


def discard(path: StrPath) -> None:
    """Removes a file as far as possible: cleaning up behind an error that is the one to tell."""
    with contextlib.suppress(OSError):
        _layer.unlink(os.fspath(path))


def truncate(path: StrPath, size: int) -> None:
    """Cuts (or grows with zeros) a file to `size` bytes and fsyncs it."""
    with open_existing(path) as output:
        output.truncate(size)
        output.sync()


def make_dir(path: StrPath) -> None:
    """Makes a directory and fsyncs its parent. Made by root, it gets its parent's owner and group."""
    name = os.fspath(path)
    with _reported(name, "make directory"):
        _layer.mkdir(name, _NEW_DIRECTORY_MODE)
        if os.geteuid() == 0:
            parent, made = _stat(_parent(name)), _stat(name)
            if (made.st_uid, made.st_gid) != (parent.st_uid, parent.st_gid):
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    _layer.chown(fd, parent.st_uid, parent.st_gid)
                finally:
                    os.close(fd)
    fsync_dir(_parent(name))


def remove_dir(path: StrPath) -> None:
    """Removes an empty directory."""
    name = os.fspath(path)
    with _reported(name, "remove directory"):
        _layer.rmdir(name)


def fsync_dir(path: StrPath) -> None:
    """Makes the renames, creations and removals in a directory durable."""
    name = os.fspath(path)
    with _reported(name, "fsync directory"):
        _layer.fsync_dir(name)


def set_mtime_ms(path: StrPath, ms: int) -> None:
    """Sets the last modification, in ms since the epoch; the last access stays (Java's Files.setLastModifiedTime)."""
    name = os.fspath(path)
    with _reported(name, "set time"):
        _layer.utime(name, _stat(name).st_atime_ns, ms * 1_000_000)


def mtime_ms(path: StrPath) -> int:
    """Last modification in ms since the epoch, rounded down as Java's File.lastModified does."""
    name = os.fspath(path)
    with _reported(name, "stat"):
        return _stat(name).st_mtime_ns // 1_000_000


def free_bytes(path: StrPath) -> int:
    """Bytes that may still be written to the file system of this directory."""
    name = os.fspath(path)
    with _reported(name, "ask free space"):
        return _layer.free_bytes(name)


def free_share(path: StrPath) -> float:
    """Free share, 0 to 1, of the file system of this directory."""
    name = os.fspath(path)
    with _reported(name, "ask free space"):
        found = os.statvfs(name)
    return found.f_bavail / found.f_blocks if found.f_blocks else 1.0


def read_file(path: StrPath, most: int, missing_ok: bool = False) -> bytes:
    """The whole content. What is no regular file, or has more than `most` bytes, is CorruptFileError and is not read.

    With `missing_ok` an absent file reads as empty.
    """
    name = os.fspath(path)
    with _reported(name, "read"):
        try:
            fd, size = _open_regular(name, most)
        except FileNotFoundError:
            if missing_ok:
                return b""
            raise
        try:
            return _read(fd, size)
        finally:
            os.close(fd)


def read_sparse(path: StrPath, most: int) -> tuple[bytes, int]:
    """(content up to the end of what was ever written, length of the file); only zeros are left out. Else as `read_file`.

    A preallocated index has 10 MiB, of which a few KiB are there: reading the rest of it for each of thousands of
    partitions would take longer than all other work on them.
    """
    name = os.fspath(path)
    with _reported(name, "read"):
        fd, size = _open_regular(name, most)
        try:
            end = _written_end(fd, size)
            os.lseek(fd, 0, os.SEEK_SET)
            return _read(fd, end), size
        finally:
            os.close(fd)


def check_writable(path: StrPath) -> None:
    """Refuses (NotWritableError) what this process may not replace, before anything was touched.

    A directory must allow entries to be made and removed. A file must be writable, its directory too, and its owner
    and group must be ones that this process may give to the file that takes its place. An absent file asks only for
    its directory. The kernel decides for the effective user: root may write a file of mode 0400.
    """
    name = os.fspath(path)
    found = _stat_of(name)
    if found is not None and stat.S_ISDIR(found.st_mode):
        if not _layer.access(name, os.W_OK | os.X_OK):
            raise NotWritableError(path=name, action="make or remove files in")
        return
    parent = _parent(name)
    if not _layer.access(parent, os.W_OK | os.X_OK):
        raise NotWritableError(path=parent, action="make or remove files in")
    if found is None:
        return
    if not _layer.access(name, os.W_OK):
        raise NotWritableError(path=name, action="write")
    if os.geteuid() != 0:
        if found.st_uid != os.geteuid():
            raise NotWritableError(path=name, action=f"keep owner {found.st_uid} when replacing")
        if found.st_gid != os.getegid() and found.st_gid not in os.getgroups():
            raise NotWritableError(path=name, action=f"keep group {found.st_gid} when replacing")


def failed(path: StrPath, action: str, error: OSError) -> StorageIOError:
    """The error to raise for an OSError: names the file, what was tried and the system's reason (field errno: int)."""
    number = error.errno or 0
    code = errno.errorcode.get(number)
    text = error.strerror or str(error)
    return StorageIOError(
        path=os.fspath(path), action=action, reason=f"{text} ({code})" if code else text, errno=number
    )


@contextlib.contextmanager
def _reported(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(path, action, error) from error


def _open_regular(path: str, most: int) -> tuple[int, int]:
    """(descriptor, size)"""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hang the reader
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _not_what_it_says(path, "this is not a regular file", 0)
        if found.st_size > most:
            raise _not_what_it_says(path, f"the file has {found.st_size} bytes, more than {most}", most)
    except BaseException:
        os.close(fd)
        raise
    return fd, found.st_size


def _read(fd: int, size: int) -> bytes:
    pieces = []
    while size and (piece := os.read(fd, size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _written_end(fd: int, size: int) -> int:
    """Where the last hole of the file begins, its size when it ends in data."""
    end = 0
    while end < size:
        try:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else size  # no more data; or no notion of holes
    return min(end, size)


def _not_what_it_says(path: str, reason: str, position: int) -> CorruptFileError:
    return CorruptFileError(
        path=path, reason=reason, position=position, advice="It is not what its name says; restore it from a backup."
    )


def _take_owner(output: Output, uid: int, gid: int) -> None:
    made = os.fstat(output.fileno())
    if (made.st_uid, made.st_gid) == (uid, gid):
        return
    with _reported(output.path, "chown"):
        try:
            _layer.chown(output.fileno(), uid, gid)
        except OSError as error:
            if error.errno not in _MAY_NOT:
                raise
            raise NotWritableError(path=output.path, action=f"give owner {uid} and group {gid} to") from error


def _stat_of(path: StrPath) -> os.stat_result | None:
    name = os.fspath(path)
    with _reported(name, "stat"):
        try:
            return _stat(name)
        except FileNotFoundError:
            return None


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."  # noqa: PTH120
