"""Kafka's cleaner and compactd's on the same directories: the same files come out, byte for byte.

Each example writes a log with Kafka, keeps a copy before every round, lets Kafka clean the one and compactd the other by
the same clock, checkpoint and map, and goes on with what Kafka left.
"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from compactd.storage.cleaning.run import PartitionReport
from compactd.storage.names import log_name
from compactd.storage.records.batch import iter_batches, read_batches
from compactd.storage.records.codecs import compress, decompress
from compactd.storage.segment import LogSegment, list_segments
from tests.oracle.compare import GZIP, SNAPPY, compare
from tests.oracle.corners import CORNERS, LOST_INDEX_CORNERS
from tests.oracle.driver import Answer, Oracle, OracleError, record
from tests.oracle.ours import clean, kernels, load
from tests.oracle.ours import hides_commits as log_hides_commits
from tests.oracle.replay import Cleaning, Image, Kill, play
from tests.oracle.scenario import Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]


@pytest.fixture(scope="session")
def loose_codecs(_oracle_process: Oracle, tmp_path_factory: pytest.TempPathFactory) -> frozenset[int]:
    """Codecs whose bytes Kafka and compactd may differ in here: snappy, and gzip where the JVM has another zlib."""
    directory = tmp_path_factory.mktemp("gzip") / "t-0"
    oracle = _oracle_process
    oracle.open(directory, now=0)
    for seed in range(8):
        random = Random(seed)
        oracle.append(
            [record(b"k%d" % n, bytes(random.choices(b"abcdef0123", k=100 * seed))) for n in range(50)], codec="gzip"
        )
    oracle.close()
    payloads = [batch.data[61:] for batch in iter_batches((directory / log_name(0)).read_bytes())]
    same = all(compress(GZIP, decompress(GZIP, payload, 2)) == payload for payload in payloads)
    return frozenset({SNAPPY}) if same else frozenset({SNAPPY, GZIP})


@settings(max_examples=examples(2500), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_directories_are_the_same(
    oracle: Oracle, fast_dir: Path, loose_codecs: frozenset[int], scenario: Scenario
) -> None:
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    compare_all_rounds(oracle, fast_dir / "play", loose_codecs, scenario)


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(max_rounds=2), kill=st.builds(Kill, st.sampled_from([0, 40, 100]), st.booleans()))
def test_log_of_a_killed_broker(
    oracle: Oracle, fast_dir: Path, loose_codecs: frozenset[int], scenario: Scenario, kill: Kill
) -> None:
    """Indexes that lie preallocated or lost, snapshots that were not taken: what Kafka recovers first, compactd works out unseen.

    Only what was cleaned is compared: Kafka's recovery writes to the rest of the directory as well.
    """
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    compare_all_rounds(oracle, fast_dir / "play", loose_codecs, scenario, kill)


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(
    scenario=scenarios(max_rounds=2, kinds=("transactional", "transactional", "mixed", "idempotent")),
    without_indexes=st.sampled_from([0xFFFF, 0x5555, 0xAAAA, 0b110, 1]),
)
def test_log_without_its_indexes(
    oracle: Oracle, fast_dir: Path, loose_codecs: frozenset[int], scenario: Scenario, without_indexes: int
) -> None:
    """Removed after an orderly stop, so that they are built anew: Kafka recovers such segments first, and knows their aborts.

    Only what was cleaned is compared, as the rest has its indexes back where Kafka was.
    """
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    try:
        compare_all_rounds(oracle, fast_dir / "play", loose_codecs, scenario, without_indexes=without_indexes)
    except OracleError as error:
        # A denser interval than that of its writer overfills the index that recovery builds.
        if "Attempt to append to a full" not in error.message:
            raise


@pytest.mark.parametrize("name", CORNERS)
def test_corner(oracle: Oracle, fast_dir: Path, loose_codecs: frozenset[int], name: str) -> None:
    assert compare_all_rounds(oracle, fast_dir / "play", loose_codecs, CORNERS[name]) == len(CORNERS[name].rounds)


@pytest.mark.parametrize("name", LOST_INDEX_CORNERS)
def test_corner_of_lost_indexes(oracle: Oracle, fast_dir: Path, loose_codecs: frozenset[int], name: str) -> None:
    scenario, kill = LOST_INDEX_CORNERS[name], Kill(100, indexes_lost=True)
    assert compare_all_rounds(oracle, fast_dir / "play", loose_codecs, scenario, kill) == len(scenario.rounds)


def compare_all_rounds(
    oracle: Oracle,
    work: Path,
    loose_codecs: frozenset[int],
    scenario: Scenario,
    kill: Kill | None = None,
    without_indexes: int = 0,
) -> int:
    """Plays a scenario on both sides; the number of rounds in which there was something to clean."""
    cleaned = 0
    for cleaning in play(oracle, scenario, work, kill, without_indexes=without_indexes):
        if hides_commits(cleaning):
            # What Kafka keeps now compactd drops, in this round and in those after it.
            event("an abort before the first batch read hides commits from Kafka")
            break
        if without_indexes and forgets_producers(cleaning.image):
            event("a gap between segments makes Kafka forget its producers")
            break
        for kernel in kernels():
            ours = work / kernel.name / "t-0"
            shutil.copytree(cleaning.image.before, ours)
            report = clean(ours, cleaning, kernel)
            check(cleaning, ours, report, loose_codecs, bool(without_indexes))
            shutil.rmtree(ours.parent)
        cleaned += cleaning.stats is not None
    return cleaned


def hides_commits(cleaning: Cleaning) -> bool:
    """`ours.hides_commits` of a directory that is about to be cleaned."""
    partition = load(cleaning.image.before, cleaning)
    return log_hides_commits(partition, cleaning.first_dirty_offset, cleaning.first_uncleanable_offset)


def forgets_producers(image: Image) -> bool:
    """Whether Kafka drops what it knows of producers, open transactions included; compactd reads it from the log.

    It takes a snapshot behind the last batch of magic 2 of a recovered segment, but none up to the log start, and removes it
    as a stray one where no segment begins.
    """
    return any(
        _known_up_to(segment) != following.base_offset or following.base_offset <= image.log_start_offset
        for segment, following in pairwise(list_segments(image.before))
        if not segment.offset_index_path.exists()
    )


def _known_up_to(segment: LogSegment) -> int:
    batches = read_batches(segment.log_path, 0, segment.size) if segment.size else ()
    ends = [batch.header.next_offset for batch in batches if batch.header.magic == 2]
    return max(ends, default=segment.base_offset)


def check(
    cleaning: Cleaning, ours: Path, report: PartitionReport, loose_codecs: frozenset[int], only_cleaned: bool = False
) -> None:
    """compactd's directory and figures after a round against Kafka's."""
    if cleaning.error is not None:
        event(f"Kafka: {cleaning.error}")
        assert report.outcome in ("cleaned", "faulty", "refused"), report.reason
        return
    assert report.exit_code == 0, report.reason
    image = cleaning.image
    cleaned_below = cleaning.stats["nextDirtyOffset"] if cleaning.stats else 0
    only_below = None if image.clean_shutdown and not only_cleaned else cleaned_below
    result = compare(image.before, image.after, ours, cleaned_below, loose_codecs, only_below)
    assert result.differences == []
    if cleaning.stats is None:
        assert report.outcome == "clean"
        return
    assert report.outcome == "cleaned"
    figures = _figures(report)
    expected = {name: cleaning.stats[name] for name in figures}
    if result.recompressed:
        event("a library-dependent codec wrote other bytes")
        del figures["bytesWritten"], expected["bytesWritten"]
    assert figures == expected


def _figures(report: PartitionReport) -> Answer:
    stats = report.stats
    return {
        "nextDirtyOffset": report.next_dirty_offset,
        "mapEntries": report.map_entries,
        "messagesRead": stats.messages_read,
        "bytesRead": stats.bytes_read,
        "messagesWritten": stats.messages_written,
        "bytesWritten": stats.bytes_written,
        "invalidMessagesRead": stats.invalid_messages_read,
    }
