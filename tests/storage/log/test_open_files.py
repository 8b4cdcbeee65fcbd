"""Bounded open files: many partitions, few descriptors (report A35)."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from compactd.storage.log import Resources
from compactd.storage.open_files import OpenFile, OpenFiles, Slot
from tests.storage.log.logs import NOW, batch, contents, lead, new_log, offsets_of
from tests.strategies import profile

PARTITIONS = 5000 if profile() == "soak" else 200


def test_many_partitions_with_a_low_ulimit(fast_dir: Path) -> None:
    """5,000 partitions fit 1,024 descriptors; here as many in proportion, all appended to, rolled and read in turn."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    limit = max(16, PARTITIONS // 10)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + limit + 12, hard))
    try:
        resources = Resources(files=OpenFiles(limit=limit))
        logs = []
        for number in range(PARTITIONS):
            (fast_dir / str(number)).mkdir()
            logs.append(new_log(fast_dir / str(number), options={"resources": resources}))
        for turn in range(3):
            for log in logs:
                lead(log, batch(2))
                if turn == 1:
                    log.roll(now_ms=NOW)
        for log in logs:
            assert offsets_of(contents(log)) == list(range(6))
        assert len(resources.files) <= limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opener(owner: OpenFiles, path: Path) -> OpenFile:
    return OpenFile(owner, os.open(path, os.O_RDONLY))


def test_a_held_file_is_never_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files, slots = OpenFiles(limit=1), [Slot() for _ in range(3)]
    held = [files.acquire(slot, lambda: opener(files, path)) for slot in slots]
    assert [os.pread(each.fileno(), 7, 0) for each in held] == [b"content"] * 3
    again = held[0].hold()
    for each in held:
        each.release()
    assert os.pread(again.fileno(), 7, 0) == b"content"
    files.forget(slots[0])
    assert os.pread(again.fileno(), 7, 0) == b"content"
    again.release()
    with pytest.raises(ValueError, match="closed"):
        again.fileno()
    for slot in slots:
        files.forget(slot)
        files.forget(slot)
    assert len(files) == 0


def test_a_file_that_is_written_is_never_closed(tmp_path: Path) -> None:
    """Appends take no lock: what they mark is left alone, and what is being closed they see."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files, mine, other = OpenFiles(limit=1), Slot(), Slot()
    writer = files.acquire(mine, lambda: opener(files, path))
    writer.release()
    writer.writing = True
    files.acquire(other, lambda: opener(files, path)).release()
    assert mine.file is writer and not writer.closing
    writer.writing = False
    files.acquire(Slot(), lambda: opener(files, path)).release()
    assert mine.file is None and writer.closing
    files.forget(other)
    for slot in list(files._recent):
        files.forget(slot)


def test_threads_share_one_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    files, slots = OpenFiles(limit=2), [Slot() for _ in range(6)]
    errors: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            for turn in range(400):
                slot = slots[(turn * 7 + seed) % len(slots)]
                held = files.acquire(slot, lambda: opener(files, path))
                assert os.pread(held.fileno(), 1, seed) == b"x"
                held.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(files) <= 2
    for slot in slots:
        files.forget(slot)
