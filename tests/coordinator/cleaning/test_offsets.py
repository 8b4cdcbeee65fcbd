"""Checkpoints of the cleaner that are wrong, damaged, older or elsewhere."""

from __future__ import annotations

import errno
import logging

import pytest

from compactd.config.errors import StorageIOError
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from tests.coordinator.cleaning.scene import A, B, Scene
from tests.coordinator.frames import BROKER


def test_a_checkpoint_that_cannot_be_written_is_the_log_dirs_failure(scene: Scene) -> None:
    scene.partition(A)
    scene.start()
    scene.frame.lane_error = StorageIOError(path="/d1", action="fsync", reason="EIO", errno=errno.EIO)
    scene.done()
    assert [path for path, _ in scene.frame.failed_dirs] == [str(scene.dirs[0])]
    assert not scene.cleaning.status(False).jobs


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
