"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path

import click

sets_option = click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting, before all other sources (repeatable)."
)
config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings in YAML, or a server.properties.",
)
metadata_option = click.option(
    "--metadata",
    "metadata_dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The log dir that holds __cluster_metadata-0, if it is not among PATH.",
)
high_watermark_option = click.option(
    "--high-watermark",
    type=click.IntRange(min=0),
    metavar="N",
    help="In place of replication-offset-checkpoint's (one partition).",
)
json_of_partitions_option = click.option("--json", "as_json", is_flag=True, help="JSON lines: one object a partition.")
now_option = click.option(
    "--now",
    "now_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="The time in ms since 1970 to judge by; default: the clock's.",
)
