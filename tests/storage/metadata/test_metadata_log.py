"""The metadata log as its only voter keeps it: bytes as Kafka writes them, recovery, rolling, snapshots, failing disks."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from compactd.config.errors import CorruptFileError, LogOfflineError, RefusedError, StorageIOError
from compactd.storage import files
from compactd.storage.metadata.load import load_image
from compactd.storage.metadata.metadata_log import MetadataLog, MetadataLogSettings
from compactd.storage.metadata.snapshots import write_snapshot
from compactd.storage.records.batch import iter_batches
from tests.file_faults import FaultyLayer, PowerCut
from tests.storage.metadata import logs
from tests.storage.metadata.golden import golden

NOW = logs.NOW
NO_EPOCH = "0\n0\n"


def opened(log_dir: Path, **settings: int) -> MetadataLog:
    log_dir.mkdir(exist_ok=True)
    return MetadataLog.open(log_dir, MetadataLogSettings(**settings))


def names(log: MetadataLog) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir())


def values(log: MetadataLog, start: int = 0) -> list[bytes | None]:
    return [
        record.value for batch in log.read(start) if not batch.header.is_control for record in batch.records()
    ]  # fmt: skip


def filled(log_dir: Path, count: int, **settings: int) -> MetadataLog:
    """A log with a LeaderChange at 0, metadata.version at 1 and `count` topics behind it, a batch each."""
    log = opened(log_dir, **settings)
    log.begin_epoch(1, NOW)
    log.append([logs.METADATA_VERSION], NOW)
    for number in range(count):
        log.append([logs.topic(f"t{number}", number + 1)], NOW + number)
    return log


# ---- as Kafka writes it


def test_batches_have_the_bytes_of_kafka_s(tmp_path: Path) -> None:
    log = opened(tmp_path)
    leader, bootstrap = golden("leaderchange batch"), golden("bootstrap transaction batch")
    (first,), (second,) = iter_batches(leader), iter_batches(bootstrap)
    assert log.begin_epoch(1, first.header.max_timestamp) == 1
    transaction = [record.value or b"" for record in second.records()]
    assert log.append(transaction, second.header.max_timestamp) == 1
    assert (log.directory / "00000000000000000000.log").read_bytes() == leader + bootstrap
    for name, offset in (("noop batch", 11), ("registerbroker v4", 12), ("createtopics batch", 52), ("partitionc", 59)):
        (batch,) = iter_batches(next(data for data in [_batch(name)]))
        log.end_offset = offset
        before = log.segments[0].path.stat().st_size
        log.append([record.value or b"" for record in batch.records()], batch.header.max_timestamp)
        assert log.segments[0].path.read_bytes()[before:] == batch.data
    log.close()


def _batch(name: str) -> bytes:
    return golden("partitionchange batch" if name == "partitionc" else name)


def test_the_small_files_have_kafka_s_form(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.begin_epoch(1, NOW)
    log.append([logs.METADATA_VERSION], NOW)
    log.begin_epoch(1, NOW)
    log.close()
    assert names(log) == ["00000000000000000000.log", "leader-epoch-checkpoint", "partition.metadata", "quorum-state"]
    assert (log.directory / "quorum-state").read_text() == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 2\n"
    assert (log.directory / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def test_a_dynamic_quorum_has_its_own_form_and_its_records_with_the_leader_change(tmp_path: Path) -> None:
    log = opened(tmp_path)
    extra = [(b"\0\0\0\5", golden("control values", 2)), (b"\0\0\0\6", golden("control values", 3))]
    log.begin_epoch(1, NOW, 1, extra)
    log.close()
    assert (log.directory / "quorum-state").read_text() == (
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    (batch,) = log.read(0)
    assert [(record.key, record.value) for record in batch.records()][1:] == extra
    image = load_image(log).image
    assert image.kraft_version == 1
    assert image.voters is not None
    assert [voter["voterId"] for voter in image.voters] == [1]


# ---- opening


def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.close()
    again = opened(tmp_path)
    assert (again.end_offset, again.start_offset, again.last_epoch, again.actions) == (5, 0, 1, [])
    assert again.begin_epoch(1, NOW) == 2
    assert again.append([logs.NO_OP], NOW) == 6
    assert [batch.header.leader_epoch for batch in again.read(5)] == [2, 2]
    again.close()


@pytest.mark.parametrize(
    "state,epoch",
    [
        (None, 4),
        ('{"leaderId":1,"leaderEpoch":9,"data_version":1}\nrest is not read', 9),
        ('{"leaderId":-1,"leaderEpoch":2}', 4),
    ],
)
def test_the_epoch_is_the_highest_one_known(tmp_path: Path, state: str | None, epoch: int) -> None:
    logs.write_log(tmp_path, logs.batch(0, logs.METADATA_VERSION, epoch=4))
    if state is not None:
        (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text(state)
    log = opened(tmp_path)
    assert log.last_epoch == epoch
    assert log.begin_epoch(1, NOW) == epoch + 1
    log.close()


@pytest.mark.parametrize("state", ["", "{", "[]", '{"leaderId":1}', '{"leaderId":1,"leaderEpoch":"2"}', "\xff"])
def test_a_quorum_state_that_kafka_can_not_read_is_refused(tmp_path: Path, state: str) -> None:
    logs.write_log(tmp_path, logs.batch(0, logs.METADATA_VERSION))
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text(state, "latin-1")
    with pytest.raises(CorruptFileError, match="quorum-state"):
        opened(tmp_path)


@pytest.mark.parametrize("fill", [b"", bytes(500), b"\xff" * 30])
def test_a_torn_tail_is_cut_off(fast_dir: Path, fill: bytes) -> None:
    whole = logs.batch(0, logs.METADATA_VERSION) + logs.batch(1, logs.topic("a", 1))
    last = logs.batch(2, logs.topic("b", 2))
    for kept in range(len(last) - 4):  # it ends in zeros itself
        written = logs.write_log(fast_dir, whole, last[:kept], fill)
        log = opened(fast_dir)
        assert log.end_offset == 2
        assert written.read_bytes() == whole
        assert ["the log ends at offset 2" in action for action in log.actions] == ([True] if kept or fill else [])
        assert log.append([logs.topic("c", 3)], NOW) == 2
        log.close()
        assert set(load_image(log).image.topics) == {"a", "c"}


def test_a_damaged_last_batch_is_cut_off_and_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.close()
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    again = opened(tmp_path)
    assert again.end_offset == 4
    again.close()
    data = bytearray(path.read_bytes())
    sizes = [batch.header.size for batch in iter_batches(bytes(data))]
    for position in (sizes[0] + 30, sizes[0] + 8, sizes[0] + 16):  # the CRC, the length, the magic of the second batch
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        with pytest.raises(RefusedError, match=rf"damaged batch at byte {sizes[0]} .* the first of them at offset 2"):
            opened(tmp_path)
        assert path.read_bytes() == damaged


def test_damage_before_a_later_segment_is_refused_and_an_empty_segment_behind_is_dropped(tmp_path: Path) -> None:
    first = logs.batch(0, logs.METADATA_VERSION)
    path = logs.write_log(tmp_path, first, b"torn")
    later = logs.write_log(tmp_path, logs.batch(1, logs.topic("a", 1)), base_offset=1)
    with pytest.raises(RefusedError, match="the first of them at offset 1"):
        opened(tmp_path)
    later.write_bytes(b"")
    log = opened(tmp_path)
    log.close()
    assert (path.read_bytes(), later.exists(), log.end_offset) == (first, False, 1)


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    logs.write_log(tmp_path, logs.batch(0, logs.METADATA_VERSION))
    logs.write_log(tmp_path, logs.batch(7, logs.NO_OP), base_offset=7)
    with pytest.raises(RefusedError, match="offsets 1 to 6 are missing"):
        opened(tmp_path)
    logs.write_snapshot(tmp_path, 7, 1, logs.snapshot(logs.METADATA_VERSION))
    log = opened(tmp_path)
    log.close()
    assert log.end_offset == 8


def test_leftovers_go(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    log.close()
    for name in ("00000000000000000002-0000000001-77.checkpoint.part", "00000000000000000002-0000000001.checkpoint.deleted",
                 "00000000000000000000.log.deleted", "quorum-state.tmp"):  # fmt: skip
        (log.directory / name).write_bytes(b"x")
    before = set(names(log))
    again = opened(tmp_path)
    again.close()
    assert len(before - set(names(again))) == len(again.actions) == 4


# ---- rolling and snapshots


def test_segments_roll_by_size_and_by_age(tmp_path: Path) -> None:
    log = filled(tmp_path, 10, segment_bytes=300, segment_ms=1000)
    count = len(log.segments)
    assert count > 2
    assert all(segment.path.stat().st_size <= 300 for segment in log.segments)
    log.append([logs.NO_OP], NOW + 1002)
    assert len(log.segments) == count + 1
    log.close()
    again = opened(tmp_path, segment_bytes=300, segment_ms=1000)
    assert again.end_offset == 13
    for start in range(13):
        assert next(again.read(start)).header.base_offset == start
    assert len(values(again)) == 12
    again.append([logs.NO_OP], NOW + 1500)
    assert len(again.segments) == count + 1
    again.append([logs.NO_OP], NOW + 2003)
    assert len(again.segments) == count + 2
    again.close()


def test_a_snapshot_of_the_image_is_what_a_replay_of_the_log_gives(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    before = load_image(log).image
    log.add_snapshot(write_snapshot(log.directory, before, NOW + 99))
    assert log.bytes_since_snapshot == 0
    log.append([logs.topic("later", 77)], NOW + 100)
    assert log.bytes_since_snapshot > 0
    log.close()
    again = opened(tmp_path)
    assert again.newest_snapshot is not None
    assert (again.newest_snapshot.offset, again.newest_snapshot.epoch) == (7, 1)
    assert again.newest_snapshot.path.stat().st_mode & 0o777 == 0o400
    loaded = load_image(again)
    assert set(loaded.image.topics) == {"t0", "t1", "t2", "t3", "t4", "later"}
    for segment in again.segments:
        segment.path.unlink()
    again.close()
    alone = opened(tmp_path)
    assert load_image(alone).image == before
    assert [path for path in names(alone) if path.endswith(".log")] == ["00000000000000000007.log"]
    alone.close()


def test_a_snapshot_beyond_the_log_s_end_starts_the_log_anew(tmp_path: Path) -> None:
    for epoch, offset in ((1, 9), (2, 1)):
        directory = tmp_path / f"{epoch}"
        directory.mkdir()
        logs.write_log(directory, logs.batch(0, logs.METADATA_VERSION, logs.topic("old", 1)))
        logs.write_snapshot(directory, offset, epoch, logs.snapshot(logs.METADATA_VERSION, logs.topic("new", 2)))
        log = opened(directory)
        assert (log.start_offset, log.end_offset, log.last_epoch) == (offset, offset, epoch)
        assert "it goes on behind the snapshot" in log.actions[0]
        assert set(load_image(log).image.topics) == {"new"}
        assert log.append([logs.topic("more", 3)], NOW) == offset
        log.close()
        again = opened(directory)
        assert set(load_image(again).image.topics) == {"new", "more"}
        again.close()


def test_a_log_that_begins_above_every_snapshot_is_refused(tmp_path: Path) -> None:
    logs.write_log(tmp_path, logs.batch(5, logs.METADATA_VERSION), base_offset=5)
    with pytest.raises(RefusedError, match="begins at offset 5 and no snapshot covers"):
        opened(tmp_path)
    logs.write_snapshot(tmp_path, 3, 1, logs.snapshot(logs.METADATA_VERSION))
    with pytest.raises(RefusedError, match="begins at offset 5"):
        opened(tmp_path)
    kept = logs.write_snapshot(tmp_path, 5, 1, logs.snapshot(logs.METADATA_VERSION))
    log = opened(tmp_path)
    log.close()
    assert [snapshot.path for snapshot in log.snapshots] == [kept]
    assert len(log.actions) == 1


def test_old_snapshots_and_the_segments_below_them_go(tmp_path: Path) -> None:
    log = filled(tmp_path, 3, segment_bytes=150, max_retention_bytes=1, max_retention_ms=-1)
    assert log.trim(NOW) == []
    log.add_snapshot(write_snapshot(log.directory, load_image(log).image, NOW))
    assert log.trim(NOW) == []  # the only one stays, and so does the log
    for number in range(3):
        log.append([logs.topic(f"u{number}", 50 + number)], NOW)
    image = load_image(log).image
    log.add_snapshot(write_snapshot(log.directory, image, NOW))
    removed = {path.name for path in log.trim(NOW)}
    assert "00000000000000000005-0000000001.checkpoint" in removed
    assert "00000000000000000000.log" in removed
    assert len(log.snapshots) == 1
    assert len(log.segments) == 1
    epochs = (log.directory / "leader-epoch-checkpoint").read_text().split()
    assert epochs[2:] == ["1", str(log.start_offset)]
    log.close()
    again = opened(tmp_path)
    assert again.actions == []
    assert load_image(again).image == image
    again.close()


def test_snapshots_go_by_the_age_of_what_they_contain(tmp_path: Path) -> None:
    log = filled(tmp_path, 1, max_retention_ms=1000)
    log.add_snapshot(write_snapshot(log.directory, load_image(log).image, NOW))
    log.append([logs.NO_OP], NOW + 5000)
    log.add_snapshot(write_snapshot(log.directory, load_image(log).image, NOW + 5000))
    assert log.trim(NOW + 1000) == []
    assert [path.name for path in log.trim(NOW + 1001)] == ["00000000000000000003-0000000001.checkpoint"]
    log.close()


# ---- failing disks


def test_a_batch_that_could_not_be_written_is_not_there_and_the_log_goes_on(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    before = log.segments[0].path.read_bytes()
    layer = FaultyLayer()
    layer.short_writes(10)
    layer.fail("write", errno.ENOSPC, nth=3)
    with files.replaced(layer), pytest.raises(StorageIOError, match="No space left"):
        log.append([logs.topic("lost", 9)], NOW)
    assert log.segments[0].path.read_bytes() == before
    assert log.append([logs.topic("kept", 9)], NOW) == 3
    log.close()
    assert set(load_image(log).image.topics) == {"t0", "kept"}


@pytest.mark.parametrize("call", ["fsync", "truncate"])
def test_after_a_failure_that_leaves_the_end_in_doubt_nothing_more_is_appended(tmp_path: Path, call: str) -> None:
    log = filled(tmp_path, 1)
    layer = FaultyLayer()
    layer.fail(call, errno.EIO)
    if call == "truncate":
        layer.fail("write", errno.EIO)
    with files.replaced(layer):
        with pytest.raises(StorageIOError):
            log.append([logs.topic("lost", 9)], NOW)
        with pytest.raises(LogOfflineError, match="at offset 3"):
            log.append([logs.topic("more", 8)], NOW)
    log.close()


def test_no_batch_is_empty_or_longer_than_kafka_reads(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(ValueError, match="needs a record"):
        log.append([], NOW)
    with pytest.raises(ValueError, match="above 8388608"):
        log.append([b"\1\2\0" + bytes(9 << 20)], NOW)
    assert log.end_offset == 0
    log.close()


def _life(log_dir: Path, acknowledged: list[str]) -> None:
    """Opens, leads, adds topics over several segments, snapshots, trims."""
    log = MetadataLog.open(log_dir, MetadataLogSettings(segment_bytes=260, max_retention_bytes=1))
    try:
        log.begin_epoch(1, NOW)
        if log.end_offset == 1:
            log.append([logs.METADATA_VERSION], NOW)
        for _ in range(3):
            number = log.end_offset + 1
            log.append([logs.topic(f"t{number}", number), logs.topic(f"u{number}", 1000 + number)], NOW)
            acknowledged.append(f"t{number}")
        log.add_snapshot(write_snapshot(log.directory, load_image(log).image, NOW))
        log.trim(NOW)
    finally:
        if log._output is not None and not isinstance(files.layer(), FaultyLayer):
            log.close()


@pytest.mark.parametrize("after", [False, True])
def test_a_stop_at_any_call_loses_nothing_that_was_acknowledged(fast_dir: Path, after: bool) -> None:
    count = 0
    for number in range(10_000):
        log_dir = fast_dir / str(number)
        log_dir.mkdir()
        acknowledged: list[str] = []
        _life(log_dir, acknowledged)
        layer = FaultyLayer()
        layer.stop_at(number, after)
        stopped = False
        with files.replaced(layer):
            try:
                _life(log_dir, acknowledged)
            except PowerCut:
                stopped = True
            layer.lose_unsynced(seed=number if number % 2 else None)
        log = opened(log_dir)
        image = load_image(log).image
        assert set(acknowledged) <= set(image.topics)
        assert len(image.topics) <= 2 * len(acknowledged) + 2
        assert {name.replace("u", "t") for name in image.topics if name[0] == "u"} == {
            name for name in image.topics if name[0] == "t"
        }
        assert log.begin_epoch(1, NOW) > 1
        log.close()
        if not stopped:
            count = number
            break
    assert count > 40


def test_the_state_of_a_kafka_log_is_read(tmp_path: Path) -> None:
    """A real metadata log: every record replays, and a snapshot of the image replays to the same image."""
    source = Path(__file__).parents[2] / "data" / "kraft" / "metadata.log"
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(source.read_bytes())
    log = opened(tmp_path)
    image = load_image(log).image
    assert image.metadata_version is not None
    assert log.epochs.entries
    state = json.dumps({"leaderId": 1, "leaderEpoch": log.last_epoch})
    (directory / "quorum-state").write_text(state)
    log.add_snapshot(write_snapshot(directory, image, NOW))
    log.segments[0].path.unlink()
    log.close()
    again = opened(tmp_path)
    assert load_image(again).image == image
    again.close()
