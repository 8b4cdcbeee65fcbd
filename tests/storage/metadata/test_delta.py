"""Replay rules, record by record: what changes, what stays as it was, what contradicts (facts A9, A10)."""

from __future__ import annotations

from typing import Any

import pytest

from compactd.storage.metadata.delta import MetadataDelta
from compactd.storage.metadata.image import MetadataImage, PartitionImage
from compactd.storage.metadata.record_types import DEFAULT_FEATURES, MetadataRecord, RecordType, RecordVersions
from compactd.storage.metadata.records import read_body, read_frame
from compactd.storage.metadata.snapshots import image_records
from compactd.storage.records.varint import MalformedError
from tests.storage.metadata.golden import golden

T = RecordType
ID, OTHER, DIR = "R0h2GY22SfSFe562CeoJag", "6Uj_rrZpJHGZdtN8M_uRd3"[:21] + "w", "yKyKyKyKyKyKyKyKyKyKyA"
TOPIC = (T.TOPIC, {"name": "users", "topicId": ID})
PARTITION = (
    T.PARTITION,
    {"partitionId": 0, "topicId": ID, "replicas": [1], "isr": [1], "removingReplicas": [], "addingReplicas": [],
     "leader": 1, "leaderEpoch": 4, "partitionEpoch": 7, "directories": [DIR]},
)  # fmt: skip
STATE = PartitionImage((1,), (1,), 1, 4, 7, (DIR,))
BROKER: dict[str, Any] = {
    "brokerId": 1, "incarnationId": ID, "brokerEpoch": 9, "endPoints": [], "features": [], "rack": None, "fenced": True,
    "inControlledShutdown": False, "isMigratingZkBroker": False, "logDirs": [DIR], "cordonedLogDirs": None,
}  # fmt: skip


def replayed(*records: tuple[int, dict[str, Any]], on: MetadataImage | None = None) -> MetadataImage:
    delta = MetadataDelta(on or MetadataImage(features=DEFAULT_FEATURES))
    for kind, data in records:
        delta.replay(kind, data)
    return delta.apply(10, 1, 5)


def change(**fields: Any) -> tuple[int, dict[str, Any]]:
    return T.PARTITION_CHANGE, {"partitionId": 0, "topicId": ID, **fields}


def config(kind: int, resource: str, name: str, value: str | None) -> tuple[int, dict[str, Any]]:
    return T.CONFIG, {"resourceType": kind, "resourceName": resource, "name": name, "value": value}


def test_a_partition_and_each_change_of_it() -> None:
    image = replayed(TOPIC, PARTITION)
    assert image.partition(ID, 0) == STATE
    for fields, expected in (
        ({}, PartitionImage((1,), (1,), 1, 4, 8, (DIR,))),
        ({"leader": 1}, PartitionImage((1,), (1,), 1, 5, 8, (DIR,))),
        ({"isr": [], "leader": -1}, PartitionImage((1,), (), -1, 5, 8, (DIR,))),
        ({"eligibleLeaderReplicas": [1], "lastKnownElr": [1]},
         PartitionImage((1,), (1,), 1, 4, 8, (DIR,), elr=(1,), last_known_elr=(1,))),
        ({"directories": [OTHER]}, PartitionImage((1,), (1,), 1, 4, 8, (OTHER,))),
        ({"leaderRecoveryState": 1}, PartitionImage((1,), (1,), 1, 4, 8, (DIR,), recovery_state=1)),
        ({"replicas": [2, 1], "directories": [OTHER, DIR], "addingReplicas": [2]},
         PartitionImage((2, 1), (1,), 1, 4, 8, (OTHER, DIR), adding=(2,))),
    ):  # fmt: skip
        assert replayed(change(**fields), on=image).partition(ID, 0) == expected
    assert image.partition(ID, 0) == STATE


def test_the_forms_that_kafka_writes_at_its_stop_and_start() -> None:
    image = replayed(TOPIC, PARTITION)
    for index, expected in (
        (0, PartitionImage((1,), (), -1, 5, 8, (DIR,), elr=(1,), last_known_elr=(1,))),
        (1, PartitionImage((1,), (1,), 1, 6, 9, (DIR,))),
        (2, PartitionImage((1,), (1,), 1, 7, 10, (DIR,), recovery_state=1)),
    ):
        value = golden("partitionchange stop", index)
        data = read_body(read_frame(value), value) | {"topicId": ID}
        image = replayed((T.PARTITION_CHANGE, data), on=image)
        assert image.partition(ID, 0) == expected


