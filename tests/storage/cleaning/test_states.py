"""Kafka's LogCleanerManagerTest: states of a partition, and the cleaner's checkpoints (facts 12.2, 4.1, 4.8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from compactd.config.errors import CleaningAbortedError, CleaningStateError, StorageIOError
from compactd.config.settings import TopicConfig
from compactd.storage import files
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from compactd.storage.cleaning.states import CleaningState, CleaningStates, Phase
from compactd.storage.names import TopicPartition
from tests.file_faults import FaultyLayer, PowerCut

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
DELETE = TopicConfig(cleanup_policy=frozenset({"delete"}))

IN_PROGRESS = CleaningState(Phase.IN_PROGRESS)
ABORTED = CleaningState(Phase.ABORTED)


def paused(count: int) -> CleaningState:
    return CleaningState(Phase.PAUSED, count)


def states_in(state: CleaningState | None) -> CleaningStates:
    """States in which TP has come to `state` by the calls that lead there."""
    states = CleaningStates()
    if state in (IN_PROGRESS, ABORTED):
        states.begin(TP)
    if state == ABORTED:
        states.abort_and_pause(TP)
    for _ in range(state.pauses if state else 0):
        states.abort_and_pause(TP)
    assert states.state(TP) == state
    return states


ERROR = "error"
CALLS: dict[str, Callable[[CleaningStates], object]] = {
    "abort_and_pause": lambda states: states.abort_and_pause(TP),
    "resume": lambda states: states.resume(TP),
    "done_cleaning": lambda states: states.done_cleaning(TP, lambda: None),
    "done_deleting": lambda states: states.done_deleting([TP]),
    "begin": lambda states: states.begin(TP),
}
#: The table of facts 4.1, row by row: what each state becomes.
TABLE: list[tuple[str, CleaningState | None, CleaningState | str | None]] = [
    ("abort_and_pause", None, paused(1)),
    ("abort_and_pause", IN_PROGRESS, ABORTED),
    ("abort_and_pause", ABORTED, ERROR),
    ("abort_and_pause", paused(1), paused(2)),
    ("abort_and_pause", paused(3), paused(4)),
    ("resume", None, ERROR),
    ("resume", IN_PROGRESS, ERROR),
    ("resume", ABORTED, ERROR),
    ("resume", paused(1), None),
    ("resume", paused(3), paused(2)),
    ("done_cleaning", None, ERROR),
    ("done_cleaning", IN_PROGRESS, None),
    ("done_cleaning", ABORTED, paused(1)),
    ("done_cleaning", paused(1), ERROR),
    ("done_deleting", None, ERROR),
    ("done_deleting", IN_PROGRESS, None),
    ("done_deleting", ABORTED, paused(1)),
    ("done_deleting", paused(1), ERROR),
    ("begin", None, IN_PROGRESS),
    ("begin", IN_PROGRESS, ERROR),
    ("begin", ABORTED, ERROR),
    ("begin", paused(1), ERROR),
]


@pytest.mark.parametrize(("call", "before", "after"), TABLE)
def test_every_call_in_every_state(call: str, before: CleaningState | None, after: CleaningState | str | None) -> None:
    states = states_in(before)
    if after == ERROR:
        shown = "idle" if before is None else str(before)
        with pytest.raises(
            CleaningStateError, match=rf"t-0: cannot .*, it is {shown.replace('(', '.').replace(')', '.')}"
        ):
            CALLS[call](states)
        assert states.state(TP) == before, "a refused call changes nothing"
    else:
        CALLS[call](states)
        assert states.state(TP) == after


def test_check_aborted() -> None:
    for state in (None, IN_PROGRESS, paused(1)):
        states_in(state).check_aborted(TP)
    with pytest.raises(CleaningAbortedError, match="t-0"):
        states_in(ABORTED).check_aborted(TP)


@pytest.fixture
def log_dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "d1", tmp_path / "d2"]
    for log_dir in made:
        log_dir.mkdir()
        (log_dir / CLEANER_OFFSETS).touch()
    return made


def test_done_cleaning(log_dirs: list[Path]) -> None:
    """From IN_PROGRESS it writes the checkpoint while nobody can take the log yet; from ABORTED it writes none."""
    checkpoints = CleanerCheckpoints(log_dirs)
    states = states_in(IN_PROGRESS)

    def write() -> None:
        assert states.state(TP) == IN_PROGRESS
        checkpoints.update(log_dirs[0], {TP}, {TP: 1})

    assert states.done_cleaning(TP, write) is True
    assert states.state(TP) is None
    assert checkpoints.all_offsets() == {TP: 1}

    states = states_in(ABORTED)
    assert states.done_cleaning(TP, lambda: pytest.fail("no checkpoint after an abort")) is False
    assert states.state(TP) == paused(1)


def test_a_checkpoint_that_cannot_be_written_does_not_hold_the_log(log_dirs: list[Path]) -> None:
    checkpoints, states = CleanerCheckpoints(log_dirs), states_in(IN_PROGRESS)
    layer = FaultyLayer()
    layer.fail("rename", 5)
    with files.replaced(layer), pytest.raises(StorageIOError):
        states.done_cleaning(TP, lambda: checkpoints.update(log_dirs[0], {TP}, {TP: 1}))
    assert states.state(TP) is None
    assert checkpoints.all_offsets() == {}


def test_done_deleting() -> None:
    """Of several partitions each goes by its own state."""
    states = states_in(ABORTED)
    states.begin(OTHER)
    states.done_deleting([TP, OTHER])
    assert states.states() == {TP: paused(1)}


def test_concurrent_log_cleanup_and_log_truncation() -> None:
    states = CleaningStates()
    taken = states.pause_non_compacted({TP: DELETE})
    assert states.abort_and_pause(TP) == paused(2)
    states.resume(TP)
    for topic_partition in taken:
        states.resume(topic_partition)
    assert states.states() == {}


def test_concurrent_log_cleanup_and_topic_deletion() -> None:
    states = CleaningStates()
    taken = states.pause_non_compacted({TP: DELETE})
    assert states.abort_cleaning(TP, timeout_s=0)
    for topic_partition in taken:
        states.resume(topic_partition)
    assert states.states() == {}


def test_abort_waits_until_the_cleaner_lets_go() -> None:
    states = states_in(IN_PROGRESS)
    seen = threading.Event()

    def cleaner() -> None:
        while True:
            try:
                states.check_aborted(TP)
            except CleaningAbortedError:
                seen.set()
                states.done_cleaning(TP, lambda: None)
                return

    thread = threading.Thread(target=cleaner)
    thread.start()
    assert states.abort_cleaning(TP, timeout_s=60)
    thread.join(60)
    assert seen.is_set()
    assert states.states() == {}


def test_abort_gives_up_after_its_time_and_leaves_the_partition_aborted() -> None:
    states = states_in(IN_PROGRESS)
    assert states.abort_cleaning(TP, timeout_s=0) is False
    assert states.state(TP) == ABORTED
    states.done_cleaning(TP, lambda: None)
    assert states.wait_until_paused(TP, timeout_s=0)
    states.resume(TP)
    assert states.states() == {}


def test_pause_of_non_compacted_takes_only_the_idle() -> None:
    states = states_in(IN_PROGRESS)
    compacted = TopicConfig(cleanup_policy=frozenset({"compact", "delete"}))
    third = TopicPartition("u", 0)
    assert states.pause_non_compacted({TP: DELETE, OTHER: DELETE, third: compacted}) == [OTHER]


def test_marks_are_dropped_with_their_partitions() -> None:
    states = CleaningStates()
    for topic_partition in (TP, OTHER):
        states.mark_uncleanable(Path("/d1"), topic_partition)
    states.drop_absent({OTHER})
    assert states.uncleanable(Path("/d1")) == {OTHER}
    assert states.unmark(Path("/d1"), OTHER) is True
    assert states.unmark(Path("/d1"), OTHER) is False
    assert states.uncleanable(Path("/d1")) == frozenset()


# ---- checkpoints


def read(log_dir: Path) -> dict[TopicPartition, int]:
    return OffsetCheckpoint(log_dir / CLEANER_OFFSETS).read()


def test_update_checkpoints_should_add_offset_to_partition(log_dirs: list[Path]) -> None:
    checkpoints = CleanerCheckpoints(log_dirs)
    assert checkpoints.all_offsets() == {}
    checkpoints.update(log_dirs[0], {TP}, {TP: 10})
    assert checkpoints.all_offsets() == read(log_dirs[0]) == {TP: 10}


def test_update_checkpoints_should_remove_partition_data(log_dirs: list[Path]) -> None:
    checkpoints = CleanerCheckpoints(log_dirs)
    checkpoints.update(log_dirs[0], {TP, OTHER}, {TP: 10, OTHER: 5})
    checkpoints.update(log_dirs[0], {TP, OTHER}, remove=[TP])
    assert checkpoints.all_offsets() == read(log_dirs[0]) == {OTHER: 5}


def test_update_drops_partitions_that_are_not_hosted(log_dirs: list[Path]) -> None:
    checkpoints = CleanerCheckpoints(log_dirs)
    checkpoints.update(log_dirs[0], {TP, OTHER}, {TP: 10, OTHER: 5})
    checkpoints.update(log_dirs[0], {TP}, {TP: 11})
    assert read(log_dirs[0]) == {TP: 11}


def test_handle_log_dir_failure_should_remove_dir_and_data(log_dirs: list[Path]) -> None:
    checkpoints = CleanerCheckpoints(log_dirs)
    checkpoints.update(log_dirs[0], {TP, OTHER}, {TP: 10})
    checkpoints.update(log_dirs[1], {TP, OTHER}, {OTHER: 20})
    checkpoints.forget(log_dirs[1])
    assert checkpoints.all_offsets() == {TP: 10}
    before = (log_dirs[1] / CLEANER_OFFSETS).read_bytes()
    checkpoints.update(log_dirs[1], {TP, OTHER}, {OTHER: 30})
    assert (log_dirs[1] / CLEANER_OFFSETS).read_bytes() == before, "an offline dir is not touched"


def test_maybe_truncate_checkpoint_should_truncate_data(log_dirs: list[Path]) -> None:
    checkpoints = CleanerCheckpoints(log_dirs)
    checkpoints.update(log_dirs[0], {TP}, {TP: 42})
    checkpoints.truncate(log_dirs[0], {TP}, TP, 50)
    assert checkpoints.all_offsets() == {TP: 42}
    checkpoints.truncate(log_dirs[0], {TP}, TP, 20)
    assert checkpoints.all_offsets() == {TP: 20}
    checkpoints.truncate(log_dirs[0], {TP, OTHER}, OTHER, 0)
    assert checkpoints.all_offsets() == {TP: 20}, "no entry, nothing to lower"


def test_alter_checkpoint_dir_should_remove_data_in_src_dir_and_add_in_new_dir(log_dirs: list[Path]) -> None:
    checkpoints, states = CleanerCheckpoints(log_dirs), CleaningStates()
    source, target = log_dirs
    checkpoints.update(source, {TP}, {TP: 42})
    states.mark_uncleanable(source, TP)
    checkpoints.move(TP, source, target, {TP})
    states.move_mark(TP, source, target)
    assert (read(source), read(target)) == ({}, {TP: 42})
    assert checkpoints.all_offsets() == {TP: 42}
    assert (states.uncleanable(source), states.uncleanable(target)) == (frozenset(), {TP})
    checkpoints.forget(target)
    assert checkpoints.all_offsets() == {}


def test_a_move_stopped_anywhere_loses_no_entry(log_dirs: list[Path]) -> None:
    source, target = log_dirs
    CleanerCheckpoints(log_dirs).update(source, {TP, OTHER}, {TP: 42, OTHER: 7})
    number, done = 0, False
    while not done:
        for log_dir, entries in ((source, {TP: 42, OTHER: 7}), (target, {})):
            OffsetCheckpoint(log_dir / CLEANER_OFFSETS).write(entries)
        layer = FaultyLayer()
        layer.stop_at(number)
        try:
            with files.replaced(layer):
                CleanerCheckpoints(log_dirs).move(TP, source, target, {TP, OTHER})
            done = True
        except PowerCut:
            layer.lose_unsynced()
        layer.close_all()
        assert CleanerCheckpoints(log_dirs).all_offsets() == {TP: 42, OTHER: 7}
        number += 1
    assert number > 8


def test_an_unreadable_checkpoint_has_no_entries_and_is_mended_by_the_next_update(log_dirs: list[Path]) -> None:
    (log_dirs[0] / CLEANER_OFFSETS).write_text("0\n2\nt 0 5\n")
    checkpoints = CleanerCheckpoints(log_dirs)
    checkpoints.update(log_dirs[1], {TP, OTHER}, {OTHER: 3})
    assert checkpoints.all_offsets() == {OTHER: 3}
    assert "promises 2 entries" in str(checkpoints.faults[log_dirs[0]])
    checkpoints.update(log_dirs[0], {TP, OTHER}, {TP: 9})
    assert checkpoints.all_offsets() == {TP: 9, OTHER: 3}
    assert checkpoints.faults == {}


class StatesMachine(RuleBasedStateMachine):
    """Any sequence of calls, against the table as a model."""

    def __init__(self) -> None:
        super().__init__()
        self.states = CleaningStates()
        self.model: CleaningState | None = None

    @rule(call=st.sampled_from(sorted(CALLS)))
    def make(self, call: str) -> None:
        key = paused(1) if self.model and self.model.phase is Phase.PAUSED else self.model
        after = next(row[2] for row in TABLE if row[0] == call and row[1] == key)
        if after == ERROR:
            with pytest.raises(CleaningStateError):
                CALLS[call](self.states)
            return
        CALLS[call](self.states)
        if call == "abort_and_pause" and self.model and self.model.pauses:
            after = paused(self.model.pauses + 1)
        elif call == "resume" and self.model and self.model.pauses > 1:
            after = paused(self.model.pauses - 1)
        assert not isinstance(after, str)
        self.model = after

    @invariant()
    def agree(self) -> None:
        assert self.states.state(TP) == self.model


def test_any_sequence_of_calls() -> None:
    run_state_machine_as_test(StatesMachine, settings=settings(max_examples=50, stateful_step_count=30, deadline=None))  # type: ignore[no-untyped-call]
