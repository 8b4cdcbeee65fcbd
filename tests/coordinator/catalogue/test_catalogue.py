"""The life of a catalogue: what it writes at its start and stop, snapshots, producer ids, moves, failing log dirs."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compactd.config.errors import LogOfflineError, StorageIOError
from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage import files
from compactd.storage.metadata import read_cluster_metadata
from compactd.storage.metadata.image import PartitionImage
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.catalogue_messages import (
    OPERATIONS,
    AllocateProducerIds,
    AssignLogDirs,
    CreateTopics,
    ErrorCode,
    MoveReplica,
    MoveResults,
    NewTopic,
    ProducerIdBlock,
    TopicResults,
    results_of,
    to_raw,
)
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.messages import decode, encode
from tests.coordinator.catalogue.test_catalogue_topics import create, records
from tests.coordinator.catalogues import NODES, NOW, StoppedClock, opened, settings, started
from tests.file_faults import FaultyLayer
from tests.storage.metadata import logs


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "d1", tmp_path / "d2"]


@pytest.fixture
def catalogue(dirs: list[Path]) -> Iterator[Catalogue]:
    made = started(dirs)
    yield made
    made.close()


def states(catalogue: Catalogue, topic: str) -> list[PartitionImage]:
    return list(catalogue.image.topics[topic].partitions.values())


def kinds(catalogue: Catalogue, start: int = 0) -> list[str]:
    return [kind for kind, _ in records(catalogue, start)]


# ---- start and stop


def test_a_fresh_log_begins_as_kafka_s_does(catalogue: Catalogue) -> None:
    batches = list(catalogue._log.read(0))
    assert [len(batch.records()) for batch in batches] == [1, 9, 1]
    assert kinds(catalogue) == [
        "LEADER_CHANGE", "BEGIN_TRANSACTION_RECORD", *["FEATURE_LEVEL_RECORD"] * 6, "CONFIG_RECORD", "END_TRANSACTION_RECORD",
        "REGISTER_BROKER_RECORD",
    ]  # fmt: skip
    registration = catalogue.image.brokers[1]
    assert registration["fenced"]
    assert registration["brokerEpoch"] == catalogue.broker_epoch == 10
    assert registration["endPoints"] == [
        {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092, "securityProtocol": 0}
    ]
    assert sorted(registration["logDirs"]) == sorted(catalogue._places.identities)
    assert catalogue.image.features == {
        "metadata.version": 33, "eligible.leader.replicas.version": 1, "group.version": 1, "share.version": 2,
        "streams.version": 1, "transaction.version": 2,
    }  # fmt: skip
    assert catalogue.image.broker_configs("") == {"min.insync.replicas": "1"}


def test_each_start_has_a_new_epoch_and_new_leader_epochs(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    create(catalogue, NewTopic(name="users", num_partitions=2))
    epoch = catalogue.broker_epoch
    catalogue.close()
    for number in range(1, 4):
        catalogue = opened(dirs)
        for state in states(catalogue, "users"):
            assert (state.isr, state.leader, state.elr, state.last_known_elr) == ((), -1, (1,), (1,))
        before = catalogue._log.end_offset
        update = catalogue.start(NODES)
        assert kinds(catalogue, before) == ["LEADER_CHANGE", *["PARTITION_CHANGE_RECORD"] * 2]
        assert catalogue._log.last_epoch == number + 1
        for state in states(catalogue, "users"):
            assert (state.isr, state.leader, state.elr, state.last_known_elr) == ((1,), 1, (), ())
            assert state.leader_epoch == 2 * number
        assert [place.leader_epoch for place in update.topics[0].partitions] == [2 * number] * 2
        assert catalogue.broker_epoch == epoch
        catalogue.close()


def test_after_a_crash_every_partition_has_a_new_leader_epoch_too(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    create(catalogue, NewTopic(name="users", num_partitions=2))
    catalogue._log.close()
    again = started(dirs)
    assert [(state.leader, state.leader_epoch, state.isr) for state in states(again, "users")] == [(1, 1, (1,))] * 2
    again.close()


def test_a_registration_that_a_crash_of_kafka_left_unfenced_is_fenced(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    epoch = catalogue.broker_epoch
    catalogue._commit(
        [MetadataRecord(RecordType.BROKER_REGISTRATION_CHANGE, {"brokerId": 1, "brokerEpoch": epoch, "fenced": -1})]
    )
    assert not catalogue.image.brokers[1]["fenced"]
    catalogue._log.close()
    again = started(dirs)
    assert again.image.brokers[1]["fenced"]
    assert again.broker_epoch == epoch
    again.close()


def test_an_open_metadata_transaction_is_aborted(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    catalogue.close()
    log = MetadataLog.open(dirs[0])
    log.append([MetadataRecord(RecordType.BEGIN_TRANSACTION, {}).value, logs.topic("void", 7)], NOW)
    log.close()
    again = opened(dirs)
    before = again._log.end_offset
    again.start(NODES)
    assert kinds(again, before) == ["LEADER_CHANGE", "ABORT_TRANSACTION_RECORD"]
    create(again, NewTopic(name="users"))
    again.close()
    last = opened(dirs)
    assert set(last.image.topics) == {"users"}
    last.close()


def test_a_bootstrap_that_was_never_finished_is_done_again(dirs: list[Path]) -> None:
    opened(dirs).close()
    log = MetadataLog.open(dirs[0])
    log.begin_epoch(1, NOW)
    log.append([MetadataRecord(RecordType.BEGIN_TRANSACTION, {}).value, logs.feature("metadata.version", 30)], NOW)
    log.close()
    catalogue = started(dirs)
    assert catalogue.image.metadata_version == 33
    assert kinds(catalogue, 3)[:3] == ["LEADER_CHANGE", "ABORT_TRANSACTION_RECORD", "BEGIN_TRANSACTION_RECORD"]
    catalogue.close()


@pytest.mark.parametrize("level", [7, 12, 16, 22, 30])
def test_an_older_metadata_version_is_kept_and_its_records_written(tmp_path: Path, level: int) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\n")
    logs.write_snapshot(tmp_path, 0, 0, logs.snapshot(logs.feature("metadata.version", level), epoch=0))
    catalogue = started([tmp_path])
    create(catalogue, NewTopic(name="users", num_partitions=2))
    path = catalogue.full_update().topics[0].partitions[1].log_dir
    catalogue.close()
    for state in states(catalogue, "users"):
        assert (state.leader, state.isr) == (-1, (1,))  # no ELR: the ISR stays
        assert bool(state.directories) == (level >= 17)
    again = started([tmp_path])
    assert again.image.metadata_version == level
    assert [(state.leader, state.leader_epoch) for state in states(again, "users")] == [(1, 2)] * 2
    assert again.full_update().topics[0].partitions[1].log_dir == path
    again.maintain()
    again.close()
    read = read_cluster_metadata([tmp_path], strict=True)
    assert read is not None
    assert set(read.topics) == {"users"}


def test_what_others_read_of_the_log_is_the_image(catalogue: Catalogue, dirs: list[Path]) -> None:
    create(catalogue, NewTopic(name="users", num_partitions=2, configs=(("retention.ms", "5"),)))
    read = read_cluster_metadata(dirs, strict=True)
    assert read is not None
    assert read.topics == {"users": catalogue.image.topics["users"].topic_id}
    assert read.topic_configs == {"users": {"retention.ms": "5"}}
    assert read.end_offset == catalogue.image.offset
    assert read.warnings == []
    assert len(read.partitions[read.topics["users"]]) == 2


# ---- changes


def test_changes_travel_as_bytes(catalogue: Catalogue) -> None:
    asked = {
        "create_topics": CreateTopics(topics=(NewTopic(name="users"),)),
        "allocate_producer_ids": AllocateProducerIds(),
        "assign_log_dirs": AssignLogDirs(moves=()),
    }
    for operation, arguments in asked.items():
        outcome = catalogue.change(operation, to_raw(arguments))
        results = results_of(operation, msgspec.Raw(bytes(outcome.results)))
        assert isinstance(results, OPERATIONS[operation][1])
        assert (outcome.update is not None) == (operation == "create_topics")
        if outcome.update is not None:
            assert decode(encode(outcome.update)) == outcome.update
    with pytest.raises(KeyError):
        catalogue.change("rename_topics", to_raw(AllocateProducerIds()))
    with pytest.raises(msgspec.ValidationError):
        catalogue.change("create_topics", msgspec.Raw(msgspec.msgpack.encode({"topics": 5})))


def test_producer_ids_come_in_blocks_that_are_never_given_again(dirs: list[Path]) -> None:
    firsts = []
    for _ in range(2):
        catalogue = started(dirs)
        for _ in range(2):
            block, update = catalogue.apply("allocate_producer_ids", AllocateProducerIds())
            assert isinstance(block, ProducerIdBlock)
            assert (block.count, block.error, update) == (1000, 0, None)
            firsts.append(block.first)
        catalogue.close()
    assert firsts == [0, 1000, 2000, 3000]
    catalogue = started(dirs)
    data = {"brokerId": 1, "brokerEpoch": catalogue.broker_epoch, "nextProducerId": (1 << 63) - 1000}
    catalogue._commit([MetadataRecord(RecordType.PRODUCER_IDS, data)])
    block, _ = catalogue.apply("allocate_producer_ids", AllocateProducerIds())
    assert isinstance(block, ProducerIdBlock)
    assert (block.count, block.error) == (0, ErrorCode.UNKNOWN_SERVER_ERROR)
    catalogue.close()


def test_moves_between_log_dirs_are_recorded(catalogue: Catalogue, dirs: list[Path]) -> None:
    create(catalogue, NewTopic(name="users"))
    topic = catalogue.image.topics["users"]
    target = next(path for path in dirs if str(path) != catalogue.full_update().topics[0].partitions[0].log_dir)
    epoch = states(catalogue, "users")[0].leader_epoch
    moves = (
        MoveReplica(topic_id=topic.topic_id, partition=0, log_dir=str(target)),
        MoveReplica(topic_id=topic.topic_id, partition=9, log_dir=str(target)),
        MoveReplica(topic_id=topic.topic_id, partition=0, log_dir="/nowhere"),
    )
    results, update = catalogue.apply("assign_log_dirs", AssignLogDirs(moves=moves))
    assert isinstance(results, MoveResults)
    assert [result.error for result in results.results] == [0, 3, 57]
    assert isinstance(update, CatalogueUpdate)
    assert update.topics[0].partitions[0].log_dir == str(target)
    assert states(catalogue, "users")[0].leader_epoch == epoch


def test_a_change_that_can_not_be_written_is_not_seen(catalogue: Catalogue) -> None:
    before = catalogue.image
    layer = FaultyLayer()
    layer.fail("write", errno.ENOSPC)
    with files.replaced(layer), pytest.raises(StorageIOError, match="No space left"):
        create(catalogue, NewTopic(name="users"))
    assert catalogue.image is before
    assert create(catalogue, NewTopic(name="users"))[0][0].error == 0
    layer = FaultyLayer()
    layer.fail("fsync", errno.EIO)
    with files.replaced(layer), pytest.raises(StorageIOError):
        create(catalogue, NewTopic(name="more"))
    assert set(catalogue.image.topics) == {"users"}
    with pytest.raises(LogOfflineError):
        create(catalogue, NewTopic(name="more"))
    catalogue._started = False  # its leaderships can't be given up any more


def test_images_that_were_taken_stay_as_they_are(catalogue: Catalogue) -> None:
    create(catalogue, NewTopic(name="users", configs=(("retention.ms", "5"),)))
    taken = catalogue.image
    create(catalogue, NewTopic(name="more"))
    assert set(taken.topics) == {"users"}
    assert taken.topics["users"] is catalogue.image.topics["users"]


# ---- failing log dirs


def test_a_failed_log_dir_takes_nothing_new_and_its_partitions_have_no_leader(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    create(catalogue, NewTopic(name="users", num_partitions=4))
    update = catalogue.log_dir_failed(dirs[1])
    assert update is not None
    lost = [place.partition for place in update.topics[0].partitions if place.log_dir == str(dirs[1])]
    assert [place.online for place in update.topics[0].partitions] == [n not in lost for n in range(4)]
    assert len(lost) == 2
    assert catalogue.log_dir_failed(dirs[1]) is None
    assert catalogue.log_dir_failed(Path("/nowhere")) is None
    results, more = create(catalogue, NewTopic(name="more", num_partitions=3))
    assert results[0].error == 0
    assert more is not None
    assert {place.log_dir for place in more.topics[0].partitions} == {str(dirs[0])}
    topic_id = catalogue.image.topics["users"].topic_id
    moves, _ = catalogue.apply(
        "assign_log_dirs", AssignLogDirs(moves=(MoveReplica(topic_id=topic_id, partition=0, log_dir=str(dirs[1])),))
    )
    assert isinstance(moves, MoveResults)
    assert moves.results[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    catalogue.close()
    again = started(dirs)
    assert all(state.leader == 1 for state in states(again, "users"))
    again.close()


def test_without_any_log_dir_nothing_can_be_created(catalogue: Catalogue, dirs: list[Path]) -> None:
    for path in dirs:
        catalogue.log_dir_failed(path)
    results, update = create(catalogue, NewTopic(name="users"))
    assert (results[0].error, update) == (ErrorCode.INVALID_REPLICATION_FACTOR, None)
    assert "All brokers are currently fenced" in (results[0].message or "")


# ---- snapshots


def test_a_snapshot_is_made_when_the_log_grew_or_time_passed(dirs: list[Path]) -> None:
    clock = StoppedClock()
    catalogue = started(dirs, clock=clock, metadata_log_max_record_bytes_between_snapshots=4000)
    directory = dirs[0] / "__cluster_metadata-0"

    def snapshots() -> list[str]:
        return sorted(path.name for path in directory.glob("*.checkpoint") if not path.name.startswith("0" * 20))

    catalogue.maintain()
    assert snapshots() == []
    create(catalogue, NewTopic(name="users", num_partitions=50))
    catalogue.maintain()
    assert len(snapshots()) == 1
    catalogue.maintain()
    clock.ms += 3_600_000
    catalogue.maintain()  # nothing has changed since
    assert len(snapshots()) == 1
    create(catalogue, NewTopic(name="more"))
    catalogue.maintain()
    assert len(snapshots()) == 2
    image = catalogue.image
    catalogue.close()
    again = opened(dirs)
    assert again.image.configs == image.configs
    assert again.image.topics.keys() == image.topics.keys()
    again.close()


def test_old_snapshots_and_segments_go_with_time(dirs: list[Path]) -> None:
    clock = StoppedClock()
    catalogue = started(dirs, clock=clock, metadata_log_segment_ms=1000)
    directory = dirs[0] / "__cluster_metadata-0"
    day = 24 * 3_600_000
    for number, kept in enumerate((2, 3, 2, 2)):
        create(catalogue, NewTopic(name=f"t{number}"))
        clock.ms += 3_600_000
        catalogue.maintain()
        clock.ms += 5 * day
        # That of the formatting among them: one that contains nothing of the last seven days goes.
        assert len(list(directory.glob("*.checkpoint"))) == kept
    assert len(list(directory.glob("*.log"))) < 4
    assert not (directory / "00000000000000000000.log").exists()
    catalogue.close()
    again = started(dirs)
    assert set(again.image.topics) == {"t0", "t1", "t2", "t3"}
    again.close()


def test_settings_change_while_it_runs(catalogue: Catalogue, dirs: list[Path]) -> None:
    catalogue.settings_changed(settings(dirs, [str(dirs[0])], num_partitions=7, metadata_max_retention_ms=5))
    results, update = create(catalogue, NewTopic(name="users"))
    assert results[0].num_partitions == 7
    assert update is not None
    assert {place.log_dir for place in update.topics[0].partitions} == {str(dirs[1])}
    assert catalogue._log.settings.max_retention_ms == 5


def test_results_are_those_of_kafka_s_names() -> None:
    assert set(OPERATIONS) >= {
        "create_topics", "delete_topics", "create_partitions", "alter_configs", "allocate_producer_ids", "assign_log_dirs",
    }  # fmt: skip
    assert OPERATIONS["create_topics"][1] is TopicResults


def test_a_change_of_more_records_than_a_batch_holds_reaches_brokers_whole(tmp_path: Path) -> None:
    """A log dir with more partitions than Kafka puts into one batch fails: one update tells of all of them."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    catalogue = started(log_dirs, cordoned=[str(log_dirs[0])])
    names = ("one", "two")
    for name in names:
        catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name=name, num_partitions=6000),)))
    before = catalogue._log.end_offset
    update = catalogue.log_dir_failed(log_dirs[1])
    assert update is not None and not update.full
    assert update.metadata_offset == catalogue._log.end_offset - 1 == before + 12_000 - 1
    told = {topic.name: topic.partitions for topic in update.topics}
    assert {name: len(told[name]) for name in told} == dict.fromkeys(names, 6000)
    assert not [place for places in told.values() for place in places if place.online]
    batches = [batch for batch in catalogue._log.read(before) if batch.header.base_offset >= before]
    assert [batch.header.record_count for batch in batches] == [10_000, 2000]
    catalogue.close()
    # The next start makes the node their leader again, in as many batches; what it tells is the whole.
    catalogue = opened(log_dirs)
    told = {topic.name: topic.partitions for topic in catalogue.start(NODES).topics}
    assert [len([place for place in told[name] if place.online]) for name in names] == [6000, 6000]
    catalogue.close()
