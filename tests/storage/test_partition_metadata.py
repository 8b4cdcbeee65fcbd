"""partition.metadata (PartitionMetadataFileTest; facts 1.8)."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import CorruptFileError
from compactd.storage.names import uuid_text
from compactd.storage.partition_metadata import PartitionMetadata, read_partition_metadata, write_partition_metadata

TOPIC_ID = uuid.UUID("c26b1b07-cdc8-abe8-141a-b92048e56221")


def test_golden(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    write_partition_metadata(path, TOPIC_ID)
    assert path.read_bytes() == b"version: 0\ntopic_id: wmsbB83Iq-gUGrkgSOViIQ"
    assert path.stat().st_size == 43
    found = read_partition_metadata(path)
    assert found == PartitionMetadata(TOPIC_ID, 0)
    assert found is not None
    assert found.text == "wmsbB83Iq-gUGrkgSOViIQ"


def test_absent(tmp_path: Path) -> None:
    assert read_partition_metadata(tmp_path / "partition.metadata") is None


def test_later_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(f"version: 3\r\ntopic_id: {uuid_text(TOPIC_ID)}\r\nmore: x\r\n")
    assert read_partition_metadata(path) == PartitionMetadata(TOPIC_ID, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1 is not `version: VALUE`"),
        ("version: 0", "line 2 is not `topic_id: VALUE`"),
        ("version:0\ntopic_id: wmsbB83Iq-gUGrkgSOViIQ", "line 1 is not"),
        ("version: x\ntopic_id: wmsbB83Iq-gUGrkgSOViIQ", "'x' is not a number"),
        ("version: -1\ntopic_id: wmsbB83Iq-gUGrkgSOViIQ", "version -1"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "the topic id is all zeros"),
        ("version: 0\ntopic_id: abc", "id"),
        ("version: 0\ntopic_id: a: b", "line 2 is not"),
    ],
)
def test_damage(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    with pytest.raises(CorruptFileError) as caught:
        read_partition_metadata(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


@given(st.binary(max_size=80) | st.text("version: 0\ntopic_id", max_size=60).map(str.encode))
def test_any_bytes_read_or_raise_the_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-partition.metadata"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError):
        read_partition_metadata(path)


@given(st.uuids().filter(lambda value: value.int != 0))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, topic_id: uuid.UUID) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip-partition.metadata"
    write_partition_metadata(path, topic_id)
    assert read_partition_metadata(path) == PartitionMetadata(topic_id)
