"""The generators themselves: every log they draw is one that Kafka writes, loads and cleans."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.oracle.driver import Oracle
from tests.oracle.replay import play
from tests.oracle.scenario import Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

#: Kafka's own limit: a V0 or V1 batch that loses its last record just below the high watermark stops the cleaner.
LEGACY_EMPTY_BATCH = "IllegalStateException: Empty batches are only supported for magic v2 and above"

#: Kafka's own limit: a V0 or V1 batch that loses its last record just below the high watermark stops the cleaner.
LEGACY_EMPTY_BATCH = "IllegalStateException: Empty batches are only supported for magic v2 and above"


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_kafka_cleans_every_scenario(oracle: Oracle, fast_dir: Path, scenario: Scenario) -> None:
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    for cleaning in play(oracle, scenario, fast_dir / "play"):
        assert cleaning.error in (None, LEGACY_EMPTY_BATCH)
