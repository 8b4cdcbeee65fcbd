"""Lines from a terminal, a pipe or a file, as soon as they are there, and records made of them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass

from compactd.config.errors import UsageError

#: No record is longer: Kafka's own limit of a batch is a hundredth of it.
MAX_LINE_BYTES = 100 << 20
_CHUNK_BYTES = 1 << 16


def read_lines(descriptor: int, linger_seconds: float) -> Iterator[bytes | None]:
    """Each line without its end (`\\n` or `\\r\\n`); the last one needs none. None: no more came for `linger_seconds`,
    and whoever collects lines should not wait any longer. UsageError for a line beyond MAX_LINE_BYTES."""
    rest = bytearray()
    told = True
    number = 0
    while True:
        if not told and not select.select([descriptor], [], [], linger_seconds)[0]:
            told = True
            yield None
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > MAX_LINE_BYTES:
                raise UsageError(detail=f"line {number + 1} has more than {MAX_LINE_BYTES} bytes")
            continue
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            number += 1
            yield bytes(line.removesuffix(b"\r"))
        told = False
    if rest:
        yield bytes(rest)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line becomes a key and a value."""

    #: None: the whole line is the value, and there is no key.
    key_separator: bytes | None = None
    #: A key or value that is exactly this is null; a null value is a tombstone.
    null_marker: bytes | None = None

    def parse(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """UsageError for a line that has no key where it must."""
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            key, found, value = line.partition(self.key_separator)
            if not found:
                separator = self.key_separator.decode(errors="backslashreplace")
                raise UsageError(detail=f"line {number} has no {separator!r} between key and value")
        return self._or_null(key), self._or_null(value)

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text is not None and text == self.null_marker else text
