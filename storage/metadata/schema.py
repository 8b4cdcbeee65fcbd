"""Decodes Kafka's message encoding from tables of fields (facts: kraft-and-coordinators A5, B1).

A schema lists a message's fields once, with the versions that have them; `decode` reads any of those versions, in the
flexible encoding (compact lengths, tagged fields) from `flexible_since` on, else in the older one. Results are plain
dicts in wire order, with the names Kafka's own tools print, uuids as 22 characters and bytes as base64.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Any

from compactd.storage.records.varint import MalformedError

#: More values than any real record has; keeps hostile counts from filling memory.
MAX_VALUES = 1_000_000


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` is the name of a primitive, or the fields of a struct."""

    name: str
    kind: str | tuple[Field, ...]
    array: bool = False
    nullable: bool = False
    #: First version that has it.
    since: int = 0
    #: Last version that has it; None for every later one.
    until: int | None = None
    #: Number in the tag section; None for an ordinary field.
    tag: int | None = None
    #: Value where a tagged field is left out.
    default: Any = None
    #: Key material: `decode(..., secrets=False)` hides it.
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """A message: its name as Kafka's tools print it, fields, known versions and the first flexible one."""

    name: str
    fields: tuple[Field, ...]
    high: int = 0
    flexible_since: int | None = 0


HIDDEN = "(hidden)"


def decode(
    schema: Schema, version: int, data: bytes, position: int, secrets: bool = True
) -> tuple[dict[str, Any], int]:
    """The message at `position` of `data`, and the position behind it. Raises MalformedError."""
    if not 0 <= version <= schema.high:
        raise MalformedError(f"{schema.name} has version {version}, known are 0 to {schema.high}")
    flexible = schema.flexible_since is not None and version >= schema.flexible_since
    reader = _Reader(data, position, version, flexible, secrets)
    value = reader.struct(schema.fields)
    return value, reader.position


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, low group first, and the position behind it. Raises MalformedError."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            raise MalformedError("the record ends inside a varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedError(f"a varint at byte {position} of the record is longer than 32 bits")


def uuid_text(raw: bytes) -> str:
    """Kafka's text form of a uuid: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


class _Reader:
    """Reads one message; every length is checked against what is left before it is used."""

    def __init__(self, data: bytes, position: int, version: int, flexible: bool, secrets: bool) -> None:
        self.data = data
        self.position = position
        self.version = version
        self.flexible = flexible
        self.secrets = secrets
        self.values = 0

    def struct(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        tagged: dict[int, Field] = {}
        for field in fields:
            if field.since > self.version or (field.until is not None and field.until < self.version):
                continue
            if field.tag is not None:
                tagged[field.tag] = field
                out[field.name] = list(field.default) if isinstance(field.default, list) else field.default
            else:
                out[field.name] = self._value(field)
        if self.flexible:
            self._tags(tagged, out)
        return out

    def _tags(self, known: dict[int, Field], out: dict[str, Any]) -> None:
        previous = -1
        for _ in range(self._uvarint()):
            tag, size = self._uvarint(), self._uvarint()
            if tag <= previous:
                raise MalformedError(f"tag {tag} at byte {self.position} of the record comes after tag {previous}")
            previous = tag
            end = self.position + self._fits(size, "a tagged field")
            field = known.get(tag)
            if field is None:
                self.position = end
                continue
            out[field.name] = self._value(field, in_tag=True)
            if self.position != end:
                raise MalformedError(f"tagged field {field.name} has {size} bytes, but its content has another size")

    def _value(self, field: Field, in_tag: bool = False) -> Any:
        value = self._array(field) if field.array else self._single(field, in_tag)
        return HIDDEN if field.secret and not self.secrets else value

    def _array(self, field: Field) -> list[Any] | None:
        count = self._uvarint() - 1 if self.flexible else self._fixed(">i", 4)
        if count < 0:
            self._may_be_null(field)
            return None
        self._fits(count, f"array {field.name}")
        item = Field(field.name, field.kind)
        return [self._single(item, False) for _ in range(count)]

    def _single(self, field: Field, in_tag: bool) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise MalformedError(f"the record has more than {MAX_VALUES} values")
        kind = field.kind
        if isinstance(kind, tuple):
            if field.nullable and not (self._uvarint() if in_tag else self._fixed(">b", 1) >= 0):
                return None
            return self.struct(kind)
        primitive = _FIXED.get(kind)
        if primitive is not None:
            return self._fixed(*primitive)
        if kind == "bool":
            return self._fixed(">b", 1) != 0
        if kind == "uuid":
            return uuid_text(self._take(16, field.name))
        return self._text(field)

    def _text(self, field: Field) -> str | None:
        """A string or bytes field."""
        length = self._uvarint() - 1 if self.flexible else self._fixed(*_LENGTHS[str(field.kind)])
        if length < 0:
            self._may_be_null(field)
            return None
        raw = self._take(length, field.name)
        # Java replaces what isn't UTF-8 as well.
        return raw.decode("utf-8", "replace") if field.kind == "str" else base64.b64encode(raw).decode("ascii")

    def _may_be_null(self, field: Field) -> None:
        if not field.nullable:
            raise MalformedError(f"{field.name} is null at byte {self.position} of the record")

    def _uvarint(self) -> int:
        value, self.position = read_uvarint(self.data, self.position)
        return value

    def _fixed(self, form: str, size: int) -> Any:
        self._fits(size, "a number")
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += size
        return value

    def _take(self, size: int, what: str) -> bytes:
        start = self.position
        self.position += self._fits(size, what)
        return self.data[start : self.position]

    def _fits(self, size: int, what: str) -> int:
        left = len(self.data) - self.position
        if size > left:
            raise MalformedError(f"{what} at byte {self.position} of the record needs {size} bytes, {left} are left")
        return size


_FIXED: dict[str, tuple[str, int]] = {
    "i8": (">b", 1),
    "i16": (">h", 2),
    "u16": (">H", 2),
    "i32": (">i", 4),
    "i64": (">q", 8),
    "f64": (">d", 8),
}

#: Lengths in front of strings and bytes in the older encoding.
_LENGTHS: dict[str, tuple[str, int]] = {"str": (">h", 2), "bytes": (">i", 4)}


def tag(number: int, name: str, kind: str | tuple[Field, ...], default: Any = None, **more: Any) -> Field:
    """A tagged field: number, name, kind, and its value where it is left out."""
    return Field(name, kind, tag=number, default=default, **more)


def array(name: str, kind: str | tuple[Field, ...], **more: Any) -> Field:
    """An array field."""
    return Field(name, kind, array=True, **more)


def fields(text: str) -> tuple[Field, ...]:
    """Ordinary fields from `name:kind` words; `?` after a kind makes it nullable, `[]` an array."""
    out = []
    for word in text.split():
        name, _, kind = word.partition(":")
        nullable = kind.endswith("?")
        kind = kind.removesuffix("?")
        out.append(Field(name, kind.removesuffix("[]"), array=kind.endswith("[]"), nullable=nullable))
    return tuple(out)
