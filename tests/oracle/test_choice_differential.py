"""Which of several logs is cleaned first, and which checkpoints are put right, against Kafka's LogCleanerManager."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from compactd.storage.checkpoints import OffsetCheckpoint
from compactd.storage.cleaning.cleanable import LogToClean, filthiest_first, log_to_clean, offsets_to_clean
from compactd.storage.names import TopicPartition
from compactd.storage.partition import Partition
from tests.oracle.driver import Answer, Oracle
from tests.oracle.ours import load
from tests.oracle.replay import Cleaning, play
from tests.oracle.scenario import DAY_MS, Scenario
from tests.strategies import TIMEOUT, examples, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

configs = st.fixed_dictionaries(
    {"min.cleanable.dirty.ratio": st.sampled_from([0.0, 0.3, 0.5, 0.9])},
    optional={
        "max.compaction.lag.ms": st.sampled_from([1, DAY_MS, 30 * DAY_MS]),
        "cleanup.policy": st.sampled_from(["compact,delete", "delete"]),
    },
)
#: A log, its checkpoint in percent of it (None: no entry), its settings.
members = st.lists(
    st.tuples(scenarios(max_rounds=1), st.one_of(st.none(), st.integers(-20, 120)), configs), min_size=2, max_size=4
)

Member = tuple[Scenario, int | None, dict[str, object]]


@settings(max_examples=examples(250), suppress_health_check=list(HealthCheck))
@given(members=members)
def test_filthiest_log_and_checkpoints(oracle: Oracle, fast_dir: Path, members: list[Member]) -> None:
    shutil.rmtree(fast_dir, ignore_errors=True)
    log_dir = fast_dir / "logs"
    logs = list(_write(oracle, log_dir, fast_dir / "play", members))
    now = max(cleaning.image.now_ms for cleaning in logs)
    logs = [replace(cleaning, image=replace(cleaning.image, now_ms=now)) for cleaning in logs]
    checkpoints = {
        _name(number): cleaning.log_end_offset * place // 100
        for number, (cleaning, (_, place, _)) in enumerate(zip(logs, members, strict=True))
        if place is not None
    }
    OffsetCheckpoint(log_dir / "cleaner-offset-checkpoint").write(checkpoints)

    expected, corrected, delay = _ours(log_dir, logs, checkpoints, now)
    grabbed, entries = _kafka(oracle, log_dir, logs)

    # Which of two logs with one ratio comes first is a matter of a Java hash map.
    event(f"{len(expected)} to clean of {len(logs)}")
    ratios = [answer["ratio"] for answer in grabbed if "partition" in answer]
    assert ratios == sorted(ratios, reverse=True) == [log.cleanable_ratio for log in expected]
    assert sorted(_choice(answer) for answer in grabbed[:-1]) == sorted(map(_our_choice, expected))
    assert entries == {str(name): offset for name, offset in {**checkpoints, **corrected}.items()}
    assert grabbed[0]["maxCompactionDelayMs"] == delay


def _name(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def _write(oracle: Oracle, log_dir: Path, work: Path, members: Sequence[Member]) -> Iterator[Cleaning]:
    """The members' logs as partitions of one log dir, each as it stood before its round."""
    for number, (scenario, _, config) in enumerate(members):
        for cleaning in play(oracle, scenario, work):
            path = log_dir / str(_name(number))
            shutil.copytree(cleaning.image.before, path)
            topic = {**cleaning.image.config, **config}
            least = int(str(topic.get("min.compaction.lag.ms", 0)))
            if int(str(topic.get("max.compaction.lag.ms", least))) < least:
                topic["max.compaction.lag.ms"] = least
            image = replace(cleaning.image, before=path, after=path, config=topic)
            yield replace(cleaning, image=image)
        shutil.rmtree(work)


def _ours(
    log_dir: Path, logs: Sequence[Cleaning], checkpoints: dict[TopicPartition, int], now: int
) -> tuple[list[LogToClean[Partition]], dict[TopicPartition, int], int]:
    """Logs in the order of cleaning, corrected checkpoints, and the longest compaction delay."""
    candidates, corrected = [], {}
    for number, cleaning in enumerate(logs):
        partition = load(log_dir / str(_name(number)), cleaning)
        if not partition.config.compact:
            continue
        offsets = offsets_to_clean(partition, checkpoints.get(_name(number)), now)
        if offsets.force_update_checkpoint:
            corrected[_name(number)] = offsets.first_dirty_offset
        candidates.append(log_to_clean(partition, offsets.first_dirty_offset, offsets.first_uncleanable_offset, now))
    delay = max((log.compaction_delay_ms for log in candidates), default=0)
    return filthiest_first(candidates), corrected, delay


def _kafka(oracle: Oracle, log_dir: Path, logs: Sequence[Cleaning]) -> tuple[list[Answer], dict[str, int]]:
    """What the manager hands out until nothing is left (the last answer has no partition), and the checkpoints then."""
    for number, cleaning in enumerate(logs):
        image = cleaning.image
        oracle.open(
            log_dir / str(_name(number)),
            image.config,
            id=str(number),
            now=image.now_ms,
            logStartOffset=image.log_start_offset,
            highWatermark=cleaning.high_watermark,
        )
    oracle.request("manager", dirs=[str(log_dir)], logs=[str(number) for number in range(len(logs))])
    grabbed = [oracle.request("grab")]
    while "partition" in grabbed[-1]:
        grabbed.append(oracle.request("grab"))
    return grabbed, oracle.request("checkpoints")["entries"]


def _choice(answer: Answer) -> tuple[object, ...]:
    names = (
        "partition",
        "firstDirtyOffset",
        "firstUncleanableOffset",
        "cleanableBytes",
        "totalBytes",
        "needCompactionNow",
    )
    return tuple(answer[name] for name in names)


def _our_choice(log: LogToClean[Partition]) -> tuple[object, ...]:
    return (
        str(log.partition.topic_partition),
        log.first_dirty_offset,
        log.first_uncleanable_offset,
        log.cleanable_bytes,
        log.total_bytes,
        log.compaction_delay_ms > 0,
    )
