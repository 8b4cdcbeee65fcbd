"""Reading a segment's batch headers once, CRCs included: the plain twin of native/src/log/scan (facts 8.3, 10.4).

Same arguments, same result, same words. `storage.kernel.scanning` gives it a shape.
"""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path
from typing import BinaryIO

from compactd.storage.records.crc import crc32, crc32c
from compactd.storage.records.varint import MalformedError, read_varint, read_varlong

Fault = tuple[int, int, int, str, tuple[int, int] | None]
Counts = tuple[int, int, int, int, int, int]
Scanned = tuple[Counts, bytes, bytes, list[tuple[int, int]], bytes, Fault | None, bool]

#: Flags of a producer's batch; MARKED: a control batch whose record is left.
TRANSACTIONAL, CONTROL, MARKED = 1, 2, 4

_CHUNK = 1 << 20
_UP_TO_MAGIC = 17
_LEAST = (26, 34, 61)
_V2_HEADER = 61
_MAX_RELATIVE = 2**31 - 1
_RETAINED = 5
_MARKER = 128
_V2 = struct.Struct(">qiiBIhiqqqhii")
_LEGACY = struct.Struct(">qiIBBq")
_PRODUCED = struct.Struct(">QqqqqhiBhi")

#: (position, packed batch)
_Event = tuple[int, bytes]


class _Producer:
    """Which batches of one producer are kept: its first, the first of each transaction, every marker, what is against
    the rules, and the last five before each marker and at the end. The same state follows from them as from all."""

    def __init__(self, events: list[_Event]) -> None:
        self._events = events
        self._seen = False
        self._in_transaction = False
        self._recent: deque[tuple[_Event, bool]] = deque(maxlen=_RETAINED)

    def add(self, event: _Event, flags: int) -> None:
        if flags & CONTROL:
            self.flush()
            self._in_transaction, self._seen = False, True
            self._events.append(event)
            return
        transactional = bool(flags & TRANSACTIONAL)
        needed = not self._seen or transactional != self._in_transaction
        if self._in_transaction and not transactional:
            # Against the rules: whoever goes by the batches stops here, and those before it are the last.
            self.flush()
        self._seen = True
        self._in_transaction = self._in_transaction or transactional
        if needed:
            self._events.append(event)
        self._recent.append((event, needed))

    def flush(self) -> None:
        self._events.extend(event for event, kept in self._recent if not kept)
        self._recent.clear()


class _TimeIndex(bytearray):
    def __init__(self, base: int) -> None:
        super().__init__()
        self._base, self._last = base, -1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        if timestamp > self._last:
            self._last = timestamp
            self += struct.pack(">qi", timestamp, offset - self._base)


def scan_segment(
    path: str,
    base_offset: int,
    interval_bytes: int,
    limit: int | None = None,
    check_crc: bool = True,
    produced_from: int = 0,
    start_position: int = 0,
) -> Scanned:
    """Reads the batches of a `.log` file in order and stops at the first that is damaged, out of order or too far.

    Of producers' batches those that end below `produced_from` are passed by. `start_position`: of a batch, to begin there.
    Returns (valid bytes, next offset, max timestamp, its offset, batches, offset after the last batch of magic 2), .index,
    .timeindex, epochs, producers' batches
    (53 bytes each), fault, and whether the fault is an offset too far from the base. Raises OSError.
    """
    size = Path(path).stat().st_size
    end = size if limit is None else min(limit, size)
    with open(path, "rb", buffering=0) as file:
        arguments = (base_offset, interval_bytes, check_crc, produced_from, start_position)
        found, doubt = _scan(file, end, *arguments)
        if doubt is None:
            return found
        # Two batches contradict each other and nobody can tell which is right: no CRC covers offsets. Neither is taken.
        (counts, offset_index, time_index, epochs, produced, _, overflow), _ = _scan(file, doubt[0], *arguments)
        fault = (*doubt, "the batch behind it does not follow its offsets", None)
        return counts, offset_index, time_index, epochs, produced, fault, overflow


#: Position, base and last offset of a batch that may be the wrong one.
_Doubt = tuple[int, int, int]


