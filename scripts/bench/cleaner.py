"""`compactd bench cleaner`: Kafka's own Cleaner and compactd on the same logs, in turn, as a table of ratios."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from compactd.config.errors import EXIT_FAULTS, NoSpaceError
from compactd.scripts.bench.announcement import announcement, versions
from compactd.scripts.bench.cleaner_cases import KEY_SIZE, Case, choose_cases
from compactd.scripts.bench.cleaner_rounds import FIRST_WARM_UPS, Bench, Measured, Plan
from compactd.scripts.bench.kafka import Kafka
from compactd.scripts.bench.machine import Machine
from compactd.scripts.output import (
    Progress,
    Table,
    human_bytes,
    print_json,
    print_line,
    warn,
    warn_about_reference_kernel,
)
from compactd.storage import files

#: Source, an output on each side, and replaced files on a file system without links.
_SPACE_FACTOR = 5
_LARGEST_DATA = 1 << 40
#: segment.bytes is a signed 32-bit number.
_LARGEST_SEGMENT = (1 << 31) - 1

_TIMED = (
    "Timed: one whole round over a closed log whose pages are cached: both passes, writing, fsync, swapping in; on",
    "compactd's side loading the partition too, while Kafka's log is open already. Unlinking of what was replaced is",
    "timed on neither side. Both fsync what they write, each in its own way.",
)


def _bytes(largest: int) -> Callable[[click.Context, click.Parameter, float], int]:
    """Callback of an option in MiB, which may have decimals: its bytes."""

    def convert(ctx: click.Context, parameter: click.Parameter, mebibytes: float) -> int:
        size = mebibytes * (1 << 20)
        if not 1 <= size <= largest:  # not a number is neither
            message = f"{mebibytes:g} MiB is not within 1 byte and {human_bytes(largest)}"
            raise click.BadParameter(message, ctx, parameter)
        return round(size)

    return convert


@click.command(
    name="cleaner",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the two outputs differ, 2 wrong usage, 3 refused (no Java, no space), 4 I/O error.",
)
@click.option("--size", "data_bytes", type=float, default=64, callback=_bytes(_LARGEST_DATA), show_default=True,
              metavar="MIB", help="Keys and values of a case, before compression, in MiB.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Measured runs of each side.")
@click.option("--case", "cases", multiple=True, metavar="CASE",
              help="Only these cases: 80/lz4/50 or a part of it, as lz4 or 80/none; may be given again.")  # fmt: skip
@click.option("--segment-size", "segment_bytes", type=float, default=32, callback=_bytes(_LARGEST_SEGMENT),
              show_default=True, metavar="MIB", help="Size of the log's segments.")  # fmt: skip
@click.option("--batch", type=click.IntRange(min=1), default=100, show_default=True, help="Records a batch.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Where to put the data; the system's temporary directory unless given.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the logs of all cases and say where they are.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines: what was measured on, then one object a case.")
def command(
    data_bytes: int,
    repeat: int,
    cases: tuple[str, ...],
    segment_bytes: int,
    batch: int,
    directory: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Clean the same logs with Kafka's own Cleaner and with compactd, in turn, and print the ratios.

    Values of 80 and 1000 bytes, five codecs, 0, 50 and 90 % duplicates. Needs a JDK, Maven and a source checkout. Use
    taskset to give both one CPU only; without it Kafka's JVM compiles and collects garbage on another one.

    \b
    Examples:
      compactd bench cleaner
      compactd bench cleaner --case 80/none --case lz4 --size 256 --repeat 5
    """
    chosen = choose_cases(cases)
    plan = Plan(data_bytes, segment_bytes, batch, repeat)
    plan.check()
    machine = Machine.here(directory or Path(tempfile.gettempdir()))
    warn_about_reference_kernel()
    if machine.is_busy:
        warn(f"the machine is busy (load {machine.load:.1f}): the figures will be off, the ratios less so.")
    measured: list[Measured] = []
    with Kafka(plan.heap_bytes) as kafka, _place(plan, chosen, directory, keep) as root:
        _announce(machine, kafka, plan, as_json)
        bench = Bench(kafka, plan, root)
        with Progress("bench", len(chosen) * repeat * 2 * plan.data_bytes) as progress:
            for case in chosen:
                found = bench.measure(case, lambda case=case: progress.advance(2 * plan.data_bytes, str(case)), keep)  # type: ignore[misc]
                measured.append(found)
                if as_json:
                    print_json(found.to_json(), flush=True)
    if not as_json:
        _show(measured)
        if keep:
            print_line(f"The logs are in {root}: source, kafka and compactd for each case.")
    if not all(found.agrees for found in measured):
        sys.exit(EXIT_FAULTS)


