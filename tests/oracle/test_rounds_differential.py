"""Rounds until nothing is dirty, and segments that have to be split first, against Kafka doing the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, given, reject, settings
from hypothesis import strategies as st

from compactd.storage.names import log_name
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.logs import LogBuilder
from tests.oracle.compare import SNAPPY, compare
from tests.oracle.driver import Answer, Oracle, OracleError
from tests.oracle.ours import clean, kernels
from tests.oracle.replay import KAFKA_SLOT_BYTES, Cleaning, Image, play
from tests.oracle.scenario import EPOCH_MS, Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

#: Not transactional ones: where a round starts behind an abort compactd may map more keys than Kafka (test_kafka_faults.py).
_KINDS = ("plain", "idempotent", "legacy")
_MOST_ROUNDS = 200


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(max_rounds=1, kinds=_KINDS), slots=st.sampled_from([2, 3, 5]))
def test_rounds_until_nothing_is_dirty(oracle: Oracle, fast_dir: Path, scenario: Scenario, slots: int) -> None:
    """A map of a few keys takes many rounds, each of which starts where the last one stopped, mostly inside a batch."""
    shutil.rmtree(fast_dir, ignore_errors=True)
    (played,) = play(oracle, scenario, fast_dir / "play", keep=True)
    assume(played.stats is not None and played.error is None)
    cleaning = Cleaning(**{**vars(played), "map_slots": slots, "load_factor": 1.0})
    kafka = fast_dir / "kafka" / "t-0"
    shutil.copytree(cleaning.image.before, kafka)
    rounds = _clean_until_done(oracle, kafka, cleaning)
    if rounds is None:
        reject()
    event(f"{min(rounds, 6)} rounds")
    for kernel in kernels():
        ours = fast_dir / kernel.name / "t-0"
        shutil.copytree(cleaning.image.before, ours)
        report = clean(ours, cleaning, kernel, once=False)
        assert (report.outcome, report.rounds) == ("cleaned", rounds), report.reason
        result = compare(cleaning.image.before, kafka, ours, cleaning.first_uncleanable_offset, frozenset({SNAPPY}))
        assert result.differences == []


def _clean_until_done(oracle: Oracle, directory: Path, cleaning: Cleaning) -> int | None:
    """The number of rounds Kafka takes; None where its cleaner throws."""
    oracle.open(directory, **cleaning.image.opening(), highWatermark=cleaning.high_watermark)
    first, rounds = cleaning.first_dirty_offset, 0
    while first < cleaning.first_uncleanable_offset:
        asked = {
            "op": "clean",
            "first": first,
            "uncleanable": cleaning.first_uncleanable_offset,
            "dedupe": cleaning.map_slots * KAFKA_SLOT_BYTES,
            "loadFactor": cleaning.load_factor,
        }
        (answer,) = oracle.many([asked])
        if "error" in answer:
            return None
        assert answer["nextDirtyOffset"] > first
        first, rounds = answer["nextDirtyOffset"], rounds + 1
        assert rounds < _MOST_ROUNDS
    oracle.run_delayed()
    oracle.close()
    return rounds


def test_overflowed_segment_is_split_first(oracle: Oracle, fast_dir: Path) -> None:
    """A segment from before offsets were checked at append: Kafka splits it, gives the round up, and cleans in the next."""
    before = fast_dir / "before" / "t-0"
    with LogBuilder(before) as log:
        log.append([("a", "1"), ("b", "1")])
        log.append([("a", "2")])
    far = [_batch(offset, key) for offset, key in ((2**31, b"b"), (2**31 + 7, b"c"), (2**32 + 9, b"a"))]
    with (before / log_name(0)).open("ab") as file:
        file.write(b"".join(far))
    # A roll: an empty active segment past them.
    for name in ("log", "index", "timeindex"):
        (before / f"{2**32 + 10:020}.{name}").touch()

    kafka = fast_dir / "kafka" / "t-0"
    config: dict[str, object] = {
        "cleanup.policy": "compact",
        "segment.index.bytes": 4096,
        "internal.segment.bytes": 200,
    }
    image = Image(before, kafka, config, EPOCH_MS, 0, None)
    # A start settles the producer snapshots; the overflow stays unseen, as the index is there.
    oracle.open(before, **image.opening())
    oracle.close()
    shutil.copytree(before, kafka)
    state = oracle.open(kafka, **image.opening())
    cleanable = oracle.cleanable(None)
    with pytest.raises(OracleError) as stopped:
        oracle.clean(dedupe=1000 * KAFKA_SLOT_BYTES)
    assert stopped.value.kind == "LogCleaningAbortedException"
    assert len(oracle.state()["segments"]) == 4
    stats: Answer = oracle.clean(dedupe=1000 * KAFKA_SLOT_BYTES)
    oracle.run_delayed()
    oracle.close()

    cleaning = Cleaning(
        image,
        log_end_offset=state["logEndOffset"],
        high_watermark=state["highWatermark"],
        cleanable=cleanable,
        producers={},
        first_dirty_offset=0,
        first_uncleanable_offset=2**32 + 10,
        map_slots=1000,
        load_factor=0.9,
        stats=stats,
    )
    for kernel in kernels():
        ours = fast_dir / kernel.name / "t-0"
        shutil.copytree(before, ours)
        report = clean(ours, cleaning, kernel)
        assert report.outcome == "cleaned", report.reason
        assert compare(before, kafka, ours, 2**32 + 10, frozenset()).differences == []


def _batch(offset: int, key: bytes) -> bytes:
    return build_batch([Record(offset, EPOCH_MS, key, b"far")], base_offset=offset, leader_epoch=0)
