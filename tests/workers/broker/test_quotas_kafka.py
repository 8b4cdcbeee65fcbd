"""Quotas set, asked for and exceeded, at Kafka 4.4.0 and here: the same answers, texts included."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.broker import Broker
from tests.workers.broker.batches import FETCH, PRODUCE, batch, fetch_body, produce_body
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.hearing import heard
from tests.workers.broker.quota_requests import ALTER, DESCRIBE, alter_body, describe_body

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

USER, CLIENT, IP = "user", "client-id", "ip"
CREATE, GROW, DELETE = 19, 37, 20


class Pair:
    """A connection to each; what both answer has to be the same."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.clients = [RawClient(port) for port in ports]

    def ask(self, api: int, version: int, body: dict[str, Any]) -> list[Any]:
        return [client.ask(api, version, body) for client in self.clients]

    def same(self, api: int, version: int, body: dict[str, Any]) -> Any:
        kafka, ours = (_plain(answer) for answer in self.ask(api, version, body))
        assert ours == kafka, f"API {api} v{version} {body}\nKafka {kafka}\ncompactd {ours}"
        return ours

    def throttled(self, api: int, version: int, body: dict[str, Any], client_id: str) -> tuple[list[int], list[Any]]:
        """The throttle times of a request on new connections, and the answers."""
        answers = []
        for port in self.ports:
            with RawClient(port) as client:
                client.send(api, version, body, client_id)
                answers.append(client.receive(api, version))
        return [round(answer.throttle_time.total_seconds() * 1000) for answer in answers], answers

    def settle(self) -> None:
        """Until both act on what was changed."""
        for client in self.clients:
            heard(client)
        time.sleep(0.3)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in ("throttle_time", "topic_id", "configs")
        }
    if isinstance(value, tuple):
        return sorted((_plain(each) for each in value), key=repr)
    return int(value) if isinstance(value, int) else value


@pytest.fixture
def pair(oracle_classpath: str, tmp_path: Path) -> Iterator[Pair]:
    dirs = [tmp_path / "kafka", tmp_path / "ours"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, tmp_path, [dirs[0]])
    kafka.format()
    with kafka, CatalogueBroker([dirs[1]]) as ours:
        both = Pair([int(kafka.bootstrap.split(":")[1]), ours.port])
        yield both
        for client in both.clients:
            client.close()


def what_is_refused(pair: Pair) -> None:
    ok = {"producer_byte_rate": 1024.0}
    long = 2.0**63
    for entity, values in (
        ({}, ok),
        ({"who": "x"}, ok),
        ({USER: ""}, ok),
        ({CLIENT: ""}, ok),
        ({IP: ""}, {"connection_creation_rate": 1.0}),
        ({IP: "1.2.3.4", USER: "x"}, ok),
        ({IP: "not an address"}, {"connection_creation_rate": 1.0}),
        ({IP: "1.2.3.4"}, ok),
        ({IP: "1.2.3.4"}, {"connection_creation_rate": 0.5}),
        ({IP: "1.2.3.4"}, {"connection_creation_rate": 2.0**31}),
        ({USER: "x"}, {"connection_creation_rate": 1.0}),
        ({USER: "x"}, {"no_such_rate": 1.0}),
        ({USER: "x"}, {"producer_byte_rate": 0.0}),
        ({USER: "x"}, {"producer_byte_rate": -1.0}),
        ({USER: "x"}, {"producer_byte_rate": 1.5}),
        ({USER: "x"}, {"producer_byte_rate": long * 2}),
        ({USER: "x"}, {"request_percentage": 0.0}),
        ({USER: "x"}, {"consumer_byte_rate": 1.0000001}),
        ({USER: "x"}, {"no_such_rate": None}),
        ({USER: "x"}, {"producer_byte_rate": None}),
    ):
        for version in (0, 1):
            pair.same(ALTER, version, alter_body((entity, values), validate_only=True))


def entities_and_keys_that_are_named_twice(pair: Pair) -> None:
    one = {USER: "twice"}
    pair.same(ALTER, 1, alter_body((one, {"producer_byte_rate": 5.0}), (one, {"consumer_byte_rate": 6.0})))
    body = alter_body((one, {"request_percentage": 5.0}))
    body["entries"][0]["ops"] *= 2
    pair.same(ALTER, 1, body)
    body = alter_body(({USER: "first"}, {"request_percentage": 5.0}))
    body["entries"][0]["entity"].append({"entity_type": USER, "entity_name": "last"})
    pair.same(ALTER, 1, body)
    pair.settle()
    found = pair.same(DESCRIBE, 1, describe_body((USER, 2, None)))
    assert len(found["entries"]) == 2
    gone = ({USER: name} for name in ("twice", "last"))
    pair.same(
        ALTER, 1, alter_body(*((each, {"producer_byte_rate": None, "request_percentage": None}) for each in gone))
    )


