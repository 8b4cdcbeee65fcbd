"""Offset checkpoint files (OffsetCheckpointFileWithFailureHandlerTest; facts 1.5)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import CorruptFileError, StorageIOError
from compactd.storage import checkpoints, files, names
from compactd.storage.checkpoints import OffsetCheckpoint
from compactd.storage.names import TopicPartition
from tests.file_faults import FaultyLayer

topic_partitions = st.builds(
    TopicPartition, st.text("ab._-", min_size=1, max_size=5).filter(names.is_topic_name), st.integers(0, 2**31 - 1)
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> OffsetCheckpoint:
    return OffsetCheckpoint(tmp_path / checkpoints.CLEANER_OFFSETS)


def written(checkpoint: OffsetCheckpoint, text: str | bytes) -> OffsetCheckpoint:
    Path(checkpoint.path).write_bytes(text.encode() if isinstance(text, str) else text)
    return checkpoint


def test_file_names() -> None:
    assert checkpoints.CLEANER_OFFSETS == "cleaner-offset-checkpoint"
    assert checkpoints.RECOVERY_POINTS == "recovery-point-offset-checkpoint"
    assert checkpoints.LOG_START_OFFSETS == "log-start-offset-checkpoint"
    assert checkpoints.HIGH_WATERMARKS == "replication-offset-checkpoint"


def test_golden(checkpoint: OffsetCheckpoint) -> None:
    entries = {TopicPartition("orders", 1): 7, TopicPartition("a.b-c", 0): 9223372036854775807}
    checkpoint.write(entries)
    assert Path(checkpoint.path).read_text() == "0\n2\na.b-c 0 9223372036854775807\norders 1 7\n"
    assert checkpoint.read() == entries
    checkpoint.write({})
    assert Path(checkpoint.path).read_text() == "0\n0\n"
    assert checkpoint.read() == {}


@pytest.mark.parametrize("text", ["", "0", "0\n", "0\n0", "0\r\n0\r\n", "+0\n00\n"])
def test_without_entries(checkpoint: OffsetCheckpoint, text: str) -> None:
    assert written(checkpoint, text).read() == {}


def test_absent(checkpoint: OffsetCheckpoint) -> None:
    assert checkpoint.read() == {}


@pytest.mark.parametrize("text", ["0\n1\nt 0 5", "0\n1\nt\t 0   5 \n", "0\r1\rt 0 5\r", "0\n1\nt 0 +5\n"])
def test_lines_as_java_reads_them(checkpoint: OffsetCheckpoint, text: str) -> None:
    assert written(checkpoint, text).read() == {TopicPartition("t", 0): 5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1\n0\n", "line 1 says version 1"),
        ("x\n0\n", "malformed line 1: 'x' is not a number"),
        ("\n0\n", "malformed line 1: ''"),
        ("0\nx\n", "malformed line 2: 'x'"),
        ("0\n\n", "malformed line 2: ''"),
        ("0\n1\n", "line 2 promises 1 entries, but 0 were found"),
        ("0\n1\nt 0 5\nt 1 5\n", "line 2 promises 1 entries, but 2 were found"),
        ("0\n-1\n", "line 2 promises -1 entries"),
        ("0\n2000000000\nt 0 5\n", "line 2 promises 2000000000 entries, but 1 were found"),
        ("0\n1\nt 0\n", "malformed line 3: 't 0'"),
        ("0\n1\n t 0 5\n", "malformed line 3: ' t 0 5'"),
        ("0\n1\nt 0 5 6\n", "malformed line 3"),
        ("0\n2\nt 0 5\n\n", "malformed line 4: ''"),
        ("0\n1\nt 0 1_000\n", "malformed line 3: '1_000' is not a number"),
        ("0\n1\nt 0 9223372036854775808\n", "malformed line 3: 9223372036854775808 does not fit in 64 bits"),
        ("0\n1\nt 2147483648 0\n", "malformed line 3: 2147483648 does not fit in 32 bits"),
        ("0\n1\nt 0 " + "9" * 5000, "malformed line 3: '9999"),
        ("0\n1\nt 0 ٥\n", "malformed line 3"),
        ("0\n1\nt\u00a00 5\n", "malformed line 3"),
    ],
)
def test_damage_names_its_line(checkpoint: OffsetCheckpoint, text: str, reason: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        written(checkpoint, text).read()
    assert reason in str(caught.value)
    assert checkpoint.path in str(caught.value)
    assert caught.value.exit_code == 1
    assert len(str(caught.value)) < 1000


def test_damage_tells_its_position(checkpoint: OffsetCheckpoint) -> None:
    with pytest.raises(CorruptFileError) as caught:
        written(checkpoint, "0\n2\nté 0 5\nbad\n").read()
    assert caught.value.position == len("0\n2\nté 0 5\n".encode())


def test_not_text(checkpoint: OffsetCheckpoint) -> None:
    with pytest.raises(CorruptFileError, match="line 3 is not UTF-8") as caught:
        written(checkpoint, b"0\n1\nt\xff 0 5\n").read()
    assert caught.value.position == 5
    with pytest.raises(CorruptFileError, match="malformed line 1"):
        written(checkpoint, bytes(100)).read()


def test_too_large(checkpoint: OffsetCheckpoint) -> None:
    with open(checkpoint.path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptFileError, match="more than"):
        checkpoint.read()


def test_stale_temporary_file_is_ignored(checkpoint: OffsetCheckpoint) -> None:
    written(checkpoint, "0\n1\nt 0 5\n")
    Path(checkpoint.path + ".tmp").write_text("0\n1\nt 0 9\n")
    assert checkpoint.read() == {TopicPartition("t", 0): 5}
    checkpoint.write({TopicPartition("t", 0): 6})
    assert checkpoint.read() == {TopicPartition("t", 0): 6}
    assert not Path(checkpoint.path + ".tmp").exists()


def test_write_that_fails_keeps_the_old_entries(checkpoint: OffsetCheckpoint) -> None:
    checkpoint.write({TopicPartition("t", 0): 5})
    layer = FaultyLayer()
    layer.fail("write", errno.ENOSPC)
    with files.replaced(layer), pytest.raises(StorageIOError, match="ENOSPC"):
        checkpoint.write({TopicPartition("t", 0): 6})
    assert checkpoint.read() == {TopicPartition("t", 0): 5}


@given(st.dictionaries(topic_partitions, st.integers(-(2**63), 2**63 - 1)))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: dict[TopicPartition, int]) -> None:
    checkpoint = OffsetCheckpoint(tmp_path_factory.getbasetemp() / "round-trip-checkpoint")
    checkpoint.write(entries)
    assert checkpoint.read() == entries


@given(st.binary(max_size=60) | st.text("0123 \n\rt-", max_size=30).map(str.encode))
def test_any_bytes_read_or_raise_the_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    checkpoint = OffsetCheckpoint(tmp_path_factory.getbasetemp() / "any-checkpoint")
    try:
        found = written(checkpoint, data).read()
    except CorruptFileError as error:
        assert 0 <= error.position <= len(data)
    else:
        assert len(found) <= max(0, data.count(b"\n") + data.count(b"\r") - 1)
