"""Writes small metadata logs for tests: records by hand, batches and files as Kafka lays them out."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record

NOW = 1_800_000_000_000


def topic_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=(number << 64) | 0x1234)


def text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    raw = value.encode()
    assert len(raw) < 127
    return bytes((len(raw) + 1,)) + raw


def frame(api_key: int, body: bytes, version: int = 0) -> bytes:
    return bytes((1, api_key, version)) + body


def topic(name: str, number: int) -> bytes:
    return frame(2, text(name) + topic_id(number).bytes + b"\0")


def remove_topic(number: int) -> bytes:
    return frame(9, topic_id(number).bytes + b"\0")


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    return frame(4, bytes((kind,)) + text(resource) + text(name) + text(value) + b"\0")


def topic_config(resource: str, name: str, value: str | None) -> bytes:
    return config(2, resource, name, value)


def broker_config(resource: str, name: str, value: str | None) -> bytes:
    return config(4, resource, name, value)


def feature(name: str, level: int) -> bytes:
    return frame(12, text(name) + struct.pack(">h", level) + b"\0")


def partition(number: int, topic_number: int, leader: int = 1) -> bytes:
    one = b"\2" + struct.pack(">i", 1)
    fixed = struct.pack(">iii", leader, 0, 0)
    directories = b"\2" + bytes(15) + b"\7"
    body = struct.pack(">i", number) + topic_id(topic_number).bytes + one + one + b"\1\1" + fixed + directories + b"\0"
    return frame(3, body, 2)


def partition_change(number: int, topic_number: int, tags: bytes) -> bytes:
    return frame(5, struct.pack(">i", number) + topic_id(topic_number).bytes + tags, 2)


NO_OP = frame(20, b"\0")
BEGIN = frame(23, b"\0")
END = frame(24, b"\0")
ABORT = frame(25, b"\0")
METADATA_VERSION = feature("metadata.version", 30)


def batch(offset: int, *values: bytes, epoch: int = 1, codec: int = 0) -> bytes:
    """One data batch of metadata records."""
    records = [Record(offset + index, NOW, None, value) for index, value in enumerate(values)]
    return build_batch(records, base_offset=offset, leader_epoch=epoch, codec=codec)


def control(offset: int, kind: int, value: bytes, epoch: int = 1) -> bytes:
    record = Record(offset, NOW, struct.pack(">hh", 0, kind), value)
    return build_batch([record], base_offset=offset, leader_epoch=epoch, control=True)


def snapshot(*values: bytes, epoch: int = 1, footer: bool = True) -> bytes:
    data = control(0, 3, b"\0\0" + struct.pack(">q", NOW) + b"\0", epoch)
    data += batch(1, *values, epoch=epoch)
    return data + (control(1 + len(values), 4, b"\0\0\0", epoch) if footer else b"")


def write_log(log_dir: Path, *batches: bytes, base_offset: int = 0) -> Path:
    """Writes one segment of the log below `log_dir` and gives its path."""
    directory = log_dir / "__cluster_metadata-0"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def write_snapshot(log_dir: Path, offset: int, epoch: int, data: bytes) -> Path:
    directory = log_dir / "__cluster_metadata-0"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{offset:020d}-{epoch:010d}.checkpoint"
    path.write_bytes(data)
    return path
