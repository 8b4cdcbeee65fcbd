"""What `compactd bench log` measures, and how: the same batches and fetches on Kafka's UnifiedLog and on compactd's log."""

from __future__ import annotations

import base64
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactd.config.errors import UsageError
from compactd.config.settings import StorageConfig, TopicConfig
from compactd.scripts.bench.kafka import Kafka
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog
from compactd.storage.log_dir import LogDir
from compactd.storage.log_manager import LogManager
from compactd.storage.names import TopicPartition
from compactd.storage.records.builder import build_batch
from compactd.storage.records.codecs import Codec
from compactd.storage.records.record import Record

PARTITION = "bench-0"
CLOCK_MS = 1_700_000_000_000
#: Calls that are thrown away first: the JVM compiles what it runs often.
_WARM_UPS = 2
_DISTINCT = 64
#: Of a start: log dirs, and batches in each partition.
_LOG_DIRS = ("dir-1", "dir-2")
_BATCHES_TO_LOAD = 10
_SMALL_PARTITION = 6 * 4096


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    name: str
    #: append, read, recover or load.
    kind: str
    records: int = 100
    value_size: int = 100
    codec: Codec = Codec.NONE
    #: Appends (fetches, or partitions) that are timed, at full size.
    count: int = 5000
    settings: tuple[tuple[str, str], ...] = ()
    idempotent: bool = False
    #: Flushes after so many appends: group commit. 0: only as the settings say.
    flush_every: int = 0
    fetch_bytes: int = 1 << 20
    in_order: bool = True
    #: Runs of each side, warm-ups included, where more would take too long.
    most_runs: int = 1 << 10

    def __str__(self) -> str:
        return self.name


_COMPACTED = (("cleanup.policy", "compact"),)
_SYNCED = (("flush.messages", "1"),)

ALL_CASES: tuple[Case, ...] = (
    Case("append 1 record", "append", 1, count=20000),
    Case("append 1 record, idempotent", "append", 1, count=20000, idempotent=True),
    Case("append 10 records", "append", 10, count=20000),
    Case("append 100 records", "append", 100),
    Case("append 100 records, compacted", "append", 100, settings=_COMPACTED),
    Case("append 100 of 1000 bytes", "append", 100, 1000, count=2000),
    Case("append 100 records, lz4", "append", 100, codec=Codec.LZ4),
    Case("append 100 records, zstd", "append", 100, codec=Codec.ZSTD),
    Case("append 100 records, gzip", "append", 100, codec=Codec.GZIP, count=2000),
    Case("append 100 records, recompressed to lz4", "append", 100, count=1000, settings=(("compression.type", "lz4"),)),
    Case("append 1 record, fsync each", "append", 1, count=400, settings=_SYNCED),
    Case("append 100 records, fsync each", "append", 100, count=400, settings=_SYNCED),
    Case("append 10 records, fsync every 50", "append", 10, count=5000, flush_every=50),
    Case("read 1 MiB in order", "read", count=400),
    Case("read 16 KiB in order", "read", count=5000, fetch_bytes=16 << 10),
    Case("read 16 KiB anywhere", "read", count=5000, fetch_bytes=16 << 10, in_order=False),
    Case("read one batch of 1 record", "read", 1, count=20000, fetch_bytes=1, in_order=False),
    Case("recover after a crash", "recover", 100, count=20000),
    Case("recover after a crash, zstd", "recover", 100, codec=Codec.ZSTD, count=20000),
    Case("load 10,000 partitions", "load", 1, count=10_000, most_runs=4),
)


