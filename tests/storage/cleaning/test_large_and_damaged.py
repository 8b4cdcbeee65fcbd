"""Kafka's LogCleanerTest: large messages and damaged ones (facts 12.1), by Kafka's test names.

Kafka's cleaner has buffers of a set size that grow up to a limit; compactd's kernels read what a batch's length says, once
that was checked against the bytes that are there. So nothing is too large, and the damage is named.
"""

from __future__ import annotations

import os

import pytest

from compactd.config.errors import CorruptBatchError
from compactd.storage import names
from compactd.storage.kernel.interface import Kernel
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import keys_in, picture
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import ShortLog

LARGE = b"\0" * (1 << 20)


def large_messages(make_log: LogMaker, **settings: int) -> ShortLog:
    """Seven records of 1 MiB each in the first segment, then newer ones of keys 1, 3 and 5."""
    log = make_log(segment_bytes=16 << 20, **settings)
    for key in range(7):
        log.append((key, LARGE))
    log.roll()
    for key in (1, 3, 5):
        log.append((key, b"later"))
    log.roll()
    return log


def test_large_message(make_log: LogMaker, kernel: Kernel) -> None:
    log = large_messages(make_log, max_message_bytes=2 << 20)
    clean(log, kernel)
    assert keys_in(log.directory) == [0, 2, 4, 6, 1, 3, 5]


def test_message_larger_than_max_message_size(make_log: LogMaker, kernel: Kernel) -> None:
    """max.message.bytes was lowered after the data was written: it is cleaned all the same."""
    log = large_messages(make_log, max_message_bytes=1 << 19)
    clean(log, kernel)
    assert keys_in(log.directory) == [0, 2, 4, 6, 1, 3, 5]


def test_message_larger_than_max_message_size_with_corrupt_header(make_log: LogMaker, kernel: Kernel) -> None:
    log = large_messages(make_log, max_message_bytes=1 << 19)
    partition = load(log)
    path = log.directory / names.log_name(0)
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\xff")
    before = picture(log.directory)
    with pytest.raises(CorruptBatchError, match="unknown magic") as caught:
        clean(log, kernel, partition=partition)
    assert (caught.value.path, caught.value.position) == (str(path), 0)
    assert picture(log.directory) == before


@pytest.mark.parametrize("left", [1024, 100, 61, 60, 17, 12, 1])
def test_corrupt_message_size_larger_than_bytes_available(make_log: LogMaker, kernel: Kernel, left: int) -> None:
    """The file ends inside a batch, wherever that is."""
    log = large_messages(make_log, max_message_bytes=1 << 19)
    partition = load(log)
    os.truncate(log.directory / names.log_name(0), left)
    partition.segments[0].size = left
    before = picture(log.directory)
    with pytest.raises(CorruptBatchError, match="truncated"):
        clean(log, kernel, partition=partition)
    assert picture(log.directory) == before


@pytest.mark.parametrize("left", [1024, 61, 0])
def test_a_file_shorter_than_when_it_was_listed(make_log: LogMaker, kernel: Kernel, left: int) -> None:
    """Cut between the listing and the clean: as damaged, not as shorter."""
    log = large_messages(make_log)
    partition = load(log)
    os.truncate(log.directory / names.log_name(0), left)
    with pytest.raises(CorruptBatchError):
        clean(log, kernel, partition=partition)
