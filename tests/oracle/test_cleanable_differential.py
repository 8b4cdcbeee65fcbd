"""What compactd reads from a log and what it would clean of it, against Kafka's UnifiedLog and LogCleanerManager."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.storage.cleaning.aborted import AbortedTransactions
from compactd.storage.cleaning.cleanable import log_to_clean, offsets_to_clean
from compactd.storage.partition import Partition
from tests.oracle.driver import Answer, Oracle
from tests.oracle.ours import load
from tests.oracle.replay import Cleaning, play
from tests.oracle.scenario import Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

#: Where the cleaner's checkpoint stands, in percent of the log; outside it is invalid, None is no entry.
checkpoints = st.lists(st.one_of(st.none(), st.integers(-20, 120)), min_size=1, max_size=4)


@settings(max_examples=examples(700), suppress_health_check=list(HealthCheck))
@given(scenario=scenarios(max_rounds=2), places=checkpoints)
def test_cleanable_range_and_ratio(
    oracle: Oracle, fast_dir: Path, scenario: Scenario, places: list[int | None]
) -> None:
    shutil.rmtree(fast_dir / "play", ignore_errors=True)
    for cleaning in play(oracle, scenario, fast_dir / "play"):
        assert _view(load(cleaning.image.before, cleaning), cleaning.image.now_ms) == _kafka_view(cleaning)
        end = cleaning.log_end_offset
        wanted = [None if place is None else end * place // 100 for place in places]
        for checkpoint, answer in zip(wanted, _ask(oracle, cleaning, wanted), strict=True):
            assert _cleanable(cleaning, checkpoint) == {name: answer.get(name) for name in _FIELDS}


def _view(partition: Partition, now_ms: int) -> dict[str, object]:
    active = partition.active_producers(now_ms)
    start, end = partition.log_start_offset, partition.log_end_offset
    return {
        "logStartOffset": start,
        "logEndOffset": end,
        "highWatermark": partition.high_watermark,
        "lastStableOffset": partition.last_stable_offset,
        "size": partition.size,
        "segments": [(s.base_offset, s.size, s.largest_timestamp) for s in partition.segments],
        "producers": {pid: (p.producer_epoch, p.last_data_offset) for pid, p in active.items()},
        "aborted": [
            (t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset)
            for t in AbortedTransactions(partition.segments).collect(start, start, end)
        ],
    }


def _kafka_view(cleaning: Cleaning) -> dict[str, object]:
    state, known = cleaning.cleanable, cleaning.producers
    return {
        **{
            name: state[name]
            for name in ("logStartOffset", "logEndOffset", "highWatermark", "lastStableOffset", "size")
        },
        "segments": [(s["baseOffset"], s["size"], s["largestTimestamp"]) for s in state["segments"]],
        "producers": {p["pid"]: (p["epoch"], p["lastDataOffset"]) for p in known["producers"]},
        "aborted": [(t["pid"], t["firstOffset"], t["lastOffset"], t["lastStableOffset"]) for t in known["aborted"]],
    }


_FIELDS = (
    "firstDirtyOffset",
    "dirtyUncleanableOffset",
    "firstUncleanableOffset",
    "forceUpdateCheckpoint",
    "cleanBytes",
    "cleanableBytes",
    "totalBytes",
    "ratio",
)


def _ask(oracle: Oracle, cleaning: Cleaning, checkpoints: list[int | None]) -> list[Answer]:
    image = cleaning.image
    oracle.open(
        image.before,
        image.config,
        now=image.now_ms,
        logStartOffset=image.log_start_offset,
        highWatermark=cleaning.high_watermark,
    )
    answers = [oracle.cleanable(checkpoint) for checkpoint in checkpoints]
    oracle.close()
    return answers


def _cleanable(cleaning: Cleaning, checkpoint: int | None) -> dict[str, object]:
    now = cleaning.image.now_ms
    partition = load(cleaning.image.before, cleaning)
    offsets = offsets_to_clean(partition, checkpoint, now)
    log = log_to_clean(partition, offsets.first_dirty_offset, offsets.first_uncleanable_offset, now)
    return {
        "firstDirtyOffset": offsets.first_dirty_offset,
        "dirtyUncleanableOffset": offsets.first_uncleanable_offset,
        "firstUncleanableOffset": log.first_uncleanable_offset,
        "forceUpdateCheckpoint": offsets.force_update_checkpoint,
        "cleanBytes": log.clean_bytes,
        "cleanableBytes": log.cleanable_bytes,
        "totalBytes": log.total_bytes,
        "ratio": log.cleanable_ratio if log.total_bytes else None,
    }
