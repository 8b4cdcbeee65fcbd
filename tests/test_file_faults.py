"""The faulty layer itself: what it records, where it stops, and what it says a power cut leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.config.errors import StorageIOError
from compactd.storage import files
from tests.file_faults import FaultyLayer, PowerCut


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def after_power_cut(work: Callable[[], object], seed: int | None = None) -> FaultyLayer:
    layer = FaultyLayer()
    with files.replaced(layer):
        work()
    layer.lose_unsynced(seed)
    return layer


def test_records_calls_in_order(tmp_path: Path) -> None:
    layer = FaultyLayer()
    with files.replaced(layer):
        files.write_atomically(tmp_path / "a", b"xyz")
    assert [str(call) for call in layer.calls] == [
        "open_output(a.tmp)",
        "write(a.tmp, 3)",
        "fsync(a.tmp)",
        "close(a.tmp)",
        "rename(a.tmp, a)",
        f"fsync_dir({tmp_path.name})",
    ]
    assert layer.count == 6
    assert layer.open_descriptors == 0


@pytest.mark.parametrize(("after", "there"), [(False, False), (True, True)])
def test_stops_before_or_after_a_call_and_stays_dead(tmp_path: Path, after: bool, there: bool) -> None:
    layer = FaultyLayer()
    layer.stop_at(4, after=after)
    with files.replaced(layer):
        with pytest.raises(PowerCut, match=r"call 4, rename\(a.tmp, a\)"):
            files.write_atomically(tmp_path / "a", b"xyz")
        assert (tmp_path / "a").exists() is there
        assert (tmp_path / "a.tmp").exists() is not there
        with pytest.raises(PowerCut):
            files.remove(tmp_path / "a.tmp", missing_ok=True)


def test_no_descriptor_is_left_wherever_it_stops(tmp_path: Path) -> None:
    for number in range(6):
        for after in (False, True):
            layer = FaultyLayer()
            layer.stop_at(number, after)
            with files.replaced(layer), pytest.raises(PowerCut):
                files.write_atomically(tmp_path / "a", b"xyz")
            assert layer.open_descriptors == 0


def test_fails_the_nth_call_of_a_name_on_a_path(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.fail("write", errno.ENOSPC, nth=1, part="index")
    with files.replaced(layer):
        files.write_file(tmp_path / "index", b"1")
        files.write_file(tmp_path / "log", b"2")
        with pytest.raises(StorageIOError, match="ENOSPC"):
            files.write_file(tmp_path / "index", b"3")
        files.write_file(tmp_path / "index", b"4")
    assert contents(tmp_path) == {"index": b"4", "log": b"2"}


def test_fails_at_random_by_seed(tmp_path: Path) -> None:
    def outcome(seed: int) -> list[bool]:
        layer = FaultyLayer(seed)
        layer.fail_randomly(0.5)
        found = []
        with files.replaced(layer):
            for number in range(30):
                try:
                    files.write_file(tmp_path / f"{number}", b"x")
                    found.append(True)
                except StorageIOError:
                    found.append(False)
        return found

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)
    assert True in outcome(1)
    assert False in outcome(1)


def test_access_can_be_denied(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.fail("access", errno.EACCES, nth=None)
    assert layer.access(str(tmp_path), 0) is False
    assert layer.count == 0


def test_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tests.file_faults.time.sleep", slept.append)
    layer = FaultyLayer()
    layer.delay("fsync", 0.25)
    with files.replaced(layer):
        files.write_file(tmp_path / "a", b"x")
    assert slept == [0.25]


def test_power_cut_loses_a_new_file_whose_directory_was_not_synced(tmp_path: Path) -> None:
    after_power_cut(lambda: files.write_file(tmp_path / "a", b"x", sync=True))
    assert contents(tmp_path) == {}


def test_power_cut_leaves_an_empty_file_that_was_never_synced(tmp_path: Path) -> None:
    def work() -> None:
        files.write_file(tmp_path / "a", b"x", sync=False)
        files.fsync_dir(tmp_path)

    after_power_cut(work)
    assert contents(tmp_path) == {"a": b""}


def test_power_cut_keeps_what_was_synced(tmp_path: Path) -> None:
    def work() -> None:
        with files.create_output(tmp_path / "a") as output:
            output.write(b"one")
            output.sync()
            output.write(b"two")
        files.fsync_dir(tmp_path)

    after_power_cut(work)
    assert contents(tmp_path) == {"a": b"one"}


def test_power_cut_brings_back_what_was_overwritten_removed_and_renamed(tmp_path: Path) -> None:
    before = {name: name.encode() for name in ("changed", "cut", "gone", "old", "target")}
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
        files.set_mtime_ms(tmp_path / name, 1000)

    def work() -> None:
        with files.create_output(tmp_path / "changed") as output:
            output.write(b"new")
        with files.open_existing(tmp_path / "cut") as output:
            output.truncate(1)
        files.remove(tmp_path / "gone")
        files.rename(tmp_path / "old", tmp_path / "target")
        assert contents(tmp_path) == {"changed": b"new", "cut": b"c", "target": b"old"}

    after_power_cut(work)
    assert contents(tmp_path) == before
    assert {files.mtime_ms(tmp_path / name) for name in before} == {1000}


def test_power_cut_keeps_synced_renames_and_removals(tmp_path: Path) -> None:
    for name in ("gone", "old"):
        (tmp_path / name).write_bytes(name.encode())

    def work() -> None:
        files.remove(tmp_path / "gone")
        files.rename(tmp_path / "old", tmp_path / "new")
        files.fsync_dir(tmp_path)
        files.rename(tmp_path / "new", tmp_path / "newer")

    after_power_cut(work)
    assert contents(tmp_path) == {"new": b"old"}


def test_power_cut_of_directories(tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()
    (tmp_path / "a-0" / "log").write_bytes(b"log")
    (tmp_path / "b-0").mkdir()
    (tmp_path / "b-0" / "log").write_bytes(b"log")

    def work() -> None:
        files.layer().mkdir(str(tmp_path / "c-0"), 0o777)
        files.write_file(tmp_path / "c-0" / "log", b"log")
        files.rename(tmp_path / "a-0", tmp_path / "a-0-delete")
        files.remove(tmp_path / "a-0-delete" / "log")
        files.remove(tmp_path / "b-0" / "log")
        files.remove_dir(tmp_path / "b-0")

    after_power_cut(work)
    assert contents(tmp_path) == {"a-0/log": b"log", "b-0/log": b"log"}


def test_power_cut_in_an_atomic_write_leaves_old_or_new(tmp_path: Path) -> None:
    """The model applied to the one pattern everything relies on, at every call and for many outcomes."""
    target = tmp_path / "checkpoint"
    outcomes = set()
    for number in range(7):
        for seed in [None, *range(20)]:
            target.write_bytes(b"old")
            layer = FaultyLayer()
            layer.stop_at(number)
            with files.replaced(layer):
                try:
                    files.write_atomically(target, b"newer")
                    finished = True
                except PowerCut:
                    finished = False
            layer.lose_unsynced(seed)
            assert target.read_bytes() in ({b"newer"} if finished else {b"old", b"newer"})
            outcomes.add((target.read_bytes(), (tmp_path / "checkpoint.tmp").exists()))
            (tmp_path / "checkpoint.tmp").unlink(missing_ok=True)
    assert outcomes == {(b"old", False), (b"old", True), (b"newer", False)}


def test_power_cut_draws_torn_content_from_its_seed(tmp_path: Path) -> None:
    def outcome(seed: int) -> bytes:
        (tmp_path / "a").write_bytes(b"")

        def work() -> None:
            with files.open_existing(tmp_path / "a") as output:
                output.write(b"0123456789")

        after_power_cut(work, seed)
        return (tmp_path / "a").read_bytes()

    found = {outcome(seed) for seed in range(40)}
    assert all(b"0123456789".startswith(data) for data in found)
    assert len(found) > 3
    assert outcome(7) == outcome(7)


def test_content_written_to_the_descriptor_counts_as_unsynced(tmp_path: Path) -> None:
    def work() -> None:
        output = files.create_output(tmp_path / "a")
        os.pwrite(output.fileno(), b"native", 0)
        output.sync()
        os.pwrite(output.fileno(), b"lost", 6)
        files.fsync_dir(tmp_path)
        output.close()

    after_power_cut(work)
    assert contents(tmp_path) == {"a": b"native"}


def test_short_writes(tmp_path: Path) -> None:
    layer = FaultyLayer()
    layer.short_writes(2)
    with files.replaced(layer):
        files.write_file(tmp_path / "a", b"12345")
    assert [call.size for call in layer.calls if call.name == "write"] == [5, 3, 1]
    assert contents(tmp_path) == {"a": b"12345"}
