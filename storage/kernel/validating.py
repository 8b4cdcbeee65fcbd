"""The check of a batch on its way into the log: the native one where it was built, its twin in Python where it was not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from compactd.storage.kernel.reference import validate as reference
from compactd.storage.kernel.reference.validate import NO_KEY, TIMESTAMP, RecordError, Summary

__all__ = [
    "NO_KEY",
    "TIMESTAMP",
    "Admission",
    "Admitted",
    "AppendedBatch",
    "RecordError",
    "Summary",
    "append_batch",
    "compress_area",
    "find_timestamp",
    "make_admission",
    "plain_area",
    "validate_batch",
]

#: (last offset, largest timestamp, producer id, producer epoch, base sequence, transactional)
Admitted = tuple[int, int, int, int, int, bool]


class Admission(Protocol):
    """Checks the usual batch of a producer and stamps its offsets, in one call. Native only: a short cut, no other rules."""

    def admit(self, batch: bytearray | memoryview, next_offset: int, leader_epoch: int, now_ms: int) -> Admitted | None:
        """Stamps `batch` in place. None, and nothing is changed: it is an unusual one, or has to be refused."""
        ...


#: (fields of Admitted, whether the batch was written)
AppendedBatch = tuple[int, int, int, int, int, bool, bool]

#: (admission, batch, next offset, leader epoch, now ms, descriptor, room in bytes, last offset and largest timestamp that the
#: segment takes, (id, epoch, next sequence) of a producer, whether it is in a transaction): as `Admission.admit`, and the batch
#: is written at the descriptor's position, unless it is of another producer, begins or leaves a transaction, or does not fit
#: the segment. OSError: perhaps in part.
AppendBatch = Callable[
    [Admission, bytearray | memoryview, int, int, int, int, int, int, int, tuple[int, int, int] | None, bool],
    AppendedBatch | None,
]

#: See the twin for arguments and result: `storage.kernel.reference.validate`.
ValidateBatch = Callable[[bytes | bytearray | memoryview, int, int, int, int, int | None, bool, int, int, int], Summary]


def _native() -> Any:
    """The native kernel's module; None where it is not in use."""
    if os.environ.get("COMPACTD_KERNEL") == "reference":
        return None
    try:
        from compactd.storage.kernel import _native as module  # noqa: PLC0415
    except ImportError:
        return None
    return module


def plain_area(batch: bytes | bytearray | memoryview, codec: int, count: int) -> bytes | None:
    """The decompressed record area of a V2 batch, if Kafka would encode its records to just these bytes when it rebuilds
    the batch. None: they have to be encoded anew (always, without the native kernel).
    """
    module = _native()
    found: bytes | None = None if module is None else module.plain_area(batch, codec, count)
    return found


def compress_area(codec: int, area: bytes) -> bytes | None:
    """The record area compressed at the codec's default level; None without the native kernel."""
    module = _native()
    found: bytes | None = None if module is None else module.compress_area(codec, area)
    return found


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
    module = _native()
    if module is None:
        return None
    made: Admission = module.Admission(
        keys_required, append_time, before_ms, after_ms, largest_body, largest_batch, codec
    )
    return made


#: (batch, codec, count, base timestamp, append time or None, timestamp, first offset delta): (offset delta, timestamp) of the
#: first record that is late and high enough. ValueError for records that do not fit their lengths.
FindTimestamp = Callable[[bytes | bytearray | memoryview, int, int, int, int | None, int, int], tuple[int, int] | None]

#: None where the native kernel is not in use.
find_timestamp: FindTimestamp | None = getattr(_native(), "find_timestamp", None)
append_batch: AppendBatch | None = getattr(_native(), "append_batch", None)
validate_batch: ValidateBatch = reference.validate_batch if (_module := _native()) is None else _module.validate_batch
