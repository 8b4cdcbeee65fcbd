"""Durations and sizes as people write them: `7d`, `1h30m`, `128MiB`, `50MiB/s`.

Only YAML files and `--set` may use units; server.properties and the metadata log hold what Kafka itself can parse,
plain numbers (facts 3). Results are exact: what isn't a whole number of milliseconds or bytes is refused.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

MILLISECONDS: dict[str, int] = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}

# "k", "M" and "G" alone mean 1000 to some programs and 1024 to others, so they aren't here.
BYTES: dict[str, int] = {
    "B": 1,
    "kB": 1_000,
    "KB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "TB": 1_000_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}

_PLAIN = re.compile(r"[+-]?[0-9]{1,40}")
_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)")


def parse_duration(text: str) -> int:
    """Milliseconds in `text`: a plain number of milliseconds or amounts with units ms, s, m/min, h, d, w.

    Raises ValueError with a reason a person can act on.
    """
    return _parse(text, MILLISECONDS, "a duration such as 500ms, 90s, 15m, 12h, 7d, 2w, or a number of milliseconds")


def parse_size(text: str) -> int:
    """Bytes in `text`: a plain number or amounts with units (KiB, MiB, GiB, TiB; kB, MB, GB, TB are powers of 1000).

    Raises ValueError with a reason a person can act on.
    """
    return _parse(text, BYTES, "a size such as 512KiB, 128MiB, 1GiB, or a number of bytes")


def format_duration(milliseconds: int) -> str:
    """`milliseconds` with the largest unit that divides it: 604800000 is `7d`, 1500 is `1500ms`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % MILLISECONDS[unit] == 0:
            return f"{milliseconds // MILLISECONDS[unit]}{unit}"
    return f"{milliseconds}ms"


def format_size(size: int) -> str:
    """`size` with the largest power-of-1024 unit that divides it: 1073741824 is `1GiB`, 1048588 is `1048588B`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B"


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    text = text.strip()
    if _PLAIN.fullmatch(text):
        return int(text)
    total = Fraction(0)
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(f"not {wanted}")
        amount, unit = part.groups()
        if unit not in units:
            raise ValueError(f"unknown unit {unit!r}, use one of {', '.join(units)}")
        total += Fraction(amount) * units[unit]
        position = part.end()
        while position < len(text) and text[position] == " ":
            position += 1
    if position == 0:
        raise ValueError(f"not {wanted}")
    if total.denominator != 1:
        raise ValueError(
            "not a whole number of milliseconds" if units is MILLISECONDS else "not a whole number of bytes"
        )
    return int(total)


def java_double(number: float) -> str:
    """A number as Java's Double.toString writes it."""
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    whole = "".join(map(str, digits))
    return f"{'-' if sign else ''}{whole[0]}.{whole[1:] or '0'}E{len(whole) - 1 + exponent}"
