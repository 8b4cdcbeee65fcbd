"""The scene that every test here plays in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.cleaning.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)
