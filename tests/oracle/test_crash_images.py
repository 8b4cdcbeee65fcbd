"""What a crash in the middle of a clean leaves, opened by Kafka's own loader.

A clean of compactd is stopped before and after every call of the file layer, with and without losing what was not fsynced.
Kafka then starts on each picture, as after an orderly stop and as after a crash: every key must have its latest value, the
log its end, and no file may be left that a broker would not have.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel.interface import Kernel
from compactd.storage.names import TopicPartition
from tests.file_faults import FaultyLayer, PowerCut
from tests.oracle.driver import Oracle, decode, topic_settings
from tests.oracle.ours import kernels
from tests.oracle.scenario import EPOCH_MS
from tests.storage.cleaning.contents import latest_values
from tests.storage.cleaning.short_log import ShortLog

pytestmark = pytest.mark.kafka

#: The first two closed segments merge, the third stays alone, so a round has two swaps.
CONFIG: dict[str, object] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 600,
    "index.interval.bytes": 0,
    "delete.retention.ms": 1000,
}
TOPIC = TopicConfig.from_strings(topic_settings(CONFIG), "test")
EXPECTED = {b"a": b"2", b"b": b"2", b"c": b"2", b"e": b"2", b"f": b"1"}
END = 14


def write_log(directory: Path) -> Path:
    """Superseded records, a tombstone, a transaction aborted across segments, one committed; the last segment is active."""
    log = ShortLog(directory, TOPIC)
    log.append(("a", 1), ("b", 1))  # 0, 1
    log.append(("c", 1))  # 2
    log.append(("aborted", 1), pid=5, transactional=True)  # 3
    log.roll()
    log.append(("a", 2))  # 4
    log.abort(5)  # 5
    log.append(("d", None))  # 6
    log.append(("f", 1), pid=6, transactional=True)  # 7
    log.roll()
    log.append(("c", 2), ("e", 1))  # 8, 9
    log.append(("b", 2))  # 10
    log.commit(6)  # 11
    log.append(("d", None), ("e", 2))  # 12, 13
    log.roll()
    log.close()
    return directory


def clean(directory: Path, kernel: Kernel) -> PartitionReport:
    job = CleanJob(TopicPartition("t", 0), directory, TOPIC, checkpoint=None, high_watermark=None)
    options = CleanOptions(now_ms=EPOCH_MS + 1, map_memory_bytes=1 << 20)
    return clean_partition(job, options, kernel, time.perf_counter)


def committed(directory: Path) -> dict[bytes, bytes]:
    """Latest values but for the key whose records all were aborted: they may be there still, or not any more."""
    return {key: value for key, value in latest_values(directory).items() if key != b"aborted"}


def check(oracle: Oracle, directory: Path, clean_shutdown: bool, where: str) -> None:
    """Kafka's loader on a picture."""
    state = oracle.open(directory, CONFIG, now=EPOCH_MS + 2, cleanShutdown=clean_shutdown, recoveryPoint=0)
    assert state["logEndOffset"] == END, where
    assert state["lastStableOffset"] == END, where
    found: dict[bytes | None, bytes | None] = {}
    offsets = [-1]
    for batch in oracle.dump():
        for record in batch["records"]:
            assert record["offset"] > offsets[-1], where
            offsets.append(record["offset"])
            if not batch.get("control"):
                found[decode(record["key"])] = decode(record["value"])
    assert {k: v for k, v in found.items() if v is not None and k != b"aborted"} == EXPECTED, where
    if 3 in offsets:  # the aborted record is there still: so must be what hides it from readers
        indexed = [(entry["pid"], entry["firstOffset"], entry["lastOffset"]) for entry in oracle.producers()["aborted"]]
        assert indexed == [(5, 3, 5)], where
    oracle.run_delayed()
    oracle.close()
    bases = set()
    for path in directory.iterdir():
        parsed = names.parse_segment_name(path.name)
        known = {names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA}
        assert path.name in known or (parsed is not None and not parsed.suffix), f"{where}: {path.name} is left"
        if parsed is not None and parsed.kind == names.LOG:
            bases.add(parsed.base_offset)
    for path in directory.iterdir():
        parsed = names.parse_segment_name(path.name)
        if parsed is not None and parsed.kind != names.SNAPSHOT:
            assert parsed.base_offset in bases, f"{where}: {path.name} has no log"
    assert committed(directory) == EXPECTED, where


def picture(work: Path, kernel: Kernel, number: int, after: bool, loss: str) -> tuple[Path, str]:
    """A directory as a stop at a call of the file layer leaves it, and where that was."""
    directory = write_log(work / f"{kernel.name}-{number}-{loss}-{after}" / "t-0")
    layer = FaultyLayer()
    layer.stop_at(number, after=after)
    with files.replaced(layer), pytest.raises(PowerCut):
        clean(directory, kernel)
    if loss != "process":
        layer.lose_unsynced(seed=number if loss == "power-partly" else None)
    layer.close_all()
    return directory, f"stopped {'after' if after else 'before'} call {number}, {layer.calls[-1]}; {loss}"


def calls(work: Path, kernel: Kernel) -> int:
    """How many calls a clean that is not stopped makes."""
    layer = FaultyLayer()
    directory = write_log(work / "count" / "t-0")
    with files.replaced(layer):
        clean(directory, kernel)
    layer.close_all()
    assert layer.count > 60
    return layer.count


def test_the_log_of_these_pictures_cleans_as_meant(oracle: Oracle, fast_dir: Path) -> None:
    for kernel in kernels():
        directory = write_log(fast_dir / kernel.name / "t-0")
        report = clean(directory, kernel)
        assert (report.outcome, report.groups, report.next_dirty_offset) == ("cleaned", 2, END), report.reason
        assert sorted(path.name for path in directory.glob("*.txnindex")), "an abort is still indexed"
        check(oracle, directory, True, "not stopped")


@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["orderly", "crash"])
@pytest.mark.parametrize("loss", ["process", "power", "power-partly"])
def test_kafka_opens_every_picture(oracle: Oracle, fast_dir: Path, loss: str, clean_shutdown: bool) -> None:
    kernel = kernels()[0]
    for number in range(calls(fast_dir, kernel)):
        for after in (False, True):
            directory, where = picture(fast_dir, kernel, number, after, loss)
            check(oracle, directory, clean_shutdown, where)


@pytest.mark.parametrize("clean_shutdown", [True, False], ids=["orderly", "crash"])
def test_kafka_opens_every_picture_of_a_stopped_recovery(oracle: Oracle, fast_dir: Path, clean_shutdown: bool) -> None:
    """compactd finishes or drops an interrupted swap before it cleans; stopped there, Kafka takes over."""
    kernel = kernels()[-1]
    for crash in range(0, calls(fast_dir, kernel), 5):
        stop, done = 0, False
        while not done:
            directory, where = picture(fast_dir / str(stop), kernel, crash, False, "process")
            layer = FaultyLayer()
            layer.stop_at(stop)
            try:
                with files.replaced(layer):
                    clean(directory, kernel)
                done = True
            except PowerCut:
                layer.lose_unsynced()
            layer.close_all()
            check(oracle, directory, clean_shutdown, f"{where}; its repetition stopped at {stop}")
            stop += 3
