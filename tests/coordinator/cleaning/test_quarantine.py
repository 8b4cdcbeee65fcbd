from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from compactd.config.errors import StorageIOError
from compactd.coordinator.cleaning.quarantine import FILE, PAUSES_MS, Quarantine
from compactd.storage import files
from tests.file_faults import FaultyLayer, PowerCut

_NOW = 1_700_000_000_000


def failed(quarantine: Quarantine, name: str = "users-0", now_ms: int = _NOW, reason: str = "CRC") -> int:
    """One more failure; when it is tried again."""
    return quarantine.add(
        name, now_ms, "CorruptBatchError", reason, {"path": "/d1/x.log", "position": "77"}
    ).retry_at_ms


def test_pauses_grow_and_the_last_one_repeats(tmp_path: Path) -> None:
    quarantine, now = Quarantine(tmp_path), _NOW
    pauses = []
    for _ in range(len(PAUSES_MS) + 2):
        retry = failed(quarantine, now_ms=now)
        pauses.append(retry - now)
        assert quarantine.holds("users-0", retry - 1) and not quarantine.holds("users-0", retry)
        now = retry
    assert pauses == [*PAUSES_MS, PAUSES_MS[-1], PAUSES_MS[-1]]
    assert list(PAUSES_MS) == sorted(set(PAUSES_MS))
    (status,) = quarantine.status()
    assert (status.since_ms, status.attempts) == (_NOW, len(PAUSES_MS) + 2)


def test_others_are_not_held(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    failed(quarantine)
    assert not quarantine.holds("users-1", _NOW) and quarantine.get("users-1") is None


def test_a_release_begins_from_the_first_pause_again(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    failed(quarantine)
    failed(quarantine)
    assert quarantine.remove(["users-0", "users-1"]) == ["users-0"]
    assert not quarantine.holds("users-0", _NOW) and quarantine.names() == []
    assert failed(quarantine) == _NOW + PAUSES_MS[0]


def test_it_is_kept_over_a_restart_with_all_it_knows(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    failed(quarantine, "users-0")
    failed(quarantine, "ünder_score.x-12", reason='a "quoted" reason')
    quarantine.save(quarantine.snapshot())
    again = Quarantine(tmp_path)
    again.load()
    assert again.status() == quarantine.status() and len(again.names()) == 2
    assert again.get("users-0") == quarantine.get("users-0")
    (tmp_path / FILE).read_text("utf-8")
    assert json.loads((tmp_path / FILE).read_text("utf-8"))["partitions"]["users-0"]["fields"]["position"] == "77"


def test_a_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    before = quarantine.snapshot()
    failed(quarantine)
    quarantine.save(before)
    again = Quarantine(tmp_path)
    again.load()
    assert again.names() == []


def test_no_file_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine(tmp_path)
    quarantine.load()
    assert quarantine.names() == [] and not caplog.records


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"version": 1, "partitions": {"a-0": {}}}', b'{"version": 2}', b"\xff\xfe", b'{"version":"1"}'],
)
def test_a_file_that_cannot_be_read_is_said_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    quarantine = Quarantine(tmp_path)
    with caplog.at_level(logging.WARNING):
        quarantine.load()
    assert quarantine.names() == [] and "begun anew" in caplog.text
    failed(quarantine)
    quarantine.save(quarantine.snapshot())
    again = Quarantine(tmp_path)
    again.load()
    assert again.names() == ["users-0"]


def test_a_directory_in_its_place_is_no_reason_to_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).mkdir()
    quarantine = Quarantine(tmp_path)
    quarantine.load()
    assert quarantine.names() == [] and "begun anew" in caplog.text
    with pytest.raises(StorageIOError):
        quarantine.save(quarantine.snapshot())


def test_a_stop_at_any_call_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    failed(quarantine, "old-0")
    quarantine.save(quarantine.snapshot())
    failed(quarantine, "new-0")
    seen = set()
    for number in range(100):
        layer = FaultyLayer()
        layer.stop_at(number)
        try:
            with files.replaced(layer):
                quarantine.save(quarantine.snapshot())
        except PowerCut:
            layer.close_all()
            layer.lose_unsynced()
        else:
            break
        again = Quarantine(tmp_path)
        again.load()
        seen.add(tuple(again.names()))
    else:
        raise AssertionError("it never ended")
    assert seen <= {("old-0",), ("new-0", "old-0")} and ("old-0",) in seen
