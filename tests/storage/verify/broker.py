"""A stopped broker's log dir with every kind of file, for the tests of verify and of bit flips."""

from __future__ import annotations

import uuid
from pathlib import Path

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.names import TopicPartition
from compactd.storage.partition_metadata import write_partition_metadata
from compactd.storage.verify import Expectations
from compactd.storage.verify_log_dir import LogDirCheck, verify_log_dir
from tests.logs import NOW_MS, Entry, LogBuilder

NAME = TopicPartition("t", 0)
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=700, index_interval_bytes=0, retention_ms=3_600_000
)


def stopped_broker(path: Path) -> Path:
    """Returns t-0's directory: four segments, transactions of which one was aborted, two leader epochs."""
    path.mkdir()
    directory = path / "t-0"
    with LogBuilder(directory, CONFIG) as log:
        for number in range(24):
            epoch = 0 if number < 10 else 1
            if number == 7:
                log.control("abort", 5, leader_epoch=epoch)
            elif number == 15:
                log.control("commit", 5, leader_epoch=epoch)
            else:
                pid = 5 if number % 3 == 0 and 3 <= number < 15 else -1
                log.append(
                    [Entry(f"k{number}", "v" * 20, NOW_MS + number)],
                    pid=pid,
                    transactional=pid >= 0,
                    leader_epoch=epoch,
                )
    write_partition_metadata(directory / names.PARTITION_METADATA, uuid.UUID(int=7 << 64 | 77))
    log_dir = LogDir(path)
    log_dir.write_meta(MetaProperties(1, "cluster-000000000000-A", 1, uuid.UUID(int=9 << 64 | 3)), NOW_MS)
    ends = {NAME: log.log_end_offset}
    log_dir.recovery_points.write(ends)
    log_dir.high_watermarks.write(ends)
    log_dir.log_start_offsets.write({})
    log_dir.cleaner_offsets.write({NAME: log.segment_bases[2]})
    log_dir.write_clean_shutdown(42)
    return directory


def expectations(check: LogDirCheck) -> Expectations:
    """What the log dir's own files say about t-0."""
    return Expectations(
        clean_shutdown=check.clean_shutdown,
        recovery_point=check.entry("recovery-point-offset-checkpoint", NAME),
        log_start_offset=check.entry("log-start-offset-checkpoint", NAME),
        high_watermark=check.entry("replication-offset-checkpoint", NAME),
        cleaner_offset=check.entry("cleaner-offset-checkpoint", NAME),
        topic_id=names.uuid_text(uuid.UUID(int=7 << 64 | 77)),
    )


def dir_check(path: Path) -> LogDirCheck:
    return verify_log_dir(path)
