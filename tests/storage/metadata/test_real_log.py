"""The metadata log of a real Kafka 4.3.1 broker (tests/data/kraft/metadata.log, made for these tests)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactd.config.load import resolve_topic
from compactd.storage.metadata import ClusterMetadata, decode_record, read_cluster_metadata
from compactd.storage.metadata.log import read_checked
from tests.storage.metadata.golden import DATA

LOG = DATA / "kraft" / "metadata.log"


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterMetadata:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    shutil.copy(LOG, directory / f"{0:020d}.log")
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    cluster = read_cluster_metadata([tmp_path], strict=True)
    assert cluster is not None
    return cluster


def test_topics_ids_and_partitions(cluster: ClusterMetadata) -> None:
    assert {name: (topic_id, len(cluster.partitions[topic_id])) for name, topic_id in cluster.topics.items()} == {
        "__consumer_offsets": ("LZigPGxeSq2SPlIYWkrfhw", 2),
        "__transaction_state": ("JGi4Ksj1SSyDvH-zqgTBnw", 2),
        "compact-test": ("vUAOWwAVSsSV5TFWVAqHRA", 1),
        "orders": ("I-GCttL_SuqZ09bQRFPvaw", 2),
        "payments": ("_xCqh5vlQcKSLmcHr9r5nw", 2),
        "prices": ("NnFBVr0rQ_q6j6wKdJEypQ", 1),
        "sessions": ("uiASAGheRVKxhL3otsW1Aw", 2),
        "users": ("wAU-Hpy-QHKSoF8r7od-nA", 3),
    }
    assert (cluster.end_offset, cluster.warnings, cluster.deleted_topics) == (147, [], {})
    assert cluster.metadata_version == 30


def test_the_partitions_are_in_the_form_of_an_orderly_stop(cluster: ClusterMetadata) -> None:
    states = [state for partitions in cluster.partitions.values() for state in partitions.values()]
    assert {(state.replicas, state.isr, state.leader) for state in states} == {((1,), (), -1)}
    assert all(len(state.directories) == 1 for state in states)


def test_every_topics_effective_settings_and_where_they_come_from(cluster: ClusterMetadata) -> None:
    policies = {name: resolve_topic(name, [], None, cluster).config.cleanup_policy for name in cluster.topics}
    assert policies == {
        "__consumer_offsets": {"compact"},
        "__transaction_state": {"compact"},
        "compact-test": {"compact"},
        "orders": {"delete"},
        "payments": {"compact"},
        "prices": {"compact"},
        "sessions": {"compact", "delete"},
        "users": {"compact"},
    }
    users = resolve_topic("users", [], None, cluster)
    assert (users.config.min_cleanable_dirty_ratio, users.config.delete_retention_ms) == (0.1, 60_000)
    assert users.sources["cleanup.policy"] == "__cluster_metadata-0 offset 26 (topic users)"
    assert users.sources["min.insync.replicas"] == "__cluster_metadata-0 offset 8 (all brokers)"
    assert users.sources["segment.bytes"] == "default"
    offsets = resolve_topic("__consumer_offsets", [], None, cluster)
    assert offsets.config.segment_bytes == 1 << 20


def test_every_record_has_a_decoder() -> None:
    types: set[str] = set()
    for batch in read_checked(LOG):
        for record in batch.records():
            decoded = decode_record("__cluster_metadata", record.key, record.value, control=batch.header.is_control)
            assert decoded is not None
            assert "error" not in decoded
            types.add(decoded["type"])
    assert {"LEADER_CHANGE", "TOPIC_RECORD", "PARTITION_CHANGE_RECORD", "REGISTER_CONTROLLER_RECORD"} <= types


def test_cut_anywhere_it_gives_what_comes_before(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    data = LOG.read_bytes()
    known: set[str] = set()
    for size in range(0, len(data), 331):
        (directory / f"{0:020d}.log").write_bytes(data[:size])
        cluster = read_cluster_metadata([tmp_path])
        assert cluster is not None
        assert known <= set(cluster.topics)
        known = set(cluster.topics)
    assert len(known) == 8
