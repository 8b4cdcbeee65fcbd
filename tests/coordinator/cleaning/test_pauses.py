"""The file behind `compactd pause`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from compactd.coordinator.cleaning.pauses import EVERYTHING, FILE, Pauses
from compactd.storage.log_dir import LogDir


def loaded(directory: Path) -> Pauses:
    pauses = Pauses(directory)
    pauses.load()
    return pauses


def test_nothing_is_paused_at_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert loaded(tmp_path).names == set() and not caplog.records


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    pauses = loaded(tmp_path)
    pauses.names |= {"users", "ünder_score.x-12", EVERYTHING}
    pauses.save(pauses.snapshot())
    assert loaded(tmp_path).names == {"users", "ünder_score.x-12", EVERYTHING}
    assert json.loads((tmp_path / FILE).read_text("utf-8"))["names"] == ["*", "users", "ünder_score.x-12"]
    # Kafka and this program look at directories of a log dir only.
    assert LogDir(tmp_path).partition_dirs() == []


def test_a_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    pauses = loaded(tmp_path)
    before = pauses.snapshot()
    pauses.names.add("users")
    pauses.save(before)
    assert loaded(tmp_path).names == set()


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff", b"[]", b'{"version": 1}', b'{"version": 2, "names": []}', b'{"version": 1, "names": [1]}'],
)
def test_a_file_that_can_not_be_read_pauses_everything(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert loaded(tmp_path).names == {EVERYTHING}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "compactd resume" in caplog.text
