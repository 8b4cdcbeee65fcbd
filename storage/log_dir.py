"""One entry of log.dirs: its lock, its identity, its partitions and its checkpoints (facts 1.1 to 1.5)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from compactd.config.errors import CorruptFileError, LogDirLockedError, NotWritableError, SettingError, StorageIOError
from compactd.config.properties import properties_dict
from compactd.storage import files, names
from compactd.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
    parse_integer,
)
from compactd.storage.names import PartitionDir, parse_partition_dir, parse_uuid, uuid_text

_LARGEST_SMALL_FILE = 1 << 20
_MAY_NOT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_HELD = frozenset({errno.EACCES, errno.EAGAIN})


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`meta.properties`. Version 0 is of ZooKeeper times: its node id is the broker id, and may be missing."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """`.kafka_cleanshutdown`. That it exists says that no log of the dir needs recovery; the rest only informs."""

    #: None when the file is empty (older brokers) or cannot be read as JSON; -1 when the broker did not know it.
    broker_epoch: int | None


class LogDir:
    """A log dir of a broker, running or not. Reading takes no lock; whoever writes holds `lock()`."""

    def __init__(self, path: files.StrPath) -> None:
        self.path = Path(path)
        self.cleaner_offsets = OffsetCheckpoint(self.path / CLEANER_OFFSETS)
        self.recovery_points = OffsetCheckpoint(self.path / RECOVERY_POINTS)
        self.log_start_offsets = OffsetCheckpoint(self.path / LOG_START_OFFSETS)
        self.high_watermarks = OffsetCheckpoint(self.path / HIGH_WATERMARKS)

    def lock(self) -> LogDirLock:
        """Takes the lock that brokers take, or raises LogDirLockedError at once. Use it as a context manager."""
        return LogDirLock(self.path)

    def meta(self) -> MetaProperties | None:
        """The dir's identity; None when it has none. CorruptFileError."""
        return read_meta_properties(self.path / names.META_PROPERTIES)

    def write_meta(self, meta: MetaProperties, now_ms: int) -> None:
        """Writes meta.properties atomically, in the order and with the two comment lines of Kafka's own."""
        files.write_atomically(self.path / names.META_PROPERTIES, format_meta_properties(meta, now_ms))

    def clean_shutdown(self) -> CleanShutdown | None:
        """None: the broker did not stop in good order."""
        return read_clean_shutdown(self.path / names.CLEAN_SHUTDOWN)

    def write_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """Marks an orderly stop: written in place, fsynced with its directory."""
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        files.write_file(self.path / names.CLEAN_SHUTDOWN, content.encode())
        files.fsync_dir(self.path)

    def partition_dirs(self) -> list[PartitionDir]:
        """Every partition directory by name, those of other states and the KRaft log included. Plain files are ignored.

        RefusedError for a directory whose name is no partition's: a broker does not start on it either.
        """
        try:
            with os.scandir(self.path) as entries:
                found = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            raise files.failed(self.path, "list", error) from error
        return [parse_partition_dir(name) for name in found if name != names.REMOTE_LOG_INDEX_CACHE]


