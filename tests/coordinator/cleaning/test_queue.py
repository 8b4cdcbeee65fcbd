"""What is cleaned next: the filthiest, what fits, what frees most where room is short."""

from __future__ import annotations

import pytest

from compactd.coordinator.control.messages import CleanNow, Refused
from compactd.workers.cleaning_messages import (
    CleanJob,
    PrepareClean,
)
from tests.coordinator.cleaning.scene import FIRST, SECOND, A, B, C, Scene
from tests.coordinator.frames import BROKER


def test_the_filthiest_first(scene: Scene) -> None:
    scene.partition(A, clean=4, dirty=6)
    scene.partition(B, clean=1, dirty=9)
    scene.partition(C, clean=2, dirty=8)
    scene.start()
    for expected in ("b-0", "c-0", "a-0"):
        assert scene.jobs()[-1] == expected
        scene.done()
    assert scene.jobs() == ["b-0", "c-0", "a-0"]


def test_below_the_ratio_nothing_is_cleaned_and_status_says_so(scene: Scene) -> None:
    scene.partition(A, clean=5, dirty=5)
    scene.start()
    assert not scene.jobs()
    assert "dirty ratio 0.500 is not above min.cleanable.dirty.ratio 0.5" in scene.blocked(A)
    scene.frame.states[A] = scene.state(A, 11, scene.dirs[0])
    scene.cleaning.states_changed([scene.frame.states[A]])
    scene.frame.run()
    assert scene.jobs() == ["a-0"] and not scene.blocked(A)


def test_what_a_job_says(scene: Scene) -> None:
    scene.partition(A, clean=2, dirty=8)
    scene.frame.set_cleaner(dedupe_buffer_size=8 << 20, threads=4, load_factor=0.8)
    scene.start()
    job = scene.job
    assert (job.first_dirty_offset, job.first_uncleanable_offset) == (20, 100)
    assert (job.map_memory_bytes, job.map_load_factor) == (2 << 20, 0.8)
    assert [request.roll for request in scene.frame.of(PrepareClean)] == [False]


def test_each_idle_cleaner_gets_another_partition(scene: Scene) -> None:
    scene.frame.up["cleaner"] = [FIRST, SECOND]
    for name in (A, B, C):
        scene.partition(name)
    scene.start()
    assert len(scene.jobs(FIRST)) == len(scene.jobs(SECOND)) == 1 and set(scene.jobs()) < {"a-0", "b-0", "c-0"}
    scene.done(scene.frame.of(CleanJob, SECOND)[0], worker=SECOND)
    assert len(scene.jobs(SECOND)) == 2 and set(scene.jobs()) == {"a-0", "b-0", "c-0"}


def test_a_cleaner_that_comes_later_gets_work(scene: Scene) -> None:
    scene.frame.up["cleaner"] = []
    scene.partition(A)
    scene.start()
    assert not scene.jobs()
    scene.frame.up["cleaner"] = [FIRST]
    scene.cleaning.worker_ready(FIRST)
    scene.frame.run()
    assert scene.jobs() == ["a-0"]


def test_a_topic_without_compact_is_never_cleaned(scene: Scene) -> None:
    scene.partition(A, cleanup_policy=frozenset({"delete"}))
    scene.start()
    scene.frame.pass_time(60_000)
    assert not scene.jobs() and not scene.cleaning.status(True).partitions


def test_no_cleaning_where_it_is_switched_off(scene: Scene) -> None:
    scene.frame.set_cleaner(enable=False)
    scene.partition(A)
    scene.start()
    assert not scene.jobs()
    assert isinstance(scene.ask(CleanNow(names=("a",))), Refused)


def test_a_lag_clears_with_time_alone(scene: Scene) -> None:
    scene.partition(A, min_compaction_lag_ms=3_660_000)
    scene.start()
    assert "min.compaction.lag.ms" in scene.blocked(A) and not scene.jobs()
    scene.frame.pass_time(90_000)
    assert scene.jobs() == ["a-0"]


def test_max_compaction_lag_makes_a_little_dirt_urgent(scene: Scene) -> None:
    scene.partition(A, clean=99, dirty=1, max_compaction_lag_ms=3_660_000)
    scene.start()
    assert not scene.jobs()
    scene.frame.pass_time(90_000)
    assert scene.jobs() == ["a-0"]


def test_nobody_serves_it_just_now(scene: Scene) -> None:
    scene.partition(A)
    scene.frame.owners[A] = None
    scene.start()
    assert not scene.frame.of(PrepareClean)
    scene.frame.owners[A] = BROKER
    scene.cleaning.worker_ready(BROKER)
    scene.frame.run()
    assert scene.jobs() == ["a-0"]


def test_a_clean_that_would_not_fit_is_not_begun_and_the_next_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.partition(A, log_dir=0)
    scene.partition(B, clean=1, dirty=9, log_dir=1)
    free = {str(scene.dirs[0]): 1000, str(scene.dirs[1]): 1 << 40}
    monkeypatch.setattr("compactd.coordinator.cleaning.queue.files.free_bytes", lambda path: free[str(path)])
    scene.start()
    assert scene.jobs() == ["b-0"]
    held = scene.cleaning.status(False).held_by
    assert "a-0 waits for space" in held and "1,000 are free" in held
    free[str(scene.dirs[0])] = 1 << 40
    scene.done()
    assert scene.jobs() == ["b-0", "a-0"] and not scene.cleaning.status(False).held_by


def test_two_cleans_that_fit_alone_but_not_together(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.frame.up["cleaner"] = [FIRST, SECOND]
    scene.partition(A)
    scene.partition(B)
    margin = scene.frame.settings.daemon.cleaner_free_space_margin
    monkeypatch.setattr("compactd.coordinator.cleaning.queue.files.free_bytes", lambda _: margin + 1500)
    scene.start()
    assert len(scene.jobs()) == 1
    scene.done()
    assert sorted(scene.jobs()) == ["a-0", "b-0"]


def test_a_log_dir_that_is_nearly_full_is_cleaned_by_what_frees_most_for_what_it_writes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The dirtier log kept all but a tenth of what its last clean read, the other one a tenth.
    scene.partition(A, clean=1, dirty=9)
    scene.partition(B, clean=4, dirty=6)
    monkeypatch.setattr("compactd.storage.files.free_share", lambda _path: 0.05)
    scene.frame.up["cleaner"] = []
    scene.start()
    scene.cleaning.queue.kept.update({A: 0.9, B: 0.1})
    assert scene.cleaning.queue.in_order({}) == [B, A]
    monkeypatch.setattr("compactd.storage.files.free_share", lambda _path: 0.5)
    assert scene.cleaning.queue.in_order({}) == [A, B]
