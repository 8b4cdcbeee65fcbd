from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactd.workers.clock import Clock, write_offset

_HOUR = 3_600_000


def test_the_machines_own_time() -> None:
    clock = Clock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= time.time_ns() // 1_000_000
    assert clock.monotonic() <= time.monotonic()
    clock.close()


def test_a_clock_that_a_test_moves_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "offset"
    write_offset(path, _HOUR)
    clock, other = Clock(path), Clock(str(path))
    assert clock.now_ms() >= time.time_ns() // 1_000_000 + _HOUR - 1
    write_offset(path, -2 * _HOUR)
    for each in (clock, other):
        assert each.now_ms() <= time.time_ns() // 1_000_000 - 2 * _HOUR
    other.close()
    assert other.now_ms() <= time.time_ns() // 1_000_000
    clock.close()


def test_an_offset_file_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Clock(tmp_path / "nothing")
