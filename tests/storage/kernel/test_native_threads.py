"""Several threads on one partition: the same results, bytes and errors as one, in bounded memory, and none left over."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError, OffsetOverflowError, StorageIOError
from compactd.storage.kernel import reference_kernel
from compactd.storage.kernel.interface import (
    GroupResult,
    Kernel,
    KernelRound,
    MapResult,
    OutputFile,
    RoundSettings,
    SourceSegment,
)
from compactd.storage.records.batch import Record
from compactd.storage.records.builder import build_batch
from tests.storage.kernel.test_native_equals_reference import Plan, compare_kernels, damage, logs, plans
from tests.strategies import examples

native_adapter = pytest.importorskip("compactd.storage.kernel.native_adapter", reason="the native kernel was not built")

SETTINGS = RoundSettings(
    first_dirty_offset=0,
    high_watermark=1 << 40,
    now_ms=1_700_000_000_000,
    delete_retention_ms=1000,
    index_interval_bytes=4096,
)


class Threaded:
    """The native kernel with `threads`, each given `chunk_bytes` at once."""

    def __init__(self, threads: int, chunk_bytes: int = native_adapter.CHUNK_BYTES) -> None:
        self.name = f"native on {threads}"
        self._threads, self._chunk_bytes = threads, chunk_bytes

    def begin_round(self, settings: RoundSettings) -> KernelRound:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_adapter, "CHUNK_BYTES", self._chunk_bytes)
            return cast(KernelRound, native_adapter.KERNEL.begin_round(replace(settings, threads=self._threads)))


#: Logs of examples are small: chunks of one batch, of a few, and of whole segments.
KERNELS: tuple[Kernel, ...] = (Threaded(3, 1), Threaded(1), Threaded(3, 700), Threaded(2, 5000), reference_kernel())


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_same_results_and_bytes(data: st.DataObject) -> None:
    log = data.draw(logs())
    compare_kernels(KERNELS, log, data.draw(plans(log)))


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_same_error_on_damage(data: st.DataObject) -> None:
    log = data.draw(logs())
    plan: Plan = replace(data.draw(plans(log)), start=0)
    # The first damage wins, whichever thread meets it first.
    for _ in range(data.draw(st.integers(1, 3))):
        log = damage(data, log)
    compare_kernels(KERNELS, log, plan)


BATCHES, RECORDS = 300, 20


def write_log(directory: Path, codec: int, segments: int = 2) -> list[SourceSegment]:
    """Segments of 300 batches, about 2 MB each before compression, with half of the records superseded."""
    source, found, offset = random.Random(codec), [], 0
    for number in range(segments):
        data, base = [], offset
        for _ in range(BATCHES):
            records = [
                Record(
                    offset + i,
                    1000,
                    b"%d" % source.randrange(BATCHES * RECORDS),
                    source.randbytes(150).hex().encode(),
                    (),
                )
                for i in range(RECORDS)
            ]
            data.append(build_batch(records, base_offset=offset, codec=codec))
            offset += RECORDS
        path = directory / f"{number}.log"
        path.write_bytes(b"".join(data))
        found.append(SourceSegment(str(path), base, path.stat().st_size, offset))
    return found


def clean(
    kernel: Kernel, group: list[SourceSegment], output: Path
) -> tuple[MapResult, GroupResult, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []

    def progress(read: int, written: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((read, written))

    round_ = kernel.begin_round(SETTINGS)
    try:
        mapped = round_.build_map(group, [], progress)
        with output.open("wb", buffering=0) as file:
            return mapped, round_.clean_group(group, {}, cast(OutputFile, file), progress), told
    finally:
        round_.close()


@pytest.mark.parametrize("codec", range(5))
def test_large_logs_come_out_alike(tmp_path: Path, codec: int) -> None:
    group = write_log(tmp_path, codec)
    outcomes = []
    for kernel in (Threaded(1), Threaded(2), Threaded(4, 20_000)):
        result = clean(kernel, group, tmp_path / "out")
        outcomes.append((result, (tmp_path / "out").read_bytes()))
    assert outcomes[0][0][1].stats.batches_rewritten > BATCHES
    assert outcomes[1] == outcomes[0]
    assert outcomes[2] == outcomes[0]


def threads_alive() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    before = threads_alive()
    yield
    # A joined thread may be listed until the kernel has reaped it.
    for _ in range(1000):
        if threads_alive() <= before:
            return
        time.sleep(0.01)
    pytest.fail(f"{threads_alive()} threads, {before} before")


class StopError(Exception):
    pass


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("in_map", [True, False])
def test_an_abort_ends_all_threads(tmp_path: Path, in_map: bool) -> None:
    group = write_log(tmp_path, 0, segments=4)
    seen: list[int] = []

    def stop(_read: int, _written: int) -> None:
        seen.append(threads_alive())
        raise StopError

    alone = threads_alive()
    round_ = Threaded(4, 10_000).begin_round(SETTINGS)
    try:
        with pytest.raises(StopError), (tmp_path / "out").open("wb", buffering=0) as file:
            round_.build_map(group, [], stop if in_map else None)
            round_.clean_group(group, {}, cast(OutputFile, file), stop)
    finally:
        round_.close()
    # They were at work when it came, so there was something to end. (Another thread of this process may have ended meanwhile.)
    (with_them,) = seen
    assert alone < with_them <= alone + 3


@pytest.mark.usefixtures("no_thread_stays")
@pytest.mark.parametrize("in_map", [True, False])
def test_the_first_damage_wins_and_ends_all_threads(tmp_path: Path, in_map: bool) -> None:
    group = write_log(tmp_path, 3)
    round_ = Threaded(4, 10_000).begin_round(SETTINGS)
    try:
        if not in_map:
            round_.build_map(group, [])
        positions = []
        for source in group:
            content = bytearray(Path(source.path).read_bytes())
            positions.append(len(content) // 2)
            for at in range(positions[-1], len(content), 1000):
                content[at] ^= 0xFF
            Path(source.path).write_bytes(content)
        with pytest.raises(CorruptBatchError) as caught, (tmp_path / "out").open("wb", buffering=0) as file:
            if in_map:
                round_.build_map(group, [])
            round_.clean_group(group, {}, cast(OutputFile, file))
        assert caught.value.fields["path"] == group[0].path
        assert positions[0] - 10_000 < caught.value.fields["position"] <= positions[0]
    finally:
        round_.close()


@pytest.mark.usefixtures("no_thread_stays")
def test_a_failing_write_ends_all_threads(tmp_path: Path) -> None:
    group = write_log(tmp_path, 3)
    round_ = Threaded(4, 10_000).begin_round(SETTINGS)
    try:
        round_.build_map(group, [])
        with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(StorageIOError, match="no space left"):
            round_.clean_group(group, {}, cast(OutputFile, full))
    finally:
        round_.close()


@pytest.mark.usefixtures("no_thread_stays")
def test_offsets_too_far_apart_name_their_source(tmp_path: Path) -> None:
    group = write_log(tmp_path, 3)
    far = 1 << 33
    path = tmp_path / "far.log"
    path.write_bytes(build_batch([Record(far, 5, b"far", b"v", ())], base_offset=far))
    group.append(SourceSegment(str(path), far, path.stat().st_size, far + 1))
    round_ = Threaded(3, 10_000).begin_round(SETTINGS)
    try:
        round_.build_map(group, [])
        with pytest.raises(OffsetOverflowError) as caught, (tmp_path / "out").open("wb", buffering=0) as file:
            round_.clean_group(group, {}, cast(OutputFile, file))
        assert caught.value.fields["source"] == 2
    finally:
        round_.close()


@pytest.mark.usefixtures("no_thread_stays")
def test_a_signal_ends_all_threads(tmp_path: Path) -> None:
    group = write_log(tmp_path, 0, segments=4)

    def interrupt(_read: int, _written: int) -> None:
        signal.raise_signal(signal.SIGINT)

    round_ = Threaded(3, 10_000).begin_round(SETTINGS)
    try:
        with pytest.raises(KeyboardInterrupt):
            round_.build_map(group, [], interrupt)
    finally:
        round_.close()


def test_more_threads_than_work_are_none_at_all(tmp_path: Path) -> None:
    """A log that one thread is given at once is not worth a second."""
    path = tmp_path / "0.log"
    path.write_bytes(build_batch([Record(0, 5, b"k", b"v", ())], base_offset=0))
    seen: list[int] = []
    alone = threads_alive()
    round_ = Threaded(64).begin_round(SETTINGS)
    try:
        count: Callable[[int, int], None] = lambda _read, _written: seen.append(threads_alive())  # noqa: E731
        round_.build_map([SourceSegment(str(path), 0, path.stat().st_size, 1)], [], count)
    finally:
        round_.close()
    assert len(seen) == 1 and seen[0] <= alone
