"""`compactd produce`: lines become records of a topic, for people without Kafka's tools."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from compactd.config.errors import CompactdError, ServerError, UsageError
from compactd.scripts.bootstrap import bootstrap_option, find_server
from compactd.scripts.client import KafkaClient, TopicLayout
from compactd.scripts.lines import LineFormat, read_lines
from compactd.scripts.login import load_login
from compactd.scripts.output import human_count, print_json
from compactd.scripts.partitioning import Partitioner
from compactd.scripts.running import daemon_options
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.broker.errors import ErrorCode

_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ACKS = {"all": -1, "1": 1, "0": 0}
#: A batch is sent when it has this much, or when no more lines come for a moment.
_BATCH_BYTES = 256 << 10
_LINGER_SECONDS = 0.02
_TIMEOUT_MS = 30_000
#: What a record takes beside its key and value, at most.
_RECORD_OVERHEAD = 32


@click.command(
    name="produce",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 every record is acknowledged, 2 wrong usage, 3 refused or no daemon runs, 4 I/O error.",
)
@click.argument("topic", metavar="TOPIC")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Default: stdin.")
@click.option("--key-separator", metavar="TEXT", help="Lines are KEY TEXT VALUE, split at the first. Default: no keys.")
@click.option("--null-marker", metavar="TEXT", help="A value that is exactly TEXT is null: a tombstone.")
@click.option(
    "--delete", "deleted", multiple=True, metavar="KEY", help="Write a tombstone of KEY. Repeatable; reads no lines."
)
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="N", help="Default: by the key, as Kafka's clients do."
)
@click.option("--codec", type=click.Choice(list(_CODECS)), default="none", show_default=True, help="Of the batches.")
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True, help="What is waited for.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each batch that was acknowledged.")
@bootstrap_option
@daemon_options
def command(
    topic: str,
    file: Path | None,
    key_separator: str | None,
    null_marker: str | None,
    deleted: tuple[str, ...],
    partition: int | None,
    codec: str,
    acks: str,
    as_json: bool,
    bootstrap_server: str | None,
    command_config: Path | None,
    config: Path | None,
    run_dir: Path | None,
) -> None:
    """Write a record for each line. Nothing is written twice, and what was not acknowledged is said.

    A topic that is only compacted takes no records without a key: give --key-separator.

    \b
    Examples:
      compactd produce users --delete user3
      printf 'user1:{"age": 26}\\nuser2:{"age": 31}\\n' | compactd produce users --key-separator :
      compactd produce events --file events.txt --codec zstd
    """
    if key_separator == "":
        raise UsageError(detail="--key-separator needs at least one character")
    if deleted and (file is not None or key_separator is not None):
        raise UsageError(detail="--delete reads no lines: leave --file and --key-separator out")
    line_format = LineFormat(
        None if key_separator is None else key_separator.encode(), None if null_marker is None else null_marker.encode()
    )
    login = None if command_config is None else load_login(command_config)
    with KafkaClient(find_server(bootstrap_server, config, run_dir), login=login) as client:
        layout = client.layout(topic)
        producer = _Producer(client, layout, partition, _CODECS[codec], _ACKS[acks], as_json)
        try:
            if deleted:
                for key in deleted:
                    producer.add(key.encode("utf-8", "surrogateescape"), None)
            else:
                _read(producer, file, line_format)
            producer.flush()
        except CompactdError:
            producer.tell(failed=True)
            raise
        producer.tell()


def _read(producer: _Producer, file: Path | None, line_format: LineFormat) -> None:
    if file is None and sys.stdin.isatty():
        click.echo("A record for each line; Ctrl-D ends it.", err=True)
    try:
        descriptor = os.dup(sys.stdin.fileno()) if file is None else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(detail=f"{file or 'stdin'}: cannot be read: {error.strerror or error}") from None
    try:
        number = 0
        for line in read_lines(descriptor, _LINGER_SECONDS):
            if line is None:
                producer.flush()
                continue
            number += 1
            producer.add(*line_format.parse(line, number))
    finally:
        os.close(descriptor)


class _Producer:
    """Collects records by partition, and sends a batch at a time."""

    def __init__(
        self, client: KafkaClient, layout: TopicLayout, partition: int | None, codec: int, acks: int, as_json: bool
    ) -> None:
        if partition is not None and partition not in layout.leaders:
            raise UsageError(detail=f"{layout.name} has no partition {partition}, it has {len(layout.leaders)}")
        self._client, self._layout = client, layout
        self._partition, self._codec, self._acks, self._as_json = partition, codec, acks, as_json
        self._partitioner = Partitioner(list(layout.leaders))
        self._waiting: dict[int, list[Record]] = {}
        self._bytes: dict[int, int] = {}
        self._added = self._written = 0

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Sends what is collected when it is enough for a batch."""
        partition = self._partitioner.of(key) if self._partition is None else self._partition
        size = len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
        if self._bytes.get(partition, 0) + size > _BATCH_BYTES:
            self._send(partition)
            partition = self._partitioner.of(key) if self._partition is None else self._partition
        records = self._waiting.setdefault(partition, [])
        records.append(Record(len(records), time.time_ns() // 1_000_000, key, value))
        self._bytes[partition] = self._bytes.get(partition, 0) + size
        self._added += 1

    def flush(self) -> None:
        for partition in sorted(self._waiting):
            self._send(partition)

    def tell(self, failed: bool = False) -> None:
        """How many records were written, on stderr."""
        how = "sent to" if self._acks == 0 else "written to"
        text = f"{human_count(self._written)} record{'' if self._written == 1 else 's'} {how} {self._layout.name}"
        if failed and self._added > self._written:
            text += f", {human_count(self._added - self._written)} not"
        click.echo(text, err=True)

    def _send(self, partition: int) -> None:
        records = self._waiting.get(partition)
        if not records:
            return
        batch = build_batch(records, base_offset=0, codec=self._codec)
        try:
            offset = self._client.produce(self._layout, partition, batch, self._acks, _TIMEOUT_MS)
        except ServerError as error:
            if records[0].key is not None or error.fields.get("code") != ErrorCode.INVALID_RECORD:
                raise
            hint = f"{error.reason}; lines get keys with --key-separator"
            raise ServerError(what=error.what, reason=hint, code=error.code) from None
        del self._waiting[partition], self._bytes[partition]
        self._written += len(records)
        self._partitioner.batch_sent()
        if self._as_json:
            fields = {"topic": self._layout.name, "partition": partition, "baseOffset": offset, "records": len(records)}
            print_json(fields, flush=True)
