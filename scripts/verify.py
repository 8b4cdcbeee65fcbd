"""`compactd verify`: reads log dirs, reports every fault, and on request does what Kafka's own recovery would do."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from compactd.config.errors import EXIT_DONE, EXIT_FAULTS, CompactdError
from compactd.scripts.loading import LoadReport, PlannedDir, load_dir, planned_dirs, sessions
from compactd.scripts.options import config_option, sets_option
from compactd.scripts.output import Progress, human_bytes, human_count, print_json, print_line, warn
from compactd.scripts.plan import Plan, Planned, make_plan
from compactd.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from compactd.storage.findings import FAULT, Finding
from compactd.storage.orderly_close import close_orderly
from compactd.storage.verify import Expectations, PartitionCheck, verify_partition
from compactd.storage.verify_log_dir import LogDirCheck, duplicate_partitions, verify_log_dir


@dataclass(slots=True)
class VerifyReport:
    """Everything found under the paths."""

    dirs: dict[Path, LogDirCheck] = field(default_factory=dict)
    partitions: list[tuple[Planned, PartitionCheck]] = field(default_factory=list)
    duplicates: list[Finding] = field(default_factory=list)
    errors: list[CompactdError] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        found = [finding for check in self.dirs.values() for finding in check.findings]
        found += self.duplicates
        return found + [finding for _, check in self.partitions for finding in check.findings]

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == FAULT]


@click.command(
    name="verify",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 no faults (or all mended), 1 faults found, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Read every record of every batch, too (slow).")
@click.option("--repair", is_flag=True, help="Do what Kafka's own recovery would do; what it cuts off is kept as .cut.")
@sets_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="JSON lines: one object a finding, and one a partition.")
def command(
    paths: tuple[Path, ...],
    records: bool,
    repair: bool,
    sets: tuple[str, ...],
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Check log dirs or topic-partition directories, and report every fault with file, position and offsets.

    Read and compared are: CRC, length and offsets of every batch, each entry of the indexes with the batches, aborted
    transactions with their markers, leader epochs with the batches, snapshots, checkpoints with the logs, and that a
    cleaned section holds one record a key. Nothing is changed and no lock is taken without --repair; beside a running
    broker the end of active segments may look torn.

    \b
    Examples:
      compactd verify /var/lib/kafka/data
      compactd verify --json backup/users-0
      compactd verify --repair /var/lib/kafka/data
    """
    plan = make_plan(paths, sets, config_file)
    for note in plan.notes:
        warn(note)
    for error in plan.targets.refused:
        warn(str(error))
    dirs = planned_dirs(plan, paths)
    report = verify(plan, dirs, records)
    if as_json:
        _print_json(report)
    else:
        show(report)
    code = _exit_code(plan, report)
    if repair and report.faults:
        after = _repair(plan, dirs, report, records, as_json)
        code = _exit_code(plan, after)
    sys.exit(code)


def _exit_code(plan: Plan, report: VerifyReport) -> int:
    codes = [error.exit_code for error in (*report.errors, *plan.targets.refused)]
    return max([EXIT_FAULTS if report.faults else EXIT_DONE, *codes])


def verify(plan: Plan, dirs: Sequence[PlannedDir], records: bool) -> VerifyReport:
    """Checks every planned partition and the log dirs they are in."""
    report = VerifyReport()
    total = sum(path.stat().st_size for each in plan.partitions for path in each.target.directory.glob("*.log"))
    with Progress("verify", total) as progress:
        for directory in dirs:
            check = verify_log_dir(directory.path, whole=directory.whole)
            report.dirs[directory.path] = check
            for planned in directory.partitions:
                progress.advance(0, f"verify {planned.name}")
                try:
                    found = verify_partition(
                        planned.target.directory,
                        planned.target.topic_partition,
                        planned.settings.config,
                        _expectations(plan, planned, directory, check),
                        records=records,
                        progress=progress.advance,
                    )
                except CompactdError as error:
                    report.errors.append(error)
                    continue
                report.partitions.append((planned, found))
    report.duplicates = duplicate_partitions(
        [(each.target.topic_partition, each.target.directory) for each in plan.partitions]
    )
    return report


def _expectations(plan: Plan, planned: Planned, directory: PlannedDir, check: LogDirCheck) -> Expectations:
    name = planned.target.topic_partition
    topic_id = None if plan.metadata is None else plan.metadata.topics.get(name.topic)
    return Expectations(
        # A lone copy of a partition says nothing about how its broker stopped.
        clean_shutdown=check.clean_shutdown or not directory.has_checkpoints,
        recovery_point=check.entry(RECOVERY_POINTS, name),
        log_start_offset=check.entry(LOG_START_OFFSETS, name),
        high_watermark=check.entry(HIGH_WATERMARKS, name),
        cleaner_offset=check.entry(CLEANER_OFFSETS, name),
        topic_id=topic_id,
    )


