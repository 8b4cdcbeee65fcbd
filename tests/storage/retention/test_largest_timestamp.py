"""Which record has a segment's largest timestamp, and which keys go with segments of compact,delete topics (A10, A18)."""

from __future__ import annotations

from pathlib import Path

from compactd.config.settings import TopicConfig
from compactd.storage.largest_timestamp import locate_largest_timestamp
from compactd.storage.retention_loss import lost_keys
from compactd.storage.segment import list_segments
from tests.logs import NOW_MS, Entry, LogBuilder


def test_the_record_is_found_inside_its_batch(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig()) as log:
        log.append([Entry("a", "1", NOW_MS)])
        log.append([Entry("b", "1", NOW_MS + 1), Entry("c", "1", NOW_MS + 9), Entry("d", "1", NOW_MS + 9)])
        log.append([Entry("e", "1", NOW_MS + 5)])
    (segment,) = list_segments(tmp_path / "t-0")
    assert locate_largest_timestamp(segment) == 2


def test_without_timestamps_there_is_none(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig()) as log:
        log.append([Entry("a", "1", -1)])
    (segment,) = list_segments(tmp_path / "t-0")
    assert locate_largest_timestamp(segment) is None


def test_a18_quiet_keys_are_counted(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "t-0", TopicConfig()) as log:
        log.append([("quiet", "1"), ("busy", "1"), ("deleted", "1"), ("quiet", "2")])
        log.append([("deleted", None)])
        log.roll()
        log.append([("busy", "2")])
    segments = list_segments(tmp_path / "t-0")
    lost = lost_keys(segments, [0], log.log_end_offset)
    assert lost is not None
    assert (lost.count, lost.examples) == (1, (b"quiet",))
    assert lost_keys(segments, [], log.log_end_offset) is not None
    everything = lost_keys(segments, [0, segments[1].base_offset], log.log_end_offset)
    assert everything is not None and everything.count == 2
