"""The `compactd` command: its subcommands, exit codes, and the one place where an error becomes a sentence.

Exit codes are stable: 0 done, 1 faults found, 2 wrong usage, 3 refused, 4 I/O error; beside them the shell's own
130 (interrupted), 141 (the reader of our output went away), 143 (terminated), and 70 for a bug in compactd itself.
Subcommands are imported only when they run, so that `compactd --help` stays quick.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from typing import NoReturn

import click

from compactd.config.errors import EXIT_DONE, EXIT_IO, EXIT_USAGE, CompactdError

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

#: Subcommand: where it lives, and its line in `compactd --help` (kept here so that help imports nothing).
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("compactd.scripts.analyze:command", "Show what cleaning would free, and what holds it up. Reads only."),
    "bench": ("compactd.scripts.bench:command", "Measure compactd beside Apache Kafka on the same data."),
    "clean": ("compactd.scripts.clean:command", "Compact the log dirs of a stopped broker, as Kafka's cleaner would."),
    "clean-now": ("compactd.scripts.control:clean_now", "Have topics cleaned now, whatever their dirty ratio."),
    "config": ("compactd.scripts.config:command", "Show every setting: value, source, meaning."),
    "consume": ("compactd.scripts.consume:command", "Print the records of a topic, and wait for more."),
    "demo": ("compactd.scripts.demo:command", "Write demo logs, clean them, and show before and after."),
    "dump": ("compactd.scripts.dump:command", "Print batches, records, indexes, checkpoints and snapshots."),
    "pause": ("compactd.scripts.control:pause", "Clean nothing, or none of these topics, until resume."),
    "produce": ("compactd.scripts.produce:command", "Write lines to a topic, as records."),
    "reload": ("compactd.scripts.control:reload", "Have the daemon read its configuration again."),
    "resume": ("compactd.scripts.control:resume", "Take a pause back."),
    "retry": ("compactd.scripts.control:retry", "Release partitions from quarantine."),
    "serve": ("compactd.scripts.serve:command", "Serve Kafka clients; keep the logs retained and compacted."),
    "status": ("compactd.scripts.status:command", "Show what the daemon does; --watch for a live screen."),
    "stop": ("compactd.scripts.control:stop", "Stop the daemon in good order."),
    "stress": (
        "compactd.scripts.stress:command",
        "Load a daemon while its cleaners work, and check all that is read.",
    ),
    "topics": ("compactd.scripts.topics:command", "List, describe, create, alter and delete topics."),
    "undo": ("compactd.scripts.control:undo", "Put the files that the last clean of a partition replaced back."),
    "users": ("compactd.scripts.users:command", "List, set and remove users who log in with SCRAM."),
    "verify": (
        "compactd.scripts.verify:command",
        "Report every fault in log dirs; --repair as Kafka's recovery would.",
    ),
    "retain": ("compactd.scripts.retain:command", "Apply retention once, or explain which segments it would take."),
    "recover": (
        "compactd.scripts.recover:command",
        "Load logs as a broker does at its start, and close them in order.",
    ),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def version_lines() -> list[str]:
    """What `compactd --version` prints: the version, and which kernel cleans here."""
    from importlib.metadata import version  # noqa: PLC0415

    from compactd.storage.kernel import active_kernel  # noqa: PLC0415

    return [f"compactd {version('compactd')}", f"kernel: {active_kernel().name}"]


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from compactd.scripts.output import warn_about_reference_kernel  # noqa: PLC0415

    for line in version_lines():
        click.echo(line)
    warn_about_reference_kernel()
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 faults found, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the active kernel.",
)
def cli() -> None:
    """Stores, retains and compacts keyed logs in Apache Kafka's own on-disk format.

    \b
    Examples:
      compactd analyze /var/lib/kafka/data
      compactd clean --dry-run /var/lib/kafka/data
      compactd dump --records /var/lib/kafka/data/users-0
    """


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"compactd: {message}", err=True)
    sys.exit(code)


def _quiet_broken_pipe() -> NoReturn:
    # The interpreter flushes stdout once more at exit: give it somewhere to go.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    sys.exit(EXIT_BROKEN_PIPE)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process with one of the stable exit codes."""
    if "_COMPACTD_COMPLETE" in os.environ:
        cli.main(prog_name="compactd")
    if arguments is None:
        # Raised, not died of: locks are given up and unfinished files dropped on the way out.
        signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may hold what the terminal's encoding has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Not cli.main(): that would turn a closed pipe into exit code 1 and an interruption into an empty line.
        with cli.make_context("compactd", sys.argv[1:] if arguments is None else arguments) as context:
            cli.invoke(context)
        sys.stdout.flush()
        sys.exit(EXIT_DONE)
    except SystemExit:
        raise
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except BrokenPipeError:
        _quiet_broken_pipe()
    except BaseException as error:
        if os.environ.get("COMPACTD_TRACEBACK") == "1":
            raise
        _explain(error)


def _terminate(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _explain(error: BaseException) -> NoReturn:
    if isinstance(error, CompactdError):
        _fail(str(error), error.exit_code)
    if isinstance(error, click.UsageError):
        error.show(file=sys.stderr)
        sys.exit(EXIT_USAGE)
    if isinstance(error, click.ClickException):
        _fail(error.format_message(), EXIT_USAGE)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _fail("interrupted; unfinished work was left as it was.", EXIT_INTERRUPTED)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        _fail(f"{where}{error.strerror or error}.", EXIT_IO)
    if isinstance(error, MemoryError):
        _fail("out of memory. Give it a smaller log.cleaner.dedupe.buffer.size, or fewer --workers.", EXIT_IO)
    _fail(f"a bug: {type(error).__name__}: {error}. Run again with COMPACTD_TRACEBACK=1 and report it.", EXIT_BUG)
