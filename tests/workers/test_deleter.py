"""The deleter: when a file goes, how, and what never goes."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from compactd.storage import files
from compactd.workers import deleter
from compactd.workers.cleaning_messages import DeleteLater, DeleterState, KeepFiles
from compactd.workers.clock import Clock
from compactd.workers.deleter import Deleter, is_removable, remove_file, run, size_of
from compactd.workers.messages import Stop
from compactd.workers.partition_messages import LogDirFailed
from tests.file_faults import FaultyLayer
from tests.workers.scripted_channel import ScriptedChannel

_START = 1_000_000


class MovedClock(Clock):
    def __init__(self) -> None:
        self.now = _START

    def now_ms(self) -> int:
        return self.now


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = MovedClock()
        self.deleter = Deleter(self.clock)

    def file(self, name: str, size: int = 10) -> str:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"x" * size)
        return str(path)

    def later(self, *paths: str, after_ms: int = 1000) -> None:
        assert self.deleter.take(DeleteLater(paths=paths, due_ms=self.clock.now + after_ms))

    def pass_time(self, milliseconds: int) -> int:
        """How many paths were dealt with."""
        self.clock.now += milliseconds
        count = 0
        while self.deleter.remove_one_due():
            count += 1
        return count


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "d1")


def test_a_file_goes_when_it_is_due_and_not_before(scene: Scene) -> None:
    path = scene.file("t-0/0.log.deleted")
    scene.later(path)
    assert scene.deleter.seconds_to_next(60) == 1.0 and scene.deleter.seconds_to_next(0.5) == 0.5
    assert scene.pass_time(999) == 0 and Path(path).exists()
    assert scene.pass_time(1) == 1 and not Path(path).exists()
    assert scene.deleter.seconds_to_next(60) == 60


def test_the_earliest_goes_first_one_at_a_time(scene: Scene) -> None:
    late, early = scene.file("t-0/b.deleted"), scene.file("t-0/a.deleted")
    scene.later(late, after_ms=900)
    scene.later(early, after_ms=100)
    scene.clock.now += 1000
    assert scene.deleter.seconds_to_next(60) == 0
    assert scene.deleter.remove_one_due()
    assert Path(late).exists() and not Path(early).exists()


def test_the_queue_as_status_shows_it(scene: Scene) -> None:
    scene.later(scene.file("t-0/a.deleted", 100), scene.file("t-0/b.deleted", 23))
    scene.later(scene.file("u-0.x-delete/0.log", 1000).rsplit("/", 1)[0], after_ms=2000)
    assert scene.deleter.state() == DeleterState(queued=3, queued_bytes=1123, removed=0, next_due_ms=_START + 1000)
    scene.pass_time(1000)
    assert scene.deleter.state() == DeleterState(queued=1, queued_bytes=1000, removed=2, next_due_ms=_START + 2000)
    scene.pass_time(1000)
    assert scene.deleter.state() == DeleterState(queued=0, queued_bytes=0, removed=3)


def test_what_is_said_twice_counts_once_and_the_last_word_holds(scene: Scene) -> None:
    path = scene.file("t-0/a.deleted", 50)
    scene.later(path)
    scene.later(path, after_ms=5000)
    assert scene.deleter.state().queued_bytes == 50 and len(scene.deleter) == 1
    assert scene.pass_time(4999) == 0
    assert scene.pass_time(1) == 1


def test_files_that_were_put_back_are_forgotten(scene: Scene) -> None:
    kept, gone = scene.file("t-0/a.deleted"), scene.file("t-0/b.deleted")
    scene.later(kept, gone)
    assert scene.deleter.take(KeepFiles(paths=(kept, "/never/heard.deleted")))
    assert scene.pass_time(1000) == 1
    assert Path(kept).exists() and not Path(gone).exists()
    assert scene.deleter.state() == DeleterState(queued=0, queued_bytes=0, removed=1)
    scene.later(kept)
    assert scene.pass_time(1000) == 1 and not Path(kept).exists()


def test_a_directory_goes_with_its_files(scene: Scene) -> None:
    directory = Path(scene.file("u-0.0123-delete/0.log")).parent
    scene.file("u-0.0123-delete/0.index")
    scene.later(str(directory))
    assert scene.pass_time(1000) == 1 and not directory.exists() and scene.directory.exists()


@pytest.mark.parametrize("name", ["t-0/0.log", "t-0", "t-0/0.log.deleted.keep", "", "t-0/deleted"])
def test_what_does_not_say_that_it_is_deleted_is_never_removed(
    scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.file("t-0/0.log")
    with caplog.at_level(logging.ERROR):
        scene.later(str(scene.directory / name))
    assert not len(scene.deleter) and scene.pass_time(10_000) == 0
    assert "is left alone" in caplog.text and (scene.directory / "t-0/0.log").exists()
    assert not is_removable(str(scene.directory / name))


def test_what_is_gone_already_is_no_fault(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.later(str(scene.directory / "t-0/0.log.deleted"), str(scene.directory / "u-1.0-delete"))
    assert scene.pass_time(1000) == 2
    assert scene.deleter.state().removed == 2 and not caplog.records


@pytest.mark.parametrize("name", ["unlink", "rmdir"])
def test_a_removal_that_fails_is_tried_again_and_said_once(
    scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Path(scene.file("u-0.0123-delete/0.log")).parent
    other = scene.file("t-0/a.deleted")
    scene.later(str(directory))
    scene.later(other, after_ms=1001)
    layer = FaultyLayer()
    layer.fail(name, errno.EIO, nth=None, part="u-0")
    with files.replaced(layer):
        scene.pass_time(1001)
        assert not Path(other).exists(), "one that fails holds up none of the others"
        assert directory.exists()
        assert scene.deleter.state().failing == 1
        scene.pass_time(30_000)
        assert len(caplog.records) == 1
    assert scene.pass_time(30_000) == 1 and not directory.exists()
    assert scene.deleter.state() == DeleterState(queued=0, queued_bytes=0, removed=2)


def test_a_directory_that_cannot_be_read_does_not_end_the_deleter(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(scene.file("u-0.0123-delete/0.log")).parent
    scene.later(str(directory))

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(directory))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        scene.pass_time(1000)
        assert scene.deleter.state().failing == 1
    assert scene.pass_time(30_000) == 1 and not directory.exists()


def test_a_large_file_is_cut_down_in_steps(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleter, "STEP_BYTES", 100)
    path = Path(scene.file("t-0/0.log.deleted", 350))
    layer = FaultyLayer()
    with files.replaced(layer):
        remove_file(path)
    cut = [call.size for call in layer.calls if call.name == "truncate"]
    assert cut == [250, 150, 50] and layer.calls[-1].name == "unlink" and not path.exists()


@pytest.mark.parametrize("size", [99, 100])
def test_a_small_file_is_not(scene: Scene, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(deleter, "STEP_BYTES", 100)
    path = Path(scene.file("t-0/0.log.deleted", size))
    layer = FaultyLayer()
    with files.replaced(layer):
        remove_file(path)
    assert [call.name for call in layer.calls] == ["unlink"]


def test_a_file_with_another_name_keeps_its_content_under_that(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleter, "STEP_BYTES", 100)
    path, link = Path(scene.file("t-0/0.log.deleted", 350)), scene.directory / "backup"
    os.link(path, link)
    remove_file(path)
    assert not path.exists() and link.stat().st_size == 350


def test_nothing_is_touched_in_a_log_dir_that_is_offline(scene: Scene) -> None:
    path = scene.file("t-0/0.log.deleted")
    other = str(scene.directory) + "2"
    Path(other).mkdir()
    beside = f"{other}/x.deleted"
    Path(beside).touch()
    scene.later(path, beside)
    scene.deleter.take(LogDirFailed(log_dir=str(scene.directory), reason="EIO"))
    scene.pass_time(1000)
    assert Path(path).exists() and not Path(beside).exists()
    assert scene.deleter.state() == DeleterState(queued=0, queued_bytes=0, removed=1)


def test_sizes_of_what_is_there_and_what_is_not(scene: Scene) -> None:
    assert size_of(scene.file("t-0/a", 7)) == 7
    scene.file("t-0/b", 5)
    assert size_of(str(scene.directory / "t-0")) == 12
    assert size_of(str(scene.directory / "nothing")) == 0


def test_telling_of_its_queue_costs_the_same_whatever_its_length(scene: Scene) -> None:
    scene.later(*(f"/nowhere/{number}.deleted" for number in range(20_000)))
    assert scene.pass_time(999) == 0
    looked = 0

    class Counting(dict[str, int]):
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += 1
            return super().values()

        __iter__ = None  # type: ignore[assignment]

    scene.deleter._due = Counting(scene.deleter._due)
    for _ in range(100):
        assert scene.deleter.state().queued == 20_000
    assert looked == 0


def test_the_body(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, path = ScriptedChannel(), scene.file("t-0/a.deleted", 3)
    channel.put(DeleteLater(paths=(path,), due_ms=_START + 500))
    waits: list[float] = []
    receive = channel.receive

    def idle() -> None:
        scene.clock.now += 500
        if len(waits) > 6:
            channel.put(Stop(reason="enough"))

    def counted(timeout: float | None = None) -> object:
        if timeout:
            waits.append(timeout)
        return receive(timeout)

    channel.idle = idle
    monkeypatch.setattr(channel, "receive", counted)
    assert run(channel, scene.clock) is None  # type: ignore[arg-type]
    queue = [(state.queued, state.removed) for state in channel.of(DeleterState)]
    assert queue[0] == (1, 0) and queue[-1] == (0, 1)
    assert not Path(path).exists() and max(waits) <= 1.0
    assert "1 waiting" in channel.phases and channel.phases[-1] == "idle"


def test_a_stop_leaves_the_rest_for_the_next_start(scene: Scene) -> None:
    channel, path = ScriptedChannel(), scene.file("t-0/a.deleted")
    channel.put(DeleteLater(paths=(path,), due_ms=_START + 500), Stop(reason="now"))
    run(channel, scene.clock)  # type: ignore[arg-type]
    assert Path(path).exists()