@dataclass(slots=True)
class Measured:
    """Seconds of each timed run of both sides."""

    case: Case
    operations: int
    bytes: int
    kafka: list[float] = field(default_factory=list)
    compactd: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Kafka's least seconds divided by compactd's."""
        return min(self.kafka) / min(self.compactd)

    @property
    def ratio_median(self) -> float:
        return sorted(self.kafka)[len(self.kafka) // 2] / sorted(self.compactd)[len(self.compactd) // 2]

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "case",
            "case": self.case.name,
            "operations": self.operations,
            "bytes": self.bytes,
            "kafkaSeconds": min(self.kafka),
            "compactdSeconds": min(self.compactd),
            "ratioMin": self.ratio,
            "ratioMedian": self.ratio_median,
        }


def choose_cases(parts: Sequence[str]) -> tuple[Case, ...]:
    """Cases whose name has one of the parts; all where there are none. UsageError where a part fits no case."""
    for part in parts:
        if not any(part in case.name for case in ALL_CASES):
            names = "; ".join(case.name for case in ALL_CASES)
            raise UsageError(detail=f"no case has {part!r} in its name; there are: {names}")
    return tuple(case for case in ALL_CASES if not parts or any(part in case.name for part in parts))


class LogBench:
    """Runs cases; every run starts with a new log, made from the same bytes."""

    def __init__(self, kafka: Kafka, root: Path, scale: float, repeat: int) -> None:
        self.kafka, self.root, self.scale, self.repeat = kafka, root, scale, repeat

    def measure(self, case: Case, advance: Callable[[], None]) -> Measured:
        """Both sides in turn, `repeat` times, the warm-ups left out."""
        count = max(1, round(case.count * self.scale))
        batches = _batches(case, count)
        run = {"append": self._append, "read": self._read, "recover": self._recover, "load": self._load}[case.kind]
        measured = Measured(case, count, 0)
        if case.kind == "load":
            self._make_dirs(case, count, batches[0])
        warm_ups, runs = _runs(case, self.repeat)
        for number in range(-warm_ups, runs):
            kafka, ours, moved = run(case, count, batches)
            measured.bytes = moved
            if number >= 0:
                measured.kafka.append(kafka)
                measured.compactd.append(ours)
            advance()
        if case.kind == "load":
            for side in (self._ours, self._kafkas):
                shutil.rmtree(side.parent)
        return measured

    # ---- appends

    def _append(self, case: Case, count: int, batches: list[bytes]) -> tuple[float, float, int]:
        size, rounds = len(batches[0]), max(1, count // len(batches))
        self._open_kafka(case)
        answer = self.kafka.request(
            "appendMany", bytes=_text(b"".join(batches)), size=size, rounds=rounds, flushEvery=case.flush_every
        )
        self._drop_kafka()
        log = self._new_log(case)
        began = time.perf_counter()
        _append_all(log, batches, rounds, case.flush_every)
        seconds = time.perf_counter() - began
        self._drop(log)
        return answer["seconds"], seconds, size * len(batches) * rounds

    # ---- reads

    def _read(self, case: Case, count: int, batches: list[bytes]) -> tuple[float, float, int]:
        log = self._new_log(case)
        size = len(batches[0])
        in_log = max(count, 4 * len(batches)) if case.fetch_bytes < size else count * max(1, case.fetch_bytes // size)
        _append_all(log, batches, -(-min(in_log, 40_000) // len(batches)), 0)
        log.close()
        per_fetch = max(1, case.fetch_bytes // size) * case.records
        ends = log.log_end_offset - per_fetch
        if case.in_order:
            offsets = [n * per_fetch % max(ends, 1) // case.records * case.records for n in range(count)]
        else:
            draw = random.Random(1)
            offsets = [draw.randrange(max(ends, 1)) for _ in range(count)]
        shutil.copytree(self._ours, self._kafkas)
        self._open_kafka(case, new=False)
        answer = self.kafka.request("readMany", offsets=offsets, maxBytes=case.fetch_bytes, largest=size)
        self._drop_kafka()
        loaded = load_log(self._ours, log.config, clean_shutdown=True, now_ms=CLOCK_MS)
        log = PartitionLog(loaded, now_ms=CLOCK_MS)
        log.update_high_watermark(log.log_end_offset)
        moved = 0
        buffer = bytearray(max(case.fetch_bytes, size))
        began = time.perf_counter()
        for offset in offsets:
            with log.read(offset, case.fetch_bytes) as fetched:
                moved += fetched.range.read_into(buffer)
        seconds = time.perf_counter() - began
        self._drop(log)
        assert moved == answer["bytes"], f"Kafka read {answer['bytes']} bytes and compactd {moved}"
        return answer["seconds"], seconds, moved

    # ---- recovery

    def _recover(self, case: Case, count: int, batches: list[bytes]) -> tuple[float, float, int]:
        log = self._new_log(case)
        _append_all(log, batches, max(1, count // len(batches)), 0)
        size = log.size
        log.close()
        shutil.copytree(self._ours, self._kafkas)
        began = time.perf_counter()
        self._open_kafka(case, new=False, cleanShutdown=False, recoveryPoint=0)
        kafka = time.perf_counter() - began
        self._drop_kafka()
        began = time.perf_counter()
        load_log(self._ours, log.config, clean_shutdown=False, recovery_point=0, now_ms=CLOCK_MS)
        ours = time.perf_counter() - began
        shutil.rmtree(self._ours)
        return kafka, ours, size

    # ---- start

    def _make_dirs(self, case: Case, count: int, batch: bytes) -> None:
        """Two log dirs for each side with `count` partitions in all, as an orderly stop leaves them."""
        log = self._new_log(case)
        for _ in range(_BATCHES_TO_LOAD):
            log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=CLOCK_MS)
        log.close()
        content = {path.name: path.read_bytes() for path in self._ours.iterdir()}
        shutil.rmtree(self._ours)
        names = [TopicPartition("bench", number) for number in range(count)]
        for side in (self._ours.parent, self._kafkas.parent):
            for number, directory in enumerate(_log_dirs(side)):
                directory.mkdir()
                here = names[number :: len(_LOG_DIRS)]
                for name in here:
                    made = directory / str(name)
                    made.mkdir()
                    for file, data in content.items():
                        (made / file).write_bytes(data)
                LogDir(directory).recovery_points.write(dict.fromkeys(here, log.log_end_offset))

    def _load(self, case: Case, count: int, _batches: list[bytes]) -> tuple[float, float, int]:
        ours, kafkas = _log_dirs(self._ours.parent), _log_dirs(self._kafkas.parent)
        for directory in (*ours, *kafkas):
            LogDir(directory).write_clean_shutdown(-1)
        storage, config = StorageConfig(), TopicConfig.from_strings(dict(case.settings))
        threads = storage.num_recovery_threads_per_data_dir
        answer = self.kafka.request(
            "loadAll", dirs=list(map(str, kafkas)), config=dict(case.settings), threads=threads, now=CLOCK_MS
        )
        manager = LogManager(ours, lambda _: config, storage)
        began = time.perf_counter()
        manager.start(CLOCK_MS)
        seconds = time.perf_counter() - began
        logs = list(manager.logs())
        assert len(logs) == answer["logs"] == count, f"Kafka loaded {answer['logs']} logs and compactd {len(logs)}"
        for log in logs:
            log.close(orderly=False)
        manager.release()
        return answer["seconds"], seconds, answer["bytes"]

    # ---- both sides' logs

    @property
    def _ours(self) -> Path:
        return self.root / "compactd" / PARTITION

    @property
    def _kafkas(self) -> Path:
        return self.root / "kafka" / PARTITION

    def _open_kafka(self, case: Case, new: bool = True, **fields: Any) -> None:
        if new:
            self._kafkas.mkdir(parents=True)
        self.kafka.request("open", dir=str(self._kafkas), config=dict(case.settings), now=CLOCK_MS, **fields)

    def _drop_kafka(self) -> None:
        self.kafka.request("abandon")
        shutil.rmtree(self._kafkas)

    def _new_log(self, case: Case) -> PartitionLog:
        self._ours.parent.mkdir(parents=True, exist_ok=True)
        self._kafkas.parent.mkdir(parents=True, exist_ok=True)
        return PartitionLog.create(
            self._ours, TopicConfig.from_strings(dict(case.settings)), now_ms=CLOCK_MS, sole_replica=True
        )

    def _drop(self, log: PartitionLog) -> None:
        log.close(orderly=False)
        shutil.rmtree(self._ours)


def _runs(case: Case, repeat: int) -> tuple[int, int]:
    """(runs that are thrown away first, timed runs)"""
    warm_ups = min(_WARM_UPS, max(case.most_runs - repeat, 1))
    return warm_ups, min(repeat, case.most_runs - warm_ups)


def runs(case: Case, repeat: int) -> int:
    """Of each side, timed or not."""
    return sum(_runs(case, repeat))


def _log_dirs(side: Path) -> list[Path]:
    return [side / name for name in _LOG_DIRS]


def _append_all(log: PartitionLog, batches: list[bytes], rounds: int, flush_every: int) -> None:
    """What a broker does for each produce: the batch lies in a buffer of its own. The high watermark goes along."""
    done = 0
    for _ in range(rounds):
        for batch in batches:
            log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=CLOCK_MS)
            done += 1
            if flush_every and done % flush_every == 0:
                log.flush()


def _batches(case: Case, count: int) -> list[bytes]:
    """Batches of one size; one for each append where sequences have to go on, else a few that are sent again and again."""
    draw = random.Random(7)
    distinct = count if case.idempotent else min(count, _DISTINCT)
    half = case.value_size // 2
    made = []
    for number in range(distinct):
        records = [
            Record(
                n, CLOCK_MS, b"key-%08d" % draw.randrange(10**8), draw.randbytes(half) + b"v" * (case.value_size - half)
            )
            for n in range(case.records)
        ]
        ids: dict[str, Any] = {}
        if case.idempotent:
            ids = {"producer_id": 1, "producer_epoch": 0, "base_sequence": number * case.records}
        made.append(build_batch(records, base_offset=0, codec=case.codec, **ids))
    # Compressed batches differ by a few bytes: the first one stands for all.
    return made if len({len(each) for each in made}) == 1 else [made[0]] * len(made)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bytes_needed(cases: Sequence[Case], scale: float) -> int:
    """Room on the disk for the largest case, both sides, with something to spare."""
    largest = max(case.count * _bytes_each(case) for case in cases)
    return round(3 * max(largest * scale, 1 << 20)) + os.stat(os.curdir).st_blksize  # noqa: PTH116


def _bytes_each(case: Case) -> int:
    """Of an append, or of a partition's small files, which take up a block each."""
    return _SMALL_PARTITION if case.kind == "load" else case.records * (case.value_size + 40)
