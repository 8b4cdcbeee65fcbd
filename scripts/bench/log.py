"""`compactd bench log`: Kafka's UnifiedLog and compactd's log with the same batches and fetches, as a table of ratios."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from compactd.config.errors import NoSpaceError
from compactd.scripts.bench.announcement import announcement, versions
from compactd.scripts.bench.kafka import Kafka
from compactd.scripts.bench.log_cases import LogBench, Measured, bytes_needed, choose_cases, runs
from compactd.scripts.bench.machine import Machine
from compactd.scripts.output import Progress, Table, print_json, print_line, warn, warn_about_reference_kernel
from compactd.storage import files

_HEAP = 1 << 30
_LARGEST_SCALE = 100.0

_TIMED = (
    "Timed: the calls of the library alone, from bytes in memory to bytes in the page cache and back; one thread each.",
    "An append checks the batch, gives it offsets and writes it, and the high watermark follows; a read finds its place",
    "and reads into memory. Where fsyncs are asked for both do the same. Recovery reads a whole log without a marker.",
    "A start loads partitions of two log dirs that were stopped in order, with two threads for each dir.",
)


@click.command(
    name="log",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 refused (no Java, no space), 4 I/O error.",
)
@click.option("--scale", type=click.FloatRange(min=0.001, max=_LARGEST_SCALE), default=1.0, show_default=True,
              help="How many times the usual number of calls a case has.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Measured runs of each side.")
@click.option("--case", "cases", multiple=True, metavar="PART",
              help="Only cases with this in their name, as append or 'fsync each'; may be given again.")  # fmt: skip
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Where to put the data; the system's temporary directory unless given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines: what was measured on, then one object a case.")
def command(scale: float, repeat: int, cases: tuple[str, ...], directory: Path | None, as_json: bool) -> None:
    """Append to, read and recover the same logs with Kafka's UnifiedLog and with compactd, in turn, and print ratios.

    Needs a JDK, Maven and a source checkout.

    \b
    Examples:
      compactd bench log
      compactd bench log --case append --repeat 9 --directory /dev/shm
    """
    chosen = choose_cases(cases)
    machine = Machine.here(directory or Path(tempfile.gettempdir()))
    warn_about_reference_kernel()
    if machine.is_busy:
        warn(f"the machine is busy (load {machine.load:.1f}): the figures will be off, the ratios less so.")
    root = Path(tempfile.mkdtemp(prefix="compactd-bench-", dir=directory))
    measured: list[Measured] = []
    try:
        needed, free = bytes_needed(chosen, scale), files.free_bytes(root)
        if needed > free:
            raise NoSpaceError(path=root, needed=needed, free=free, what="the benchmark's logs")
        with Kafka(_HEAP) as kafka:
            _announce(machine, kafka, scale, repeat, as_json)
            bench = LogBench(kafka, root, scale, repeat)
            with Progress("bench", sum(runs(case, repeat) for case in chosen)) as progress:
                for case in chosen:
                    found = bench.measure(case, lambda case=case: progress.advance(1, str(case)))  # type: ignore[misc]
                    measured.append(found)
                    if as_json:
                        print_json(found.to_json(), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if not as_json:
        _show(measured)


def _announce(machine: Machine, kafka: Kafka, scale: float, repeat: int, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                **announcement("log", machine, kafka),
                "scale": scale,
                "repeat": repeat,
            },
            flush=True,
        )
        return
    for line in (
        "Kafka's UnifiedLog and compactd's log with the same batches, fetches and settings, in turn.",
        f"Machine: {machine}.",
        f"Kafka {kafka.version}, {kafka.java_version}, {kafka.java_options}.",
        f"{versions()}.",
        *_TIMED,
        f"Two runs of each case are discarded, then {repeat} are timed in turn; figures are of the quickest.",
        "Of a start one is discarded, and three are timed at most.",
        "× min and × median: Kafka's seconds divided by compactd's.",
        "",
    ):
        print_line(line)
    sys.stdout.flush()


def _show(measured: Sequence[Measured]) -> None:
    table = Table(
        ["case", ">calls", ">Kafka µs", ">MB/s", ">compactd µs", "> MB/s", ">× min", ">× median"],
        droppable=("calls", "MB/s", " MB/s"),
    )
    for found in measured:
        kafka, ours = min(found.kafka), min(found.compactd)
        table.row(
            found.case,
            found.operations,
            f"{kafka / found.operations * 1e6:.1f}",
            f"{found.bytes / kafka / 1e6:.0f}",
            f"{ours / found.operations * 1e6:.1f}",
            f"{found.bytes / ours / 1e6:.0f}",
            f"{found.ratio:.2f}",
            f"{found.ratio_median:.2f}",
        )
    table.show()
    ratios = [found.ratio for found in measured]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = [str(found.case) for found in measured if found.ratio < 1]
    print_line("")
    print_line(
        f"compactd is {min(ratios):.2f} to {max(ratios):.2f} times as fast as Kafka, {mean:.2f} times in geometric mean; "
        + (f"slower in: {', '.join(slower)}." if slower else "slower in no case.")
    )
