"""What the tests of cleaning share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage.kernel import native_kernel, reference_kernel
from compactd.storage.kernel.interface import Kernel
from tests.storage.cleaning.short_log import ShortLog

LogMaker = Callable[..., ShortLog]


@pytest.fixture(params=["reference", "native"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Each kernel in turn; the native one is passed over where it was not built."""
    if request.param == "reference":
        return reference_kernel()
    native = native_kernel()
    if native is None:
        pytest.skip("the native kernel is not built")
    return native


@pytest.fixture
def log_dir(fast_dir: Path) -> Path:
    """Where make_log puts its partitions; in memory where that is possible, as every clean fsyncs a lot."""
    path = fast_dir / "logs"
    path.mkdir()
    return path


@pytest.fixture
def make_log(log_dir: Path) -> LogMaker:
    """make_log(segment_bytes=1024, ...) is a new empty log of a compacted topic."""
    number = 0

    def make(name: str | None = None, **settings: Any) -> ShortLog:
        nonlocal number
        number += 1
        config = TopicConfig(**{"cleanup_policy": frozenset({"compact"}), "segment_bytes": 1024, **settings})
        return ShortLog(log_dir / (name or f"t{number}-0"), config)

    return make
