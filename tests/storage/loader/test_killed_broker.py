"""The killed broker's log dir: loaded, recovered, verified; the same as Kafka loads it (tests/oracle/test_killed_broker.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.loader import load_log
from compactd.storage.log_dir import LogDir
from compactd.storage.names import parse_partition_dir
from compactd.storage.orderly_close import close_orderly
from tests.storage.loader.killed import KILLED_MS, PARTITIONS, unpack
from tests.storage.loader.loading import leftovers

#: Log end, last stable offset, producers, leader epochs.
EXPECTED = {
    "__transaction_state-0": (82, 82, 0, [(0, 0), (2, 80)]),
    "compact-test-0": (6, 6, 0, [(0, 0)]),
    "payments-0": (2997, 2971, 5, [(0, 0), (2, 2971)]),
    "sessions-0": (15498, 15498, 0, [(0, 0)]),
}


def load(log_dir: Path, name: str) -> LoadedLog:
    found = LogDir(log_dir)
    partition = parse_partition_dir(name).topic_partition
    assert found.clean_shutdown() is None
    return load_log(
        log_dir / name,
        TopicConfig(),
        clean_shutdown=False,
        recovery_point=found.recovery_points.read()[partition],
        now_ms=KILLED_MS,
    )


@pytest.mark.parametrize("name", PARTITIONS)
def test_it_loads(tmp_path: Path, name: str) -> None:
    loaded = load(unpack(tmp_path), name)
    end, stable, producers, epochs = EXPECTED[name]
    assert (loaded.log_start_offset, loaded.log_end_offset) == (0, end)
    assert loaded.producers.last_stable_offset(end) == stable
    assert len(loaded.producers) == producers
    assert loaded.epochs.entries == epochs
    close_orderly(loaded)
    assert leftovers(loaded.directory) == []
    assert max(path.stat().st_size for path in loaded.directory.glob("*index")) < 10_000
