"""A rate of bytes, on a clock that only sleeping moves."""

from __future__ import annotations

import pytest

from compactd.workers.throttle import Throttle
from tests.workers.moving_time import Time, moving_time


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Time:
    return moving_time(monkeypatch, "throttle")


def test_it_holds_the_rate(moving: Time) -> None:
    throttle = Throttle(1000.0)
    for _ in range(50):
        throttle.observe(100, lambda: None)
    assert moving.now - 1000 == pytest.approx(5.0, abs=0.01)


def test_no_sleep_below_the_rate(moving: Time) -> None:
    throttle = Throttle(1000.0)
    for _ in range(50):
        moving.now += 0.2
        throttle.observe(100, lambda: None)
    assert not moving.slept


def test_what_was_saved_long_ago_is_not_spent_at_once(moving: Time) -> None:
    throttle = Throttle(1000.0)
    moving.now += 3600
    throttle.observe(10, lambda: None)
    before = moving.now
    throttle.observe(2000, lambda: None)
    assert moving.now - before == pytest.approx(2.0, abs=0.31)


def test_it_asks_whether_to_go_on_while_it_sleeps(moving: Time) -> None:
    class EnoughError(Exception):
        pass

    def check() -> None:
        if len(moving.slept) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        Throttle(1.0).observe(1_000_000, check)
    assert sum(moving.slept) < 1


def test_a_new_rate_holds_at_once_also_for_one_who_sleeps(moving: Time) -> None:
    throttle = Throttle(1.0)

    def check() -> None:
        if len(moving.slept) == 2:
            throttle.rate = 1e9

    throttle.observe(1_000_000, check)
    assert len(moving.slept) == 2 and throttle.rate == 1e9


def test_the_same_rate_again_forgives_nothing(moving: Time) -> None:
    throttle = Throttle(1000.0)

    def check() -> None:
        throttle.rate = 1000.0

    throttle.observe(2000, check)
    assert moving.now - 1000 == pytest.approx(2.0, abs=0.01)


def test_without_a_limit_nothing_is_held_back(moving: Time) -> None:
    throttle = Throttle(1.7976931348623157e308)
    for _ in range(10):
        throttle.observe(1 << 40, lambda: None)
    assert sum(moving.slept) < 1e-6
