"""Logs that cannot be cleaned: set aside, tried again, released."""

from __future__ import annotations

import pytest

from compactd.coordinator.cleaning.quarantine import FILE, PAUSES_MS
from compactd.coordinator.control.messages import Done, Refused, Retry
from tests.coordinator.cleaning.scene import A, B, Scene


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
