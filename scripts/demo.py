"""`compactd demo`: writes demo logs, cleans them, and shows before and after. What `make run` runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import click

from compactd.config.errors import CompactdError, RefusedError
from compactd.scripts import demo_logs
from compactd.scripts.clean import clean_plan
from compactd.scripts.output import (
    Table,
    human_bytes,
    human_count,
    percent,
    print_line,
    stopwatch,
    warn_about_reference_kernel,
)
from compactd.scripts.plan import make_plan
from compactd.storage import files, names
from compactd.storage.cleaning.run import CleanOptions, PartitionReport
from compactd.storage.kernel import active_kernel
from compactd.storage.log_dir import LogDir
from compactd.storage.records.batch import Record, read_batches

#: The directory below --data that holds the demo's log dir.
LOG_DIR = "demo-log-dir"
_SETTINGS = ("cleanup.policy=compact", f"segment.bytes={demo_logs.SEGMENT_BYTES}")


class DemoFailedError(CompactdError):
    """The demo's clean of {partition} ended as {outcome}: {reason}"""


@click.command(
    name="demo",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 3 refused (DIR holds something else), 4 I/O error.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    metavar="DIR",
    help=f"Where to write: DIR/{LOG_DIR}, written anew each time.",
)
def command(data: Path) -> None:
    """Write a demo log dir, clean it, and show before and after.

    It holds the six-record experiment of many a tutorial, and a topic of a million records over fifty thousand keys.
    A directory that the demo did not make is never touched.

    \b
    Example:
      compactd demo --data /tmp/compactd
    """
    log_dir = data / LOG_DIR
    now = int(time.time() * 1000)
    warn_about_reference_kernel()
    _make_room(log_dir)
    for parent in reversed([data, *data.parents]):
        if not parent.exists():
            files.make_dir(parent)
    with stopwatch() as writing:
        demo_logs.write_demo(log_dir, now)
    size = _log_bytes(log_dir)
    print_line(
        f"Wrote {log_dir}: {human_count(demo_logs.MILLION_RECORDS + len(demo_logs.EXPERIMENT))} records, "
        f"{human_bytes(size)}, in {writing[0]:.1f} s.\n"
    )
    before = list(_records(log_dir / str(demo_logs.SIX_RECORDS)))
    plan = make_plan([log_dir], _SETTINGS)
    options = CleanOptions(now, map_memory_bytes=plan.cleaner.config.dedupe_buffer_size)
    with LogDir(log_dir).lock():
        reports = clean_plan(plan, options)
    for report in reports:
        if report.exit_code:
            raise DemoFailedError(partition=report.topic_partition, outcome=report.outcome, reason=report.reason)
    _show_experiment(before, list(_records(log_dir / str(demo_logs.SIX_RECORDS))))
    _show_reports(reports)
    _show_next_steps(log_dir)


def _make_room(log_dir: Path) -> None:
    """Removes an earlier demo's log dir. RefusedError for a directory that no demo made."""
    if not log_dir.exists():
        return
    if not (log_dir / demo_logs.MARKER).is_file():
        raise RefusedError(
            path=log_dir,
            reason="the demo did not make it",
            advice="Name another directory with --data, or move this one away.",
        )
    # A broker or another compactd may be at work on it.
    with LogDir(log_dir).lock():
        shutil.rmtree(log_dir)


def _log_bytes(log_dir: Path) -> int:
    return sum(path.stat().st_size for path in log_dir.rglob("*.log"))


def _records(directory: Path) -> Iterator[Record]:
    for log in sorted(directory.glob(f"*{names.LOG}")):
        for batch in read_batches(log):
            yield from batch.records()


def _show_experiment(before: list[Record], after: list[Record]) -> None:
    kept = {record.offset for record in after}
    table = Table([">offset", "key", "value", "after the clean"], title=f"{demo_logs.SIX_RECORDS}: before and after")
    newest = {record.key: record.offset for record in before}
    for record in before:
        gone = f"removed: offset {newest[record.key]} is newer"
        key, value = (record.key or b"").decode(), (record.value or b"").decode()
        table.row(record.offset, key, value, "kept" if record.offset in kept else gone)
    table.show()
    print_line("")


def _show_reports(reports: list[PartitionReport]) -> None:
    table = Table(
        [
            "partition",
            ">records before",
            ">after",
            ">bytes before",
            ">after",
            ">freed",
            ">seconds",
            ">records/s",
            ">MiB/s",
        ]
    )
    for report in sorted(reports, key=lambda report: report.bytes_before):
        seconds = max(report.seconds, 1e-9)
        table.row(
            report.topic_partition,
            human_count(report.stats.messages_read),
            human_count(report.stats.messages_written),
            human_bytes(report.bytes_before),
            human_bytes(report.bytes_after),
            percent(report.bytes_before - report.bytes_after, report.bytes_before),
            f"{report.seconds:.3f}",
            human_count(round(report.stats.messages_read / seconds)),
            human_count(round(report.bytes_before / seconds / (1 << 20))),
        )
    table.show()
    print_line(f"Kernel: {active_kernel().name}; one process; fsync of every file included.\n")


def _show_next_steps(log_dir: Path) -> None:
    print_line("What to try next:")
    six, million = (log_dir / str(name) for name in (demo_logs.SIX_RECORDS, demo_logs.MILLION))
    for line in (
        f"compactd dump --records --only log {six}",
        f"compactd analyze --set cleanup.policy=compact {log_dir}",
        f"compactd clean --force --dry-run --set cleanup.policy=compact {million}",
        "compactd analyze /var/lib/kafka/data    # your own broker's log dir: reads only, running or not",
        "compactd clean --help",
    ):
        print_line(f"  {line}")
