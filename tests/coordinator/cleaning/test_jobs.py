"""A clean that runs as it should: what a job says, its checkpoint, its threads and its share of the rate."""

from __future__ import annotations

import pytest

from compactd.coordinator.interfaces import WorkerId
from compactd.workers.cleaning_messages import (
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    GroupReady,
    GroupSwapped,
    PrepareClean,
)
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from tests.coordinator.cleaning.scene import FIRST, SECOND, A, B, Scene
from tests.coordinator.frames import BROKER


def test_the_checkpoint_is_written_when_all_is_done_and_not_before(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    job = scene.job
    scene.frame.replies[GroupReady] = lambda ready: GroupSwapped(
        request_id=ready.request_id, group_id=ready.group_id, accepted=True, deleted=("/d1/a-0/0.log.deleted",)
    )
    ready = GroupReady(
        request_id=job.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0, 10)
    )
    scene.tell(CleanProgress(request_id=job.request_id, phase="copying", bytes_read=500, bytes_written=5))
    scene.tell(ready)
    assert scene.frame.of(GroupReady, BROKER) == [ready]
    (swapped,) = scene.frame.of(GroupSwapped, FIRST)
    assert swapped.accepted and scene.checkpoint()["a-0"] == 0
    assert scene.frame.deleted == [(("/d1/a-0/0.log.deleted",), 60_000)]
    # Until it is on disk nothing else is begun, and status still shows the job.
    scene.cleaning.received(FIRST, CleanDone(request_id=job.request_id, next_dirty_offset=100, outcome="cleaned"))
    assert [each.partition for each in scene.cleaning.status(False).jobs] == ["a-0"]
    assert scene.jobs() == ["a-0"]
    scene.frame.run()
    assert scene.checkpoint() == {"a-0": 100, "b-0": 10} and scene.jobs() == ["a-0", "b-0"]


def test_files_are_kept_for_as_long_as_their_topic_says(scene: Scene) -> None:
    scene.partition(A, file_delete_delay_ms=5)
    scene.start()
    scene.frame.replies[GroupReady] = lambda ready: GroupSwapped(
        request_id=ready.request_id, group_id=0, accepted=True, deleted=("/d1/a-0/0.log.deleted",)
    )
    scene.tell(
        GroupReady(
            request_id=scene.job.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0,)
        )
    )
    assert scene.frame.deleted[0][1] == 5


def test_a_round_that_got_halfway_goes_on(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.done(next_dirty_offset=50)
    assert scene.jobs() == ["a-0"], "what is left is not dirty enough"
    assert scene.checkpoint()["a-0"] == 50
    assert "0.500" in scene.blocked(A)


def test_an_owner_that_refuses_is_not_asked_again_in_the_same_breath(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.frame.replies[PrepareClean] = lambda request: Failed(
        request_id=request.request_id, error="LogError", message="the log is closed"
    )
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    # run() ends: it comes to rest. Each was asked once.
    assert [request.topic for request in scene.frame.of(PrepareClean)] == ["a", "b"]
    assert "the log is closed" in caplog.text
    scene.frame.replies[PrepareClean] = scene.prepared
    scene.frame.pass_time(1100)
    assert scene.jobs() == ["a-0"]


def test_a_swap_that_was_refused_is_not_tried_again_in_the_same_breath(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.done(outcome="aborted", reason="its sources are gone")
    assert scene.jobs() == ["a-0"] and not scene.quarantine.names() and scene.checkpoint()["a-0"] == 0
    scene.frame.pass_time(1100)
    assert scene.jobs() == ["a-0", "a-0"]


def test_a_log_that_has_nothing_left_to_clean_by_the_time_it_is_prepared(scene: Scene) -> None:
    scene.partition(A)

    def empty(request: PrepareClean) -> Message:
        job = scene.prepared(request)
        assert isinstance(job, CleanJob)
        return CleanJob(
            **{**{name: getattr(job, name) for name in job.__struct_fields__}, "segments": (), "active_base_offset": 0}
        )

    scene.frame.replies[PrepareClean] = empty
    scene.start()
    assert not scene.jobs() and len(scene.frame.of(PrepareClean)) == 1 and not scene.cleaning.status(False).jobs


def test_words_about_other_jobs_or_from_other_cleaners_count_for_nothing(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    job = scene.job
    scene.tell(CleanDone(request_id=job.request_id + 100, next_dirty_offset=1, outcome="cleaned"))
    scene.tell(CleanDone(request_id=job.request_id, next_dirty_offset=1, outcome="cleaned"), SECOND)
    assert scene.checkpoint()["a-0"] == 0 and len(scene.cleaning.status(False).jobs) == 1


def test_a_job_gets_the_threads_of_cleaners_that_have_nothing_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    scene.frame.up["cleaner"] = [FIRST, SECOND, *(WorkerId("cleaner", number) for number in range(2, 5))]
    scene.partition(A)
    scene.start()
    assert scene.job.threads == 5
    scene.partition(B)
    scene.cleaning.states_changed([scene.frame.states[B]])
    scene.frame.run()
    # Three are idle now, for two jobs.
    assert scene.frame.of(CleanJob, SECOND)[-1].threads == 2


def test_a_job_gets_no_more_threads_than_there_are_cpus(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    scene.frame.up["cleaner"] = [FIRST, SECOND, *(WorkerId("cleaner", number) for number in range(2, 5))]
    scene.partition(A)
    scene.start()
    assert scene.job.threads == 3


def test_an_only_cleaner_works_alone(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    assert scene.job.threads == 1


def test_the_rate_is_shared_by_those_who_work(scene: Scene) -> None:
    scene.frame.set_cleaner(io_max_bytes_per_second=1000.0)
    scene.frame.up["cleaner"] = [FIRST, SECOND]
    scene.partition(A)
    scene.start()
    assert scene.job.bytes_per_second <= 1000.0
    assert scene.frame.of(CleanThrottle, FIRST)[-1].bytes_per_second == 1000.0
    scene.partition(B)
    scene.cleaning.states_changed([scene.frame.states[B]])
    scene.frame.run()
    assert [scene.frame.of(CleanThrottle, worker)[-1].bytes_per_second for worker in (FIRST, SECOND)] == [500.0, 500.0]
    scene.done(scene.frame.of(CleanJob, FIRST)[0])
    assert scene.frame.of(CleanThrottle, SECOND)[-1].bytes_per_second == 1000.0


def test_a_new_rate_goes_to_whoever_works_at_once(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.frame.set_cleaner(io_max_bytes_per_second=77.0)
    scene.cleaning.settings_changed()
    assert scene.frame.of(CleanThrottle, FIRST)[-1].bytes_per_second == 77.0
