"""Writes the demo's log dir: a stopped broker's files in Kafka's format, from our own builders.

Two topics: the six-record experiment with log compaction that tutorials show, and a topic of a million records over few
keys. Each has closed segments with indexes and an empty active segment, as after an orderly stop.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from compactd.storage import files, names
from compactd.storage.checkpoints import CLEANER_OFFSETS, LOG_START_OFFSETS
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.names import TopicPartition
from compactd.storage.offset_index import OffsetIndexBuilder
from compactd.storage.partition_metadata import write_partition_metadata
from compactd.storage.producers import encode_snapshot
from compactd.storage.records.batch import read_header
from compactd.storage.records.builder import build_batch
from compactd.storage.records.crc import crc32c
from compactd.storage.records.record import Record
from compactd.storage.records.varint import write_varint

#: Marks a directory as the demo's own, so that it may be written over. Kafka and compactd pass plain files by.
MARKER = ".compactd-demo"

SIX_RECORDS = TopicPartition("compact-test", 0)
MILLION = TopicPartition("million", 0)
MILLION_RECORDS = 1_000_000
MILLION_KEYS = 50_000
SEGMENT_BYTES = 16 << 20

#: The experiment: user1 is written three times, user2 twice, user3 once.
EXPERIMENT = (
    ("user1", '{"name":"Alice","age":25}'),
    ("user2", '{"name":"Bob","age":30}'),
    ("user1", '{"name":"Alice","age":26}'),
    ("user3", '{"name":"Charlie","age":35}'),
    ("user2", '{"name":"Bob","age":31}'),
    ("user1", '{"name":"Alice","age":27}'),
)

_INDEX_INTERVAL_BYTES = 4096
_RECORDS_A_BATCH = 1000
_HEADER = struct.Struct(">qiiBI")
_CHECKED = struct.Struct(">hiqqqhii")


def write_demo(log_dir: Path, now_ms: int) -> None:
    """Writes the whole log dir; `log_dir` is empty or new. Timestamps run up to an hour before `now_ms`."""
    files.make_dir(log_dir)
    files.write_file(log_dir / MARKER, b"Written by `compactd demo`, which may remove this directory.\n")
    start = now_ms - 3_600_000
    ends = {
        SIX_RECORDS: write_partition(log_dir / str(SIX_RECORDS), [_experiment_batches(start)]),
        MILLION: write_partition(log_dir / str(MILLION), _segments(_million_batches(start), SEGMENT_BYTES)),
    }
    found = LogDir(log_dir)
    found.write_meta(MetaProperties(1, "compactd-demo-cluster0", 1, uuid.uuid4()), now_ms)
    found.recovery_points.write(ends)
    found.high_watermarks.write(ends)
    for name in (CLEANER_OFFSETS, LOG_START_OFFSETS):
        files.write_file(log_dir / name, b"")
    found.write_clean_shutdown()


def write_partition(directory: Path, segments: Iterable[Iterable[bytes]]) -> int:
    """Writes a topic-partition directory: a closed segment for each of `segments` (batches in order), and an empty active
    one. Returns the log end offset."""
    files.make_dir(directory)
    end = 0
    for batches in segments:
        end = write_segment(directory, end, batches)
    write_segment(directory, end, ())
    files.write_file(directory / names.snapshot_name(end), encode_snapshot([]))
    epochs = LeaderEpochs()
    epochs.assign(0, 0)
    epochs.write(directory / names.LEADER_EPOCH_CHECKPOINT)
    write_partition_metadata(directory / names.PARTITION_METADATA, uuid.uuid4())
    return end


def write_segment(directory: Path, base_offset: int, batches: Iterable[bytes]) -> int:
    """Writes one closed segment with its indexes; returns the offset after its last batch."""
    index = OffsetIndexBuilder(base_offset, _INDEX_INTERVAL_BYTES)
    position, end, newest = 0, base_offset, -1
    with files.create_output(directory / names.log_name(base_offset)) as output:
        for batch in batches:
            output.write(batch)
            header = read_header(batch, 0)
            index.append(header.last_offset, header.max_timestamp, position, header.size)
            position, end, newest = position + header.size, header.next_offset, max(newest, header.max_timestamp)
    index.close()
    files.write_file(directory / names.offset_index_name(base_offset), index.offset_index_bytes(), sync=False)
    files.write_file(directory / names.time_index_name(base_offset), index.time_index_bytes(), sync=False)
    if newest >= 0:
        for name in (names.log_name, names.offset_index_name, names.time_index_name):
            files.set_mtime_ms(directory / name(base_offset), newest)
    return end


def _experiment_batches(start_ms: int) -> list[bytes]:
    return [
        build_batch(
            [Record(offset, start_ms + 10_000 * offset, key.encode(), value.encode())],
            base_offset=offset,
            leader_epoch=0,
        )
        for offset, (key, value) in enumerate(EXPERIMENT)
    ]


def _segments(batches: Iterable[bytes], most_bytes: int) -> Iterator[Iterator[bytes]]:
    """Cuts a stream of batches into segments of at most `most_bytes`. Use each before asking for the next."""
    stream = iter(batches)
    following = next(stream, None)

    def segment() -> Iterator[bytes]:
        nonlocal following
        size = 0
        while following is not None and size + len(following) <= most_bytes:
            size += len(following)
            yield following
            following = next(stream, None)

    while following is not None:
        yield segment()


def _million_batches(start_ms: int) -> Iterator[bytes]:
    """A million records of fixed length in batches of a thousand, 80-byte values, keys at random (always the same).

    One record at a time takes Python seconds; here the record area of a batch is one bytes template, made once, and each
    batch fills in its thousand keys and values with a single `%`.
    """
    template = _batch_template()
    choose = random.Random(20).choices
    keys = range(MILLION_KEYS)
    for base in range(0, MILLION_RECORDS, _RECORDS_A_BATCH):
        chosen = choose(keys, k=_RECORDS_A_BATCH)
        numbers: list[int] = [0] * (3 * _RECORDS_A_BATCH)
        numbers[0::3] = numbers[1::3] = chosen
        numbers[2::3] = range(base, base + _RECORDS_A_BATCH)
        yield _batch(base, start_ms + base // 1000, template % tuple(numbers))


def _batch_template() -> bytes:
    key, value = b"user-%07d", b'{"user":"user-%07d","visit":%07d,"page":"/orders/open","agent":"compactd/demo"}'
    key_size, value_size = len(key % 0), len(value % (0, 0))
    records = []
    for delta in range(_RECORDS_A_BATCH):
        body = b"\x00" + write_varint(0) + write_varint(delta) + write_varint(key_size)
        after = write_varint(0)
        size = len(body) + key_size + len(write_varint(value_size)) + value_size + len(after)
        plain = (write_varint(size) + body, write_varint(value_size), after)
        before, between, after = (part.replace(b"%", b"%%") for part in plain)
        records.append(before + key + between + value + after)
    return b"".join(records)


def _batch(base_offset: int, timestamp: int, records: bytes) -> bytes:
    """A batch around a record area that is ready: what `build_batch` makes of the same records."""
    last = _RECORDS_A_BATCH - 1
    checked = _CHECKED.pack(0, last, timestamp, timestamp, -1, -1, -1, _RECORDS_A_BATCH) + records
    return _HEADER.pack(base_offset, len(checked) + 9, 0, 2, crc32c(checked)) + checked
