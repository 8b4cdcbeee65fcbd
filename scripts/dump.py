"""`compactd dump`: what is in the files of a log dir, for people or as JSON lines. Reads only and takes no lock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from compactd.config.errors import EXIT_FAULTS, CompactdError, FaultError, UsageError
from compactd.scripts import dump_files, dump_log
from compactd.scripts.dump_text import HEADINGS, line
from compactd.scripts.output import human_count, print_json, print_line
from compactd.scripts.values import FORMATS
from compactd.storage import names

#: --decoder: the topic whose records it reads.
DECODERS = {
    "offsets": "__consumer_offsets",
    "transactions": "__transaction_state",
    "shares": "__share_group_state",
    "metadata": "__cluster_metadata",
}

#: --only.
KINDS = ("log", "index", "timeindex", "txnindex", "snapshot", "checkpoint", "metadata")

#: Names that are no part of a segment: kind, and how it is read.
_NAMED: dict[str, tuple[str, Callable[[Path], Iterator[dict[str, Any]]]]] = {
    "cleaner-offset-checkpoint": ("checkpoint", dump_files.offset_checkpoint_entries),
    "recovery-point-offset-checkpoint": ("checkpoint", dump_files.offset_checkpoint_entries),
    "log-start-offset-checkpoint": ("checkpoint", dump_files.offset_checkpoint_entries),
    "replication-offset-checkpoint": ("checkpoint", dump_files.offset_checkpoint_entries),
    "leader-epoch-checkpoint": ("checkpoint", dump_files.leader_epoch_entries),
    "partition.metadata": ("metadata", dump_files.partition_metadata_entries),
    "meta.properties": ("metadata", dump_files.meta_properties_entries),
    ".kafka_cleanshutdown": ("metadata", dump_files.clean_shutdown_entries),
    "quorum-state": ("metadata", dump_files.quorum_state_entries),
}
_SEGMENT_FILES: dict[str, tuple[str, Callable[[Path], Iterator[dict[str, Any]]]]] = {
    names.OFFSET_INDEX: ("index", dump_files.offset_index_entries),
    names.TIME_INDEX: ("timeindex", dump_files.time_index_entries),
    names.TRANSACTION_INDEX: ("txnindex", dump_files.transaction_index_entries),
    names.SNAPSHOT: ("snapshot", dump_files.snapshot_entries),
}
_SUFFIXES = (names.DELETED, names.CLEANED, names.SWAP, ".tmp")
#: A directory of log dirs, a log dir, a partition: no log lies deeper, and a symbolic link may lead in circles.
_DEEPEST = 3
#: Bytes of a log, whatever it is called: KRaft's snapshots are logs too.
_LOG_SUFFIXES = (names.LOG, ".checkpoint")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What was asked for, beside the paths."""

    view: dump_log.LogView
    decoder: str
    limit: int | None
    only: frozenset[str]
    as_json: bool


@dataclass(slots=True)
class Tally:
    """What was printed, for the last line and the exit code."""

    faults: int = 0
    files: int = 0