def test_an_elr_is_cleared_for_a_topic_or_for_all_and_only_where_there_is_one() -> None:
    two = (T.TOPIC, {"name": "other", "topicId": OTHER})
    image = replayed(TOPIC, PARTITION, two, (T.PARTITION, PARTITION[1] | {"topicId": OTHER}))
    with_elr = replayed(change(eligibleLeaderReplicas=[1]), on=image)
    for name in ("users", ""):
        cleared = replayed((T.CLEAR_ELR, {"topicName": name}), on=with_elr)
        assert cleared.partition(ID, 0) == PartitionImage((1,), (1,), 1, 4, 9, (DIR,))
        assert cleared.partition(OTHER, 0) == STATE
    assert replayed((T.CLEAR_ELR, {"topicName": "other"}), on=with_elr).partition(ID, 0) == with_elr.partition(ID, 0)


def test_a_removed_topic_takes_its_settings_and_may_come_again_under_another_id() -> None:
    image = replayed(TOPIC, PARTITION, config(2, "users", "a", "b"), config(2, "ghost", "a", "b"))
    delta = MetadataDelta(image)
    delta.replay(T.REMOVE_TOPIC, {"topicId": ID})
    delta.replay(T.TOPIC, {"name": "users", "topicId": OTHER})
    after = delta.apply(11, 1, 6)
    assert (after.names, after.topics["users"].partitions) == ({OTHER: "users"}, {})
    assert after.configs == {(2, "ghost"): {"a": "b"}}
    assert (delta.deleted_topics, delta.changed_topics) == ({ID: "users"}, {"users"})
    assert image.topic_configs("users") == {"a": "b"}
    assert after.topic_by_id(ID) is None


def test_settings() -> None:
    image = replayed(config(4, "", "x", "1"), config(4, "1", "x", "2"), config(32, "g", "y", "3"))
    assert (image.broker_configs(""), image.broker_configs(1)) == ({"x": "1"}, {"x": "2"})
    after = replayed(config(4, "", "x", None), config(4, "1", "z", "4"), config(4, "2", "none", None), on=image)
    assert after.configs == {(4, "1"): {"x": "2", "z": "4"}, (32, "g"): {"y": "3"}}
    assert image.broker_configs(1) == {"x": "2"}


def test_registrations() -> None:
    image = replayed((T.REGISTER_BROKER, BROKER))
    changed = {
        "brokerId": 1,
        "brokerEpoch": 9,
        "fenced": -1,
        "inControlledShutdown": 0,
        "logDirs": [],
        "cordonedLogDirs": None,
    }
    after = replayed((T.BROKER_REGISTRATION_CHANGE, changed), on=image)
    assert after.brokers[1] == BROKER | {"fenced": False}
    more = changed | {"fenced": 0, "inControlledShutdown": 1, "logDirs": [OTHER], "cordonedLogDirs": [DIR]}
    after = replayed((T.BROKER_REGISTRATION_CHANGE, more), on=after)
    expected = {"fenced": False, "inControlledShutdown": True, "logDirs": [OTHER], "cordonedLogDirs": [DIR]}
    assert after.brokers[1] == BROKER | expected
    assert replayed((T.FENCE_BROKER, {"id": 1, "epoch": 9}), on=after).brokers[1]["fenced"]
    assert not replayed((T.UNFENCE_BROKER, {"id": 1, "epoch": 9}), on=image).brokers[1]["fenced"]
    assert replayed((T.UNREGISTER_BROKER, {"brokerId": 1, "brokerEpoch": 9}), on=image).brokers == {}
    controller = {"controllerId": 1, "incarnationId": ID, "zkMigrationReady": False, "endPoints": [], "features": []}
    image = replayed((T.REGISTER_CONTROLLER, controller))
    assert image.controllers == {1: controller}
    assert replayed((T.UNREGISTER_CONTROLLER, {"controllerId": 1}), on=image).controllers == {}


