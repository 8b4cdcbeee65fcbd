"""Tables, numbers and progress: on a terminal, and without one."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from compactd.scripts.output import Progress, Table, human_bytes, human_ms, human_second, human_time, percent
from compactd.scripts.values import compact_json, plain
from tests.scripts.helpers import NOW, Broker, batch


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_234_567, "1.2 MiB"), (-104, "-104 B"), (1 << 42, "4.0 TiB")],
)
def test_bytes(size: int, text: str) -> None:
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(5, "5 ms"), (1500, "1.5 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h"), (90_061_000, "1 d 1 h")],
)
def test_lengths_of_time(ms: int, text: str) -> None:
    assert human_ms(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-1, "-"), (0, "1970-01-01T00:00:00.000Z"), (NOW + 7, "2023-11-14T22:13:20.007Z"), (2**62, str(2**62))],
)
def test_times(ms: int, text: str) -> None:
    assert human_time(ms) == text


def test_a_time_to_wait_for_is_rounded_up() -> None:
    assert human_second(NOW + 1) == "2023-11-14T22:13:21Z"


def test_percent_of_nothing() -> None:
    assert (percent(1, 4), percent(0, 0)) == ("25.0 %", "-")


def test_a_plain_table_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(["name", ">count"], title="things", droppable=("count",))
    table.row("a" * 300, 1)
    table.row("b", 1234)
    table.show()
    assert capsys.readouterr().out.splitlines() == [
        "things",
        "name".ljust(300) + "  count",
        "a" * 300 + "      1",
        "b".ljust(300) + "   1234",
    ]


def on_a_terminal(columns: int, *arguments: object) -> str:
    """What compactd shows on a terminal of that width, escape sequences and all."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "compactd.scripts", *map(str, arguments)],
        stdout=other,
        stderr=other,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"},
    )
    os.close(other)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(main)
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_a_narrow_terminal_drops_columns_and_says_so(broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    path = broker.stop()
    wide = on_a_terminal(250, "analyze", "--set", "cleanup.policy=compact", path)
    assert "markers" in wide and "too narrow" not in wide and "\x1b[1m" in wide
    narrow = on_a_terminal(80, "analyze", "--set", "cleanup.policy=compact", path)
    assert "markers" not in narrow and "too narrow for all columns" in narrow
    assert "held up by" in narrow and "t-0" in narrow


def test_progress_shows_rate_and_time_left_after_a_second_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock = [100.0]
    monkeypatch.setattr("compactd.scripts.output.time.monotonic", lambda: clock[0])
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Progress("reading", 100 << 20) as progress:
        progress.advance(10 << 20)
        assert screen.getvalue() == ""
        clock[0] += 1.5
        progress.advance(10 << 20, "t-0")
        assert progress.rate_and_time_left() == "13.3 MiB/s, 6.0 s left"
        progress.advance(200 << 20)
        assert progress.rate_and_time_left().endswith("0 ms left")  # more than was planned
    shown = screen.getvalue()
    assert "t-0" in shown and "MiB/s, " in shown and " left" in shown

    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Progress("reading", 100) as progress:
        clock[0] += 5
        progress.advance(10)
    assert pipe.getvalue() == ""


def test_decoded_values_become_json() -> None:
    value = {"a": b"\x01\xff", 1: (Path("x"), {3, 2}), "n": None, "s": "\x1b"}
    assert plain(value) == {"a": "01ff", "1": ["x", [2, 3]], "n": None, "s": "\x1b"}
    assert compact_json(value) == '{"a":"01ff","1":["x",[2,3]],"n":null,"s":"\\u001b"}'
