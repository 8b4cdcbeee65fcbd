"""The system calls that change files, one method each: what `storage.files` composes, and what tests replace."""

from __future__ import annotations

import errno
import os


class FileLayer:
    """The system calls that change files, and the two questions asked before changing any. Raises plain OSError."""

    def open_output(self, path: str, mode: int) -> int:
        """Opens for reading and writing; made if absent, emptied if present. Returns the descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)

    def open_existing(self, path: str) -> int:
        """Opens for reading and writing, content untouched."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_lock(self, path: str, mode: int) -> int:
        """Opens for reading and writing, made if absent, content untouched."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)

    def open_append(self, path: str, mode: int) -> int:
        """Opens for reading and writing, made if absent, content untouched: for files that grow at their end."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        """Writes at the descriptor's position; returns how many bytes went, maybe fewer than given."""
        return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems have no fsync for directories
                raise
        finally:
            os.close(fd)

    def utime(self, path: str, atime_ns: int, mtime_ns: int) -> None:
        os.utime(path, ns=(atime_ns, mtime_ns))

    def free_bytes(self, path: str) -> int:
        """Bytes an unprivileged process may still write to the file system of `path` (Java's getUsableSpace)."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def access(self, path: str, mode: int) -> bool:
        """Asks the kernel for the effective user, so that root, ACLs and read-only mounts answer as they will act."""
        return os.access(path, mode, effective_ids=True)
