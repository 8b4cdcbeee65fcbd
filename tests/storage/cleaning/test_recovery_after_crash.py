"""Kafka's LogCleanerTest.testRecoveryAfterCrash: six pictures that a crash may leave (facts 12.1, 5.9, 8.2)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.storage import names
from compactd.storage.kernel.interface import Kernel
from compactd.storage.loader import load_log
from compactd.storage.names import CLEANED, DELETED, SWAP
from compactd.storage.partition import Partition
from compactd.storage.swap import pending_swap_files, recover_swap, segment_file_names
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import batches_of, keys_in
from tests.storage.cleaning.rounds import clean
from tests.storage.cleaning.short_log import ShortLog

#: A picture: what of the finished swap is undone. Gets the directory and the cleaned segment's existing files.
Undo = Callable[[Path, list[str]], None]


def restore_sources(directory: Path) -> None:
    for path in directory.glob(f"*{DELETED}"):
        path.rename(str(path).removesuffix(DELETED))


def back_to(directory: Path, files: list[str], suffix: str) -> None:
    for name in files:
        (directory / name).rename(directory / (name + suffix))


def only_cleaned(directory: Path, files: list[str]) -> None:
    back_to(directory, files, CLEANED)
    restore_sources(directory)


def part_cleaned_part_swap(directory: Path, files: list[str]) -> None:
    back_to(directory, files[:1], SWAP)
    back_to(directory, files[1:], CLEANED)
    restore_sources(directory)


def all_swap_sources_there(directory: Path, files: list[str]) -> None:
    back_to(directory, files, SWAP)
    restore_sources(directory)


def all_swap_sources_deleted(directory: Path, files: list[str]) -> None:
    back_to(directory, files, SWAP)


def only_the_time_index_is_swap(directory: Path, files: list[str]) -> None:
    back_to(directory, [name for name in files if name.endswith(names.TIME_INDEX)], SWAP)


def swap_done(directory: Path, files: list[str]) -> None:
    assert list(directory.glob(f"*{DELETED}"))


PICTURES: list[tuple[Undo, bool]] = [
    (only_cleaned, False),
    (part_cleaned_part_swap, False),
    (all_swap_sources_there, True),
    (all_swap_sources_deleted, True),
    (only_the_time_index_is_swap, True),
    (swap_done, True),
]


def cleaned_log(make_log: LogMaker, kernel: Kernel) -> tuple[ShortLog, list[int], list[int]]:
    """Closed segments of which every odd key was superseded, cleaned into one; keys before and after."""
    log = make_log(segment_bytes=300, index_interval_bytes=1, file_delete_delay_ms=10)
    while log.segment_count < 6:
        log.append((log.end_offset, log.end_offset))
    for key in range(1, log.end_offset, 2):
        log.append((key, "later"))
    log.roll()
    log.close()
    before = keys_in(log.directory)
    # One group: everything becomes one segment, so that the order of several does not matter here.
    log.config = type(log.config)(cleanup_policy=log.config.cleanup_policy, segment_bytes=1 << 20)
    clean(log, kernel, keep_deleted=True)
    return log, before, keys_in(log.directory)


@pytest.mark.parametrize("loader", ["recover_swap", "clean start", "unclean start"])
@pytest.mark.parametrize(("undo", "finished"), PICTURES, ids=[undo.__name__ for undo, _ in PICTURES])
def test_recovery_after_crash(
    make_log: LogMaker, kernel: Kernel, log_dir: Path, undo: Undo, finished: bool, loader: str
) -> None:
    log, before, after = cleaned_log(make_log, kernel)
    assert sorted(set(before)) == sorted(after) and len(after) < len(before)
    directory = shutil.copytree(log.directory, log_dir / "image-0")
    undo(directory, [name for name in segment_file_names(0) if (directory / name).exists()])

    if loader == "recover_swap":
        recover_swap(directory)
    else:
        load_log(directory, log.config, clean_shutdown=loader == "clean start", now_ms=NOW_MS)

    assert pending_swap_files(directory) == []
    assert keys_in(directory) == (after if finished else before)
    partition = Partition.load(directory, log.config, now_ms=NOW_MS)
    assert partition.log_end_offset == log.end_offset
    check_indexes(partition)


def check_indexes(partition: Partition) -> None:
    """Each segment's indexes lie inside it and say what its batches say."""
    for segment in partition.segments[:-1]:
        assert list(segment.offset_index.check(segment.size)) == []
        assert list(segment.time_index.check()) == []
        scan = segment.scan()
        assert scan.fault is None
        assert segment.max_timestamp == scan.max_timestamp
    starts = {batch.header.last_offset for batch in batches_of(partition.directory)}
    for segment in partition.segments[:-1]:
        assert {offset for offset, _ in segment.offset_index.entries} <= starts
