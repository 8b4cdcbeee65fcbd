"""Whether two cleaned logs are the same: by their bytes, or by their records where a codec's library differs."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from compactd.config.errors import FaultError
from compactd.storage import names
from compactd.storage.records.batch import HEADER_SIZE, BatchHeader, read_batches
from compactd.storage.records.codecs import decompress

SAME_BYTES = "same bytes"
SAME_RECORDS = "same records"


def agreement(ours: Path, theirs: Path) -> str:
    """SAME_BYTES: every closed segment's .log, .index and .timeindex is equal, and the active .log. SAME_RECORDS: headers
    and records of every batch are, and only their compressed form differs. Raises FaultError for anything else.
    """
    bases = _bases(ours)
    if bases != _bases(theirs):
        raise FaultError(path=ours, reason=f"its segments begin at {bases}, those of Kafka at {_bases(theirs)}")
    result = SAME_BYTES
    for base in bases:
        log = names.log_name(base)
        if not filecmp.cmp(ours / log, theirs / log, shallow=False):
            _compare(ours / log, theirs / log)
            result = SAME_RECORDS
        elif base != bases[-1]:  # the active segment's indexes are as large as their owner happened to make them
            for name in (names.offset_index_name(base), names.time_index_name(base)):
                if not filecmp.cmp(ours / name, theirs / name, shallow=False):
                    raise FaultError(path=ours / name, reason="it differs from Kafka's while the logs are the same")
    return result


def _bases(directory: Path) -> list[int]:
    parsed = (names.parse_segment_name(path.name) for path in directory.iterdir())
    return sorted(name.base_offset for name in parsed if name and name.kind == names.LOG and not name.suffix)


def _compare(ours: Path, theirs: Path) -> None:
    """Raises FaultError at the first batch that differs in more than its compressed form."""
    for mine, other in zip_longest(_batches(ours), _batches(theirs)):
        if mine is None or other is None:
            raise FaultError(path=ours, reason="it has not as many batches as Kafka's")
        if mine != other:
            raise FaultError(path=ours, reason=f"the batch at offset {mine[0].base_offset} differs from Kafka's")


def _batches(path: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    """Headers without what depends on the compressed form, and the records decompressed."""
    for batch in read_batches(path):
        batch.check()
        header = replace(batch.header, position=0, size=0, crc=0)
        records = batch.data[HEADER_SIZE:]
        yield header, decompress(header.codec, records) if header.record_count else records
