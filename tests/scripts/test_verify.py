"""`compactd verify`: findings as text and JSON, exit codes, and a repair that keeps what it cuts off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.storage import names
from compactd.storage.log_dir import LogDir
from compactd.storage.records.batch import scan_headers
from tests.scripts.helpers import Broker, batch, json_lines, picture

Run = Callable[..., Result]


@pytest.fixture
def stopped(broker: Broker) -> Path:
    broker.partition(
        "t-0",
        [[batch(0, ("a", "1")), batch(1, ("b", "1")), batch(2, ("c", "1"))], [batch(3, ("d", "1"))]],
        active=[batch(4, ("e", "1"))],
    )
    broker.partition("u-0", [], active=[batch(0, ("x", "1"))])
    return broker.stop()


def _damage(path: Path) -> int:
    log = path / "t-0" / names.log_name(0)
    position = list(scan_headers(log))[1].position
    data = bytearray(log.read_bytes())
    data[position + 66] ^= 8
    log.write_bytes(bytes(data))
    return position


def test_a_sound_log_dir(run: Run, stopped: Path) -> None:
    before = picture(stopped)
    done = run("verify", stopped)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("0 faults, 0 notes")
    assert picture(stopped) == before


def test_damage_is_told_with_its_place(run: Run, stopped: Path) -> None:
    position = _damage(stopped)
    done = run("verify", "--json", stopped)
    assert done.exit_code == 1
    lines = json_lines(done.stdout)
    (finding,) = [line for line in lines if line["type"] == "finding"]
    assert (finding["severity"], finding["code"], finding["position"], finding["offset"]) == (
        "fault",
        "CORRUPT_BATCH",
        position,
        1,
    )
    assert finding["path"].endswith(names.log_name(0))
    assert [line["faults"] for line in lines if line["type"] == "partition"] == [1, 0]
    text = run("verify", stopped)
    assert text.exit_code == 1
    assert f"at byte {position}" in text.stdout


def test_repair_says_and_keeps_what_it_cuts(run: Run, stopped: Path) -> None:
    position = _damage(stopped)
    damaged = (stopped / "t-0" / names.log_name(0)).read_bytes()
    other = picture(stopped / "u-0")
    done = run("verify", "--repair", stopped)
    assert done.exit_code == 0, done.output
    assert "CORRUPT_BATCH" in done.stdout and "after the repair: 0 faults" in done.stdout
    kept = stopped / "t-0" / f"{names.log_name(0)}.{position}.cut"
    assert kept.read_bytes() == damaged[position:]
    assert (stopped / "t-0" / f"{names.log_name(3)}.cut").exists()
    assert picture(stopped / "u-0") == other
    assert LogDir(stopped).clean_shutdown() is not None, "it is in order again"
    assert run("verify", stopped).exit_code == 0


def test_an_index_is_rebuilt_without_loss(run: Run, stopped: Path) -> None:
    before = picture(stopped / "t-0")
    index = stopped / "t-0" / names.time_index_name(3)
    index.write_bytes(b"\x01" * 12)
    assert run("verify", stopped).exit_code == 1
    assert run("verify", "--repair", stopped).exit_code == 0
    after = picture(stopped / "t-0")
    # A recovery also writes the producer snapshots that a broker keeps.
    kept = {name: state[2] for name, state in after.items() if not name.endswith(".snapshot")}
    assert kept == {name: state[2] for name, state in before.items() if not name.endswith(".snapshot")}


def test_a_damaged_checkpoint_is_written_anew(run: Run, stopped: Path) -> None:
    (stopped / "recovery-point-offset-checkpoint").write_bytes(b"aa")
    assert run("verify", "--repair", stopped).exit_code == 0
    assert len(LogDir(stopped).recovery_points.read()) == 2


def test_repair_is_refused_while_the_lock_is_held(run: Run, stopped: Path) -> None:
    _damage(stopped)
    before = {name: state for name, state in picture(stopped).items() if name != names.LOCK}
    with LogDir(stopped).lock():
        assert run("verify", stopped).exit_code == 1, "looking needs no lock"
        assert run("verify", "--repair", stopped).exit_code == 3
    assert {name: state for name, state in picture(stopped).items() if name != names.LOCK} == before


def test_records_that_cannot_be_parsed_are_found_on_request(run: Run, broker: Broker) -> None:
    """A valid CRC over a payload that is not what the codec says."""
    from compactd.storage.records.crc import crc32c  # noqa: PLC0415

    data = bytearray(batch(0, ("a", "1")))
    data[61:] = b"\xff" * (len(data) - 61)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    broker.partition("t-0", [], active=[bytes(data)])
    path = broker.stop()
    assert run("verify", path).exit_code == 0
    done = run("verify", "--records", path)
    assert done.exit_code == 1
    assert "UNREADABLE_RECORDS" in done.stdout
