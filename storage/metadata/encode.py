"""Writes Kafka's message encoding from the tables that `schema.decode` reads by (facts: kraft-and-coordinators A5, B1).

What `decode` gave, `encode` turns back into the same bytes. Values that would not read back are refused with ValueError:
a field the schema doesn't have, a missing one, a number out of range, null where none may be, and a value other than the
default in a field that the version doesn't have (Kafka's UnsupportedVersionException).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

from compactd.storage.metadata.schema import Field, Schema
from compactd.storage.names import parse_uuid

_FIXED = {"i8": ">b", "i16": ">h", "u16": ">H", "i32": ">i", "i64": ">q", "f64": ">d"}
_ZERO: dict[str, Any] = {"bool": False, "uuid": "A" * 22, "str": "", "bytes": "", "f64": 0.0}


def encode(schema: Schema, version: int, values: Mapping[str, Any]) -> bytes:
    """The message's bytes. `values`: as `decode` gives them; sequences may be tuples, and bytes fields bytes or base64.

    Tagged fields that are left out have their default; a tagged field that has it takes no bytes. Raises ValueError.
    """
    if not 0 <= version <= schema.high:
        raise ValueError(f"{schema.name} has no version {version}, known are 0 to {schema.high}")
    flexible = schema.flexible_since is not None and version >= schema.flexible_since
    out = bytearray()
    _Writer(schema.name, version, flexible).struct(out, schema.fields, values)
    return bytes(out)


def write_uvarint(value: int) -> bytes:
    """An unsigned varint, low group first. ValueError outside of 32 bits."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"{value} does not fit in an unsigned varint of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Writer:
    def __init__(self, name: str, version: int, flexible: bool) -> None:
        self.name = name
        self.version = version
        self.flexible = flexible

    def struct(self, out: bytearray, fields: tuple[Field, ...], values: Mapping[str, Any]) -> None:
        known = {field.name for field in fields}
        if not known.issuperset(values):
            raise ValueError(f"{self.name} has no field {', '.join(sorted(set(values) - known))}")
        tagged: list[tuple[int, Field, Any]] = []
        for field in fields:
            given = field.name in values
            if field.since > self.version or (field.until is not None and field.until < self.version):
                if given and not _is_default(field, values[field.name]):
                    raise ValueError(f"{self.name} version {self.version} has no {field.name}")
            elif field.tag is not None:
                if given and not _is_default(field, values[field.name]):
                    tagged.append((field.tag, field, values[field.name]))
            elif given:
                self._value(out, field, values[field.name])
            else:
                raise ValueError(f"{self.name} needs a value for {field.name}")
        if self.flexible:
            out += write_uvarint(len(tagged))
            for number, field, value in sorted(tagged, key=lambda entry: entry[0]):
                body = bytearray()
                self._value(body, field, value, in_tag=True)
                out += write_uvarint(number) + write_uvarint(len(body)) + body
        elif tagged:
            raise ValueError(f"{self.name} version {self.version} has no tagged fields")

    def _value(self, out: bytearray, field: Field, value: Any, in_tag: bool = False) -> None:
        if not field.array:
            self._single(out, field, value, in_tag)
            return
        if value is None:
            self._null(out, field, ">i", 4)
            return
        if isinstance(value, (str, bytes)):
            raise ValueError(f"{self.name}: {field.name} needs a sequence, not {value!r}")
        out += write_uvarint(len(value) + 1) if self.flexible else self._number(field, "i32", len(value))
        item = Field(field.name, field.kind)
        for entry in value:
            self._single(out, item, entry, False)

    def _single(self, out: bytearray, field: Field, value: Any, in_tag: bool) -> None:
        kind = field.kind
        if isinstance(kind, tuple):
            if field.nullable:
                out += (b"\1" if value is not None else b"\0") if in_tag else self._presence(value)
                if value is None:
                    return
            if not isinstance(value, Mapping):
                raise ValueError(f"{self.name}: {field.name} needs a struct, not {value!r}")
            self.struct(out, kind, value)
        elif kind in _FIXED:
            out += self._number(field, kind, value)
        elif kind == "bool":
            out.append(1 if value else 0)
        elif kind == "uuid":
            try:
                out += parse_uuid(value).bytes
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self.name}: {field.name}: {error}") from None
        else:
            self._text(out, field, value)

    def _presence(self, value: Any) -> bytes:
        return b"\xff" if value is None else b"\1"

    def _number(self, field: Field, kind: str, value: Any) -> bytes:
        try:
            return struct.pack(_FIXED[kind], value)
        except struct.error:
            raise ValueError(f"{self.name}: {field.name} = {value!r} is no {kind}") from None

    def _text(self, out: bytearray, field: Field, value: Any) -> None:
        length_form, size = (">h", 2) if field.kind == "str" else (">i", 4)
        if value is None:
            self._null(out, field, length_form, size)
            return
        if field.kind == "str":
            if not isinstance(value, str):
                raise ValueError(f"{self.name}: {field.name} needs text, not {value!r}")
            # A lone surrogate has no UTF-8; Java writes a question mark for it.
            raw = value.encode("utf-8", "replace")
        else:
            raw = bytes(value) if isinstance(value, (bytes, bytearray)) else base64.b64decode(value, validate=True)
        if self.flexible:
            out += write_uvarint(len(raw) + 1)
        else:
            try:
                out += struct.pack(length_form, len(raw))
            except struct.error:
                raise ValueError(f"{self.name}: {field.name} has {len(raw)} bytes, more than fit") from None
        out += raw

    def _null(self, out: bytearray, field: Field, form: str, size: int) -> None:
        if not field.nullable:
            raise ValueError(f"{self.name}: {field.name} may not be null")
        out += b"\0" if self.flexible else b"\xff" * size


def _is_default(field: Field, value: Any) -> bool:
    if field.array and value is not None and not isinstance(value, (str, bytes)):
        # Null, not empty, is the default of a tagged array that may be null.
        return len(value) == 0 and (field.tag is None or field.default is not None)
    default = field.default
    if default is None and field.tag is None and not field.nullable and not field.array:
        default = _ZERO.get(field.kind, 0) if isinstance(field.kind, str) else None
    return bool(value == default)
