"""Replay of metadata logs written by hand: what each record changes, and what a damaged log still gives (facts A9 to A11)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError, CorruptFileError, FaultError, StorageIOError
from compactd.config.load import resolve_topic
from compactd.storage.metadata import ClusterMetadata, read_cluster_metadata
from compactd.storage.metadata.log import Segment, Snapshot, list_files
from compactd.storage.names import uuid_text
from tests.storage.metadata import logs
from tests.storage.metadata.golden import golden
from tests.storage.metadata.logs import batch, topic, topic_config, write_log, write_snapshot

USERS, ORDERS = uuid_text(logs.topic_id(1)), uuid_text(logs.topic_id(2))


def read(log_dir: Path, strict: bool = False) -> ClusterMetadata:
    cluster = read_cluster_metadata([log_dir], strict)
    assert cluster is not None
    return cluster


def test_no_metadata_log_is_no_catalogue(tmp_path: Path) -> None:
    (tmp_path / "users-0").mkdir()
    assert read_cluster_metadata([tmp_path, tmp_path / "missing"]) is None


def test_topics_settings_and_removals(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        batch(0, logs.METADATA_VERSION, topic("users", 1), topic_config("users", "cleanup.policy", "compact")),
        batch(3, topic("orders", 2), topic_config("orders", "retention.ms", "5"), logs.partition(0, 2)),
        batch(6, topic_config("users", "cleanup.policy", "delete"), topic_config("users", "segment.ms", "60000")),
        batch(8, topic_config("users", "segment.ms", None), topic_config("ghost", "segment.ms", "7")),
        batch(10, logs.remove_topic(2)),
        batch(11, logs.broker_config("", "log.segment.bytes", "2097152"), logs.broker_config("1", "log.roll.ms", "9")),
    )
    cluster = read(tmp_path, strict=True)
    assert cluster.topics == {"users": USERS}
    assert cluster.topic_name(USERS) == "users"
    assert cluster.topic_name(ORDERS) is None
    assert cluster.topic_configs == {"users": {"cleanup.policy": "delete"}, "ghost": {"segment.ms": "7"}}
    assert cluster.broker_configs == {"": {"log.segment.bytes": "2097152"}, "1": {"log.roll.ms": "9"}}
    assert cluster.deleted_topics == {ORDERS: "orders"}
    assert cluster.metadata_version == 30
    assert (cluster.end_offset, cluster.snapshot, cluster.warnings) == (13, None, [])
    assert cluster.config_source("topic", "users", "cleanup.policy") == "__cluster_metadata-0 offset 6 (topic users)"
    assert cluster.config_source("broker", "", "log.segment.bytes") == "__cluster_metadata-0 offset 11 (all brokers)"
    assert cluster.config_source("broker", "1", "log.roll.ms") == "__cluster_metadata-0 offset 12 (broker 1)"


def test_a_topic_of_the_same_name_has_none_of_the_old_ones_settings(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        batch(0, topic("users", 1), topic_config("users", "cleanup.policy", "compact")),
        batch(2, logs.remove_topic(1), topic("users", 2)),
    )
    cluster = read(tmp_path, strict=True)
    assert cluster.topics == {"users": ORDERS}
    assert cluster.topic_configs == {}


def test_partitions_and_their_changes(tmp_path: Path) -> None:
    stop = b"\4\0\1\1\1\4\xff\xff\xff\xff\6\5\2\0\0\0\1\7\5\2\0\0\0\1"
    write_log(tmp_path, batch(0, topic("users", 1), logs.partition(0, 1)), batch(2, logs.partition_change(0, 1, stop)))
    state = read(tmp_path, strict=True).partitions[USERS][0]
    assert (state.replicas, state.isr, state.leader) == ((1,), (), -1)
    assert (state.leader_epoch, state.partition_epoch) == (1, 1)
    assert state.directories == ("AAAAAAAAAAAAAAAAAAAABw",)


def test_features(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        batch(0, logs.METADATA_VERSION, logs.feature("group.version", 1), logs.feature("kraft.version", 1)),
        batch(3, logs.feature("group.version", 0), logs.feature("metadata.version", 33)),
    )
    assert read(tmp_path, strict=True).features == {"metadata.version": 33}


@pytest.mark.parametrize(
    ("records", "topics"),
    [
        ([logs.BEGIN, topic("users", 1), logs.END], {"users": USERS}),
        ([logs.BEGIN, topic("users", 1), logs.ABORT], {}),
        ([logs.BEGIN, topic("users", 1)], {}),
        ([logs.BEGIN, topic("users", 1), logs.ABORT, topic("orders", 2)], {"orders": ORDERS}),
        ([logs.BEGIN, topic("users", 1), logs.BEGIN, topic("orders", 2), logs.END], {"orders": ORDERS}),
    ],
)
def test_metadata_transactions(tmp_path: Path, records: list[bytes], topics: dict[str, str]) -> None:
    write_log(tmp_path, *(batch(offset, record) for offset, record in enumerate(records)))
    assert read(tmp_path).topics == topics


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_every_codec_and_gaps_between_them(tmp_path: Path, codec: int) -> None:
    write_log(tmp_path, batch(0, topic("users", 1), codec=codec), batch(10, topic("orders", 2), codec=codec))
    cluster = read(tmp_path, strict=True)
    assert set(cluster.topics) == {"users", "orders"}
    assert cluster.end_offset == 11


def test_a_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    write_log(tmp_path, batch(0, topic("older", 3)), base_offset=0)
    write_log(tmp_path, batch(1, topic("old", 4)), batch(5, topic("users", 1)), batch(6, logs.NO_OP), base_offset=1)
    write_log(tmp_path, batch(7, topic_config("users", "segment.ms", "9")), base_offset=7)
    name = write_snapshot(
        tmp_path, 6, 1, logs.snapshot(topic("users", 1), topic_config("users", "preallocate", "true"))
    )
    cluster = read(tmp_path, strict=True)
    assert cluster.topics == {"users": USERS}
    assert cluster.snapshot == name.name
    assert cluster.topic_configs == {"users": {"preallocate": "true", "segment.ms": "9"}}
    source = "__cluster_metadata-0 snapshot 00000000000000000006-0000000001 (topic users)"
    assert cluster.config_source("topic", "users", "preallocate") == source
    assert cluster.end_offset == 8


def test_an_idle_controllers_batches_only_move_the_end(tmp_path: Path) -> None:
    assert golden("noop batch")[61:] == batch(0, logs.NO_OP)[61:]
    write_log(tmp_path, batch(0, topic("users", 1)), *(batch(offset, logs.NO_OP) for offset in range(1, 5)))
    for strict in (False, True):
        cluster = read(tmp_path, strict)
        assert (cluster.topics, cluster.end_offset) == ({"users": USERS}, 5)


def test_only_a_snapshot_is_fine(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 20, 1, logs.snapshot(logs.METADATA_VERSION, topic("users", 1)))
    cluster = read(tmp_path, strict=True)
    assert (cluster.topics, cluster.end_offset) == ({"users": USERS}, 20)


@pytest.mark.parametrize("damage", ["no footer", "no header", "torn", "crc", "empty"])
def test_an_incomplete_snapshot_is_passed_over_for_the_one_before(tmp_path: Path, damage: str) -> None:
    good = logs.snapshot(topic("users", 1))
    bad = logs.snapshot(topic("users", 1), topic("orders", 2), footer=damage != "no footer")
    if damage == "no header":
        bad = bad[len(logs.control(0, 3, b"\0\0" + bytes(8) + b"\0")) :]
    elif damage == "torn":
        bad = bad[:-3]
    elif damage == "crc":
        bad = bad[:-1] + bytes((bad[-1] ^ 1,))
    elif damage == "empty":
        bad = b""
    write_snapshot(tmp_path, 5, 1, good)
    path = write_snapshot(tmp_path, 9, 2, bad)
    write_log(tmp_path, batch(5, topic_config("users", "segment.ms", "9")), base_offset=5)
    cluster = read(tmp_path)
    assert cluster.topics == {"users": USERS}
    assert cluster.topic_configs == {"users": {"segment.ms": "9"}}
    (warning,) = cluster.warnings
    assert path.name in warning
    with pytest.raises(FaultError):
        read(tmp_path, strict=True)


def test_the_bootstrap_checkpoint_is_no_state_but_gives_the_features_of_a_dir_never_started(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 0, 0, logs.snapshot(logs.METADATA_VERSION, topic("users", 1)))
    cluster = read(tmp_path, strict=True)
    assert (cluster.topics, cluster.features, cluster.end_offset) == ({}, {"metadata.version": 30}, 0)
    write_log(tmp_path, batch(0, logs.feature("metadata.version", 33)))
    assert read(tmp_path, strict=True).features == {"metadata.version": 33}


def test_files_on_their_way_are_no_snapshots(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, 9, 1, b"x")
    path.rename(path.with_name(path.name + ".part"))
    write_snapshot(tmp_path, 9, 1, b"x").rename(path.with_name(path.name + ".deleted"))
    write_log(tmp_path, batch(0, topic("users", 1)))
    assert read(tmp_path, strict=True).topics == {"users": USERS}


def test_a_torn_tail_ends_the_log_with_a_warning(tmp_path: Path) -> None:
    torn = batch(1, topic("orders", 2))[:-5]
    path = write_log(tmp_path, batch(0, topic("users", 1)), torn)
    cluster = read(tmp_path)
    assert cluster.topics == {"users": USERS}
    assert cluster.end_offset == 1
    (warning,) = cluster.warnings
    assert str(path) in warning
    assert "truncated" in warning
    with pytest.raises(CorruptBatchError):
        read(tmp_path, strict=True)


def test_preallocated_zeros_are_the_end_without_a_warning(tmp_path: Path) -> None:
    path = write_log(tmp_path, batch(0, topic("users", 1)), bytes(5000))
    assert read(tmp_path, strict=True).topics == {"users": USERS}
    with path.open("ab") as file:
        file.write(batch(1, topic("orders", 2)))
    assert len(read(tmp_path).warnings) == 1


def test_a_damaged_batch_ends_the_log_as_for_kafka(tmp_path: Path) -> None:
    damaged = bytearray(batch(1, topic("orders", 2)))
    damaged[-10] ^= 1
    write_log(tmp_path, batch(0, topic("users", 1)), bytes(damaged), batch(2, topic("later", 3)))
    write_log(tmp_path, batch(3, topic("even later", 4)), base_offset=3)
    cluster = read(tmp_path)
    assert set(cluster.topics) == {"users"}
    (warning,) = cluster.warnings
    assert "offsets 1 to 1" in warning


def test_a_missing_segment_is_pointed_out_and_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    write_log(tmp_path, batch(0, topic("users", 1)))
    write_log(tmp_path, batch(5, topic("orders", 2)), base_offset=5)
    cluster = read(tmp_path)
    assert set(cluster.topics) == {"users", "orders"}
    (warning,) = cluster.warnings
    assert "offsets 1 to 4 are missing" in warning
    with pytest.raises(CorruptFileError):
        read(tmp_path, strict=True)


def test_a_batch_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    claim = bytearray(batch(1, topic("orders", 2)))
    claim[8:12] = (0x7FFFFF00).to_bytes(4, "big")
    path = write_log(tmp_path, batch(0, topic("users", 1)), bytes(claim))
    with path.open("r+b") as file:
        file.truncate(3 << 30)
    assert "beyond any metadata batch" in read(tmp_path).warnings[0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x01\x63\x00", "offset 1: unknown metadata record type 99"),
        (b"\x01\x02\x05" + topic("x", 5)[3:], "offset 1: TOPIC_RECORD has version 5"),
        (b"\x02\x02\x00", "offset 1: unknown frame version 2"),
        (topic("users", 7), "offset 1: topic users exists already"),
        (logs.remove_topic(7), "offset 1: removal of the unknown topic id"),
        (logs.partition(0, 7), "offset 1: a partition of the unknown topic id"),
        (logs.partition_change(3, 1, b"\0"), "offset 1: a change of the unknown partition 3"),
    ],
    ids=["type", "version", "frame", "topic", "removal", "partition", "change"],
)
def test_a_record_that_cannot_be_applied_is_left_out_and_named(tmp_path: Path, value: bytes, reason: str) -> None:
    write_log(tmp_path, batch(0, topic("users", 1)), batch(1, value, topic("orders", 2)))
    cluster = read(tmp_path)
    assert cluster.topics == {"users": USERS, "orders": ORDERS}
    (warning,) = cluster.warnings
    assert reason in warning
    assert ".log" in warning
    with pytest.raises(CorruptFileError, match=reason.split(":", maxsplit=1)[0]):
        read(tmp_path, strict=True)


def test_strict_reads_the_bodies_of_records_that_do_not_matter_too(tmp_path: Path) -> None:
    write_log(tmp_path, batch(0, b"\x01\x14\x00\x00x"))
    assert read(tmp_path).warnings == []
    with pytest.raises(CorruptFileError, match="NO_OP_RECORD"):
        read(tmp_path, strict=True)


def test_many_faults_are_counted_not_all_listed(tmp_path: Path) -> None:
    write_log(tmp_path, batch(0, *[b"\x01\x63\x00"] * 80))
    warnings = read(tmp_path).warnings
    assert len(warnings) == 51
    assert "30 more faults" in warnings[-1]


def test_the_nodes_identity_selects_its_own_dynamic_settings(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        batch(
            0,
            logs.broker_config("", "log.segment.bytes", "2097152"),
            logs.broker_config("7", "log.segment.bytes", "3145728"),
        ),
    )
    assert read(tmp_path).node_id is None
    assert resolve_topic("t", [], None, read(tmp_path)).config.segment_bytes == 2_097_152
    (tmp_path / "meta.properties").write_text("#x\nversion=1\nnode.id=7\ncluster.id=abc\n")
    cluster = read(tmp_path)
    assert (cluster.node_id, cluster.cluster_id) == (7, "abc")
    resolved = resolve_topic("t", [], None, cluster)
    assert resolved.config.segment_bytes == 3_145_728
    assert resolved.sources["segment.bytes"] == "__cluster_metadata-0 offset 1 (broker 7)"
    (tmp_path / "meta.properties").write_text("node.id=seven\n")
    assert "per-broker settings don't apply" in read(tmp_path).warnings[0]


def test_a_quorum_of_several_voters_is_pointed_out(tmp_path: Path) -> None:
    voters = b"\x04" + b"".join(bytes((0, 0, 0, number, 0)) for number in (1, 2, 3))
    change = b"\0\0" + b"\0\0\0\1" + voters + b"\1\0"
    write_log(tmp_path, logs.control(0, 2, change), batch(1, topic("users", 1)))
    (warning,) = read(tmp_path, strict=True).warnings
    assert "one of 3 voters" in warning
    write_log(tmp_path, batch(0, topic("users", 1)))
    state = tmp_path / "__cluster_metadata-0" / "quorum-state"
    state.write_text('{"leaderId":1,"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}')
    assert "one of 2 voters" in read(tmp_path).warnings[0]
    for text in ("", "{", "[]", '{"currentVoters":null}'):
        state.write_text(text)
        assert read(tmp_path).warnings == []


def test_two_metadata_logs_are_pointed_out(tmp_path: Path) -> None:
    for name in ("d1", "d2"):
        write_log(tmp_path / name, batch(0, topic(name, 1)))
    cluster = read_cluster_metadata([tmp_path / "d1", tmp_path / "d2"])
    assert cluster is not None
    assert set(cluster.topics) == {"d1"}
    assert "only one log dir may hold the metadata log" in cluster.warnings[0]


def test_files_that_a_running_broker_takes_away_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, batch(0, topic("old", 3)))
    new = batch(5, topic_config("users", "segment.ms", "9"))
    listings = 0

    def list_then_delete(directory: Path) -> tuple[list[Snapshot], list[Segment]]:
        nonlocal listings
        listings += 1
        found = list_files(directory)
        if listings == 1:
            (directory / f"{0:020d}.log").unlink()
            write_snapshot(tmp_path, 5, 1, logs.snapshot(topic("users", 1)))
            write_log(tmp_path, new, base_offset=5)
        return found

    monkeypatch.setattr("compactd.storage.metadata.cluster.list_files", list_then_delete)
    cluster = read(tmp_path, strict=True)
    assert (cluster.topics, cluster.end_offset, listings) == ({"users": USERS}, 6, 2)


def test_a_file_that_may_not_be_read_is_an_io_error(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").mkdir(parents=True)
    with pytest.raises(StorageIOError, match="reading failed"):
        read(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_with_changed_bytes_is_read_as_far_as_it_goes(tmp_path: Path, data: st.DataObject) -> None:
    log = bytearray(
        batch(0, logs.METADATA_VERSION, topic("users", 1), topic_config("users", "cleanup.policy", "compact"))
        + batch(3, logs.partition(0, 1), logs.NO_OP)
        + batch(5, topic("orders", 2), codec=4)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    write_log(tmp_path, bytes(log[: data.draw(st.integers(0, len(log)))]))
    assert set(read(tmp_path).topics) <= {"users", "orders"}
