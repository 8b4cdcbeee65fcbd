"""What a partition's directory holds: batches, records, keys and offsets as Kafka's tests of the cleaner look at them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compactd.storage import names
from compactd.storage.records.batch import Batch, read_batches
from compactd.storage.records.record import Record
from compactd.storage.transaction_index import read_transaction_index


def segment_bases(directory: Path) -> list[int]:
    """Base offsets of the plain .log files in order."""
    parsed = (names.parse_segment_name(path.name) for path in directory.iterdir())
    return sorted(name.base_offset for name in parsed if name and name.kind == names.LOG and not name.suffix)


def batches_of(directory: Path) -> Iterator[Batch]:
    """Every batch of a partition in order; its CRC is checked, and that offsets never go back."""
    end = 0
    for base in segment_bases(directory):
        for batch in read_batches(directory / names.log_name(base)):
            batch.check()
            assert batch.base_offset >= max(base, end), f"offset {batch.base_offset} in segment {base} after {end}"
            end = batch.header.next_offset
            yield batch


def records_of(directory: Path, control: bool = False) -> Iterator[Record]:
    """Every data record in order; with `control`, markers as well."""
    for batch in batches_of(directory):
        if control or not batch.header.is_control:
            yield from batch.records()


def keys_in(directory: Path) -> list[int]:
    """Keys, as numbers, of the data records that have a key and a value."""
    return [int(r.key) for r in records_of(directory) if r.key is not None and r.value is not None]


def offsets_in(directory: Path) -> list[int]:
    """Offsets of the records that have a key and a value: markers count, tombstones don't."""
    return [r.offset for r in records_of(directory, control=True) if r.key is not None and r.value is not None]


def pairs_in(directory: Path) -> list[tuple[str | None, str | None, int]]:
    """(key, value, offset) of every data record, tombstones and keyless ones included, as text."""
    return [
        (
            None if record.key is None else record.key.decode(errors="replace"),
            None if record.value is None else record.value.decode(errors="replace"),
            record.offset,
        )
        for record in records_of(directory)
    ]


def batch_ends(directory: Path) -> list[int]:
    return [batch.header.last_offset for batch in batches_of(directory)]


def batch_bases(directory: Path) -> list[int]:
    return [batch.base_offset for batch in batches_of(directory)]


def empty_batch_ends(directory: Path) -> list[int]:
    """Last offsets of the batches that have no record left."""
    return [batch.header.last_offset for batch in batches_of(directory) if not batch.records()]


def delete_horizons(directory: Path) -> dict[int, int]:
    """Delete horizons by the batches' last offsets."""
    headers = (batch.header for batch in batches_of(directory))
    return {h.last_offset: h.delete_horizon_ms for h in headers if h.delete_horizon_ms is not None}


def last_sequences(directory: Path) -> dict[int, int]:
    """Producer id to the last sequence that the log's batches tell."""
    headers = (batch.header for batch in batches_of(directory))
    return {h.producer_id: h.last_sequence for h in headers if h.producer_id >= 0 and not h.is_control}


def aborted_in(directory: Path) -> list[tuple[int, int, int, int]]:
    """Entries of all transaction indexes: producer id, first offset, marker's offset, last stable offset."""
    found = []
    for base in segment_bases(directory):
        for entry in read_transaction_index(directory / names.transaction_index_name(base), base):
            found.append((entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset))
    return found


def log_bytes(directory: Path, base_offset: int) -> bytes:
    return (directory / names.log_name(base_offset)).read_bytes()


def size_of(directory: Path) -> int:
    """Bytes of all plain .log files."""
    return sum((directory / names.log_name(base)).stat().st_size for base in segment_bases(directory))


def picture(directory: Path) -> dict[str, bytes]:
    """Every file with its content: two equal pictures mean that nothing was changed."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def latest_values(directory: Path) -> dict[bytes, bytes]:
    """What a reader who takes every record ends up with: key to value, deleted keys left out."""
    values: dict[bytes, bytes] = {}
    for record in records_of(directory):
        if record.key is not None:
            values.pop(record.key, None)
            if record.value is not None:
                values[record.key] = record.value
    return values
