"""How every subcommand speaks: tables and progress for people, plain text in a pipe, JSON lines for programs.

Results go to stdout; warnings and progress go to stderr, so `--json` leaves stdout with JSON lines and nothing else.
rich is imported only where a terminal is written to.
"""

from __future__ import annotations

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

#: Kafka's "no timestamp".
NO_TIMESTAMP = -1
#: Progress is shown for work that takes longer than this.
QUIET_SECONDS = 1.0

_encode = msgspec.json.Encoder().encode


def print_json(fields: Mapping[str, Any], flush: bool = False) -> None:
    """One JSON line on stdout, in UTF-8 whatever the locale. `flush`: a reader waits for it."""
    sys.stdout.buffer.write(_encode(fields) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


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
    warn(f"the reference kernel is active, some 100 times slower than the native one ({why}).")


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


def percent(part: float, whole: float) -> str:
    """`part` of `whole` in percent, `-` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


class Table:
    """Rows under headings: a rich table on a terminal, aligned columns elsewhere (nothing is cut or wrapped there).

    A heading that starts with `>` is a right-aligned column.
    """

    def __init__(self, headings: Sequence[str], title: str = "") -> None:
        self._right = [heading.startswith(">") for heading in headings]
        self._headings = [heading.removeprefix(">") for heading in headings]
        self._rows: list[list[str]] = []
        self._title = title

    def row(self, *cells: object) -> None:
        """Adds a row; cells are shown as str() gives them."""
        self._rows.append([str(cell) for cell in cells])

    def show(self) -> None:
        """Prints it on stdout."""
        if sys.stdout.isatty():
            self._show_rich()
        else:
            self._show_plain()

    def _show_plain(self) -> None:
        lines = [self._headings, *self._rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self._headings))]
        if self._title:
            click.echo(self._title)
        for line in lines:
            cells = (
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, self._right, strict=True)
            )
            click.echo("  ".join(cells).rstrip())

    def _show_rich(self) -> None:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table as RichTable  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = RichTable(box=SIMPLE_HEAD, title=self._title or None, title_justify="left", pad_edge=False)
        for heading, right in zip(self._headings, self._right, strict=True):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
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

    def _begin(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
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
