"""What a message class looks like on the wire, taken from kio's annotations once for each class."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from compactd.workers.broker.schemas import Schema

_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "uuid": None, "bool": False, "float64": 0.0}


@dataclasses.dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field."""

    name: str
    #: Kafka's name of a primitive type, as kio writes it ("int16", "timedelta_i32"…); None: a struct.
    primitive: str | None
    #: The struct's class; None for primitives.
    struct: Schema | None
    is_array: bool
    nullable: bool
    #: Number of a tagged field; None: an ordinary one.
    tag: int | None
    #: Taken where an answer leaves the field out, and for tags that were not sent. None where null is meant.
    default: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """One struct."""

    cls: Schema
    flexible: bool
    #: In the order of the wire.
    ordinary: tuple[FieldLayout, ...]
    #: By number, ascending.
    tagged: tuple[FieldLayout, ...]

    @property
    def fields(self) -> tuple[FieldLayout, ...]:
        return self.ordinary + self.tagged


@cache
def layout_of(cls: Schema) -> Layout:
    """Raises TypeError for a class that is not made as kio makes them."""
    hints = typing.get_type_hints(cls)
    found = [_field(field, hints[field.name]) for field in dataclasses.fields(cls)]
    return Layout(
        cls,
        bool(cls.__flexible__),
        tuple(field for field in found if field.tag is None),
        tuple(sorted((field for field in found if field.tag is not None), key=lambda field: field.tag or 0)),
    )


def _field(field: dataclasses.Field[Any], hint: Any) -> FieldLayout:
    inner, nullable = _without_none(hint)
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner = typing.get_args(inner)[0]
    struct: Schema = inner if dataclasses.is_dataclass(inner) else None
    primitive = None if struct is not None else str(field.metadata["kafka_type"])
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif nullable:
        default = None
    elif is_array:
        default = ()
    elif struct is not None:
        tagged = "tag" in field.metadata
        default = struct(**{each.name: each.default for each in layout_of(struct).fields}) if tagged else {}
    else:
        assert primitive is not None
        default = _ZEROS.get(primitive, 0)
    # kio makes every uuid optional; on the wire none of them is null.
    return FieldLayout(
        field.name, primitive, struct, is_array, nullable and primitive != "uuid", field.metadata.get("tag"), default
    )  # fmt: skip


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kept = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(kept) != 1:
            raise TypeError(f"{hint} is not one type or None")
        return kept[0], True
    return hint, False
