"""The same requests to Kafka 4.4.0 and to this broker, the answers compared field by field.

What may differ is taken out by name in `_comparable`: ports, and what the two word in their own way. Everything else has
to be equal: error codes, offsets, what is null and what is empty.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.names import parse_uuid
from tests.oracle.broker import Broker
from tests.workers.broker.batches import FETCH, LIST_OFFSETS, PRODUCE, batch, fetch_body, produce_body
from tests.workers.broker.harness import InProcessBroker, RawClient

pytestmark = pytest.mark.kafka

METADATA, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 3, 21, 23, 60, 75
CREATE_TOPICS = 19
_TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (2, {}),
    "keyed": (1, {"cleanup.policy": "compact"}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
}
#: Fields whose values are each broker's own.
_OWN = frozenset({"port", "error_message", "batch_index_error_message", "log_append_time", "throttle_time"})


#: A request, or what makes one of the topics' ids.
Body = Mapping[str, Any] | Callable[[Mapping[str, uuid.UUID]], Mapping[str, Any]]


class Pair:
    """A connection to each."""

    def __init__(self, kafka: Broker, ours: InProcessBroker) -> None:
        self.clients = [RawClient(int(kafka.bootstrap.split(":")[1])), RawClient(ours.port)]
        self.ids: list[dict[str, uuid.UUID]] = []

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def ask(
        self,
        api_key: int,
        version: int,
        body: Callable[[Mapping[str, uuid.UUID]], Mapping[str, Any]] | Mapping[str, Any],
    ) -> list[Any]:
        """Both answers, made comparable. `body` may ask for the topics' ids."""
        answers = []
        for client, ids in zip(self.clients, self.ids, strict=True):
            given = body(ids) if callable(body) else body
            names = {topic_id: name for name, topic_id in ids.items()}
            answers.append(_comparable(client.ask(api_key, version, given), names))
        return answers

    def same(self, api_key: int, version: int, body: Body) -> Any:
        """Asserts that both answer alike; returns the answer."""
        kafka, ours = self.ask(api_key, version, body)
        assert ours == kafka
        return ours


def _comparable(value: Any, names: Mapping[uuid.UUID, str]) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _comparable(getattr(value, field.name), names)
            for field in dataclasses.fields(value)
            if field.name not in _OWN
        }
    if isinstance(value, tuple):
        return [_comparable(each, names) for each in value]
    if isinstance(value, uuid.UUID):
        return names.get(value, "unknown")
    return int(value) if isinstance(value, int) else value


