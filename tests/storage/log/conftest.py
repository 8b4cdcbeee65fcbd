"""Closes the logs that a test of this folder made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.log import logs


@pytest.fixture(autouse=True)
def _closed_logs() -> Iterator[None]:
    yield
    while logs.MADE:
        logs.MADE.pop().close(orderly=False)
