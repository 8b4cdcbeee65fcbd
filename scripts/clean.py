"""`compactd clean`: compacts the log dirs of a stopped broker as Kafka's own cleaner would."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from compactd.config.errors import EXIT_DONE, CompactdError, UsageError
from compactd.config.load import ResolvedConfig
from compactd.scripts.clean_workers import run_jobs
from compactd.scripts.explain import Reason, first_reason, limit_reason, policy_reason
from compactd.scripts.options import (
    config_option,
    high_watermark_option,
    json_of_partitions_option,
    metadata_option,
    now_option,
    sets_option,
)
from compactd.scripts.output import (
    Progress,
    Table,
    human_bytes,
    human_count,
    percent,
    print_json,
    print_line,
    warn,
    warn_about_reference_kernel,
)
from compactd.scripts.plan import Plan, Planned, make_plan
from compactd.storage import files
from compactd.storage.checkpoints import HIGH_WATERMARKS
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, dirty_range, load_partition
from compactd.storage.log_dir import LogDir
from compactd.storage.names import parse_partition_dir


@dataclass(slots=True)
class Chosen:
    """A partition that is to be cleaned, with how badly it wants it."""

    planned: Planned
    ratio: float
    #: Bytes that the two passes will read, for the progress bar.
    bytes_to_read: int


@dataclass(slots=True)
class Choice:
    """What is cleaned, filthiest first, and what is not."""

    chosen: list[Chosen] = field(default_factory=list)
    reports: list[PartitionReport] = field(default_factory=list)


@click.command(
    name="clean",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 damage was found, 2 wrong usage, 3 refused, 4 I/O error; the worst one counts.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Partitions at a time; default: log.cleaner.threads (1). They share log.cleaner.dedupe.buffer.size. Where fewer "
    "partitions are left, each is cleaned by several threads.",
)
@click.option("--force", is_flag=True, help="Clean whatever the dirty ratio and min.compaction.lag.ms say.")
@click.option("--roll", is_flag=True, help="First close the active segment, so that it is cleaned, too.")
@click.option(
    "--first-dirty-offset",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start here in place of the cleaner's checkpoint (one partition).",
)
@click.option(
    "--uncleanable-offset", type=click.IntRange(min=0), metavar="N", help="Clean no further than this (one partition)."
)
@high_watermark_option
@now_option
@sets_option
@config_option
@metadata_option
@click.option(
    "--delete-delay",
    "delete_delay_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Remove replaced files MS after the last swap (0: each as soon as it is replaced, which needs the least room). Without "
    "it they stay as .deleted until the broker starts.",
)
@click.option(
    "--once", is_flag=True, help="One round a partition, even where the offset map was too small for all of it."
)
@click.option(
    "--kafka-map",
    is_flag=True,
    help="The offset map holds as many keys as Kafka's (24 bytes each), however small the buffer.",
)
@click.option("--dry-run", is_flag=True, help="Report what a clean would free; write nothing and take no lock.")
@json_of_partitions_option
def command(
    paths: tuple[Path, ...],
    workers: int | None,
    force: bool,
    roll: bool,
    first_dirty_offset: int | None,
    uncleanable_offset: int | None,
    high_watermark: int | None,
    now_ms: int | None,
    sets: tuple[str, ...],
    config_file: Path | None,
    metadata_dir: Path | None,
    delete_delay_ms: int | None,
    once: bool,
    kafka_map: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compact logs of a stopped Kafka broker, or of a backup of its disks, in place.

    PATH is a log dir or a topic-partition directory. Without options this cleans what Kafka's own cleaner would: topics
    with compact in cleanup.policy whose dirty ratio is above min.cleanable.dirty.ratio, the filthiest first. The result
    is what Kafka 4.4 would have left, and its checkpoint says so to the broker. Each log dir's lock is held meanwhile: a
    running broker is refused. Settings come from --set, --config, the cluster's __cluster_metadata-0, and defaults, in
    this order.

    \b
    Examples:
      compactd clean --dry-run /var/lib/kafka/data
      compactd clean --workers 4 --delete-delay 0 /disk1/kafka /disk2/kafka
      compactd clean --force --roll --set cleanup.policy=compact backup/users-0
    """
    plan = make_plan(paths, sets, config_file, metadata_dir, high_watermark, workers, any_buffer_size=kafka_map)
    if (first_dirty_offset, uncleanable_offset) != (None, None) and len(plan.partitions) != 1:
        raise UsageError(
            detail="--first-dirty-offset and --uncleanable-offset are of one partition; name a single topic-partition directory"
        )
    cleaner = plan.cleaner.config
    options = CleanOptions(
        now_ms=int(time.time() * 1000) if now_ms is None else now_ms,
        force=force,
        roll=roll,
        once=once,
        dry_run=dry_run,
        kafka_map=kafka_map,
        first_dirty_offset=first_dirty_offset,
        uncleanable_offset=uncleanable_offset,
        map_memory_bytes=cleaner.dedupe_buffer_size // max(1, cleaner.threads),
        map_load_factor=cleaner.load_factor,
        remove_replaced=delete_delay_ms == 0,
    )
    for note in plan.notes:
        warn(note)
    warn_about_reference_kernel()
    with contextlib.ExitStack() as locks:
        if not dry_run:
            for log_dir in _log_dirs(plan):
                locks.enter_context(LogDir(log_dir).lock())
        reports = clean_plan(plan, options, emit=partial(_print_report, plan) if as_json else None)
        if not dry_run:
            _remove_deleted(reports, delete_delay_ms)
    if not as_json:
        show_reports(plan, reports, options, delete_delay_ms)
    code = max((report.exit_code for report in reports), default=EXIT_DONE)
    sys.exit(code)


