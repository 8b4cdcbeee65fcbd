"""Cleans whose cleaner or owner dies, hangs, or does not answer."""

from __future__ import annotations

import pytest

from compactd.coordinator.cleaning.quarantine import PAUSES_MS
from compactd.coordinator.control.messages import CleanNow
from compactd.workers.cleaning_messages import (
    AbortClean,
    CleanProgress,
    GroupReady,
    GroupSwapped,
    PrepareClean,
)
from compactd.workers.messages import Failed
from tests.coordinator.cleaning.scene import FIRST, SECOND, A, B, Scene
from tests.coordinator.frames import BROKER


def test_a_cleaner_that_dies_costs_nothing_but_its_time(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.frame.worker_gone(FIRST)
    scene.cleaning.worker_gone(FIRST, "was killed by SIGKILL")
    scene.frame.run()
    assert not scene.cleaning.status(False).jobs and not scene.quarantine.names()
    scene.frame.up["cleaner"] = [FIRST]
    scene.cleaning.worker_ready(FIRST)
    scene.frame.run()
    assert scene.jobs() == ["a-0", "a-0"] and scene.checkpoint()["a-0"] == 0
    scene.done()
    assert scene.checkpoint()["a-0"] == 100


def test_another_cleaner_takes_over_at_once(scene: Scene) -> None:
    scene.frame.up["cleaner"] = [FIRST, SECOND]
    scene.partition(A)
    scene.start()
    scene.frame.worker_gone(FIRST)
    scene.cleaning.worker_gone(FIRST, "was killed")
    scene.frame.run()
    assert scene.jobs(SECOND) == ["a-0"]


def test_a_log_on_which_cleaners_die_does_not_end_all_cleaning(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    for _ in range(3):
        assert scene.jobs()[-1] == "a-0"
        scene.cleaning.worker_gone(FIRST, "was killed by SIGSEGV")
        scene.frame.run()
    assert scene.jobs() == ["a-0", "a-0", "a-0", "b-0"]
    (entry,) = scene.quarantine.status()
    assert entry.partition == "a-0" and "3 cleaners died on it" in entry.reason and "SIGSEGV" in entry.reason
    assert "set aside" in scene.blocked(A) and "a-0 is set aside" in caplog.text
    scene.done()
    scene.frame.pass_time(PAUSES_MS[0] + 15_000)
    assert scene.jobs()[-1] == "a-0"
    scene.done()
    assert not scene.quarantine.names()


def test_deaths_in_between_do_not_add_up(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    for _ in range(4):
        for _ in range(2):
            scene.cleaning.worker_gone(FIRST, "was killed")
            scene.frame.run()
        scene.done(next_dirty_offset=0)
        scene.frame.pass_time(15_000)
    assert not scene.quarantine.names()


def test_an_owner_that_dies_while_it_prepares(scene: Scene) -> None:
    del scene.frame.replies[PrepareClean]
    scene.partition(A)
    scene.start()
    scene.ask(CleanNow(names=("a",)))
    scene.frame.owners[A] = None
    scene.frame.worker_gone(BROKER)
    scene.cleaning.worker_gone(BROKER, "was killed")
    scene.frame.run()
    assert not scene.cleaning.status(False).jobs
    scene.frame.replies[PrepareClean] = scene.prepared
    scene.frame.up["broker"] = [BROKER]
    del scene.frame.owners[A]
    scene.frame.pass_time(1100)
    # What a person asked for is not forgotten for it.
    assert scene.jobs() == ["a-0"] and scene.frame.of(PrepareClean)[-1].roll


def test_an_owner_that_dies_in_the_middle_of_a_swap(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    job = scene.job
    scene.tell(
        GroupReady(request_id=job.request_id, group_id=3, topic="a", partition=0, base_offset=0, source_bases=(0,))
    )
    scene.frame.worker_gone(BROKER)
    scene.cleaning.worker_gone(BROKER, "was killed")
    (answer,) = scene.frame.of(GroupSwapped, FIRST)
    # Whether it happened only the next load finds out; the cleaner must not touch the files.
    assert (answer.accepted, answer.unknown, answer.group_id) == (False, True, 3)
    (abort,) = scene.frame.of(AbortClean, FIRST)
    assert "broker-0" in abort.reason
    scene.done(job, outcome="aborted")
    assert scene.checkpoint()["a-0"] == 0 and not scene.quarantine.names()


def test_an_owner_that_does_not_answer_a_swap_in_time(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    ready = GroupReady(
        request_id=scene.job.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0,)
    )
    scene.tell(ready)
    scene.frame.answer(ready.request_id, Failed(request_id=ready.request_id, error="Timeout", message="no answer"))
    (answer,) = scene.frame.of(GroupSwapped, FIRST)
    assert answer.unknown and not answer.accepted


def test_a_cleaner_that_beats_but_tells_nothing_is_replaced(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    limit = scene.frame.settings.daemon.cleaner_job_timeout_ms
    scene.frame.pass_time(limit - 10_000)
    scene.tell(CleanProgress(request_id=scene.job.request_id, phase="copying", bytes_read=1, bytes_written=1))
    scene.frame.pass_time(limit - 10_000)
    assert not scene.frame.restarted
    scene.frame.pass_time(20_000)
    assert [worker for worker, _ in scene.frame.restarted] == [FIRST]
    assert "a-0" in scene.frame.restarted[0][1]


def test_a_cleaner_that_waits_for_the_owner_is_not(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.tell(
        GroupReady(
            request_id=scene.job.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0,)
        )
    )
    scene.frame.pass_time(2 * scene.frame.settings.daemon.cleaner_job_timeout_ms)
    assert not scene.frame.restarted
