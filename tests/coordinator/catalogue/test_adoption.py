"""Log dirs that may be taken over, and those that may not, with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.config.errors import CompactdError, CorruptFileError, RefusedError
from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage import names
from compactd.storage.log_dir import LogDir
from compactd.storage.log_exchange import MOVED_FROM
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.storage.metadata.snapshots import place_snapshot, snapshot_bytes
from compactd.storage.names import TopicPartition, uuid_text
from compactd.storage.partition_metadata import write_partition_metadata
from compactd.storage.records.batch import iter_batches
from compactd.workers.catalogue_messages import NO_ID, CreateTopics, DeleteTopics, NewTopic
from tests.coordinator.catalogues import NODES, NOW, opened, started
from tests.storage.metadata import logs
from tests.storage.metadata.golden import golden


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    """Two log dirs with the topic `users` of two partitions, its directories made; stopped in order."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    catalogue = started(log_dirs)
    catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name="users", num_partitions=2),)))
    make_directories(catalogue)
    catalogue.close()
    return log_dirs


def make_directories(catalogue: Catalogue) -> None:
    for topic in catalogue.full_update().topics:
        for partition in topic.partitions:
            directory = Path(partition.log_dir) / f"{topic.name}-{partition.partition}"
            if not directory.exists():
                directory.mkdir()
                write_partition_metadata(directory / names.PARTITION_METADATA, names.parse_uuid(topic.topic_id))
                (directory / "00000000000000000000.log").write_bytes(b"x" * 70)


def listing(log_dirs: list[Path]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for log_dir in log_dirs for path in log_dir.rglob("*") if path.is_file()}


def append(log_dir: Path, *records: MetadataRecord | bytes) -> None:
    log = MetadataLog.open(log_dir)
    log.append([record if isinstance(record, bytes) else record.value for record in records], NOW)
    log.close()


def edit_meta(log_dir: Path, old: str, new: str) -> None:
    path = log_dir / "meta.properties"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def directory_id(log_dir: Path) -> str:
    meta = LogDir(log_dir).meta()
    assert meta is not None
    assert meta.directory_id is not None
    return uuid_text(meta.directory_id)


def refused(log_dirs: list[Path], reason: str, **more: int) -> str:
    """Opening is refused for this reason, with advice, and no file has changed."""
    before = listing(log_dirs)
    with pytest.raises(RefusedError, match=reason) as caught:
        opened(log_dirs, **more)
    assert caught.value.advice
    assert listing(log_dirs) == before
    return str(caught.value)


def test_another_node_s_dirs_are_refused(dirs: list[Path]) -> None:
    assert "Set node.id to 1" in refused(dirs, "it belongs to node 1, and node.id is 2", node_id=2)


def test_dirs_of_two_clusters_are_refused(dirs: list[Path]) -> None:
    cluster = next(line for line in (dirs[0] / "meta.properties").read_text().splitlines() if "cluster.id" in line)
    edit_meta(dirs[1], cluster, "cluster.id=R0h2GY22SfSFe562CeoJag")
    refused(dirs, "belongs to cluster R0h2GY22SfSFe562CeoJag, and")