def what_is_found(pair: Pair) -> None:
    quotas = [
        ({USER: "a"}, {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}),
        ({USER: "a", CLIENT: "c"}, {"request_percentage": 12.5}),
        ({USER: "a", CLIENT: None}, {"request_percentage": 200.0}),
        ({USER: None}, {"controller_mutation_rate": 1e9}),
        ({USER: None, CLIENT: None}, {"request_percentage": 1e9}),
        ({CLIENT: "c"}, {"producer_byte_rate": 3e9}),
        ({CLIENT: None}, {"consumer_byte_rate": 4e9}),
        ({IP: "10.0.0.1"}, {"connection_creation_rate": 7.0}),
        ({IP: None}, {"connection_creation_rate": 1e6}),
    ]
    pair.same(ALTER, 1, alter_body(*quotas))
    pair.settle()
    filters = [
        (),
        ((USER, 0, "a"),), ((USER, 1, None),), ((USER, 2, None),), ((CLIENT, 0, "c"),), ((CLIENT, 1, None),),
        ((CLIENT, 2, None),), ((USER, 0, "a"), (CLIENT, 0, "c")), ((USER, 0, "a"), (CLIENT, 1, None)),
        ((USER, 2, None), (CLIENT, 2, None)), ((USER, 1, None), (CLIENT, 1, None)), ((IP, 0, "10.0.0.1"),),
        ((IP, 1, None),), ((IP, 2, None),), ((USER, 0, "nobody"),),
        # Refused.
        ((USER, 0, None),), ((USER, 1, "a"),), ((USER, 2, "a"),), ((USER, 3, None),), (("", 0, "a"),),
        (("who", 0, "a"),), ((USER, 0, "a"), (USER, 1, None)), ((USER, 0, "a"), (IP, 0, "10.0.0.1")),
        ((IP, 2, None), (CLIENT, 1, None)),
    ]  # fmt: skip
    for components in filters:
        for strict in (False, True):
            for version in (0, 1):
                pair.same(DESCRIBE, version, describe_body(*components, strict=strict))
    pair.same(ALTER, 1, alter_body(*((entity, dict.fromkeys(values)) for entity, values in quotas)))
    pair.settle()
    assert pair.same(DESCRIBE, 1, describe_body())["entries"] == []


def _alike(found: list[int], least: int) -> None:
    """Both told about the same: the windows of both began with the first request, some milliseconds apart."""
    kafka, ours = found
    assert kafka >= least, f"Kafka told {kafka} ms"
    assert abs(kafka - ours) <= max(1000, kafka // 5), f"Kafka told {kafka} ms, compactd {ours}"


def bytes_produced_and_fetched(pair: Pair) -> None:
    rows = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
    pair.same(CREATE, 7, {"topics": rows, "timeout": 10_000})
    pair.same(ALTER, 1, alter_body(({CLIENT: "quick"}, {"producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0})))
    pair.settle()
    records = batch([b"x" * 4000])
    for number in range(4):
        found, answers = pair.throttled(PRODUCE, 9, produce_body(records), "quick")
        assert {int(answer.responses[0].partition_responses[0].error_code) for answer in answers} == {0}
        if number > 1:
            _alike(found, 1000)
        else:
            assert found == [0, 0]
    found, answers = pair.throttled(FETCH, 11, fetch_body(0, partition_max_bytes=5000), "quick")
    assert found == [0, 0]
    assert min(len(answer.responses[0].partitions[0].records) for answer in answers) >= len(records)
    # Ten windows have room for 10,000 bytes: more than that is not even read, and what was given before counts.
    found, answers = pair.throttled(FETCH, 11, fetch_body(0), "quick")
    _alike(found, 4000)
    assert [len(answer.responses) for answer in answers] == [0, 0]
    # Of other clients nothing is asked.
    assert pair.throttled(PRODUCE, 9, produce_body(records), "other")[0] == [0, 0]
    pair.same(ALTER, 1, alter_body(({CLIENT: "quick"}, dict.fromkeys(("producer_byte_rate", "consumer_byte_rate")))))


def partitions_made_and_deleted(pair: Pair) -> None:
    pair.same(ALTER, 1, alter_body(({USER: None, CLIENT: "maker"}, {"controller_mutation_rate": 0.1})))
    pair.settle()

    def asked(api: int, version: int, body: dict[str, Any], refused: bool, least: int) -> None:
        found, answers = pair.throttled(api, version, body, "maker")
        kafka, ours = (_plain(answer) for answer in answers)
        assert ours == kafka
        assert (89 in [row["error_code"] for row in next(iter(ours.values()))]) is refused
        if least:
            _alike(found, least)
        else:
            assert found == [0, 0]

    def named(name: str, partitions: int) -> dict[str, Any]:
        rows = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
        return {"topics": rows, "timeout": 10_000, "validate_only": False}

    # 11 windows of one second at 0.1 a second: 1.1 permits to begin with, and none again before this is over.
    asked(CREATE, 7, named("m1", 1), False, 0)
    asked(CREATE, 7, named("m2", 5), False, 0)
    asked(CREATE, 7, named("m3", 1), True, 25_000)
    asked(CREATE, 5, named("m4", 1), False, 35_000)  # an old client is only told to keep still
    asked(GROW, 3, {"topics": [{"name": "m1", "count": 2, "assignments": None}], "timeout": 10_000}, True, 25_000)
    asked(GROW, 2, {"topics": [{"name": "m1", "count": 2, "assignments": None}], "timeout": 10_000}, False, 35_000)
    asked(DELETE, 5, {"topic_names": ["m2"], "timeout": 10_000}, True, 25_000)
    asked(DELETE, 4, {"topic_names": ["m2"], "timeout": 10_000}, False, 35_000)
    both = {"topics": [*named("m5", 1)["topics"], *named("m6", 1)["topics"]], "timeout": 10_000}
    asked(CREATE, 6, both, True, 35_000)
    pair.same(ALTER, 1, alter_body(({USER: None, CLIENT: "maker"}, {"controller_mutation_rate": None})))


def test_both_answer_alike(pair: Pair) -> None:
    for part in (
        what_is_refused,
        entities_and_keys_that_are_named_twice,
        what_is_found,
        bytes_produced_and_fetched,
        partitions_made_and_deleted,
    ):
        part(pair)
