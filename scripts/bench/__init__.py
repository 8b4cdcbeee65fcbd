"""Benchmarks, always as a ratio to Kafka in the same run: `compactd bench NAME`."""

from __future__ import annotations

import importlib

import click

#: Benchmark: where it lives, and its line in `compactd bench --help`.
BENCHMARKS: dict[str, tuple[str, str]] = {
    "cleaner": ("compactd.scripts.bench.cleaner:command", "Kafka's Cleaner and compactd's on the same logs, in turn."),
    "log": ("compactd.scripts.bench.log:command", "Kafka's UnifiedLog and compactd's: append, read, recover."),
    "serve": ("compactd.scripts.bench.serve:command", "An idle daemon with many partitions beside Kafka's broker."),
}


class BenchGroup(click.Group):
    """Benchmarks are imported when they run: they need more than the other commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHMARKS:
            return None
        module, attribute = BENCHMARKS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_dl([(name, BENCHMARKS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=BenchGroup, context_settings={"help_option_names": ["-h", "--help"]}, subcommand_metavar="BENCHMARK [ARGS]..."
)
def command() -> None:
    """Measure compactd beside Apache Kafka on the same data, as ratios.

    \b
    Example:
      compactd bench cleaner
    """