@pytest.fixture(scope="module")
def pair(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("against-kafka")
    dirs = [home / "kafka", home / "ours"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, home, [dirs[0]])
    kafka.format()
    with kafka, InProcessBroker([dirs[1]], {"auto.create.topics.enable": "false"}) as ours:
        both = Pair(kafka, ours)
        try:
            _make_topics(both, ours)
            _write(both)
            yield both
        finally:
            both.close()


def _make_topics(both: Pair, ours: InProcessBroker) -> None:
    topics = [
        {
            "name": name,
            "num_partitions": count,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, (count, configs) in _TOPICS.items()
    ]
    made = both.clients[0].ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000})
    assert [int(topic.error_code) for topic in made.topics] == [0] * len(topics)
    for name, (count, configs) in _TOPICS.items():
        ours.create(name, count, **{key.replace(".", "_"): value for key, value in configs.items()})
    both.ids = [
        {topic.name: topic.topic_id for topic in made.topics},
        {name: parse_uuid(topic.topic_id) for name, topic in ours.topics.items()},
    ]
    deadline = time.monotonic() + 60
    # Kafka tells its metadata before the partitions have taken the lead: ask them.
    rows = [
        {"name": name, "partitions": [{"partition_index": number, "timestamp": -1} for number in range(count)]}
        for name, (count, _) in _TOPICS.items()
    ]
    while any(
        each["error_code"] != 0
        for topic in both.ask(LIST_OFFSETS, 1, {"replica_id": -1, "topics": rows})[0]["topics"]
        for each in topic["partitions"]
    ):
        assert time.monotonic() < deadline, "Kafka's partitions have no leader"
        time.sleep(0.1)
    while any(  # Kafka's metadata follow a little later
        each.leader_id != 1
        for topic in both.clients[0].ask(METADATA, 9, {"topics": [{"name": name} for name in _TOPICS]}).topics
        for each in topic.partitions
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


_NOW = int(time.time() * 1000)


def _write(both: Pair) -> None:
    for number in range(5):
        data = batch([b"a%d" % number, b"b%d" % number], timestamp=_NOW + 10 * number)
        both.same(PRODUCE, 9, produce_body(data, "plain"))
    for topic in ("keyed", "stamped"):
        both.same(PRODUCE, 9, produce_body(batch([b"v"], timestamp=_NOW), topic))
    idempotent = batch([b"x"], producer_id=70, producer_epoch=3, base_sequence=0, timestamp=_NOW + 100)
    both.same(PRODUCE, 9, produce_body(idempotent, "plain"))


def _by_id(name: str, make: Callable[[uuid.UUID | None], Mapping[str, Any]]) -> Body:
    return lambda ids: make(ids[name])


# ---- Produce

_GOOD = batch([b"v", b"w"], timestamp=_NOW)


def _spoiled(at: int, value: bytes) -> bytes:
    return _GOOD[:at] + value + _GOOD[at + len(value) :]


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 11, 12])
@pytest.mark.parametrize(
    "body",
    [
        produce_body(b"", "plain"),
        produce_body(_GOOD[:40], "plain"),
        produce_body(_GOOD + _GOOD, "plain"),
        produce_body(_spoiled(16, b"\x01"), "plain"),
        produce_body(_spoiled(17, b"\0\0\0\0"), "plain"),
        produce_body(_spoiled(7, b"\x01"), "plain"),
        produce_body(_spoiled(70, b"\xff"), "plain"),
        produce_body(batch([b"x" * 1_048_600], timestamp=_NOW), "plain"),
        produce_body(batch([b"v"], timestamp=_NOW + 400_000_000), "plain"),
        produce_body(batch([b"v"], timestamp=_NOW, control=True), "plain"),
        produce_body(batch([b"v"], timestamp=_NOW, producer_id=9, producer_epoch=0, base_sequence=-1), "plain"),
        produce_body(batch([b"x"], timestamp=_NOW + 100, producer_id=70, producer_epoch=3, base_sequence=0), "plain"),
        produce_body(batch([b"x"], timestamp=_NOW, producer_id=70, producer_epoch=2, base_sequence=0), "plain"),
        produce_body(batch([b"x"], timestamp=_NOW, producer_id=70, producer_epoch=3, base_sequence=7), "plain"),
        produce_body(batch([b"v", b"w"], keys=[b"k", None], timestamp=_NOW), "keyed"),
        produce_body(batch([b"v"], timestamp=_NOW, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0), "plain"),
        produce_body(_GOOD, "plain", acks=5),
        produce_body(_GOOD, "nowhere"),
        produce_body(_GOOD, "plain", partition=9),
        {"acks": 1, "topic_data": []},
    ],
    ids=[
        "empty", "part", "two batches", "magic", "crc", "base offset", "content", "too large", "future", "control",
        "sequence -1", "duplicate", "old epoch", "gap in sequence", "keyless", "transactional", "acks", "no topic",
        "no partition", "nothing",
    ],
)  # fmt: skip
def test_produce(pair: Pair, version: int, body: Mapping[str, Any]) -> None:
    pair.same(PRODUCE, version, body)


@pytest.mark.parametrize("version", [3, 7, 9, 12])
def test_produce_appends(pair: Pair, version: int) -> None:
    pair.same(PRODUCE, version, produce_body(batch([b"v"], timestamp=_NOW), "keyed"))
    pair.same(PRODUCE, version, produce_body(batch([b"v"], timestamp=_NOW), "stamped"))


def test_produce_by_id(pair: Pair) -> None:
    pair.same(
        PRODUCE, 13, _by_id("keyed", lambda topic_id: produce_body(batch([b"v"], timestamp=_NOW), topic_id=topic_id))
    )
    pair.same(PRODUCE, 13, produce_body(_GOOD, topic_id=uuid.UUID(int=5)))
    pair.same(PRODUCE, 13, produce_body(_GOOD, topic_id=None))


