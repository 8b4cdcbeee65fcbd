"""Yielding by the kernel's pressure figures, from a file of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.workers.io_pressure import IoPressure, read_share
from tests.workers.moving_time import Time, moving_time

_FIGURES = """some avg10={} avg60=1.00 avg300=0.50 total=1234
full avg10=0.00 avg60=0.00 avg300=0.00 total=12
"""


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Time:
    return moving_time(monkeypatch, "io_pressure")


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    path = tmp_path / "io"
    path.write_text(_FIGURES.format("0.00"))
    return path


def test_the_share_of_time_that_somebody_waited(figures: Path) -> None:
    figures.write_text(_FIGURES.format("37.25"))
    assert read_share(figures) == 37.25


@pytest.mark.parametrize("content", ["", "\n", "some\n", "some avg10=much\n", "some avg60=1\n", "some avg10\n"])
def test_figures_that_are_not_understood_count_as_no_pressure(figures: Path, content: str) -> None:
    figures.write_text(content)
    assert read_share(figures) == 0.0


def test_a_kernel_without_such_figures(tmp_path: Path, moving: Time) -> None:
    assert read_share(tmp_path / "nothing") == 0.0
    IoPressure(10, tmp_path / "nothing").wait(lambda: None)
    assert not moving.slept


def test_it_waits_a_little_for_each_chunk_and_never_for_good(figures: Path, moving: Time) -> None:
    figures.write_text(_FIGURES.format("80.00"))
    pressure, checks = IoPressure(50, figures), []
    pressure.wait(lambda: checks.append(moving.now))
    assert sum(moving.slept) == pytest.approx(0.25, abs=0.051)
    assert len(checks) == len(moving.slept)


def test_it_goes_on_as_soon_as_the_pressure_falls(figures: Path, moving: Time) -> None:
    figures.write_text(_FIGURES.format("80.00"))
    pressure = IoPressure(50, figures)
    assert pressure.is_high
    figures.write_text(_FIGURES.format("20.00"))
    moving.now += 1.0
    assert not pressure.is_high
    pressure.wait(lambda: None)
    assert not moving.slept


def test_the_file_is_looked_at_once_a_second(figures: Path, moving: Time) -> None:
    pressure = IoPressure(50, figures)
    assert not pressure.is_high
    figures.write_text(_FIGURES.format("80.00"))
    assert not pressure.is_high
    moving.now += 1.0
    assert pressure.is_high and pressure.share == 80.0


@pytest.mark.parametrize("settings", [{}, {"cleaner.io.pressure.limit": "100"}])
def test_no_limit_no_yielding(settings: dict[str, str], figures: Path, moving: Time) -> None:
    figures.write_text(_FIGURES.format("100.00"))
    pressure = IoPressure.of(settings)
    pressure._path = figures
    pressure.wait(lambda: None)
    assert not moving.slept and not pressure.is_high


def test_the_limit_of_the_settings(figures: Path, moving: Time) -> None:
    pressure = IoPressure.of({"cleaner.io.pressure.limit": "30"})
    pressure._path = figures
    figures.write_text(_FIGURES.format("30.00"))
    assert not pressure.is_high
    moving.now += 1
    figures.write_text(_FIGURES.format("30.01"))
    assert pressure.is_high
