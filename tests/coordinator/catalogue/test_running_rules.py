"""Changes that depend on what the running node has (texts of Kafka 4.4.0)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig
from compactd.coordinator.catalogue.running_rules import running_fault
from compactd.coordinator.interfaces import Settings

SETTINGS = Settings(
    storage=StorageConfig.from_strings({"log.dirs": "/d1", "background.threads": "10"}),
    cleaner=CleanerConfig.from_strings({"log.cleaner.threads": "4", "log.cleaner.dedupe.buffer.size": "10000000"}),
    daemon=DaemonConfig.from_strings({}),
)
ONE_MIB_EACH = "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("log.cleaner.threads", "2", None), ("log.cleaner.threads", "8", None), ("log.cleaner.threads", "4", None),
        ("log.cleaner.threads", "9", "Log cleaner threads cannot be increased to more than double the current value 4"),
        ("log.cleaner.threads", "1", "Log cleaner threads cannot be reduced to less than half the current value 4"),
        ("log.cleaner.threads", "0", "Log cleaner threads should be at least 1"),
        ("background.threads", "5", None), ("background.threads", " 20 ", None),
        ("background.threads", "21", "Dynamic thread count update validation failed for background.threads=21, value "
         "should not be greater than double the current value 10"),
        ("num.io.threads", "3", "Dynamic thread count update validation failed for num.io.threads=3, value should be at "
         "least half the current value 8"),
        ("log.cleaner.dedupe.buffer.size", "4194308", None), ("log.cleaner.dedupe.buffer.size", "4194304", ONE_MIB_EACH),
        ("log.retention.ms", "-1", None), ("log.retention.ms", "1", None),
        ("log.retention.ms", "0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ("max.connections", "0", "Invalid max.connections 0"), ("max.connections", "1", None),
        ("max.connections.per.ip.overrides", "127.0.0.1:5", None),
    ],
)  # fmt: skip
def test_one_change(name: str, value: str, fault: str | None) -> None:
    assert running_fault({name: value}, {}, SETTINGS) == fault


@pytest.mark.parametrize(
    ("changes", "stored", "is_fine"),
    [
        ({"log.cleaner.threads": "8", "log.cleaner.dedupe.buffer.size": "8388609"}, {}, False),
        ({"log.cleaner.threads": "8", "log.cleaner.dedupe.buffer.size": "16777216"}, {}, True),
        ({"num.io.threads": "3"}, {"num.io.threads": "5"}, True),
        ({"max.connections.per.ip": "0"}, {}, False),
        ({"max.connections.per.ip": "0"}, {"max.connections.per.ip.overrides": "localhost:3"}, True),
        ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "localhost:3"}, {}, True),
        ({"max.connections.per.ip.overrides": "localhost"}, {}, False),
    ],
)
def test_changes_together(changes: Mapping[str, str], stored: Mapping[str, str], is_fine: bool) -> None:
    assert (running_fault(changes, stored, SETTINGS) is None) == is_fine
