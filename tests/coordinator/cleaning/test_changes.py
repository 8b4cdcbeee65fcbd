"""Topics that change, move or go while they are cleaned, and a stop."""

from __future__ import annotations

import pytest

from compactd.workers.cleaning_messages import (
    AbortClean,
    GroupReady,
    GroupSwapped,
    PrepareClean,
)
from tests.coordinator.cleaning.scene import FIRST, A, B, Scene
from tests.coordinator.frames import START_MS
from tests.logs import replace_config, settings


def test_a_topic_that_loses_compact_has_its_clean_given_up(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    scene.frame.configs["a"] = replace_config(scene.frame.configs["a"], cleanup_policy=frozenset({"delete"}))
    scene.cleaning.configs_changed(["a"])
    (abort,) = scene.frame.of(AbortClean, FIRST)
    assert abort.request_id == scene.job.request_id and "cleanup.policy" in abort.reason
    # A group that was finished meanwhile is not swapped in any more.
    scene.tell(
        GroupReady(request_id=abort.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0,))
    )
    (answer,) = scene.frame.of(GroupSwapped, FIRST)
    assert not answer.accepted and not answer.unknown and not scene.frame.of(GroupReady)
    scene.done(outcome="aborted")
    assert scene.jobs() == ["a-0", "b-0"] and scene.checkpoint()["a-0"] == 0


def test_a_topic_that_becomes_compacted_is_cleaned(scene: Scene) -> None:
    scene.partition(A, cleanup_policy=frozenset({"delete"}))
    scene.start()
    scene.frame.configs["a"] = settings()
    scene.cleaning.configs_changed(["a"])
    scene.frame.run()
    assert scene.jobs() == ["a-0"]


def test_other_changes_of_settings_disturb_nobody(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.frame.configs["a"] = settings(segment_bytes=12345)
    scene.cleaning.configs_changed(["a"])
    assert not scene.frame.of(AbortClean)


@pytest.mark.parametrize("outcome", ["aborted", "cleaned", "faulty"])
def test_a_partition_that_goes_leaves_nothing_behind(scene: Scene, outcome: str) -> None:
    scene.partition(A)
    scene.partition(B, clean=9, dirty=1)
    scene.start()
    scene.quarantine.add("a-0", START_MS, "x", "x", {})
    del scene.frame.states[A]
    scene.cleaning.partitions_gone([A])
    scene.frame.run()
    assert scene.frame.of(AbortClean, FIRST)[0].reason == "the partition is gone"
    assert scene.checkpoint() == {"b-0": 90} and not scene.quarantine.names()
    # Its cleaner had finished before it heard of it. A topic of the same name must start from nothing.
    scene.done(outcome=outcome)
    assert scene.checkpoint() == {"b-0": 90} and not scene.quarantine.names()
    assert A not in scene.cleaning.offsets.known and not scene.cleaning.status(True).jobs


def test_a_stop_waits_for_those_who_work_and_begins_nothing(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B)
    scene.start()
    stopped: list[bool] = []
    scene.cleaning.stop(lambda: stopped.append(True))
    assert scene.frame.of(AbortClean, FIRST)[0].reason == "compactd stops" and not stopped
    scene.done(outcome="aborted")
    scene.frame.pass_time(60_000)
    assert stopped == [True] and scene.jobs() == ["a-0"] and not scene.quarantine.names()


def test_a_stop_with_nothing_to_wait_for(scene: Scene) -> None:
    stopped: list[bool] = []
    scene.start()
    scene.cleaning.stop(lambda: stopped.append(True))
    assert stopped == [True]


def test_a_stop_while_a_job_is_being_prepared(scene: Scene) -> None:
    del scene.frame.replies[PrepareClean]
    scene.partition(A)
    scene.start()
    stopped: list[bool] = []
    scene.cleaning.stop(lambda: stopped.append(True))
    (request,) = scene.frame.of(PrepareClean)
    scene.frame.answer(request.request_id, scene.prepared(request))
    assert stopped == [True] and not scene.jobs()


def test_what_is_moved_is_not_cleaned_meanwhile(scene: Scene) -> None:
    """A running clean is given up, none is begun until it has arrived, and its checkpoint goes along."""
    scene.partition(A, clean=3)
    scene.start()
    job = scene.job
    state = scene.state(A, 13, scene.dirs[0], moving_to=str(scene.dirs[1]))
    scene.frame.states[A] = state
    scene.cleaning.states_changed([state])
    scene.frame.run()
    (abort,) = scene.frame.of(AbortClean)
    assert abort.request_id == job.request_id and "is being moved to" in abort.reason
    scene.done(outcome="aborted", reason=abort.reason)
    scene.frame.pass_time(10_000)
    assert scene.jobs() == ["a-0"]
    moved = scene.state(A, 13, scene.dirs[1])
    scene.frame.states[A] = moved
    scene.cleaning.partition_moved(A, *scene.dirs)
    scene.cleaning.states_changed([moved])
    scene.frame.run()
    scene.frame.pass_time(10_000)
    assert scene.jobs() == ["a-0", "a-0"]
    assert (scene.checkpoint(0), scene.checkpoint(1)) == ({}, {"a-0": 30})
