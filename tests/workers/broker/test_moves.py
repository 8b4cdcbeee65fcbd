"""AlterReplicaLogDirs on one broker: moves under clients, given up, cancelled, held back, interrupted and gone on with."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.log_copy import LogCopy
from compactd.storage.metadata.format import format_log_dirs
from compactd.storage.names import TopicPartition
from compactd.workers.broker import move_throttle, moves
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.cleaning_messages import CleanJob, GroupReady, GroupSwapped, PrepareClean, UndoClean, UndoDone
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import ConfigChanged, DirectoriesRetired, LogDirFailed
from tests.file_faults import FaultyLayer
from tests.workers.broker.batches import batch, fetch, fetch_body, produce
from tests.workers.broker.batches import records_of as whole_records_of
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

ALTER, DESCRIBE, CREATE_TOPICS, DELETE_TOPICS, ALTER_CONFIGS = 34, 35, 19, 20, 44
NO_MARGIN = {"cleaner.free.space.margin": 0}


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("d1", "d2", "d3")]
    for each in made:
        each.mkdir()
    return made


class Setting:
    """A broker, a client, and a topic of one partition with some records."""

    def __init__(self, broker: CatalogueBroker, client: RawClient, **configs: str) -> None:
        self.broker, self.client = broker, client
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": rows}
        made = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000}).topics[0]
        assert made.error_code == 0, made
        self.written: list[bytes] = []
        until(lambda: self.write(b"first") == 0)

    def write(self, value: bytes) -> int:
        answer = produce(self.client, batch([value]), "t")
        if not answer.error_code:
            self.written.append(value)
        return int(answer.error_code)

    def fill(self, count: int = 60, size: int = 2000) -> None:
        for number in range(count):
            assert self.write(b"%05d" % number * (size // 5)) == 0

    def read(self, client: RawClient | None = None) -> list[bytes]:
        """Values of all records from the start, in order; each offset one more than the one before."""
        found: list[bytes] = []
        while len(found) < len(self.written):
            answer = fetch(client or self.client, len(found), "t", max_bytes=1 << 20)
            assert answer.error_code == 0
            records = [each for each in records_of(answer.records) if each[0] >= len(found)]
            assert [offset for offset, _ in records[:1]] == [len(found)], "records were lost or doubled"
            found += [value for _, value in records]
        return found

    def move(self, log_dir: Path | str, client: RawClient | None = None) -> int:
        return alter(client or self.client, str(log_dir))

    @property
    def place(self) -> Path:
        return Path(self.broker.partition("t").log_dir)

    def rows(self) -> dict[str, list[tuple[bool, int, int]]]:
        """By log dir: (is future, size, lag)."""
        answer = self.client.ask(DESCRIBE, 4, {"topics": None})
        return {
            each.log_dir: [(p.is_future_key, p.partition_size, p.offset_lag) for t in each.topics for p in t.partitions]
            for each in answer.results
        }

    def arrived(self, log_dir: Path) -> None:
        until(lambda: self.place == log_dir and not self.rows_of_future())
        assert self.directories() == {f"{log_dir.name}/t-0"}

    def rows_of_future(self) -> list[Any]:
        return [row for rows in self.rows().values() for row in rows if row[0]]

    def directories(self, suffixes: tuple[str, ...] = (names.DELETE_DIR,)) -> set[str]:
        """Of the topic, but for those on their way out."""
        return {
            f"{log_dir.name}/{path.name}"
            for log_dir in map(Path, self.broker.log_dirs)
            for path in log_dir.glob("t-0*")
            if not path.name.endswith(suffixes)
        }


def alter(client: RawClient, path: str, topic: str = "t", partition: int = 0, version: int = 2) -> int:
    body = {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": [partition]}]}]}
    (result,) = client.ask(ALTER, version, body).results
    return int(result.partitions[0].error_code)


def records_of(data: bytes | None) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value or b"") for record in whole_records_of(data)]


def until(condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def throttle(setting: Setting, rate: int | None, broker: str = "") -> None:
    row = {"name": moves.RATE, "config_operation": 1 if rate is None else 0, "value": rate and str(rate)}
    if rate == 0:
        row["value"] = "0"
    resource = {"resource_type": 4, "resource_name": broker, "configs": [row]}
    answer = setting.client.ask(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert answer.responses[0].error_code == 0, answer


def test_a_move_under_producers_and_consumers(dirs: list[Path]) -> None:
    """To and fro, while three producers and two consumers are at it: no refusal, nothing lost, nothing out of order."""
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client, segment_bytes="1048576")
        there.fill(300, 10_000)
        stop, done, written = threading.Event(), threading.Event(), [0, 0, 0]
        failures: list[object] = []
        seen: dict[int, list[int]] = {0: [], 1: []}

        def producer(number: int) -> None:
            with broker.connect() as mine:
                while not stop.is_set():
                    value = b"%d-%06d" % (number, written[number])
                    answer = produce(mine, batch([value + b"." * 3000]), "t")
                    if answer.error_code:
                        failures.append(answer.error_code)
                        return
                    written[number] += 1

        def consumer(number: int) -> None:
            with broker.connect() as mine:
                offset, expected = 0, [0, 0, 0]
                while not (done.is_set() and sum(expected) == sum(written)) and not failures:
                    answer = fetch(mine, offset, "t", max_bytes=1 << 20, max_wait=50)
                    if answer.error_code:
                        failures.append(answer.error_code)
                        return
                    for at, value in records_of(answer.records):
                        if at < offset:
                            continue
                        if at != offset:
                            failures.append(f"offset {at} after {offset}")
                            return
                        offset = at + 1
                        if value[1:2] == b"-":
                            who = int(value[:1])
                            if int(value[2:8]) != expected[who]:
                                failures.append(f"{value[:8]!r} where {expected[who]} was due")
                                return
                            expected[who] += 1
                seen[number] = expected

        threads = [threading.Thread(target=producer, args=(number,)) for number in range(3)]
        threads += [threading.Thread(target=consumer, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        start = there.place
        for target in (dirs[1], dirs[2], dirs[0], dirs[1]):
            if target != there.place:
                assert there.move(target) == 0
                there.arrived(target)
        stop.set()
        for thread in threads[:3]:
            thread.join(60)
        done.set()
        for thread in threads[3:]:
            thread.join(60)
        assert not failures
        assert seen[0] == seen[1] == written and min(written) > 0 and start in dirs
        retired = broker.channel.wait_for(lambda message: isinstance(message, DirectoriesRetired))
        assert all(path.endswith(names.DELETE_DIR) for path in retired.directories)
        state = broker.state("t", lambda state: state.log_dir == str(dirs[1]))
        assert not state.moving_to and state.recovery_point > 0
    # What the catalogue says is where it lies.
    with CatalogueBroker(dirs) as broker:
        assert Path(broker.partition("t").log_dir) == dirs[1]
        assert broker.partition("t").log.log_end_offset == 301 + sum(written)


def test_what_is_asked_and_cannot_be(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, {**NO_MARGIN, "cordoned.log.dirs": str(dirs[2])}) as broker, broker.connect() as client:
        there = Setting(broker, client)
        other = next(each for each in dirs[:2] if each != there.place)
        assert there.move(there.place) == 0
        for path in ("/nowhere", "d1", "", str(other) + "/"):
            assert alter(client, path) == ErrorCode.LOG_DIR_NOT_FOUND
            assert alter(client, path, "none") == ErrorCode.LOG_DIR_NOT_FOUND
        assert alter(client, str(other), "none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(client, str(other), "t", 7, version=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(client, str(other), "x" * 249) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert there.move(dirs[2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        broker.channel.put(LogDirFailed(log_dir=str(dirs[2]), reason="test"))
        until(lambda: there.move(dirs[2]) == ErrorCode.KAFKA_STORAGE_ERROR)
        assert there.move(other) == ErrorCode.KAFKA_STORAGE_ERROR
        assert there.directories() == {f"{there.place.name}/t-0"}
        assert client.ask(ALTER, 2, {"dirs": []}).results == ()


def test_progress_is_told_and_a_move_can_be_cancelled(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill()
        throttle(there, 0)
        source = there.place
        target = next(each for each in dirs if each != source)
        assert there.move(target) == 0
        assert there.move(target) == 0
        rows = there.rows()
        ((_, size, lag),) = rows[str(target)]
        assert rows[str(target)][0][0] and lag == 61 and size < 60 * 2000
        assert rows[str(source)][0] == (False, broker.partition("t").log.size, 0)
        assert broker.state("t", lambda state: bool(state.moving_to)).moving_to == str(target)
        there.write(b"more")
        assert there.move(source) == 0
        assert not there.rows_of_future()
        assert there.directories() == {f"{source.name}/t-0"}
        retired = broker.channel.wait_for(lambda message: isinstance(message, DirectoriesRetired))
        assert Path(retired.directories[0]).parent == target
        assert there.read() == there.written
        # To a third dir while it is on its way to a second.
        assert there.move(target) == 0
        third = next(each for each in dirs if each not in (source, target))
        assert there.move(third) == 0
        assert [log_dir for log_dir, rows in there.rows().items() if any(row[0] for row in rows)] == [str(third)]
        throttle(there, None)
        there.arrived(third)
        assert there.read() == there.written


def test_a_rate_holds(dirs: list[Path]) -> None:
    """At 400 KB/s no more than a second's worth and one piece are copied in a second."""
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(100, 10_000)
        throttle(there, 400_000)
        target = next(each for each in dirs if each != there.place)
        begun = time.monotonic()
        assert there.move(target) == 0
        sizes: list[tuple[float, int]] = []
        while futures := there.rows_of_future():
            sizes.append((time.monotonic() - begun, futures[0][1]))
            time.sleep(0.05)
        assert sizes and all(size <= 400_000 * seconds + 100_000 for seconds, size in sizes)
        assert there.read() == there.written


