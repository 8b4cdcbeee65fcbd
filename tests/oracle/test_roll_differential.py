"""`--roll`: the active segment of a stopped broker's log closed by compactd, against a roll by Kafka itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from compactd.storage.roll import roll_active_segment
from tests.oracle.compare import compare
from tests.oracle.driver import Oracle
from tests.oracle.ours import load
from tests.oracle.replay import play
from tests.oracle.scenario import Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]


@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(max_rounds=2))
def test_rolled_log_is_the_same(oracle: Oracle, fast_dir: Path, scenario: Scenario) -> None:
    shutil.rmtree(fast_dir, ignore_errors=True)
    for cleaning in play(oracle, scenario, fast_dir / "play"):
        image = cleaning.image
        kafka, ours = fast_dir / "kafka" / "t-0", fast_dir / "ours" / "t-0"
        shutil.copytree(image.before, kafka)
        shutil.copytree(image.before, ours)

        state = oracle.open(kafka, image.config, now=image.now_ms, logStartOffset=image.log_start_offset)
        if state["logEndOffset"] > state["activeSegment"]:
            oracle.roll()
            roll_active_segment(load(ours, cleaning))
        oracle.close()
        assert compare(image.before, kafka, ours, 0, frozenset()).differences == []

        # Kafka starts on what compactd rolled, and finds nothing to put right.
        again = oracle.open(ours, image.config, now=image.now_ms, logStartOffset=image.log_start_offset)
        assert again["activeSegment"] == again["logEndOffset"] == state["logEndOffset"]
        oracle.close()
        assert compare(image.before, kafka, ours, 0, frozenset()).differences == []
        shutil.rmtree(kafka.parent)
        shutil.rmtree(ours.parent)
