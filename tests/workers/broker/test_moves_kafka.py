"""Moves that one of the two began and the other finds: every record there, in one place, whoever goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactd.storage import names
from compactd.storage.metadata.format import format_log_dirs
from compactd.workers.feature_messages import FeatureUpdate, UpdateFeatures
from tests.file_faults import Call
from tests.oracle.broker import Broker
from tests.workers.broker import test_move_crashes, test_moves
from tests.workers.broker.batches import batch, fetch, produce, records_of
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.hearing import heard

pytestmark = pytest.mark.kafka

_ALTER, _DESCRIBE, _CREATE, _CONFIGS = 34, 35, 19, 44
_SECONDS = 60.0


def _values(client: RawClient, count: int) -> list[bytes | None]:
    """The first records, once the partition leads."""
    end = time.monotonic() + _SECONDS
    while (answer := fetch(client, 0, "t")).error_code:
        assert time.monotonic() < end, answer
        time.sleep(0.1)
    found: list[bytes | None] = []
    while len(found) < count:
        records = [each for each in records_of(fetch(client, len(found), "t").records) if each.offset >= len(found)]
        assert records, f"{len(found)} of {count} records are there"
        found += [each.value for each in records]
    return found


def _complaints(kafka: Broker) -> list[str]:
    """But for two: the disk is slow, which it is where many tests run at once; and a race of Kafka's own.

    Where its thread has put the copy in place before the controller's answer to the assignment is handled, the handler finds no
    state to update and says so (NullPointerException in ReplicaAlterLogDirsThread.updateReassignmentState). The move is done.
    """
    own = ("EventPerformanceMonitor", "AssignmentsManager id=1] handleResponse: unexpected callback exception")
    return [line for line in kafka.complaints() if not any(each in line for each in own)]


def _settled(client: RawClient, dirs: Sequence[Path]) -> Path:
    """Where the partition lies once nothing is on its way."""
    end = time.monotonic() + _SECONDS
    while True:
        rows = [
            (Path(result.log_dir), partition.is_future_key)
            for result in client.ask(_DESCRIBE, 4, {"topics": [{"topic": "t", "partitions": [0]}]}).results
            for topic in result.topics
            for partition in topic.partitions
        ]
        if len(rows) == 1 and not rows[0][1]:
            break
        assert time.monotonic() < end, rows
        time.sleep(0.1)
    place = rows[0][0]
    assert [path.parent for log_dir in dirs for path in log_dir.glob("t-0")] == [place]
    return place


def _at(calls: Sequence[Call], name: str, part: str) -> int:
    return next(
        number for number, call in enumerate(calls) if call.name == name and any(part in path for path in call.paths)
    )


@pytest.mark.parametrize("state", ["begun", "copying", "complete", "recorded", "between the renames", "renamed"])
def test_kafka_finds_a_move_of_ours(oracle_classpath: str, tmp_path: Path, state: str) -> None:
    calls, written = test_move_crashes.run(tmp_path / "count", None, "process")
    source_rename = _first_delete(calls)
    stops = {
        "begun": next(number for number, call in enumerate(calls) if names.FUTURE_DIR in call.paths[-1]),
        "copying": _at(calls, "write", f"{names.FUTURE_DIR}/0000"),
        "complete": _at(calls, "rename", ".moved-from") + 1,
        "recorded": source_rename - 1,
        "between the renames": source_rename,
        "renamed": source_rename + 3,
    }
    home = tmp_path / "home"
    _, written = test_move_crashes.run(home, stops[state], "process")
    dirs = [home / "d1", home / "d2"]
    live = {path.parent for path in home.glob("*/t-0")}
    copies = list(home.glob(f"*/t-0.*{names.FUTURE_DIR}"))
    assert (len(live), len(copies)) == {"between the renames": (0, 1), "renamed": (1, 0)}.get(state, (1, 1))
    for log_dir in dirs:
        (log_dir / ".lock").unlink(missing_ok=True)
    kafka = Broker(oracle_classpath, tmp_path / "kafka", dirs)
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        assert _values(client, len(written))[: len(written)] == written
        place = _settled(client, dirs)
        if state in ("recorded", "between the renames", "renamed"):
            assert place != test_move_crashes.SOURCES[home]
        assert produce(client, batch([b"by Kafka"]), "t").error_code == 0
    assert not _complaints(kafka)
    assert not list(home.glob("*/*-stray"))
    with CatalogueBroker(dirs) as ours, ours.connect() as client:
        found = _values(client, len(written) + 1)
        assert found[: len(written)] == written and found[-1] == b"by Kafka"
        assert Path(ours.partition("t").log_dir) == place


def _first_delete(calls: Sequence[Call]) -> int:
    return next(
        number
        for number, call in enumerate(calls)
        if call.name == "rename" and call.paths[-1].endswith(names.DELETE_DIR)
    )


@pytest.mark.parametrize("killed", [False, True])
def test_we_find_a_move_of_kafkas(oracle_classpath: str, tmp_path: Path, killed: bool) -> None:
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, tmp_path / "kafka", dirs)
    kafka.format()
    written = [b"%05d" % number * 400 for number in range(200)]
    kafka.__enter__()
    try:
        with RawClient(int(kafka.bootstrap.split(":")[1])) as client:
            client.ask(
                _CREATE, 7, {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}], "timeout": 9000}
            )
            end = time.monotonic() + _SECONDS
            for value in written:
                while produce(client, batch([value]), "t").error_code:
                    assert time.monotonic() < end
                    time.sleep(0.05)
            row = {"name": "replica.alter.log.dirs.io.max.bytes.per.second", "config_operation": 0, "value": "1"}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [row]}
            client.ask(_CONFIGS, 1, {"resources": [resource], "validate_only": False})
            heard(client)
            time.sleep(0.5)
            source = _settled(client, dirs)
            target = next(each for each in dirs if each != source)
            body = {"dirs": [{"path": str(target), "topics": [{"name": "t", "partitions": [0]}]}]}
            assert client.ask(_ALTER, 2, body).results[0].partitions[0].error_code == 0
            while not list(target.glob(f"t-0.*{names.FUTURE_DIR}")):
                assert time.monotonic() < end
                time.sleep(0.02)
            time.sleep(0.5)
    finally:
        kafka.kill() if killed else kafka.stop()
    assert (source / "t-0").is_dir() and list(target.glob(f"t-0.*{names.FUTURE_DIR}"))
    with CatalogueBroker(dirs, {"cleaner.free.space.margin": 0}, clean=not killed) as ours, ours.connect() as client:
        there = test_moves.Setting.__new__(test_moves.Setting)
        there.broker, there.client, there.written = ours, client, list(written)
        assert there.write(b"by us") == 0
        test_moves.throttle(there, None, "1")
        there.arrived(target)
        assert there.read() == [*written, b"by us"]
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        assert _values(client, len(written) + 1) == [*written, b"by us"]
        assert _settled(client, dirs) == target
    assert not _complaints(kafka)


def test_kafka_takes_our_features_over(oracle_classpath: str, tmp_path: Path) -> None:
    """Levels that were changed, the voters in the log among them; and what Kafka then changes is ours again."""
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    for each in dirs:
        each.mkdir()
    wanted = (("transaction.version", 1, 2), ("eligible.leader.replicas.version", 0, 2), ("kraft.version", 1, 1))
    with CatalogueBroker(dirs) as ours, ours.connect() as client:
        there = test_moves.Setting(ours, client)
        updates = tuple(FeatureUpdate(name=name, level=level, upgrade_type=kind) for name, level, kind in wanted)
        result, _ = ours.catalogue.apply("update_features", UpdateFeatures(updates=updates))
        assert not result.error  # type: ignore[attr-defined]
        written = there.written
    kafka = Broker(oracle_classpath, tmp_path / "kafka", dirs)
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        told = client.ask(18, 4, {"client_software_name": "test", "client_software_version": "1"})
        levels = {each.name: each.max_version_level for each in told.finalized_features}
        assert levels["transaction.version"] == levels["kraft.version"] == 1
        assert "eligible.leader.replicas.version" not in levels
        assert _values(client, len(written)) == written
        row = {"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}
        answer = client.ask(57, 2, {"feature_updates": [row], "timeout": 9000, "validate_only": False})
        assert answer.error_code == 0, answer
    assert not _complaints(kafka)
    with CatalogueBroker(dirs) as ours, ours.connect() as client:
        assert ours.catalogue.image.features["transaction.version"] == 2
        assert ours.catalogue.image.kraft_version == 1
        assert _values(client, len(written)) == written


def test_kafka_goes_on_with_a_cluster_that_we_upgraded(oracle_classpath: str, tmp_path: Path) -> None:
    """From metadata.version 14 to all that 4.4 has; what moves afterwards is recorded, where it could not be before."""
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    format_log_dirs(dirs, node_id=1, now_ms=int(time.time() * 1000), features={"metadata.version": 14})
    wanted = {
        "metadata.version": 33, "kraft.version": 1, "group.version": 1, "transaction.version": 2, "share.version": 2,
        "streams.version": 1, "eligible.leader.replicas.version": 1,
    }  # fmt: skip
    with CatalogueBroker(dirs, {"cleaner.free.space.margin": 0}) as ours, ours.connect() as client:
        there = test_moves.Setting(ours, client)
        rows = [{"feature": name, "max_version_level": level, "upgrade_type": 1} for name, level in wanted.items()]
        answer = client.ask(57, 2, {"feature_updates": rows, "timeout": 9000, "validate_only": False})
        assert answer.error_code == 0, answer
        there.fill(5)
        target = next(each for each in dirs if each != there.place)
        assert there.move(target) == 0
        there.arrived(target)
        (state,) = ours.catalogue.image.topics["t"].partitions.values()
        assert len(state.directories) == 1
        written = there.written
    kafka = Broker(oracle_classpath, tmp_path / "kafka", dirs)
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        told = client.ask(18, 4, {"client_software_name": "test", "client_software_version": "1"})
        assert {each.name: each.max_version_level for each in told.finalized_features} == wanted
        assert _values(client, len(written)) == written
        assert _settled(client, dirs) == target
    assert not _complaints(kafka)
    assert not list(tmp_path.glob("*/*-stray"))
