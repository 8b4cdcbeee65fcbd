"""How commands find the daemon that they talk to: by --run-dir, by its settings, or because there is only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from compactd.config.errors import UsageError
from compactd.coordinator.configuration import Configuration
from compactd.coordinator.control.socket import ControlClient
from compactd.coordinator.run_dir import find_run_dir, is_running, running_dirs

F = TypeVar("F", bound=Callable[..., Any])


def daemon_options(function: F) -> F:
    """--config and --run-dir, for `connect`."""
    config = click.option(
        "-c",
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The file that compactd serve was started with.",
    )
    run_dir = click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Its run.dir. Default: found by --config, or the only compactd that this user runs.",
    )
    return config(run_dir(function))


def connect(config: Path | None, run_dir: Path | None) -> ControlClient:
    """A connection to the daemon. NotRunningError; UsageError when several run and none was named."""
    if run_dir is not None:
        return ControlClient(run_dir.absolute())
    settings = Configuration((), config).resolve(None)
    wanted = find_run_dir(settings.daemon.run_dir, settings.storage.log_dirs)
    if config is None and not is_running(wanted):
        found = running_dirs()
        if len(found) > 1:
            listed = ", ".join(map(str, found))
            raise UsageError(
                detail=f"{len(found)} daemons are running: name one with --config, the file that it was started with, or "
                f"with --run-dir, of {listed}"
            )
        wanted = found[0] if found else wanted
    return ControlClient(wanted)
