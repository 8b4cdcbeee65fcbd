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

#: Kafka's own limits: a V0 or V1 batch that loses its last record just below the high watermark stops the cleaner, and so
#: does an index that a denser interval overfills.
LIMITS = (
    "IllegalStateException: Empty batches are only supported",
    "IllegalArgumentException: Attempt to append to a full",
)


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_kafka_cleans_every_scenario(oracle: Oracle, fast_dir: Path, scenario: Scenario) -> None:
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    for cleaning in play(oracle, scenario, fast_dir / "play"):
        assert cleaning.error is None or cleaning.error.startswith(LIMITS)
