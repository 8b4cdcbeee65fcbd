"""`compactd status`: what the daemon does, once, or as a live screen."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from compactd.coordinator.control.messages import GetStatus, Status
from compactd.coordinator.control.socket import ControlClient
from compactd.scripts.output import Table, print_json, print_line
from compactd.scripts.running import connect, daemon_options
from compactd.scripts.status_view import MAX_PARTITIONS, View, to_json, view_of

#: So many partitions are told of although none of them has anything to be cleaned.
_FEW_PARTITIONS = 1000


@click.command(
    name="status",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 3 no daemon runs, 4 it did not answer.",
)
@click.option("--watch", is_flag=True, help="Show it again and again, on a terminal as a live screen; Ctrl-C ends it.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch asks.",
)
@click.option("--all", "show_all", is_flag=True, help="Every partition, and not only the dirtiest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line; with --watch, one each time.")
@daemon_options
def command(
    watch: bool, interval: float, show_all: bool, as_json: bool, config: Path | None, run_dir: Path | None
) -> None:
    """Show what the running daemon does: processes, cleans, partitions by dirty ratio with the first reason that keeps
    each from being cleaned, quarantine, files to be deleted, and space.

    \b
    Examples:
      compactd status
      compactd status --watch
      compactd status --all --json | jq '.cleaning.partitions[] | select(.dirtyRatio > 0.5)'
    """
    with connect(config, run_dir) as daemon:

        def ask() -> Status:
            return _ask(daemon, show_all)

        if not watch:
            _print(ask(), show_all, as_json)
            return
        # Ctrl-C is how a watch ends, not an interruption of work.
        with contextlib.suppress(KeyboardInterrupt):
            if not as_json and sys.stdout.isatty():
                from compactd.scripts.status_screen import show_live  # noqa: PLC0415  rich only where it is needed

                show_live(ask, interval, show_all)
            _repeat(ask, interval, lambda status: _print(status, show_all, as_json))


def _ask(daemon: ControlClient, show_all: bool) -> Status:
    answer = daemon.ask(GetStatus(all_partitions=show_all))
    assert isinstance(answer, Status)
    if not answer.cleaning.partitions and not show_all and answer.partitions <= _FEW_PARTITIONS:
        # Nothing is dirty. Say of each why: mostly all of its records are in the segment that is being written.
        return _ask(daemon, True)
    return answer


def _repeat(ask: Callable[[], Status], interval: float, show: Callable[[Status], None]) -> None:
    while True:
        show(ask())
        sys.stdout.flush()
        time.sleep(interval)


def _print(status: Status, show_all: bool, as_json: bool) -> None:
    if as_json:
        print_json(to_json(status), flush=True)
    else:
        _print_view(view_of(status, None if show_all else MAX_PARTITIONS))


def _print_view(view: View) -> None:
    print_line(view.head)
    for alarm in view.alarms:
        print_line(f"! {alarm}")
    for section in view.sections:
        print_line("")
        if section.rows:
            table = Table(section.headings, section.title, section.droppable)
            for row in section.rows:
                table.row(*row)
            table.show()
        elif section.title:
            print_line(section.title)
        for note in section.notes:
            print_line(note)