def _repair(
    plan: Plan,
    dirs: Sequence[PlannedDir],
    report: VerifyReport,
    records: bool,
    as_json: bool,
) -> VerifyReport:
    """Recovers the partitions that have faults, from the first damaged segment on, and looks again."""
    faulty = {check.directory: check for _, check in report.partitions if check.faults}
    with sessions(dirs, False) as opened, Progress("repair", 0) as progress:
        for directory, session in opened:
            broken = {each.path.name for each in report.dirs[directory.path].findings if each.code == "CHECKPOINT"}
            reports = []
            for planned in directory.partitions:
                check = faulty.get(planned.target.directory)
                if check is None and not broken:
                    continue
                start = check.recover_from if check is not None else None
                point = check.log_end_offset if check is not None and start is None else start
                one = PlannedDir(directory.path, [planned])
                reports.extend(
                    load_dir(
                        one,
                        session,
                        now_ms=int(time.time() * 1000),
                        threads=1,
                        progress=progress,
                        recovery_point=point,
                        keep_cut=True,
                    )
                )
            _close(reports)
            closed = [each.log for each in reports if each.log is not None and each.error is None]
            if directory.has_checkpoints:
                session.write_checkpoints(closed, whole_dir=False)
            ends = {log.topic_partition: (log.log_start_offset, log.log_end_offset) for log in closed}
            for note in session.correct_offsets(ends):
                warn(note)
            for each in reports:
                _tell(each, as_json)
    after = verify(plan, dirs, records)
    if not as_json:
        left = len(after.faults)
        print_line(f"after the repair: {left} faults" + ("" if left == 0 else "; Kafka's recovery does not mend them"))
        for finding in after.faults:
            _line(finding)
    return after


def _close(reports: Sequence[LoadReport]) -> None:
    for report in reports:
        if report.log is None:
            continue
        try:
            close_orderly(report.log)
        except CompactdError as error:
            report.error = error


def _tell(report: LoadReport, as_json: bool) -> None:
    if as_json:
        print_json({"type": "repair", **report.to_json()})
        return
    print_line(f"{report.planned.name}: repaired" if report.error is None else f"{report.planned.name}: {report.error}")
    for action in report.log.actions if report.log is not None else ():
        print_line(f"  {action}")


def _print_json(report: VerifyReport) -> None:
    for finding in report.findings:
        print_json({"type": "finding", **finding.to_json()})
    for planned, check in report.partitions:
        name = planned.target.topic_partition
        print_json(
            {
                "type": "partition",
                "topic": name.topic,
                "partition": name.partition,
                "directory": str(check.directory),
                "logStartOffset": check.log_start_offset,
                "logEndOffset": check.log_end_offset,
                "segments": [
                    {"baseOffset": s.base_offset, "size": s.size, "largestTimestamp": s.largest_timestamp}
                    for s in check.segments
                ],
                "bytesRead": check.bytes_read,
                "faults": len(check.faults),
            }
        )
    for error in report.errors:
        print_json({"type": "error", "reason": str(error), "exitCode": error.exit_code})


def show(report: VerifyReport) -> None:
    """Faults one by one, notes of a kind together, and a line that sums up."""
    for finding in sorted(report.faults, key=lambda each: str(each.path)):
        _line(finding)
    together: dict[tuple[str, Path], list[Finding]] = {}
    for finding in report.findings:
        if finding.severity != FAULT:
            together.setdefault((finding.code, finding.path.parent), []).append(finding)
    for (code, directory), notes in sorted(together.items(), key=lambda each: (str(each[0][1]), each[0][0])):
        if len(notes) == 1:
            _line(notes[0])
        else:
            print_line(f"note   {code}  {directory}: {len(notes)} times, as {notes[0].path.name}: {notes[0].detail}")
    for error in report.errors:
        print_line(f"error  {error}")
    size = sum(check.bytes_read for _, check in report.partitions)
    count = len(report.findings) - len(report.faults)
    print_line(
        f"{human_count(len(report.partitions))} partitions, {human_bytes(size)} of batches: "
        f"{len(report.faults)} faults, {count} notes"
    )


def _line(finding: Finding) -> None:
    at = "" if finding.position is None else f" at byte {finding.position}"
    what = f"{finding.severity:5}  {finding.code}  {finding.path}{at}: {finding.detail}"
    print_line(what + (f" [{finding.repair}]" if finding.repair else ""))
