from __future__ import annotations

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.logs.partitions import Partitions
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import (
    AccessRule,
    CataloguePartition,
    CatalogueTopic,
    CatalogueUpdate,
    ClientQuota,
    ScramCredential,
)
from compactd.workers.partition_messages import PartitionState


def topic(name: str, topic_id: str, count: int, log_dir: str = "/d1", **configs: str) -> CatalogueTopic:
    return CatalogueTopic(
        name=name,
        topic_id=topic_id,
        partitions=tuple(
            CataloguePartition(partition=number, leader_epoch=0, partition_epoch=0, log_dir=log_dir, worker=number % 2)
            for number in range(count)
        ),
        configs=configs,
    )


def update(
    *topics: CatalogueTopic, deleted: tuple[str, ...] = (), full: bool = False, **more: object
) -> CatalogueUpdate:
    return CatalogueUpdate(
        full=full, metadata_offset=1, cluster_id="c", topics=topics, deleted=deleted, **more  # type: ignore[arg-type]
    )  # fmt: skip


def state(name: str, partition: int, log_dir: str = "/d1") -> PartitionState:
    return PartitionState(
        topic=name,
        partition=partition,
        log_dir=log_dir,
        log_start_offset=0,
        log_end_offset=9,
        high_watermark=9,
        last_stable_offset=9,
        recovery_point=9,
        active_base_offset=0,
        active_size=1,
        closed=(),
    )


A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_what_an_update_asks_for() -> None:
    partitions = Partitions()
    changes = partitions.apply(update(topic("a", "1", 2), topic("b", "2", 1), full=True), new=False)
    assert [str(entry.name) for entry in changes.assign] == ["a-0", "a-1", "b-0"]
    assert not any(entry.is_new for entry in changes.assign)
    assert changes.configs == ["a", "b"]
    # More partitions, other settings, one topic gone.
    grown = partitions.apply(update(topic("a", "1", 3, x="y"), deleted=("b",)), new=True)
    assert [(str(entry.name), entry.is_new) for entry in grown.assign] == [("a-2", True)]
    assert [str(entry.name) for entry in grown.release] == ["b-0"]
    assert grown.configs == ["a"]
    again = partitions.apply(update(topic("a", "1", 3, x="y")), new=True)
    assert (again.assign, again.release, again.configs) == ([], [], [])
    # A full one names everything that is left.
    assert [str(entry.name) for entry in partitions.apply(update(full=True), new=False).release] == [
        "a-0",
        "a-1",
        "a-2",
    ]


def test_a_topic_created_again_under_its_name_is_another_one() -> None:
    partitions = Partitions()
    partitions.apply(update(topic("a", "1", 2), full=True), new=False)
    partitions.loaded([state("a", 0)])
    changes = partitions.apply(update(topic("a", "2", 1), deleted=("a",)), new=True)
    assert [(entry.topic_id, str(entry.name)) for entry in changes.release] == [("1", "a-0"), ("1", "a-1")]
    assert [(entry.topic_id, str(entry.name)) for entry in changes.assign] == [("2", "a-0")]
    assert partitions.states == {}


def test_states_make_a_partition_ready_and_those_of_others_are_dropped() -> None:
    partitions = Partitions()
    partitions.apply(update(topic("a", "1", 2), full=True), new=True)
    assert set(partitions.offline()) == {"a-0", "a-1"}
    known = partitions.loaded([state("a", 0), state("a", 1, "/elsewhere"), state("gone", 0)])
    assert known == [state("a", 0)]
    assert partitions.entries[A0].is_ready
    assert not partitions.entries[A0].is_new
    assert partitions.offline() == {"a-1": "broker-1 is loading it"}
    # What was known of a broker's partitions outlives it.
    partitions.owner_gone(WorkerId("broker", 0))
    assert not partitions.entries[A0].is_ready
    assert A0 in partitions.states


def test_a_log_dir_takes_its_partitions_offline() -> None:
    partitions = Partitions()
    partitions.apply(update(topic("a", "1", 2), topic("b", "2", 1, "/d2"), full=True), new=False)
    partitions.loaded([state("a", 0), state("a", 1), state("b", 0, "/d2")])
    assert partitions.log_dir_failed("/d1", "it burnt") == [A0, A1]
    assert partitions.offline() == {"a-0": "it burnt", "a-1": "it burnt"}
    assert list(partitions.states) == [TopicPartition("b", 0)]
    # Late news from the dir change nothing.
    assert partitions.loaded([state("a", 0)]) == []
    assert partitions.count_by_log_dir() == {"/d1": 2, "/d2": 1}


def test_a_broker_that_starts_late_gets_the_whole_catalogue() -> None:
    partitions = Partitions()
    partitions.apply(
        update(topic("a", "1", 1), full=True, features={"f": 1}, broker_configs={"": {"x": "1"}}), new=False
    )
    partitions.apply(update(topic("b", "2", 1), broker_configs={"1": {"y": "2"}}), new=True)
    credential = ScramCredential("alice", 1, b"salt", b"stored", b"server", 4096)
    quota = ClientQuota((("user", "alice"),), {"producer_byte_rate": 1.0})
    rule = AccessRule("1", 2, "t", 3, "User:alice", "*", 3, 3)
    partitions.apply(update(credentials=(credential,), quotas=(quota,), acls=(rule,)), new=True)
    partitions.apply(update(group_configs={"g": {"a": "1"}}, client_metrics={"m": {"b": "2"}}), new=True)
    whole = partitions.full_update(((1, "host", 9092),))
    assert (whole.full, [each.name for each in whole.topics]) == (True, ["a", "b"])
    assert whole.broker_configs == {"": {"x": "1"}, "1": {"y": "2"}}
    assert whole.nodes == ((1, "host", 9092),)
    assert (whole.credentials, whole.quotas, whole.acls) == ((credential,), (quota,), (rule,))
    assert (whole.group_configs, whole.client_metrics) == ({"g": {"a": "1"}}, {"m": {"b": "2"}})


def test_a_move_is_seen_when_the_owner_tells_of_it() -> None:
    partitions = Partitions()
    partitions.apply(update(topic("a", "1", 1), full=True), new=False)
    partitions.loaded([state("a", 0)])
    # Before the catalogue says so it is no move.
    assert partitions.moved([state("a", 0, "/d2")]) == []
    partitions.apply(update(topic("a", "1", 1, log_dir="/d2")), new=True)
    assert partitions.moved([state("a", 0)]) == []
    assert partitions.moved([state("a", 0, "/d2")]) == [(A0, "/d1", "/d2")]
    partitions.loaded([state("a", 0, "/d2")])
    assert partitions.moved([state("a", 0, "/d2")]) == []