# ---- Fetch


@pytest.mark.parametrize("version", range(4, 13))
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"offset": 3},
        {"offset": 11},
        {"offset": 12},
        {"offset": -1},
        {"partition": 1},
        {"partition": 9},
        {"topic": "nowhere"},
        {"committed": True},
        {"committed": True, "offset": 11},
        {"max_bytes": 0},
        {"partition_max_bytes": 1},
        {"current_leader_epoch": 0},
        {"current_leader_epoch": 3},
        {"last_fetched_epoch": 0},
        {"last_fetched_epoch": 3},
    ],
    ids=str,
)
def test_fetch(pair: Pair, version: int, more: Mapping[str, Any]) -> None:
    pair.same(FETCH, version, fetch_body(**{"topic": "plain", **more}))


@pytest.mark.parametrize("version", range(13, 19))
def test_fetch_by_id(pair: Pair, version: int) -> None:
    def body(topic_id: uuid.UUID | None) -> dict[str, Any]:
        made = fetch_body(topic_id=topic_id)
        if version >= 15:
            del made["replica_id"]
        return made

    pair.same(FETCH, version, _by_id("plain", body))
    pair.same(FETCH, version, body(uuid.UUID(int=5)))
    pair.same(FETCH, version, body(None))


def test_fetch_sessions(pair: Pair) -> None:
    ids: list[int] = []
    for client in pair.clients:
        begun = client.ask(FETCH, 12, fetch_body(topic="plain", session_id=0, session_epoch=0))
        assert begun.session_id > 0
        ids.append(begun.session_id)
    steps: list[tuple[int, list[Any]]] = [
        (1, []),
        (2, fetch_body(4, "plain")["topics"]),
        (3, fetch_body(11, "plain")["topics"]),
        (4, fetch_body(topic="nowhere")["topics"]),
        (5, []),
        (9, []),
        (6, []),
    ]
    told: list[list[Any]] = [[], []]
    for client, session, answers in zip(pair.clients, ids, told, strict=True):
        for epoch, topics in steps:
            answer = client.ask(FETCH, 12, {**fetch_body(session_id=session, session_epoch=epoch), "topics": topics})
            answers.append({**_comparable(answer, {}), "session_id": answer.session_id == session})
    assert told[1] == told[0]
    pair.same(FETCH, 12, fetch_body(topic="plain", session_id=5, session_epoch=7))


@pytest.mark.parametrize("topics", [("nowhere", "plain", "no", "keyed"), ("plain", "nowhere", "keyed")])
def test_what_is_not_there_is_told_last(pair: Pair, topics: tuple[str, ...]) -> None:
    asked = [fetch_body(topic=name)["topics"][0] for name in topics]
    pair.same(FETCH, 12, {**fetch_body(), "topics": asked})
    told: list[list[Any]] = [[], []]
    for client, answers in zip(pair.clients, told, strict=True):
        session = 0
        for epoch in range(4):
            more = {**fetch_body(session_id=session, session_epoch=epoch), "topics": asked if epoch == 0 else []}
            answer = client.ask(FETCH, 12, more)
            session = answer.session_id
            answers.append({**_comparable(answer, {}), "session_id": bool(session)})
    assert told[1] == told[0]


def test_ids_that_nobody_knows_are_told_before_partitions_that_are_not_there(pair: Pair) -> None:
    def body(ids: Mapping[str, uuid.UUID]) -> dict[str, Any]:
        rows = [(ids["plain"], 9), (uuid.UUID(int=7), 0), (ids["keyed"], 0), (ids["plain"], 0), (uuid.UUID(int=8), 0)]
        asked = [fetch_body(topic_id=each, partition=number)["topics"][0] for each, number in rows]
        return {**fetch_body(topic_id=uuid.UUID(int=1)), "topics": asked}

    pair.same(FETCH, 13, body)


# ---- offsets