class LogDirLock:
    """The lock on a log dir's `.lock`: a POSIX record lock over the whole file, the same that Kafka's FileLock takes.

    Such a lock belongs to the process, not to the descriptor. So a second lock by the same process would succeed, and
    closing ANY descriptor of the file would give the lock away: this class keeps a register of what the process holds,
    refuses a second lock before the file is opened, and nothing else may open `.lock`. A forked child does not inherit
    the lock. On release the file is removed, as a broker does when it stops in good order.
    """

    def __init__(self, log_dir: files.StrPath) -> None:
        self.path = os.path.join(os.fspath(log_dir), names.LOCK)  # noqa: PTH118
        self._fd = -1
        try:
            found = os.stat(log_dir)  # noqa: PTH116
        except OSError as error:
            raise files.failed(log_dir, "lock", error) from error
        self._key = (os.getpid(), found.st_dev, found.st_ino)
        with _register_lock:
            if self._key in _register:
                raise LogDirLockedError(path=os.fspath(log_dir))
            self._fd = _open_locked(self.path, os.fspath(log_dir), found)
            _register.add(self._key)

    @property
    def is_held(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Removes the file and gives the lock up, in this order: nobody can lock the file that is about to vanish.

        Further calls do nothing. A file that cannot be removed stays, unlocked, and harms nobody.
        """
        with _register_lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            try:
                with contextlib.suppress(StorageIOError):
                    files.remove(self.path, missing_ok=True)
            finally:
                _register.discard(self._key)
                os.close(fd)

    def __enter__(self) -> LogDirLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


#: (process, device, inode) of each log dir whose lock this process holds.
_register: set[tuple[int, int, int]] = set()
_register_lock = threading.Lock()


def read_meta_properties(path: files.StrPath) -> MetaProperties | None:
    """Reads a meta.properties file; None when there is none.

    CorruptFileError: not properties text, a version other than 0 and 1, or a value that is missing or malformed.
    """
    name = os.fspath(path)
    raw = files.read_file(name, _LARGEST_SMALL_FILE, missing_ok=True)
    if not raw and not os.path.exists(name):  # noqa: PTH110
        return None
    try:
        return _meta_of(properties_dict(raw, name))
    except (ValueError, SettingError) as error:
        raise CorruptFileError(
            path=name,
            reason=str(error),
            position=0,
            advice="Kafka does not start on it either; copy the file of another log dir of this broker, "
            "with this dir's own directory.id.",
        ) from None


def format_meta_properties(meta: MetaProperties, now_ms: int) -> bytes:
    """The file as Properties.store writes it: an empty comment, the date, one `key=value` a line."""
    values: dict[str, str] = {}
    if meta.node_id is not None:
        values["node.id" if meta.version else "broker.id"] = str(meta.node_id)
    if meta.directory_id is not None:
        values["directory.id"] = uuid_text(meta.directory_id)
    values["version"] = str(meta.version)
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    now = time.gmtime(now_ms // 1000)
    # Java's Date.toString; strftime would follow the locale.
    day, month = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"][now.tm_wday], _MONTHS[now.tm_mon - 1]
    date = f"{day} {month} {now.tm_mday:02} {now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02} UTC {now.tm_year:04}"
    lines = ["#", f"#{date}", *(f"{key}={_escaped(value)}" for key, value in values.items())]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def read_clean_shutdown(path: files.StrPath) -> CleanShutdown | None:
    """Reads a `.kafka_cleanshutdown`; None when there is none. Unreadable content costs only the broker epoch."""
    name = os.fspath(path)
    try:
        raw = files.read_file(name, _LARGEST_SMALL_FILE, missing_ok=True)
        if not raw and not os.path.exists(name):  # noqa: PTH110
            return None
        epoch = json.loads(raw).get("brokerEpoch")
    except (ValueError, AttributeError, RecursionError, CorruptFileError):
        return CleanShutdown(None)
    return CleanShutdown(epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None)


_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def _meta_of(found: dict[str, str]) -> MetaProperties:
    version = parse_integer(found.get("version", "0"), 31)
    if version not in (0, 1):
        raise ValueError(f"version={version}, where only 0 and 1 are known")
    cluster_id = found.get("cluster.id")
    node = found.get("node.id" if version else "broker.id")
    if version and (cluster_id is None or node is None):
        raise ValueError(f"{'cluster.id' if cluster_id is None else 'node.id'} is missing")
    directory = found.get("directory.id")
    return MetaProperties(
        version,
        cluster_id,
        None if node is None else parse_integer(node, 31),
        None if directory is None else parse_uuid(directory),
    )


def _escaped(value: str) -> str:
    """A value as Properties.store escapes it; characters outside printable ASCII become \\uXXXX."""
    pieces = []
    for index, char in enumerate(value):
        if char in _ESCAPES:
            pieces.append(_ESCAPES[char])
        elif char in "=:#!\\" or (char == " " and index == 0):
            pieces.append("\\" + char)
        elif " " <= char <= "~":
            pieces.append(char)
        else:
            units = char.encode("utf-16-be")
            pieces.extend(f"\\u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2))
    return "".join(pieces)


def _open_locked(path: str, log_dir: str, owner: os.stat_result) -> int:
    while True:
        try:
            fd = files.layer().open_lock(path, 0o666)
        except OSError as error:
            if error.errno in _MAY_NOT:
                raise NotWritableError(path=path, action="open or make") from error
            raise files.failed(path, "lock", error) from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(fd, path):
                _give_to(fd, owner)
                return fd
        except OSError as error:
            os.close(fd)
            if error.errno in _HELD:
                raise LogDirLockedError(path=log_dir) from None
            raise files.failed(path, "lock", error) from error
        except BaseException:
            os.close(fd)
            raise
        # Its holder removed the file between our open and our lock: what we locked has no name any more.
        os.close(fd)


def _is_still(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _give_to(fd: int, owner: os.stat_result) -> None:
    """Made by root, the file goes to the log dir's owner: left behind by a kill, it must not keep the broker out."""
    made = os.fstat(fd)
    if os.geteuid() == 0 and (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid):
        files.layer().chown(fd, owner.st_uid, owner.st_gid)
