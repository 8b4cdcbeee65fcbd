"""A real broker that was killed: Kafka and compactd load its log dir to the same state and the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactd.storage.log_dir import LogDir
from compactd.storage.names import parse_partition_dir
from compactd.storage.orderly_close import close_orderly
from tests.oracle.driver import Oracle
from tests.storage.loader.killed import KILLED_MS, PARTITIONS, unpack
from tests.storage.loader.test_killed_broker import load

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_state_and_files(oracle: Oracle, tmp_path: Path, name: str) -> None:
    log_dir = unpack(tmp_path)
    theirs = tmp_path / "kafka" / name
    shutil.copytree(log_dir / name, theirs)
    point = LogDir(log_dir).recovery_points.read()[parse_partition_dir(name).topic_partition]
    state = oracle.open(theirs, {}, now=KILLED_MS, cleanShutdown=False, recoveryPoint=point)
    loaded = load(log_dir, name)
    assert (loaded.log_start_offset, loaded.log_end_offset) == (state["logStartOffset"], state["logEndOffset"])
    assert loaded.producers.last_stable_offset(loaded.log_end_offset) == state["lastStableOffset"]
    assert [(s.base_offset, s.size) for s in loaded.segments] == [
        (segment["baseOffset"], segment["size"]) for segment in state["segments"]
    ]
    oracle.close()
    close_orderly(loaded)
    assert {path.name: path.read_bytes() for path in loaded.directory.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }
