"""Segments on disk and rounds over them, for the tests of the reference kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compactd.storage.kernel.interface import (
    AbortedTransaction,
    ActiveProducer,
    GroupResult,
    RoundSettings,
    SourceSegment,
)
from compactd.storage.kernel.reference import KERNEL
from compactd.storage.kernel.reference.round import ReferenceRound
from compactd.storage.records.batch import Batch, Record, iter_batches
from compactd.storage.records.builder import build_batch

NOW = 1_700_000_000_000
SETTINGS = RoundSettings(
    first_dirty_offset=0,
    high_watermark=1 << 40,
    now_ms=NOW,
    delete_retention_ms=1000,
    index_interval_bytes=4096,
    map_memory_bytes=1 << 20,
)


class Sink:
    """An output that keeps what it is given, and how often it was called."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0

    def fileno(self) -> int:
        raise AssertionError("the reference kernel writes through write()")

    def write(self, data: bytes) -> None:
        self.data += data
        self.writes += 1


def plain(offset: int, *records: tuple[bytes | None, bytes | None], ts: int = 100, **fields: object) -> bytes:
    """A batch of consecutive offsets from `offset` on; each record is (key, value)."""
    made = [Record(offset + n, ts + n, key, value) for n, (key, value) in enumerate(records)]
    return build_batch(made, base_offset=offset, **fields)  # type: ignore[arg-type]


def segment(
    directory: Path, *batches: bytes, base: int | None = None, next_offset: int | None = None, **fields: object
) -> SourceSegment:
    """Writes a .log; base and next offset are taken from the batches unless given."""
    found = list(iter_batches(b"".join(batches)))
    if base is None:
        base = found[0].header.base_offset
    if next_offset is None:
        next_offset = found[-1].header.next_offset if found else base
    path = directory / f"{base:020}.log"
    path.write_bytes(b"".join(batches))
    made = SourceSegment(str(path), base, path.stat().st_size, next_offset)
    return replace(made, **fields)  # type: ignore[arg-type]


def begin(**changes: object) -> ReferenceRound:
    return KERNEL.begin_round(replace(SETTINGS, **changes))  # type: ignore[arg-type]


def clean(
    sources: Sequence[SourceSegment],
    *,
    active: Mapping[int, ActiveProducer] | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    **changes: object,
) -> tuple[GroupResult, bytes]:
    """One round: all sources are mapped, then cleaned as one group. The cleaned .log, whether it was written or not."""
    done = begin(**changes)
    done.build_map(sources, aborted)
    sink = Sink()
    result = done.clean_group(sources, active or {}, sink)
    done.close()
    if result.unchanged:
        assert sink.writes == 0
        sink.data = Path(sources[0].path).read_bytes()
    assert len(sink.data) == result.log_size == result.stats.bytes_written
    return result, sink.data


def batches(data: bytes) -> list[Batch]:
    found = list(iter_batches(data))
    for batch in found:
        batch.check()
    return found


def contents(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for batch in batches(data) for r in batch.records()]


def offsets(data: bytes) -> list[int]:
    return [record.offset for batch in batches(data) for record in batch.records()]
