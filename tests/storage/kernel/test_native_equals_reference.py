"""The native kernel does what the reference kernel does: same results, same bytes, and the same kind of error on damage."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.errors import CompactdError, CorruptBatchError, FaultError
from compactd.storage.kernel import reference_kernel
from compactd.storage.kernel.interface import (
    AbortedTransaction,
    ActiveProducer,
    GroupResult,
    Kernel,
    MapResult,
    RoundSettings,
    SourceSegment,
)
from compactd.storage.records.batch import Record, read_header
from compactd.storage.records.builder import build_batch, control_batch, empty_batch
from compactd.storage.records.crc import crc32, crc32c
from compactd.storage.records.legacy import build_message_set
from tests.strategies import examples

native_adapter = pytest.importorskip("compactd.storage.kernel.native_adapter", reason="the native kernel was not built")
KERNELS: tuple[Kernel, ...] = (native_adapter.KERNEL, reference_kernel())

NOW = 1_000_000
RETENTION = 1000


@dataclass(frozen=True)
class Log:
    """Segments as bytes, with what pass one and pass two need to know of them."""

    segments: tuple[tuple[int, bytes], ...]
    end: int
    aborted: tuple[AbortedTransaction, ...]
    #: Offsets where rounds may begin: ends of batches.
    boundaries: tuple[int, ...]
    producers: dict[int, ActiveProducer]


class Writer:
    """Appends batches of every kind at increasing offsets."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.offset = random.choice([0, 0, 7, 2**33])
        self.segments: list[tuple[int, bytearray]] = [(self.offset, bytearray())]
        self.open: dict[int, int] = {}
        self.aborted: list[AbortedTransaction] = []
        self.boundaries = [self.offset]
        self.last_data: dict[int, ActiveProducer] = {}

    def roll(self) -> None:
        if self.segments[-1][1]:
            self.segments.append((self.offset, bytearray()))

    def add(self, data: bytes, next_offset: int) -> None:
        self.segments[-1][1].extend(data)
        self.offset = next_offset + self.random.choice([0, 0, 0, 1, 5])
        self.boundaries.append(next_offset)

    def records(self, count: int, *, legacy: bool = False, contiguous: bool = False) -> list[Record]:
        random, offset, found = self.random, self.offset, []
        for _ in range(count):
            key = random.choice([b"a", b"b", b"c", b"d", b"", b"k" * 200, None])
            value = random.choice([b"v", b"", None, random.randbytes(random.choice([3, 70, 3000])), b"x" * 100])
            timestamp = random.choice([NOW, NOW - 5000, NOW + random.randrange(100_000), -1, 0])
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if not legacy and random.random() < 0.2:
                headers = (("h", b"1"), ("é", None))[: random.randrange(3)]
            found.append(Record(offset, timestamp, key, value, headers))
            offset += 1 if contiguous else random.choice([1, 1, 1, 2, 9])
        return found

    def v2(self) -> None:
        random = self.random
        records = self.records(random.choice([1, 1, 2, 3, 40, 100]))
        producer = random.choice([-1, -1, 1, 2, 3])
        transactional = producer in (1, 2)
        if transactional:
            self.open.setdefault(producer, self.offset)
        last = records[-1].offset + random.choice([0, 0, 3])
        if producer >= 0:
            self.last_data[producer] = ActiveProducer(last, 0)
        horizon = random.choice([None, None, NOW - 1, NOW, NOW + 1])
        data = build_batch(
            records,
            base_offset=self.offset,
            last_offset=last,
            codec=random.choice([0, 0, 1, 2, 3, 4]),
            leader_epoch=random.choice([-1, 3]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            transactional=transactional,
            log_append_time_ms=random.choice([None, None, NOW - 77]),
            delete_horizon_ms=horizon,
        )
        if random.random() < 0.1:
            data = empty_batch(read_header(data, 0))
        self.add(data, last + 1)

    def odd_v2(self) -> None:
        """What no writer of today makes and readers accept: long varints, record attributes, header keys not UTF-8."""
        random = self.random
        body = bytes([random.choice([0, 1]), 0x82, 0x00])  # attributes, timestamp delta 1 in two bytes
        body += random.choice([b"\x00", b"\x80\x00"])  # offset delta 0
        body += random.choice([b"\x02a", b"\x82\x00a", b"\x01", b"\x05"])  # key "a", or none
        body += random.choice([b"\x02v", b"\x82\x80\x00v", b"\x01", b"\x03"])  # value "v", or none
        body += random.choice([b"\x00", b"\x02\x02\xff\x01", b"\x02\x08\xf0\x9f\x98\x82\x00", b"\x82\x00\x00\x03"])
        record = bytes([len(body) * 2]) + body
        header = struct.pack(">qiibIhiqqqhii", self.offset, 0, 0, 2, 0, 0, 0, 5, 6, -1, -1, -1, 1)
        self.add(seal_v2(header + record), self.offset + 1)

    def legacy(self) -> None:
        random = self.random
        magic, codec = random.choice([0, 1]), random.choice([0, 1, 2, 3])
        records = self.records(random.choice([1, 2, 5]), legacy=True)
        stamp = random.choice([None, NOW - 9]) if magic == 1 else None
        inner = random.choice([None, None, 0, 1]) if codec and magic == 0 else None
        self.add(build_message_set(records, magic, codec, stamp, inner), records[-1].offset + 1)

    def marker(self) -> None:
        random = self.random
        producer = random.choice([*self.open, *self.open, 1, 2])
        commit = random.random() < 0.5
        data = control_batch("commit" if commit else "abort", self.offset, NOW, producer, 0)
        first = self.open.pop(producer, None)
        if first is not None and not commit:
            entry = AbortedTransaction(producer, first, self.offset, min([*self.open.values(), self.offset + 1]))
            self.aborted.append(entry)
        if random.random() < 0.3:
            # As an earlier round left it: with a horizon, or emptied.
            header = read_header(data, 0)
            data = random.choice([empty_batch(header), set_horizon(data, NOW + random.choice([-1, 0, 1]))])
        if random.random() < 0.3:
            self.last_data[producer] = ActiveProducer(None, 0)
        self.add(data, self.offset + 1)

    def finish(self) -> Log:
        segments = tuple((base, bytes(data)) for base, data in self.segments)
        return Log(segments, self.offset, tuple(self.aborted), tuple(self.boundaries), self.last_data)


def seal_v2(batch: bytes) -> bytes:
    """Length and CRC as they have to be."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def set_horizon(batch: bytes, horizon: int) -> bytes:
    return seal_v2(batch[:22] + bytes([batch[22] | 0x40]) + batch[23:27] + struct.pack(">q", horizon) + batch[35:])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    writer = Writer(Random(draw(st.integers(0, 2**32))))
    kinds: dict[str, Callable[[], None]] = {
        "v2": writer.v2,
        "odd": writer.odd_v2,
        "marker": writer.marker,
        "legacy": writer.legacy,
        "roll": writer.roll,
    }
    names = ["v2", "v2", "v2", "odd", "marker", "roll"]
    if draw(st.booleans()):
        names.append("legacy")
    for kind in draw(st.lists(st.sampled_from(names), min_size=1, max_size=14)):
        kinds[kind]()
    return writer.finish()


@dataclass(frozen=True)
class Plan:
    """One round over a log."""

    settings: RoundSettings
    #: Position where pass one starts in the first dirty segment.
    start: int
    group_size: int
    write: bool
    active: bool
    retain_legacy: bool


@st.composite
def plans(draw: st.DrawFn, log: Log) -> Plan:
    first_dirty = draw(st.sampled_from([*log.boundaries, log.boundaries[0] + 1]))
    bytes_ = draw(st.sampled_from([1 << 20, 1 << 20, 48, 72, 96, 200]))
    round_settings = RoundSettings(
        first_dirty_offset=first_dirty,
        high_watermark=draw(st.sampled_from([log.end, log.end + 100, log.boundaries[-1]])),
        now_ms=NOW,
        delete_retention_ms=draw(st.sampled_from([RETENTION, 0, 2**62])),
        index_interval_bytes=draw(st.sampled_from([0, 1, 100, 4096])),
        map_memory_bytes=bytes_,
        kafka_map=draw(st.booleans()),
    )
    return Plan(
        round_settings,
        draw(st.sampled_from([0, 1])),
        draw(st.sampled_from([1, 1, 2, 100])),
        draw(st.sampled_from([True, True, False])),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def sources(directory: Path, log: Log, plan: Plan) -> list[SourceSegment]:
    bases = [base for base, _ in log.segments] + [log.end]
    found = []
    for index, (base, data) in enumerate(log.segments):
        path = directory / f"{base:020}.log"
        path.write_bytes(data)
        aborted = tuple(t for t in log.aborted if base <= t.last_offset and t.first_offset < bases[index + 1])
        found.append(
            SourceSegment(
                str(path),
                base,
                len(data),
                bases[index + 1],
                retain_legacy_tombstones=plan.retain_legacy,
                aborted=aborted,
            )
        )
    return found


def start_position(data: bytes, first_dirty: int) -> int:
    """Start of the first batch that reaches `first_dirty`: the nearest that an offset index could name."""
    position = 0
    while position < len(data):
        try:
            header = read_header(data, position)
        except CompactdError:
            break
        if header.last_offset >= first_dirty:
            break
        position += header.size
    return position


Outcome = tuple[MapResult | None, list[tuple[GroupResult, bytes]], tuple[type, object] | None]


def run(kernel: Kernel, directory: Path, log: Log, plan: Plan) -> Outcome:
    """Map, groups with their output, and how it ended."""
    segments = sources(directory, log, plan)
    dirty = [s for s in segments if s.next_offset > plan.settings.first_dirty_offset]
    if dirty and plan.start:
        data = dict(log.segments)[dirty[0].base_offset]
        dirty[0] = replace(dirty[0], start_position=start_position(data, plan.settings.first_dirty_offset))
    aborted = [t for t in log.aborted if t.last_offset >= plan.settings.first_dirty_offset]
    mapped: MapResult | None = None
    groups: list[tuple[GroupResult, bytes]] = []
    round_ = kernel.begin_round(plan.settings)
    try:
        mapped = round_.build_map(dirty, aborted)
        for start in range(0, len(segments), plan.group_size):
            group = segments[start : start + plan.group_size]
            with (directory / "out").open("wb", buffering=0) as output:
                result = round_.clean_group(group, log.producers if plan.active else {}, output if plan.write else None)
            groups.append((result, (directory / "out").read_bytes()))
    except CompactdError as error:
        # Where the damage is has to be said alike; in which words is each kernel's own affair.
        where = getattr(error, "position", None) if isinstance(error, CorruptBatchError) else None
        return mapped, groups, (type(error), where)
    finally:
        round_.close()
    return mapped, groups, None


def compare_kernels(kernels: Sequence[Kernel], log: Log, plan: Plan) -> Outcome:
    """All of them do what the last one does."""
    with tempfile.TemporaryDirectory() as name:
        *others, reference = (run(kernel, Path(name), log, plan) for kernel in kernels)
    for native in others:
        assert native[0] == reference[0]
        for (ours, ours_bytes), (theirs, theirs_bytes) in zip(native[1], reference[1], strict=False):
            assert ours.stats == theirs.stats
            assert ours == theirs
            assert ours_bytes == theirs_bytes
        assert native[2] == reference[2]
        assert len(native[1]) == len(reference[1])
    return reference


@settings(max_examples=examples(1500), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_same_results_and_bytes(data: st.DataObject) -> None:
    log = data.draw(logs())
    _, groups, error = compare_kernels(KERNELS, log, data.draw(plans(log)))
    # Only what Kafka refuses as well ends early: an empty batch of V0/V1.
    assert error is None or error[0] is FaultError
    for result, written in groups:
        assert written == b"" or len(written) == result.log_size


@settings(max_examples=examples(1500), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_same_error_on_damage(data: st.DataObject) -> None:
    log = data.draw(logs())
    plan = replace(data.draw(plans(log)), start=0)
    compare_kernels(KERNELS, damage(data, log), plan)


def damage(data: st.DataObject, log: Log) -> Log:
    """The log with one segment damaged, if it holds anything."""
    index = data.draw(st.integers(0, len(log.segments) - 1))
    base, whole = log.segments[index]
    if not whole:
        return log
    damaged = bytearray(whole)
    kind = data.draw(st.sampled_from(["flip", "cut", "zeros", "garbage", "resealed"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "flip":
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del damaged[at:]
    elif kind == "zeros":
        damaged += bytes(data.draw(st.integers(1, 100)))
    elif kind == "garbage":
        damaged[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    else:
        reseal(damaged, at, data.draw(st.integers(1, 255)))
    segments = (*log.segments[:index], (base, bytes(damaged)), *log.segments[index + 1 :])
    return replace(log, segments=segments)


def reseal(data: bytearray, at: int, difference: int) -> None:
    """Changes a byte and gives its batch the CRC that fits: damage that only the lengths can show."""
    position = 0
    while True:
        try:
            header = read_header(data, position)
        except CorruptBatchError:
            return  # what was damaged before
        if at < position + header.size:
            break
        position += header.size
    start = position + (21 if header.magic == 2 else 16)
    if at < start:
        return
    data[at] ^= difference
    end = position + header.size
    checksum = crc32c(bytes(data[start:end])) if header.magic == 2 else crc32(bytes(data[start:end]))
    at_crc = position + (17 if header.magic == 2 else 12)
    data[at_crc : at_crc + 4] = struct.pack(">I", checksum)


def test_kernels_are_two() -> None:
    assert [kernel.name for kernel in KERNELS] == ["native", "reference"]
