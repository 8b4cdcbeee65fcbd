"""Batches and records of `.log` and KRaft `.checkpoint` files, for `compactd dump`.

Reads only, with no lock: the file may grow or be cut while it is read. A damaged batch becomes a fault, and reading goes
on at the next batch: behind the damaged one where its length holds, else at the next valid batch that is found.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from compactd.config.errors import CompactdError, CorruptBatchError
from compactd.scripts.values import json_fields, one_line, plain, printable
from compactd.storage.metadata.schema import HIDDEN
from compactd.storage.records.batch import HEADER_SIZE, Batch, BatchHeader, Record, read_header, scan_headers
from compactd.storage.records.control import ControlRecordType, parse_control_key, parse_end_transaction
from compactd.storage.records.varint import MalformedError

#: Where the magic byte is in a batch of any magic.
_MAGIC_AT = 16
#: How far behind a damage the next valid batch is searched; V0 and V1 have less to tell a batch by, so it takes longer.
_SEARCH_BYTES = {0: 4 << 20, 1: 4 << 20, 2: 64 << 20}
#: How many bytes the search may run through CRCs in all: a hostile file could make every byte look like a batch.
_SEARCH_CRC_BYTES = 1 << 30
_CHUNK = 1 << 20

#: Key and value (and whether they are a control record's) to names and values.
Decoder = Callable[..., dict[str, Any] | None]


@dataclasses.dataclass(frozen=True, slots=True)
class LogView:
    """What to show of a log."""

    records: bool = False
    key_format: str = "text"
    value_format: str = "text"
    #: Batches and records below this offset are left out.
    from_offset: int = 0
    decoder: Decoder | None = None
    #: True: records carry ready text under names with an underscore in place of the JSON fields.
    for_people: bool = False


def log_entries(path: Path, view: LogView) -> Iterator[dict[str, Any]]:
    """Entries of type batch, record and fault, in file order."""
    with path.open("rb") as handle:
        for item in _headers(path, handle):
            if isinstance(item, dict):
                yield item
            elif item.last_offset >= view.from_offset:
                yield batch_entry(path, item)
                if view.records:
                    yield from _record_entries(path, handle, item, view)


def batch_entry(path: Path, header: BatchHeader) -> dict[str, Any]:
    """A batch as `--json` shows it. Times in ms; `count` is null for V0/V1 wrappers, which don't say how many they hold."""
    return {
        "type": "batch",
        "file": str(path),
        "position": header.position,
        "size": header.size,
        "magic": header.magic,
        "crc": header.crc,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": None if header.record_count < 0 else header.record_count,
        "codec": codec_name(header.codec),
        "timestampType": header.timestamp_type,
        "baseTimestamp": header.base_timestamp,
        "maxTimestamp": header.max_timestamp,
        "deleteHorizonMs": header.delete_horizon_ms,
        "leaderEpoch": header.leader_epoch,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
    }


def codec_name(codec: int) -> str:
    """Kafka's name of a codec id."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    return names[codec] if codec < len(names) else f"codec {codec}"


def fault_entry(path: Path, error: CompactdError, resumed_at: int | None = None) -> dict[str, Any]:
    """A fault as `--json` shows it; what isn't known is null. `resumedAt`: the byte where reading went on, if it did."""
    fields = error.fields
    return {
        "type": "fault",
        "file": str(path),
        "position": fields.get("position"),
        "baseOffset": _known(fields.get("base_offset")),
        "lastOffset": _known(fields.get("last_offset")),
        "reason": str(fields.get("reason", error)),
        "expectedCrc": fields.get("expected_crc"),
        "foundCrc": fields.get("found_crc"),
        "resumedAt": resumed_at,
    }


def _known(offset: int | None) -> int | None:
    return None if offset is None or offset < 0 else offset


def _record_entries(path: Path, handle: BinaryIO, header: BatchHeader, view: LogView) -> Iterator[dict[str, Any]]:
    handle.seek(header.position)
    try:
        records = Batch(header, handle.read(header.size), str(path)).records()
    except CorruptBatchError as error:
        yield fault_entry(path, error, header.position + header.size)
        return
    for record in records:
        if record.offset >= view.from_offset:
            yield _record_entry(path, header, record, view)


