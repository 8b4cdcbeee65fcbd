"""One round of cleaning over one partition (Cleaner.doClean; facts 5.1).

Pass one maps the keys of the dirty range; the segments below the end of what was mapped are grouped; pass two writes each
group as one `.cleaned` segment. A group is handed out when its files are whole and fsynced; whoever owns the log swaps it
in (`swap.replace_segments`) before asking for the next. Groups already swapped stay if a later one fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from compactd.config.errors import NoSpaceError
from compactd.storage import files
from compactd.storage.cleaning.aborted import AbortedTransactions
from compactd.storage.cleaning.cleanable import segments_between
from compactd.storage.cleaning.grouping import group_segments, largest_group_bytes
from compactd.storage.index_lookup import start_position
from compactd.storage.kernel.interface import (
    ActiveProducer,
    CopyStats,
    GroupResult,
    Kernel,
    MapResult,
    OutputFile,
    Progress,
    RoundSettings,
    SourceSegment,
)
from compactd.storage.names import CLEANED
from compactd.storage.partition import Partition
from compactd.storage.segment import LogSegment
from compactd.storage.swap import drop_cleaned, segment_file_names

#: Beside the largest group: rewritten batches may grow by a few bytes each (a horizon in place of a timestamp).
SPACE_MARGIN_BYTES = 1 << 20
_COPY_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """What a round needs beside the log. `now_ms` is the wall clock, read once for the whole round."""

    now_ms: int
    map_memory_bytes: int = 128 << 20
    map_load_factor: float = 0.9
    kafka_map: bool = False
    #: Threads that work on the round, this one included; the output is the same for any number.
    threads: int = 1


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """A group whose `.cleaned` files are complete and on disk, ready to be swapped in by the log's owner."""

    directory: Path
    base_offset: int
    source_bases: tuple[int, ...]
    result: GroupResult
    #: Every file would come out byte for byte as it is: there is nothing to swap, and no `.cleaned` file.
    unchanged: bool


