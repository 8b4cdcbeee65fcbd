"""A broker for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.broker.harness import InProcessBroker


@pytest.fixture
def log_dir(fast_dir: Path) -> Path:
    """An empty log dir."""
    path = fast_dir / "log"
    path.mkdir()
    return path


@pytest.fixture
def broker(log_dir: Path) -> Iterator[InProcessBroker]:
    """A broker with one log dir and no topics."""
    with InProcessBroker([log_dir]) as running:
        yield running
