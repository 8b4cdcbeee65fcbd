"""Bytes of a real Kafka 4.4.0, by what they are: tests/data/kafka-4.4.0-golden.json."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
_GOLDEN: dict[str, list[str]] = json.loads((DATA / "kafka-4.4.0-golden.json").read_text())


def golden(name: str, index: int = 0) -> bytes:
    """The `index`-th value of the entry whose name begins with `name`."""
    (match,) = [values for key, values in _GOLDEN.items() if key.startswith(name)]
    return bytes.fromhex(match[index])


def every_value() -> list[bytes]:
    """All of them."""
    return [bytes.fromhex(text) for values in _GOLDEN.values() for text in values]
