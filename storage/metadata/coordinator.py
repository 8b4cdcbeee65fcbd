"""The envelope that the coordinators' logs share: type and key body in the key, version and body in the value (facts B1).

Keys are never flexible; the leading int16 of a key is a record type, of a value its schema version. A null value is a
tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactd.storage.metadata.encode import encode
from compactd.storage.metadata.schema import Field, Schema, decode
from compactd.storage.records.varint import MalformedError

_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """One record type: fields of its key and the schema of its value."""

    key: tuple[Field, ...]
    value: Schema


def decode_coordinator_record(
    types: Mapping[int, CoordinatorRecord], key: bytes | None, value: bytes | None
) -> dict[str, Any]:
    """`{"type": name, "typeId": n, "key": {...}, "version": n|None, "value": {...}|None}`; value None is a tombstone.

    Raises MalformedError for an unknown type or version and for bytes that don't follow their schema.
    """
    number = _int16(key, "key")
    record = types.get(number)
    if record is None:
        raise MalformedError(f"unknown record type {number}")
    assert key is not None
    schema = Schema(f"{record.value.name} key", record.key, flexible_since=None)
    fields, end = decode(schema, 0, key, _INT16.size)
    _whole(key, end, "key")
    result: dict[str, Any] = {
        "type": record.value.name,
        "typeId": number,
        "key": fields,
        "version": None,
        "value": None,
    }
    if value is not None:
        version = _int16(value, "value")
        result["version"] = version
        result["value"], end = decode(record.value, version, value, _INT16.size)
        _whole(value, end, "value")
    return result


def encode_coordinator_record(
    types: Mapping[int, CoordinatorRecord],
    number: int,
    key: Mapping[str, Any],
    version: int = 0,
    value: Mapping[str, Any] | None = None,
) -> tuple[bytes, bytes | None]:
    """Key and value of a record of type `number`, from fields as they are decoded; value None is a tombstone.

    Raises ValueError for an unknown type or version and for fields that don't fit.
    """
    record = types.get(number)
    if record is None:
        raise ValueError(f"unknown record type {number}")
    schema = Schema(f"{record.value.name} key", record.key, flexible_since=None)
    packed = _INT16.pack(number) + encode(schema, 0, key)
    return packed, None if value is None else _INT16.pack(version) + encode(record.value, version, value)


def _int16(data: bytes | None, what: str) -> int:
    if data is None or len(data) < _INT16.size:
        raise MalformedError(f"its {what} has {len(data or b'')} bytes, of {_INT16.size} at least")
    (number,) = _INT16.unpack_from(data)
    return int(number)


def _whole(data: bytes, end: int, what: str) -> None:
    if end != len(data):
        raise MalformedError(f"{len(data) - end} bytes are left at the end of its {what}")
