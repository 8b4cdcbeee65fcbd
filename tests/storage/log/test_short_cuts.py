"""The native short cuts of append and read against the long way: the same answers, the same files, the same errors."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.errors import LogOfflineError, StorageIOError
from compactd.storage import active_segment, live_segment, log_appending
from compactd.storage.kernel.lookup import locate_batch
from compactd.storage.kernel.validating import append_batch
from compactd.storage.log import PartitionLog
from compactd.storage.open_files import OpenFile
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.storage.log.logs import NOW, batch, config, contents, lead, new_log, reopened
from tests.strategies import examples

pytestmark = pytest.mark.skipif(append_batch is None, reason="the native kernel is not built")

HOUR = 3_600_000
#: (records, producer or -1, time of the first record relative to the clock, value size, codec, whether it is transactional, or
#: the end of the producer's transaction)
appends = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([-1, -1, 7, 7, 8]),
        st.sampled_from([0, 0, 1, -5, HOUR - 1, -HOUR, None]),
        st.sampled_from([0, 30, 3000]),
        st.sampled_from([0, 0, 0, 3]),
        st.sampled_from([False, False, False, True, True, True, "commit", "abort"]),
    ),
    max_size=40,
)


def play(log: PartitionLog, drawn: list[Any]) -> list[Any]:
    """What the log answered to each append, and to reads from all over it."""
    answers: list[Any] = []
    sequences: dict[int, int] = {}
    for count, producer, time, size, codec, transactional in drawn:
        stamp = -1 if time is None else NOW + time
        made = [Record(n, stamp, b"k%d" % n, b"v" * size) for n in range(count)]
        ids: dict[str, Any] = {}
        if producer >= 0:
            ids = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences.get(producer, 0)}
            ids["transactional"] = bool(transactional)
        try:
            if transactional in ("commit", "abort") and producer >= 0:
                ended = log.append_marker(transactional, producer, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
                answers.append(ended)
                log.update_high_watermark(log.log_end_offset)
                continue
            data = bytearray(build_batch(made, base_offset=0, codec=codec, **ids))
            answers.append(log.append_as_leader(data, leader_epoch=0, now_ms=NOW))
            sequences[producer] = sequences.get(producer, 0) + count
        except Exception as error:
            answers.append((type(error), str(error).partition(":")[2]))
        log.update_high_watermark(log.log_end_offset)
    for offset in range(log.log_end_offset):
        for most in (1, 500, 1 << 20):
            with log.read(offset, most, "committed") as fetched:
                answers.append((fetched.read(), fetched.first_offset, fetched.segment_base, fetched.last_stable_offset))
    return answers


def files_after(log: PartitionLog) -> dict[str, bytes]:
    log.close()
    return {path.name: path.read_bytes() for path in log.directory.iterdir()}


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(
    drawn=appends,
    segment=st.sampled_from([400, 5000, 100_000]),
    interval=st.sampled_from([0, 100, 4096]),
    time_type=st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
    index=st.sampled_from([4096, 60]),
)
def test_the_same_with_and_without(
    fast_dir: Path, drawn: list[Any], segment: int, interval: int, time_type: str, index: int
) -> None:
    options = {
        "internal_segment_bytes": segment,
        "index_interval_bytes": interval,
        "message_timestamp_type": time_type,
        "segment_index_bytes": index,
        "segment_ms": HOUR,
        "flush_messages": 7,
    }
    shutil.rmtree(fast_dir / "short", ignore_errors=True)
    shutil.rmtree(fast_dir / "long", ignore_errors=True)
    shutil.rmtree(fast_dir / "longest", ignore_errors=True)
    found = []
    for name in ("short", "long", "longest"):
        (fast_dir / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            if name != "short":
                patch.setattr(active_segment, "append_batch", None)
                patch.setattr(live_segment, "locate_batch", None)
            if name == "longest":
                patch.setattr(log_appending, "follows_on", lambda *_: None)
            log = PartitionLog.create(fast_dir / name / "t-0", config(**options), now_ms=NOW)
            found.append((play(log, drawn), log.recovery_point, files_after(log)))
    assert found[0] == found[1] == found[2]


def test_a_write_that_fails_takes_the_log_offline(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(3):
        lead(log, batch())
    segment = log.active_segment
    size = segment.size
    held = segment.acquire_writable()
    full = os.open("/dev/full", os.O_RDWR)
    kept, held._fd = held._fd, full
    try:
        with pytest.raises(StorageIOError, match="ENOSPC"):
            lead(log, batch())
    finally:
        held._fd = kept
        held.release()
        os.close(full)
    assert (log.log_end_offset, segment.size) == (3, size)
    with pytest.raises(LogOfflineError):
        lead(log, batch())
    assert len(contents(reopened(log, clean=False, recovery_point=0))) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_index_is_not_believed(tmp_path: Path, seed: int) -> None:
    """Whatever the entries say, the batch that is found is the right one."""
    assert locate_batch is not None
    log = new_log(tmp_path, index_interval_bytes=0)
    for _ in range(50):
        lead(log, batch(2))
    segment = log.active_segment
    right = [segment.locate(offset) for offset in range(100)]
    draw = random.Random(seed)
    entries = bytearray(segment.offsets.all_bytes())
    for _ in range(seed + 1):
        entries[draw.randrange(len(entries))] ^= 1 << draw.randrange(8)
    held: OpenFile = segment.acquire()
    try:
        for offset in range(100):
            place = locate_batch(entries, 0, offset, held.fileno(), segment.size, 4157)
            assert place is None or place == right[offset]
    finally:
        held.release()
