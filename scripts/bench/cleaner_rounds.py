"""Measuring one case of `compactd bench cleaner`: the same log cleaned by Kafka and by compactd, in turn."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactd.config.errors import CompactdError, UsageError
from compactd.config.settings import TopicConfig
from compactd.scripts.bench.agreement import agreement
from compactd.scripts.bench.cleaner_cases import KEY_SIZE, NOW, VALUE_SIZES, Case
from compactd.scripts.bench.kafka import Kafka
from compactd.scripts.bench.machine import forget_peak_memory, peak_memory
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel import active_kernel
from compactd.storage.names import TopicPartition
from compactd.storage.records.batch import HEADER_SIZE

#: Kafka's default, log.cleaner.dedupe.buffer.size; more where the keys of a case would not fit.
MAP_BYTES = 128 << 20
LOAD_FACTOR = 0.9
HEAP_BYTES = 2 << 30
#: The JVM compiles the cleaner in its first rounds, so the very first case gets more of them.
FIRST_WARM_UPS = 3
TOPIC_PARTITION = TopicPartition("bench", 0)

_KAFKA_SLOT_BYTES = 24
#: Lengths, deltas and an empty header list of a record.
_RECORD_OVERHEAD = 14
#: SkimpyOffsetMap lies in one Java buffer.
_MOST_MAP_BYTES = 2**31 - 1
#: Kafka's lower limit of segment.bytes; internal.segment.bytes has none.
_SMALLEST_SEGMENT = 1 << 20
#: Above 0: what is replaced waits as .deleted, so that nothing is unlinked while the clock runs.
_DELETE_DELAY_MS = 60_000


class RoundFailedError(CompactdError):
    """Case {case}: compactd's round ended as {outcome}. {reason}"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how: bytes of keys and values a case, segment size, records a batch, measured runs."""

    data_bytes: int
    segment_bytes: int
    batch_records: int
    repeat: int

    def check(self) -> None:
        """Raises UsageError for what Kafka cannot take."""
        largest = self.batch_records * (KEY_SIZE + max(VALUE_SIZES) + _RECORD_OVERHEAD) + HEADER_SIZE
        if largest > self.segment_bytes:
            raise UsageError(
                detail=f"batches of up to {largest} bytes do not fit segments of {self.segment_bytes}; "
                "lower --batch or raise --segment-size"
            )
        if self._needed_map_bytes() > _MOST_MAP_BYTES:
            raise UsageError(detail="with this --size the keys do not fit Kafka's map, whose limit is 2 GiB")

    def _needed_map_bytes(self) -> int:
        records = self.data_bytes // (KEY_SIZE + min(VALUE_SIZES)) + 2
        return math.ceil(records / LOAD_FACTOR * _KAFKA_SLOT_BYTES) + 2 * _KAFKA_SLOT_BYTES

    @property
    def map_bytes(self) -> int:
        """Memory of the offset map on both sides: one round has to take all keys of any case."""
        return max(MAP_BYTES, self._needed_map_bytes())

    @property
    def heap_bytes(self) -> int:
        return HEAP_BYTES + 2 * (self.map_bytes - MAP_BYTES)

    def kafka_config(self) -> dict[str, str]:
        name = "segment.bytes" if self.segment_bytes >= _SMALLEST_SEGMENT else "internal.segment.bytes"
        return {
            "cleanup.policy": "compact",
            name: str(self.segment_bytes),
            "file.delete.delay.ms": str(_DELETE_DELAY_MS),
        }

    def topic_config(self) -> TopicConfig:
        return TopicConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=self.segment_bytes,
            file_delete_delay_ms=_DELETE_DELAY_MS,
        )


@dataclass(slots=True)
class Measured:
    """One case's figures. Seconds are those of the measured runs, in order; bytes are of .log files."""

    case: Case
    records: int
    bytes_before: int
    bytes_after: int = 0
    records_after: int = 0
    kafka_seconds: list[float] = field(default_factory=list)
    compactd_seconds: list[float] = field(default_factory=list)
    #: CPU time of the same runs, of the JVM without its compilers; empty where the system doesn't tell.
    kafka_cpu: list[float] = field(default_factory=list)
    compactd_cpu: list[float] = field(default_factory=list)
    #: Pass one of compactd, run by run.
    index_seconds: list[float] = field(default_factory=list)
    #: Bytes, Python included; None where the system doesn't tell.
    peak_memory: int | None = None
    #: What `agreement` says, or what differs.
    output: str = ""
    agrees: bool = False

    @property
    def kafka_best(self) -> float:
        return min(self.kafka_seconds)

    @property
    def compactd_best(self) -> float:
        return min(self.compactd_seconds)

    @property
    def index_best(self) -> float:
        """Pass one of the quickest run."""
        return self.index_seconds[self.compactd_seconds.index(self.compactd_best)]

    @property
    def ratio_min(self) -> float:
        return self.kafka_best / self.compactd_best

    @property
    def ratio_median(self) -> float:
        return statistics.median(self.kafka_seconds) / statistics.median(self.compactd_seconds)

    @property
    def ratio_cpu(self) -> float | None:
        """Of the least CPU times: what a busy machine disturbs least. It knows nothing of fsync."""
        return min(self.kafka_cpu) / min(self.compactd_cpu) if self.kafka_cpu else None

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "case",
            "case": str(self.case),
            "valueSize": self.case.value_size,
            "codec": self.case.codec,
            "duplicates": self.case.duplicates,
            "records": self.records,
            "recordsAfter": self.records_after,
            "bytesBefore": self.bytes_before,
            "bytesAfter": self.bytes_after,
            "kafkaSeconds": self.kafka_seconds,
            "compactdSeconds": self.compactd_seconds,
            "compactdIndexSeconds": self.index_seconds,
            "kafkaCpuSeconds": self.kafka_cpu,
            "compactdCpuSeconds": self.compactd_cpu,
            "ratioMin": self.ratio_min,
            "ratioMedian": self.ratio_median,
            "ratioCpu": self.ratio_cpu,
            "compactdPeakMemory": self.peak_memory,
            "output": self.output,
            "agrees": self.agrees,
        }