@contextmanager
def _place(plan: Plan, chosen: Sequence[Case], directory: Path | None, keep: bool) -> Iterator[Path]:
    """A new directory for the data, removed at the end unless `keep` is set. NoSpaceError where it could not hold it."""
    root = Path(tempfile.mkdtemp(prefix="compactd-bench-", dir=directory))
    try:
        needed = plan.data_bytes * _SPACE_FACTOR * (len(chosen) if keep else 1)
        free = files.free_bytes(root)
        if needed > free:
            raise NoSpaceError(path=root, needed=needed, free=free, what="the benchmark's logs")
        yield root
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(root)


def _announce(machine: Machine, kafka: Kafka, plan: Plan, as_json: bool) -> None:
    """What the figures are of: versions, machine, data, and what is timed."""
    if as_json:
        print_json(
            {
                **announcement("cleaner", machine, kafka),
                "dataBytes": plan.data_bytes,
                "segmentBytes": plan.segment_bytes,
                "batchRecords": plan.batch_records,
                "mapBytes": plan.map_bytes,
                "repeat": plan.repeat,
            },
            flush=True,
        )
        return
    lines = (
        "Kafka's own Cleaner and compactd's on the same logs, in turn, one thread each.",
        f"Machine: {machine}.",
        f"Kafka {kafka.version}, {kafka.java_version}, {kafka.java_options}; offset map {human_bytes(plan.map_bytes)}.",
        f"{versions()}; the same map.",
        f"Data: {human_bytes(plan.data_bytes)} a case of {KEY_SIZE}-byte keys and values of random hex digits, "
        f"{plan.batch_records} records a batch, segments of {human_bytes(plan.segment_bytes)}.",
        *_TIMED,
        f"The first round of a case is discarded on both sides ({FIRST_WARM_UPS} of the first case), then "
        f"{plan.repeat} are timed in turn; seconds are the least of them.",
        "× min and × median: Kafka's seconds divided by compactd's. × CPU: the same of CPU time, the JVM's compilers left out;",
        "other work on the machine disturbs it least, but it leaves out waiting for the disk.",
        "",
    )
    for line in lines:
        print_line(line)
    sys.stdout.flush()


def _show(measured: Sequence[Measured]) -> None:
    table = Table(
        ["case", ">log", ">cleaned", ">Kafka s", ">MB/s", ">compactd s", ">pass one", "> MB/s", ">× min", ">× median",
         ">× CPU", ">peak", "output"],
        droppable=("pass one", "peak", "cleaned", "log", "MB/s", " MB/s"),
    )  # fmt: skip
    for found in measured:
        size = found.bytes_before / 1e6
        table.row(
            f"{found.case} %",
            human_bytes(found.bytes_before),
            human_bytes(found.bytes_after),
            f"{found.kafka_best:.3f}",
            f"{size / found.kafka_best:.0f}",
            f"{found.compactd_best:.3f}",
            f"{found.index_best:.3f}",
            f"{size / found.compactd_best:.0f}",
            f"{found.ratio_min:.2f}",
            f"{found.ratio_median:.2f}",
            "-" if found.ratio_cpu is None else f"{found.ratio_cpu:.2f}",
            "-" if found.peak_memory is None else human_bytes(found.peak_memory),
            found.output if found.agrees else "DIFFERENT",
        )
    table.show()
    print_line("")
    for found in measured:
        if not found.agrees:
            print_line(f"{found.case} %: the outputs differ. {found.output}")
    print_line(_summary(measured))


def _summary(measured: Sequence[Measured]) -> str:
    ratios = [found.ratio_min for found in measured]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = [f"{found.case} %" for found in measured if found.ratio_min < 1]
    text = (
        f"compactd is {min(ratios):.2f} to {max(ratios):.2f} times as fast as Kafka, {mean:.2f} times in geometric mean"
    )
    return text + (f"; slower in {', '.join(slower)}." if slower else "; slower in no case.")
