"""The check of a batch on its way into the log: the native one where it was built, its twin in Python where it was not."""

from __future__ import annotations

import os
from collections.abc import Callable

from compactd.storage.kernel.reference import validate as reference
from compactd.storage.kernel.reference.validate import NO_KEY, TIMESTAMP, RecordError, Summary

__all__ = ["NO_KEY", "TIMESTAMP", "RecordError", "Summary", "validate_batch"]

#: See the twin for arguments and result: `storage.kernel.reference.validate`.
ValidateBatch = Callable[[bytes | bytearray | memoryview, int, int, int, int, int | None, bool, int, int, int], Summary]


def _choose() -> ValidateBatch:
    if os.environ.get("COMPACTD_KERNEL") != "reference":
        try:
            from compactd.storage.kernel import _native  # noqa: PLC0415

            return _native.validate_batch
        except (ImportError, AttributeError):
            pass
    return reference.validate_batch


validate_batch: ValidateBatch = _choose()