def _name_of_time(timestamp: int) -> str:
    """The same in every process that collects the tests."""
    return str(timestamp) if timestamp <= 0 else f"now+{timestamp - _NOW}"


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("timestamp", [*range(-1, -8, -1), 0, _NOW + 5, _NOW + 40, _NOW + 99999], ids=_name_of_time)
def test_list_offsets(pair: Pair, version: int, timestamp: int) -> None:
    rows = [{"partition_index": number, "timestamp": timestamp} for number in (0, 1, 7)]
    answers = pair.ask(LIST_OFFSETS, version, {"replica_id": -1, "topics": [{"name": "plain", "partitions": rows}]})
    for answer in answers:  # Kafka lists them as a hash map does
        answer["topics"][0]["partitions"].sort(key=lambda partition: partition["partition_index"])
    assert answers[1] == answers[0]


def test_list_offsets_of_odd_requests(pair: Pair) -> None:
    row = {"partition_index": 0, "timestamp": -1}
    for rows in ([row, row], [{**row, "current_leader_epoch": 0}], [{**row, "current_leader_epoch": 9}]):
        pair.same(LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": "plain", "partitions": rows}]})
    pair.same(
        LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 1, "topics": [{"name": "plain", "partitions": [row]}]}
    )
    pair.same(LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": "nowhere", "partitions": [row]}]})


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offsets_of_leader_epochs(pair: Pair, version: int) -> None:
    for number in (0, 1, 9):
        for epoch in (-1, 0, 1):
            for current in (-1, 0, 5):
                row = {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current}
                pair.same(
                    OFFSET_FOR_LEADER_EPOCH,
                    version,
                    {"replica_id": -1, "topics": [{"topic": "plain", "partitions": [row]}]},
                )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records(pair: Pair, version: int) -> None:
    cases = [
        ("keyed", 0, 0), ("stamped", 0, 99), ("stamped", 0, -5), ("stamped", 0, 0), ("nowhere", 0, 0), ("stamped", 4, 0),
        ("stamped", 0, version),
    ]  # fmt: skip
    for topic, number, offset in cases:
        rows = [{"partition_index": number, "offset": offset}]
        pair.same(DELETE_RECORDS, version, {"topics": [{"name": topic, "partitions": rows}], "timeout": 10_000})


# ---- metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata(pair: Pair, version: int) -> None:
    named = [{"name": "plain"}, {"name": "nowhere"}, {"name": "bad name"}]
    options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    answers = pair.ask(METADATA, version, {"topics": named, **options})
    for answer in answers:
        answer["topics"].sort(key=lambda topic: topic["name"])
    assert answers[1] == answers[0]
    if version:
        pair.same(METADATA, version, {"topics": [], **options, "include_cluster_authorized_operations": True})
    if version >= 12:
        pair.same(
            METADATA, version, _by_id("keyed", lambda topic_id: {"topics": [{"name": None, "topic_id": topic_id}]})
        )
        pair.same(METADATA, version, {"topics": [{"name": None, "topic_id": uuid.UUID(int=5)}]})
    if 10 <= version <= 11:
        pair.same(METADATA, version, {"topics": [{"name": "plain", "topic_id": uuid.UUID(int=5)}]})


def test_describe_topic_partitions(pair: Pair) -> None:
    names = [{"name": "plain"}, {"name": "nowhere"}, {"name": "bad name"}, {"name": "keyed"}]
    for more in (
        {},
        {"response_partition_limit": 1},
        {"response_partition_limit": 2, "cursor": {"topic_name": "keyed", "partition_index": 0}},
        {"cursor": {"topic_name": "plain", "partition_index": 1}},
        {"cursor": {"topic_name": "other", "partition_index": 0}},
        {"cursor": {"topic_name": "plain", "partition_index": -1}},
    ):
        pair.same(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": names, "response_partition_limit": 2000, **more})


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(pair: Pair, version: int) -> None:
    for operations in (True, False):
        pair.same(DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": operations})
    if version:
        for endpoint in (2, 3):
            pair.same(DESCRIBE_CLUSTER, version, {"endpoint_type": endpoint})


def test_the_log_on_disk_is_kafkas(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Batches of the same requests, byte by byte."""
    homes = sorted(tmp_path_factory.getbasetemp().glob("against-kafka*"))
    logs = [(homes[-1] / name / "plain-0" / f"{0:020d}.log").read_bytes() for name in ("kafka", "ours")]
    assert logs[0] == logs[1]
    assert isinstance(homes[-1], Path)
