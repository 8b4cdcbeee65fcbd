"""The cleaning side over a frame of the test: what is cleaned when, by whom, and what comes of it."""

from __future__ import annotations

import errno
import logging
from collections import namedtuple
from pathlib import Path

import pytest

from compactd.config.errors import StorageIOError
from compactd.coordinator.cleaning.pauses import Pauses
from compactd.coordinator.cleaning.quarantine import FILE, PAUSES_MS, Quarantine
from compactd.coordinator.cleaning.scheduler import CleaningScheduler
from compactd.coordinator.control.messages import CleanNow, Control, Done, Pause, Refused, Resume, Retry, Undo
from compactd.coordinator.interfaces import WorkerId
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import (
    AbortClean,
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    GroupReady,
    GroupSwapped,
    PrepareClean,
    SegmentSource,
    UndoClean,
    UndoDone,
)
from compactd.workers.message import Message
from compactd.workers.messages import Failed
from compactd.workers.partition_messages import PartitionState, SegmentState
from tests.coordinator.frames import BROKER, START_MS, FakeFrame
from tests.logs import replace_config, settings

FIRST, SECOND = WorkerId("cleaner", 0), WorkerId("cleaner", 1)
A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
Usage = namedtuple("Usage", "free")


class Scene:
    """Compacted partitions, cleaners, an owner that prepares jobs from the states of the frame."""

    def __init__(self, directory: Path, **cleaner: object) -> None:
        self.dirs = [directory / "d1", directory / "d2"]
        for path in self.dirs:
            path.mkdir(exist_ok=True)
        self.frame = FakeFrame(self.dirs, **cleaner)
        self.frame.replies[PrepareClean] = self.prepared
        self.frame.up["cleaner"] = [FIRST]
        self.make()

    def make(self) -> None:
        self.quarantine = Quarantine(self.dirs[0])
        self.pauses = Pauses(self.dirs[0])
        self.cleaning = CleaningScheduler(self.frame, self.quarantine, self.pauses)

    def partition(
        self, name: TopicPartition, clean: int = 0, dirty: int = 10, log_dir: int = 0, **config: object
    ) -> None:
        """Closed segments of 100 bytes and ten records each: `clean` that were cleaned, `dirty` that were not."""
        self.frame.configs[name.topic] = settings(**config)
        path = self.dirs[log_dir]
        self.frame.states[name] = self.state(name, clean + dirty, path)
        checkpoint = OffsetCheckpoint(path / CLEANER_OFFSETS)
        checkpoint.write({**checkpoint.read(), name: clean * 10})

    def state(self, name: TopicPartition, closed: int, path: Path, **fields: object) -> PartitionState:
        given: dict[str, object] = {
            "topic": name.topic,
            "partition": name.partition,
            "log_dir": str(path),
            "log_start_offset": 0,
            "log_end_offset": closed * 10 + 5,
            "high_watermark": closed * 10 + 5,
            "last_stable_offset": closed * 10 + 5,
            "recovery_point": 0,
            "active_base_offset": closed * 10,
            "active_size": 50,
            "active_largest_timestamp": START_MS,
            "closed": tuple(
                SegmentState(
                    base_offset=number * 10,
                    size=100,
                    largest_timestamp=START_MS - 3_600_000,
                    first_batch_timestamp=START_MS - 3_600_000,
                )
                for number in range(closed)
            ),
        }
        return PartitionState(**{**given, **fields})  # type: ignore[arg-type]

    def prepared(self, request: PrepareClean) -> Message:
        name = TopicPartition(request.topic, request.partition)
        state = self.frame.states[name]
        end = state.log_end_offset if request.roll else state.active_base_offset
        closed = [(segment.base_offset, segment.size) for segment in state.closed]
        if request.roll:
            closed.append((state.active_base_offset, state.active_size))
        return CleanJob(
            request_id=request.request_id,
            topic=request.topic,
            partition=request.partition,
            directory=f"{state.log_dir}/{name}",
            config=self.frame.configs[name.topic],
            segments=tuple(SegmentSource(base_offset=base, size=size, last_modified_ms=0) for base, size in closed),
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            last_stable_offset=state.last_stable_offset,
            first_dirty_offset=state.log_start_offset,
            first_uncleanable_offset=end,
            active_producers=(),
            now_ms=self.frame.clock.now,
            map_memory_bytes=0,
            map_load_factor=0.9,
            active_base_offset=end,
        )

    def start(self) -> Scene:
        self.cleaning.start()
        self.frame.run()
        return self

    def jobs(self, cleaner: WorkerId | None = None) -> list[str]:
        """What cleaners were given, in order."""
        return [f"{job.topic}-{job.partition}" for job in self.frame.of(CleanJob, cleaner)]

    @property
    def job(self) -> CleanJob:
        return self.frame.of(CleanJob)[-1]

    def tell(self, message: Message, worker: WorkerId = FIRST) -> None:
        self.cleaning.received(worker, message)
        self.frame.run()

    def done(
        self, job: CleanJob | None = None, outcome: str = "cleaned", worker: WorkerId = FIRST, **more: object
    ) -> None:
        """The cleaner ends a job; the owner tells what the log is like then."""
        job = job or self.job
        end = job.first_uncleanable_offset if outcome == "cleaned" else -1
        given: dict[str, object] = {"request_id": job.request_id, "next_dirty_offset": end, "outcome": outcome}
        self.tell(CleanDone(**{**given, **more}), worker)  # type: ignore[arg-type]

    def faulty(self, job: CleanJob | None = None, worker: WorkerId = FIRST) -> None:
        fields = {"error": "CorruptBatchError", "path": "/d1/a-0/0.log", "position": "61"}
        self.done(job, "faulty", worker, reason="a batch is damaged", fields=fields)

    def checkpoint(self, log_dir: int = 0) -> dict[str, int]:
        entries = OffsetCheckpoint(self.dirs[log_dir] / CLEANER_OFFSETS).read()
        return {str(name): offset for name, offset in entries.items()}

    def ask(self, request: Control) -> Control:
        answers: list[Control] = []
        self.cleaning.control(request, answers.append)
        self.frame.run()
        self.frame.pass_time(1000)
        (answer,) = answers
        return answer

    def blocked(self, name: TopicPartition) -> str:
        (found,) = [each for each in self.cleaning.status(True).partitions if each.name == str(name)]
        return found.blocked_by


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# ---- choice


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