def _log_dirs(plan: Plan) -> list[Path]:
    return [state.path for state in plan.targets.log_dirs]


def _print_report(plan: Plan, report: PartitionReport) -> None:
    topic = report.topic_partition.topic
    settings = next((p.settings for p in plan.partitions if p.target.topic_partition.topic == topic), None)
    values = {} if settings is None else {n: {"value": v, "source": s} for n, v, s in _cleaning_settings(settings)}
    print_json({**report.to_json(), "settings": values}, flush=True)


def _cleaning_settings(settings: ResolvedConfig) -> Iterator[tuple[str, object, str]]:
    """Name, value and source of the settings that decide what a clean does."""
    for name in sorted(_CLEANING_SETTINGS & set(settings.sources)):
        value = getattr(settings.config, name.replace(".", "_"))
        yield name, ",".join(sorted(value)) if isinstance(value, frozenset) else value, settings.sources[name]


def clean_plan(
    plan: Plan, options: CleanOptions, emit: Callable[[PartitionReport], None] | None = None
) -> list[PartitionReport]:
    """Chooses, cleans and writes checkpoints; the caller holds the log dirs' locks. A report a partition, also of those
    that were left as they are. `emit` gets each as soon as it is there."""
    checkpoints = Checkpoints(plan, enabled=not options.dry_run)
    choice = choose(plan, options, checkpoints)
    reports: list[PartitionReport] = []

    no_watermark = {p.target.directory for p in plan.partitions if p.job.high_watermark is None}

    def done(report: PartitionReport) -> None:
        if report.directory in no_watermark:
            report.notes.append(
                f"there is no {HIGH_WATERMARKS}, so its high watermark is taken to be the log end offset"
            )
        reports.append(report)
        if emit is not None:
            emit(report)

    for report in choice.reports:
        done(report)
    cleaner = plan.cleaner.config
    with Progress("clean", sum(chosen.bytes_to_read for chosen in choice.chosen)) as progress:
        for report in run_jobs(
            [chosen.planned.job for chosen in choice.chosen],
            options,
            max(1, cleaner.threads),
            cleaner.io_max_bytes_per_second,
            lambda job, read, _written: progress.advance(read, f"clean {job.topic_partition}"),
            checkpoints.set,
        ):
            done(report)
    return reports


class Checkpoints:
    """The log dirs' cleaner-offset-checkpoint files: entries of other partitions stay."""

    def __init__(self, plan: Plan, enabled: bool = True) -> None:
        self._entries = {state.path: state.cleaner_offsets for state in plan.targets.log_dirs}
        self._enabled = enabled

    def set(self, job: CleanJob, offset: int) -> None:
        """Writes the next dirty offset of one partition at once: its cleaned files are in place."""
        if not self._enabled:
            return
        log_dir = job.directory.parent
        entries = self._entries[log_dir]
        entries[job.topic_partition] = offset
        LogDir(log_dir).cleaner_offsets.write(entries)