def test_dirs_of_zookeeper_s_time_are_refused(dirs: list[Path]) -> None:
    for log_dir in dirs:
        (log_dir / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=x\n")
    refused(dirs, "for a Kafka with ZooKeeper")


def test_log_dirs_in_another_order_are_refused(dirs: list[Path]) -> None:
    assert f"Put {dirs[0]} first" in refused(dirs[::-1], "which belongs into the first entry of log.dirs")
    refused([dirs[0].parent / "new", dirs[1]], "first entry of log.dirs and empty, while others belong to a broker")


def test_a_copied_log_dir_is_refused(dirs: list[Path]) -> None:
    edit_meta(dirs[1], directory_id(dirs[1]), directory_id(dirs[0]))
    refused(dirs, f"its directory.id .* is that of {dirs[0]} as well")


def test_a_dir_with_partitions_and_no_identity_is_refused(dirs: list[Path]) -> None:
    (dirs[1] / "meta.properties").unlink()
    refused(dirs, "no meta.properties, yet holds users-[01]")


def test_a_foreign_directory_is_refused(dirs: list[Path]) -> None:
    (dirs[1] / "backup").mkdir()
    refused(dirs, "the name is not in the form")


def test_a_lost_metadata_log_is_refused(dirs: list[Path]) -> None:
    shutil.rmtree(dirs[0] / "__cluster_metadata-0")
    with pytest.raises(RefusedError, match="no metadata log, or an empty one, yet there are partitions"):
        opened(dirs)
    assert (dirs[0] / "users-0").exists() or (dirs[1] / "users-0").exists()


def test_a_log_dir_left_out_is_told_and_nothing_is_made_that_would_stand_in_the_way_later(dirs: list[Path]) -> None:
    before = listing(dirs)
    with pytest.raises(RefusedError, match="Name all log dirs of the broker"):
        opened(dirs[1:])
    assert not (dirs[1] / "__cluster_metadata-0").exists()
    assert listing(dirs) == before
    opened(dirs).close()


@pytest.mark.parametrize(
    "name,level,reason",
    [
        ("metadata.version", 34, "feature metadata.version at level 34, and levels 7 to 33 are known"),
        ("metadata.version", 6, "feature metadata.version at level 6"),
        ("share.version", 3, "feature share.version at level 3, and levels 0 to 2"),
        ("queue.version", 1, "feature queue.version at level 1, and no such feature is known"),
    ],
)
def test_a_cluster_of_a_newer_kafka_is_refused(dirs: list[Path], name: str, level: int, reason: str) -> None:
    append(dirs[0], MetadataRecord(RecordType.FEATURE_LEVEL, {"name": name, "featureLevel": level}))
    refused(dirs, reason)


def test_a_newer_kafka_s_formatted_dirs_are_refused_before_they_begin(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\n")
    logs.write_snapshot(tmp_path, 0, 0, logs.snapshot(logs.feature("metadata.version", 40), epoch=0))
    with pytest.raises(RefusedError, match=r"metadata\.version at level 40"):
        opened([tmp_path])


def test_a_log_that_never_set_its_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\ndirectory.id={'d' * 21}Q\n"
    )
    logs.write_log(tmp_path, logs.batch(0, logs.topic("users", 1)))
    refused([tmp_path], "its records never set metadata.version")


def test_unknown_records_are_refused_by_position(dirs: list[Path]) -> None:
    append(dirs[0], b"\1\x63\0\0")
    with pytest.raises(CorruptFileError, match=r"unknown metadata record type 99 .* at byte \d+"):
        opened(dirs)


def partition_of(dirs: list[Path], replicas: list[int]) -> MetadataRecord:
    catalogue = opened(dirs)
    topic_id = catalogue.image.topics["users"].topic_id
    catalogue.close()
    data = {
        "partitionId": 2, "topicId": topic_id, "replicas": replicas, "isr": replicas[:1], "removingReplicas": [],
        "addingReplicas": [], "leader": -1, "leaderEpoch": 0, "partitionEpoch": 0,
        "directories": [directory_id(dirs[0])] * len(replicas),
    }  # fmt: skip
    return MetadataRecord(RecordType.PARTITION, data, 2)


@pytest.mark.parametrize("replicas", [[1, 2], [2]])
def test_a_cluster_with_several_replicas_is_refused(dirs: list[Path], replicas: list[int]) -> None:
    append(dirs[0], partition_of(dirs, replicas))
    assert "kafka-reassign-partitions" in refused(dirs, "partition users-2 has replicas on nodes")


def test_a_cluster_with_another_live_broker_is_refused(dirs: list[Path]) -> None:
    data = {
        "brokerId": 2, "isMigratingZkBroker": False, "incarnationId": "R0h2GY22SfSFe562CeoJag", "brokerEpoch": 5,
        "endPoints": [], "features": [], "rack": None, "fenced": False, "inControlledShutdown": False,
    }  # fmt: skip
    append(dirs[0], MetadataRecord(RecordType.REGISTER_BROKER, data, 4))
    refused(dirs, "node 2 is registered in this cluster and not fenced")
    append(dirs[0], MetadataRecord(RecordType.UNREGISTER_BROKER, {"brokerId": 2, "brokerEpoch": 5}))
    opened(dirs).close()


def test_a_cluster_with_several_controllers_is_refused(dirs: list[Path]) -> None:
    path = dirs[0] / "__cluster_metadata-0" / "quorum-state"
    state = json.loads(path.read_text())
    state["currentVoters"] = [{"voterId": 1}, {"voterId": 2}, {"voterId": 3}]
    path.write_text(json.dumps(state))
    refused(dirs, "the controllers of this cluster are 1, 2, 3, not node 1 alone")


def dynamic_quorum(log_dir: Path) -> None:
    """As `format --standalone` leaves it; the voter's directory id is qqghTEj1T5S7vJijewl26A."""
    (log_dir / "meta.properties").write_text(
        "version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\ndirectory.id=qqghTEj1T5S7vJijewl26A\n"
    )
    data = golden("0 0 checkpoint")
    values = [r.value or b"" for b in iter_batches(data) if not b.header.is_control for r in b.records()]
    extra = [(b"\0\0\0\5", golden("control values", 2)), (b"\0\0\0\6", golden("control values", 3))]
    directory = log_dir / "__cluster_metadata-0"
    directory.mkdir()
    place_snapshot(directory, 0, 0, snapshot_bytes(values, epoch=0, timestamp=NOW, now_ms=NOW, extra=extra))


def test_a_dynamic_quorum_keeps_its_voter_and_its_form(tmp_path: Path) -> None:
    dynamic_quorum(tmp_path)
    catalogue = started([tmp_path])
    assert catalogue.image.kraft_version == 1
    first = next(catalogue._log.read(0))
    assert [record.key for record in first.records()] == [b"\0\0\0\2", b"\0\0\0\5", b"\0\0\0\6"]
    catalogue.close()
    assert json.loads((tmp_path / "__cluster_metadata-0" / "quorum-state").read_text())["data_version"] == 1
    catalogue = started([tmp_path])
    assert len(next(catalogue._log.read(catalogue._log.epochs.entries[-1][1])).records()) == 1
    catalogue.close()
    edit_meta(tmp_path, "qqghTEj1T5S7vJijewl26A", "rqghTEj1T5S7vJijewl26A")
    refused(
        [tmp_path],
        "is rqghTEj1T5S7vJijewl26A, but the cluster's controller is that of directory qqghTEj1T5S7vJijewl26A",
    )


def test_a_dynamic_quorum_that_never_began_is_checked_too(tmp_path: Path) -> None:
    dynamic_quorum(tmp_path)
    edit_meta(tmp_path, "qqghTEj1T5S7vJijewl26A", "rqghTEj1T5S7vJijewl26A")
    with pytest.raises(RefusedError, match="the cluster's controller is that of directory"):
        opened([tmp_path])


def test_the_bootstrap_file_of_an_older_kafka_is_used(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\ndirectory.id={'d' * 21}Q\n"
    )
    old = logs.snapshot(logs.feature("metadata.version", 30), logs.feature("group.version", 1), epoch=0)
    (tmp_path / "bootstrap.checkpoint").write_bytes(old)
    catalogue = started([tmp_path])
    assert catalogue.image.features == {"metadata.version": 30, "group.version": 1}
    assert catalogue.image.configs == {}  # no ELR, no minimum for the cluster
    catalogue.close()


def test_a_node_without_bootstrap_begins_with_the_version_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=R0h2GY22SfSFe562CeoJag\n")
    catalogue = started([tmp_path])
    assert catalogue.image.features == {"metadata.version": 33}
    catalogue.close()
    kept = directory_id(tmp_path)
    started([tmp_path]).close()
    assert directory_id(tmp_path) == kept  # made up once


def test_a_new_log_dir_joins_and_takes_the_next_partitions(dirs: list[Path]) -> None:
    added = dirs[0].parent / "deep" / "d3"
    catalogue = started([*dirs, added])
    catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name="more"),)))
    topic = next(topic for topic in catalogue.full_update().topics if topic.name == "more")
    assert topic.partitions[0].log_dir == str(added)
    catalogue.close()


