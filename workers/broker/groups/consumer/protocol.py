"""What consumers of the classic protocol say to each other, as far as the coordinator reads it (Kafka's ConsumerProtocol)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_HIGHEST = 3
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class ProtocolError(ValueError):
    """The bytes are not what consumers send."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member says when it joins."""

    topics: tuple[str, ...] = ()
    #: Topic to partitions.
    owned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rack_id: str | None = None


def version_of(data: bytes) -> int:
    """The version that the sender speaks, as far as it is known. ProtocolError."""
    return _Reader(data).version()


def read_subscription(data: bytes) -> Subscription:
    """ProtocolError."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.text() for _ in range(reader.count(2)))
    reader.data_or_none()
    owned: dict[str, tuple[int, ...]] = {}
    rack_id = None
    if version >= 1:
        owned = reader.partitions()
    if version >= 2:
        reader.number(_INT32)  # generation
    if version >= 3:
        rack_id = reader.text_or_none()
    return Subscription(topics, owned, rack_id or None)


def read_assignment(data: bytes) -> tuple[Mapping[str, tuple[int, ...]], bytes | None]:
    """Topic to partitions, and what the leader's assignor added. ProtocolError."""
    reader = _Reader(data)
    reader.version()
    partitions = reader.partitions()
    return partitions, reader.data_or_none()


def write_assignment(version: int, partitions: Mapping[str, Sequence[int]]) -> bytes:
    """As a leader would have made it."""
    out = bytearray(_INT16.pack(version) + _INT32.pack(len(partitions)))
    for topic, numbers in partitions.items():
        name = topic.encode()
        out += _INT16.pack(len(name)) + name + _INT32.pack(len(numbers))
        for number in numbers:
            out += _INT32.pack(number)
    return bytes(out + _INT32.pack(-1))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._at)
        except struct.error:
            raise ProtocolError("cut off") from None
        self._at += form.size
        return int(value)

    def version(self) -> int:
        found = self.number(_INT16)
        if found < 0:
            raise ProtocolError(f"version {found}")
        return min(found, _HIGHEST)

    def count(self, least: int) -> int:
        """Of an array whose elements take at least so many bytes."""
        found = self.number(_INT32)
        if not 0 <= found <= (len(self._data) - self._at) // least:
            raise ProtocolError(f"{found} elements")
        return found

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ProtocolError("cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    def text_or_none(self) -> str | None:
        size = self.number(_INT16)
        return None if size < 0 else self._take(size).decode("utf-8", "replace")

    def text(self) -> str:
        found = self.text_or_none()
        if found is None:
            raise ProtocolError("null where none may be")
        return found

    def data_or_none(self) -> bytes | None:
        size = self.number(_INT32)
        return None if size < 0 else self._take(size)

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            found[topic] = tuple(self.number(_INT32) for _ in range(self.count(4)))
        return found