def choose(plan: Plan, options: CleanOptions, checkpoints: Checkpoints) -> Choice:
    """Kafka's choice (LogCleanerManager.grabFilthiestCompactedLog), or with force every compacted log with anything in it.

    A checkpoint outside its log is corrected at once, also where the log is not chosen, as Kafka does.
    """
    choice = Choice()
    for error in plan.targets.refused:
        choice.reports.append(_refusal(error))
    for planned in plan.partitions:
        reason = policy_reason(planned.settings)
        if reason is not None:
            choice.reports.append(_left(planned, reason))
            continue
        try:
            _weigh(planned, options, checkpoints, choice)
        except UsageError:
            raise
        except CompactdError as error:
            choice.reports.append(_failure(planned, error))
    choice.chosen.sort(key=lambda chosen: -chosen.ratio)
    return choice


def _weigh(planned: Planned, options: CleanOptions, checkpoints: Checkpoints, choice: Choice) -> None:
    partition = load_partition(planned.job, options.now_ms)
    if options.roll and partition.active_segment.size:
        partition = partition.as_if_rolled()
    for option, offset in (
        ("--first-dirty-offset", options.first_dirty_offset),
        ("--uncleanable-offset", options.uncleanable_offset),
    ):
        if offset is not None and not partition.log_start_offset <= offset <= partition.log_end_offset:
            start, end = partition.log_start_offset, partition.log_end_offset
            raise UsageError(detail=f"{option} {offset}: the log of {planned.name} runs from {start} to {end}")
    offsets, log = dirty_range(partition, planned.job, options)
    asked = options.force or options.first_dirty_offset is not None or options.uncleanable_offset is not None
    if log.cleanable_bytes and (asked or log.wants_cleaning):
        reads = 2 * log.cleanable_bytes + log.clean_bytes
        choice.chosen.append(Chosen(planned, log.cleanable_ratio, reads))
        return
    if offsets.force_update_checkpoint:
        checkpoints.set(planned.job, offsets.first_dirty_offset)
    reason = first_reason(partition, offsets, log, options.now_ms)
    report = _left(planned, reason or limit_reason(partition, offsets, log, options.now_ms))
    report.first_dirty_offset = report.next_dirty_offset = log.first_dirty_offset
    report.first_uncleanable_offset = log.first_uncleanable_offset
    report.bytes_before = report.bytes_after = partition.size
    report.notes.extend(partition.notes)
    choice.reports.append(report)


def _left(planned: Planned, reason: Reason) -> PartitionReport:
    """A partition that stays as it is: outcome "skipped", and the rule that says so."""
    report = PartitionReport(planned.target.topic_partition, planned.target.directory)
    report.outcome, report.reason = "skipped", f"{reason.code}: {reason.text}"
    with contextlib.suppress(OSError):
        report.bytes_before = report.bytes_after = sum(p.stat().st_size for p in report.directory.glob("*.log"))
    return report


def _failure(planned: Planned, error: CompactdError) -> PartitionReport:
    report = _left(planned, Reason("", ""))
    report.exit_code, report.reason = error.exit_code, str(error)
    report.outcome = {1: "faulty", 3: "refused"}.get(error.exit_code, "failed")
    return report


def _refusal(error: CompactdError) -> PartitionReport:
    directory = Path(error.fields["path"])
    report = PartitionReport(parse_partition_dir(directory.name).topic_partition, directory)
    report.exit_code, report.outcome, report.reason = error.exit_code, "refused", str(error)
    return report


def _remove_deleted(reports: Sequence[PartitionReport], delay_ms: int | None) -> None:
    """Removes what was replaced, once the delay is over; without a delay the broker does so when it starts."""
    if delay_ms is None:
        return
    if any(report.deleted for report in reports):
        time.sleep(delay_ms / 1000)
    for report in reports:
        for path in report.deleted:
            files.remove(path, missing_ok=True)


