"""Small live logs for tests: made in a temporary directory, with settings as a topic has them, at a clock of the test's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compactd.config.settings import TopicConfig
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog
from compactd.storage.records.batch import Batch, iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record

#: Every log made here; the fixture of this folder closes them.
MADE: list[PartitionLog] = []

NOW = 1_700_000_000_000
DAY = 86_400_000


def config(**settings: object) -> TopicConfig:
    """Topic settings by name with underscores for dots; small segments through internal_segment_bytes."""
    return TopicConfig.from_strings({name.replace("_", "."): value for name, value in settings.items()}, "test")


def new_log(
    directory: Path, *, now_ms: int = NOW, options: dict[str, Any] | None = None, **settings: object
) -> PartitionLog:
    """A new partition t-0 below `directory`."""
    log = PartitionLog.create(directory / "t-0", config(**settings), now_ms=now_ms, **(options or {}))
    MADE.append(log)
    return log


def reopened(
    log: PartitionLog,
    *,
    clean: bool = True,
    recovery_point: int | None = None,
    log_start_offset: int | None = None,
    now_ms: int = NOW,
) -> PartitionLog:
    """The log closed, orderly or not, and loaded again; its checkpoints are as of now unless said otherwise."""
    log.close(orderly=clean)
    loaded = load_log(
        log.directory,
        log.config,
        clean_shutdown=clean,
        recovery_point=log.recovery_point if recovery_point is None else recovery_point,
        log_start_offset=log.log_start_offset if log_start_offset is None else log_start_offset,
        now_ms=now_ms,
    )
    again = PartitionLog(loaded, now_ms=now_ms)
    MADE.append(again)
    again.update_high_watermark(again.log_end_offset)
    return again


def records(count: int, *, ts: int = NOW, key: bytes | None = b"key", value: bytes | None = b"value") -> list[Record]:
    return [Record(at, ts, key, value) for at in range(count)]


def batch(
    count: int = 1, *, ts: int = NOW, key: bytes | None = b"key", value: bytes | None = b"value", **fields: Any
) -> bytes:
    """A producer's batch."""
    return build_batch(records(count, ts=ts, key=key, value=value), base_offset=0, **fields)


def at(offset: int, count: int = 1, *, ts: int = NOW, gap: int = 0, **fields: Any) -> bytes:
    """A batch of a leader's log: offsets from `offset` on, `gap` more at its end that compaction emptied."""
    made = [Record(offset + n, ts, b"key", b"value") for n in range(count)]
    fields.setdefault("leader_epoch", 0)
    return build_batch(made, base_offset=offset, last_offset=offset + count - 1 + gap, **fields)


def lead(log: PartitionLog, data: bytes, *, now_ms: int = NOW, leader_epoch: int = 0, follow: bool = True) -> Any:
    """Appends; with `follow` the high watermark goes along, as on a single broker."""
    done = log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=now_ms)
    if follow:
        log.update_high_watermark(log.log_end_offset)
    return done


def fill(log: PartitionLog, batches: int, *, ts: Iterator[int] | int = NOW, now_ms: int = NOW, **fields: Any) -> None:
    """One-record batches."""
    times = itertools.repeat(ts) if isinstance(ts, int) else ts
    for _, time in zip(range(batches), times, strict=False):
        lead(log, batch(ts=time, **fields), now_ms=now_ms)


def contents(log: PartitionLog, offset: int | None = None, isolation: Any = "log_end") -> list[Batch]:
    """Every batch that a consumer reads from `offset` on, fetch by fetch."""
    found: list[Batch] = []
    position = log.log_start_offset if offset is None else offset
    while True:
        with log.read(position, 1 << 20, isolation) as fetched:
            data = fetched.read()
        if not data:
            return found
        for each in iter_batches(data):
            found.append(each)
            position = each.header.next_offset


def offsets_of(batches: Sequence[Batch]) -> list[int]:
    return [record.offset for each in batches for record in each.records()]


def files_of(log: PartitionLog, suffix: str) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir() if path.name.endswith(suffix))


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]
