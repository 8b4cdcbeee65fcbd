"""Which Kafka listener a command talks to: --bootstrap-server, or that of the running daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from compactd.config.errors import RefusedError
from compactd.config.listeners import format_address
from compactd.coordinator.control.messages import GetStatus, Status
from compactd.scripts.running import connect

F = TypeVar("F", bound=Callable[..., Any])


def bootstrap_option(function: F) -> F:
    """--bootstrap-server, for `find_server`, and --command-config, for `load_login`."""
    server = click.option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="A Kafka listener, compactd's or Kafka's own. Default: the running daemon's.",
    )
    login = click.option(
        "--command-config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Settings of Kafka's clients for a listener that asks for a login or for TLS: security.protocol, sasl.*, ssl.*.",
    )
    return server(login(function))


def find_server(bootstrap_server: str | None, config: Path | None, run_dir: Path | None) -> str:
    """HOST:PORT, several with commas. NotRunningError, RefusedError."""
    if bootstrap_server is not None:
        return bootstrap_server
    with connect(config, run_dir) as daemon:
        status = daemon.ask(GetStatus())
        assert isinstance(status, Status)
        addresses = [each.address for each in status.workers if each.kind == "broker" and each.address]
        if not addresses or status.state != "running":
            raise RefusedError(
                path=daemon.run_dir, reason=f"compactd is {status.state}", advice="Try again in a moment."
            )
        return ",".join(map(reachable, addresses))


def reachable(address: str) -> str:
    """Where a listener can be reached from this machine: one on every address is reached at the local one."""
    host, _, port = address.rpartition(":")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    return format_address(host, int(port))
