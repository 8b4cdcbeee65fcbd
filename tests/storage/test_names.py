"""Names of files and directories in a log dir (LocalLogTest's directory names, LogFileUtils)."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactd.config.errors import RefusedError
from compactd.storage import names
from compactd.storage.names import PartitionDir, SegmentFileName, TopicPartition

HEX = "0123456789abcdef0123456789abcdef"
topics = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(names.is_topic_name)
partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(0, names.LARGEST_OFFSET)


def test_segment_files() -> None:
    assert names.log_name(0) == "00000000000000000000.log"
    assert names.log_name(42, names.CLEANED) == "00000000000000000042.log.cleaned"
    assert names.offset_index_name(42, names.SWAP) == "00000000000000000042.index.swap"
    assert names.time_index_name(42, names.DELETED) == "00000000000000000042.timeindex.deleted"
    assert names.transaction_index_name(42) == "00000000000000000042.txnindex"
    assert names.snapshot_name(2**63 - 1) == "09223372036854775807.snapshot"


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_no_name_for_what_is_no_offset(offset: int) -> None:
    with pytest.raises(ValueError, match="is no offset"):
        names.log_name(offset)


@given(
    st.builds(
        SegmentFileName,
        offsets,
        st.sampled_from([names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.TRANSACTION_INDEX, names.SNAPSHOT]),
        st.sampled_from(["", names.DELETED, names.CLEANED, names.SWAP]),
    )
)
def test_segment_names_round_trip(name: SegmentFileName) -> None:
    assert names.parse_segment_name(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "partition.metadata",
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "00000000000000000000",
        "00000000000000000000.checkpoint",
        "00000000000000000000.log.tmp",
        "00000000000000000000.log.cleaned.deleted",
        "00000000000000000000.log\n",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert names.parse_segment_name(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("orders-0", "orders", 0, "live"),
        ("a.b-c_d-12", "a.b-c_d", 12, "live"),
        ("-dash--7", "-dash-", 7, "live"),
        ("orders-007", "orders", 7, "live"),
        ("orders-+7", "orders", 7, "live"),
        (f"orders-0.{HEX}-delete", "orders", 0, "delete"),
        (f"orders-0.{HEX}-future", "orders", 0, "future"),
        (f"orders-0.{HEX}-stray", "orders", 0, "stray"),
        (f"a.b-1.{HEX}-delete", "a.b", 1, "delete"),
        ("orders-2147483647", "orders", 2147483647, "live"),
        ("orders-0.abc-5", "orders-0.abc", 5, "live"),
    ],
)
def test_partition_directories(name: str, topic: str, partition: int, state: names.DirState) -> None:
    assert names.parse_partition_dir(name) == PartitionDir(TopicPartition(topic, partition), state, name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "lost+found",
        "-0",
        "orders-",
        "orders-x",
        "orders--",
        "orders-2147483648",
        "orders-99999999999999999999",
        "orders-1_0",
        "orders-1 ",
        "orders-0-delete",
        "orders.abc-delete",
        f"or ders-0.{HEX}-delete",
        f"orders-x.{HEX}-delete",
        "orders-0.-delete",
    ],
)
def test_foreign_directories_are_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="not in the form of topic-partition"):
        names.parse_partition_dir(name)


@given(topics, partitions)
@example("a" * 249, 2**31 - 1)
def test_directory_names_round_trip(topic: str, partition: int) -> None:
    topic_partition = TopicPartition(topic, partition)
    assert names.parse_partition_dir(str(topic_partition)).topic_partition == topic_partition
    for make, state in ((names.delete_dir_name, "delete"), (names.stray_dir_name, "stray")):
        name = make(topic_partition)
        found = names.parse_partition_dir(name)
        assert len(name) <= 255
        assert found.state == state
        assert found.topic_partition.partition == partition
        assert topic.startswith(found.topic_partition.topic)
        assert found.topic_partition.topic == topic or len(name) == 255
    found = names.parse_partition_dir(names.future_dir_name(topic_partition))
    assert (found.topic_partition, found.state) == (topic_partition, "future")


def test_long_topics_are_shortened_in_front_of_the_tail() -> None:
    topic_partition = TopicPartition("t" * 249, 12)
    tail = f"-12.{HEX}-delete"
    assert names.delete_dir_name(topic_partition, HEX) == "t" * (255 - len(tail)) + tail
    assert names.stray_dir_name(topic_partition, HEX) == "t" * (255 - len(tail) + 1) + f"-12.{HEX}-stray"
    assert names.future_dir_name(topic_partition, HEX) == f"{topic_partition}.{HEX}-future"


def test_the_kraft_log_is_marked() -> None:
    assert names.parse_partition_dir("__cluster_metadata-0").is_cluster_metadata
    assert not names.parse_partition_dir("__consumer_offsets-0").is_cluster_metadata


@pytest.mark.parametrize("name", [".", "..", "", "a" * 250, "a b", "ü", "a/b"])
def test_names_no_topic_has(name: str) -> None:
    assert not names.is_topic_name(name)


@given(st.uuids())
def test_ids_round_trip(value: uuid.UUID) -> None:
    text = names.uuid_text(value)
    assert len(text) == 22
    assert names.parse_uuid(text) == value


def test_id_golden() -> None:
    assert names.parse_uuid("wmsbB83Iq-gUGrkgSOViIQ") == uuid.UUID("c26b1b07-cdc8-abe8-141a-b92048e56221")
    assert names.parse_uuid("AAAAAAAAAAAAAAAAAAAAAA==").int == 0


@pytest.mark.parametrize(
    "text", ["", "AAAA", "A" * 21, "A" * 23, "A" * 24, "A" * 25, "AAAAAAAAAAAAAAAAAAAA+/", "ä" * 22]
)
def test_ids_of_another_length_or_alphabet(text: str) -> None:
    with pytest.raises(ValueError, match="id"):
        names.parse_uuid(text)
