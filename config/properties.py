"""Java's properties syntax, as java.util.Properties.load reads it.

Bytes are Latin-1. Comments begin with # or !; an odd number of backslashes at the end of a line continues it, the next
line's leading blanks are dropped; a key ends at the first unescaped =, : or blank; \\t \\n \\r \\f and \\uXXXX are
characters, a backslash before anything else is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from compactd.config.errors import SettingError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Property:
    """One `key = value`, with the number of the line it begins on (from 1)."""

    key: str
    value: str
    line: int


def parse_properties(data: bytes, source: str) -> list[Property]:
    """Every property of `data` in file order, repeated keys included. SettingError for a broken \\u escape."""
    return [_property(text, line, source) for text, line in _logical_lines(data.decode("latin-1"))]


def properties_dict(data: bytes, source: str) -> dict[str, str]:
    """The properties as a mapping: of repeated keys the last one counts, as in Java."""
    return {entry.key: entry.value for entry in parse_properties(data, source)}


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    parts: list[str] = []
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            first = number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            parts.append(line[:-1])
            continue
        parts.append(line)
        yield "".join(parts), first
        parts = []
    if parts:
        yield "".join(parts), first


def _property(text: str, line: int, source: str) -> Property:
    end = 0
    while end < len(text) and text[end] not in "=:" + _BLANKS:
        end += 2 if text[end] == "\\" else 1
    end = min(end, len(text))
    rest = text[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    key = text[:end]
    return Property(_unescape(key, key, line, source), _unescape(rest, key, line, source), line)


def _unescape(text: str, key: str, line: int, source: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            out.append(char)
            continue
        if position == len(text):
            break
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
                raise SettingError(
                    source=f"{source}:{line}", name=key, value=text, reason="\\u must be followed by four hex digits"
                )
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return "".join(out)
