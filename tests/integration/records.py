"""What clients write and read, in a form that all of them share."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Message:
    """One to write. `timestamp`: ms, None for the client's clock."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int = 0


@dataclass(frozen=True, order=True)
class Record:
    """One that was read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class Refused:
    """What the broker answered in place of an offset: the number of the error."""

    code: int


Outcome = int | Refused

MESSAGE_TOO_LARGE = Refused(10)
INVALID_TIMESTAMP = Refused(32)
INVALID_RECORD = Refused(87)

_NOW = int(time.time() * 1000)


def assortment(partition: int = 0, seed: int = 0, count: int = 60) -> list[Message]:
    """Keys, values and headers of every kind: null, empty, not UTF-8, long enough to be worth compressing."""
    source = random.Random(seed)
    keys = (None, b"", b"key", "clé ☃".encode(), bytes(range(256)))
    values = (None, b"", b"value", b"\0\xff\xfe", b"again and again " * 40)
    headers: tuple[Headers, ...] = (
        (), (("h", b"1"),), (("h", b"1"), ("h", b"2"), ("", b"")), (("none", None), ("naïve", b"\xff\0")),
        (("large", b"x" * 3000),),
    )  # fmt: skip
    made = []
    for number in range(count):
        value = values[number // 5 % 5] if number < 25 else source.randbytes(20).hex().encode() * source.randint(1, 30)
        made.append(
            Message(value, keys[number % 5], headers[number // 2 % 5], _NOW - 100_000 + 1000 * number, partition)
        )
    return made


def as_read(messages: Sequence[Message], offsets: Sequence[Outcome]) -> list[Record]:
    """What a consumer has to find of messages with timestamps."""
    found = []
    for message, offset in zip(messages, offsets, strict=True):
        assert isinstance(offset, int), f"refused with {offset}"
        assert message.timestamp is not None
        found.append(Record(message.partition, offset, message.timestamp, message.key, message.value, message.headers))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def in_order(records: Sequence[Record]) -> list[Record]:
    """By partition and offset; every partition's offsets have to rise as they were read."""
    last: dict[int, int] = {}
    for record in records:
        assert record.offset > last.get(record.partition, -1), f"{record} after {last}"
        last[record.partition] = record.offset
    return sorted(records, key=lambda record: (record.partition, record.offset))
