from collections.abc import Callable
from typing import TypeAlias

# (producer id, first offset, last offset, last stable offset)
AbortedFields: TypeAlias = tuple[int, int, int, int]
# (path, base offset, size, next offset, start position, retain legacy tombstones, aborted)
SourceFields: TypeAlias = tuple[str, int, int, int, int, bool, list[AbortedFields]]
# (first dirty offset, high watermark, now, delete retention, index interval, map bytes, load factor, Kafka's map size)
SettingsFields: TypeAlias = tuple[int, int, int, int, int, int, float, bool]

class Round:
    def __new__(cls, fields: SettingsFields, threads: int = 1, chunk_bytes: int = ...) -> Round: ...
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

# (valid bytes, next offset, max timestamp, its offset, batches, offset after the last batch of magic 2)
ScannedCounts: TypeAlias = tuple[int, int, int, int, int, int]
# (position, base offset, last offset, words, (stored CRC, computed CRC))
ScannedFault: TypeAlias = tuple[int, int, int, str, tuple[int, int] | None]

def scan_segment(
    path: str,
    base_offset: int,
    interval_bytes: int,
    limit: int | None = None,
    check_crc: bool = True,
    produced_from: int = 0,
    start_position: int = 0,
) -> tuple[ScannedCounts, bytes, bytes, list[tuple[int, int]], bytes, ScannedFault | None, bool]: ...
def find_timestamp(
    batch: bytes | bytearray | memoryview,
    codec: int,
    count: int,
    base_timestamp: int,
    append_time: int | None,
    timestamp: int,
    first_delta: int,
    /,
) -> tuple[int, int] | None: ...
def lz4_frame(data: bytes, level: int) -> bytes: ...
def plain_area(batch: bytes | bytearray | memoryview, codec: int, count: int) -> bytes | None: ...
def compress_area(codec: int, area: bytes) -> bytes: ...
def floor_entry(data: bytes | bytearray, width: int, at: int, size: int, target: int, /) -> int: ...
def locate_batch(
    entries: bytes | bytearray, base: int, offset: int, fd: int, end: int, look: int, /
) -> tuple[int, int, int, int] | None: ...
def append_batch(
    admission: Admission,
    batch: bytearray | memoryview,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    fd: int,
    room: int,
    last_fitting: int,
    fresh_until: int,
    known: tuple[int, int, int] | None,
    in_transaction: bool = False,
    /,
) -> tuple[int, int, int, int, int, bool, bool] | None: ...
def find_batch(data: bytes, left: int, offset: int, expected: int | None, /) -> tuple[int, int, int, int, int]: ...

class Admission:
    def __new__(
        cls,
        keys_required: bool,
        append_time: bool,
        before_ms: int,
        after_ms: int,
        largest_body: int,
        largest_batch: int,
        codec: int | None,
    ) -> Admission: ...
    # (last offset, largest timestamp, producer id, producer epoch, base sequence, transactional)
    def admit(
        self, batch: bytearray | memoryview, next_offset: int, leader_epoch: int, now_ms: int
    ) -> tuple[int, int, int, int, int, bool] | None: ...