def test_nothing_is_cleaned_meanwhile(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(3)
        throttle(there, 0)
        source = there.place
        prepare = PrepareClean(request_id=broker.next_id(), topic="t", partition=0)
        assert isinstance(broker.ask(prepare, CleanJob), CleanJob)
        assert there.move(next(each for each in dirs if each != source)) == 0
        prepare = PrepareClean(request_id=broker.next_id(), topic="t", partition=0)
        refused = broker.ask(prepare, CleanJob)
        assert isinstance(refused, Failed) and "is being moved to" in refused.message
        ready = GroupReady(
            request_id=broker.next_id(), group_id=1, topic="t", partition=0, base_offset=0, source_bases=(0,)
        )
        assert not broker.ask(ready, GroupSwapped).accepted
        undo = UndoClean(request_id=broker.next_id(), topic="t", partition=0)
        assert "is being moved to" in broker.ask(undo, UndoDone).refused
        assert there.move(source) == 0
        prepare = PrepareClean(request_id=broker.next_id(), topic="t", partition=0)
        assert isinstance(broker.ask(prepare, CleanJob), CleanJob)


def test_a_topic_that_is_deleted_on_its_way(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(3)
        throttle(there, 0)
        assert there.move(next(each for each in dirs if each != there.place)) == 0
        deleted = client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "t"}], "timeout": 10_000}).responses[0]
        assert deleted.error_code == 0
        until(lambda: not there.directories())
        until(lambda: not broker.in_loop(lambda context: list(context.part(moves.Moves))))


