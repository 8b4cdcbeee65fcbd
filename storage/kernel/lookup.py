"""Index lookups and the search for a batch: the native ones where they were built, their twins in Python where not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from compactd.storage.kernel.reference import lookup as reference
from compactd.storage.kernel.reference.lookup import DAMAGED, ELSEWHERE, FOUND, GO_ON, Place

__all__ = ["DAMAGED", "ELSEWHERE", "FOUND", "GO_ON", "Place", "find_batch", "floor_entry", "locate_batch"]


def _native() -> Any:
    if os.environ.get("COMPACTD_KERNEL") == "reference":
        return reference
    try:
        from compactd.storage.kernel import _native as module  # noqa: PLC0415
    except ImportError:
        return reference
    return module if hasattr(module, "find_batch") else reference


_chosen = _native()
#: See the twins for arguments and results: `storage.kernel.reference.lookup`.
floor_entry: Callable[[bytes | bytearray, int, int, int, int], int] = _chosen.floor_entry
find_batch: Callable[[bytes, int, int, int | None], Place] = _chosen.find_batch

#: (the offset index or its end, base offset, offset, descriptor, bytes of the segment, bytes to read at once): the first batch
#: that ends at or above the offset, with its index entry looked up and its place read in one call.
LocateBatch = Callable[[bytes | bytearray, int, int, int, int, int], tuple[int, int, int, int] | None]
#: (position, size, base offset, last offset); None where the long way has to tell. A short cut, native only.
locate_batch: LocateBatch | None = getattr(_chosen, "locate_batch", None)
