"""The cases of `compactd bench cleaner`: value size, codec, share of duplicates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compactd.config.errors import UsageError

VALUE_SIZES = (80, 1000)
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
DUPLICATES = (0, 50, 90)
KEY_SIZE = 16
#: Both sides' clocks stand at this time, in ms.
NOW = 1_700_000_000_000

_WRITTEN = NOW - 3_600_000


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. `duplicates`: percent of the records that a clean removes."""

    value_size: int
    codec: str
    duplicates: int

    def __str__(self) -> str:
        return f"{self.value_size}/{self.codec}/{self.duplicates}"

    def fill(self, data_bytes: int, batch_records: int) -> dict[str, Any]:
        """The request that writes the log: keys drawn at random, so that superseded records lie in every batch."""
        records = max(2, data_bytes // (KEY_SIZE + self.value_size))
        return {
            "records": records,
            "keys": distinct_keys(records, self.duplicates / 100),
            "keyOrder": "random" if self.duplicates else "cycle",
            "keySize": KEY_SIZE,
            "valueSize": self.value_size,
            "value": "hex",
            "codec": self.codec,
            "batch": batch_records,
            "ts": _WRITTEN,
        }


def distinct_keys(records: int, duplicates: float) -> int:
    """From how many keys to draw `records` times so that the share `duplicates` (0 .. 1) is superseded in the end.

    With x draws a key, the share 1 - e^-x of the keys is drawn at all.
    """
    if duplicates <= 0:
        return records
    low, high = 1e-9, 1e9
    for _ in range(200):
        draws = math.sqrt(low * high)
        if -math.expm1(-draws) / draws > 1 - duplicates:
            low = draws
        else:
            high = draws
    return max(1, round(records / low))


ALL_CASES = tuple(Case(size, codec, share) for size in VALUE_SIZES for codec in CODECS for share in DUPLICATES)


def choose_cases(filters: Sequence[str]) -> list[Case]:
    """The cases that any of the filters names, in the table's order; all of them without a filter.

    A filter is a case (80/lz4/50) or parts of one (80, lz4, 80/none, lz4/90%). UsageError for one that no case meets.
    """
    chosen: set[Case] = set()
    for text in filters:
        wanted = {part.strip().removesuffix("%").strip() for part in text.split("/")}
        found = {case for case in ALL_CASES if wanted <= set(str(case).split("/"))}
        if not found:
            sizes, codecs, shares = ("|".join(map(str, all_)) for all_ in (VALUE_SIZES, CODECS, DUPLICATES))
            raise UsageError(
                detail=f"there is no case {text!r}; cases are {sizes} / {codecs} / {shares}, or parts of that"
            )
        chosen |= found
    return [case for case in ALL_CASES if not filters or case in chosen]
