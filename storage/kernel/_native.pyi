from collections.abc import Callable
from typing import TypeAlias

# (producer id, first offset, last offset, last stable offset)
AbortedFields: TypeAlias = tuple[int, int, int, int]
# (path, base offset, size, next offset, start position, retain legacy tombstones, aborted)
SourceFields: TypeAlias = tuple[str, int, int, int, int, bool, list[AbortedFields]]
# (first dirty offset, high watermark, now, delete retention, index interval, map bytes, load factor, Kafka's map size)
SettingsFields: TypeAlias = tuple[int, int, int, int, int, int, float, bool]

class Round:
    def __new__(cls, fields: SettingsFields) -> Round: ...
    def build_map(
        self,
        segments: list[SourceFields],
        transactions: list[AbortedFields],
        progress: Callable[[int, int], None] | None,
    ) -> tuple[int, int, int, int, int, int, bool]: ...
    def clean_group(
        self,
        group: list[SourceFields],
        active: dict[int, tuple[int | None, int]],
        output: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> tuple[int, bytes, bytes, bytes, bool, list[int]]: ...
    def verify(self, segments: list[SourceFields], progress: Callable[[int, int], None] | None) -> None: ...
    def contains(self, key: bytes) -> bool: ...
    def close(self) -> None: ...

def validate_batch(
    batch: bytes | bytearray | memoryview,
    crc: int,
    codec: int,
    count: int,
    base_timestamp: int,
    append_time: int | None,
    keys_required: bool,
    earliest: int,
    latest: int,
    largest_body: int,
    /,
) -> tuple[bool, int, bool, list[tuple[int, int, int]]]: ...
