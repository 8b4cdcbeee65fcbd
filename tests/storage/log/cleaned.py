"""Stands in for a cleaner: writes the `.cleaned` files of a group of closed segments, keeping what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactd.storage import files, names
from compactd.storage.log import PartitionLog
from compactd.storage.names import CLEANED
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.records.batch import Batch, iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record


def write_cleaned(log: PartitionLog, old_bases: Sequence[int], keep: Callable[[Record], bool]) -> int:
    """Writes one `.cleaned` segment in place of the old ones; batches keep their offsets. Returns its base."""
    base = old_bases[0]
    builder = OffsetIndexBuilder(base, log.config.index_interval_bytes)
    output = bytearray()
    for segment in log.segments:
        if segment.base_offset in old_bases:
            for each in iter_batches(segment.read(0, segment.size)):
                kept = _kept(each, keep)
                if kept is not None:
                    header = each.header
                    builder.append(header.last_offset, header.max_timestamp, len(output), len(kept))
                    output += kept
    builder.close()
    for name, content in (
        (names.log_name(base), bytes(output)),
        (names.offset_index_name(base), builder.offset_index_bytes()),
        (names.time_index_name(base), builder.time_index_bytes()),
    ):
        files.write_file(log.directory / (name + CLEANED), content)
    return base


def _kept(each: Batch, keep: Callable[[Record], bool]) -> bytes | None:
    header = each.header
    left = [record for record in each.records() if keep(record)]
    if not left:
        return None
    return build_batch(
        left,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=header.codec,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        max_timestamp=header.max_timestamp,
    )