# ---- what lies in the dirs


def place_of(catalogue: Catalogue, topic: str, partition: int) -> str:
    found = next(entry for entry in catalogue.full_update().topics if entry.name == topic)
    return found.partitions[partition].log_dir


def where(dirs: list[Path], name: str) -> Path:
    return next(log_dir / name for log_dir in dirs if (log_dir / name).exists())


def test_partitions_are_served_where_they_lie_and_the_catalogue_is_corrected(dirs: list[Path]) -> None:
    here = where(dirs, "users-0")
    there = next(log_dir for log_dir in dirs if log_dir != here.parent)
    here.rename(there / "users-0")
    catalogue = started(dirs)
    assert place_of(catalogue, "users", 0) == str(there)
    assert catalogue.image.topics["users"].partitions[0].directories == (directory_id(there),)
    catalogue.close()


def test_one_partition_in_two_dirs_is_refused(dirs: list[Path]) -> None:
    here = where(dirs, "users-0")
    there = next(log_dir for log_dir in dirs if log_dir != here.parent)
    shutil.copytree(here, there / "users-0")
    refused(dirs, "partition users-0 lies in")


@pytest.mark.parametrize("kind", ["unknown id", "no metadata", "damaged metadata", "no such partition", "other name"])
def test_what_the_catalogue_does_not_know_is_set_aside_like_kafka_does(dirs: list[Path], kind: str) -> None:
    topic_id = names.parse_uuid(topic_id_of(where(dirs, "users-0")))
    name = {"no such partition": "users-7", "other name": "other-0"}.get(kind, "users-1")
    path = dirs[0] / name
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(dirs[1] / name, ignore_errors=True)
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(b"records")
    metadata = path / names.PARTITION_METADATA
    if kind == "unknown id":
        write_partition_metadata(metadata, logs.topic_id(99))
    elif kind == "damaged metadata":
        metadata.write_text("version: 0\ntopic_id: nonsense")
    elif kind != "no metadata":
        write_partition_metadata(metadata, topic_id)
    catalogue = started(dirs)
    set_aside = [entry.name for entry in dirs[0].iterdir() if entry.name.endswith("-stray")]
    assert len(set_aside) == 1
    parsed = names.parse_partition_dir(set_aside[0])
    assert (str(parsed.topic_partition), parsed.state) == (name, "stray")
    assert (dirs[0] / set_aside[0] / "00000000000000000000.log").read_bytes() == b"records"
    catalogue.close()
    started(dirs).close()
    assert [entry.name for entry in dirs[0].iterdir() if entry.name.endswith("-stray")] == set_aside


