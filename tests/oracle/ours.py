"""compactd's side of a comparison: loads and cleans what Kafka loaded and cleaned, by the same clock and settings."""

from __future__ import annotations

import os
import time
from pathlib import Path

from compactd.config.settings import TopicConfig
from compactd.storage.cleaning.aborted import AbortedTransactions
from compactd.storage.cleaning.cleanable import segments_between
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel import native_kernel, reference_kernel
from compactd.storage.kernel.interface import Kernel
from compactd.storage.names import parse_partition_dir
from compactd.storage.partition import Partition
from compactd.storage.records.batch import read_batches
from tests.oracle.driver import topic_settings
from tests.oracle.replay import KAFKA_SLOT_BYTES, Cleaning


def topic_config(config: dict[str, object]) -> TopicConfig:
    return TopicConfig.from_strings(topic_settings(config), "test")


def load(directory: Path, cleaning: Cleaning) -> Partition:
    """compactd's view of a directory at the round's clock, start offset and high watermark."""
    return Partition.load(
        directory,
        topic_config(cleaning.image.config),
        now_ms=cleaning.image.now_ms,
        log_start_offset=cleaning.image.log_start_offset,
        high_watermark=cleaning.high_watermark,
        clean_shutdown=cleaning.image.clean_shutdown,
        recovery_point=cleaning.image.recovery_point,
    )


def kernels() -> list[Kernel]:
    """Every kernel that is there: the reference, and the native one where it was built.

    COMPACTD_ORACLE_KERNEL=reference leaves the native one out, to work on the specification alone.
    """
    reference, native = reference_kernel(), native_kernel()
    if native is None or os.environ.get("COMPACTD_ORACLE_KERNEL") == reference.name:
        return [reference]
    return [native, reference]


def clean(directory: Path, cleaning: Cleaning, kernel: Kernel, once: bool = True) -> PartitionReport:
    """Cleans a copy of the round's directory as `compactd clean --kafka-map` does, and removes what it replaced."""
    image = cleaning.image
    job = CleanJob(
        parse_partition_dir(directory.name).topic_partition,
        directory,
        topic_config(image.config),
        image.checkpoint,
        cleaning.high_watermark,
        image.log_start_offset,
        image.clean_shutdown,
        image.recovery_point,
    )
    options = CleanOptions(
        now_ms=image.now_ms,
        once=once,
        kafka_map=True,
        map_memory_bytes=cleaning.map_slots * KAFKA_SLOT_BYTES,
        map_load_factor=cleaning.load_factor,
    )
    report = clean_partition(job, options, kernel, time.monotonic)
    for path in report.deleted:
        path.unlink(missing_ok=True)  # a later round replaced the same file again
    return report


def hides_commits(partition: Partition, first: int, bound: int) -> bool:
    """Whether Kafka's pass one takes committed records for aborted: compactd does not (test_kafka_faults.py).

    It is told of every transaction in the index of the first dirty segment, also of those whose marker lies before the
    batches that it reads; these never end for it, and what their producers commit is not mapped. `first`, `bound`: the
    dirty range.
    """
    dirty = segments_between(partition.segments, first, bound)
    position = dirty[0].offset_index.lookup(first)[1] if dirty else 0
    read = [
        batch.header
        for segment in dirty
        for batch in read_batches(segment.log_path, position if segment is dirty[0] else 0, segment.size)
    ]
    if not read:
        return False
    aborted = AbortedTransactions(partition.segments).collect(first, partition.log_start_offset, bound)
    over = {entry.producer_id for entry in aborted if entry.last_offset < read[0].base_offset}
    return any(h.is_transactional and not h.is_control and h.producer_id in over for h in read)
