"""`compactd retain`: what goes, what stays and why, and that --dry-run touches nothing (A3, A10, A11, A18, A31)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from compactd.storage import names
from compactd.storage.checkpoints import LOG_START_OFFSETS, OffsetCheckpoint
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.scripts.helpers import NOW, Broker, batch, json_lines, picture

Run = Callable[..., Result]
HOUR = 3_600_000
#: helpers.batch stamps offset n with NOW - 1 h + n s.
RETAIN = ("--set", "retention.ms=1h", "--json")


@pytest.fixture
def stopped(broker: Broker) -> Path:
    broker.partition(
        "t-0", [[batch(0, ("a", "1"))], [batch(1, ("b", "1"))], [batch(2, ("a", "2"))]], active=[batch(3, ("c", "1"))]
    )
    return broker.stop()


def retain(run: Run, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    done = run("retain", *arguments)
    assert done.exit_code == code, done.output
    return json_lines(done.stdout)


def _logs(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "t-0").glob("*.log"))


def test_a_dry_run_explains_and_touches_nothing(run: Run, stopped: Path) -> None:
    before = picture(stopped)
    (report,) = retain(run, "--dry-run", *RETAIN, "--now", NOW + 1001, stopped)
    assert picture(stopped) == before
    assert report["deleted"] == [{"baseOffset": 0, "rule": "time"}, {"baseOffset": 1, "rule": "time"}]
    assert report["bytesDeleted"] == sum(segment["size"] for segment in report["segments"][:2])
    third = report["explanation"][2]
    assert (third["rule"], third["heldBy"], third["dueMs"]) == (None, "not due yet", NOW + 2001)
    assert report["explanation"][3]["heldBy"] == "older segment"
    assert report["settings"]["retention.ms"] == {"value": HOUR, "source": "--set"}


def test_the_same_without_dry_run(run: Run, stopped: Path) -> None:
    (report,) = retain(run, *RETAIN, "--now", NOW + 1001, stopped)
    assert (report["logStartOffset"], report["logEndOffset"]) == (2, 4)
    assert _logs(stopped) == [names.log_name(2), names.log_name(3)]
    assert len(list((stopped / "t-0").glob("*.log.deleted"))) == 2
    assert LogDir(stopped).clean_shutdown() is not None
    (again,) = retain(run, *RETAIN, "--now", NOW + 1001, "--delete-delay", 0, stopped)
    assert again["deleted"] == []


def test_delete_delay_zero_removes_the_files(run: Run, stopped: Path) -> None:
    retain(run, *RETAIN, "--now", NOW + 1001, "--delete-delay", 0, stopped)
    assert not list((stopped / "t-0").glob("*.deleted"))


def test_everything_goes_and_an_empty_segment_is_rolled(run: Run, stopped: Path) -> None:
    (report,) = retain(run, *RETAIN, "--now", NOW + HOUR, "--delete-delay", 0, stopped)
    assert report["rolled"]
    assert (report["logStartOffset"], report["logEndOffset"]) == (4, 4)
    assert _logs(stopped) == [names.log_name(4)]
    assert run("verify", stopped).exit_code == 0


def test_nothing_above_the_high_watermark_goes(run: Run, stopped: Path) -> None:
    (report,) = retain(run, "--high-watermark", 1, *RETAIN, "--now", NOW + HOUR, stopped / "t-0")
    assert report["deleted"] == [{"baseOffset": 0, "rule": "time"}]
    assert report["explanation"][1]["heldBy"] == "high watermark"


def test_a31_delete_records_on_a_compacted_topic(run: Run, stopped: Path) -> None:
    compact = ("--set", "cleanup.policy=compact", "--json", "--now", NOW)
    (report,) = retain(run, "--log-start-offset", 2, *compact, stopped / "t-0")
    assert [each["rule"] for each in report["deleted"]] == ["log start", "log start"]
    assert (report["logStartOffset"], report["segments"][0]["baseOffset"]) == (2, 2)
    assert OffsetCheckpoint(stopped / LOG_START_OFFSETS).read() == {}


def test_a31_inside_a_segment_the_start_is_written_down(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("b", "1"), ("c", "1"))]], active=[batch(3, ("d", "1"))])
    path = broker.stop()
    (report,) = retain(run, "--log-start-offset", 1, *RETAIN, "--now", NOW, path / "t-0")
    assert (report["logStartOffset"], report["deleted"]) == (1, [])
    assert OffsetCheckpoint(path / LOG_START_OFFSETS).read() == {TopicPartition("t", 0): 1}
    done = run("retain", "--log-start-offset", 9, "--now", NOW, path / "t-0")
    assert done.exit_code != 0
    assert "high watermark" in done.output + done.stderr


def test_a10_and_a11_timestamps_that_are_no_milliseconds(run: Run, broker: Broker) -> None:
    micros = batch(0, ("a", "1"), log_append_time_ms=NOW * 1000)
    seconds = batch(0, ("a", "1"), log_append_time_ms=NOW // 1000)
    broker.partition("t-0", [[micros]], active=[batch(1, ("b", "1"))])
    broker.partition("u-0", [[seconds]], active=[batch(1, ("b", "1"))])
    path = broker.stop()
    held, gone = retain(run, "--dry-run", "--set", "retention.ms=1d", "--json", "--now", NOW, path)
    assert held["deleted"] == []
    assert held["explanation"][0]["heldBy"] == "future timestamp"
    warning = held["timestampWarnings"][0]
    assert (warning["code"], warning["offset"], warning["timestamp"]) == (
        "TIMESTAMP_LOOKS_LIKE_MICROSECONDS",
        0,
        NOW * 1000,
    )
    assert gone["deleted"] == [{"baseOffset": 0, "rule": "time"}]
    assert gone["timestampWarnings"][0]["code"] == "TIMESTAMP_LOOKS_LIKE_SECONDS"


def test_a18_keys_that_lose_their_last_value_are_listed(run: Run, stopped: Path) -> None:
    both = ("--set", "cleanup.policy=compact,delete", *RETAIN)
    (report,) = retain(run, "--dry-run", *both, "--now", NOW + 1001, stopped)
    assert any("1 keys lose their last value: 'b'" in warning for warning in report["warnings"])


def test_text_for_people(run: Run, stopped: Path) -> None:
    text = run("retain", "--dry-run", "--set", "retention.ms=1h", "--now", NOW + 1001, stopped).stdout
    assert "t-0: cleanup.policy = delete (default), retention.ms = 3600000 (--set)" in text
    assert "2 of 4 segments would go" in text
    assert "stays: retention.ms takes it in 1 s" in text


def test_after_an_unclean_stop_the_log_is_recovered_first(run: Run, stopped: Path) -> None:
    (stopped / names.CLEAN_SHUTDOWN).unlink()
    with (stopped / "t-0" / names.log_name(3)).open("ab") as file:
        file.write(b"torn")
    (report,) = retain(run, *RETAIN, "--now", NOW + 1001, stopped)
    assert report["logEndOffset"] == 4
    assert any("cut" in warning for warning in report["warnings"])
    assert LogDir(stopped).clean_shutdown() is None


def test_refusals(run: Run, stopped: Path) -> None:
    with LogDir(stopped).lock():
        assert run("retain", *RETAIN, stopped).exit_code == 3
        assert run("retain", "--dry-run", *RETAIN, stopped).exit_code == 0
    assert run("retain", "--set", "retention.msss=1", stopped).exit_code == 2
    assert run("retain", "--log-start-offset", 1, stopped, stopped).exit_code in (0, 2)