def topic_id_of(path: Path) -> str:
    return (path / names.PARTITION_METADATA).read_text().split("topic_id: ")[1]


def test_a_directory_that_was_just_being_made_is_gone_on_with(dirs: list[Path]) -> None:
    path = where(dirs, "users-0")
    (path / names.PARTITION_METADATA).unlink()
    (path / "00000000000000000000.log").write_bytes(b"")
    catalogue = started(dirs)
    assert place_of(catalogue, "users", 0) == str(path.parent)
    assert path.exists()
    catalogue.close()


def test_the_deletion_of_a_topic_is_finished(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    catalogue.apply("delete_topics", DeleteTopics(topics=(("users", "A" * 22),)))
    catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name="users", num_partitions=1),)))
    catalogue.close()
    # The owner was killed before it renamed anything.
    catalogue = started(dirs)
    left = sorted(entry.name for log_dir in dirs for entry in log_dir.iterdir() if entry.name.startswith("users"))
    assert [names.parse_partition_dir(name).state for name in left] == ["delete", "delete"]
    assert place_of(catalogue, "users", 0)
    catalogue.close()


def test_a_recorded_move_is_finished(dirs: list[Path]) -> None:
    original = where(dirs, "users-0")
    target = next(log_dir for log_dir in dirs if log_dir != original.parent)
    copy = target / names.future_dir_name(TopicPartition("users", 0))
    shutil.copytree(original, copy)
    started(dirs).close()
    assert (copy.exists(), original.exists()) == (True, True)  # not recorded: the original counts
    catalogue = opened(dirs)
    topic_id = catalogue.image.topics["users"].topic_id
    catalogue.close()
    data = {"partitionId": 0, "topicId": topic_id, "directories": [directory_id(target)]}
    append(dirs[0], MetadataRecord(RecordType.PARTITION_CHANGE, data, 2))
    catalogue = started(dirs)
    assert (copy.exists(), original.exists(), (target / "users-0").is_dir()) == (False, False, True)
    assert place_of(catalogue, "users", 0) == str(target)
    assert any(entry.name.endswith("-delete") for entry in original.parent.iterdir())
    catalogue.close()


def test_an_original_whose_move_ended_goes(dirs: list[Path]) -> None:
    """Its disk failed before it could be renamed: both have the partition's name, and the copy says which one it was."""
    original = where(dirs, "users-0")
    target = next(log_dir for log_dir in dirs if log_dir != original.parent)
    shutil.copytree(original, target / "users-0")
    (target / "users-0" / MOVED_FROM).write_bytes(os.fsencode(original))
    catalogue = started(dirs)
    assert place_of(catalogue, "users", 0) == str(target)
    assert not original.exists()
    assert [entry.name[:8] for entry in original.parent.iterdir() if entry.name.endswith("-delete")] == ["users-0."]
    catalogue.close()


def test_a_complete_copy_whose_original_is_gone_is_the_partition(dirs: list[Path]) -> None:
    """Of a cluster too old for a catalogue that names log dirs. One that is not complete is no partition."""
    original = where(dirs, "users-0")
    target = next(log_dir for log_dir in dirs if log_dir != original.parent)
    copy = target / names.future_dir_name(TopicPartition("users", 0))
    original.rename(copy)
    (copy / MOVED_FROM).write_bytes(os.fsencode(original))
    catalogue = started(dirs)
    assert place_of(catalogue, "users", 0) == str(target)
    assert (target / "users-0").is_dir() and not copy.exists()
    assert not (target / "users-0" / MOVED_FROM).exists()
    catalogue.close()


