"""All logs of a broker over its log dirs: loading, placement, deletion, moves between dirs, failure of a dir (LogManager; facts 9).

Each dir stands on its own: an I/O error takes it offline with its logs, the others go on. One owner calls the methods.
How a log is copied, and what a start makes of a move that was interrupted: storage.log_copy, storage.log_exchange.

For a process that has all logs to itself, as the benchmark of starts. In the daemon the coordinator has the log dirs
(coordinator.logs, coordinator.catalogue.places) and broker workers the logs (workers.broker.partitions, .moves).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compactd.config.errors import CompactdError, FaultError, LogDirLockedError, RefusedError, StorageIOError
from compactd.config.settings import StorageConfig, TopicConfig
from compactd.storage import files, names
from compactd.storage.log import PartitionLog, Resources
from compactd.storage.log_copy import CHUNK, LogCopy
from compactd.storage.log_dir_session import LoadOutcome, LogDirSession, load_requests
from compactd.storage.log_exchange import exchange, forget_origin, future_copies, origin_of
from compactd.storage.managed_dir import DoomedDir, ManagedDir, remove_tree
from compactd.storage.names import TopicPartition
from compactd.storage.placement import assigned_log_dir, log_dirs_by_load

Offline = Callable[[Path, CompactdError], None]


class LogManager:
    """See the module. Paths are resolved; times in ms, given by the caller."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        config_of: Callable[[str], TopicConfig],
        storage: StorageConfig | None = None,
        *,
        resources: Resources | None = None,
        on_offline: Offline | None = None,
    ) -> None:
        self.config_of = config_of
        self.storage = storage or StorageConfig()
        self.resources = resources or Resources()
        self._on_offline = on_offline or (lambda _path, _error: None)
        self._paths = [Path(path).resolve() for path in log_dirs]
        if len(set(self._paths)) != len(self._paths):
            doubled = sorted({str(path) for path in self._paths if self._paths.count(path) > 1})
            raise RefusedError(
                path=doubled[0], reason="the log dir is named twice", advice="Name each dir once in log.dirs."
            )
        self.dirs: dict[Path, ManagedDir] = {}
        self.offline: dict[Path, CompactdError] = {}

    # ---- start and stop

    def start(self, now_ms: int, *, loaded: Callable[[LoadOutcome], None] | None = None) -> None:
        """Locks and loads every dir, the dirs in parallel; what cannot be used goes offline.

        LogDirLockedError when another process has one of them; FaultError when none is left, or when a partition is
        live in two dirs and nothing tells which is right.
        """
        for path in self._paths:
            try:
                self.dirs[path] = self._open_dir(path)
            except LogDirLockedError:
                self.release()
                raise
            except CompactdError as error:
                self._take_offline(path, error)
        with ThreadPoolExecutor(max(len(self.dirs), 1), thread_name_prefix="log-dir") as pool:
            jobs = {path: pool.submit(self._load_dir, managed, now_ms, loaded) for path, managed in self.dirs.items()}
        for path, job in jobs.items():
            problem = job.exception()
            if problem is None:
                continue
            if not isinstance(problem, CompactdError):
                raise problem
            self._take_offline(path, problem)
        if not self.dirs:
            raise FaultError(path=", ".join(map(str, self._paths)), reason="none of the log dirs can be used")
        self._finish_moves(now_ms)
        self._refuse_duplicates()

    def close(self) -> None:
        """Closes every log; each dir in which all went well gets its marker (facts 1.9). Locks are released.

        Raises nothing: a dir with an error is left to be recovered at the next start.
        """
        for managed in list(self.dirs.values()):
            failed = not managed.loaded
            self._close_copies(managed)
            for log in managed.logs.values():
                try:
                    log.close()
                except CompactdError as error:
                    failed = True
                    self._on_offline(managed.path, error)
            try:
                managed.session.failed |= failed
                managed.session.write_checkpoints(managed.logs.values(), whole_dir=True)
                managed.session.write_marker()
            except CompactdError as error:
                self._on_offline(managed.path, error)
        self.release()

    def release(self) -> None:
        """Gives the locks up and leaves everything as it is."""
        for managed in self.dirs.values():
            managed.session.release()
        self.dirs.clear()

    # ---- logs

    def get(self, name: TopicPartition) -> PartitionLog | None:
        """The partition's log; None where there is none, or its dir is offline."""
        return next((managed.logs[name] for managed in self.dirs.values() if name in managed.logs), None)

    def dir_of(self, name: TopicPartition) -> ManagedDir | None:
        return next((managed for managed in self.dirs.values() if name in managed.logs), None)

    def logs(self) -> Iterator[PartitionLog]:
        """Every current log."""
        for managed in self.dirs.values():
            yield from managed.logs.values()

    def create(
        self,
        name: TopicPartition,
        now_ms: int,
        *,
        topic_id: uuid.UUID | None = None,
        directory_id: uuid.UUID | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """The partition's log; made where there is none, in the dir with the fewest logs that can take it (facts 9).

        `directory_id`: the dir that the controller assigned. `is_new` False: the partition may have lived in a dir that
        is offline, so it is not made anew while one is. StorageIOError when no dir can take it.
        """
        existing = self.get(name)
        if existing is not None:
            return existing
        if self.offline and not is_new:
            raise StorageIOError(
                path=str(name),
                action="create",
                reason=f"it may be in an offline log dir: {', '.join(map(str, self.offline))}",
            )
        problem: CompactdError | None = None
        for managed in self._candidates(directory_id):
            try:
                log = self._create_in(managed, str(name), name, now_ms, topic_id)
            except CompactdError as error:
                problem = error
                if isinstance(error, StorageIOError):
                    self.fail_dir(managed.path, error)
                continue
            managed.logs[name] = log
            return log
        raise problem or StorageIOError(path=str(name), action="create", reason="no log dir is left")

    def delete(self, name: TopicPartition, now_ms: int) -> Path | None:
        """Deletes a partition: renamed to `-delete` at once, removed after file.delete.delay.ms (facts 7.6).

        Returns the directory's new path; None where there is no such log.
        """
        managed = self.dir_of(name)
        if managed is None:
            return None
        log = managed.logs.pop(name)
        renamed = self._retire(managed, log, names.delete_dir_name(name), now_ms)
        self._drop_cleaner_offset(managed, name)
        return renamed

    def set_aside(self, name: TopicPartition) -> Path | None:
        """Renames a partition that is not this broker's to `-stray`; it is kept for a person to look at."""
        managed = self.dir_of(name)
        if managed is None:
            return None
        log = managed.logs.pop(name)
        log.rename_dir(names.stray_dir_name(name))
        log.close()
        managed.strays.append(log.directory)
        self._checkpoint(managed)
        return log.directory

    def delete_due(self, now_ms: int) -> list[Path]:
        """Removes the `-delete` directories whose time has come; returns them."""
        removed = []
        for managed in list(self.dirs.values()):
            due = [doomed for doomed in managed.doomed if doomed.due_ms <= now_ms]
            for doomed in due:
                try:
                    remove_tree(doomed.directory)
                except StorageIOError as error:
                    self.fail_dir(managed.path, error)
                    break
                managed.doomed.remove(doomed)
                removed.append(doomed.directory)
        return removed

    def retain(self, now_ms: int) -> dict[TopicPartition, int]:
        """Applies retention to every log without compact in its policy (facts 7.1); a copy that is made follows its log.

        Returns how many segments went, by partition. Compacted logs are their cleaner's business.
        """
        gone: dict[TopicPartition, int] = {}
        for managed in list(self.dirs.values()):
            for log in list(managed.logs.values()):
                if log.config.compact:
                    continue
                try:
                    count = log.delete_old_segments(now_ms)
                except StorageIOError as error:
                    self.fail_dir(managed.path, error)
                    break
                if count:
                    gone[log.topic_partition] = gone.get(log.topic_partition, 0) + count
        return gone

    def checkpoint(self) -> None:
        """Writes the recovery points and log start offsets of every dir (the 60 s tasks of facts 7.5)."""
        for managed in list(self.dirs.values()):
            self._checkpoint(managed)

    # ---- moves between dirs

    def start_move(self, name: TopicPartition, target: Path) -> LogCopy:
        """Makes the `-future` copy of a partition in another dir. RefusedError where it cannot be moved there."""
        source, managed = self.dir_of(name), self.dirs.get(target.resolve())
        if source is None or managed is None or managed is source:
            reason = (
                "no such log"
                if source is None
                else "it is there already"
                if managed is source
                else "not a live log dir"
            )
            raise RefusedError(
                path=target, reason=f"cannot move {name} there, {reason}", advice="Name another log dir."
            )
        if name in managed.futures:
            return managed.futures[name]
        copy = LogCopy(source.logs[name], managed.path / names.future_dir_name(name))
        copy.begin()
        managed.futures[name] = copy
        return copy

    def continue_move(self, name: TopicPartition, most_bytes: int = CHUNK) -> bool:
        """Copies the next bytes into the future copy; returns whether it has caught up with the current log."""
        _, copy, _ = self._moving(name)
        return copy.step(most_bytes) == 0

    def finish_move(self, name: TopicPartition, now_ms: int) -> PartitionLog:
        """Puts the future copy, which has caught up, in the current log's place; the old one becomes `-delete`.

        RefusedError when it has not caught up.
        """
        current, copy, managed = self._moving(name)
        source = self.dir_of(name)
        assert source is not None
        if copy.lag:
            raise RefusedError(
                path=copy.directory,
                reason=f"it ends at {copy.end_offset}, the current log at {current.log_end_offset}",
                advice="Copy the rest first.",
            )
        copy.finish()
        loaded = copy.load(now_ms, self.storage.producer_id_expiration_ms)
        moved = PartitionLog(loaded, now_ms=now_ms, resources=self.resources, topic_id=current.topic_id)
        moved.take_over(current)
        problem = exchange(current, moved, recorded=False)
        del managed.futures[name], source.logs[name]
        managed.logs[name] = moved
        if problem is not None:
            self.fail_dir(source.path, problem)
            return moved
        self._doom(source, current, now_ms)
        self._end_of_move(source.session, managed.session, moved.directory, name)
        self._checkpoint(managed)
        return moved

    def cancel_move(self, name: TopicPartition, now_ms: int) -> None:
        """Gives the future copy up: it becomes `-delete`."""
        current, copy, managed = self._moving(name)
        del managed.futures[name]
        copy.close()
        doomed = copy.directory.with_name(names.delete_dir_name(name))
        files.rename(copy.directory, doomed)
        files.fsync_dir(managed.path)
        managed.doomed.append(DoomedDir(doomed, now_ms + current.config.file_delete_delay_ms))

    # ---- failure of a dir

    def fail_dir(self, path: Path, error: CompactdError) -> None:
        """Takes a dir offline until the next start: its logs are closed as they are, its lock goes (facts 9)."""
        if path.resolve() in self.dirs:
            self._take_offline(path.resolve(), error)

    # ---- inside

    def _open_dir(self, path: Path) -> ManagedDir:
        if not path.exists():
            files.make_dir(path)
        if not path.is_dir():
            raise FaultError(path=path, reason="a log dir has to be a directory")
        files.check_writable(path)
        session = LogDirSession.begin(path)
        try:
            meta = session.log_dir.meta()
            session.forget_marker()
        except BaseException:
            session.release()
            raise
        return ManagedDir(session, None if meta is None else meta.directory_id)

    def _load_dir(self, managed: ManagedDir, now_ms: int, loaded: Callable[[LoadOutcome], None] | None) -> None:
        """Loads everything in one dir. An I/O error of one log takes the dir offline, as in Kafka.

        A log that is damaged beyond recovery is set apart (`faulty`); Kafka would not start at all.
        """
        session = managed.session
        requests = load_requests(session.log_dir, self.config_of)
        outcomes = session.load(
            requests,
            now_ms=now_ms,
            threads=self.storage.num_recovery_threads_per_data_dir,
            producer_expiration_ms=self.storage.producer_id_expiration_ms,
            loaded=loaded,
        )
        for outcome in outcomes:
            if isinstance(outcome.error, StorageIOError):
                raise outcome.error
        watermarks = session.read_high_watermarks()
        for outcome in outcomes:
            name = outcome.request.topic_partition
            if outcome.log is None:
                managed.faulty[name] = outcome.error or FaultError(path=outcome.request.directory, reason="not loaded")
                continue
            log = PartitionLog(
                outcome.log, now_ms=now_ms, resources=self.resources, high_watermark=watermarks.get(name)
            )
            managed.logs[name] = log
        for each in session.log_dir.partition_dirs():
            if each.state == "delete":
                managed.doomed.append(
                    DoomedDir(managed.path / each.name, now_ms + self._delete_delay(each.topic_partition))
                )
            elif each.state == "stray":
                managed.strays.append(managed.path / each.name)
        managed.loaded = True

    def _finish_moves(self, now_ms: int) -> None:
        """Ends exchanges that a crash interrupted between their two renames, and takes unfinished copies up again."""
        for managed in list(self.dirs.values()):
            for name, log in list(managed.logs.items()):
                old = origin_of(log.directory)
                source = None if old is None else self.dirs.get(old.parent)
                if source is not None and source is not managed and name in source.logs:
                    self._retire(source, source.logs.pop(name), names.delete_dir_name(name), now_ms)
                    self._end_of_move(source.session, managed.session, log.directory, name)
                elif old is not None:
                    forget_origin(log.directory)
        for managed in list(self.dirs.values()):
            for name, paths in future_copies(managed.path).items():
                current = self.get(name)
                if current is not None and name not in managed.logs:
                    managed.futures[name] = LogCopy(current, paths[0])
                    managed.futures[name].begin()

    def _end_of_move(self, source: LogDirSession, target: LogDirSession, directory: Path, name: TopicPartition) -> None:
        """The cleaner's checkpoint goes with the log, and the note is no longer needed."""
        entries = source.log_dir.cleaner_offsets.read()
        offset = entries.pop(name, None)
        if offset is not None:
            target.log_dir.cleaner_offsets.write({**target.log_dir.cleaner_offsets.read(), name: offset})
            source.log_dir.cleaner_offsets.write(entries)
        forget_origin(directory)

    def _refuse_duplicates(self) -> None:
        seen: dict[TopicPartition, Path] = {}
        for managed in self.dirs.values():
            for name, log in managed.logs.items():
                if name in seen:
                    raise FaultError(
                        path=log.directory,
                        reason=f"the partition is live at {seen[name]}, too; remove the copy in the dir that failed last",
                    )
                seen[name] = log.directory

    def _candidates(self, directory_id: uuid.UUID | None) -> list[ManagedDir]:
        assigned = assigned_log_dir(directory_id, {path: each.directory_id for path, each in self.dirs.items()})
        if assigned is not None:
            return [self.dirs[assigned]]
        cordoned = set(self.storage.cordoned_log_dirs)
        shut = [path for path in self.dirs if "*" in cordoned or cordoned & {str(path), path.name}]
        counts = {path: managed.log_count for path, managed in self.dirs.items()}
        return [self.dirs[path] for path in log_dirs_by_load(list(self.dirs), counts, shut)]

    def _create_in(
        self,
        managed: ManagedDir,
        directory: str,
        name: TopicPartition,
        now_ms: int,
        topic_id: uuid.UUID | None,
    ) -> PartitionLog:
        return PartitionLog.create(
            managed.path / directory,
            self.config_of(name.topic),
            now_ms=now_ms,
            producer_expiration_ms=self.storage.producer_id_expiration_ms,
            resources=self.resources,
            topic_id=topic_id,
        )

    def _retire(self, managed: ManagedDir, log: PartitionLog, directory: str, now_ms: int) -> Path:
        """Renames a log's directory for deletion and queues it."""
        log.rename_dir(directory, keep_using=False)
        self._doom(managed, log, now_ms)
        return log.directory

    def _doom(self, managed: ManagedDir, log: PartitionLog, now_ms: int) -> None:
        """Queues a log's directory, which has its `-delete` name."""
        log.close(orderly=False)
        managed.doomed.append(DoomedDir(log.directory, now_ms + log.config.file_delete_delay_ms))
        self._checkpoint(managed)

    def _checkpoint(self, managed: ManagedDir) -> None:
        try:
            managed.session.write_checkpoints(managed.logs.values(), whole_dir=True)
        except StorageIOError as error:
            self.fail_dir(managed.path, error)

    def _drop_cleaner_offset(self, managed: ManagedDir, name: TopicPartition) -> None:
        checkpoint = managed.session.log_dir.cleaner_offsets
        entries = checkpoint.read()
        if entries.pop(name, None) is not None:
            checkpoint.write(entries)

    def _delete_delay(self, name: TopicPartition) -> int:
        return self.config_of(name.topic).file_delete_delay_ms

    def _moving(self, name: TopicPartition) -> tuple[PartitionLog, LogCopy, ManagedDir]:
        current = self.get(name)
        managed = next((each for each in self.dirs.values() if name in each.futures), None)
        if current is None or managed is None:
            raise RefusedError(path=str(name), reason="it is not being moved", advice="Start the move first.")
        return current, managed.futures[name], managed

    def _take_offline(self, path: Path, error: CompactdError) -> None:
        managed = self.dirs.pop(path, None)
        if managed is not None:
            for log in managed.logs.values():
                log.close(orderly=False)
            self._close_copies(managed)
            managed.session.release()
        self.offline[path] = error
        self._on_offline(path, error)

    @staticmethod
    def _close_copies(managed: ManagedDir) -> None:
        """They stay as they are: the next start goes on with them."""
        for copy in managed.futures.values():
            copy.close()
