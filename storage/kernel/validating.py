"""The check of a batch on its way into the log: the native one where it was built, its twin in Python where it was not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from compactd.storage.kernel.reference import validate as reference
from compactd.storage.kernel.reference.validate import NO_KEY, TIMESTAMP, RecordError, Summary

__all__ = ["NO_KEY", "TIMESTAMP", "Admission", "Admitted", "RecordError", "Summary", "make_admission", "validate_batch"]

#: (last offset, largest timestamp, producer id, producer epoch, base sequence, transactional)
Admitted = tuple[int, int, int, int, int, bool]


class Admission(Protocol):
    """Checks the usual batch of a producer and stamps its offsets, in one call. Native only: a short cut, no other rules."""

    def admit(self, batch: bytearray | memoryview, next_offset: int, leader_epoch: int, now_ms: int) -> Admitted | None:
        """Stamps `batch` in place. None, and nothing is changed: it is an unusual one, or has to be refused."""
        ...


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


def make_admission(
    *,
    keys_required: bool,
    append_time: bool,
    before_ms: int,
    after_ms: int,
    largest_body: int,
    largest_batch: int,
    codec: int | None,
) -> Admission | None:
    """The short cut for one topic's rules; None where the native kernel is not in use.

    `codec`: the only one that is kept as it comes; None: any.
    """
    if os.environ.get("COMPACTD_KERNEL") == "reference":
        return None
    try:
        from compactd.storage.kernel import _native  # noqa: PLC0415

        make = _native.Admission
    except (ImportError, AttributeError):
        return None
    return make(keys_required, append_time, before_ms, after_ms, largest_body, largest_batch, codec)