@pytest.mark.parametrize(("known", "end"), [(True, "-delete"), (False, "-stray")])
def test_a_copy_without_a_partition_goes_the_way_of_one(dirs: list[Path], known: bool, end: str) -> None:
    original = where(dirs, "users-0")
    target = next(log_dir for log_dir in dirs if log_dir != original.parent)
    copy = target / names.future_dir_name(TopicPartition("users", 0))
    shutil.copytree(original, copy)
    if known:
        catalogue = started(dirs)
        catalogue.apply("delete_topics", DeleteTopics(topics=(("users", NO_ID),)))
        catalogue.close()
    else:
        names_file = copy / names.PARTITION_METADATA
        names_file.write_text(names_file.read_text().replace(topic_id_of(original), "BBBBBBBBBBBBBBBBBBBBBQ"))
    started(dirs).close()
    assert not copy.exists()
    assert any(entry.name.endswith(end) for entry in target.iterdir() if entry.name.startswith("users-0."))


def test_partitions_without_directory_keep_their_dir_or_get_one(dirs: list[Path]) -> None:
    for path in (where(dirs, "users-0"), where(dirs, "users-1")):
        shutil.rmtree(path)
    catalogue = opened(dirs)
    topic = catalogue.image.topics["users"]
    recorded = [state.directories[0] for state in topic.partitions.values()]
    catalogue.close()
    catalogue = started(dirs)
    assert [state.directories[0] for state in catalogue.image.topics["users"].partitions.values()] == recorded
    catalogue.close()
    changes = [
        MetadataRecord(
            RecordType.PARTITION_CHANGE, {"partitionId": number, "topicId": topic.topic_id, "directories": [unknown]}, 2
        )
        for number, unknown in ((0, "AAAAAAAAAAAAAAAAAAAAAQ"), (1, "R0h2GY22SfSFe562CeoJag"))
    ]
    append(dirs[0], *changes)
    catalogue = started(dirs)
    assert {place_of(catalogue, "users", number) for number in (0, 1)} == set(map(str, dirs))
    catalogue.close()


# ---- dirs that can not be used


def test_partitions_in_an_offline_dir_have_no_leader_until_it_is_back(dirs: list[Path]) -> None:
    gone = where(dirs, "users-1").parent if dirs[0] != where(dirs, "users-1").parent else where(dirs, "users-0").parent
    number = 1 if (gone / "users-1").exists() else 0
    hidden = gone.with_name("unplugged")
    gone.rename(hidden)
    catalogue = started(dirs, offline={gone: "I/O error"})
    topic = next(topic for topic in catalogue.full_update().topics if topic.name == "users")
    assert [place.online for place in topic.partitions] == [n != number for n in range(2)]
    assert topic.partitions[number].log_dir == ""
    catalogue.apply("create_topics", CreateTopics(topics=(NewTopic(name="new", num_partitions=3),)))
    assert {place_of(catalogue, "new", n) for n in range(3)} == {str(dirs[0])}
    catalogue.close()
    hidden.rename(gone)
    catalogue = started(dirs)
    topic = next(topic for topic in catalogue.full_update().topics if topic.name == "users")
    assert all(place.online for place in topic.partitions)
    assert topic.partitions[number].log_dir == str(gone)
    catalogue.close()


def test_without_the_first_dir_nothing_can_be_served(dirs: list[Path]) -> None:
    with pytest.raises(RefusedError, match="which holds the catalogue, and can not be used: I/O error"):
        opened(dirs, offline={dirs[0]: "I/O error"})
    with pytest.raises(RefusedError, match="can not be used"):
        opened(dirs, offline=dict.fromkeys(dirs, "gone"))


def test_damage_is_a_named_error(dirs: list[Path]) -> None:
    damages: list[Callable[[Path], object]] = [
        lambda path: (path / "meta.properties").write_bytes(b"\xff" * 10),
        lambda path: (path / "__cluster_metadata-0" / "quorum-state").write_text("{}"),
    ]
    for damage in damages:
        copies = [Path(shutil.copytree(path, path.with_name(f"{path.name}-{id(damage)}"))) for path in dirs]
        damage(copies[0])
        with pytest.raises(CompactdError):
            opened(copies)


def test_nothing_is_written_before_the_start(dirs: list[Path]) -> None:
    before = listing(dirs)
    catalogue = opened(dirs)
    assert catalogue.broker_epoch > 0
    catalogue.close()
    assert listing(dirs) == before
    catalogue = opened(dirs)
    assert catalogue.start(NODES).full
    catalogue.close()
