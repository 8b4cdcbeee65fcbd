"""Control records: the key that names their type, and the end-of-transaction marker (facts 2.3)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from compactd.storage.records.varint import MalformedError

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """What a control record says. Types that are not listed read as UNKNOWN and are always kept by the cleaner."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """The value of an ABORT or COMMIT record."""

    type: ControlRecordType
    coordinator_epoch: int


def parse_control_key(key: bytes | None) -> ControlRecordType:
    """The type in a control record's key. A version above 0 is read as 0. Raises MalformedError."""
    if key is None or len(key) < _KEY.size:
        raise MalformedError(f"its control record has a key of {len(key or b'')} bytes, of {_KEY.size} at least")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise MalformedError(f"its control record has a key of version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def format_control_key(kind: ControlRecordType) -> bytes:
    """The 4 bytes of a control record's key."""
    return _KEY.pack(0, kind)


def parse_end_transaction(key: bytes | None, value: bytes | None) -> EndTransactionMarker:
    """Reads a transaction marker's key and value. Raises MalformedError, also for other control records."""
    kind = parse_control_key(key)
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise MalformedError(f"its control record is {kind.name}, not a transaction marker")
    if value is None or len(value) < _MARKER.size:
        raise MalformedError(f"its transaction marker has {len(value or b'')} bytes, of {_MARKER.size} at least")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise MalformedError(f"its transaction marker has version {version}")
    return EndTransactionMarker(kind, coordinator_epoch)


def format_end_transaction(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of a transaction marker."""
    return format_control_key(marker.type), _MARKER.pack(0, marker.coordinator_epoch)
