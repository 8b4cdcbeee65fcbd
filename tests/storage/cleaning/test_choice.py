"""Kafka's LogCleanerManagerTest: which log is cleaned next (facts 12.2, 4.2), by Kafka's test names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from compactd.config.errors import CorruptBatchError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.cleaning.choice import Choice, grab_filthiest
from compactd.storage.cleaning.states import CleaningState, CleaningStates, Phase
from compactd.storage.names import TopicPartition
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.rounds import load
from tests.storage.cleaning.short_log import ShortLog

COMPACT = frozenset({"compact"})
IN_PROGRESS = CleaningState(Phase.IN_PROGRESS)


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


@pytest.fixture
def states() -> CleaningStates:
    return CleaningStates()


@pytest.fixture
def filthy(make_log: LogMaker) -> list[ShortLog]:
    """Partitions 0, 1, 2 with 20, 25 and 30 batches: dirty ranges [20,20), [20,25), [20,30) from checkpoint 20."""
    logs = []
    for number in range(3):
        log = make_log(f"t-{number}", segment_bytes=1 << 20)
        for offset in range(20 + 5 * number):
            if offset == 20:
                log.roll()
            log.append((offset, offset))
        log.roll()
        logs.append(log)
    return logs


def grab(states: CleaningStates, logs: Sequence[ShortLog], checkpoint: int | None = 20) -> Choice:
    partitions = [load(log) for log in logs]
    checkpoints = {} if checkpoint is None else {p.topic_partition: checkpoint for p in partitions}
    return grab_filthiest(states, partitions, checkpoints, NOW_MS)


def chosen(choice: Choice) -> int | None:
    return None if choice.log is None else choice.log.partition.topic_partition.partition


def test_grab_filthiest_compacted_log_returns_log_with_dirtiest_ratio(
    states: CleaningStates, filthy: list[ShortLog]
) -> None:
    choice = grab(states, with_any_ratio(filthy))
    assert chosen(choice) == 2
    assert choice.log is not None
    assert (choice.log.first_dirty_offset, choice.log.first_uncleanable_offset) == (20, 30)
    assert choice.max_ratio == choice.log.cleanable_ratio
    assert choice.cleanable == 2, "0 has nothing dirty"
    assert states.states() == {tp(2): IN_PROGRESS}


def with_any_ratio(logs: list[ShortLog]) -> list[ShortLog]:
    for log in logs:
        log.config = TopicConfig(cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.0)
    return logs


def test_grab_filthiest_compacted_log_ignores_uncleanable_partitions(
    states: CleaningStates, filthy: list[ShortLog]
) -> None:
    states.mark_uncleanable(filthy[2].directory.parent, tp(2))
    assert chosen(grab(states, with_any_ratio(filthy))) == 1


def test_grab_filthiest_compacted_log_ignores_in_progress_partitions(
    states: CleaningStates, filthy: list[ShortLog]
) -> None:
    states.begin(tp(2))
    assert chosen(grab(states, with_any_ratio(filthy))) == 1


def test_grab_filthiest_compacted_log_ignores_both_in_progress_partitions_and_uncleanable_partitions(
    states: CleaningStates, filthy: list[ShortLog]
) -> None:
    states.begin(tp(2))
    states.mark_uncleanable(filthy[1].directory.parent, tp(1))
    choice = grab(states, with_any_ratio(filthy))
    assert chosen(choice) is None
    assert states.states() == {tp(2): IN_PROGRESS}


@pytest.mark.parametrize("phase", ["paused", "aborted"])
def test_grab_filthiest_ignores_paused_and_aborted_partitions(
    states: CleaningStates, filthy: list[ShortLog], phase: str
) -> None:
    if phase == "aborted":
        states.begin(tp(2))
    states.abort_and_pause(tp(2))
    assert chosen(grab(states, with_any_ratio(filthy))) == 1


def test_grab_filthiest_compacted_log_throws_exception(states: CleaningStates, filthy: list[ShortLog]) -> None:
    """A log that cannot be weighed is named with the cause and set aside. Unlike in Kafka the others go on."""
    broken = filthy[2].directory / names.log_name(20)
    data = broken.read_bytes()
    logs = with_any_ratio(filthy)
    partitions = [load(log) for log in logs]
    broken.write_bytes(data[:16] + b"\xff" + data[17:])
    choice = grab_filthiest(states, partitions, {p.topic_partition: 20 for p in partitions}, NOW_MS)
    assert list(choice.failed) == [tp(2)]
    assert isinstance(choice.failed[tp(2)], CorruptBatchError)
    assert choice.failed[tp(2)].path == str(broken)
    assert states.uncleanable(broken.parent.parent) == {tp(2)}
    assert chosen(choice) == 1
    # It is not looked at again until its mark goes.
    states.done_cleaning(tp(1), lambda: None)
    assert not grab_filthiest(states, partitions, {p.topic_partition: 20 for p in partitions}, NOW_MS).failed


def test_ratio_is_compared_strictly(states: CleaningStates, make_log: LogMaker) -> None:
    log = make_log("t-0", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.5)
    for _ in range(2):
        log.append(("k", "v"))
        log.roll()
    assert chosen(grab(states, [log], checkpoint=1)) is None, "half is not more than half"
    log.append(("k", "v"))
    log.roll()
    choice = grab(states, [log], checkpoint=1)
    assert chosen(choice) == 0
    assert choice.log is not None and choice.log.cleanable_ratio == 2 / 3


def test_equal_ratios_the_first(states: CleaningStates, make_log: LogMaker) -> None:
    logs = []
    for number in (1, 0):
        log = make_log(f"t-{number}")
        log.append(("k", "v"))
        log.roll()
        logs.append(log)
    assert chosen(grab(states, logs, checkpoint=None)) == 1


def test_checkpoint_updated_for_invalid_offset_no_cleaning(states: CleaningStates, make_log: LogMaker) -> None:
    """Log start 20, checkpoint 15, nothing dirty: the entry becomes 20 all the same."""
    log = make_log("t-0", segment_bytes=1 << 20)
    for key in range(20):
        log.append((key, key))
    log.roll()
    partition = load(log, log_start_offset=20)
    choice = grab_filthiest(states, [partition], {tp(0): 15}, NOW_MS)
    assert choice.log is None
    assert choice.corrected == {tp(0): 20}
    assert states.states() == {}


def test_checkpoint_updated_for_invalid_offset_not_selected(states: CleaningStates, filthy: list[ShortLog]) -> None:
    """The same for a log that loses against a dirtier one."""
    logs = with_any_ratio(filthy)
    partitions = [load(logs[1], log_start_offset=20), load(logs[2])]
    choice = grab_filthiest(states, partitions, {tp(1): 15, tp(2): 20}, NOW_MS)
    assert chosen(choice) == 2
    assert choice.corrected == {tp(1): 20}


def test_logs_under_cleanup_ineligible_for_compaction(states: CleaningStates, make_log: LogMaker) -> None:
    """Retention and cleaner never share a log while its policy is being switched."""
    delete = TopicConfig(cleanup_policy=frozenset({"delete"}))
    log = make_log("t-0")
    log.append(("k", "v"))
    log.roll()

    assert states.pause_non_compacted({tp(0): delete}) == [tp(0)]
    # Its policy becomes compact while retention runs.
    assert chosen(grab(states, [log], checkpoint=None)) is None
    states.resume(tp(0))
    assert chosen(grab(states, [log], checkpoint=None)) == 0

    # The policy flips back while it is compacted: retention has to wait.
    assert states.pause_non_compacted({tp(0): delete}) == []
    states.done_cleaning(tp(0), lambda: None)
    assert states.pause_non_compacted({tp(0): delete}) == [tp(0)]


def hosted(directory: Path, *policies: str) -> dict[TopicPartition, tuple[Path, TopicConfig]]:
    config = TopicConfig(cleanup_policy=frozenset(policies))
    return {tp(0): (directory, config)}


def test_logs_with_segments_to_delete_should_not_consider_cleanup_policy_delete_logs(states: CleaningStates) -> None:
    assert states.begin_deletable(hosted(Path("/d"), "delete")) == []


def test_logs_with_segments_to_delete_should_consider_cleanup_policy_compact_delete_logs(
    states: CleaningStates,
) -> None:
    assert states.begin_deletable(hosted(Path("/d"), "compact", "delete")) == [tp(0)]
    assert states.states() == {tp(0): IN_PROGRESS}


def test_logs_with_segments_to_delete_should_consider_cleanup_policy_compact_logs(states: CleaningStates) -> None:
    assert states.begin_deletable(hosted(Path("/d"), "compact")) == [tp(0)]
    assert states.begin_deletable(hosted(Path("/d"), "compact")) == [], "it is taken"


def test_logs_with_segments_to_delete_should_not_consider_uncleanable_partitions(states: CleaningStates) -> None:
    states.mark_uncleanable(Path("/d"), tp(0))
    assert states.begin_deletable(hosted(Path("/d"), "compact")) == []
    assert states.begin_deletable(hosted(Path("/other"), "compact")) == [tp(0)], "marks are a log dir's"


def test_partition_is_weighed_once_a_choice(states: CleaningStates, filthy: list[ShortLog]) -> None:
    """Choice after choice takes the next filthiest, until nothing is left."""
    logs = with_any_ratio(filthy)
    assert [chosen(grab(states, logs)) for _ in range(4)] == [2, 1, None, None]


def test_a_log_without_bytes_is_never_chosen(states: CleaningStates, make_log: LogMaker) -> None:
    partition = load(make_log("t-0"))
    assert partition.size == 0
    choice = grab_filthiest(states, [partition], {}, NOW_MS)
    assert (choice.log, choice.max_ratio, choice.cleanable) == (None, 0.0, 0)