class Bench:
    """Measures case after case, with one JVM and this process, on files below `root`."""

    def __init__(self, kafka: Kafka, plan: Plan, root: Path) -> None:
        self._kafka = kafka
        self._plan = plan
        self._root = root
        self._kernel = active_kernel()
        self._warm_ups = FIRST_WARM_UPS

    def measure(self, case: Case, on_run: Callable[[], None], keep: bool = False) -> Measured:
        """Writes a log, cleans fresh copies of it on both sides, compares what came out. `on_run`: after each measured run.

        The case's files are removed at the end unless `keep` is set.
        """
        place = self._root / str(case).replace("/", "-")
        theirs, ours = (place / side / str(TOPIC_PARTITION) for side in ("kafka", "compactd"))
        found = self._write(case, place)
        for run in range(self._warm_ups + self._plan.repeat):
            for copy in (theirs, ours):
                shutil.rmtree(copy, ignore_errors=True)
                _copy_log(place / "source" / str(TOPIC_PARTITION), copy)
            answer, their_cpu = self._clean_theirs(theirs)
            report, our_cpu = self._clean_ours(case, ours, found)
            if run < self._warm_ups:
                if run == self._warm_ups - 1:
                    _compare(answer, report, ours, theirs, found)
                continue
            found.kafka_seconds.append(answer["seconds"])
            found.compactd_seconds.append(report.seconds)
            found.index_seconds.append(report.index_seconds)
            if their_cpu is not None:
                found.kafka_cpu.append(their_cpu)
                found.compactd_cpu.append(our_cpu)
            on_run()
        self._warm_ups = 1
        if not keep:
            shutil.rmtree(place)
        return found

    def _write(self, case: Case, place: Path) -> Measured:
        source = place / "source" / str(TOPIC_PARTITION)
        source.mkdir(parents=True)
        request = case.fill(self._plan.data_bytes, self._plan.batch_records)
        self._kafka.request("open", dir=str(source), config=self._plan.kafka_config(), now=NOW)
        filled = self._kafka.request("fill", **request)
        self._kafka.request("roll")
        self._kafka.request("close")
        return Measured(case, request["records"], filled["size"])

    def _clean_theirs(self, directory: Path) -> tuple[dict[str, Any], float | None]:
        """Kafka's figures, and CPU seconds."""
        self._kafka.request("open", dir=str(directory), config=self._plan.kafka_config(), now=NOW)
        before = self._kafka.cpu_seconds()
        answer = self._kafka.request("clean", dedupe=self._plan.map_bytes, loadFactor=LOAD_FACTOR)
        after = self._kafka.cpu_seconds()
        self._kafka.request("abandon")
        return answer, None if before is None or after is None else after - before

    def _clean_ours(self, case: Case, directory: Path, found: Measured) -> tuple[PartitionReport, float]:
        """compactd's figures, and CPU seconds."""
        job = CleanJob(TOPIC_PARTITION, directory, self._plan.topic_config(), checkpoint=None, high_watermark=None)
        options = CleanOptions(NOW, once=True, map_memory_bytes=self._plan.map_bytes, map_load_factor=LOAD_FACTOR)
        forgot = forget_peak_memory()
        before = time.process_time()
        report = clean_partition(job, options, self._kernel, time.perf_counter)
        cpu = time.process_time() - before
        if forgot:
            found.peak_memory = max(found.peak_memory or 0, peak_memory())
        if report.outcome != "cleaned":
            raise RoundFailedError(case=case, outcome=report.outcome, reason=report.reason)
        return report, cpu


def _compare(answer: dict[str, Any], report: PartitionReport, ours: Path, theirs: Path, found: Measured) -> None:
    """Fills in what came out, and whether it is the same on both sides."""
    found.bytes_after, found.records_after = answer["bytesAfter"], answer["messagesWritten"]
    kafka = [answer[name] for name in ("nextDirtyOffset", "mapEntries", "messagesRead", "messagesWritten")]
    own = [report.next_dirty_offset, report.map_entries, report.stats.messages_read, report.stats.messages_written]
    if own != kafka:
        names = "next dirty offset, map entries, messages read and written"
        found.output = f"{names} are {own} here and {kafka} in Kafka"
        return
    try:
        found.output = agreement(ours, theirs)
        found.agrees = True
    except CompactdError as difference:
        found.output = str(difference)


def _copy_log(source: Path, target: Path) -> None:
    """Logs of closed segments as links, as neither side writes to them: both read the very same cached pages."""
    target.mkdir(parents=True)
    closed = sorted(path.name for path in source.glob("*.log"))[:-1]
    for path in source.iterdir():
        copy = target / path.name
        if path.name in closed:
            try:
                os.link(path, copy)
                continue
            except OSError:
                pass  # a file system without links
        shutil.copy2(path, copy)
        with copy.open("rb") as copied:
            os.fsync(copied.fileno())  # or its pages would be written out while the clock runs
