"""The crash matrix of a load: stopped before and after every call of the file layer, with and without a power cut.

What a flush had covered is there, no offset appears twice, no temporary file is left, and the result is that of a load
that was not stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.storage import files, names
from compactd.storage.orderly_close import close_orderly
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.storage.swap import segment_file_names
from tests.file_faults import FaultyLayer, PowerCut
from tests.logs import NOW_MS, Entry, LogBuilder
from tests.storage.loader.loading import DENSE, contents, leftovers, load, offsets


def _torn(directory: Path) -> int:
    """Three segments, the last torn, indexes preallocated, a stale snapshot; returns the recovery point."""
    with LogBuilder(directory, DENSE) as log:
        for number in range(9):
            if number in (3, 6):
                log.roll()
            kind = {2: "abort", 8: "commit"}.get(number)
            if kind is not None:
                log.control(kind, 5)  # type: ignore[arg-type]
            else:
                log.append([Entry(f"k{number}", "v", NOW_MS + number)], pid=5, transactional=True)
    with (directory / names.log_name(6)).open("ab") as file:
        file.write(b"\x01" * 33)
    for path in directory.glob(f"{6:020d}.*index"):
        path.write_bytes(path.read_bytes() + bytes(240))
    (directory / names.transaction_index_name(0)).unlink()
    (directory / names.snapshot_name(12)).write_bytes(bytes.fromhex("000148674bc700000000"))
    return 3


def _damaged(directory: Path) -> int:
    """A damaged batch in the first of four segments: all that follows goes."""
    with LogBuilder(directory, DENSE) as log:
        for number in range(8):
            if number and number % 2 == 0:
                log.roll()
            log.append([Entry(f"k{number}", "v", NOW_MS + number)])
    path = directory / names.log_name(2)
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(bytes(data))
    return 0


def _no_index(directory: Path) -> int:
    """An index is missing far below the recovery point."""
    _torn(directory)
    (directory / names.offset_index_name(0)).unlink()
    return 6


def _overflow(directory: Path) -> int:
    """A segment has to be split."""
    directory.mkdir()
    far = 2**31 + 5
    (directory / names.log_name(0)).write_bytes(
        b"".join(
            build_batch([Record(n, NOW_MS, b"%d" % n, b"v")], base_offset=n, leader_epoch=0)
            for n in (0, 4, far, far + 1)
        )
    )
    return 0


def _swap(directory: Path) -> int:
    """A finished clean whose swap was interrupted after the sources got their `.deleted` names."""
    with LogBuilder(directory, DENSE) as log:
        log.append([Entry("a", "1", NOW_MS)])
        log.append([Entry("b", "1", NOW_MS)])
        log.roll()
        log.append([Entry("a", "2", NOW_MS)])
    for name in segment_file_names(0):
        path = directory / name
        if path.exists():
            path.rename(path.with_name(name + names.DELETED))
    kept = build_batch([Record(1, NOW_MS, b"b", b"1")], base_offset=1, leader_epoch=0)
    for name, content in zip(segment_file_names(0), (kept, b"", b""), strict=False):
        (directory / (name + names.SWAP)).write_bytes(content)
    return 2


CASES: dict[str, Callable[[Path], int]] = {
    "torn": _torn,
    "damaged": _damaged,
    "no-index": _no_index,
    "overflow": _overflow,
    "swap": _swap,
}


def _recover(directory: Path, point: int) -> None:
    close_orderly(load(directory, recovery_point=point))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss", ["process", "power", "power-partly"])
def test_stop_at_every_call(tmp_path: Path, case: str, loss: str) -> None:
    point = CASES[case](tmp_path / "whole-0")
    layer = FaultyLayer()
    with files.replaced(layer):
        _recover(tmp_path / "whole-0", point)
    count = layer.count
    layer.close_all()
    wanted = offsets(tmp_path / "whole-0")
    plain = {name: data for name, data in contents(tmp_path / "whole-0").items() if not name.endswith(names.DELETED)}
    assert count > 5
    for number in range(count):
        directory = tmp_path / f"t{number}-0"
        CASES[case](directory)
        layer = FaultyLayer()
        layer.stop_at(number, after=number % 2 == 1)
        with files.replaced(layer), pytest.raises(PowerCut):
            _recover(directory, point)
        layer.close_all()
        if loss != "process":
            layer.lose_unsynced(seed=number if loss == "power-partly" else None)
        _recover(directory, point)
        assert offsets(directory) == wanted, f"stopped at call {number}: {layer.calls[-1]}"
        assert leftovers(directory) == []
        found = {name: data for name, data in contents(directory).items() if not name.endswith(names.DELETED)}
        assert found == plain, f"stopped at call {number}: {layer.calls[-1]}"
