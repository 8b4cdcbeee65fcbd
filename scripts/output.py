"""How every subcommand speaks: tables and progress for people, plain text in a pipe, JSON lines for programs.

Results go to stdout; warnings and progress go to stderr, so `--json` leaves stdout with JSON lines and nothing else.
rich is imported only where a terminal is written to.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import Task

#: Kafka's "no timestamp".
NO_TIMESTAMP = -1
#: Progress is shown for work that takes longer than this.
QUIET_SECONDS = 1.0

_encode = msgspec.json.Encoder().encode


def print_json(fields: Mapping[str, Any], flush: bool = False) -> None:
    """One JSON line on stdout, in UTF-8 whatever the locale. `flush`: a reader waits for it."""
    try:
        line = _encode(fields)
    except UnicodeEncodeError:
        line = _encode(_encodable(fields))
    sys.stdout.buffer.write(line + b"\n")
    if flush:
        sys.stdout.buffer.flush()


def _encodable(value: Any) -> Any:
    """File names may hold bytes that are no UTF-8: those show as `\\udcff`."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def print_line(text: str) -> None:
    """One line on stdout, buffered: for output of many lines."""
    sys.stdout.write(text + "\n")


def warn(message: str) -> None:
    """One sentence on stderr."""
    click.echo(f"warning: {message}", err=True)


def warn_about_reference_kernel() -> None:
    """Says so where the plain-Python kernel is the one that cleans."""
    from compactd.storage.kernel import active_kernel, native_kernel  # noqa: PLC0415

    if active_kernel().name == "native":
        return
    why = (
        "COMPACTD_KERNEL=reference asks for it"
        if native_kernel() is not None
        else "the native kernel isn't built here; install with a Rust toolchain to build it"
    )
    warn(f"the reference kernel is active, some 50 times slower than the native one ({why}).")


def human_bytes(count: int | float) -> str:
    """`1234567` as `1.2 MiB`; powers of 1024, as Kafka's settings count."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_count(count: int) -> str:
    """`1234567` as `1,234,567`."""
    return f"{count:,}"


def human_ms(milliseconds: int | float) -> str:
    """A length of time in its two largest units: `90061000` as `1 d 1 h`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    rest = int(seconds)
    for unit, length, smaller, smaller_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if rest >= length:
            tail = rest % length // smaller_length
            return f"{rest // length} {unit}" + (f" {tail} {smaller}" if tail else "")
    return f"{rest} s"


def human_time(timestamp_ms: int) -> str:
    """A record's timestamp in UTC with milliseconds, `-` for none, the bare number where no calendar holds it."""
    if timestamp_ms == NO_TIMESTAMP:
        return "-"
    second = _second(timestamp_ms // 1000)
    return str(timestamp_ms) if second is None else f"{second}.{timestamp_ms % 1000:03d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str | None:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return None


def human_second(timestamp_ms: int) -> str:
    """A point in time in UTC to the second, rounded up: for "not before"."""
    return human_time(-(-timestamp_ms // 1000) * 1000).replace(".000Z", "Z")


def percent(part: float, whole: float) -> str:
    """`part` of `whole` in percent, `-` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


class Table:
    """Rows under headings: a rich table on a terminal, aligned columns elsewhere (nothing is cut or wrapped there).

    A heading that starts with `>` is a right-aligned column. `droppable` names columns that may be left out on a
    terminal too narrow for all, the first one first.
    """

    def __init__(self, headings: Sequence[str], title: str = "", droppable: Sequence[str] = ()) -> None:
        self._right = [heading.startswith(">") for heading in headings]
        self._headings = [heading.removeprefix(">") for heading in headings]
        self._rows: list[list[str]] = []
        self._title = title
        self._droppable = list(droppable)

    def row(self, *cells: object) -> None:
        """Adds a row; cells are shown as str() gives them."""
        assert len(cells) == len(self._headings)
        self._rows.append([str(cell) for cell in cells])

    def show(self) -> None:
        """Prints it on stdout."""
        if not sys.stdout.isatty():
            self._show_plain()
            return
        width, dropped = shutil.get_terminal_size().columns, False
        while self._width() > width and self._droppable:
            dropped = self._drop(self._droppable.pop(0)) or dropped
        if self._width() > width:
            self._show_plain()
        else:
            self._show_rich()
        if dropped:
            print_line("(This terminal is too narrow for all columns: widen it, or pipe the output.)")

    def _widths(self) -> list[int]:
        lines = [self._headings, *self._rows]
        return [max(len(line[column]) for line in lines) for column in range(len(self._headings))]

    def _width(self) -> int:
        return sum(self._widths()) + 2 * len(self._headings)

    def _drop(self, heading: str) -> bool:
        if heading not in self._headings:
            return False
        column = self._headings.index(heading)
        del self._right[column]
        for line in (self._headings, *self._rows):
            del line[column]
        return True

    def _show_plain(self) -> None:
        if self._title:
            print_line(self._title)
        for line in (self._headings, *self._rows):
            cells = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, self._widths(), self._right, strict=True)
            )
            print_line("  ".join(cells).rstrip())

    def _show_rich(self) -> None:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table as RichTable  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = RichTable(
            box=SIMPLE_HEAD, title=self._title or None, title_justify="left", padding=(0, 1, 0, 0), show_edge=False
        )
        for heading, right in zip(self._headings, self._right, strict=True):
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
        for row in self._rows:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)


class Progress:
    """A bar with rate and time left on stderr, for a terminal and for work longer than a second; silent otherwise.

    Use as a context manager; call `advance(bytes)` as often as you like.
    """

    def __init__(self, title: str, total_bytes: int, enabled: bool = True) -> None:
        self._title = title
        self._total = total_bytes
        self._done = 0
        self._start = time.monotonic()
        self._enabled = enabled and sys.stderr.isatty()
        self._rich: RichProgress | None = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    def advance(self, count: int, title: str | None = None) -> None:
        """Adds `count` bytes; `title` renames the bar."""
        self._done += count
        if title is not None:
            self._title = title
        if not self._enabled:
            return
        if self._rich is None:
            if time.monotonic() - self._start < QUIET_SECONDS:
                return
            self._begin()
        assert self._rich is not None
        # Rounds can read more than was planned: the bar then grows instead of standing at 100 %.
        self._total = max(self._total, self._done)
        self._rich.update(self._task, completed=self._done, total=self._total, description=self._title)

    def rate_and_time_left(self) -> str:
        """`12.3 MiB/s, 1 min 4 s left`."""
        rate = self._done / max(time.monotonic() - self._start, 1e-9)
        left = (self._total - self._done) / rate if rate else 0
        return f"{human_bytes(rate)}/s, {human_ms(round(left) * 1000)} left"

    def _begin(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, DownloadColumn, ProgressColumn, TextColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        class RateAndTimeLeft(ProgressColumn):
            """From the start on, so that a stop-and-go of fsyncs doesn't make them jump."""

            def render(self, task: Task) -> Text:
                return Text(describe(), style="progress.data.speed")

        describe = self.rate_and_time_left
        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            RateAndTimeLeft(),
            console=Console(stderr=True),
            transient=True,
        )
        self._rich.start()
        self._task = self._rich.add_task(self._title, total=self._total)


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Seconds that the block took, in the list's only place once it has ended."""
    seconds = [0.0]
    start = time.perf_counter()
    try:
        yield seconds
    finally:
        seconds[0] = time.perf_counter() - start
