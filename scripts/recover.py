"""`compactd recover`: loads logs as a broker does at its start, and leaves them as an orderly stop would."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import click

from compactd.config.errors import EXIT_DONE, CompactdError, UsageError
from compactd.config.load import load_file, parse_sets, resolve_storage
from compactd.scripts.loading import (
    LoadReport,
    PlannedDir,
    bytes_to_recover,
    load_dir,
    loss,
    planned_dirs,
    sessions,
)
from compactd.scripts.options import config_option, json_of_partitions_option, now_option, sets_option
from compactd.scripts.output import Progress, Table, human_bytes, human_count, print_json, print_line, warn
from compactd.scripts.plan import make_plan
from compactd.storage.loaded_log import CUT, DELETED, SPLIT, WARNING, LoadedLog
from compactd.storage.log_dir_session import LogDirSession
from compactd.storage.orderly_close import close_orderly

#: Actions a person has to know one by one; the others are counted.
_TOLD = frozenset({CUT, DELETED, SPLIT, WARNING})


@click.command(
    name="recover",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 damage that recovery cannot mend, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--unclean", "clean", flag_value=False, type=bool, default=None, help="Recover whatever the marker says.")
@click.option(
    "--clean", "clean", flag_value=True, type=bool, help="Load as after a clean stop whatever the marker says."
)
@click.option(
    "--recovery-point",
    type=click.IntRange(min=0),
    metavar="N",
    help="Read everything from this offset on, in place of the checkpoint's (one partition).",
)
@click.option(
    "--log-start-offset",
    type=click.IntRange(min=0),
    metavar="N",
    help="Where the log starts, in place of the checkpoint's (one partition).",
)
@now_option
@sets_option
@config_option
@json_of_partitions_option
def command(
    paths: tuple[Path, ...],
    clean: bool | None,
    recovery_point: int | None,
    log_start_offset: int | None,
    now_ms: int | None,
    sets: tuple[str, ...],
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Load logs as a Kafka broker does at its start, recover what an unclean stop left, and close them in good order.

    PATH is a log dir of a stopped broker or a topic-partition directory. Unfinished cleans and deletions are finished or
    dropped, segments from the recovery point on are read whole, cut at the first damaged batch, their indexes, leader
    epochs and producer state rebuilt. A whole log dir then gets its clean-shutdown marker, so that the next start of the
    broker is quick. What is cut is reported; `compactd verify` tells beforehand and changes nothing.

    \b
    Examples:
      compactd recover /var/lib/kafka/data
      compactd recover --unclean --recovery-point 0 backup/users-0
    """
    plan = make_plan(paths, sets, config_file)
    if (recovery_point, log_start_offset) != (None, None) and len(plan.partitions) != 1:
        raise UsageError(
            detail="--recovery-point and --log-start-offset are of one partition; name a single topic-partition directory"
        )
    storage = resolve_storage(parse_sets(sets), None if config_file is None else load_file(config_file), plan.metadata)
    threads = storage.config.num_recovery_threads_per_data_dir
    now = int(time.time() * 1000) if now_ms is None else now_ms
    for note in plan.notes:
        warn(note)
    for error in plan.targets.refused:
        warn(str(error))
    reports: list[LoadReport] = []
    with sessions(planned_dirs(plan, paths), clean) as opened:
        total = sum(bytes_to_recover(each, session) for each, session in opened)
        with Progress("recover", total) as progress:
            for directory, session in opened:
                for note in session.notes:
                    warn(note)
                if directory.whole:
                    session.forget_marker()
                loaded = load_dir(
                    directory,
                    session,
                    now_ms=now,
                    threads=threads,
                    progress=progress,
                    recovery_point=recovery_point,
                    log_start_offset=log_start_offset,
                )
                close_dir(directory, session, loaded)
                reports.extend(loaded)
                if as_json:
                    for report in loaded:
                        print_json(report.to_json(), flush=True)
    if not as_json:
        show(reports)
    worst = max((report.exit_code for report in reports), default=EXIT_DONE)
    sys.exit(max([worst, *(error.exit_code for error in plan.targets.refused)]))


def close_dir(directory: PlannedDir, session: LogDirSession, reports: list[LoadReport]) -> None:
    """Closes the loaded logs and writes what the next start goes by: checkpoints, and the marker of a whole dir."""
    closed = []
    for report in reports:
        if report.log is None:
            continue
        try:
            close_orderly(report.log)
            closed.append(report.log)
        except CompactdError as error:
            report.error, session.failed = error, True
    needs_start = any(log.log_start_offset > log.segments[0].base_offset for log in closed)
    if directory.whole or directory.has_checkpoints or needs_start:
        session.write_checkpoints(closed, whole_dir=directory.whole and not session.failed)
    ends = {log.topic_partition: (log.log_start_offset, log.log_end_offset) for log in closed}
    for note in session.correct_offsets(ends):
        warn(f"{directory.path}: {note}")
    if directory.whole and not session.write_marker():
        warn(
            f"{directory.path}: not marked as cleanly stopped, because of the errors above; a broker recovers it again."
        )


def show(reports: list[LoadReport]) -> None:
    """A row a partition, then what was done to those that were not in order."""
    table = Table(["partition", ">start", ">end", ">stable", ">segments", ">size", "outcome", "done"])
    for report in reports:
        log = report.log
        if log is None:
            table.row(report.planned.name, "-", "-", "-", "-", "-", "failed", "")
            continue
        stable = log.producers.last_stable_offset(report.high_watermark, log.log_start_offset)
        lost = loss(log)
        outcome = "cut" if lost else "recovered" if any(a.kind != WARNING for a in log.actions) else "in order"
        if report.error is not None:
            outcome = "failed"
        table.row(
            report.planned.name,
            human_count(log.log_start_offset),
            human_count(log.log_end_offset),
            human_count(stable),
            len(log.segments),
            human_bytes(log.size),
            outcome,
            _summary(log),
        )
    table.show()
    for report in reports:
        actions = [] if report.log is None else [a for a in report.log.actions if a.kind in _TOLD]
        if report.error is not None:
            print_line(f"\n{report.planned.name}: {report.error}")
        elif actions:
            print_line(f"\n{report.planned.name}")
        for action in actions:
            print_line(f"  {action}")


def _summary(log: LoadedLog) -> str:
    """How often each thing was done: `rebuilt 1, removed 3`."""
    counts = Counter(action.kind for action in log.actions if action.kind != WARNING)
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