def test_features_quotas_acls_credentials_tokens_and_producer_ids() -> None:
    image = replayed(
        (T.FEATURE_LEVEL, {"name": "share.version", "featureLevel": 0}),
        (T.FEATURE_LEVEL, {"name": "group.version", "featureLevel": 1}),
        (T.FEATURE_LEVEL, {"name": "kraft.version", "featureLevel": 1}),
        (T.PRODUCER_IDS, {"brokerId": 1, "brokerEpoch": 9, "nextProducerId": 1000}),
        *((read_frame(value).api_key, read_body(read_frame(value), value)) for value in (
            golden("acl topic"), golden("scram 256"), golden("quota user"), golden("quota client id"), golden("delegationtoken"),
        )),
    )  # fmt: skip
    assert set(image.features) == {name for name in DEFAULT_FEATURES if name != "share.version"}
    assert image.next_producer_id == 1000
    assert image.quotas == {
        (("user", "bob"),): {"producer_byte_rate": 1024.0},
        (("client-id", "default-x"), ("user", None)): {"request_percentage": 50.0},
    }
    assert [len(entries) for entries in (image.acls, image.scram, image.tokens)] == [1, 1, 1]
    removed = (
        golden("remove scram"), golden("quota user", 1), golden("removedelegationtoken"), golden("removedelegationtoken"),
    )  # fmt: skip
    after = replayed(
        *((read_frame(value).api_key, read_body(read_frame(value), value)) for value in removed),
        (T.REMOVE_ACCESS_CONTROL_ENTRY, {"id": next(iter(image.acls))}),
        on=image,
    )
    assert [len(entries) for entries in (after.acls, after.scram, after.tokens, after.quotas)] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "record,reason",
    [
        (TOPIC, "topic users exists already"),
        ((T.TOPIC, {"name": "new", "topicId": ID}), "is already that of users"),
        ((T.PARTITION, PARTITION[1] | {"topicId": OTHER}), f"topic id {OTHER} is unknown"),
        ((T.PARTITION, PARTITION[1] | {"directories": [DIR, DIR]}), "2 log dirs for 1 replicas"),
        (change(partitionId=3), "topic users has no partition 3"),
        (change(topicId=OTHER), "is unknown"),
        (change(directories=[DIR, DIR]), "2 log dirs"),
        ((T.REMOVE_TOPIC, {"topicId": OTHER}), "is unknown"),
        ((T.CLEAR_ELR, {"topicName": "ghost"}), "topic ghost is unknown"),
        ((T.BROKER_REGISTRATION_CHANGE, {"brokerId": 1, "brokerEpoch": 8}), "registered with epoch 9, not 8"),
        ((T.UNREGISTER_BROKER, {"brokerId": 2, "brokerEpoch": 9}), "broker 2 is not registered"),
        ((T.FENCE_BROKER, {"id": 1, "epoch": 8}), "registered with epoch 9, not 8"),
        ((T.PRODUCER_IDS, {"brokerId": 1, "brokerEpoch": 9, "nextProducerId": 1000}), "1000 is not above 1000"),
        ((T.REMOVE_ACCESS_CONTROL_ENTRY, {"id": ID}), "is unknown"),
        ((T.REMOVE_USER_SCRAM_CREDENTIAL, {"name": "x", "mechanism": 1}), "SCRAM credential of x is unknown"),
        (config(4, "one", "a", "b"), "no node id"),
    ],
)
def test_what_kafka_would_not_start_on_is_refused(record: tuple[int, dict[str, Any]], reason: str) -> None:
    image = replayed(
        TOPIC, PARTITION, (T.REGISTER_BROKER, BROKER), (T.PRODUCER_IDS, {"brokerId": 1, "brokerEpoch": 9, "nextProducerId": 1000})
    )  # fmt: skip
    with pytest.raises(MalformedError, match=reason):
        replayed(record, on=image)


@pytest.mark.parametrize(
    "level,expected",
    [(7, (1, 0, 0)), (8, (2, 0, 0)), (17, (3, 1, 1)), (23, (3, 2, 2)), (30, (4, 2, 2)), (33, (4, 2, 2))],
)
def test_record_versions_follow_the_metadata_version(level: int, expected: tuple[int, int, int]) -> None:
    versions = RecordVersions.of({"metadata.version": level})
    assert (versions.register_broker, versions.partition, versions.partition_change) == expected
    assert not versions.elr
    image = replayed(
        TOPIC, PARTITION, (T.REGISTER_BROKER, BROKER), on=MetadataImage(features={"metadata.version": level})
    )
    for record in image_records(image):
        frame = read_frame(record.value)
        read_body(frame, record.value)
        assert frame.version == record.version


def test_only_what_changed_is_copied() -> None:
    image = replayed(TOPIC, PARTITION, config(4, "", "x", "1"))
    after = replayed((T.PRODUCER_IDS, {"brokerId": 1, "brokerEpoch": 9, "nextProducerId": 1000}), on=image)
    assert after.topics is image.topics
    assert after.configs is image.configs
    assert (image.offset, after.offset, after.epoch, after.timestamp) == (10, 10, 1, 5)


def test_a_record_of_a_type_without_state_changes_nothing() -> None:
    image = replayed(TOPIC, PARTITION)
    assert replayed((T.NO_OP, {}), (T.ZK_MIGRATION_STATE, {"zkMigrationState": 0}), on=image) == image
    assert MetadataRecord(T.NO_OP, {}).value == b"\1\x14\0\0"
