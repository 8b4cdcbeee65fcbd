"""JAAS login modules as sasl.jaas.config holds them: `CLASS FLAG name="value" ...;` (KIP-85, Kafka's JaasConfig).

What is written here are passwords: no error repeats any of it but names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[A-Za-z0-9_$.+/-]+)|(?P<sign>[=;])""",
    re.S,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One login module. Its options are not shown: they are passwords."""

    class_name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.class_name!r}, {len(self.options)} options)"


def parse_jaas(text: str) -> LoginModule:
    """The one login module of a configuration. ValueError says what is wrong, without the values."""
    tokens = _tokens(text)
    if not tokens:
        raise ValueError("there is no login module in it")
    if len(tokens) < 3 or not _is_word(tokens[0]) or tokens[1].lower() not in _FLAGS:
        raise ValueError('must be of the form CLASS required name="value" ...;')
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != ";":
        name = _text(tokens[position])
        following = tokens[position + 1 : position + 3]
        if len(following) < 2 or following[0] != "=" or following[1] in ("=", ";"):
            raise ValueError(f"option {name} has no value")
        options[name] = _text(following[1])
        position += 3
    if position == len(tokens):
        raise ValueError("must end with a semicolon")
    if position + 1 < len(tokens):
        raise ValueError("must hold one login module, not several")
    return LoginModule(tokens[0], options)


def _tokens(text: str) -> list[str]:
    """Words, quoted texts with their quotes, signs."""
    found: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(
                f"character {position + 1} is out of place: quote what is not letters, digits and . _ - $ + /"
            )
        if match.lastgroup is not None:
            found.append(match[0])
        position = match.end()
    return found


def _is_word(token: str) -> bool:
    return token[0] not in "\"'=;"


def _text(token: str) -> str:
    if _is_word(token):
        return token
    if token in ("=", ";"):
        raise ValueError(f"{token} is where the name of an option should be")
    return _ESCAPE.sub(_unescaped, token[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape, 8)) if escape.isdigit() and escape[0] < "8" else _ESCAPES.get(escape, escape)