# ---- a job


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


def test_a_checkpoint_that_cannot_be_written_is_the_log_dirs_failure(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.frame.lane_error = StorageIOError(path="/d1", action="fsync", reason="EIO", errno=errno.EIO)
    scene.done()
    assert [path for path, _ in scene.frame.failed_dirs] == [str(scene.dirs[0])]
    assert not scene.cleaning.status(False).jobs


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


# ---- deaths


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


# ---- topics that change or go


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


def test_the_checkpoint_of_a_log_dir_that_failed_is_left_alone(scene: Scene) -> None:
    scene.partition(A, log_dir=1)
    scene.partition(B, clean=9, dirty=1)
    scene.start()
    before = scene.checkpoint(1)
    del scene.frame.states[A]
    scene.frame.dirs.remove(scene.dirs[1])
    scene.cleaning.partitions_gone([A])
    scene.frame.run()
    scene.done(outcome="aborted")
    assert scene.checkpoint(1) == before


def test_a_checkpoint_beyond_the_log_is_corrected_and_said(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.partition(A, clean=5, dirty=1)
    OffsetCheckpoint(scene.dirs[0] / CLEANER_OFFSETS).write({A: 1000})
    with caplog.at_level(logging.WARNING):
        scene.start()
    assert scene.checkpoint()["a-0"] == 0 and "lies outside its log" in caplog.text
    assert scene.jobs() == ["a-0"] and scene.job.first_dirty_offset == 0


def test_a_checkpoint_file_that_is_damaged_costs_work_and_loses_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.partition(A, clean=9, dirty=1)
    (scene.dirs[0] / CLEANER_OFFSETS).write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING):
        scene.start()
    assert scene.job.first_dirty_offset == 0 and "count as dirty" in caplog.text


# ---- quarantine


def test_a_log_that_is_damaged_is_set_aside_and_the_others_go_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    scene.faulty()
    assert scene.jobs() == ["a-0", "b-0"]
    assert "a-0 is set aside after failure 1" in caplog.text
    (entry,) = scene.cleaning.status(False).quarantine
    assert (entry.partition, entry.attempts, entry.error) == ("a-0", 1, "CorruptBatchError")
    assert entry.fields["path"] == "/d1/a-0/0.log" and entry.fields["position"] == "61"
    assert scene.blocked(A) == "set aside: a batch is damaged"
    scene.done()
    assert scene.jobs() == ["a-0", "b-0"]


def test_it_is_tried_again_with_growing_pauses_until_it_heals(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    for number, pause in enumerate(PAUSES_MS[:3]):
        assert len(scene.jobs()) == number + 1
        scene.faulty()
        scene.frame.pass_time(pause - 1000)
        assert len(scene.jobs()) == number + 1
        scene.frame.pass_time(16_000)
    assert len(scene.jobs()) == 4
    scene.done()
    assert not scene.cleaning.status(False).quarantine and scene.checkpoint()["a-0"] == 100
    assert b"a-0" not in (scene.dirs[0] / FILE).read_bytes()


def test_it_is_kept_over_a_restart(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.faulty()
    scene.make()
    scene.start()
    assert scene.jobs() == ["a-0"] and scene.cleaning.status(False).quarantine[0].attempts == 1


def test_retry_releases_it(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B)
    scene.start()
    scene.faulty()
    scene.faulty()
    answer = scene.ask(Retry(names=("a",)))
    assert isinstance(answer, Done) and answer.lines == ("a-0 is tried again",)
    assert scene.jobs()[-1] == "a-0" and [e.partition for e in scene.cleaning.status(False).quarantine] == ["b-0"]
    assert isinstance(scene.ask(Retry(names=("c",))), Refused)
    assert isinstance(scene.ask(Retry()), Done) and not scene.cleaning.status(False).quarantine
    assert scene.ask(Retry()) == Done(lines=("nothing is set aside",))


@pytest.mark.parametrize(("io", "fails"), [("5", True), ("28", False), ("0", False)])
def test_an_io_error_is_the_log_dirs_and_no_space_is_not(scene: Scene, io: str, fails: bool) -> None:
    scene.partition(A)
    scene.start()
    scene.done(outcome="failed", reason="read failed", fields={"error": "StorageIOError", "io": io})
    assert bool(scene.frame.failed_dirs) is fails
    assert scene.quarantine.names() == ["a-0"]


# ---- what people ask for


def test_clean_now_goes_before_the_others_and_takes_the_active_segment_too(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B, clean=9, dirty=1)
    scene.partition(C, clean=10, dirty=0)
    scene.start()
    first = scene.job
    answer = scene.ask(CleanNow(names=("b", "c-0")))
    assert isinstance(answer, Done) and answer.lines == ("b-0 is cleaned next", "c-0 is cleaned next")
    scene.done(first)
    assert scene.jobs()[-1] == "b-0" and scene.frame.of(PrepareClean)[-1].roll
    assert (scene.job.first_dirty_offset, scene.job.first_uncleanable_offset) == (90, 105)
    scene.done()
    assert scene.jobs()[-1] == "c-0" and scene.job.first_uncleanable_offset == 105
    scene.done()
    scene.frame.pass_time(60_000)
    assert len(scene.jobs()) == 3, "once is enough"


def test_clean_now_while_it_is_being_cleaned_already(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    assert [request.roll for request in scene.frame.of(PrepareClean)] == [False]
    scene.ask(CleanNow(names=("a",)))
    scene.done()
    # The clean that was running had not rolled the active segment.
    assert [request.roll for request in scene.frame.of(PrepareClean)] == [False, True]
    assert scene.job.first_uncleanable_offset == 105
    scene.done()
    scene.frame.pass_time(60_000)
    assert len(scene.jobs()) == 2


def test_a_state_that_is_older_than_the_clean_does_not_undo_its_checkpoint(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.partition(A)
    stale = scene.frame.states[A]
    scene.frame.states[A] = scene.state(A, 12, scene.dirs[0])
    scene.start()
    # The owner told the job of a log that ends at 125; the state of a second ago, which ends at 105, comes after it.
    scene.frame.states[A] = stale
    scene.done()
    assert scene.checkpoint()["a-0"] == 120 and "outside its log" not in caplog.text
    assert scene.jobs() == ["a-0"]
    # When its owner died the log may really end earlier.
    scene.cleaning.worker_gone(BROKER, "was killed")
    scene.cleaning.states_changed([stale])
    scene.frame.run()
    assert scene.checkpoint()["a-0"] == 0 and "outside its log" in caplog.text


def test_clean_now_of_a_log_that_is_all_clean_reads_it_again_for_tombstones(scene: Scene) -> None:
    scene.partition(A, clean=10, dirty=0)
    scene.frame.states[A] = scene.state(A, 10, scene.dirs[0], active_size=0, log_end_offset=100, high_watermark=100)
    scene.start()
    scene.ask(CleanNow(names=("a",)))
    assert (scene.job.first_dirty_offset, scene.job.first_uncleanable_offset) == (0, 100)


def test_clean_now_of_what_cannot_be_cleaned_is_refused_by_name(scene: Scene) -> None:
    scene.partition(A, cleanup_policy=frozenset({"delete"}))
    scene.partition(B, clean=10, dirty=0)
    scene.start()
    for names, words in (
        (("a",), "a-0: refused, cleanup.policy has no compact"),
        (("b", "x"), "x: refused, there is no topic or partition"),
    ):
        answer = scene.ask(CleanNow(names=names))
        assert isinstance(answer, Refused) and words in answer.message
    assert not scene.frame.of(PrepareClean)
    scene.frame.set_cleaner(threads=0)
    assert isinstance(scene.ask(CleanNow(names=("b",))), Refused)


def test_clean_now_while_the_only_cleaner_is_being_replaced(scene: Scene) -> None:
    scene.partition(A, clean=9, dirty=1)
    scene.start()
    scene.frame.up["cleaner"] = []
    assert isinstance(scene.ask(CleanNow(names=("a",))), Done)
    scene.frame.up["cleaner"] = [FIRST]
    scene.cleaning.worker_ready(FIRST)
    scene.frame.run()
    assert scene.jobs() == ["a-0"]


def test_pause_and_resume(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B, clean=1, dirty=9)
    scene.start()
    assert isinstance(scene.ask(Pause(names=("a",))), Done)
    assert scene.frame.of(AbortClean, FIRST)[0].reason == "it was paused"
    scene.done(outcome="aborted")
    scene.frame.pass_time(60_000)
    assert scene.jobs() == ["a-0", "b-0"] and scene.blocked(A) == "paused by compactd pause"
    assert scene.cleaning.status(False).paused == ("a",)
    scene.done()
    refused = scene.ask(Resume(names=("b",)))
    assert (
        isinstance(refused, Refused) and "b: refused, it is not paused under this name. Paused: a." in refused.message
    )
    assert isinstance(scene.ask(Resume(names=("a",))), Done)
    assert scene.jobs() == ["a-0", "b-0", "a-0"]


def test_pausing_everything(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.ask(Pause())
    scene.done(outcome="aborted")
    scene.frame.pass_time(60_000)
    assert scene.jobs() == ["a-0"] and scene.cleaning.status(False).paused == ("*",)
    scene.ask(Resume())
    assert scene.jobs() == ["a-0", "a-0"]


def test_pausing_what_is_not_there_is_refused(scene: Scene) -> None:
    scene.start()
    assert isinstance(scene.ask(Pause(names=("x",))), Refused) and not scene.pauses.names


def test_pauses_outlast_a_restart(scene: Scene) -> None:
    scene.partition(A)
    scene.partition(B)
    scene.start()
    assert isinstance(scene.ask(Pause(names=("a",))), Done)
    scene.frame.sent.clear()
    scene.make()
    scene.start()
    scene.frame.pass_time(60_000)
    assert scene.cleaning.status(False).paused == ("a",) and scene.blocked(A) == "paused by compactd pause"
    assert set(scene.jobs()) == {"b-0"}
    assert isinstance(scene.ask(Resume(names=("a",))), Done)
    scene.make()
    scene.start()
    assert scene.cleaning.status(False).paused == ()


def test_a_pause_that_can_not_be_kept_holds_and_says_so(scene: Scene) -> None:
    scene.partition(A, dirty=0, clean=10)
    scene.start()
    scene.frame.lane_error = StorageIOError(path="/d1", action="write", reason="no space")
    answer = scene.ask(Pause())
    assert isinstance(answer, Refused) and "all cleaning is paused, but only until a restart" in answer.message
    assert scene.cleaning.status(False).paused == ("*",)


def test_an_undo_waits_until_its_pause_is_kept(scene: Scene) -> None:
    cleaned_with_files(scene)
    scene.frame.deleted.clear()
    scene.frame.lane_error = StorageIOError(path="/d1", action="write", reason="no space")
    answer = scene.ask(Undo(name="a-0"))
    assert isinstance(answer, Refused) and "the last clean is not undone" in answer.message
    assert not scene.frame.of(UndoClean) and not scene.pauses.names
    assert scene.frame.deleted == [(("/d1/a-0/0.log.deleted",), 60_000)], "the deleter has them again"


def cleaned_with_files(scene: Scene) -> None:
    scene.partition(A, clean=1, dirty=9)
    scene.start()
    scene.frame.replies[GroupReady] = lambda ready: GroupSwapped(
        request_id=ready.request_id, group_id=0, accepted=True, deleted=("/d1/a-0/0.log.deleted",)
    )
    scene.tell(
        GroupReady(
            request_id=scene.job.request_id, group_id=0, topic="a", partition=0, base_offset=0, source_bases=(0,)
        )
    )
    scene.done()
    assert scene.checkpoint()["a-0"] == 100


def test_undo_puts_files_and_checkpoint_back_and_pauses_the_partition(scene: Scene) -> None:
    cleaned_with_files(scene)
    scene.frame.replies[UndoClean] = lambda undo: UndoDone(request_id=undo.request_id, restored=("0.log",))
    answer = scene.ask(Undo(name="a-0"))
    assert isinstance(answer, Done) and "1 files of a-0 are back" in answer.lines[0]
    assert scene.frame.kept == ["/d1/a-0/0.log.deleted"]
    assert scene.checkpoint()["a-0"] == 10 and scene.pauses.names == {"a-0"}
    scene.frame.pass_time(60_000)
    assert scene.jobs() == ["a-0"]
    assert isinstance(scene.ask(Undo(name="a-0")), Refused), "there is nothing to undo twice"


def test_an_undo_that_the_owner_refuses_changes_nothing(scene: Scene) -> None:
    cleaned_with_files(scene)
    scene.frame.deleted.clear()
    scene.frame.replies[UndoClean] = lambda undo: UndoDone(request_id=undo.request_id, restored=(), refused="too late")
    answer = scene.ask(Undo(name="a-0"))
    assert isinstance(answer, Refused) and "too late" in answer.message
    assert scene.checkpoint()["a-0"] == 100 and not scene.pauses.names
    assert scene.frame.deleted == [(("/d1/a-0/0.log.deleted",), 60_000)], "the deleter has them again"


@pytest.mark.parametrize(
    ("name", "words"),
    [("a", "names not one partition"), ("x-0", "no topic or partition"), ("b-0", "was not cleaned since")],
)
def test_undo_of_what_cannot_be_undone(scene: Scene, name: str, words: str) -> None:
    cleaned_with_files(scene)
    scene.partition(B, clean=10, dirty=0)
    answer = scene.ask(Undo(name=name))
    assert isinstance(answer, Refused) and words in answer.message


def test_undo_while_it_is_cleaned_again(scene: Scene) -> None:
    cleaned_with_files(scene)
    scene.ask(CleanNow(names=("a",)))
    answer = scene.ask(Undo(name="a-0"))
    assert isinstance(answer, Refused) and "is being cleaned" in answer.message


# ---- threads


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


# ---- throttle


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


# ---- stop


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


def test_a_checkpoint_that_an_interrupted_move_left_goes_after_its_partition(scene: Scene) -> None:
    scene.partition(A, clean=3)
    scene.partition(B, clean=5, log_dir=1)
    # Their logs lie in the other dirs by now; of one the new dir has an entry already.
    scene.frame.states[A] = scene.state(A, 13, scene.dirs[1])
    scene.frame.states[B] = scene.state(B, 15, scene.dirs[0])
    OffsetCheckpoint(scene.dirs[0] / CLEANER_OFFSETS).write({A: 30, B: 70})
    scene.frame.up["cleaner"] = []
    scene.start()
    assert scene.cleaning.offsets.known == {A: 30, B: 70}
    assert (scene.checkpoint(0), scene.checkpoint(1)) == ({"b-0": 70}, {"a-0": 30})
