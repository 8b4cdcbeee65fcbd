"""CreateTopics, DeleteTopics, CreatePartitions and InitProducerId over the wire, with a real catalogue behind them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.names import parse_uuid
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

METADATA, CREATE, DELETE, INIT, GROW = 3, 19, 20, 22, 37


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], {"num.partitions": 3}) as running:
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def topic(name: str, partitions: int = 1, factor: int = 1, **configs: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(client: RawClient, *topics: dict[str, Any], version: int = 7, **more: Any) -> dict[str, Any]:
    answer = client.ask(CREATE, version, {"topics": topics, "timeout": 10_000, **more})
    return {each.name: each for each in answer.topics}


def partitions_of(client: RawClient, name: str) -> int:
    answer = client.ask(METADATA, 12, {"topics": [{"name": name}], "allow_auto_topic_creation": False}).topics[0]
    return len(answer.partitions) if answer.error_code == 0 else -int(answer.error_code)


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_created_in_every_version(broker: CatalogueBroker, client: RawClient, version: int) -> None:
    made = create(client, topic("users", 2, 1, cleanup_policy="compact"), topic("default", -1, -1), version=version)
    assert {name: int(each.error_code) for name, each in made.items()} == {"users": 0, "default": 0}
    assert partitions_of(client, "users") == 2
    assert partitions_of(client, "default") == 3
    assert broker.catalogue.image.topic_configs("users") == {"cleanup.policy": "compact"}
    if version >= 5:
        users = made["users"]
        assert (users.num_partitions, users.replication_factor) == (2, 1)
        configs = {each.name: (each.value, each.config_source) for each in users.configs}
        assert len(configs) == 37  # as many as Kafka 4.4.0 tells
        assert list(configs) == sorted(configs)
        assert configs["cleanup.policy"] == ("compact", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert users.topic_id == parse_uuid(broker.catalogue.image.topics["users"].topic_id)


def test_topics_that_are_not_created(client: RawClient) -> None:
    create(client, topic("there"), topic("a.b"))
    refused = create(
        client,
        topic("there"),
        topic("a_b"),
        topic("bad name"),
        topic("two", factor=2),
        topic("none", partitions=0),
        topic("wrong", cleanup_policy="shred"),
        topic("null", cleanup_policy=None),
        topic("__cluster_metadata"),
        {**topic("far", -1, -1), "assignments": [{"partition_index": 0, "broker_ids": [9]}]},
        {**topic("both", 1, 1), "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        topic("twice"),
        topic("twice"),
    )
    assert {name: int(each.error_code) for name, each in refused.items()} == {
        "there": 36, "a_b": 17, "bad name": 17, "two": 38, "none": 37, "wrong": 40, "null": 40,
        "__cluster_metadata": 42, "far": 39, "both": 42, "twice": 42,
    }  # fmt: skip
    one = refused["there"]
    assert (one.num_partitions, one.replication_factor, one.configs) == (-1, -1, ())
    assert one.error_message == "Topic 'there' already exists."


def test_a_topic_with_assignments(client: RawClient) -> None:
    rows = [{"partition_index": number, "broker_ids": [1]} for number in range(2)]
    assert create(client, {**topic("placed", -1, -1), "assignments": rows})["placed"].num_partitions == 2
    assert partitions_of(client, "placed") == 2


def test_validation_creates_nothing(client: RawClient) -> None:
    made = create(client, topic("maybe", 4), validate_only=True)["maybe"]
    assert (made.error_code, made.num_partitions, made.topic_id) == (0, 4, None)
    assert partitions_of(client, "maybe") == -3


def test_a_client_without_patience_is_told_so_and_gets_its_topic(client: RawClient) -> None:
    assert create(client, topic("quick"), timeout=0)["quick"].error_code == 7
    assert partitions_of(client, "quick") == 1


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_in_every_version(broker: CatalogueBroker, client: RawClient, version: int) -> None:
    create(client, topic("doomed"))
    body: dict[str, Any] = {"timeout": 10_000}
    if version >= 6:
        body["topics"] = [{"name": "doomed"}, {"name": "none"}]
    else:
        body["topic_names"] = ["doomed", "none"]
    answer = client.ask(DELETE, version, body)
    assert {each.name: int(each.error_code) for each in answer.responses} == {"doomed": 0, "none": 3}
    assert partitions_of(client, "doomed") == -3


def test_topics_are_deleted_by_id(client: RawClient) -> None:
    known, unknown = create(client, topic("doomed"))["doomed"].topic_id, uuid.uuid4()
    rows = [{"topic_id": known}, {"topic_id": unknown}, {}, {"name": "both", "topic_id": unknown}]
    answer = client.ask(DELETE, 6, {"topics": rows, "timeout": 10_000})
    assert {(each.name, each.topic_id, int(each.error_code)) for each in answer.responses} == {
        ("doomed", known, 0),
        (None, unknown, 100),
        (None, None, 42),
        ("both", unknown, 42),
    }


def test_deletion_can_be_forbidden(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"delete.topic.enable": "false"}) as broker, broker.connect() as client:
        create(client, topic("kept"))
        for version, error in ((1, 42), (2, 42), (3, 73), (5, 73)):
            answer = client.ask(DELETE, version, {"topic_names": ["kept"], "timeout": 10_000})
            assert answer.responses[0].error_code == error
        assert partitions_of(client, "kept") == 1


@pytest.mark.parametrize("version", range(4))
def test_topics_grow_in_every_version(client: RawClient, version: int) -> None:
    create(client, topic("small"), topic("large", 5))

    def grow(*rows: tuple[str, int, Any], validate: bool = False) -> list[tuple[str, int]]:
        topics = [{"name": name, "count": count, "assignments": given} for name, count, given in rows]
        answer = client.ask(GROW, version, {"topics": topics, "timeout": 10_000, "validate_only": validate})
        return sorted((each.name, int(each.error_code)) for each in answer.results)

    assert grow(("small", 4, None), validate=True) == [("small", 0)]
    assert partitions_of(client, "small") == 1
    assert grow(("small", 3, None), ("large", 5, None), ("none", 2, None)) == [("large", 37), ("none", 3), ("small", 0)]
    assert partitions_of(client, "small") == 3
    assert grow(("small", 4, []), ("large", 7, [{"broker_ids": [1]}, {"broker_ids": [1]}])) == [
        ("large", 0),
        ("small", 39),
    ]
    assert grow(("small", 9, None), ("small", 9, None)) == [("small", 42)]
    assert (partitions_of(client, "small"), partitions_of(client, "large")) == (3, 7)


def test_a_request_for_nothing(client: RawClient) -> None:
    assert client.ask(CREATE, 7, {"topics": [], "timeout": 1}).topics == ()
    assert client.ask(DELETE, 6, {"topics": [], "timeout": 1}).responses == ()
    assert client.ask(GROW, 3, {"topics": [], "timeout": 1}).results == ()


# ---- producer ids


@pytest.mark.parametrize("version", range(6))
def test_every_producer_has_an_id_of_its_own(client: RawClient, version: int) -> None:
    body = {"transactional_id": None, "transaction_timeout": 2_147_483_647}
    answers = [client.ask(INIT, version, body) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0)] * 3
    assert len({each.producer_id for each in answers}) == 3
    if version >= 3:
        again = client.ask(INIT, version, {**body, "producer_id": answers[0].producer_id, "producer_epoch": 0})
        assert (again.error_code, again.producer_epoch) == (0, 0)
        assert again.producer_id not in {each.producer_id for each in answers}


def test_ids_are_never_given_twice_across_restarts_and_blocks(log_dir: Path) -> None:
    given: list[int] = []
    for _ in range(2):
        with CatalogueBroker([log_dir]) as broker, broker.connect() as client:
            for _ in range(1100):
                given.append(client.ask(INIT, 5, {"transactional_id": None, "transaction_timeout": 1}).producer_id)
    assert len(set(given)) == 2200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"producer_id": 5}, 42),
        ({"producer_epoch": 5}, 42),
        ({"transactional_id": ""}, 42),
    ],
)
def test_producers_that_get_no_id(client: RawClient, body: dict[str, Any], error: int) -> None:
    answer = client.ask(INIT, 5, {"transactional_id": None, "transaction_timeout": 1000, **body})
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)
