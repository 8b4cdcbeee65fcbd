"""The two scans of a segment against each other, and what they keep of producers against all batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compactd.config.errors import CompactdError, CorruptFileError, StorageIOError
from compactd.storage.kernel import scanning
from compactd.storage.kernel.reference import scan as reference
from compactd.storage.partition import end_transaction_marker
from compactd.storage.producers import ProducerState
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.legacy import build_message
from compactd.storage.records.record import Record

NOW = 1_700_000_000_000


def _native() -> Callable[..., Any] | None:
    try:
        from compactd.storage.kernel import _native  # noqa: PLC0415
    except ImportError:
        return None
    return _native.scan_segment


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Batches of all kinds in offset order."""
    data, offset, sequences = b"", draw(st.sampled_from([0, 3])), dict.fromkeys((5, 6), 0)
    for _ in range(draw(st.integers(0, 30))):
        kind = draw(st.sampled_from(["plain", "idempotent", "txn", "commit", "abort", "empty-control", "v0", "v1"]))
        timestamp = NOW + draw(st.integers(-5, 5))
        epoch = draw(st.sampled_from([0, 0, 0, 1, -1]))
        records = [Record(offset + n, timestamp + n, b"k", b"v" * draw(st.sampled_from([0, 40]))) for n in range(2)]
        pid = draw(st.sampled_from([5, 6]))
        if kind in ("commit", "abort"):
            data += control_batch(kind, offset, timestamp, pid, 0, leader_epoch=epoch)
            offset += 1
        elif kind == "empty-control":
            data += build_batch([], base_offset=offset, last_offset=offset, producer_id=pid, control=True)
            offset += 1
        elif kind in ("v0", "v1"):
            data += build_message(records[0], int(kind[1]))
            offset += 1
        else:
            fields: dict[str, Any] = {}
            if kind != "plain":
                fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequences[pid]}
                sequences[pid] += 2
            data += build_batch(records, base_offset=offset, leader_epoch=epoch, transactional=kind == "txn", **fields)
            offset += 2 + draw(st.sampled_from([0, 0, 5]))
    return data


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=segments(),
    interval=st.sampled_from([0, 100, 4096]),
    cut=st.integers(0, 400),
    flip=st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 7)),
    base=st.sampled_from([0, 0, 3, 10]),
    from_offset=st.integers(0, 20),
)
def test_native_equals_reference(
    tmp_path: Path,
    data: bytes,
    interval: int,
    cut: int,
    flip: tuple[int, int] | None,
    base: int,
    from_offset: int,
) -> None:
    native = _native()
    if native is None:
        pytest.skip("the native kernel is not built")
    damaged = bytearray(data[: max(len(data) - cut, 0)] if cut < 100 else data + bytes(cut - 100))
    if flip is not None and damaged:
        damaged[flip[0] % len(damaged)] ^= 1 << flip[1]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(damaged)
    for check_crc in (True, False):
        arguments = (str(path), base, interval, None, check_crc, from_offset)
        assert native(*arguments) == reference.scan_segment(*arguments)


def _broken_transaction() -> bytes:
    """A producer leaves its transaction without a marker, and goes on for more batches than are remembered."""
    data = control_batch("commit", 0, NOW, 5, 0)
    for number in range(8):
        records = [Record(1 + number, NOW, b"k", b"v")]
        data += build_batch(
            records,
            base_offset=1 + number,
            transactional=number == 1,
            producer_id=5,
            producer_epoch=0,
            base_sequence=number,
        )
    return data


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(data=_broken_transaction())
@given(data=segments())
def test_the_kept_batches_lead_to_the_same_producers(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    found = scanning.scan_segment(path, 0)
    assert found.fault is None
    whole, kept = ProducerState(), ProducerState()
    assert _feed(whole, [(b.header, end_transaction_marker(b)) for b in iter_batches(data)]) == _feed(
        kept, [(batch, batch.marker) for batch in found.produced()]
    )
    assert (whole.take_snapshot(), whole.ongoing_txns, whole.unreplicated_txns) == (
        kept.take_snapshot(),
        kept.ongoing_txns,
        kept.unreplicated_txns,
    )
    assert [list(entry.batches) for entry in whole.entries()] == [list(entry.batches) for entry in kept.entries()]


def _feed(state: ProducerState, batches: list[Any]) -> list[object]:
    done: list[object] = []
    for header, marker in batches:
        if header.producer_id < 0:
            continue
        try:
            completed = state.update(header, marker)
        except CompactdError as error:
            return [*done, type(error)]
        if completed is not None:
            done.append(completed)
    return done


def test_many_batches_of_a_producer_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        b"".join(
            build_batch([Record(n, NOW, b"k", b"v")], base_offset=n, producer_id=7, producer_epoch=0, base_sequence=n)
            for n in range(500)
        )
    )
    kept = list(scanning.scan_segment(path, 0).produced())
    assert [batch.base_offset for batch in kept] == [0, 495, 496, 497, 498, 499]


@pytest.mark.parametrize("kernel", ["native", "reference"])
def test_faults_are_named(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "reference":
        monkeypatch.setenv("COMPACTD_KERNEL", "reference")
    good = build_batch([Record(0, NOW, b"k", b"v")], base_offset=0)
    path = tmp_path / "00000000000000000000.log"

    def fault(data: bytes, base: int = 0) -> str:
        path.write_bytes(data)
        found = scanning.scan_segment(path, base)
        assert found.fault is not None
        return str(found.fault.reason)

    assert "truncated" in fault(good + good[:30])
    assert "truncated" in fault(good + good[:8])
    assert "only zeros" in fault(good + bytes(100))
    assert "length field is -5" in fault(good + good[:8] + (-5).to_bytes(4, "big", signed=True) + good[12:])
    assert "unknown magic 3" in fault(good[:16] + b"\x03" + good[17:])
    assert "CRC is" in fault(good[:-1] + b"\x01")
    next_one = build_batch([Record(1, NOW, b"k", b"v")], base_offset=1)
    assert "do not follow 2" in fault(good + next_one + good)
    assert "the batch behind it does not follow" in fault(good + good), "either may be the wrong one"
    assert "too far from the segment's base" in fault((2**31).to_bytes(8, "big") + good[8:])
    assert "do not follow 5" in fault(good, base=5)


def test_a_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(100))
    found = scanning.scan_segment(path, 0)
    assert found.valid_bytes == 0
    assert found.fault is not None and "truncated" in found.fault.reason


def test_absent_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(StorageIOError):
        scanning.scan_segment(tmp_path / "00000000000000000000.log", 0)
    path = tmp_path / "00000000000000000001.log"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(CorruptFileError):
        scanning.scan_segment(path, 1)
