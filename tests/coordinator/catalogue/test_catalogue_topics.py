"""Topics created, grown and deleted: each check with Kafka's code and text, and the records that are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage.metadata.records import decode_metadata_record
from compactd.workers.catalogue_messages import (
    NO_ID,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ErrorCode,
    MorePartitions,
    NewTopic,
    Preference,
    PreferLogDirs,
    TopicResult,
    TopicResults,
)
from compactd.workers.catalogue_update import CatalogueUpdate
from tests.coordinator.catalogues import started

E = ErrorCode
OTHER_ID = "R0h2GY22SfSFe562CeoJag"


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    made = started([tmp_path / "d1", tmp_path / "d2"], num_partitions=2)
    create(made, NewTopic(name="users", num_partitions=3), NewTopic(name="a.b"))
    yield made
    made.close()


def create(
    catalogue: Catalogue, *topics: NewTopic, validate_only: bool = False
) -> tuple[list[TopicResult], CatalogueUpdate | None]:
    results, update = catalogue.apply("create_topics", CreateTopics(topics=topics, validate_only=validate_only))
    assert isinstance(results, TopicResults)
    return list(results.results), update


def grow(catalogue: Catalogue, *topics: MorePartitions, validate_only: bool = False) -> list[TopicResult]:
    results, _ = catalogue.apply("create_partitions", CreatePartitions(topics=topics, validate_only=validate_only))
    assert isinstance(results, TopicResults)
    return list(results.results)


def delete(catalogue: Catalogue, *topics: tuple[str | None, str]) -> tuple[list[TopicResult], CatalogueUpdate | None]:
    results, update = catalogue.apply("delete_topics", DeleteTopics(topics=topics))
    assert isinstance(results, TopicResults)
    return list(results.results), update


def records(catalogue: Catalogue, start: int) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for batch in catalogue._log.read(start):
        for record in batch.records():
            decoded = decode_metadata_record(record.key, record.value)
            found.append((decoded["type"], decoded["data"]))
    return found


@pytest.mark.parametrize(
    "topic,code,message",
    [
        (NewTopic(name=""), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (NewTopic(name="."), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '.' is not allowed"),
        (NewTopic(name=".."), E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: '..' is not allowed"),
        (NewTopic(name="x" * 250), E.INVALID_TOPIC_EXCEPTION,
         f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249"),
        (NewTopic(name="größe"), E.INVALID_TOPIC_EXCEPTION,
         "Topic name is invalid: 'größe' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        (NewTopic(name="a/b"), E.INVALID_TOPIC_EXCEPTION,
         "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        (NewTopic(name="a_b"), E.INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b"),
        (NewTopic(name="a.b"), E.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists."),
        (NewTopic(name="users", num_partitions=0), E.TOPIC_ALREADY_EXISTS, "Topic 'users' already exists."),
        (NewTopic(name="__cluster_metadata"), E.INVALID_REQUEST, "Creation of internal topic __cluster_metadata is prohibited."),
        (NewTopic(name="n", configs=(("retention.ms", None), ("x", None))), E.INVALID_CONFIG,
         "Null value not supported for topic configs: retention.ms,x"),
        (NewTopic(name="n", configs=(("nope", "1"),)), E.INVALID_CONFIG, "Unknown topic config name: nope"),
        (NewTopic(name="n", configs=(("retention.ms", "5d"),), num_partitions=0), E.INVALID_CONFIG,
         "Invalid value 5d for configuration retention.ms: Not a number of type LONG"),
        (NewTopic(name="n", configs=(("cleanup.policy", "x" * 40000),)), E.INVALID_CONFIG,
         "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."),
        (NewTopic(name="n", replication_factor=0), E.INVALID_REPLICATION_FACTOR,
         "Replication factor must be larger than 0, or -1 to use the default value."),
        (NewTopic(name="n", replication_factor=-2, num_partitions=0), E.INVALID_REPLICATION_FACTOR,
         "Replication factor must be larger than 0, or -1 to use the default value."),
        (NewTopic(name="n", num_partitions=0), E.INVALID_PARTITIONS,
         "Number of partitions was set to an invalid non-positive value."),
        (NewTopic(name="n", replication_factor=2), E.INVALID_REPLICATION_FACTOR,
         "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because only 1 "
         "broker(s) are registered or some brokers have all their log directories cordoned."),
        (NewTopic(name="n", assignments=((0, (1,)),), replication_factor=1), E.INVALID_REQUEST,
         "A manual partition assignment was specified, but replication factor was not set to -1."),
        (NewTopic(name="n", assignments=((0, (1,)),), num_partitions=1), E.INVALID_REQUEST,
         "A manual partition assignment was specified, but numPartitions was not set to -1."),
        (NewTopic(name="n", assignments=((0, (1,)), (0, (1,)))), E.INVALID_REPLICA_ASSIGNMENT,
         "Found multiple manual partition assignments for partition 0"),
        (NewTopic(name="n", assignments=((0, (1,)), (2, (1,)))), E.INVALID_REPLICA_ASSIGNMENT,
         "partitions should be a consecutive 0-based integer sequence"),
        (NewTopic(name="n", assignments=((0, ()),)), E.INVALID_REPLICA_ASSIGNMENT,
         "The manual partition assignment includes an empty replica list."),
        (NewTopic(name="n", assignments=((0, (2,)),)), E.INVALID_REPLICA_ASSIGNMENT,
         "The manual partition assignment includes broker 2, but no such broker is registered."),
        (NewTopic(name="n", assignments=((0, (1, 1)),)), E.INVALID_REPLICA_ASSIGNMENT,
         "The manual partition assignment includes the broker 1 more than once."),
        (NewTopic(name="n", num_partitions=10_000), E.POLICY_VIOLATION, "Unable to perform excessively large batch operation."),
        (NewTopic(name="n", num_partitions=10_001), E.POLICY_VIOLATION, "Excessively large number of partitions per request."),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)  # fmt: skip
def test_what_can_not_be_created(catalogue: Catalogue, topic: NewTopic, code: ErrorCode, message: str) -> None:
    before = (catalogue.image, catalogue._log.end_offset)
    results, update = create(catalogue, topic)
    assert results == [TopicResult(name=topic.name, error=code, message=message)]
    assert update is None
    assert (catalogue.image, catalogue._log.end_offset) == before


def test_a_topic_is_created_in_one_batch_as_kafka_writes_it(catalogue: Catalogue) -> None:
    start = catalogue._log.end_offset
    configs = (("cleanup.policy", "compact"), ("min.insync.replicas", "1"), ("cleanup.policy", "delete"))
    results, update = create(catalogue, NewTopic(name="n", num_partitions=2, replication_factor=1, configs=configs))
    (result,) = results
    assert (result.error, result.message, result.num_partitions, result.replication_factor) == (0, None, 2, 1)
    written = records(catalogue, start)
    assert [kind for kind, _ in written] == [
        "TOPIC_RECORD", "CONFIG_RECORD", "CONFIG_RECORD", "CLEAR_ELR_RECORD", "PARTITION_RECORD", "PARTITION_RECORD",
    ]  # fmt: skip
    assert written[0][1] == {"name": "n", "topicId": result.topic_id}
    assert written[1][1] == {"resourceType": 2, "resourceName": "n", "name": "cleanup.policy", "value": "delete"}
    directories = {identity.directory_id for identity in catalogue._places.identities.values()}
    for number, (_, partition) in enumerate(written[4:]):
        assert partition["directories"][0] in directories
        assert partition | {"directories": None} == {
            "partitionId": number, "topicId": result.topic_id, "replicas": [1], "isr": [1], "removingReplicas": [],
            "addingReplicas": [], "leader": 1, "leaderRecoveryState": 0, "leaderEpoch": 0, "partitionEpoch": 0,
            "directories": None, "eligibleLeaderReplicas": None, "lastKnownElr": None,
        }  # fmt: skip
    assert len(list(catalogue._log.read(start))) == 1
    assert update is not None
    (topic,) = update.topics
    assert (topic.name, topic.topic_id, topic.configs) == (
        "n", result.topic_id, {"cleanup.policy": "delete", "min.insync.replicas": "1"},
    )  # fmt: skip
    assert [(place.partition, place.leader_epoch, place.online) for place in topic.partitions] == [
        (0, 0, True),
        (1, 0, True),
    ]
    assert not update.full
    assert update.metadata_offset == catalogue._log.end_offset - 1


def test_several_at_once_each_by_itself(catalogue: Catalogue) -> None:
    start = catalogue._log.end_offset
    results, update = create(
        catalogue,
        NewTopic(name="twice"),
        NewTopic(name="one"),
        NewTopic(name="bad", num_partitions=-5),
        NewTopic(name="twice"),
        NewTopic(name="two", assignments=((1, (1,)), (0, (1,)))),
        NewTopic(name="__cluster_metadata"),
        NewTopic(name="__consumer_offsets"),
    )
    assert [(result.name, result.error) for result in results] == [
        ("one", 0), ("bad", 37), ("two", 0), ("__consumer_offsets", 0), ("twice", 42), ("__cluster_metadata", 42),
    ]  # fmt: skip
    assert results[4].message == "Duplicate topic name."
    assert [result.num_partitions for result in results] == [2, -1, 2, 2, -1, -1]
    assert len(list(catalogue._log.read(start))) == 1
    assert update is not None
    assert [topic.name for topic in update.topics] == ["__consumer_offsets", "one", "two"]


def test_the_limit_on_partitions_counts_the_whole_request(catalogue: Catalogue) -> None:
    topics = [NewTopic(name=f"n{number}", num_partitions=4000) for number in range(3)]
    results, update = create(catalogue, *topics)
    assert {result.error for result in results} == {E.POLICY_VIOLATION}
    assert len(results) == 3
    assert update is None


def test_validate_only_changes_nothing_and_tells_no_id(catalogue: Catalogue) -> None:
    before = catalogue._log.end_offset
    results, update = create(catalogue, NewTopic(name="n"), NewTopic(name="users"), validate_only=True)
    assert [(result.error, result.topic_id, result.num_partitions) for result in results] == [
        (0, NO_ID, 2),
        (36, NO_ID, -1),
    ]
    assert grow(catalogue, MorePartitions(name="users", count=5), validate_only=True)[0].error == 0
    assert (update, catalogue._log.end_offset) == (None, before)
    assert "n" not in catalogue.image.topics


def test_ids_are_drawn_and_never_begin_with_a_dash(catalogue: Catalogue) -> None:
    results, _ = create(catalogue, *(NewTopic(name=f"n{number}", num_partitions=1) for number in range(300)))
    ids = {result.topic_id for result in results}
    assert len(ids) == 300
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", topic_id) for topic_id in ids)


def test_new_partitions_go_to_the_emptiest_log_dir(catalogue: Catalogue) -> None:
    create(catalogue, *(NewTopic(name=f"n{number}", num_partitions=number) for number in range(1, 9)))
    update = catalogue.full_update()
    counts: dict[str, int] = {}
    for topic in update.topics:
        for partition in topic.partitions:
            counts[partition.log_dir] = counts.get(partition.log_dir, 0) + 1
    assert sorted(counts.values()) == [20, 21]


def test_a_partition_goes_where_it_was_wanted_before_it_was_there(catalogue: Catalogue, tmp_path: Path) -> None:
    """AlterReplicaLogDirs of a partition to come; the wish holds once, and not for a dir that failed or is none of ours."""

    def want(topic: str, number: int, log_dir: Path) -> None:
        wish = Preference(topic=topic, partition=number, log_dir=str(log_dir))
        assert catalogue.apply("prefer_log_dirs", PreferLogDirs(partitions=(wish,)))[1] is None

    def places(topic: str) -> list[str]:
        (found,) = [each for each in catalogue.full_update().topics if each.name == topic]
        return [Path(each.log_dir).name for each in found.partitions]

    for number in range(4):
        want("wished", number, tmp_path / "d2")
    want("wished", 4, tmp_path / "elsewhere")
    create(catalogue, NewTopic(name="wished", num_partitions=3), validate_only=True)
    create(catalogue, NewTopic(name="wished", num_partitions=3))
    assert places("wished") == ["d2"] * 3
    grow(catalogue, MorePartitions(name="wished", count=6))
    assert places("wished") == ["d2"] * 4 + ["d1"] * 2
    delete(catalogue, ("wished", NO_ID))
    want("wished", 0, tmp_path / "d2")
    catalogue.log_dir_failed(tmp_path / "d2")
    create(catalogue, NewTopic(name="wished", num_partitions=1))
    assert places("wished") == ["d1"]


@pytest.mark.parametrize(
    "topic,code,message",
    [
        (MorePartitions(name="ghost", count=2), E.UNKNOWN_TOPIC_OR_PARTITION, None),
        (MorePartitions(name="users", count=3), E.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        (MorePartitions(name="users", count=2), E.INVALID_PARTITIONS,
         "The topic users currently has 3 partition(s); 2 would not be an increase."),
        (MorePartitions(name="users", count=5, assignments=()), E.INVALID_REPLICA_ASSIGNMENT,
         "Attempted to add 2 additional partition(s), but only 0 assignment(s) were specified."),
        (MorePartitions(name="users", count=4, assignments=((),)), E.INVALID_REPLICA_ASSIGNMENT,
         "The manual partition assignment includes an empty replica list."),
        (MorePartitions(name="users", count=4, assignments=((7,),)), E.INVALID_REPLICA_ASSIGNMENT,
         "The manual partition assignment includes broker 7, but no such broker is registered."),
        (MorePartitions(name="users", count=20_000), E.POLICY_VIOLATION, "Unable to perform excessively large batch operation."),
    ],
)  # fmt: skip
def test_what_can_not_grow(catalogue: Catalogue, topic: MorePartitions, code: ErrorCode, message: str | None) -> None:
    before = catalogue._log.end_offset
    assert grow(catalogue, topic) == [TopicResult(name=topic.name, error=code, message=message)]
    assert catalogue._log.end_offset == before


def test_a_topic_grows(catalogue: Catalogue) -> None:
    start = catalogue._log.end_offset
    results = grow(
        catalogue,
        MorePartitions(name="users", count=5),
        MorePartitions(name="a.b", count=3, assignments=((1,),)),
        MorePartitions(name="twice", count=5),
        MorePartitions(name="twice", count=6),
    )
    assert [(result.name, result.error) for result in results] == [("twice", 42), ("users", 0), ("a.b", 0)]
    written = records(catalogue, start)
    assert [(kind, data["partitionId"]) for kind, data in written] == [
        ("PARTITION_RECORD", 3), ("PARTITION_RECORD", 4), ("PARTITION_RECORD", 2),
    ]  # fmt: skip
    assert set(catalogue.image.topics["users"].partitions) == set(range(5))


def test_topics_are_deleted_by_name_and_by_id(catalogue: Catalogue) -> None:
    users, dotted = catalogue.image.topics["users"].topic_id, catalogue.image.topics["a.b"].topic_id
    start = catalogue._log.end_offset
    results, update = delete(catalogue, ("users", NO_ID), (None, dotted))
    assert {(result.name, result.topic_id, result.error) for result in results} == {
        ("users", users, 0),
        ("a.b", dotted, 0),
    }
    assert sorted(data["topicId"] for _, data in records(catalogue, start)) == sorted([users, dotted])
    assert update is not None
    assert (update.deleted, update.topics) == (("a.b", "users"), ())
    assert catalogue.image.topics == {}
    # Their places are free again, and the names.
    results, _ = create(catalogue, NewTopic(name="users"), NewTopic(name="a_b"))
    assert [result.error for result in results] == [0, 0]
    assert results[0].topic_id != users


@pytest.mark.parametrize(
    "asked,name,code,message",
    [
        (((None, NO_ID),), None, E.INVALID_REQUEST, "Neither topic name nor id were specified."),
        ((("users", OTHER_ID),), "users", E.INVALID_REQUEST, "You may not specify both topic name and topic id."),
        ((("ghost", NO_ID),), "ghost", E.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."),
        (((None, OTHER_ID),), None, E.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
        ((("users", NO_ID), ("users", NO_ID)), "users", E.INVALID_REQUEST, "Duplicate topic name."),
        (((None, OTHER_ID), (None, OTHER_ID)), None, E.INVALID_REQUEST, "Duplicate topic id."),
    ],
)
def test_what_can_not_be_deleted(
    catalogue: Catalogue, asked: tuple[tuple[str | None, str], ...], name: str | None, code: ErrorCode, message: str
) -> None:
    results, update = delete(catalogue, *asked)
    assert [(result.name, result.error, result.message) for result in results] == [(name, code, message)]
    assert update is None
    assert "users" in catalogue.image.topics


def test_a_topic_named_and_identified_in_one_request_stays(catalogue: Catalogue) -> None:
    topic_id = catalogue.image.topics["users"].topic_id
    results, update = delete(catalogue, ("users", NO_ID), (None, topic_id))
    assert [(result.name, result.topic_id, result.error) for result in results] == [
        ("users", topic_id, E.INVALID_REQUEST)
    ]
    assert results[0].message == "The provided topic name maps to an ID that was already supplied."
    assert update is None


def test_deletion_that_is_turned_off(tmp_path: Path) -> None:
    catalogue = started([tmp_path / "d"], delete_topic_enable=False)
    create(catalogue, NewTopic(name="n"))
    results, update = delete(catalogue, ("n", NO_ID), ("ghost", NO_ID))
    assert {(result.error, result.message) for result in results} == {
        (E.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    }
    assert update is None
    catalogue.close()