def _record_entry(path: Path, header: BatchHeader, record: Record, view: LogView) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "record",
        "file": str(path),
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    if view.for_people:
        entry["_key"] = one_line(record.key, view.key_format)
        entry["_value"] = one_line(record.value, view.value_format)
        entry["_headers"] = [(printable(_text(name)), one_line(data, "text")) for name, data in record.headers]
    else:
        entry |= json_fields("key", record.key, view.key_format)
        entry |= json_fields("value", record.value, view.value_format)
        entry["headers"] = [{"key": _text(name), **json_fields("value", data, "text")} for name, data in record.headers]
    if header.is_control:
        entry["control"] = _control(record, view.decoder)
    elif view.decoder is not None:
        decoded = view.decoder(record.key, record.value)
        if decoded is not None:
            entry["decoded"] = plain(decoded)
            data = decoded.get("data")
            if isinstance(data, dict) and HIDDEN in data.values():
                # What the decoder hides is not shown beside it. `--decoder none` shows the bytes to who means it.
                for name in ("valueHex", "valueText"):
                    entry.pop(name, None)
                entry["value"] = HIDDEN
    return entry


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _control(record: Record, decoder: Decoder | None) -> dict[str, Any]:
    """A control record's meaning: its type, and of a transaction marker the coordinator's epoch."""
    try:
        kind = parse_control_key(record.key)
        if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            return {
                "type": kind.name,
                "coordinatorEpoch": parse_end_transaction(record.key, record.value).coordinator_epoch,
            }
    except MalformedError as error:
        return {"type": "UNREADABLE", "reason": str(error)}
    decoded = None if decoder is None else decoder(record.key, record.value, control=True)
    return {"type": kind.name} if decoded is None else plain(decoded)


def _headers(path: Path, handle: BinaryIO) -> Iterator[BatchHeader | dict[str, Any]]:
    """Every batch whose CRC holds, and an entry for every damage between them."""
    position: int | None = 0
    expected, magic = 0, 2
    while position is not None:
        try:
            for header in scan_headers(path, position, check_crc=True):
                position, magic = header.position + header.size, header.magic
                if header.base_offset < expected and header.magic == 2:
                    yield _order_fault(path, header, expected)
                expected = header.next_offset
                yield header
            return
        except CorruptBatchError as error:
            damaged = error.fields["position"]
            if _is_zero_from(handle, damaged):
                error.fields["reason"] = (
                    "zeros to the end of the file: preallocated, or lost when the broker was killed"
                )
                yield fault_entry(path, error)
                return
            position = _resume(path, handle, damaged, magic)
            yield fault_entry(path, error, position)


def _order_fault(path: Path, header: BatchHeader, expected: int) -> dict[str, Any]:
    reason = f"its offsets start at {header.base_offset}, below {expected}, where the batch before it ends"
    fields = {"base_offset": header.base_offset, "last_offset": header.last_offset, "reason": reason}
    error = CorruptBatchError(path=str(path), position=header.position, **fields)
    return fault_entry(path, error, header.position + header.size)


def _is_zero_from(handle: BinaryIO, position: int) -> bool:
    handle.seek(position)
    seen = False
    while chunk := handle.read(_CHUNK):
        if chunk.strip(b"\0"):
            return False
        seen = True
    return seen


def _resume(path: Path, handle: BinaryIO, damaged: int, magic: int) -> int | None:
    """Byte of the next batch behind the damaged one at `damaged`; None where no valid batch follows.

    `magic`: that of the batch before it, which says what to search for.
    """
    size = handle.seek(0, 2)
    head = _read(handle, damaged, HEADER_SIZE)
    with contextlib.suppress(CorruptBatchError):
        after = damaged + read_header(head, 0).size
        if after == size:
            return None
        if after < size and _is_valid(path, after, size, None):
            return after
    budget = [_SEARCH_CRC_BYTES]
    end = min(size, damaged + _SEARCH_BYTES[magic])
    start = damaged + 1
    while start < end:
        # Windows overlap by a header, so that none is cut in two.
        window = _read(handle, start, _CHUNK + HEADER_SIZE)
        at = window.find(bytes([magic]), _MAGIC_AT)
        while at >= 0 and at - _MAGIC_AT < _CHUNK:
            length = int.from_bytes(window[at - 8 : at - 4], "big", signed=True)
            candidate = start + at - _MAGIC_AT
            if 0 < length <= size - candidate and _is_valid(path, candidate, size, budget):
                return candidate
            at = window.find(bytes([magic]), at + 1)
        start += _CHUNK
    return None


def _read(handle: BinaryIO, position: int, count: int) -> bytes:
    handle.seek(position)
    return handle.read(count)


def _is_valid(path: Path, position: int, size: int, budget: list[int] | None) -> bool:
    """Whether a whole batch with a matching CRC starts at `position`; `budget`: bytes that may still be read for CRCs."""
    try:
        header = next(scan_headers(path, position, size))
        if budget is not None:
            budget[0] -= header.size
            if budget[0] < 0:
                return False
        next(scan_headers(path, position, position + header.size, check_crc=True))
    except (CorruptBatchError, StopIteration):
        return False
    return True
