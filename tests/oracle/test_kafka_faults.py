"""Where Kafka 4.4.0 itself goes wrong, and compactd, which otherwise leaves the same bytes, does not.

Each test shows Kafka's outcome too: once that changes, the difference can go.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from compactd.storage.cleaning.run import CleanJob, CleanOptions, clean_partition
from compactd.storage.names import TopicPartition
from tests.md5_twins import MD5_TWINS
from tests.oracle.driver import Oracle, record
from tests.oracle.ours import kernels, topic_config
from tests.oracle.scenario import EPOCH_MS
from tests.storage.cleaning.contents import latest_values

pytestmark = pytest.mark.kafka

SLOT_BYTES = 24
CONFIG: dict[str, object] = {"cleanup.policy": "compact", "index.interval.bytes": 0, "delete.retention.ms": 1000}


def clean_with_kafka(oracle: Oracle, directory: Path, slots: int, clocks_and_bounds: list[tuple[int, int]]) -> int:
    """Round after round; the last next dirty offset."""
    oracle.open(directory, CONFIG, now=clocks_and_bounds[0][0])
    first = 0
    for clock, bound in clocks_and_bounds:
        done = oracle.clean(first=first, uncleanable=bound, dedupe=slots * SLOT_BYTES, loadFactor=0.75, now=clock)
        oracle.run_delayed()
        first = done["nextDirtyOffset"]
    oracle.close()
    return first


def clean_with_ours(directory: Path, name: str, slots: int, clocks_and_bounds: list[tuple[int, int]]) -> int:
    """The same rounds with the kernel of that name, with Kafka's map."""
    kernel = next(kernel for kernel in kernels() if kernel.name == name)
    checkpoint: int | None = None
    for clock, bound in clocks_and_bounds:
        job = CleanJob(TopicPartition("t", 0), directory, topic_config(CONFIG), checkpoint, None)
        options = CleanOptions(
            now_ms=clock,
            once=True,
            kafka_map=True,
            map_memory_bytes=slots * SLOT_BYTES,
            map_load_factor=0.75,
            uncleanable_offset=bound,
        )
        report = clean_partition(job, options, kernel, time.monotonic)
        assert report.outcome == "cleaned", report.reason
        checkpoint = report.next_dirty_offset
    assert checkpoint is not None
    return checkpoint


def test_kafka_brings_a_deleted_key_back(oracle: Oracle, fast_dir: Path) -> None:
    """Producer 5 aborts a transaction. The second round begins behind its marker; in it producer 5 deletes k.

    Kafka's pass one is told of the abort (it asks from the log start on), never reads its marker, and takes what producer 5
    commits for aborted. So the delete is not mapped, k=1 stays beside it, and when the tombstone's time has come it goes
    alone: k=1 is back for every reader.
    """
    kafka = fast_dir / "kafka" / "t-0"
    oracle.open(kafka, CONFIG, now=EPOCH_MS)
    oracle.append([record(b"k", b"1")])
    oracle.append([record(b"x", b"1")], pid=5, epoch=0, seq=0, txn=True)
    oracle.control("abort", 5, epoch=0)
    oracle.append([record(b"f", b"1"), record(b"g", b"1")])
    oracle.append([record(b"k", None)], pid=5, epoch=0, seq=1, txn=True)
    oracle.control("commit", 5, epoch=0)
    oracle.roll()
    bound = 7
    oracle.append([record(b"h", b"1")])
    oracle.roll()
    oracle.close()
    copies = {kernel.name: fast_dir / kernel.name / "t-0" for kernel in kernels()}
    for directory in copies.values():
        shutil.copytree(kafka, directory)

    rounds = [(EPOCH_MS, bound), (EPOCH_MS, bound), (EPOCH_MS + 1000, 8)]
    rest = {b"f": b"1", b"g": b"1", b"h": b"1"}
    assert clean_with_kafka(oracle, kafka, 3, rounds) == 8
    assert latest_values(kafka) == {b"k": b"1", **rest}
    for name, directory in copies.items():
        assert clean_with_ours(directory, name, 3, rounds) == 8
        assert latest_values(directory) == rest


def test_kafka_takes_two_keys_of_one_md5_for_one(oracle: Oracle, fast_dir: Path) -> None:
    kafka = fast_dir / "kafka" / "t-0"
    oracle.open(kafka, CONFIG, now=EPOCH_MS)
    for key in MD5_TWINS:
        oracle.append([record(key, b"v")])
    oracle.roll()
    oracle.close()
    copies = {kernel.name: fast_dir / kernel.name / "t-0" for kernel in kernels()}
    for directory in copies.values():
        shutil.copytree(kafka, directory)

    clean_with_kafka(oracle, kafka, 100, [(EPOCH_MS, 2)])
    assert latest_values(kafka) == {MD5_TWINS[1]: b"v"}
    for name, directory in copies.items():
        clean_with_ours(directory, name, 100, [(EPOCH_MS, 2)])
        assert latest_values(directory) == dict.fromkeys(MD5_TWINS, b"v")
