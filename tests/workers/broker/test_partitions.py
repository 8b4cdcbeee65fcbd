"""What the coordinator asks of the owner of partitions, and how logs are loaded, flushed, given away and closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import files
from compactd.storage.cleaning.round import CleaningRound, RoundOptions
from compactd.storage.file_layer import FileLayer
from compactd.storage.kernel import active_kernel
from compactd.storage.log_dir import LogDir
from compactd.storage.names import parse_uuid, uuid_text
from compactd.storage.partition_metadata import read_partition_metadata
from compactd.workers.cleaner import LeasedPartition
from compactd.workers.cleaning_messages import (
    CleanJob,
    GroupReady,
    GroupSwapped,
    LetGo,
    LetGoDone,
    PrepareClean,
    UndoClean,
    UndoDone,
)
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import (
    AssignPartitions,
    ConfigChanged,
    LogDirFailed,
    PartitionAssignment,
    PartitionsReady,
    PartitionsReleased,
    ReleasePartitions,
)
from tests.workers.broker.batches import FETCH, LIST_OFFSETS, batch, fetch, fetch_body, produce, records_of
from tests.workers.broker.harness import InProcessBroker, RawClient


def _all(client: RawClient, topic: str = "t", start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records, read to the high watermark as a consumer does."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = start
    while True:
        partition = fetch(client, offset, topic=topic)
        assert partition.error_code == 0
        records = [record for record in records_of(partition.records) if record.offset >= offset]
        if not records:
            return found
        found += [(record.offset, record.key, record.value) for record in records]
        offset = records[-1].offset + 1


# ---- loading


def test_new_partitions_are_made_and_told(broker: InProcessBroker, log_dir: Path) -> None:
    made = broker.create("t", 3)
    assert [(state.topic, state.partition, state.log_end_offset) for state in broker.ready.states] == [
        ("t", 0, 0), ("t", 1, 0), ("t", 2, 0),
    ]  # fmt: skip
    assert sorted(path.name for path in log_dir.iterdir() if path.is_dir()) == ["t-0", "t-1", "t-2"]
    # At once: Kafka would set a directory aside that has none, were this broker killed now.
    metadata = read_partition_metadata(log_dir / "t-0" / "partition.metadata")
    assert metadata is not None
    assert uuid_text(metadata.topic_id) == made.topic_id


@pytest.mark.parametrize("clean", [True, False])
def test_partitions_are_loaded_with_all_that_was_written(log_dir: Path, clean: bool) -> None:
    with InProcessBroker([log_dir]) as broker:
        identity = parse_uuid(broker.create("t", 2).topic_id)
        with broker.connect() as client:
            for number in range(10):
                produce(client, batch([b"%d" % number]))
    with InProcessBroker([log_dir], clean=clean) as broker:
        broker.create("t", 2, topic_id=identity)
        assert [(state.log_end_offset, state.high_watermark) for state in broker.ready.states] == [(10, 10), (0, 0)]
        with broker.connect() as client:
            assert [value for _, _, value in _all(client)] == [b"%d" % number for number in range(10)]
            assert produce(client, batch([b"more"])).base_offset == 10


def test_a_torn_tail_is_cut_after_an_unclean_stop(log_dir: Path) -> None:
    with InProcessBroker([log_dir]) as broker:
        identity = parse_uuid(broker.create("t").topic_id)
        with broker.connect() as client:
            produce(client, batch([b"whole"]))
    path = log_dir / "t-0" / f"{0:020d}.log"
    with path.open("ab") as log:
        log.write(batch([b"torn"])[:-3])
    with InProcessBroker([log_dir], clean=False) as broker:
        broker.create("t", topic_id=identity)
        with broker.connect() as client:
            assert _all(client) == [(0, b"k0", b"whole")]
            assert produce(client, batch([b"next"])).base_offset == 1


def test_a_partition_of_another_topic_id_is_not_served(log_dir: Path) -> None:
    with InProcessBroker([log_dir]) as broker:
        broker.create("t")
        with broker.connect() as client:
            produce(client, batch([b"v"]))
    with InProcessBroker([log_dir]) as broker:
        broker.create("t")
        assert list(broker.ready.failed) == ["t-0"]
        assert "belongs to the topic with id" in broker.ready.failed["t-0"]
        with broker.connect() as client:
            assert produce(client, batch([b"v"])).error_code == 6


def test_a_higher_leader_epoch_of_a_known_partition_is_taken_over(broker: InProcessBroker, log_dir: Path) -> None:
    made = broker.create("t")
    broker.ask(
        AssignPartitions(
            request_id=broker.next_id(),
            partitions=(
                PartitionAssignment(
                    topic="t",
                    partition=0,
                    topic_id=made.topic_id,
                    log_dir=str(log_dir),
                    config=TopicConfig(),
                    leader_epoch=7,
                ),
            ),
        ),
        PartitionsReady,
    )
    with broker.connect() as client:
        assert fetch(client, current_leader_epoch=6).error_code == 74
        assert fetch(client, current_leader_epoch=7).error_code == 0


def test_states_are_told_after_a_while(broker: InProcessBroker) -> None:
    broker.create("t", segment_bytes=1_048_576)
    with broker.connect() as client:
        for _ in range(4):
            produce(client, batch([b"x" * 400_000], timestamp=1_700_000_000_000))
    state = broker.state("t", lambda state: state.log_end_offset == 4)
    assert [(each.base_offset, each.largest_timestamp, each.first_batch_timestamp) for each in state.closed] == [
        (0, 1_700_000_000_000, 1_700_000_000_000),
    ]
    assert (state.active_base_offset, state.high_watermark, state.last_stable_offset) == (2, 4, 4)
    assert state.active_largest_timestamp == 1_700_000_000_000
    assert state.closed[0].size + state.active_size > 1_600_000


# ---- settings and release


def test_changed_settings_count_at_once(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, batch([b"v"], keys=[None])).error_code == 0
        broker.channel.put(ConfigChanged(configs={"t": TopicConfig.from_strings({"cleanup.policy": "compact"})}))
        broker.in_loop(lambda _: None)
        assert produce(client, batch([b"v"], keys=[None])).error_code == 87


def test_a_flush_ms_is_kept(broker: InProcessBroker) -> None:
    broker.create("t", flush_ms=1)
    with broker.connect() as client:
        produce(client, batch([b"v"]))
    assert broker.state("t", lambda state: state.recovery_point == 1).recovery_point == 1


def test_released_partitions_become_delete_directories(broker: InProcessBroker, log_dir: Path) -> None:
    broker.create("t", 2)
    broker.create("kept")
    with broker.connect() as client:
        produce(client, batch([b"v"]))
        broker.drop("t")
        released = broker.ask(
            ReleasePartitions(request_id=broker.next_id(), partitions=("t-0", "t-1", "t-9")), PartitionsReleased
        )
        names = [Path(path).name for path in released.directories]
        assert len(names) == 2
        assert all(name.startswith("t-") and name.endswith("-delete") for name in names)
        assert sorted(path.name for path in log_dir.iterdir() if path.is_dir()) == sorted([*names, "kept-0"])
        assert produce(client, batch([b"v"])).error_code == 3
        assert produce(client, batch([b"v"]), topic="kept").error_code == 0


# ---- cleaning


def _write_segments(broker: InProcessBroker, rounds: int = 5) -> None:
    """Each round one segment: the same ten keys again, then one of its own."""
    with broker.connect() as client:
        for number in range(rounds):
            keys: list[bytes | None] = [b"key%d" % key for key in range(10)]
            produce(client, batch([b"%d-" % number + key for key in keys if key], keys=keys))
            produce(client, batch([b"own"], keys=[b"only%d" % number]))
            broker.in_loop(lambda context: context.partitions.get("t", 0).log.roll(now_ms=context.clock.now_ms()))


def _prepare(broker: InProcessBroker, **more: Any) -> CleanJob:
    request = PrepareClean(request_id=broker.next_id(), topic="t", partition=0, **more)
    job = broker.ask(request, CleanJob)
    assert isinstance(job, CleanJob), job
    return job


def _clean(broker: InProcessBroker, job: CleanJob) -> list[GroupSwapped]:
    """What a cleaner does with a job."""
    answers = []
    options = RoundOptions(job.now_ms, 1 << 20, 0.9)
    with CleaningRound(LeasedPartition.of(job), 0, job.first_uncleanable_offset, options, active_kernel()) as cleaning:
        cleaning.build_map()
        for number, group in enumerate(cleaning.clean_groups()):
            if group.unchanged:
                continue
            ready = GroupReady(
                request_id=job.request_id, group_id=number, topic="t", partition=0,
                base_offset=group.base_offset, source_bases=group.source_bases,
            )  # fmt: skip
            answers.append(broker.ask(ready, GroupSwapped))
    return answers


def test_a_job_is_the_owners_view(broker: InProcessBroker, log_dir: Path) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker, 2)
    job = _prepare(broker)
    assert job.directory == str(log_dir / "t-0")
    assert [source.base_offset for source in job.segments] == [0, 11]
    assert (job.log_start_offset, job.log_end_offset, job.high_watermark, job.last_stable_offset) == (0, 22, 22, 22)
    assert (job.first_uncleanable_offset, job.active_base_offset) == (22, 22)
    assert job.config.compact
    with broker.connect() as client:
        produce(client, batch([b"v"]))
    rolled = _prepare(broker, roll=True)
    assert [source.base_offset for source in rolled.segments] == [0, 11, 22]
    assert rolled.active_base_offset == 23


def test_a_cleaned_group_is_swapped_in_under_readers(broker: InProcessBroker, log_dir: Path) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    with broker.connect() as client:
        before = _all(client)
        answers = _clean(broker, _prepare(broker))
        assert [answer.accepted for answer in answers] == [True]
        assert all(Path(path).exists() and path.endswith(".deleted") for path in answers[0].deleted)
        assert len(answers[0].deleted) >= 5
        after = _all(client)
        latest = {key: (offset, value) for offset, key, value in before}
        assert [(offset, key, value) for offset, key, value in after] == sorted(
            (offset, key, value) for key, (offset, value) in latest.items()
        )
        # A gap is read over, and the log goes on behind it.
        assert _all(client, start=1) == after
        assert produce(client, batch([b"v"])).base_offset == 55
    assert broker.state("t", lambda state: len(state.closed) == 1).closed[0].base_offset == 0


def test_a_swap_whose_sources_are_gone_is_refused(broker: InProcessBroker) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker, 2)
    ready = GroupReady(request_id=1, group_id=0, topic="t", partition=0, base_offset=0, source_bases=(0, 5))
    answer = broker.ask(ready, GroupSwapped)
    assert (answer.accepted, answer.unknown) == (False, False)
    assert "5" in answer.reason
    gone = broker.ask(
        GroupReady(request_id=2, group_id=0, topic="x", partition=0, base_offset=0, source_bases=(0,)), GroupSwapped
    )
    assert not gone.accepted
    # The active segment is nobody's source.
    active = broker.ask(
        GroupReady(request_id=3, group_id=0, topic="t", partition=0, base_offset=22, source_bases=(22,)), GroupSwapped
    )
    assert not active.accepted


def test_partitions_that_are_not_here(broker: InProcessBroker) -> None:
    assert isinstance(broker.ask(PrepareClean(request_id=50, topic="x", partition=0), CleanJob), Failed)
    assert broker.ask(UndoClean(request_id=51, topic="x", partition=0), UndoDone).refused
    let_go = broker.ask(LetGo(request_id=52, partitions=("x-0",), now_ms=1), LetGoDone)
    assert let_go.failed == {"x-0": "not served by this broker"}


def test_a_clean_is_undone(broker: InProcessBroker) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    with broker.connect() as client:
        before = _all(client)
        swapped = _clean(broker, _prepare(broker))[0]
        assert _all(client) != before
        undone = broker.ask(UndoClean(request_id=90, topic="t", partition=0), UndoDone)
        assert undone.refused == ""
        assert set(undone.restored) <= set(swapped.deleted)
        assert len([path for path in undone.restored if ".log" in path]) == 5
        assert _all(client) == before
        again = broker.ask(UndoClean(request_id=91, topic="t", partition=0), UndoDone)
        assert "no clean" in again.refused
        # What was put back can be cleaned again.
        assert [answer.accepted for answer in _clean(broker, _prepare(broker))] == [True]


def test_an_undo_is_refused_when_the_files_are_gone(broker: InProcessBroker) -> None:
    broker.create("t", cleanup_policy="compact")
    _write_segments(broker)
    swapped = _clean(broker, _prepare(broker))[0]
    with broker.connect() as client:
        cleaned = _all(client)
        Path(next(path for path in swapped.deleted if path.endswith(".log.deleted"))).unlink()
        undone = broker.ask(UndoClean(request_id=90, topic="t", partition=0), UndoDone)
        assert "removed already" in undone.refused
        assert undone.restored == ()
        assert _all(client) == cleaned


def test_an_undo_is_refused_when_a_later_clean_stands_on_it(broker: InProcessBroker) -> None:
    broker.create("t", cleanup_policy="compact,delete", retention_ms=1000)
    _write_segments(broker)
    _clean(broker, _prepare(broker))
    broker.clock.moved_ms = 10_000_000
    done = broker.ask(LetGo(request_id=80, partitions=("t-0",), now_ms=broker.clock.now_ms()), LetGoDone)
    assert done.deleted
    assert "replaced or deleted since" in broker.ask(UndoClean(request_id=90, topic="t", partition=0), UndoDone).refused


# ---- retention


def test_old_segments_are_let_go(broker: InProcessBroker, log_dir: Path) -> None:
    broker.create("t", retention_ms=60_000)
    _write_segments(broker, 3)
    with broker.connect() as client:
        client.send(FETCH, 12, fetch_body(33, max_wait=100_000))
        broker.wait_for_watchers("t")
        now_ms = broker.clock.now_ms()
        nothing = broker.ask(LetGo(request_id=80, partitions=("t-0",), now_ms=now_ms), LetGoDone)
        assert (nothing.deleted, nothing.failed) == ((), {})
        done = broker.ask(LetGo(request_id=81, partitions=("t-0",), now_ms=now_ms + 100_000), LetGoDone)
        assert sorted(Path(path).name for path in done.deleted if ".log" in path) == [
            f"{base:020d}.log.deleted" for base in (0, 11, 22)
        ]
        assert all(os.path.exists(path) for path in done.deleted)  # noqa: PTH110
        client.close()
    with broker.connect() as client:
        assert fetch(client, 0).error_code == 1
        assert fetch(client, 33).log_start_offset == 33


# ---- failing disks


class _NoWrites(FileLayer):
    """Every write and fsync below one directory fails."""

    def __init__(self, part: str, calls: tuple[str, ...] = ("write", "fsync")) -> None:
        self.part, self.calls = part, calls

    def write(self, fd: int, data: memoryview) -> int:
        self._check("write", fd)
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._check("fsync", fd)
        super().fsync(fd)

    def _check(self, call: str, fd: int) -> None:
        if call in self.calls and self.part in os.readlink(f"/proc/self/fd/{fd}"):  # noqa: PTH115
            raise OSError(5, "Input/output error")


@pytest.fixture
def two_dirs(fast_dir: Path) -> list[Path]:
    dirs = [fast_dir / "good", fast_dir / "bad"]
    for each in dirs:
        each.mkdir()
    return dirs


def _on_bad_disk(
    dirs: list[Path],
    layer: FileLayer,
    settings: dict[str, Any],
    check: Callable[[InProcessBroker, RawClient], None],
) -> None:
    with InProcessBroker(dirs) as broker:
        broker.create("good")
        broker.create("t", log_dir=str(dirs[1]), **settings)
        with broker.connect() as client:
            produce(client, batch([b"before"]))
            with files.replaced(layer):
                check(broker, client)
                failed = broker.channel.wait_for(lambda message: isinstance(message, LogDirFailed))
                assert failed.log_dir == str(dirs[1])
            # The other dir goes on.
            assert produce(client, batch([b"v"]), topic="good").error_code == 0
            stopped = broker.stop()
    assert stopped.log_dirs_clean == (str(dirs[0]),)
    assert LogDir(dirs[1]).clean_shutdown() is None


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_write_error_takes_the_log_dir_offline(two_dirs: list[Path], size: int) -> None:
    def check(broker: InProcessBroker, client: RawClient) -> None:
        assert produce(client, batch([b"x" * size])).error_code == 56
        assert produce(client, batch([b"v"])).error_code == 56
        assert fetch(client).error_code == 56
        assert fetch(client, version=5).error_code == 6
        metadata = client.ask(3, 12, {"topics": [{"name": "t"}]}).topics[0].partitions[0]
        assert metadata.offline_replicas == (1,)
        dirs = client.ask(35, 4, {"topics": None}).results
        assert [int(result.error_code) for result in dirs] == [0, 56]

    _on_bad_disk(two_dirs, _NoWrites("/bad/"), {}, check)


def test_a_failing_fsync_is_no_acknowledgement(two_dirs: list[Path]) -> None:
    def check(broker: InProcessBroker, client: RawClient) -> None:
        answer = produce(client, batch([b"v"]))
        assert (answer.error_code, answer.base_offset) == (56, -1)
        assert produce(client, batch([b"v"])).error_code == 56

    _on_bad_disk(two_dirs, _NoWrites("/bad/", ("fsync",)), {"flush_messages": 1}, check)


def test_a_rolled_segment_that_cannot_be_made_durable(two_dirs: list[Path]) -> None:
    def check(broker: InProcessBroker, client: RawClient) -> None:
        # The roll's fsyncs run beside the appends; what they meet counts at the latest with the next append.
        codes = [0]
        while codes[-1] == 0 and len(codes) < 300:
            codes.append(produce(client, batch([b"x" * 400_000])).error_code)
        assert codes[1] == 0
        assert codes[-1] == 56
        assert broker.in_loop(lambda context: list(context.partitions.offline_log_dirs)) == [str(two_dirs[1])]

    _on_bad_disk(two_dirs, _NoWrites("/bad/", ("fsync",)), {"segment_bytes": 1_048_576}, check)


def _latest(client: RawClient) -> Any:
    rows = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    return client.ask(LIST_OFFSETS, 7, {"replica_id": -1, "topics": rows})


def test_a_log_dir_that_others_found_failing(two_dirs: list[Path]) -> None:
    with InProcessBroker(two_dirs) as broker:
        broker.create("t", log_dir=str(two_dirs[1]))
        with broker.connect() as client:
            client.send(FETCH, 12, fetch_body(max_wait=100_000))
            broker.wait_for_watchers("t")
            broker.channel.put(LogDirFailed(log_dir=str(two_dirs[1]), reason="test"))
            assert client.receive(FETCH, 12).responses[0].partitions[0].error_code == 56
            assert _latest(client).topics[0].partitions[0].error_code == 56
        assert broker.stop().log_dirs_clean == ()


# ---- the end


def test_a_stop_leaves_the_logs_as_kafka_leaves_them(log_dir: Path) -> None:
    with InProcessBroker([log_dir]) as broker:
        broker.create("t")
        with broker.connect() as client:
            produce(client, batch([b"v"], producer_id=3, producer_epoch=0, base_sequence=0))
        stopped = broker.stop()
        last = broker.state("t", lambda state: state.recovery_point == 1)
    assert stopped.log_dirs_clean == (str(log_dir),)
    assert (last.log_end_offset, last.recovery_point) == (1, 1)
    assert sorted(path.name for path in (log_dir / "t-0").iterdir()) == [
        f"{0:020d}.index",
        f"{0:020d}.log",
        f"{0:020d}.timeindex",
        f"{1:020d}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert (log_dir / "t-0" / f"{0:020d}.index").stat().st_size == 0
