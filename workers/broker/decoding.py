"""Requests on their way in, read by the layout of kio's classes into instances of them.

Kio has a native reader, which is faster (1 us where this takes 10), but it makes room for as many elements as an array
says it has: six bytes from anybody end the process. It also raises on tagged fields that it does not know, which a newer
client may send, and on times that do not fit a timedelta. Here every length is checked against what is there, unknown
tags are passed over, and times are kept within what a timedelta holds. Bytes after the body are nobody's business
(facts: kafka-protocol 2). Produce and Fetch, whose requests are many, have readers of their own.
"""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from compactd.workers.broker.layout import FieldLayout, layout_of
from compactd.workers.broker.schemas import Schema

#: Elements that all arrays of one request may have together. No client comes near it, and more would take much memory and
#: time of all clients: Kafka, which has threads for others, gives up for want of memory later.
MOST_ELEMENTS = 250_000

#: Partitions that one Produce or Fetch may name: as many as a whole cluster of brokers has.
MOST_PARTITIONS = 100_000


class _Budget(threading.local):
    """Elements that the message which a thread reads may still have."""

    left = most = MOST_ELEMENTS


_BUDGET = _Budget()

#: Reads a value at a position; returns it with the position behind it.
Read = Callable[[memoryview, int], tuple[Any, int]]


class MalformedRequestError(Exception):
    """The bytes are no request of this API and version: the connection is closed, as Kafka does."""


def decode(cls: Schema, data: bytes | memoryview, most_elements: int | None = None) -> Any:
    """An instance of the class. MalformedRequestError, also for more than `most_elements` (None: those of a request)."""
    _BUDGET.left = _BUDGET.most = MOST_ELEMENTS if most_elements is None else most_elements
    try:
        return _struct_reader(cls)(memoryview(data), 0)[0]
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"{cls.__name__} v{cls.__version__}: {error}") from None


def prepare_reader(cls: Schema) -> None:
    """Makes what `decode` needs for a class; done by the first one otherwise."""
    _struct_reader(cls)


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits. ValueError, IndexError."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")
    if value >= 1 << 32:
        raise ValueError("a varint of more than 32 bits")
    return value, position


def skip_tags(data: memoryview, position: int) -> int:
    """Passes over a section of tagged fields. ValueError, IndexError."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
        if position > len(data):
            raise ValueError("a tagged field reaches over the end")
    return position


def milliseconds(value: timedelta | datetime | int | None) -> int:
    """A time of a decoded request as whole milliseconds; -1 for none."""
    if value is None:
        return -1
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        value = value - _EPOCH
    return value // timedelta(milliseconds=1)


@cache
def _struct_reader(cls: Schema) -> Read:
    layout = layout_of(cls)
    ordinary = tuple((field.name, _field_reader(field, layout.flexible)) for field in layout.ordinary)
    tagged = {field.tag: (field.name, _field_reader(field, flexible=True)) for field in layout.tagged}
    defaults = {field.name: field.default for field in layout.tagged}
    flexible = layout.flexible

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = dict(defaults)
        for name, each in ordinary:
            values[name], position = each(data, position)
        if flexible:
            count, position = read_uvarint(data, position)
            for _ in range(count):
                tag, position = read_uvarint(data, position)
                size, position = read_uvarint(data, position)
                end = position + size
                if end > len(data):
                    raise ValueError("a tagged field reaches over the end")
                if tag in tagged:
                    name, each = tagged[tag]
                    values[name], position = each(data[:end], position)
                    if position != end:
                        raise ValueError(f"tag {tag} is not as long as it says")
                position = end
        return cls(**values), position

    return read


def _field_reader(field: FieldLayout, flexible: bool) -> Read:
    if field.struct is not None:
        each = _struct_reader(field.struct)
        if not field.is_array:
            return _nullable_struct(each) if field.nullable and field.tag is None else each
    else:
        assert field.primitive is not None
        each = _primitive_reader(field.primitive, flexible, field.nullable and not field.is_array)
        if not field.is_array:
            return each
    return _array_reader(each, flexible, field.nullable)


def _nullable_struct(each: Read) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        if data[position] >= 0x80:
            return None, position + 1
        return each(data, position + 1)

    return read


def _array_reader(each: Read, flexible: bool, nullable: bool) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        if flexible:
            count, position = read_uvarint(data, position)
            count -= 1
        else:
            (count,), position = _INT32.unpack_from(data, position), position + 4
        if count < 0:
            if not nullable:
                raise ValueError("an array that cannot be null is null")
            return None, position
        # Every element has a byte at least: what claims more elements than bytes is refused before it is made room for.
        if count > len(data) - position:
            raise ValueError(f"an array of {count} elements in {len(data) - position} bytes")
        _BUDGET.left -= count
        if _BUDGET.left < 0:
            raise ValueError(f"more than {_BUDGET.most} elements")
        values = []
        for _ in range(count):
            value, position = each(data, position)
            values.append(value)
        return tuple(values), position

    return read


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_MS = timedelta.max // timedelta(milliseconds=1)
_LATEST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_EARLIEST_MS = -((_EPOCH - datetime.min.replace(tzinfo=UTC)) // timedelta(milliseconds=1))


def _number(code: str) -> Read:
    form = struct.Struct(">" + code)

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        return form.unpack_from(data, position)[0], position + form.size

    return read


def _duration(code: str) -> Read:
    number = _number(code)

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        value, position = number(data, position)
        return timedelta(milliseconds=max(-_LARGEST_MS, min(value, _LARGEST_MS))), position

    return read


def _moment(nullable: bool) -> Read:
    number = _number("q")

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        value, position = number(data, position)
        if value == -1 and nullable:
            return None, position
        return _EPOCH + timedelta(milliseconds=max(_EARLIEST_MS, min(value, _LATEST_MS))), position

    return read


def _read_bool(data: memoryview, position: int) -> tuple[Any, int]:
    return data[position] != 0, position + 1


def _read_uuid(data: memoryview, position: int) -> tuple[Any, int]:
    raw = bytes(data[position : position + 16])
    if len(raw) < 16:
        raise ValueError("an id reaches over the end")
    return (uuid.UUID(bytes=raw) if any(raw) else None), position + 16


def _text(flexible: bool, nullable: bool, is_text: bool, length: struct.Struct) -> Read:
    def read(data: memoryview, position: int) -> tuple[Any, int]:
        if flexible:
            size, position = read_uvarint(data, position)
            size -= 1
        else:
            (size,), position = length.unpack_from(data, position), position + length.size
        if size < 0:
            if not nullable:
                raise ValueError("a string that cannot be null is null")
            return None, position
        end = position + size
        if end > len(data):
            raise ValueError("a string reaches over the end")
        raw = bytes(data[position:end])
        return (raw.decode() if is_text else raw), end

    return read


_PRIMITIVES: dict[str, Read] = {
    "int8": _number("b"),
    "int16": _number("h"),
    "int32": _number("i"),
    "int64": _number("q"),
    "uint8": _number("B"),
    "uint16": _number("H"),
    "uint32": _number("I"),
    "uint64": _number("Q"),
    "float64": _number("d"),
    "bool": _read_bool,
    "uuid": _read_uuid,
    "error_code": _number("h"),
    "timedelta_i32": _duration("i"),
    "timedelta_i64": _duration("q"),
}


def _primitive_reader(name: str, flexible: bool, nullable: bool) -> Read:
    if name == "string":
        return _text(flexible, nullable, True, _INT16)
    if name in ("bytes", "records"):
        return _text(flexible, nullable, False, _INT32)
    if name == "datetime_i64":
        return _moment(nullable)
    return _PRIMITIVES[name]
