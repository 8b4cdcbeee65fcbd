"""A log of few short records, written in the words of Kafka's tests: keys are numbers, offsets come as told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactd.config.settings import TopicConfig
from tests.logs import Entry, LogBuilder
from tests.storage.cleaning.contents import segment_bases

#: (key, value) or (key, value, timestamp in ms); numbers stand for their digits, a None value is a tombstone.
Item = tuple[Any, Any] | tuple[Any, Any, int]
#: Longer than any test's clock goes.
NEVER_MS = 2**63


class ShortLog:
    """One partition. After `close` its directory is what an orderly stop leaves, and it may go on, cleaned or not."""

    def __init__(self, directory: Path, config: TopicConfig) -> None:
        self.directory = directory
        self.config = config
        self.builder = LogBuilder(directory, config)

    @property
    def now_ms(self) -> int:
        """Timestamp of records that bring none, and of markers."""
        return self.builder.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.builder.now_ms = now_ms

    @property
    def end_offset(self) -> int:
        return self.builder.log_end_offset

    @property
    def active_base(self) -> int:
        return self.builder.active_base

    @property
    def segment_count(self) -> int:
        """The active segment included."""
        return len(segment_bases(self.directory))

    def append(
        self, *items: Item, offset: int | None = None, pid: int = -1, codec: str = "none", **options: Any
    ) -> int:
        """One batch; its first offset. `offset`: past the log's end, as a follower may. Options as LogBuilder.append's."""
        gap = 0 if offset is None else offset - self.end_offset
        return self.builder.append(self._entries(items), pid=pid, codec=codec, gap=gap, **options).first_offset

    def append_empty(self, count: int, **options: Any) -> int:
        """A batch without records over `count` offsets; its first offset."""
        return self.builder.empty_batch(count, **options).first_offset

    def append_raw(self, data: bytes) -> int:
        """Batches as they are, offsets included; the first offset."""
        return self.builder.append_raw(data).first_offset

    def commit(self, pid: int, **options: Any) -> int:
        """A COMMIT marker; its offset."""
        return self.builder.control("commit", pid, **options)

    def abort(self, pid: int, **options: Any) -> int:
        """An ABORT marker; its offset."""
        return self.builder.control("abort", pid, **options)

    def roll(self, base_offset: int | None = None) -> int:
        """Closes the active segment; the base offset of the next, at the log end or further on."""
        base = self.builder.roll(base_offset)
        # What is appended next comes into the new segment.
        self.builder.log_end_offset = max(self.end_offset, base)
        return base

    def close(self) -> None:
        self.builder.close()

    @staticmethod
    def _entries(items: tuple[Item, ...]) -> list[Entry]:
        return [Entry(_text(item[0]), _text(item[1]), item[2] if len(item) > 2 else None) for item in items]


def _text(value: object) -> str | bytes | None:
    return value if value is None or isinstance(value, (str, bytes)) else str(value)
