"""Log dirs for the command-line tests, and looks at what a command did to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compactd.scripts import demo_logs
from compactd.storage import files
from compactd.storage.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.names import TopicPartition
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record

#: The tests' clock: 2023-11-14T22:13:20Z.
NOW = 1_700_000_000_000


def batch(base: int, *pairs: tuple[str | None, str | None], **options: Any) -> bytes:
    """A batch of (key, value) from offset `base` on, timestamps 1000 ms apart, an hour before NOW."""
    records = [
        Record(
            base + index,
            NOW - 3_600_000 + 1000 * (base + index),
            None if key is None else key.encode(),
            None if value is None else value.encode(),
        )
        for index, (key, value) in enumerate(pairs)
    ]
    return build_batch(records, base_offset=base, leader_epoch=0, **options)


class Broker:
    """A stopped broker's log dir, made partition by partition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends: dict[TopicPartition, int] = {}
        files.make_dir(path)

    def partition(self, name: str, segments: Iterable[Iterable[bytes]], active: Sequence[bytes] = ()) -> Path:
        """Writes NAME = topic-partition: closed segments, then the active one (empty, or with batches)."""
        topic, _, number = name.rpartition("-")
        directory = self.path / name
        end = demo_logs.write_partition(directory, segments)
        if active:
            end = demo_logs.write_segment(directory, end, active)
        self.ends[TopicPartition(topic, int(number))] = end
        return directory

    def stop(self) -> Path:
        """Writes the log dir's own files, as an orderly stop leaves them; nothing was cleaned yet."""
        found = LogDir(self.path)
        found.write_meta(MetaProperties(1, "test-cluster-00000000a", 1, None), NOW)
        found.recovery_points.write(self.ends)
        found.high_watermarks.write(self.ends)
        for name in (CLEANER_OFFSETS, LOG_START_OFFSETS):
            files.write_file(self.path / name, b"")
        found.write_clean_shutdown()
        return self.path


def picture(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every path below `root`: mode, mtime in ns, content. Two equal pictures mean that nothing was changed."""
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.stat()
        found[str(path.relative_to(root))] = (
            stat.st_mode,
            stat.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return found


def json_lines(text: str) -> list[dict[str, Any]]:
    """Every line must be a JSON object."""
    objects = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(item, dict) for item in objects)
    return objects
