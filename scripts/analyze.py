"""`compactd analyze`: what cleaning would free in each partition, and what holds it up. Reads only and takes no lock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from compactd.config.errors import EXIT_FAULTS, CompactdError
from compactd.scripts.explain import DIR_STATES, Reason
from compactd.scripts.measure import PartitionView, measure
from compactd.scripts.options import config_option, metadata_option, now_option, sets_option
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
from compactd.scripts.plan import Plan, make_plan
from compactd.storage import names
from compactd.storage.kernel import active_kernel
from compactd.storage.targets import is_log_dir


@click.command(
    name="analyze",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a partition is damaged (the others are shown), 2 wrong usage, 4 I/O error.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@sets_option
@config_option
@metadata_option
@now_option
@click.option("--quick", is_flag=True, help="Read no records: sizes and reasons only, nothing measured.")
@click.option(
    "--settings", "show_settings", is_flag=True, help="Show every setting of every topic, and where it came from."
)
@click.option(
    "--top-keys",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the N keys (groups, of __consumer_offsets) with most bytes, per partition.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="JSON lines: one object a partition (and one a key, with --top-keys)."
)
def command(
    paths: tuple[Path, ...],
    sets: tuple[str, ...],
    config_file: Path | None,
    metadata_dir: Path | None,
    now_ms: int | None,
    quick: bool,
    show_settings: bool,
    top_keys: int | None,
    as_json: bool,
) -> None:
    """Show, for each partition, what a clean would free and the first rule that holds it up.

    PATH is a log dir or a topic-partition directory. Nothing is changed and no lock is taken, so it is safe beside a
    running broker; unfinished batches at a log's end are passed by. What would be freed is measured: the keys are read
    and every record is counted as a clean would keep or drop it.

    \b
    Columns:
      clean    closed segments below the cleaner's checkpoint
      dirty    closed segments that the next clean would read
      active   the open segment, which no clean touches (clean --roll closes it first)
      frees    what the next clean frees
      forced   what clean --force --roll would free
      expired  of the tombstones, those that a clean may drop now

    \b
    Examples:
      compactd analyze /var/lib/kafka/data
      compactd analyze --config server.properties --json /disk1 /disk2
      compactd analyze --top-keys 10 /var/lib/kafka/data/__consumer_offsets-12
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    plan = make_plan(paths, sets, config_file, metadata_dir)
    for note in plan.notes:
        warn(note)
    if not quick:
        warn_about_reference_kernel()
    views = _measure_all(plan, now, quick)
    views += _untouched(paths, plan)
    if as_json:
        for view in views:
            print_json(view.to_json())
    else:
        _show(views, quick)
    if show_settings:
        _show_settings(plan, as_json)
    if top_keys is not None:
        from compactd.scripts.top_keys import show_top_keys  # noqa: PLC0415

        show_top_keys(plan, top_keys, as_json)
    if any(view.reason is not None and view.reason.code == "FAULT" for view in views):
        sys.exit(EXIT_FAULTS)


def _measure_all(plan: Plan, now_ms: int, quick: bool) -> list[PartitionView]:
    kernel = active_kernel()
    total = sum(_log_bytes(planned.target.directory) for planned in plan.partitions if planned.settings.config.compact)
    views = []
    # Up to three passes over every byte: the map, what the next clean frees, and what a forced one would.
    with Progress("analyze", 3 * total, enabled=not quick) as progress:
        for planned in plan.partitions:
            view = measure(
                planned,
                plan.cleaner.config,
                now_ms,
                None if quick else kernel,
                _reporter(progress, planned.name),
            )
            if view is None:
                warn(f"{planned.target.directory}: it vanished while it was read.")
            else:
                views.append(view)
    return views


