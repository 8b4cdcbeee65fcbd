"""A clock that only sleeping moves."""

from __future__ import annotations

import pytest


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def moving_time(monkeypatch: pytest.MonkeyPatch, module: str) -> Time:
    """Takes the place of `time` in a module of compactd.workers until the end of the test."""
    moving = Time()
    monkeypatch.setattr(f"compactd.workers.{module}.time.sleep", moving.sleep)
    monkeypatch.setattr(f"compactd.workers.{module}.time.monotonic", lambda: moving.now)
    return moving
