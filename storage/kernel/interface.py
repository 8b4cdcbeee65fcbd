"""What a cleaning kernel does, for the native (Rust) and the reference (Python) kernel alike.

A kernel holds one *round* over one partition: pass one reads the dirty segments and fills the offset map, pass two reads
every segment of the round, group by group, and writes what is retained. The kernel reads `.log` files and writes one
output `.log` per group; it never opens an index, renames, deletes or fsyncs: `storage.cleaning.round` does.

Rules: Kafka 4.4.0's Cleaner, MemoryRecords.filterTo, CleanedTransactionMetadata, LogSegment.append.
Deliberately stricter than Kafka: the CRC and every length of every batch are checked in both passes, before a key enters
the map or a record is rewritten; a damaged batch raises CorruptBatchError and the group's output is worthless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Called about every 4 MiB read with (bytes read, bytes written) since the last call. May sleep (throttle) or raise (abort).
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index (34 bytes on disk, version 0)."""

    producer_id: int
    first_offset: int
    #: Offset of the ABORT marker.
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What the log knows about a producer that has not expired (Kafka's LastRecord)."""

    #: Offset of its last data record; None when only a marker is known.
    last_data_offset: int | None
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A closed segment as the kernel reads it: bytes 0..size of `path` are whole batches."""

    path: str
    base_offset: int
    #: Bytes of the .log file.
    size: int
    #: Base offset of the next segment of the round, or the round's upper bound for the last.
    next_offset: int
    #: Pass one starts here: position from the offset index lookup of the first dirty offset.
    start_position: int = 0
    #: Pass two, V0/V1 only: last modified of the .log is later than the legacy delete horizon.
    retain_legacy_tombstones: bool = True
    #: Pass two: aborted transactions to add before this segment is copied.
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Everything both passes need beside the segments. Offsets are absolute, times are ms since the epoch."""

    first_dirty_offset: int
    high_watermark: int
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    #: Bytes for the offset map; address space is reserved, memory is touched as it fills.
    map_memory_bytes: int = 128 << 20
    map_load_factor: float = 0.9
    #: True: floor(bytes / 24) slots as Kafka's SkimpyOffsetMap, so that rounds end where Kafka's end. False: 16-byte slots.
    kafka_map: bool = False
    #: Threads that work on the round, the calling one included. Results and bytes are the same for any number; progress is
    #: told by the calling thread only. The reference kernel works alone whatever this says.
    threads: int = 1


@dataclass(frozen=True, slots=True)
class MapResult:
    """Outcome of pass one."""

    #: Next dirty offset is this + 1. -1 when nothing was read.
    latest_offset: int
    messages_read: int
    bytes_read: int
    entries: int
    #: Keys the map may hold: floor(slots * load factor).
    capacity: int
    slots: int
    full: bool


@dataclass(frozen=True, slots=True)
class CopyStats:
    """Counts of pass two over one group. The first five are Kafka's CleanerStats, exactly."""

    messages_read: int = 0
    bytes_read: int = 0
    messages_written: int = 0
    bytes_written: int = 0
    #: Keyless records that were dropped.
    invalid_messages_read: int = 0
    #: Records dropped because a later record has their key.
    superseded: int = 0
    #: Records dropped because their transaction was aborted.
    aborted: int = 0
    #: Records with a null value that were seen, and those of them that were dropped because their horizon passed.
    tombstones_read: int = 0
    tombstones_expired: int = 0
    #: Control records that were dropped.
    markers_removed: int = 0
    batches_read: int = 0
    batches_copied: int = 0
    batches_rewritten: int = 0
    batches_emptied: int = 0


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Outcome of pass two over one group."""

    #: Bytes of the cleaned .log.
    log_size: int
    #: Whole contents of the cleaned .index, .timeindex and .txnindex ("" = write no .txnindex).
    offset_index: bytes
    time_index: bytes
    transaction_index: bytes
    #: True: the group has one source, every batch of it was kept verbatim, and nothing was written to `output`.
    unchanged: bool
    stats: CopyStats = field(default_factory=CopyStats)


class OutputFile(Protocol):
    """Where a group's .log goes. The native kernel writes to fileno(), the reference kernel calls write()."""

    def fileno(self) -> int: ...

    def write(self, data: bytes) -> None: ...


class KernelRound(Protocol):
    """One round. Call build_map once, then clean_group for each group in order, then close."""

    def build_map(
        self, sources: Sequence[SourceSegment], aborted: Sequence[AbortedTransaction], progress: Progress | None = None
    ) -> MapResult:
        """Pass one over the dirty segments (facts 5.2). `aborted`: aborted transactions of the whole dirty range."""
        ...

    def clean_group(
        self,
        group: Sequence[SourceSegment],
        active_producers: Mapping[int, ActiveProducer],
        output: OutputFile | None,
        progress: Progress | None = None,
    ) -> GroupResult:
        """Pass two over one group (facts 5.4, 5.6, 5.7, 5.8). `output` None: counts and sizes only, nothing written.

        The cleaned segment's base offset is that of the group's first source.
        Raises CorruptBatchError, OffsetOverflowError (field source: index in the group), StorageIOError.
        """
        ...

    def verify(self, sources: Sequence[SourceSegment], progress: Progress | None = None) -> None:
        """Checks CRC and lengths of every batch header of the sources, from start_position on; changes nothing.

        Records of compressed batches are not decompressed. Raises CorruptBatchError for the first damaged batch.
        """
        ...

    def contains(self, key: bytes) -> bool:
        """Whether pass one put this key into the map (for tests)."""
        ...

    def close(self) -> None:
        """Gives the map's memory back."""
        ...


class Kernel(Protocol):
    """A kernel is a module or object with these names."""

    #: "native" or "reference".
    name: str

    def begin_round(self, settings: RoundSettings) -> KernelRound: ...