@pytest.mark.parametrize("clean", [True, False])
def test_a_move_that_was_interrupted_goes_on(dirs: list[Path], clean: bool) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client, segment_bytes="1048576")
        there.fill(250, 10_000)
        written, source = there.written, there.place
        throttle(there, 2_000_000)
        target = next(each for each in dirs if each != source)
        assert there.move(target) == 0
        until(lambda: there.rows_of_future()[0][1] > 300_000)
        throttle(there, 0)
        left = there.directories()
        assert len(left) == 2
    with CatalogueBroker(dirs, NO_MARGIN, clean=clean) as broker, broker.connect() as client:
        again = Setting.__new__(Setting)
        again.broker, again.client, again.written = broker, client, written
        until(again.rows_of_future)
        assert again.directories() == left
        again.write(b"after")
        throttle(again, None)
        again.arrived(target)
        assert again.read() == written


def test_a_full_disk_ends_the_move_and_nothing_else(dirs: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        source, layer = there.place, FaultyLayer()
        target = next(each for each in dirs if each != source)
        layer.fail("write", errno.ENOSPC, nth=None, part=f"{target}/t-0")
        with files.replaced(layer):
            there.move(target)
            until(lambda: not there.rows_of_future())
            assert not broker.partition("t").moving_to
            assert there.write(b"still served") == 0
        assert "was given up" in caplog.text
        assert there.directories() == {f"{source.name}/t-0"}
        assert not broker.in_loop(lambda context: context.partitions.offline_log_dirs)
        assert there.move(target) == 0
        there.arrived(target)
        assert there.read() == there.written


def test_a_move_waits_for_space(dirs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "SPACE_SECONDS", 0.02)
    with CatalogueBroker(dirs, {"cleaner.free.space.margin": 1000}) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        target = next(each for each in dirs if each != there.place)
        size = there.broker.partition("t").log.size
        # What little lies in the copy's directory already does not make up for ten thousand bytes of records.
        free = [size // 2]
        monkeypatch.setattr(files, "free_bytes", lambda _: free[0])
        assert there.move(target) == 0
        (move,) = broker.in_loop(lambda context: list(context.part(moves.Moves)))
        until(lambda: move.waits_for)
        assert "are free" in move.waits_for and there.rows_of_future()[0][1] == 0
        free[0] = size + 1000
        there.arrived(target)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_target_that_fails_goes_offline_alone(dirs: list[Path], call: str) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        source, layer = there.place, FaultyLayer()
        target = next(each for each in dirs if each != source)
        layer.fail(call, errno.EIO, nth=None, part=names.FUTURE_DIR)
        with files.replaced(layer):
            there.move(target)
            until(lambda: broker.in_loop(lambda context: context.partitions.offline_log_dirs) == {str(target)})
            until(lambda: not broker.partition("t").moving_to)
            assert there.write(b"still served") == 0
        failed = broker.channel.wait_for(lambda message: isinstance(message, LogDirFailed))
        assert failed.log_dir == str(target)
        assert there.place == source and there.read() == there.written
        assert there.move(target) == ErrorCode.KAFKA_STORAGE_ERROR
        recorded = broker.catalogue.full_update().topics[0].partitions[0].log_dir
        assert recorded == str(source)


def test_a_source_that_fails_at_the_end_is_left_behind(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        source, layer = there.place, FaultyLayer()
        target = next(each for each in dirs if each != source)
        layer.fail("rename", errno.EIO, part=f"{source}/t-0")
        with files.replaced(layer):
            assert there.move(target) == 0
            until(lambda: there.place == target)
            until(lambda: broker.in_loop(lambda context: context.partitions.offline_log_dirs) == {str(source)})
            assert there.write(b"on the other disk") == 0
        assert there.read() == there.written
        written = there.written
        assert there.directories() == {f"{source.name}/t-0", f"{target.name}/t-0"}
    # With both disks back it is known which one counts.
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        again = Setting.__new__(Setting)
        again.broker, again.client, again.written = broker, client, written
        assert again.place == target and again.read() == written
        assert again.directories() == {f"{target.name}/t-0"}
        assert not (target / "t-0" / ".moved-from").exists()


def test_a_source_that_cannot_be_read_goes_offline(dirs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        throttle(there, 0)
        target = next(each for each in dirs if each != there.place)
        log = broker.partition("t").log

        def unreadable(*_: object) -> bytes:
            raise files.failed(str(log.directory / "x"), "read", OSError(errno.EIO, "test"))

        monkeypatch.setattr(type(log.segments[0]), "read", unreadable)
        there.move(target)
        throttle(there, None)
        until(
            lambda: broker.in_loop(lambda context: context.partitions.offline_log_dirs) == {str(log.directory.parent)}
        )
        assert there.write(b"x") == ErrorCode.KAFKA_STORAGE_ERROR
        # The copy is all that there is of it on a disk that works.
        assert any(name.endswith(names.FUTURE_DIR) for name in there.directories())


def test_a_catalogue_that_refuses_ends_the_move(dirs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        source = there.place
        target = next(each for each in dirs if each != source)
        broker.catalogue.log_dir_failed(target)
        assert there.move(target) == 0
        until(lambda: not broker.partition("t").moving_to)
        assert there.place == source and there.directories() == {f"{source.name}/t-0"}
        assert there.write(b"x") == 0


def test_a_fetch_that_waits_wakes_on_the_other_disk(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client, broker.connect() as other:
        there = Setting(broker, client)
        target = next(each for each in dirs if each != there.place)
        other.send(1, 12, fetch_body(1, "t", max_wait=20_000, min_bytes=1))
        broker.wait_for_watchers("t")
        assert there.move(target) == 0
        there.arrived(target)
        broker.wait_for_watchers("t")
        assert there.write(b"second") == 0
        answer = other.receive(1, 12)
        assert [value for _, value in records_of(answer.responses[0].partitions[0].records)] == [b"second"]


def test_many_partitions_take_turns(dirs: list[Path]) -> None:
    settings = {**NO_MARGIN, "num.replica.alter.log.dirs.threads": 1}
    with CatalogueBroker(dirs, settings) as broker, broker.connect() as client:
        topic = {"name": "many", "num_partitions": 6, "replication_factor": 1}
        client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
        for number in range(6):
            until(lambda number=number: produce(client, batch([b"v"]), "many", number).error_code == 0)  # type: ignore[misc]
        body = {"dirs": [{"path": str(dirs[2]), "topics": [{"name": "many", "partitions": list(range(6))}]}]}
        (result,) = client.ask(ALTER, 2, body).results
        assert [int(each.error_code) for each in result.partitions] == [0] * 6
        until(lambda: len(list(dirs[2].glob("many-?"))) == 6)
        until(lambda: not any(path.name.endswith(names.FUTURE_DIR) for path in dirs[2].iterdir()))
        assert all(fetch(client, 0, "many", partition=number).records for number in range(6))


def test_the_copy_of_idle_time_is_on_disk_before_appends_wait(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While appends wait, only what came since is copied and fsynced."""
    steps: list[int] = []
    finish = LogCopy.finish

    def counted(copy: LogCopy) -> None:
        before = copy.size
        finish(copy)
        steps.append(copy.size - before)

    monkeypatch.setattr(LogCopy, "finish", counted)
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(100, 10_000)
        assert there.move(next(each for each in dirs if each != there.place)) == 0
        until(lambda: steps)
        assert steps == [0]


def test_pieces_are_small_at_low_rates() -> None:
    for rate, most in ((move_throttle.UNLIMITED, 1 << 20), (1_000_000, 100_000), (1, 4096), (0, 4096)):
        assert move_throttle.MoveThrottle(lambda rate=rate: float(rate)).chunk(1 << 20) == most  # type: ignore[misc]


def test_a_cluster_too_old_for_records_of_log_dirs(dirs: list[Path]) -> None:
    """metadata.version 14, Kafka 3.6: what moved is found where it lies, by whoever starts next."""
    format_log_dirs(dirs, node_id=1, now_ms=1, features={"metadata.version": 14})
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        there.fill(5)
        target = next(each for each in dirs if each != there.place)
        records = broker.catalogue.image.offset
        assert there.move(target) == 0
        there.arrived(target)
        assert broker.catalogue.image.offset == records
        assert broker.in_loop(lambda context: context.image.partition("t", 0).log_dir) == str(target)
        assert there.read() == there.written
        written = there.written
    with CatalogueBroker(dirs, NO_MARGIN, clean=False) as broker, broker.connect() as client:
        again = Setting.__new__(Setting)
        again.broker, again.client, again.written = broker, client, written
        assert again.place == target and again.read() == written


def test_settings_that_change_while_appends_wait_count(dirs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    load, told = LogCopy.load, []

    def told_in_between(copy: LogCopy, *arguments: Any) -> Any:
        loaded = load(copy, *arguments)
        config = TopicConfig(retention_ms=4711)
        broker.channel.put(ConfigChanged(configs={"t": config}))
        until(lambda: copy.log.config.retention_ms == 4711)
        told.append(config)
        return loaded

    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        there = Setting(broker, client)
        monkeypatch.setattr(LogCopy, "load", told_in_between)
        target = next(each for each in dirs if each != there.place)
        assert there.move(target) == 0
        there.arrived(target)
        assert broker.partition("t").log.config == told[0]


def test_what_a_broker_that_was_killed_left_is_told_to_the_deleter(dirs: list[Path]) -> None:
    with CatalogueBroker(dirs, NO_MARGIN) as broker, broker.connect() as client:
        Setting(broker, client)
    left = dirs[1] / names.delete_dir_name(TopicPartition("t", 0))
    left.mkdir()
    (dirs[2] / names.delete_dir_name(TopicPartition("another", 0))).mkdir()
    with CatalogueBroker(dirs, NO_MARGIN) as broker:
        told = broker.channel.wait_for(lambda message: isinstance(message, DirectoriesRetired))
        assert (told.topic, told.directories) == ("t", (str(left),))
