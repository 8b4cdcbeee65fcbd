"""The live screen of `compactd status --watch`: the terminal's other screen, so that nothing of it stays behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from compactd.coordinator.control.messages import Status
from compactd.scripts.status_view import Section, View, view_of

_FEWEST_PARTITIONS = 3
#: Between columns, and what a column keeps at least on a narrow screen.
_GAP = 2
_LONGEST_NAME = 20
#: With fewer lines there are no empty ones between the tables.
_ROOMY_LINES = 32


def show_live(ask: Callable[[], Status], interval: float, show_all: bool, console: Console | None = None) -> NoReturn:
    """Until it is interrupted, or `ask` raises: the terminal is as before then."""
    console = console or Console()
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(screen_of(ask(), console, show_all), refresh=True)
            time.sleep(interval)


def screen_of(status: Status, console: Console, show_all: bool) -> RenderableType:
    """Everything, with as many partitions as the screen has room for."""
    height = console.size.height
    if show_all:
        return _drawn(view_of(status, None), console)
    few = _drawn(view_of(status, _FEWEST_PARTITIONS), console)
    # A partition is a line, so what is left is how many more there can be.
    room = height - len(console.render_lines(few, pad=False))
    return few if room <= 0 else _drawn(view_of(status, _FEWEST_PARTITIONS + room), console)


def _drawn(view: View, console: Console) -> Group:
    parts: list[RenderableType] = [_line(view.head, "bold")]
    parts += [_line(f"! {alarm}", "bold red") for alarm in view.alarms]
    for section in view.sections:
        if console.size.height >= _ROOMY_LINES:
            parts.append(Text(""))
        if section.rows:
            parts.append(_table(section, console.size.width))
        elif section.title:
            parts.append(_line(section.title, "bold"))
        parts += [_line(note, "dim") for note in section.notes]
    parts.append(_line("Ctrl-C ends this; the daemon goes on.", "dim"))
    return Group(*parts)


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(section: Section, width: int) -> Table:
    """Without columns that may go where they do not all fit; what still does not fit is cut at the right."""
    names = [heading.removeprefix(">") for heading in section.headings]
    widths = [max(len(name), *(len(row[at]) for row in section.rows)) for at, name in enumerate(names)]
    kept = list(range(len(names)))
    for name in section.droppable:
        if sum(widths[at] + _GAP for at in kept) - _GAP <= width:
            break
        kept.remove(names.index(name))
    table = Table(
        box=None,
        title=section.title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
    )
    for at in kept:
        right = section.headings[at] != names[at]
        # Sentences are cut on a narrow screen, and not names and numbers.
        least = min(widths[at], _LONGEST_NAME)
        table.add_column(
            names[at], justify="right" if right else "left", no_wrap=True, overflow="ellipsis", min_width=least
        )
    for row in section.rows:
        table.add_row(*(Text(row[at]) for at in kept))
    return table