class CleaningRound:
    """One round over segments [first segment, end of the mapped range). Use: build_map, then iterate clean_groups; close."""

    def __init__(
        self,
        partition: Partition,
        first_dirty_offset: int,
        upper_bound_offset: int,
        options: RoundOptions,
        kernel: Kernel,
    ) -> None:
        """`upper_bound_offset` is a segment's base offset: LogToClean.first_uncleanable_offset."""
        self.partition = partition
        self.first_dirty_offset = first_dirty_offset
        self.upper_bound_offset = upper_bound_offset
        self.options = options
        self._aborted = AbortedTransactions(partition.segments)
        self._kernel_round = kernel.begin_round(
            RoundSettings(
                first_dirty_offset=first_dirty_offset,
                high_watermark=partition.high_watermark,
                now_ms=options.now_ms,
                delete_retention_ms=partition.config.delete_retention_ms,
                index_interval_bytes=partition.config.index_interval_bytes,
                map_memory_bytes=options.map_memory_bytes,
                map_load_factor=options.map_load_factor,
                kafka_map=options.kafka_map,
                threads=options.threads,
            )
        )
        self.map_result: MapResult | None = None

    def __enter__(self) -> CleaningRound:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel_round.close()

    def build_map(self, progress: Progress | None = None) -> MapResult:
        """Pass one over [first dirty, upper bound). Raises CorruptBatchError before anything was changed."""
        dirty = segments_between(self.partition.segments, self.first_dirty_offset, self.upper_bound_offset)
        # Only those whose marker is still to come. Kafka takes all of the first segment's: one whose marker lies before the
        # batches that are read is then never over, and hides what its producer commits later. A delete that is hidden so
        # leaves the value below it, and goes alone when its time has come: the key is back.
        aborted = self._aborted.collect(self.first_dirty_offset, self.first_dirty_offset, self.upper_bound_offset)
        sources = []
        for segment, following in _with_next(dirty, self.upper_bound_offset):
            position = start_position(segment, self.first_dirty_offset)
            sources.append(self._source(segment, following, start_position=position))
        self.map_result = self._kernel_round.build_map(sources, aborted, progress)
        return self.map_result

    @property
    def next_dirty_offset(self) -> int:
        """The next checkpoint: end of the mapped range."""
        return -1 if self.map_result is None else self.map_result.latest_offset + 1

    def groups(self) -> list[list[LogSegment]]:
        """All segments with base below the end of the mapped range, grouped, from the log's very first on."""
        config = self.partition.config
        segments = [s for s in self.partition.segments if s.base_offset < self.next_dirty_offset]
        return group_segments(segments, config.segment_bytes, config.segment_index_bytes, self.upper_bound_offset)

    def verify_clean_section(self, progress: Progress | None = None) -> None:
        """Checks every batch that pass one did not read, so that damage there is found before the first group is swapped."""
        segments = [s for s in self.partition.segments if s.base_offset < self.next_dirty_offset]
        full = self.map_result is not None and self.map_result.full
        unread = [s for s in segments if s.base_offset < self.first_dirty_offset or (full and s is segments[-1])]
        self._kernel_round.verify(
            [self._source(s, f) for s, f in _with_next(unread, self.upper_bound_offset)], progress
        )

    def check_space(self) -> None:
        """Raises NoSpaceError where the largest group might not fit. Nothing was written yet."""
        needed = largest_group_bytes(self.groups()) + SPACE_MARGIN_BYTES
        free = files.free_bytes(self.partition.directory)
        if needed > free:
            raise NoSpaceError(
                path=self.partition.directory, needed=needed, free=free, what="the largest group of segments"
            )

    def clean_groups(self, progress: Progress | None = None) -> Iterator[CleanedGroup]:
        """Pass two, a group at a time. The caller swaps each group in before it asks for the next."""
        active = self.partition.active_producers(self.options.now_ms)
        for group in self.groups():
            yield self._clean_group(group, active, progress)

    def measure_groups(self, progress: Progress | None = None) -> Iterator[tuple[list[LogSegment], GroupResult]]:
        """Pass two without writing: what each group would become."""
        active = self.partition.active_producers(self.options.now_ms)
        for group in self.groups():
            yield group, self._kernel_round.clean_group(self._sources(group), active, None, progress)

    def _clean_group(
        self, group: Sequence[LogSegment], active: Mapping[int, ActiveProducer], progress: Progress | None
    ) -> CleanedGroup:
        directory, base = self.partition.directory, group[0].base_offset
        drop_cleaned(directory, [base])
        try:
            unchanged, result = self._write_cleaned(group, active, progress)
        except BaseException:
            # The sources were not touched; a half-written output must not be met by the next start.
            with contextlib.suppress(Exception):
                drop_cleaned(directory, [base])
            raise
        return CleanedGroup(directory, base, tuple(s.base_offset for s in group), result, unchanged)

    def _write_cleaned(
        self, group: Sequence[LogSegment], active: Mapping[int, ActiveProducer], progress: Progress | None
    ) -> tuple[bool, GroupResult]:
        directory, first, last = self.partition.directory, group[0], group[-1]
        log_name, offset_name, time_name, txn_name = (n + CLEANED for n in segment_file_names(first.base_offset))
        with files.create_output(directory / log_name, like=first.log_path) as output:
            result = self._kernel_round.clean_group(self._sources(group), active, output, progress)
            if result.unchanged:
                if _indexes_equal(first, result):
                    output.close()
                    files.remove(directory / log_name)
                    return True, result
                _copy(first, output)
            output.sync()
        contents = [(offset_name, result.offset_index), (time_name, result.time_index)]
        if result.transaction_index:
            contents.append((txn_name, result.transaction_index))
        for name, content in contents:
            files.write_file(directory / name, content, like=first.log_path)
        # The time of the last source: legacy delete horizons and retention of records without timestamps go by it.
        for name in (log_name, offset_name, time_name):
            files.set_mtime_ms(directory / name, last.last_modified_ms)
        return False, result

    def _sources(self, group: Sequence[LogSegment]) -> list[SourceSegment]:
        horizon = self._legacy_horizon_ms
        sources = []
        for segment, following in _with_next(group, None):
            upper = segment.next_offset() if following is None else following
            sources.append(
                SourceSegment(
                    path=str(segment.log_path),
                    base_offset=segment.base_offset,
                    size=segment.size,
                    next_offset=upper,
                    retain_legacy_tombstones=segment.last_modified_ms > horizon,
                    aborted=tuple(self._aborted.collect(segment.base_offset, self.partition.log_start_offset, upper)),
                )
            )
        return sources

    def _source(self, segment: LogSegment, following: int | None, start_position: int = 0) -> SourceSegment:
        return SourceSegment(
            path=str(segment.log_path),
            base_offset=segment.base_offset,
            size=segment.size,
            next_offset=self.upper_bound_offset if following is None else following,
            start_position=start_position,
        )

    @cached_property
    def _legacy_horizon_ms(self) -> int:
        """V0/V1 tombstones of sources not modified since then go; 0 where nothing was cleaned yet (facts 5.1)."""
        clean = [s for s in self.partition.segments if s.base_offset < self.first_dirty_offset]
        return clean[-1].last_modified_ms - self.partition.config.delete_retention_ms if clean else 0


def _with_next(segments: Sequence[LogSegment], end: int | None) -> Iterator[tuple[LogSegment, int | None]]:
    """Each segment with the base offset of the one after it in the sequence; `end` after the last."""
    for position, segment in enumerate(segments):
        yield segment, segments[position + 1].base_offset if position + 1 < len(segments) else end


def _indexes_equal(segment: LogSegment, result: GroupResult) -> bool:
    pairs = (
        (segment.offset_index_path, result.offset_index),
        (segment.time_index_path, result.time_index),
        (segment.transaction_index_path, result.transaction_index or None),
    )
    for path, content in pairs:
        if content is None:
            if path.exists():
                return False
        elif not path.exists() or path.stat().st_size != len(content) or path.read_bytes() != content:
            return False
    return True


def _copy(segment: LogSegment, output: OutputFile) -> None:
    """The .log stays byte for byte, only its indexes change: copy it."""
    with segment.log_path.open("rb") as source:
        left = segment.size
        while left and (chunk := source.read(min(left, _COPY_CHUNK_BYTES))):
            output.write(chunk)
            left -= len(chunk)


def add_stats(first: CopyStats, second: CopyStats) -> CopyStats:
    """Field by field."""
    return CopyStats(*(getattr(first, n) + getattr(second, n) for n in CopyStats.__dataclass_fields__))