@click.command(
    name="dump",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 nothing wrong, 1 damage was found (the rest is printed all the same), 2 wrong usage, 4 I/O error.",
)
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Show the records in the batches, too.")
@click.option(
    "--key", "key_format", type=click.Choice(FORMATS), default="text", show_default=True, help="How to show keys."
)
@click.option(
    "--value", "value_format", type=click.Choice(FORMATS), default="text", show_default=True, help="How to show values."
)
@click.option(
    "--decoder",
    type=click.Choice(["auto", "none", *DECODERS]),
    default="auto",
    show_default=True,
    help="Decode the records of Kafka's own topics; auto goes by the directory's name. Implies --records when given.",
)
@click.option(
    "--offset", "from_offset", type=click.IntRange(min=0), metavar="N", help="Start at the batch or entry of offset N."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most N batches (with --records: records) or entries of each file.",
)
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Only files of this kind (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="JSON lines: one object a batch, record, entry or fault.")
def command(
    paths: tuple[Path, ...],
    records: bool,
    key_format: str,
    value_format: str,
    decoder: str,
    from_offset: int | None,
    limit: int | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print what the files of a log dir hold.

    FILE is a segment file (.log, .index, .timeindex, .txnindex, .snapshot, also with .deleted, .cleaned or .swap), a
    checkpoint, partition.metadata, meta.properties, .kafka_cleanshutdown or a KRaft snapshot. DIR is a topic-partition
    directory or a whole log dir: every file in it is shown. Nothing is changed and no lock is taken, so it is safe beside
    a running broker. Damaged batches are reported with position and reason, and reading goes on behind them.

    \b
    Examples:
      compactd dump /var/lib/kafka/data/users-0
      compactd dump --records --value json 00000000000000000000.log
      compactd dump --only log --offset 5000 --limit 10 /var/lib/kafka/data/users-0
      compactd dump --records --json /var/lib/kafka/data/__consumer_offsets-12 | jq .decoded
    """
    view = dump_log.LogView(
        records=records or decoder in DECODERS,
        key_format=key_format,
        value_format=value_format,
        from_offset=from_offset or 0,
        for_people=not as_json,
    )
    options = DumpOptions(view, decoder, limit, frozenset(only), as_json)
    tally = Tally()
    for path in paths:
        if path.is_dir():
            _dump_dir(path, options, tally)
        else:
            _dump_file(path, options, tally, named=True)
    if not tally.files and not tally.faults:
        wanted = f" of kind {', '.join(only)}" if only else ""
        raise UsageError(detail=f"there is no log-dir file{wanted} in {', '.join(map(str, paths))}")
    if tally.faults:
        click.echo(f"compactd: {human_count(tally.faults)} faults found.", err=True)
        sys.exit(EXIT_FAULTS)


def _dump_dir(directory: Path, options: DumpOptions, tally: Tally, depth: int = 0) -> None:
    """Files first, then directories, each by name: segment by segment in offset order."""
    try:
        children = sorted(directory.iterdir(), key=lambda child: (child.is_dir(), child.name))
    except FileNotFoundError:
        return  # a running broker removed it
    for number, child in enumerate(children):
        if child.is_dir():
            if child.name != names.REMOTE_LOG_INDEX_CACHE and depth < _DEEPEST:
                _dump_dir(child, options, tally, depth + 1)
        elif child.is_file() and not _ends_before(children[number + 1 :], child, options.view.from_offset):
            _dump_file(child, options, tally, named=False)


def _ends_before(following: list[Path], path: Path, offset: int) -> bool:
    """Whether a later segment of the directory starts at or below `offset`, so that this one has nothing to show."""
    name = names.parse_segment_name(path.name)
    if name is None or name.kind == names.SNAPSHOT or offset == 0:
        return False
    bases = (names.parse_segment_name(other.name) for other in following)
    return any(
        other is not None
        and other.kind == names.LOG
        and not other.suffix
        and name.base_offset < other.base_offset <= offset
        for other in bases
    )


def _dump_file(path: Path, options: DumpOptions, tally: Tally, *, named: bool) -> None:
    kind = _kind(path)
    if kind is None:
        if named:
            raise UsageError(
                detail=f"{path}: its name is not that of a file in a log dir (00000000000000000000.log, .index, "
                "leader-epoch-checkpoint, …), so there is no telling what it holds"
            )
        return
    if options.only and kind not in options.only:
        return
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        if named:
            raise
        return  # a running broker removed it
    tally.files += 1
    printer = _print_json if options.as_json else _Printer(path, kind, size)
    counted = "record" if options.view.records else "batch"
    left = options.limit
    for entry in _with_faults(path, _entries(path, kind, options)):
        if entry["type"] == "fault":
            tally.faults += 1
        elif left is not None and (kind != "log" or entry["type"] == counted):
            if left == 0:
                break
            left -= 1
        printer(entry)
    if isinstance(printer, _Printer):
        printer.end()


def _plain_name(path: Path) -> str:
    name = path.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _kind(path: Path) -> str | None:
    """The file's kind by its name, one of KINDS; None for a name that no log dir has."""
    name = _plain_name(path)
    if name in _NAMED:
        return _NAMED[name][0]
    if name.endswith(_LOG_SUFFIXES):
        return "log"
    segment = names.parse_segment_name(name)
    return None if segment is None else _SEGMENT_FILES[segment.kind][0]


def _entries(path: Path, kind: str, options: DumpOptions) -> Iterator[dict[str, Any]]:
    """The entries of a file of `kind`, from the offset that was asked for on."""
    name = _plain_name(path)
    if kind == "log":
        return dump_log.log_entries(path, replace(options.view, decoder=_decoder(path, options)))
    if name in _NAMED:
        return _NAMED[name][1](path)
    segment = names.parse_segment_name(name)
    assert segment is not None
    entries = _SEGMENT_FILES[segment.kind][1](path)
    first = options.view.from_offset
    if first == 0 or kind == "snapshot":
        return entries
    return (e for e in entries if e["type"] == "fault" or e.get("offset", e.get("lastOffset", first)) >= first)


def _decoder(path: Path, options: DumpOptions) -> dump_log.Decoder | None:
    if options.decoder == "none" or not options.view.records:
        return None
    topic = DECODERS.get(options.decoder) or _topic_of(path)
    if topic is None or topic not in DECODERS.values():
        return None
    from compactd.storage.metadata import decode_record  # noqa: PLC0415

    return partial(decode_record, topic)


def _topic_of(path: Path) -> str | None:
    if path.name.removesuffix(".tmp").endswith(".checkpoint"):
        return DECODERS["metadata"]
    try:
        return names.parse_partition_dir(path.resolve().parent.name).topic_partition.topic
    except CompactdError:
        return None


def _with_faults(path: Path, entries: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries; damage that ends the reading of a file becomes its last entry. Files that vanish end quietly."""
    try:
        yield from entries
    except FaultError as error:
        yield dump_log.fault_entry(path, error)
    except FileNotFoundError:
        return


def _print_json(entry: dict[str, Any]) -> None:
    print_json(entry)


class _Printer:
    """One file for people: a heading, its entries under the names of their columns, and a count."""

    def __init__(self, path: Path, kind: str, size: int) -> None:
        self._kind = kind
        self._counts: dict[str, int] = {}
        print_line(f"{path}  ({human_count(size)} bytes)")

    def __call__(self, entry: dict[str, Any]) -> None:
        kind = entry["type"]
        if kind not in self._counts and kind in HEADINGS:
            print_line(HEADINGS[kind])
        self._counts[kind] = self._counts.get(kind, 0) + 1
        print_line(line(entry))

    def end(self) -> None:
        words = {"batch": "batches", "record": "records", "fault": "faults"}
        if self._kind == "log":
            shown = [f"{human_count(self._counts[k])} {word}" for k, word in words.items() if k in self._counts]
            print_line("  " + (", ".join(shown) or "empty"))
        elif not self._counts:
            print_line("  no entries")
        elif self._kind in ("index", "timeindex"):
            print_line(f"  {human_count(sum(self._counts.values()) - self._counts.get('fault', 0))} entries")
        print_line("")
