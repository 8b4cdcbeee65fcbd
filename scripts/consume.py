"""`compactd consume`: the records of a topic as lines, for people without Kafka's tools."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from compactd.config.errors import ServerError, StorageIOError, UsageError
from compactd.scripts.bootstrap import bootstrap_option, find_server
from compactd.scripts.client import EARLIEST, LATEST, RETRIABLE, Fetched, KafkaClient, TopicLayout, error_text
from compactd.scripts.login import load_login
from compactd.scripts.output import human_count, human_time, print_json
from compactd.scripts.running import daemon_options
from compactd.scripts.values import FORMATS, json_fields
from compactd.storage.records.batch import Batch
from compactd.storage.records.control import ControlRecordType, parse_control_key
from compactd.storage.records.record import Record
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.errors import ErrorCode

_WAIT_MS = 500
_PAUSE_SECONDS = 0.25
#: How long a server may be away before reading ends.
_PATIENCE_SECONDS = 30.0


@click.command(
    name="consume",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a damaged batch, 2 wrong usage, 3 refused or no daemon runs, 4 I/O error.",
)
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--from-beginning", is_flag=True, help="From the first offset of each partition. Default: only new records."
)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="From this offset on (with --partition).")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only this one. Default: all of them.")
@click.option("--until-end", is_flag=True, help="End where the log ends now, in place of waiting for more.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--keys", is_flag=True, help="Print the key before the value.")
@click.option("--key-separator", default="\\t", show_default=True, metavar="TEXT", help="Between them, for --keys.")
@click.option(
    "--null-marker", default="null", show_default=True, metavar="TEXT", help="How no key or no value is printed."
)
@click.option("--offsets", is_flag=True, help="Print partition, offset and time before each record.")
@click.option("--committed", is_flag=True, help="No records of transactions that are open or were aborted.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each record, with everything that it has.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Of keys and values in --json; what is not text is hex.",
)
@bootstrap_option
@daemon_options
def command(
    topic: str,
    from_beginning: bool,
    offset: int | None,
    partition: int | None,
    until_end: bool,
    most: int | None,
    keys: bool,
    key_separator: str,
    null_marker: str,
    offsets: bool,
    committed: bool,
    as_json: bool,
    form: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    config: Path | None,
    run_dir: Path | None,
) -> None:
    """Print the records of a topic, and wait for more until Ctrl-C.

    Values go out as they are, a line each. Commits nothing and joins no group.

    \b
    Examples:
      compactd consume users --from-beginning --keys
      compactd consume users --from-beginning --until-end --json | jq .value
      compactd consume users --partition 0 --offset 1200 --max 10
    """
    if offset is not None and (from_beginning or partition is None):
        raise UsageError(detail="--offset needs a --partition, and no --from-beginning")
    separator = key_separator.replace("\\t", "\t").replace("\\n", "\n")
    printer = (
        _JsonPrinter(topic, form)
        if as_json
        else _LinePrinter(separator.encode() if keys else None, null_marker.encode(), offsets)
    )
    login = None if command_config is None else load_login(command_config)
    with KafkaClient(find_server(bootstrap_server, config, run_dir), login=login) as client:
        consumer = _Consumer(client, client.layout(topic), partition, committed)
        consumer.begin(offset, from_beginning)
        # Ctrl-C is how it ends where nothing else ends it.
        with contextlib.suppress(KeyboardInterrupt):
            consumer.run(printer, until_end, most)
        if not as_json:
            sys.stdout.buffer.flush()
            count = consumer.count
            click.echo(f"{human_count(count)} record{'' if count == 1 else 's'} of {topic}", err=True)


class _LinePrinter:
    """Bytes as they are."""

    def __init__(self, separator: bytes | None, null: bytes, offsets: bool) -> None:
        self._separator, self._null, self._offsets = separator, null, offsets

    def __call__(self, partition: int, record: Record, timestamp_type: str) -> None:
        line = b""
        if self._offsets:
            line = f"{partition}\t{record.offset}\t{human_time(record.timestamp)}\t".encode()
        if self._separator is not None:
            line += (self._null if record.key is None else record.key) + self._separator
        line += self._null if record.value is None else record.value
        sys.stdout.buffer.write(line + b"\n")


class _JsonPrinter:
    def __init__(self, topic: str, form: str) -> None:
        self._topic, self._form = topic, form

    def __call__(self, partition: int, record: Record, timestamp_type: str) -> None:
        fields: dict[str, Any] = {
            "topic": self._topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": timestamp_type,
        }
        fields |= json_fields("key", record.key, self._form)
        fields |= json_fields("value", record.value, self._form)
        fields["headers"] = [
            json_fields("key", key.encode() if isinstance(key, str) else key, "text")
            | json_fields("value", value, "text")
            for key, value in record.headers
        ]
        print_json(fields)


_Printer = _LinePrinter | _JsonPrinter


class _Consumer:
    """Where it is in each partition, and what comes next."""

    def __init__(self, client: KafkaClient, layout: TopicLayout, partition: int | None, committed: bool) -> None:
        if partition is not None and partition not in layout.leaders:
            raise UsageError(detail=f"{layout.name} has no partition {partition}, it has {len(layout.leaders)}")
        self._client, self._layout, self._committed = client, layout, committed
        self._partitions = list(layout.leaders) if partition is None else [partition]
        self._next: dict[int, int] = {}
        self.count = 0

    def begin(self, offset: int | None, from_beginning: bool) -> None:
        for partition in self._partitions:
            where = EARLIEST if from_beginning else LATEST
            self._next[partition] = (
                offset if offset is not None else self._client.offset_at(self._layout, partition, where)
            )

    def run(self, printer: _Printer, until_end: bool, most: int | None) -> None:
        """Until the records are enough, or the end is reached, or for ever."""
        ends = self._ends() if until_end else None
        while True:
            open_ones = self._open(ends)
            if not open_ones:
                return
            try:
                found = self._client.fetch(self._layout, open_ones, _WAIT_MS, self._committed)
            except StorageIOError as error:
                self._wait_for_server(error)
                continue
            for each in found:
                self._take(each, printer, most, None if ends is None else ends[each.partition])
                if most is not None and self.count >= most:
                    return
            if any(each.error in RETRIABLE for each in found):
                self._wait_for_server(
                    StorageIOError(path=self._layout.name, action="reading", reason="it has no leader")
                )
            sys.stdout.buffer.flush()

    def _wait_for_server(self, lost: StorageIOError) -> None:
        """A broker that died is started again: what was printed is known, so reading goes on. Raises what was lost in time."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(StorageIOError):
                self._client.connect_again()
                layout = self._client.layout(self._layout.name)
                if all(layout.leaders.get(partition, -1) >= 0 for partition in self._partitions):
                    self._layout = layout
                    return
        raise lost

    def _ends(self) -> dict[int, int]:
        return {each: self._client.offset_at(self._layout, each, LATEST) for each in self._partitions}

    def _open(self, ends: Mapping[int, int] | None) -> dict[int, int]:
        """Offsets of the partitions that are to be read on."""
        return {
            partition: offset for partition, offset in self._next.items() if ends is None or offset < ends[partition]
        }

    def _take(self, found: Fetched, printer: _Printer, most: int | None, end: int | None) -> None:
        name = f"{self._layout.name}-{found.partition}"
        if found.error in RETRIABLE:
            return
        if found.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            first, end = (self._client.offset_at(self._layout, found.partition, at) for at in (EARLIEST, LATEST))
            wanted = self._next[found.partition]
            raise ServerError(what=name, reason=f"offset {wanted} is outside the log, which holds {first} to {end}")
        if found.error:
            raise ServerError(what=name, reason=error_text(found.error))
        aborted = _Aborted(found.aborted)
        for batch in found.batches:
            batch.check()
            if self._committed and aborted.hides(batch):
                self._next[found.partition] = batch.header.next_offset
                continue
            for record in () if batch.header.is_control else batch.records():
                if record.offset < self._next[found.partition]:
                    continue
                if end is not None and record.offset >= end:
                    self._next[found.partition] = end
                    return
                printer(found.partition, record, batch.header.timestamp_type)
                self.count += 1
                self._next[found.partition] = record.offset + 1
                if most is not None and self.count >= most:
                    return
            self._next[found.partition] = max(self._next[found.partition], batch.header.next_offset)
        if end is not None and self._committed and not found.batches and found.last_stable_offset < end:
            # What an open transaction holds back does not come before it ends.
            self._next[found.partition] = end


class _Aborted:
    """Which batches belong to transactions that were aborted (KIP-98: the consumer leaves them out)."""

    def __init__(self, aborted: list[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: Batch) -> bool:
        header = batch.header
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.is_control:
            if header.producer_id in self._open and _is_abort(batch):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def _is_abort(batch: Batch) -> bool:
    records = batch.records()
    try:
        return bool(records) and parse_control_key(records[0].key) is ControlRecordType.ABORT
    except MalformedError as error:
        batch.header.corrupt(batch.path, str(error))