def _scan(
    file: BinaryIO, end: int, base: int, interval: int, check_crc: bool, produced_from: int, position: int
) -> tuple[Scanned, _Doubt | None]:
    next_offset, next_of_current, batches = base, base, 0
    max_timestamp, offset_of_max = -1, base
    last_entry, latest_epoch, overflow = 0, -1, False
    offset_index, time_index = bytearray(), _TimeIndex(base)
    epochs: list[tuple[int, int]] = []
    events: list[_Event] = []
    producers: dict[int, _Producer] = {}
    fault: Fault | None = None
    doubt: _Doubt | None = None
    # The batch before, and the offset that it had to follow.
    before: tuple[_Doubt, int] | None = None
    while position < end:
        left = end - position
        file.seek(position)
        head = file.read(min(_V2_HEADER, left))
        fault = _unreadable(head, position, left)
        if fault is not None:
            break
        magic = head[16]
        total = int.from_bytes(head[8:12], "big", signed=True) + 12
        if magic == 2:
            (first, _, epoch, _, stored, attributes, delta, _, timestamp, producer, producer_epoch, sequence, count) = (
                _V2.unpack(head)
            )
            # Java adds with wrap-around; so does the native kernel.
            last = (first + delta + (1 << 63)) % (1 << 64) - (1 << 63)
        else:
            first, _, stored, _, attributes, timestamp = _LEGACY.unpack_from(head)
            last, epoch, producer = first, -1, -1
            if magic == 0:
                timestamp = -1
        if check_crc:
            computed = _crc(file, position + (21 if magic == 2 else 16), position + total, magic)
            if computed != stored:
                words = f"its CRC is {stored:#010x} and its bytes give {computed:#010x}"
                fault = (position, first, last, words, (stored, computed))
                break
        if first < next_offset or last < first or last == 2**63 - 1:
            fault = (position, first, last, f"its offsets do not follow {next_offset}", None)
            if before is not None and first >= before[1] and last >= first:
                doubt = before[0]
            break
        if last - base > _MAX_RELATIVE:
            fault = (position, first, last, f"offset {last} is too far from the segment's base {base}", None)
            overflow = True
            break
        if producer >= 0 and last >= produced_from:
            flags = TRANSACTIONAL if attributes & 0x10 else 0
            kind, coordinator = -1, -1
            if attributes & 0x20:
                flags |= CONTROL
                if count > 0:
                    file.seek(position + _V2_HEADER)
                    read = None if attributes & 7 else _marker(file.read(min(total - _V2_HEADER, _MARKER)))
                    if read is None:
                        fault = (position, first, last, "its control record is no transaction marker", None)
                        break
                    flags |= MARKED
                    kind, coordinator = read
            packed = _PRODUCED.pack(
                position, first, last, timestamp, producer, producer_epoch, sequence, flags, kind, coordinator
            )
            if producer not in producers:
                producers[producer] = _Producer(events)
            producers[producer].add((position, packed), flags)
        if magic == 2:
            next_of_current = last + 1
        if epoch >= 0 and epoch != latest_epoch:
            latest_epoch = epoch
            epochs.append((epoch, first))
        if timestamp > max_timestamp:
            max_timestamp, offset_of_max = timestamp, last
        if position - last_entry > interval:
            offset_index += struct.pack(">ii", last - base, position)
            time_index.maybe_append(max_timestamp, offset_of_max)
            last_entry = position
        before = ((position, first, last), next_offset)
        position += total
        next_offset = last + 1
        batches += 1
    time_index.maybe_append(max_timestamp, offset_of_max)
    for tracked in producers.values():
        tracked.flush()
    produced = b"".join(packed for _, packed in sorted(events))
    counts = (position, next_offset, max_timestamp, offset_of_max, batches, next_of_current)
    return (counts, bytes(offset_index), bytes(time_index), epochs, produced, fault, overflow), doubt


def _unreadable(head: bytes, position: int, left: int) -> Fault | None:
    if len(head) < _UP_TO_MAGIC:
        return (position, -1, -1, f"truncated, {left} bytes are left of a header", None)
    first, length = struct.unpack_from(">qi", head)
    if length < 14:
        if not any(head[:_UP_TO_MAGIC]):
            return (position, -1, -1, "truncated, only zeros where a batch should be", None)
        return (position, first, -1, f"its length field is {length}", None)
    magic, total = head[16], length + 12
    if total > left:
        return (position, first, -1, f"truncated, {left} of its {total} bytes are there", None)
    if magic > 2:
        return (position, first, -1, f"unknown magic {magic}", None)
    if total < _LEAST[magic] or len(head) < _LEAST[magic]:
        return (position, first, -1, f"its length field is {length}, too small for magic {magic}", None)
    return None


def _crc(file: BinaryIO, start: int, end: int, magic: int) -> int:
    checksum = crc32c if magic == 2 else crc32
    file.seek(start)
    found = 0
    while start < end and (chunk := file.read(min(_CHUNK, end - start))):
        found = checksum(chunk, found)
        start += len(chunk)
    return found


def _marker(data: bytes) -> tuple[int, int] | None:
    """(type, coordinator epoch) of the transaction marker whose record starts here; None where it is none."""
    try:
        _, at = read_varint(data, 0)
        _, at = read_varlong(data, at + 1)
        _, at = read_varint(data, at)
        key_length, at = read_varint(data, at)
        version, kind = struct.unpack_from(">hh", data, at)
        value_length, value = read_varint(data, at + key_length)
        value_version, coordinator = struct.unpack_from(">hi", data, value)
    except (MalformedError, struct.error, IndexError):
        return None
    if key_length < 4 or version < 0 or kind not in (0, 1) or value_length < 6 or value_version < 0:
        return None
    return kind, coordinator
