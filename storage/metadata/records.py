"""Records of the KRaft metadata log, both ways: frame, type and version of a value, control records (facts A4 to A6)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from compactd.config.listener_settings import is_secret
from compactd.storage.metadata.encode import encode, write_uvarint
from compactd.storage.metadata.kraft_schemas import CONTROL_RECORDS, METADATA_RECORDS
from compactd.storage.metadata.schema import HIDDEN, decode, read_uvarint
from compactd.storage.records.varint import MalformedError

FRAME_VERSION = 1

_CONTROL_KEY = struct.Struct(">hh")
_INT16 = struct.Struct(">h")

_BROKER_RESOURCE = 4
_CONFIG_RECORD = 4


class Frame(NamedTuple):
    """The head of a metadata record's value, and where its body starts."""

    api_key: int
    version: int
    body: int


def read_frame(value: bytes | None) -> Frame:
    """Raises MalformedError for a value without a frame of version 1, or of an unknown record type."""
    if not value:
        raise MalformedError("a metadata record has no value")
    frame, position = read_uvarint(value, 0)
    if frame != FRAME_VERSION:
        raise MalformedError(f"unknown frame version {frame}")
    api_key, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    if api_key not in METADATA_RECORDS:
        raise MalformedError(f"unknown metadata record type {api_key} (version {version})")
    return Frame(api_key, version, position)


def read_body(frame: Frame, value: bytes, secrets: bool = True) -> dict[str, Any]:
    """The fields of a metadata record. Raises MalformedError for an unknown version and for bytes that don't fit."""
    schema = METADATA_RECORDS[frame.api_key]
    fields, end = decode(schema, frame.version, value, frame.body, secrets)
    if end != len(value):
        raise MalformedError(f"{len(value) - end} bytes are left at the end of {schema.name} (type {frame.api_key})")
    return fields


def decode_metadata_record(key: bytes | None, value: bytes | None, secrets: bool = False) -> dict[str, Any]:
    """`{"type": name, "typeId": apiKey, "version": n, "data": {...}}`; a record with a key is a control record.

    Without `secrets`, SCRAM keys and the values of password settings are hidden. Raises MalformedError.
    """
    if key is not None:
        return decode_control_record(key, value)
    frame = read_frame(value)
    assert value is not None
    data = read_body(frame, value, secrets)
    if frame.api_key == _CONFIG_RECORD and not secrets and _is_secret(data):
        data["value"] = HIDDEN
    name = METADATA_RECORDS[frame.api_key].name
    return {"type": name, "typeId": frame.api_key, "version": frame.version, "data": data}


def _is_secret(config: dict[str, Any]) -> bool:
    is_broker = config["resourceType"] == _BROKER_RESOURCE
    return is_broker and config["value"] is not None and is_secret(config["name"])


def decode_control_record(key: bytes, value: bytes | None) -> dict[str, Any]:
    """A control record of any log, transaction markers included, in the form of `decode_metadata_record`.

    Its type is the second int16 of the key, its version the first int16 of the value. Raises MalformedError.
    """
    if len(key) < _CONTROL_KEY.size:
        raise MalformedError(f"a control record's key has {len(key)} bytes, of {_CONTROL_KEY.size} at least")
    key_version, number = _CONTROL_KEY.unpack_from(key)
    if key_version < 0:
        raise MalformedError(f"a control record's key has version {key_version}")
    schema = CONTROL_RECORDS.get(number)
    if schema is None:
        raise MalformedError(f"unknown control record type {number}")
    if value is None or len(value) < _INT16.size:
        raise MalformedError(f"{schema.name} has a value of {len(value or b'')} bytes, of {_INT16.size} at least")
    (version,) = _INT16.unpack_from(value)
    data, end = decode(schema, version, value, _INT16.size)
    if end != len(value):
        raise MalformedError(f"{len(value) - end} bytes are left at the end of {schema.name}")
    return {"type": schema.name, "typeId": number, "version": version, "control": True, "data": data}


def encode_metadata_record(api_key: int, version: int, data: Mapping[str, Any]) -> bytes:
    """The value of a metadata record, frame and body, from fields as `read_body` gives them. Raises ValueError."""
    schema = METADATA_RECORDS.get(api_key)
    if schema is None:
        raise ValueError(f"unknown metadata record type {api_key}")
    head = write_uvarint(FRAME_VERSION) + write_uvarint(api_key) + write_uvarint(version)
    return head + encode(schema, version, data)


def encode_control_record(number: int, version: int, data: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Key and value of a control record of the raft log or a snapshot. Raises ValueError."""
    schema = CONTROL_RECORDS.get(number)
    if schema is None:
        raise ValueError(f"unknown control record type {number}")
    return _CONTROL_KEY.pack(0, number), _INT16.pack(version) + encode(schema, version, data)
