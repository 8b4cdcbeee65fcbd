"""A load that was stopped at any call of the file layer: Kafka, too, comes up with every record that had been flushed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.storage import files, names
from tests.file_faults import FaultyLayer, PowerCut
from tests.oracle.driver import Oracle
from tests.storage.loader.loading import leftovers, load
from tests.storage.loader.test_crash_matrix import CASES

pytestmark = pytest.mark.kafka

_CONFIG = {"index.interval.bytes": 0, "segment.index.bytes": 4096}


def _offsets(oracle: Oracle) -> list[int]:
    return [record["offset"] for batch in oracle.dump() for record in batch["records"]]


@pytest.mark.parametrize("case", CASES)
def test_kafka_opens_what_a_stopped_recovery_left(oracle: Oracle, fast_dir: Path, case: str) -> None:
    whole = fast_dir / "whole-0"
    point = CASES[case](whole)
    oracle.open(whole, _CONFIG, cleanShutdown=False, recoveryPoint=point)
    wanted = _offsets(oracle)
    for number in range(1000):
        directory = fast_dir / f"t{number}-0"
        CASES[case](directory)
        layer = FaultyLayer()
        layer.stop_at(number, after=number % 2 == 1)
        try:
            with files.replaced(layer):
                load(directory, recovery_point=point)
        except PowerCut:
            layer.close_all()
            layer.lose_unsynced(seed=number)
        else:
            assert number > 5
            return
        oracle.open(directory, _CONFIG, cleanShutdown=False, recoveryPoint=point)
        assert _offsets(oracle) == wanted, f"stopped at call {number}: {layer.calls[-1]}"
        assert leftovers(directory) == []
        assert not [path for path in directory.iterdir() if path.name.endswith((names.CLEANED, names.SWAP))]