def show_reports(
    plan: Plan, reports: Sequence[PartitionReport], options: CleanOptions, delete_delay_ms: int | None
) -> None:
    """The result for people: a row for each partition that was cleaned, the others by reason, and a sum."""
    worked = [report for report in reports if report.outcome in ("cleaned", "measured")]
    if worked:
        _show_worked(worked, options)
    for report in reports:
        if report.exit_code:
            print_line(f"{report.topic_partition}: {report.outcome}. {report.reason}")
        for note in report.notes:
            print_line(f"{report.topic_partition}: {note}.")
    _show_skipped([report for report in reports if report.outcome in ("skipped", "clean")])
    _show_sources(plan, worked)
    before, after = sum(r.bytes_before for r in worked), sum(r.bytes_after for r in worked)
    verb = "would free" if options.dry_run else "freed"
    print_line(
        f"{'Measured' if options.dry_run else 'Cleaned'} {len(worked)} of {len(reports)} partitions: "
        f"{human_bytes(before)} to {human_bytes(after)}, {verb} {human_bytes(before - after)} ({percent(before - after, before)})."
    )
    left = [path for report in reports for path in report.deleted if path.exists()]
    if left and delete_delay_ms is None:
        size = sum(path.stat().st_size for path in left)
        print_line(
            f"{human_count(len(left))} replaced files ({human_bytes(size)}) wait as .deleted until the broker starts; "
            "--delete-delay 0 removes each as soon as it is replaced."
        )


def _show_worked(worked: Sequence[PartitionReport], options: CleanOptions) -> None:
    table = Table(
        ["partition", ">from", ">to", ">rounds", ">before", ">after", f">{'would free' if options.dry_run else 'freed'}",
         ">records in", ">out", ">keys", ">seconds", ">MiB/s"],
        droppable=("keys", "rounds", "from", "to", "records in", "out", "seconds"),
    )  # fmt: skip
    for report in worked:
        saved = report.bytes_before - report.bytes_after
        table.row(
            report.topic_partition,
            report.first_dirty_offset,
            report.next_dirty_offset,
            report.rounds,
            human_bytes(report.bytes_before),
            human_bytes(report.bytes_after),
            f"{human_bytes(saved)} ({percent(saved, report.bytes_before)})",
            human_count(report.stats.messages_read),
            human_count(report.stats.messages_written),
            human_count(report.map_entries),
            f"{report.seconds:.3f}",
            f"{report.stats.bytes_read / max(report.seconds, 1e-9) / (1 << 20):.0f}",
        )
    table.show()
    print_line("")


def _show_skipped(skipped: Sequence[PartitionReport]) -> None:
    """By reason, so that a thousand idle partitions are one line."""
    by_code: dict[str, list[PartitionReport]] = defaultdict(list)
    for report in skipped:
        by_code[report.reason.partition(":")[0]].append(report)
    for code, group in sorted(by_code.items(), key=lambda item: -len(item[1])):
        if len(group) == 1 or code not in _PLAIN_REASONS:
            for report in group:
                print_line(
                    f"{report.topic_partition} left as it is: {report.reason.partition(': ')[2] or report.reason}."
                )
            continue
        shown = ", ".join(str(report.topic_partition) for report in group[:5])
        more = f" and {human_count(len(group) - 5)} more" if len(group) > 5 else ""
        print_line(f"{shown}{more} left as they are: {_PLAIN_REASONS[code]}.")


_PLAIN_REASONS = {
    "POLICY": "their cleanup.policy has no compact",
    "EMPTY": "they have no records",
    "CLEAN": "nothing was written since their last clean",
    "ACTIVE_ONLY": "all that is dirty is in their active segments; --roll closes those first",
    "RATIO": "their dirty ratios are not above min.cleanable.dirty.ratio; --force cleans them all the same",
}


def _show_sources(plan: Plan, worked: Sequence[PartitionReport]) -> None:
    """Settings of the cleaned topics that aren't Kafka's defaults, with where they came from."""
    topics = {report.topic_partition.topic for report in worked}
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    for planned in plan.partitions:
        topic = planned.target.topic_partition.topic
        if topic not in topics:
            continue
        topics.discard(topic)
        for name, value, source in _cleaning_settings(planned.settings):
            if source != "default":
                seen[f"{name} = {value}", source].append(topic)
    for (setting, source), names in sorted(seen.items()):
        print_line(f"{setting} of {', '.join(names)}: from {source}.")


#: The settings that decide what a clean does.
_CLEANING_SETTINGS = frozenset({
    "cleanup.policy", "segment.bytes", "segment.index.bytes", "index.interval.bytes", "min.cleanable.dirty.ratio",
    "delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "internal.segment.bytes",
})  # fmt: skip
