"""Kafka's LogCleanerIntegrationTest, what of it needs no threads (facts 12.3), by Kafka's test names.

Whole partitions through `clean_partition`, checkpoint and clock carried from clean to clean as a log dir and time would.
The two tests of message formats are in test_legacy.py.

daemon: issue 5, where there are threads: testIsThreadFailed, cleanerConfigUpdateTest, testGaugeReadsAreNotAffectedByReconfigure,
and the gauges of testMarksPartitionsAsOfflineAndPopulatesUncleanableMetrics. Retention deletes nothing here: of
testCleansCombinedCompactAndDeleteTopic the compaction is tested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.cleaning.choice import Choice, grab_filthiest
from compactd.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.cleaning.states import CleaningStates
from compactd.storage.kernel.interface import Kernel
from compactd.storage.names import TopicPartition
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import (
    batches_of,
    latest_values,
    log_bytes,
    offsets_in,
    picture,
    records_of,
    segment_bases,
    size_of,
)
from tests.storage.cleaning.rounds import load
from tests.storage.cleaning.short_log import ShortLog

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HOUR_MS = 3_600_000


@dataclass
class Cleaner:
    """Chooses and cleans as the cleaner of a broker does, one partition a call."""

    kernel: Kernel
    log_dir: Path

    def __post_init__(self) -> None:
        self.states = CleaningStates()
        self.checkpoints = CleanerCheckpoints([self.log_dir])
        self.hosted: set[TopicPartition] = set()

    def choose(self, logs: list[ShortLog], now_ms: int) -> Choice:
        partitions = [load(log, now_ms=now_ms) for log in logs]
        self.hosted = {partition.topic_partition for partition in partitions}
        choice = grab_filthiest(self.states, partitions, self.checkpoints.all_offsets(), now_ms)
        if choice.corrected:
            self.checkpoints.update(self.log_dir, self.hosted, choice.corrected)
        return choice

    def clean_filthiest(self, logs: list[ShortLog], now_ms: int) -> PartitionReport | None:
        """Cleans one log and writes its checkpoint; one that fails is set aside. None: nothing wants cleaning."""
        choice = self.choose(logs, now_ms)
        if choice.log is None:
            return None
        partition = choice.log.partition
        chosen = partition.topic_partition
        job = CleanJob(chosen, partition.directory, partition.config, self.checkpoints.all_offsets().get(chosen), None)
        report = clean_partition(job, CleanOptions(now_ms=now_ms, once=True), self.kernel, time.perf_counter)
        if report.exit_code:
            self.states.mark_uncleanable(self.log_dir, chosen)
        self.states.done_cleaning(
            chosen,
            lambda: self.checkpoints.update(self.log_dir, self.hosted, {chosen: report.next_dirty_offset}),
        )
        return report

    def clean_all(self, logs: list[ShortLog], now_ms: int) -> list[PartitionReport]:
        return list(self._reports(logs, now_ms))

    def _reports(self, logs: list[ShortLog], now_ms: int) -> Iterator[PartitionReport]:
        while (report := self.clean_filthiest(logs, now_ms)) is not None:
            yield report


@pytest.fixture
def cleaner(kernel: Kernel, log_dir: Path) -> Cleaner:
    return Cleaner(kernel, log_dir)


def write_dups(log: ShortLog, codec: str, keys: int, copies: int, first_key: int = 0) -> None:
    """Every key `copies` times, in turn, a record a batch; the value is the offset."""
    for _ in range(copies):
        for key in range(first_key, first_key + keys):
            log.append((key, log.end_offset), codec=codec)


@pytest.mark.parametrize("codec", CODECS)
def test_cleaner_lag(make_log: LogMaker, cleaner: Cleaner, codec: str) -> None:
    """min.compaction.lag.ms holds back what is younger, and what came after it."""
    log = make_log(segment_bytes=2048, min_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=0.0)
    write_dups(log, codec, keys=100, copies=3)
    start_size, active_then = size_of(log.directory), log.active_base

    assert cleaner.clean_all([log], NOW_MS + HOUR_MS // 2) == []
    assert size_of(log.directory) == start_size

    log.now_ms = NOW_MS + HOUR_MS + 1
    write_dups(log, codec, keys=100, copies=3, first_key=0)
    log.close()
    before = latest_values(log.directory)
    later = {base: log_bytes(log.directory, base) for base in segment_bases(log.directory) if base >= active_then}
    reports = cleaner.clean_all([log], log.now_ms)
    assert [report.outcome for report in reports] == ["cleaned"]
    assert cleaner.checkpoints.all_offsets() == {reports[0].topic_partition: active_then}
    assert reports[0].first_uncleanable_offset == active_then
    assert size_of(log.directory) < start_size + sum(map(len, later.values()))
    assert latest_values(log.directory) == before
    assert {base: log_bytes(log.directory, base) for base in later} == later


@pytest.mark.parametrize("codec", CODECS)
def test_cleaner_compaction(make_log: LogMaker, cleaner: Cleaner, codec: str) -> None:
    log = make_log("t-0", segment_bytes=2048, min_cleanable_dirty_ratio=0.0, max_message_bytes=128)
    write_dups(log, codec, keys=100, copies=3)
    log.close()
    before, start_size = latest_values(log.directory), size_of(log.directory)
    active = log.active_base
    (report,) = cleaner.clean_all([log], NOW_MS)
    assert report.next_dirty_offset == active
    assert latest_values(log.directory) == before
    assert size_of(log.directory) < start_size
    checked = [record.key for record in records_of(log.directory) if record.offset < active]
    assert len(checked) == len(set(checked)) == min(100, active)

    # A record of the largest size there may be, and more duplicates.
    largest = 1000
    log.config = TopicConfig(cleanup_policy=log.config.cleanup_policy, segment_bytes=2048, max_message_bytes=largest)
    log.append(("large", bytes(range(256)) * 3), codec=codec)
    write_dups(log, codec, keys=100, copies=3)
    log.roll()
    log.close()
    before = latest_values(log.directory)
    (report,) = cleaner.clean_all([log], NOW_MS)
    assert latest_values(log.directory) == before
    assert report.next_dirty_offset == log.active_base
    assert cleaner.checkpoints.all_offsets() == {TopicPartition("t", 0): log.active_base}
    assert cleaner.clean_filthiest([log], NOW_MS) is None, "nothing is dirty any more"

    # The partition goes: at the next update so does its entry.
    cleaner.checkpoints.update(cleaner.log_dir, set())
    assert cleaner.checkpoints.all_offsets() == {}


@pytest.mark.parametrize("codec", CODECS)
def test_cleans_combined_compact_and_delete_topic(make_log: LogMaker, cleaner: Cleaner, codec: str) -> None:
    log = make_log(segment_bytes=2048, cleanup_policy=frozenset({"compact", "delete"}), min_cleanable_dirty_ratio=0.0)
    write_dups(log, codec, keys=100, copies=3)
    log.roll()
    log.close()
    before = latest_values(log.directory)
    assert len(cleaner.clean_all([log], NOW_MS)) == 1
    assert latest_values(log.directory) == before
    assert len(offsets_in(log.directory)) == 100
    # A second run on the same directory.
    write_dups(log, codec, keys=50, copies=2)
    log.roll()
    log.close()
    before = latest_values(log.directory)
    again = Cleaner(cleaner.kernel, cleaner.log_dir)
    assert len(again.clean_all([log], NOW_MS)) == 1
    assert latest_values(log.directory) == before
    assert len(offsets_in(log.directory)) == 100


def test_max_log_compaction_lag(make_log: LogMaker, cleaner: Cleaner) -> None:
    """Ratio 1.0 never lets a log be cleaned; its age does."""
    log = make_log(segment_bytes=2048, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=6 * HOUR_MS)
    log.append(("first", "1"))
    log.roll()
    clean_once = cleaner.clean_all([log], NOW_MS)
    assert clean_once == [], "a log that is all dirty has ratio 1, which is not above 1"
    write_dups(log, "none", keys=100, copies=2)
    log.roll()
    first_end = log.active_base
    assert cleaner.clean_all([log], NOW_MS + 3 * HOUR_MS) == []

    log.now_ms = NOW_MS + 6 * HOUR_MS + 1
    write_dups(log, "none", keys=100, copies=2)
    log.close()
    assert cleaner.choose([log], NOW_MS + 6 * HOUR_MS).delayed == 0
    choice = cleaner.choose([log], log.now_ms)
    assert (choice.delayed, choice.max_compaction_delay_ms) == (1, 1)
    assert choice.log is not None
    cleaner.states.done_cleaning(choice.log.partition.topic_partition, lambda: None)
    (report,) = cleaner.clean_all([log], log.now_ms)
    # The whole dirty range is cleaned once the oldest of it is due; Kafka's test waits for it to roll.
    assert report.next_dirty_offset == log.active_base >= first_end

    # What came later waits for its own time.
    write_dups(log, "none", keys=100, copies=2)
    log.roll()
    log.close()
    assert cleaner.clean_all([log], log.now_ms + 6 * HOUR_MS) == []
    assert len(cleaner.clean_all([log], log.now_ms + 6 * HOUR_MS + 1)) == 1


def test_marks_partitions_as_uncleanable(make_log: LogMaker, cleaner: Cleaner) -> None:
    """Garbage over segments of two of three partitions: those are set aside as they are, the third is cleaned."""
    logs = [make_log(f"t-{number}", segment_bytes=2048, min_cleanable_dirty_ratio=0.0) for number in range(3)]
    for log in logs:
        write_dups(log, "none", keys=20, copies=3)
        log.roll()
        log.close()
    for log in logs[:2]:
        path = log.directory / names.log_name(0)
        path.write_bytes(b"jogeajgoea" * (path.stat().st_size // 10) + b"x" * (path.stat().st_size % 10))
    before = [picture(log.directory) for log in logs[:2]]

    # As seen before the damage: a load of the directory does not read closed segments.
    reports = cleaner.clean_all(logs, NOW_MS)

    marked = {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert cleaner.states.uncleanable(cleaner.log_dir) == marked
    assert [report.outcome for report in reports if report.topic_partition not in marked] == ["cleaned"]
    assert [picture(log.directory) for log in logs[:2]] == before
    assert len(list(batches_of(logs[2].directory))) == 20

    cleaner.states.drop_absent({TopicPartition("t", 1), TopicPartition("t", 2)})
    assert cleaner.states.uncleanable(cleaner.log_dir) == {TopicPartition("t", 1)}
