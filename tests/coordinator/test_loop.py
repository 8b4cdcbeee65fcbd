from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from compactd.coordinator.loop import SLOW_SECONDS, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_timers_run_in_the_order_of_their_time_and_a_cancelled_one_never(loop: Loop) -> None:
    seen: list[str] = []
    loop.call_later(0.03, lambda: (seen.append("late"), loop.stop()))  # type: ignore[arg-type, return-value]
    loop.call_later(0.01, lambda: seen.append("early"))
    loop.call_later(0.02, lambda: seen.append("never")).cancel()
    loop.run()
    assert seen == ["early", "late"]


def test_a_period_goes_on_after_an_error(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        if len(turns) == 3:
            loop.stop()
        raise ZeroDivisionError

    loop.every(0.001, turn)
    loop.run()
    assert len(turns) == 3
    assert "the coordinator goes on" in caplog.text


def test_missed_periods_are_not_made_up_for(loop: Loop) -> None:
    turns: list[int] = []
    loop.every(0.01, lambda: turns.append(1), first=0)
    loop.call_later(0, lambda: time.sleep(0.2))
    loop.call_later(0.201, loop.stop)
    loop.run()
    # Twenty are due; only those that came in time, and one for all that was missed.
    assert len(turns) < 10


def test_sources_are_descriptors_and_sockets(loop: Loop) -> None:
    context = zmq.Context()
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    left.bind("inproc://test")
    right.connect("inproc://test")
    read, write = os.pipe()
    seen: list[bytes] = []

    def from_socket() -> None:
        seen.append(right.recv())
        os.write(write, b"pipe")

    def from_pipe() -> None:
        seen.append(os.read(read, 10))
        loop.stop()

    loop.add_source(right, from_socket)
    loop.add_source(read, from_pipe)
    left.send(b"socket")
    loop.run()
    assert seen == [b"socket", b"pipe"]
    loop.remove_source(read)
    loop.remove_source(read)
    loop.remove_source(right)
    for descriptor in (read, write):
        os.close(descriptor)
    left.close()
    right.close()
    context.term()


def test_a_lane_works_in_order_in_one_thread_and_hands_results_back(loop: Loop) -> None:
    threads: set[int] = set()
    seen: list[object] = []

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        if number == 2:
            raise ValueError("two")
        return number

    def done(result: object) -> None:
        assert threading.get_ident() == threading.main_thread().ident
        seen.append(result)
        if result == 3:
            loop.stop()

    for number in (1, 2, 3):
        loop.in_lane("files", lambda number=number: work(number), done, lambda error: seen.append(str(error)))
    loop.run()
    assert seen == [1, "two", 3]
    assert len(threads) == 1
    assert threading.main_thread().ident not in threads


def test_slow_turns_are_counted_with_what_took_the_time(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def dawdle() -> None:
        time.sleep(SLOW_SECONDS * 1.5)

    loop.call_later(0, dawdle)
    loop.call_later(0.01, loop.stop)
    loop.run()
    status = loop.status()
    assert status.slow_turns == 1
    assert status.slowest.endswith("dawdle")
    assert status.slowest_ms > SLOW_SECONDS * 1000
    assert "a turn of the coordinator took" in caplog.text


def test_nothing_turns_while_nothing_happens(loop: Loop) -> None:
    loop.call_later(0.3, loop.stop)
    loop.run()
    assert loop.status().turns <= 3
