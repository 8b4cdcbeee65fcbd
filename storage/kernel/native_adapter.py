"""The native kernel behind interface.Kernel: dataclasses in, dataclasses out, and nothing else.

Importing this module fails with ImportError where the extension was not built; `compactd.storage.kernel` decides then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compactd.config.errors import SettingError
from compactd.storage.kernel import _native
from compactd.storage.kernel.interface import (
    AbortedTransaction,
    ActiveProducer,
    CopyStats,
    GroupResult,
    MapResult,
    OutputFile,
    Progress,
    RoundSettings,
    SourceSegment,
)

#: What a thread of a round is given at once. A round holds about four times this for each of its threads, and what comes
#: of it, beside the batch that each thread decompresses.
CHUNK_BYTES = 512 << 10


class NativeRound:
    """interface.KernelRound. Use a round from one thread at a time; other Python threads run while a pass works."""

    def __init__(self, settings: RoundSettings) -> None:
        slots = settings.map_memory_bytes // (24 if settings.kafka_map else 16)
        if int(slots * settings.map_load_factor) < 1:
            raise SettingError(
                source="offset map",
                name="log.cleaner.dedupe.buffer.size",
                value=settings.map_memory_bytes,
                reason=f"{slots} slots at a load factor of {settings.map_load_factor} hold no key",
            )
        self._round = _native.Round(
            (
                settings.first_dirty_offset,
                settings.high_watermark,
                settings.now_ms,
                settings.delete_retention_ms,
                settings.index_interval_bytes,
                settings.map_memory_bytes,
                settings.map_load_factor,
                settings.kafka_map,
            ),
            settings.threads,
            CHUNK_BYTES,
        )

    def build_map(
        self, sources: Sequence[SourceSegment], aborted: Sequence[AbortedTransaction], progress: Progress | None = None
    ) -> MapResult:
        return MapResult(*self._round.build_map(_segments(sources), _transactions(aborted), progress))

    def clean_group(
        self,
        group: Sequence[SourceSegment],
        active_producers: Mapping[int, ActiveProducer],
        output: OutputFile | None,
        progress: Progress | None = None,
    ) -> GroupResult:
        active = {
            id_: (producer.last_data_offset, producer.producer_epoch) for id_, producer in active_producers.items()
        }
        descriptor = None if output is None else output.fileno()
        size, offsets, times, transactions, unchanged, stats = self._round.clean_group(
            _segments(group), active, descriptor, progress
        )
        return GroupResult(size, offsets, times, transactions, unchanged, CopyStats(*stats))

    def verify(self, sources: Sequence[SourceSegment], progress: Progress | None = None) -> None:
        self._round.verify(_segments(sources), progress)

    def contains(self, key: bytes) -> bool:
        return self._round.contains(key)

    def close(self) -> None:
        self._round.close()


class NativeKernel:
    """interface.Kernel."""

    name = "native"

    def begin_round(self, settings: RoundSettings) -> NativeRound:
        """A new round with an empty map. Raises SettingError if the map cannot hold a single key."""
        return NativeRound(settings)


KERNEL = NativeKernel()


def _transactions(aborted: Sequence[AbortedTransaction]) -> list[tuple[int, int, int, int]]:
    return [(t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset) for t in aborted]


def _segments(sources: Sequence[SourceSegment]) -> list[_native.SourceFields]:
    return [
        (
            source.path,
            source.base_offset,
            source.size,
            source.next_offset,
            source.start_position,
            source.retain_legacy_tombstones,
            _transactions(source.aborted),
        )
        for source in sources
    ]
