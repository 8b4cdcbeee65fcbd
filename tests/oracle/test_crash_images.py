"""What a clean of ours leaves when it is stopped at any call, given to Kafka's own loader.

The log dir of an orderly stopped broker still says so while compactd cleans it: Kafka trusts every index it finds.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from compactd.config.settings import TopicConfig
from compactd.storage import files
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel import reference_kernel
from compactd.storage.names import TopicPartition
from tests.file_faults import FaultyLayer, PowerCut
from tests.logs import NOW_MS, LogBuilder
from tests.oracle.driver import Answer, Oracle, topic_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

#: Small groups, so that a round has several swaps; an index entry for every batch but the first.
CONFIG: dict[str, object] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 380,
    "index.interval.bytes": 0,
    "segment.index.bytes": 4096,
}


def write_log(directory: Path) -> None:
    """Five closed segments with a committed and an aborted transaction, and an active one."""
    with LogBuilder(directory, TopicConfig.from_strings(topic_settings(CONFIG))) as log:
        log.append([("a", "1"), ("b", "1")])
        log.append([("t", "1")], pid=1, transactional=True)
        log.roll()
        log.append([("a", "2")])
        log.append([("b", "aborted")], pid=2, transactional=True)
        log.control("commit", 1)
        log.roll()
        log.append([("c", "1"), ("d", None)])
        log.control("abort", 2)
        log.roll()
        log.append([("c", "2"), ("t", "aborted")], pid=2, transactional=True)
        log.control("abort", 2)
        log.roll()
        log.append([("e", "1"), ("a", "3")], codec="zstd")
        log.roll()
        log.append([("e", "2")])


EXPECTED = {"a": "3", "b": "1", "c": "1", "e": "2", "t": "1"}


def clean(directory: Path) -> PartitionReport:
    config = TopicConfig.from_strings(topic_settings(CONFIG))
    job = CleanJob(TopicPartition("t", 0), directory, config, checkpoint=None, high_watermark=None)
    return clean_partition(job, CleanOptions(now_ms=NOW_MS + 1000), reference_kernel(), time.perf_counter)


def latest_committed(oracle: Oracle) -> dict[str, str]:
    """Key to its latest value, as a consumer that reads committed records sees it; deleted keys left out."""
    aborted: dict[int, list[Answer]] = {}
    for entry in oracle.producers()["aborted"]:
        aborted.setdefault(entry["pid"], []).append(entry)
    latest: dict[str, str] = {}
    end = 0
    for batch in oracle.dump():
        assert batch["baseOffset"] >= end, f"offset {batch['baseOffset']} after {end}"
        end = batch["lastOffset"] + 1
        over = any(t["firstOffset"] <= batch["baseOffset"] <= t["lastOffset"] for t in aborted.get(batch["pid"], ()))
        if batch["control"] or (batch["txn"] and over):
            continue
        for record in batch["records"]:
            key = base64.b64decode(record["key"]).decode()
            latest.pop(key, None)
            if record["value"] is not None:
                latest[key] = base64.b64decode(record["value"]).decode()
    return latest


def test_latest_values_of_the_whole_log(oracle: Oracle, fast_dir: Path) -> None:
    write_log(fast_dir / "t-0")
    oracle.open(fast_dir / "t-0", CONFIG, now=NOW_MS)
    assert latest_committed(oracle) == EXPECTED


@pytest.mark.parametrize("loss", ["process", "power", "power-partly"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kafka_loads_what_is_left_at_every_call(oracle: Oracle, fast_dir: Path, loss: str, after: bool) -> None:
    number, stopped = 0, True
    while stopped:
        directory = fast_dir / f"stop{number}" / "t-0"
        write_log(directory)
        layer = FaultyLayer()
        layer.stop_at(number, after=after)
        with files.replaced(layer):
            try:
                report = clean(directory)
                assert (report.outcome, report.groups) == ("cleaned", 3), report.reason
                stopped = False
            except PowerCut:
                if loss != "process":
                    layer.lose_unsynced(seed=number if loss == "power-partly" else None)
        layer.close_all()

        where = f"stopped {'after' if after else 'before'} call {number}: {layer.calls[-1]}"
        state = oracle.open(directory, CONFIG, now=NOW_MS)
        assert state["logEndOffset"] == 15, where
        assert latest_committed(oracle) == EXPECTED, where
        # Kafka's cleaner takes it from there.
        oracle.clean(now=NOW_MS + 2000)
        oracle.run_delayed()
        assert latest_committed(oracle) == EXPECTED, where
        oracle.close()
        left = [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted", ".tmp")]
        assert left == [], where
        number += 1
    assert number > 60
