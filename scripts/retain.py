"""`compactd retain`: applies retention once to the logs of a stopped broker, or explains what it would do."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from compactd.config.errors import EXIT_DONE, CompactdError, UsageError
from compactd.config.load import load_file, parse_sets, resolve_storage
from compactd.config.settings import as_text
from compactd.scripts.loading import LoadReport, bytes_to_recover, load_dir, planned_dirs, sessions
from compactd.scripts.options import (
    config_option,
    high_watermark_option,
    json_of_partitions_option,
    now_option,
    sets_option,
)
from compactd.scripts.output import Progress, Table, human_bytes, human_time, print_json, print_line, warn
from compactd.scripts.plan import Plan, Planned, make_plan
from compactd.storage import files, names
from compactd.storage.checkpoints import HIGH_WATERMARKS
from compactd.storage.largest_timestamp import locate_largest_timestamp
from compactd.storage.log import PartitionLog
from compactd.storage.log_dir_session import LogDirSession
from compactd.storage.partition import Partition
from compactd.storage.retention import RetentionExplanation, RetentionState, explain_retention
from compactd.storage.retention_loss import lost_keys
from compactd.storage.segment import LogSegment

_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "file.delete.delay.ms")


@dataclass(slots=True)
class RetainReport:
    """What retention did, or would do, to one partition."""

    planned: Planned
    fields: dict[str, Any] = field(default_factory=dict)
    explanation: RetentionExplanation | None = None
    error: CompactdError | None = None
    warnings: list[str] = field(default_factory=list)
    deleted_files: list[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        name = self.planned.target.topic_partition
        result: dict[str, Any] = {"topic": name.topic, "partition": name.partition, **self.fields}
        explanation = self.explanation
        if explanation is not None:
            result["deleted"] = [
                {"baseOffset": each.base_offset, "rule": each.rule} for each in explanation.plan.deletions
            ]
            result["rolled"] = explanation.plan.roll
            result["explanation"] = [
                {
                    "baseOffset": each.base_offset,
                    "size": each.size,
                    "largestTimestamp": each.largest_timestamp,
                    "isFileTime": each.is_file_time,
                    "rule": each.rule,
                    "dueMs": each.due_ms,
                    "heldBy": each.held_by,
                    "text": each.text,
                }
                for each in explanation.segments
            ]
            result["timestampWarnings"] = [
                {
                    "code": each.code,
                    "baseOffset": each.base_offset,
                    "offset": each.offset,
                    "timestamp": each.timestamp,
                    "text": each.text,
                }
                for each in explanation.warnings
            ]
        result["warnings"] = self.warnings
        result["settings"] = _settings(self.planned)
        result["outcome"] = "failed" if self.error is not None else "done"
        if self.error is not None:
            result["reason"] = str(self.error)
        return result


@dataclass(frozen=True, slots=True)
class _Options:
    now_ms: int
    log_start_offset: int | None
    high_watermark: int | None
    dry_run: bool


@click.command(
    name="retain",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 damage was found, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Explain each segment; write nothing and take no lock.")
@click.option(
    "--log-start-offset",
    type=click.IntRange(min=0),
    metavar="N",
    help="First delete the records below this offset (one partition).",
)
@high_watermark_option
@now_option
@sets_option
@config_option
@click.option(
    "--delete-delay",
    "delete_delay_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Remove the files MS after the last rename (0: at the end). Without it they stay as .deleted until the broker starts.",
)
@json_of_partitions_option
def command(
    paths: tuple[Path, ...],
    dry_run: bool,
    log_start_offset: int | None,
    high_watermark: int | None,
    now_ms: int | None,
    sets: tuple[str, ...],
    config_file: Path | None,
    delete_delay_ms: int | None,
    as_json: bool,
) -> None:
    """Apply retention once, as a Kafka broker would: by log start offset, then size, then time.

    PATH is a log dir of a stopped broker or a topic-partition directory. Whole segments go, oldest first, none above the
    high watermark; the first that stays holds all younger ones. --dry-run says for each segment which rule takes it and
    when, or what holds it. After an unclean stop the log is first recovered, as at a start.

    \b
    Examples:
      compactd retain --dry-run /var/lib/kafka/data
      compactd retain --set retention.ms=1h --delete-delay 0 backup/orders-0
    """
    plan = make_plan(paths, sets, config_file, high_watermark=high_watermark)
    if log_start_offset is not None and len(plan.partitions) != 1:
        raise UsageError(detail="--log-start-offset is of one partition; name a single topic-partition directory")
    now = int(time.time() * 1000) if now_ms is None else now_ms
    options = _Options(now, log_start_offset, high_watermark, dry_run)
    for note in plan.notes:
        warn(note)
    for error in plan.targets.refused:
        warn(str(error))
    if dry_run:
        reports = [_explain_only(planned, options) for planned in plan.partitions]
    else:
        reports = _retain(plan, paths, sets, config_file, options, delete_delay_ms)
    for report in reports:
        if as_json:
            print_json(report.to_json())
    if not as_json:
        show(reports, options)
    codes = [0 if report.error is None else report.error.exit_code for report in reports]
    sys.exit(max([EXIT_DONE, *codes, *(error.exit_code for error in plan.targets.refused)]))


def _retain(
    plan: Plan,
    paths: Sequence[Path],
    sets: Sequence[str],
    config_file: Path | None,
    options: _Options,
    delete_delay_ms: int | None,
) -> list[RetainReport]:
    storage = resolve_storage(parse_sets(sets), None if config_file is None else load_file(config_file), plan.metadata)
    reports: list[RetainReport] = []
    with sessions(planned_dirs(plan, paths), None) as opened:
        with Progress("recover", sum(bytes_to_recover(each, session) for each, session in opened)) as progress:
            for directory, session in opened:
                for note in session.notes:
                    warn(note)
                loaded = load_dir(
                    directory,
                    session,
                    now_ms=options.now_ms,
                    threads=storage.config.num_recovery_threads_per_data_dir,
                    progress=progress,
                )
                reports.extend(_apply(report, session, options) for report in loaded)
        doomed = [path for report in reports for path in report.deleted_files]
        if doomed and delete_delay_ms is not None:
            time.sleep(delete_delay_ms / 1000)
            for path in doomed:
                files.remove(path, missing_ok=True)
    return reports


def _apply(loaded: LoadReport, session: LogDirSession, options: _Options) -> RetainReport:
    report = RetainReport(loaded.planned, error=loaded.error)
    found = loaded.log
    if found is None:
        return report
    report.warnings.extend(loaded.notes)
    report.warnings.extend(str(action) for action in found.actions)
    log = PartitionLog(found, now_ms=options.now_ms, high_watermark=loaded.high_watermark)
    try:
        if options.log_start_offset is not None:
            log.maybe_increment_log_start_offset(options.log_start_offset)
        state = RetentionState(log.log_start_offset, log.log_end_offset, log.high_watermark, options.now_ms)
        report.explanation = explain_retention(found.segments, log.config, state, locate_largest_timestamp)
        _warn_of_lost_keys(report, found.segments, log.log_end_offset)
        log.delete_segments(log.segments[: len(report.explanation.plan.deletions)], options.now_ms)
        report.fields = _fields(log, log.log_start_offset, report)
        log.close()
        session.write_checkpoints([log], whole_dir=False)
        report.deleted_files = sorted(log.directory.glob("*" + names.DELETED))
    except CompactdError as error:
        log.close(orderly=False)
        report.error = error
        session.failed = True
    return report


def _explain_only(planned: Planned, options: _Options) -> RetainReport:
    report = RetainReport(planned)
    job = planned.job
    try:
        log = Partition.load(
            planned.target.directory,
            planned.settings.config,
            now_ms=options.now_ms,
            topic_partition=planned.target.topic_partition,
            log_start_offset=job.log_start_offset,
            high_watermark=job.high_watermark,
            clean_shutdown=job.clean_shutdown,
            recovery_point=job.recovery_point,
        )
        report.warnings.extend(log.notes)
        if job.high_watermark is None:
            report.warnings.append(
                f"there is no {HIGH_WATERMARKS}, so its high watermark is taken to be the log end offset"
            )
        start = max(log.log_start_offset, options.log_start_offset or 0)
        if start > log.high_watermark:
            raise UsageError(
                detail=f"--log-start-offset {start} is larger than the high watermark {log.high_watermark}"
            )
        state = RetentionState(start, log.log_end_offset, log.high_watermark, options.now_ms)
        report.explanation = explain_retention(log.segments, log.config, state, locate_largest_timestamp)
        _warn_of_lost_keys(report, log.segments, log.log_end_offset)
        report.fields = _fields(log, start, report)
    except UsageError:
        raise
    except CompactdError as error:
        report.error = error
    return report


def _fields(log: PartitionLog | Partition, log_start_offset: int, report: RetainReport) -> dict[str, Any]:
    """The log as it is, or would be with this start."""
    return {
        "logStartOffset": log_start_offset,
        "logEndOffset": log.log_end_offset,
        "lastStableOffset": log.last_stable_offset,
        "highWatermark": log.high_watermark,
        "segments": [
            {"baseOffset": s.base_offset, "size": s.size, "largestTimestamp": s.largest_timestamp} for s in log.segments
        ],
        "bytesDeleted": _bytes_deleted(report),
    }


def _bytes_deleted(report: RetainReport) -> int:
    explanation = report.explanation
    return 0 if explanation is None else sum(s.size for s in explanation.segments if s.rule is not None)


def _warn_of_lost_keys(report: RetainReport, segments: Sequence[LogSegment], end: int) -> None:
    """With compact,delete time takes the last value of a key that nobody writes any more."""
    explanation = report.explanation
    config = report.planned.settings.config
    if explanation is None or not explanation.plan.deletions or not (config.compact and config.delete):
        return
    lost = lost_keys(segments, [each.base_offset for each in explanation.plan.deletions], end)
    if lost is None:
        report.warnings.append(
            "cleanup.policy has compact and delete: keys may lose their last value (too many to list)"
        )
    elif lost.count:
        shown = ", ".join(repr(key)[1:] for key in lost.examples)
        more = "" if lost.count <= len(lost.examples) else f" and {lost.count - len(lost.examples)} more"
        report.warnings.append(f"{lost.count} keys lose their last value: {shown}{more}")


def _settings(planned: Planned) -> dict[str, dict[str, object]]:
    config, sources = planned.settings.config, planned.settings.sources
    values = {}
    for name in _SETTINGS:
        if name in sources:
            value = getattr(config, name.replace(".", "_"))
            shown = ",".join(sorted(value)) if isinstance(value, frozenset) else value
            values[name] = {"value": shown, "source": sources[name]}
    return values


def show(reports: Sequence[RetainReport], options: _Options) -> None:
    """A block a partition: its settings and where they come from, and a row a segment."""
    would = "would go" if options.dry_run else "gone"
    for report in reports:
        if report.error is not None:
            print_line(f"{report.planned.name}: {report.error}\n")
        explanation = report.explanation
        if explanation is None:
            continue
        settings = _settings(report.planned)
        shown = ", ".join(
            f"{name} = {as_text(settings[name]['value'])} ({settings[name]['source']})"
            for name in _SETTINGS[:3]
            if name in settings
        )
        print_line(f"{report.planned.name}: {shown}")
        fields = report.fields
        print_line(
            f"  offsets {fields['logStartOffset']} to {fields['logEndOffset']}, high watermark {fields['highWatermark']}; "
            f"{len(explanation.plan.deletions)} of {len(explanation.segments)} segments {would}, "
            f"{human_bytes(_bytes_deleted(report))}"
        )
        table = Table(["  segment", ">size", "largest timestamp", "rule", "why"])
        for each in explanation.segments:
            stamp = human_time(each.largest_timestamp) + (" (file)" if each.is_file_time else "")
            table.row(f"  {each.base_offset}", human_bytes(each.size), stamp, each.rule or "-", each.text)
        table.show()
        for warning in explanation.warnings:
            print_line(f"  warning {warning.code}: {warning.text}")
        for text in report.warnings:
            print_line(f"  warning: {text}")
        print_line("")
