"""`compactd serve`: the daemon, in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from compactd.config.errors import EXIT_FAULTS
from compactd.config.listeners import format_address
from compactd.coordinator.configuration import Configuration
from compactd.coordinator.daemon import Daemon
from compactd.coordinator.parts import default_parts
from compactd.scripts.output import print_line
from compactd.workers import log_output

_log = logging.getLogger(__name__)


@click.command(
    name="serve",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 stopped in good order, 1 stopped otherwise, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="compactd.yaml, or Kafka's server.properties. Default: data/d1 on 127.0.0.1:9092.",
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting; wins over FILE. May be repeated.")
def command(config: Path | None, sets: tuple[str, ...]) -> None:
    """Serve Kafka clients, and keep the logs retained and compacted.

    Runs until SIGTERM or Ctrl-C, which stop it in good order; a second one ends it at once. SIGHUP reads FILE again.

    \b
    Examples:
      compactd serve
      compactd serve --config compactd.yaml
      compactd serve --set log.dirs=/disk1/kafka,/disk2/kafka --set listeners=PLAINTEXT://:9092
    """
    configuration = Configuration(sets, config)
    settings = configuration.resolve(None).daemon
    form = settings.log_format
    if form == "auto":
        form = log_output.TEXT if sys.stderr.isatty() else log_output.JSON
    log_output.configure("coordinator", form, settings.log_level)
    for unused in configuration.unused:
        _log.log(
            logging.WARNING if unused.unknown else logging.INFO,
            f"{unused.source}: {unused.name}{' is not used' if unused.unknown else ''}: {unused.reason}",
        )
    daemon = Daemon(
        configuration,
        default_parts(),
        environment={"COMPACTD_LOG_FORMAT": form},
        started=None if _under_systemd() else _greet,
    )
    if not daemon.run():
        raise SystemExit(EXIT_FAULTS)


def _under_systemd() -> bool:
    return "NOTIFY_SOCKET" in os.environ or "INVOCATION_ID" in os.environ


def _greet(daemon: Daemon) -> None:
    """What runs now, and what to try next."""
    nodes = [format_address(host, port) for _, host, port in sorted(daemon.nodes.values())]
    server, config = nodes[0], daemon.configuration.path
    option = f" --config {config}" if config else ""
    lines = [
        f"compactd serves Kafka clients at {', '.join(nodes)}",
        f"  log dirs     {', '.join(map(str, daemon.dirs.online))}",
        f"  partitions   {len(daemon.partitions.states)} of {len(daemon.partitions.topics)} topics",
    ]
    if daemon.metrics_address:
        lines.append(f"  metrics      http://{daemon.metrics_address}/metrics")
    lines += [
        "",
        "Try next, in another terminal:",
        f"  compactd topics create{option} users --partitions 3 --set cleanup.policy=compact",
        f"  compactd produce{option} users",
        f"  compactd consume{option} users --from-beginning",
        f"  compactd status{option} --watch",
        f"  kafka-console-producer.sh --bootstrap-server {server} --topic users",
        "",
        "Ctrl-C stops it in good order.",
    ]
    for line in lines:
        print_line(line)
    sys.stdout.flush()
