"""`compactd demo`, which `make run` runs: what it writes, that it is quick, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.scripts import demo_logs
from compactd.scripts.demo import LOG_DIR
from compactd.storage.log_dir import LogDir
from compactd.storage.records.batch import Batch, iter_batches, read_batches
from compactd.storage.records.builder import build_batch
from tests.scripts.helpers import NOW, picture

Run = Callable[..., Result]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three thousand records stand for the million."""
    monkeypatch.setattr(demo_logs, "MILLION_RECORDS", 3000)
    monkeypatch.setattr(demo_logs, "MILLION_KEYS", 500)
    monkeypatch.setattr(demo_logs, "SEGMENT_BYTES", 200_000)


@pytest.mark.usefixtures("small")
def test_shows_before_and_after(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--data", tmp_path / "not" / "there")
    assert result.exit_code == 0, result.stderr
    out = result.stdout
    for offset, newer in ((0, 5), (1, 4), (2, 5)):
        key, value = demo_logs.EXPERIMENT[offset]
        assert f"{offset}  {key}  {value.ljust(27)}  removed: offset {newer} is newer\n" in out
    for offset in (3, 4, 5):
        key, value = demo_logs.EXPERIMENT[offset]
        assert f"{offset}  {key}  {value.ljust(27)}  kept\n" in out
    assert "records/s" in out and "Kernel: " in out
    assert out.index("What to try next:") > out.index("Kernel: ")
    log_dir = tmp_path / "not" / "there" / LOG_DIR
    assert {r.key for b in read_batches(log_dir / "million-0" / "00000000000000000000.log") for r in b.records()}
    assert not [p for p in log_dir.rglob("*") if p.name.endswith((".cleaned", ".swap", ".lock"))]


@pytest.mark.usefixtures("small")
def test_writes_over_its_own_and_nothing_else(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--data", tmp_path).exit_code == 0
    assert run("demo", "--data", tmp_path).exit_code == 0
    foreign = tmp_path / "mine" / LOG_DIR
    foreign.mkdir(parents=True)
    (foreign / "precious").write_text("data")
    before = picture(foreign)
    result = run("demo", "--data", tmp_path / "mine")
    assert result.exit_code == 3
    assert "the demo did not make it" in result.stderr and "--data" in result.stderr
    assert picture(foreign) == before


@pytest.mark.usefixtures("small")
def test_a_demo_dir_in_use_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--data", tmp_path).exit_code == 0
    with LogDir(tmp_path / LOG_DIR).lock():
        assert run("demo", "--data", tmp_path).exit_code == 3


@pytest.mark.usefixtures("small")
def test_what_to_try_next_works(run: Run, tmp_path: Path) -> None:
    out = run("demo", "--data", tmp_path).stdout
    tried = 0
    for line in out[out.index("What to try next:") :].splitlines()[1:]:
        words = line.split("#")[0].split()
        if str(tmp_path) in line or "--help" in words:
            assert run(*words[1:]).exit_code == 0, line
            tried += 1
    assert tried == 4


def test_the_quick_batches_are_what_the_builder_makes() -> None:
    for number, data in enumerate(demo_logs._million_batches(NOW)):
        (one,) = iter_batches(data)
        assert isinstance(one, Batch)
        one.check()
        assert build_batch(one.records(), base_offset=1000 * number, leader_epoch=0) == data
        assert len({r.value for r in one.records()}) == 1000
        if number == 2:
            return


def test_the_real_size(tmp_path: Path) -> None:
    demo_logs.write_demo(tmp_path / "demo", NOW)
    logs = sorted((tmp_path / "demo" / "million-0").glob("*.log"))
    assert len(logs) == 8 and logs[-1].stat().st_size == 0
    assert sum(b.header.record_count for log in logs for b in read_batches(log)) == 1_000_000
