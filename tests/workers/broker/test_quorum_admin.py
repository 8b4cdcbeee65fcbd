"""Reassignments, elections, the quorum, features and log dirs: the same questions to Kafka 4.4.0 and to this broker.

Answers are compared whole, texts included, but for what `_comparable` takes out: offsets, times and ports, which are each
node's own, and the order in which Kafka's hash maps list topics, partitions and dirs.
"""

from __future__ import annotations

import dataclasses
import enum
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.broker import Broker
from tests.workers.broker.batches import batch, produce
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

pytestmark = pytest.mark.kafka

API_VERSIONS, CREATE_TOPICS, ALTER_DIRS, DESCRIBE_DIRS, ELECT, ALTER_CONFIGS = 18, 19, 34, 35, 43, 44
REASSIGN, LIST_REASSIGNMENTS, QUORUM, FEATURES = 45, 46, 55, 57
_OWN = frozenset(
    {"throttle_time", "high_watermark", "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp",
     "total_bytes", "usable_bytes", "leader_epoch", "host", "port"}
)  # fmt: skip
_SECONDS = 60.0
_NOW = int(time.time() * 1000)


class Side:
    """One of the two, and its log dirs."""

    def __init__(self, port: int, dirs: Sequence[Path]) -> None:
        self.client = RawClient(port)
        self.dirs = {str(path): f"<{path.name}>" for path in dirs}

    def ask(self, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        return self._comparable(self.client.ask(api_key, version, self._with_paths(body)))

    def _with_paths(self, value: Any) -> Any:
        """`<d1>` stands for the path of that log dir."""
        if isinstance(value, Mapping):
            return {key: self._with_paths(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._with_paths(each) for each in value]
        if isinstance(value, str):
            for path, name in self.dirs.items():
                value = value.replace(name, path)
        return value

    def _comparable(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: self._comparable(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if field.name not in _OWN
            }
        if isinstance(value, tuple):
            return sorted((self._comparable(each) for each in value), key=repr)
        if isinstance(value, enum.Enum):
            return int(value.value)
        if isinstance(value, uuid.UUID):
            return "an id"
        if isinstance(value, str):
            for path, name in self.dirs.items():
                value = value.replace(path, name)
        return value


class Both:
    """Kafka and this broker."""

    def __init__(self, kafka: Side, ours: Side) -> None:
        self.kafka, self.ours = kafka, ours

    def same(self, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        theirs, mine = (side.ask(api_key, version, body) for side in (self.kafka, self.ours))
        assert mine == theirs, f"API {api_key} v{version} {body}"
        return mine

    def until_same(self, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        """Kafka's brokers hear of a change a little later."""
        end = time.monotonic() + _SECONDS
        while (theirs := self.kafka.ask(api_key, version, body)) != (mine := self.ours.ask(api_key, version, body)):
            assert time.monotonic() < end, f"API {api_key} v{version} {body}: Kafka {theirs}, ours {mine}"
            time.sleep(0.05)
        return mine


def _make(side: Side, *topics: tuple[str, int]) -> None:
    rows = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
    made = side.client.ask(CREATE_TOPICS, 7, {"topics": rows, "timeout": 10_000}).topics
    assert {int(each.error_code) for each in made} == {0}, made


@pytest.fixture(scope="module")
def both(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    home = tmp_path_factory.mktemp("quorum-admin")
    dirs = [[home / side / name for name in ("d1", "d2", "d3")] for side in ("kafka", "ours")]
    for each in (*dirs[0], *dirs[1]):
        each.mkdir(parents=True)
    kafka = Broker(oracle_classpath, home / "home", dirs[0], {"cordoned.log.dirs": str(dirs[0][2])})
    kafka.format()
    settings = {"cleaner.free.space.margin": 0, "cordoned.log.dirs": str(dirs[1][2])}
    with kafka, CatalogueBroker(dirs[1], settings) as ours:
        sides = Both(Side(int(kafka.bootstrap.split(":")[1]), dirs[0]), Side(ours.port, dirs[1]))
        try:
            for side in (sides.kafka, sides.ours):
                _make(side, ("t", 3), ("u", 1))
                for topic, number in (("t", 0), ("t", 1), ("t", 2), ("u", 0)):
                    end = time.monotonic() + _SECONDS
                    while produce(side.client, batch([b"v" * 100] * 20, timestamp=_NOW), topic, number).error_code:
                        assert time.monotonic() < end
                        time.sleep(0.05)
            yield sides
        finally:
            sides.kafka.client.close()
            sides.ours.client.close()


# ---- reassignments and elections


def _wanted(name: str, *partitions: tuple[int, list[int] | None]) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": each, "replicas": ids} for each, ids in partitions]}


_REASSIGNMENTS: list[list[dict[str, Any]]] = [
    [],
    [_wanted("t", (0, [1]))],
    [_wanted("t", (0, [1]), (1, None), (2, [2]), (7, [1]))],
    [_wanted("none", (0, [1]), (1, None))],
    [_wanted("t", (0, []))],
    [_wanted("t", (0, [1, 1]))],
    [_wanted("t", (0, [1, 2])), _wanted("t", (1, [2, 2]))],
    [_wanted("t", (0, [-1]))],
    [_wanted("t", (0, [1]), (0, None))],
    [_wanted("", (0, [1]))],
    [_wanted("__cluster_metadata", (0, [1]))],
    [_wanted("t")],
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("topics", _REASSIGNMENTS, ids=str)
def test_reassignments(both: Both, version: int, topics: list[dict[str, Any]]) -> None:
    body = {"topics": topics, "timeout": 10_000}
    both.same(REASSIGN, version, body)
    if version:
        both.same(REASSIGN, version, {**body, "allow_replication_factor_change": False})


@pytest.mark.parametrize(
    "topics", [None, [], [{"name": "t", "partition_indexes": [0, 9]}], [{"name": "none"}]], ids=str
)
def test_list_of_reassignments(both: Both, topics: Any) -> None:
    both.same(LIST_REASSIGNMENTS, 0, {"topics": topics, "timeout": 10_000})


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("kind", [0, 1, 5])
@pytest.mark.parametrize(
    "topics",
    [
        None,
        [],
        [{"topic": "t", "partitions": [0, 1, 9, 0]}],
        [{"topic": "none", "partitions": [0]}, {"topic": "", "partitions": [0]}],
        [{"topic": "t", "partitions": []}],
        [{"topic": "t", "partitions": [0]}, {"topic": "t", "partitions": [1]}],
    ],
    ids=str,
)
def test_elections(both: Both, version: int, kind: int, topics: Any) -> None:
    both.same(ELECT, version, {"election_type": kind, "topic_partitions": topics, "timeout": 10_000})


# ---- the quorum


def _partitions(name: str, *numbers: int) -> dict[str, Any]:
    return {"topic_name": name, "partitions": [{"partition_index": number} for number in numbers]}


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [_partitions("t", 0)],
        [_partitions("__cluster_metadata", 1)],
        [_partitions("__cluster_metadata")],
        [_partitions("__cluster_metadata", 0, 1)],
        [_partitions("__cluster_metadata", 0), _partitions("t", 0)],
    ],
    ids=str,
)
def test_quorum_of_others(both: Both, version: int, topics: Any) -> None:
    both.same(QUORUM, version, {"topics": topics})


@pytest.mark.parametrize("version", [0, 1, 2])
def test_quorum(both: Both, version: int) -> None:
    body = {"topics": [_partitions("__cluster_metadata", 0)]}
    theirs, mine = both.kafka.ask(QUORUM, version, body), both.ours.ask(QUORUM, version, body)
    if version == 2:
        # Kafka names its controller's listener; here there is none, and the client's own is named.
        assert [each["node_id"] for each in mine["nodes"]] == [each["node_id"] for each in theirs["nodes"]] == [1]
        assert mine.pop("nodes")[0]["listeners"] == [{"name": "PLAINTEXT"}] and theirs.pop("nodes")
    assert mine == theirs
    found = both.ours.client.ask(QUORUM, version, body).topics[0].partitions[0]
    assert found.high_watermark == found.current_voters[0].log_end_offset > 0 and found.leader_epoch == 1
    again = both.ours.client.ask(QUORUM, version, body).topics[0].partitions[0]
    assert again.high_watermark == found.high_watermark


# ---- features

_Update = tuple[str, int, int]


def _features(*updates: _Update, validate_only: bool = True) -> dict[str, Any]:
    rows = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > 1}
        for name, level, kind in updates
    ]
    return {"feature_updates": rows, "timeout": 10_000, "validate_only": validate_only}


_ELR, _MV = "eligible.leader.replicas.version", "metadata.version"
_UPDATES: list[list[_Update]] = [
    *([(name, level, kind)] for name in ("group.version", "transaction.version", _ELR) for level in (0, 1, 2, 3, -1)
      for kind in (1, 2, 3)),
    *([("share.version", level, 2)] for level in (0, 1, 2, 3)),
    *([("streams.version", level, 2)] for level in (0, 1, 2)),
    *([(_MV, level, kind)] for level in (33, 34, 32, 30, 29, 22, 16, 7, 6, 0) for kind in (1, 2, 3)),
    *([("nosuch", level, kind)] for level in (-1, 0, 1) for kind in (1, 2)),
    [("kraft.version", 1, 1)], [("kraft.version", 0, 1)], [("kraft.version", 0, 2)], [("kraft.version", 2, 1)],
    [("kraft.version", -1, 1)],
    [("group.version", 1, 0)], [("group.version", 1, 4)], [("group.version", -1, 9)],
    [("group.version", 1, 1), ("nosuch", 1, 1)],
    [("group.version", 0, 2), ("transaction.version", 0, 2)],
    [("group.version", 0, 2), ("group.version", 1, 1)],
    [(_MV, 20, 2), (_ELR, 0, 2)],
    [],
]  # fmt: skip


@pytest.mark.parametrize("updates", _UPDATES, ids=str)
def test_features_that_are_only_validated(both: Both, updates: list[_Update]) -> None:
    for version in (1, 2):
        both.same(FEATURES, version, _features(*updates))


def test_features_of_an_old_client(both: Both) -> None:
    for update in (("group.version", 1, 1), ("nosuch", 1, 1), ("group.version", 3, 1), ("group.version", 0, 1)):
        both.same(FEATURES, 0, _features(update))


def _levels(side: Side) -> dict[str, int]:
    """Finalized, but for those that this broker does not tell because it does not serve them."""
    answer = side.client.ask(API_VERSIONS, 4, {"client_software_name": "test", "client_software_version": "1"})
    found = {each.name: each.max_version_level for each in answer.finalized_features}
    return {name: level for name, level in found.items() if name != "share.version"}


def test_features_that_change(both: Both) -> None:
    """Down and up again; what clients are told follows."""
    for update in (
        ("transaction.version", 1, 2), ("transaction.version", 0, 2), ("transaction.version", 2, 1),
        ("group.version", 0, 3), ("group.version", 0, 2), ("group.version", 1, 1), (_ELR, 0, 2), (_ELR, 1, 1),
        ("share.version", 1, 2), ("share.version", 2, 1), (_MV, 33, 1), (_MV, 32, 2), ("nosuch", 1, 1),
    ):  # fmt: skip
        both.same(FEATURES, 1, _features(update, validate_only=False))
        end = time.monotonic() + _SECONDS
        while _levels(both.kafka) != _levels(both.ours):
            assert time.monotonic() < end, f"{update}: {_levels(both.kafka)} {_levels(both.ours)}"
            time.sleep(0.02)
        name, level, _ = update
        if name in (*_levels(both.ours), "group.version"):
            assert _levels(both.ours).get(name, 0) == (33 if name == _MV else level)


# ---- log dirs


def _to(path: str, topic: str = "t", *partitions: int) -> dict[str, Any]:
    return {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": list(partitions or (0,))}]}]}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "body",
    [
        _to("<d3>"), _to("<d3>", "none"), _to("/nowhere"), _to("/nowhere", "none"), _to("d1"), _to(""), _to("<d1>/"),
        _to("<d2>", "none"), _to("<d2>", "t", 9), _to("<d2>", "x" * 249), _to("/nowhere", "x" * 249), _to("<d2>", ""),
        _to("<d2>", "bad name"), {"dirs": []}, {"dirs": [{"path": "/nowhere", "topics": []}]},
    ],
    ids=str,
)  # fmt: skip
def test_moves_that_are_refused(both: Both, version: int, body: dict[str, Any]) -> None:
    both.same(ALTER_DIRS, version, body)


def test_moves(both: Both) -> None:
    """Everything to one dir, then to the other; wished for before it is there; what is described is the same."""
    for path in ("<d1>", "<d2>", "<d1>"):
        body = {"dirs": [_to(path, "t", 0, 1, 2)["dirs"][0], _to(path, "u")["dirs"][0]]}
        both.same(ALTER_DIRS, 2, {"dirs": [body["dirs"][0]]})
        both.same(ALTER_DIRS, 2, {"dirs": [body["dirs"][1]]})
        end = time.monotonic() + _SECONDS
        while not all(_lies(side, path) for side in (both.kafka, both.ours)):
            assert time.monotonic() < end
            time.sleep(0.05)
        for version in (1, 2, 3, 4, 5):
            both.until_same(DESCRIBE_DIRS, version, {"topics": None})
    # Of one that is named with two dirs the last counts.
    twice = {"dirs": [_to("<d1>", "u")["dirs"][0], _to("<d2>", "u")["dirs"][0]]}
    both.same(ALTER_DIRS, 2, twice)
    both.same(ALTER_DIRS, 2, _to("<d2>", "late", 0, 1, 2))
    for side in (both.kafka, both.ours):
        _make(side, ("late", 4))
    both.until_same(DESCRIBE_DIRS, 4, {"topics": [{"topic": "late", "partitions": [0, 1, 2]}]})
    both.until_same(DESCRIBE_DIRS, 4, {"topics": [{"topic": "u", "partitions": [0]}, {"topic": "t", "partitions": []}]})


def _lies(side: Side, path: str) -> bool:
    """Whether all partitions of both topics are there, and none is on its way."""
    rows = side.ask(
        DESCRIBE_DIRS, 4, {"topics": [{"topic": "t", "partitions": [0, 1, 2]}, {"topic": "u", "partitions": [0]}]}
    )
    found = [
        (result["log_dir"], part["is_future_key"])
        for result in rows["results"]
        for topic in result["topics"]
        for part in topic["partitions"]
    ]
    return found == [(path, False)] * 4


def test_a_dir_that_takes_no_more(both: Both) -> None:
    """Cordoned while partitions lie in it: not even those may be sent there."""
    both.kafka.client.ask(ALTER_CONFIGS, 1, _cordon(both.kafka, "<d1>,<d2>"))
    end = time.monotonic() + _SECONDS
    while both.kafka.ask(ALTER_DIRS, 2, _to("<d1>"))["results"][0]["partitions"][0]["error_code"] != 39:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert both.kafka.ask(ALTER_DIRS, 2, _to("<d2>"))["results"][0]["partitions"][0]["error_code"] == 39
    both.kafka.client.ask(ALTER_CONFIGS, 1, _cordon(both.kafka, "<d3>"))
    while both.kafka.ask(ALTER_DIRS, 2, _to("<d1>"))["results"][0]["partitions"][0]["error_code"] == 39:
        assert time.monotonic() < end
        time.sleep(0.05)


def _cordon(side: Side, value: str) -> Any:
    row = {"name": "cordoned.log.dirs", "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [row]}
    return side._with_paths({"resources": [resource], "validate_only": False})