def _reporter(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda read, _written: progress.advance(read, name)


def _log_bytes(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for path in directory.glob("*.log"))
    except OSError:
        return 0


def _untouched(paths: Sequence[Path], plan: Plan) -> list[PartitionView]:
    """Rows of the directories that no clean touches: being deleted, moved, set aside, and KRaft's own log."""
    log_dirs = [path.resolve() for path in paths if is_log_dir(path)]
    named = [path.resolve() for path in paths if not is_log_dir(path)]
    known = {planned.target.directory for planned in plan.partitions}
    refused = {Path(error.fields["path"]): error for error in plan.targets.refused}
    views = []
    children = [child for log_dir in log_dirs for child in sorted(log_dir.iterdir()) if child.is_dir()]
    for child in dict.fromkeys([*children, *named]):
        if child in known:
            continue
        try:
            parsed = names.parse_partition_dir(child.name)
        except CompactdError:
            continue
        if parsed.state in DIR_STATES:
            reason = Reason(*DIR_STATES[parsed.state])
        elif parsed.is_cluster_metadata:
            reason = Reason("METADATA", "KRaft's own log is compacted by the controller's snapshots, not by keys")
        elif child in refused:
            reason = Reason("DUPLICATE", str(refused[child]))
        else:
            continue
        views.append(PartitionView.of_files(parsed.topic_partition, child, reason))
    return views


#: Columns that a narrow terminal can do without, the first one first; --json has them all.
_DROPPABLE = ("markers", "aborted", "keyless", "expired", "segments", "tombstones", "ratio", "policy", "clean")


def _show(views: list[PartitionView], quick: bool) -> None:
    headings = ["partition", "policy", ">segments", ">bytes", ">clean", ">dirty", ">active", ">ratio"]
    if not quick:
        headings += [">frees", ">forced", ">tombstones", ">expired", ">keyless", ">aborted", ">markers"]
    table = Table([*headings, "held up by"], droppable=_DROPPABLE)
    views = sorted(views, key=lambda v: (-(v.frees_forced or 0), -v.bytes, v.name))
    for view in views:
        cells = [view.name, view.policy, human_count(view.segments), human_bytes(view.bytes)]
        if view.is_compacted:
            sizes = (view.clean_bytes, view.dirty_bytes, view.active_bytes)
            cells += [*map(human_bytes, sizes), "-" if view.ratio is None else f"{view.ratio:.2f}"]
        else:
            cells += ["-"] * 4
        if not quick:
            freed = (view.frees_next, view.frees_forced)
            counts = (view.tombstones, view.tombstones_expired, view.keyless, view.aborted, view.markers)
            cells += ["-" if count is None else human_bytes(count) for count in freed]
            cells += ["-" if count is None else human_count(count) for count in counts]
        table.row(*cells, "nothing" if view.reason is None else view.reason.code)
    table.show()
    print_line("")
    for view in views:
        _show_reason(view)
    total, compacted = sum(v.bytes for v in views), [v for v in views if v.is_compacted]
    line = f"{len(views)} partitions, {human_bytes(total)}; {len(compacted)} compacted"
    if not quick:
        now_free, forced = (sum(v.frees_next or 0 for v in views), sum(v.frees_forced or 0 for v in views))
        line += (
            f"; the next clean frees {human_bytes(now_free)} ({percent(now_free, total)}), "
            f"clean --force --roll would free {human_bytes(forced)} ({percent(forced, total)})"
        )
    print_line(line + ".")


def _show_reason(view: PartitionView) -> None:
    if view.reason is not None and view.reason.code not in ("POLICY", "EMPTY", "CLEAN", "METADATA"):
        print_line(f"{view.name}: {view.reason.text}.")
    for note in view.notes:
        print_line(f"{view.name}: {note}.")


def _show_settings(plan: Plan, as_json: bool) -> None:
    settings = {planned.target.topic_partition.topic: planned.settings for planned in plan.partitions}
    table = Table(["topic", "setting", "value", "from"], title="\nSettings")
    for topic, resolved in sorted(settings.items()):
        for name, source in resolved.sources.items():
            value = _setting(resolved.config, name)
            if as_json:
                print_json({"type": "setting", "topic": topic, "name": name, "value": value, "source": source})
            else:
                table.row(topic, name, value, source)
    if not as_json:
        table.show()


def _setting(config: object, name: str) -> str:
    value = getattr(config, name.replace(".", "_"), None)
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
