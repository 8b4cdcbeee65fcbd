"""Commands that tell a running daemon what to do: clean-now, pause, resume, retry, undo, reload, stop."""

from __future__ import annotations

import time
from pathlib import Path

import click

from compactd.config.errors import EXIT_REFUSED, NoAnswerError
from compactd.coordinator.control.messages import (
    CleanNow,
    Control,
    Done,
    Pause,
    Reload,
    Reloaded,
    Resume,
    Retry,
    StopDaemon,
    Undo,
)
from compactd.coordinator.run_dir import is_running
from compactd.scripts.output import print_json, print_line
from compactd.scripts.running import connect, daemon_options

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_EPILOG = "Exit codes: 0 done, 2 wrong usage, 3 refused or no daemon runs, 4 it did not answer."
#: The owner of a partition renames and fsyncs files for an undo, and a reload may wait for the catalogue.
_SECONDS = 60.0
_LOOK_SECONDS = 0.05

_names = click.argument("names", metavar="[TOPIC | TOPIC-PARTITION]...", nargs=-1)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON line.")


@click.command(name="clean-now", context_settings=_SETTINGS, epilog=_EPILOG)
@click.argument("names", metavar="TOPIC | TOPIC-PARTITION...", nargs=-1, required=True)
@_json
@daemon_options
def clean_now(names: tuple[str, ...], as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Clean topics or single partitions as soon as a cleaner is free, whatever their dirty ratio.

    \b
    Examples:
      compactd clean-now users
      compactd clean-now users-0 users-3
    """
    _tell(CleanNow(names=names), as_json, config, run_dir)


@click.command(name="pause", context_settings=_SETTINGS, epilog=_EPILOG)
@_names
@_json
@daemon_options
def pause(names: tuple[str, ...], as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Clean none of these until `compactd resume`; without names, nothing at all.

    A clean that is running lets go; what it had not put in place yet is done again later. A pause outlasts restarts.

    \b
    Examples:
      compactd pause users
      compactd pause
    """
    _tell(Pause(names=names), as_json, config, run_dir)


@click.command(name="resume", context_settings=_SETTINGS, epilog=_EPILOG)
@_names
@_json
@daemon_options
def resume(names: tuple[str, ...], as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Take back a `compactd pause` of the same names; without names, the one without names.

    \b
    Examples:
      compactd resume users
      compactd resume
    """
    _tell(Resume(names=names), as_json, config, run_dir)


@click.command(name="retry", context_settings=_SETTINGS, epilog=_EPILOG)
@_names
@_json
@daemon_options
def retry(names: tuple[str, ...], as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Release partitions from quarantine, so that they are cleaned again; without names, all of them.

    `compactd status` lists them, with the file and what is wrong with it.

    \b
    Examples:
      compactd retry users-0
      compactd retry
    """
    _tell(Retry(names=names), as_json, config, run_dir)


@click.command(name="undo", context_settings=_SETTINGS, epilog=_EPILOG)
@click.argument("name", metavar="TOPIC-PARTITION")
@_json
@daemon_options
def undo(name: str, as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Put the files that the last clean of a partition replaced back, while they still exist.

    They do for file.delete.delay.ms after the clean. The partition stays paused until `compactd resume`.

    \b
    Example:
      compactd undo users-0
    """
    _tell(Undo(name=name), as_json, config, run_dir)


@click.command(name="reload", context_settings=_SETTINGS, epilog=_EPILOG)
@_json
@daemon_options
def reload(as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Have the daemon read its configuration again, as SIGHUP does, and say what that changed.

    Ends with 3 where the file has changes that only a restart can apply; all others are in force then.

    \b
    Example:
      compactd reload --config compactd.yaml
    """
    with connect(config, run_dir) as daemon:
        answer = daemon.ask(Reload(), _SECONDS)
    assert isinstance(answer, Reloaded)
    if as_json:
        print_json({"applied": list(answer.applied), "refused": list(answer.refused)})
    else:
        for line in answer.applied:
            print_line(line)
        for line in answer.refused:
            print_line(f"not applied: {line}")
        if not answer.applied and not answer.refused:
            print_line("nothing changed")
    if answer.refused:
        raise SystemExit(EXIT_REFUSED)


@click.command(name="stop", context_settings=_SETTINGS, epilog=_EPILOG)
@click.option("--no-wait", is_flag=True, help="Only begin; do not wait for the end.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=90.0,
    show_default=True,
    help="Longest wait. The daemon goes on stopping after it.",
)
@_json
@daemon_options
def stop(no_wait: bool, timeout: float, as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Stop the daemon in good order, as SIGTERM does, and wait for its end.

    \b
    Examples:
      compactd stop
      compactd stop --config compactd.yaml --timeout 300
    """
    begun = time.monotonic()
    with connect(config, run_dir) as daemon:
        answer, held, pid = daemon.ask(StopDaemon()), daemon.run_dir, daemon.pid
    assert isinstance(answer, Done)
    if not no_wait:
        while is_running(held):
            if time.monotonic() - begun > timeout:
                raise NoAnswerError(path=held, seconds=f"{timeout:g}")
            time.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - begun
    if as_json:
        print_json({"pid": pid, "stopped": not no_wait, "seconds": round(seconds, 3)})
    else:
        print_line(
            f"compactd (pid {pid}) is stopping" if no_wait else f"compactd (pid {pid}) stopped in {seconds:.1f} s"
        )


def _tell(request: Control, as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    with connect(config, run_dir) as daemon:
        answer = daemon.ask(request, _SECONDS)
    assert isinstance(answer, Done)
    if as_json:
        print_json({"lines": list(answer.lines)})
        return
    for line in answer.lines or ("done",):
        print_line(line)
