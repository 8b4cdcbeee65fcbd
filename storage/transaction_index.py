"""The aborted transactions of a segment, `.txnindex` (Kafka's TransactionIndex and AbortedTxn; facts 2.8).

Entries of 34 bytes in order of the ABORT marker's offset. The file exists only when it has entries. Unlike the other
two indexes it cannot be skipped: without an entry the records of an aborted transaction look committed. So every fault
in it is an error here, also those that Kafka reads over.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

from compactd.config.errors import CorruptFileError
from compactd.storage import files
from compactd.storage.kernel.interface import AbortedTransaction

ENTRY_SIZE = 34
_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
#: 7.9 million aborted transactions in one segment; beyond it the file is not what its name says.
LARGEST_FILE = 256 << 20


def encode_transaction(transaction: AbortedTransaction) -> bytes:
    """One entry, 34 bytes."""
    return _ENTRY.pack(
        _VERSION,
        transaction.producer_id,
        transaction.first_offset,
        transaction.last_offset,
        transaction.last_stable_offset,
    )


def read_transaction_index(
    path: files.StrPath, base_offset: int | None = None, torn_ok: bool = False
) -> list[AbortedTransaction]:
    """All entries of a segment's transaction index; an absent file has none.

    Raises CorruptFileError: another version, a marker that is not above the one before, below its transaction's start
    or (with `base_offset`) below the segment, or a part of an entry at the end. With `torn_ok`, for reading beside a
    running broker, that part is passed by.
    """
    name = os.fspath(path)
    data = files.read_file(name, LARGEST_FILE, missing_ok=True)
    whole = len(data) - len(data) % ENTRY_SIZE
    found: list[AbortedTransaction] = []
    for position in range(0, whole, ENTRY_SIZE):
        version, *values = _ENTRY.unpack_from(data, position)
        entry = AbortedTransaction(*values)
        if version != _VERSION:
            raise _corrupt(name, f"entry {len(found)} has version {version}, where only {_VERSION} is known", position)
        if entry.first_offset < 0 or entry.last_offset < entry.first_offset:
            reason = f"entry {len(found)} ends at {entry.last_offset}, before its start {entry.first_offset}"
            raise _corrupt(name, reason, position)
        if base_offset is not None and entry.last_offset < base_offset:
            reason = f"entry {len(found)} ends at {entry.last_offset}, below the segment's base {base_offset}"
            raise _corrupt(name, reason, position)
        if found and entry.last_offset <= found[-1].last_offset:
            reason = f"entry {len(found)} ends at {entry.last_offset}, not after {found[-1].last_offset}"
            raise _corrupt(name, reason, position)
        found.append(entry)
    if whole != len(data) and not torn_ok:
        raise _corrupt(name, f"{len(data) - whole} bytes are left after entry {len(found)}", whole)
    return found


def collect_aborted(
    indexes: Iterable[Iterable[AbortedTransaction]], first_offset: int, upper_offset: int
) -> list[AbortedTransaction]:
    """Aborted transactions that touch offsets from `first_offset` to below `upper_offset`.

    `indexes`: entries of each segment's index in order, from the segment that holds `first_offset` on. They are taken
    one by one, and none is read after the entry that shows the answer to be complete (its last stable offset reaches
    `upper_offset`: no transaction that started before it can still end).
    """
    return list(_collect(indexes, first_offset, upper_offset))


def _collect(
    indexes: Iterable[Iterable[AbortedTransaction]], first_offset: int, upper_offset: int
) -> Iterator[AbortedTransaction]:
    for index in indexes:
        for entry in index:
            if entry.last_offset >= first_offset and entry.first_offset < upper_offset:
                yield entry
            if entry.last_stable_offset >= upper_offset:
                return


def _corrupt(path: str, reason: str, position: int) -> CorruptFileError:
    return CorruptFileError(
        path=path,
        reason=reason,
        position=position,
        advice="Aborted records would look committed without it. Remove the .index of this segment too, so that Kafka "
        "rebuilds both from the .log when it next starts, or restore the file from a replica.",
    )
