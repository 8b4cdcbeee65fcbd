"""What a person asks for: clean now, pause, resume, undo."""

from __future__ import annotations

import pytest

from compactd.config.errors import StorageIOError
from compactd.coordinator.control.messages import CleanNow, Done, Pause, Refused, Resume, Undo
from compactd.workers.cleaning_messages import (
    AbortClean,
    GroupReady,
    GroupSwapped,
    PrepareClean,
    UndoClean,
    UndoDone,
)
from tests.coordinator.cleaning.scene import FIRST, A, B, C, Scene


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
