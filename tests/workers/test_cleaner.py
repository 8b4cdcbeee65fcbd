"""A cleaner's job, from CleanJob to CleanDone, with a test in the place of the coordinator and of the log's owner."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from compactd.storage import files, names
from compactd.storage.kernel import active_kernel
from compactd.storage.names import CLEANED, DELETED
from compactd.storage.records.batch import iter_batches
from compactd.storage.swap import replace_segments
from compactd.workers.cleaner import Cleaner
from compactd.workers.cleaning_messages import (
    AbortClean,
    ActiveProducerState,
    CleanDone,
    CleanJob,
    CleanProgress,
    CleanThrottle,
    GroupReady,
    GroupSwapped,
    SegmentSource,
)
from compactd.workers.message import Message
from compactd.workers.messages import Reconfigure, Stop
from tests.file_faults import FaultyLayer
from tests.logs import NOW_MS, LogBuilder, settings
from tests.workers.scripted_channel import ScriptedChannel

_REQUEST = 7


class Scene:
    """A partition of `segments` closed segments of four keys each, a channel, and an owner that swaps what it is given."""

    def __init__(self, directory: Path, segments: int = 3, **config: object) -> None:
        self.directory = directory / "users-0"
        self.config = settings(**{"segment_bytes": 1 << 20, **config})
        with LogBuilder(self.directory, self.config) as log:
            for number in range(segments):
                log.append([(f"k{key}", f"{number}") for key in range(4)])
                log.roll()
            log.append([("last", "active")])
            self.bases = log.segment_bases[:-1]
            self.end, self.active_base = log.log_end_offset, log.active_base
        self.channel = ScriptedChannel()
        self.channel.answer = self.owner
        #: What the owner answers to GroupReady; None: it swaps.
        self.reply: Callable[[GroupReady], GroupSwapped | None] = lambda _: None

    def job(self, **changes: object) -> CleanJob:
        fields: dict[str, object] = {
            "request_id": _REQUEST,
            "topic": "users",
            "partition": 0,
            "directory": str(self.directory),
            "config": self.config,
            "segments": tuple(
                SegmentSource(
                    base_offset=base,
                    size=(path := self.directory / names.log_name(base)).stat().st_size,
                    last_modified_ms=files.mtime_ms(path),
                )
                for base in self.bases
            ),
            "log_start_offset": 0,
            "log_end_offset": self.end,
            "high_watermark": self.end,
            "last_stable_offset": self.end,
            "first_dirty_offset": 0,
            "first_uncleanable_offset": self.active_base,
            "active_producers": (),
            "now_ms": NOW_MS,
            "map_memory_bytes": 1 << 20,
            "map_load_factor": 0.9,
            "active_base_offset": self.active_base,
        }
        return CleanJob(**{**fields, **changes})  # type: ignore[arg-type]

    def owner(self, message: Message) -> None:
        if isinstance(message, GroupReady):
            answer = self.reply(message)
            if answer is None:
                deleted = replace_segments(self.directory, [message.base_offset], message.source_bases)
                answer = swapped(message, deleted=tuple(map(str, deleted)))
            self.channel.put(answer)

    def run(self, *messages: Message) -> CleanDone:
        """Gives the cleaner a job among other messages; what it said at the end."""
        self.channel.put(*(messages or (self.job(),)))
        Cleaner(self.channel, active_kernel()).run()  # type: ignore[arg-type]
        (done,) = self.channel.of(CleanDone)
        return done

    def names(self, suffix: str) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.endswith(suffix))

    def records(self) -> dict[bytes | None, bytes | None]:
        """Key to value over all segments; a key that is there twice fails the test."""
        found: dict[bytes | None, bytes | None] = {}
        for path in sorted(self.directory.glob("*.log")):
            for batch in iter_batches(path.read_bytes()):
                for record in batch.records():
                    assert record.key not in found
                    found[record.key] = record.value
        return found


def swapped(ready: GroupReady, accepted: bool = True, **fields: object) -> GroupSwapped:
    return GroupSwapped(request_id=ready.request_id, group_id=ready.group_id, accepted=accepted, **fields)  # type: ignore[arg-type]


@pytest.fixture
def scene(fast_dir: Path) -> Scene:
    return Scene(fast_dir)


def test_a_job_done(scene: Scene) -> None:
    done = scene.run()
    assert (done.outcome, done.reason, done.next_dirty_offset) == ("cleaned", "", scene.active_base)
    assert scene.records() == {b"k0": b"2", b"k1": b"2", b"k2": b"2", b"k3": b"2", b"last": b"active"}
    (ready,) = scene.channel.of(GroupReady)
    assert (ready.topic, ready.partition, ready.base_offset, ready.source_bases) == ("users", 0, 0, (0, 4, 8))
    assert done.stats["messages_read"] == 12 and done.stats["messages_written"] == 4
    assert done.stats["map_entries"] == 4 and done.stats["map_capacity"] > 1000
    assert not scene.names(CLEANED)
    assert scene.names(".log" + DELETED) == [names.log_name(base) + DELETED for base in (0, 4, 8)]


def test_what_it_tells_while_it_works(scene: Scene) -> None:
    scene.run()
    progress = scene.channel.of(CleanProgress)
    phases = [each.phase for each in progress]
    assert phases[0] == "reading keys"
    assert phases.index("checking what is clean") < phases.index("copying") < phases.index("waiting for the swap")
    assert all(later.bytes_read >= each.bytes_read for each, later in pairwise(progress))
    assert progress[-1].map_entries == 4
    assert "copying, users-0" in scene.channel.phases and scene.channel.phases[-1] == "idle"


def test_groups_are_handed_over_one_by_one(fast_dir: Path) -> None:
    scene = Scene(fast_dir, segment_bytes=110)
    waiting = 0

    def reply(ready: GroupReady) -> None:
        nonlocal waiting
        waiting = max(waiting, len({name[:20] for name in scene.names(CLEANED)}))

    scene.reply = reply
    assert scene.run().outcome == "cleaned"
    # The third holds the latest values already and stays as it is.
    assert [ready.group_id for ready in scene.channel.of(GroupReady)] == [0, 1]
    assert waiting == 1


def test_a_log_that_needs_no_change_is_not_swapped(scene: Scene) -> None:
    scene.run()
    again = Scene.__new__(Scene)
    again.__dict__.update(scene.__dict__)
    again.channel = ScriptedChannel()
    again.bases = [0]
    before = {path: path.read_bytes() for path in scene.directory.glob("0*.*") if not path.name.endswith(DELETED)}
    done = again.run(again.job())
    assert done.outcome == "cleaned" and not again.channel.of(GroupReady)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_two_jobs_one_after_the_other_start_from_nothing(scene: Scene, tmp_path: Path) -> None:
    assert scene.run().outcome == "cleaned"
    scene.channel.stopping, scene.bases = None, []
    scene.channel.put(scene.job(request_id=8, segments=(), first_uncleanable_offset=0))
    Cleaner(scene.channel, active_kernel()).run()  # type: ignore[arg-type]
    first, second = scene.channel.of(CleanDone)
    assert (first.request_id, second.request_id) == (7, 8)
    assert second.stats["messages_read"] == 0 and second.stats["map_entries"] == 0


def test_a_swap_that_is_refused_ends_the_round_and_takes_the_output_away(scene: Scene) -> None:
    scene.reply = lambda ready: swapped(ready, accepted=False, reason="its sources are gone")
    done = scene.run()
    assert (done.outcome, done.next_dirty_offset) == ("aborted", -1)
    assert "its sources are gone" in done.reason
    assert not scene.names(CLEANED) and not scene.names(DELETED)
    assert [path.name for path in sorted(scene.directory.glob("*.log"))][:3] == [names.log_name(b) for b in (0, 4, 8)]


def test_a_swap_of_which_nobody_knows_leaves_every_file_as_it_is(scene: Scene) -> None:
    scene.reply = lambda ready: swapped(ready, accepted=False, reason="broker-0 is gone", unknown=True)
    assert scene.run().outcome == "aborted"
    assert names.log_name(0) + CLEANED in scene.names(CLEANED)


def test_an_answer_to_another_group_or_job_is_not_taken_for_its_own(scene: Scene) -> None:
    def reply(ready: GroupReady) -> None:
        scene.channel.put(
            GroupSwapped(request_id=_REQUEST - 1, group_id=ready.group_id, accepted=False, reason="an old job"),
            GroupSwapped(request_id=_REQUEST, group_id=ready.group_id + 1, accepted=False, reason="another group"),
        )

    scene.reply = reply
    assert scene.run().outcome == "cleaned"


@pytest.mark.parametrize(
    "before", [AbortClean(request_id=_REQUEST, reason="the topic was deleted"), Stop(reason="now")]
)
def test_an_abort_or_a_stop_is_obeyed_between_chunks(scene: Scene, before: Message) -> None:
    scene.channel.answer = lambda message: scene.channel.put(before) if isinstance(message, CleanProgress) else None
    done = scene.run()
    assert done.outcome == "aborted"
    assert ("the topic was deleted" if isinstance(before, AbortClean) else "compactd stops: now") in done.reason
    assert not scene.channel.of(GroupReady) and not scene.names(CLEANED)


def test_an_abort_of_another_job_is_none_of_its_business(scene: Scene) -> None:
    assert scene.run(scene.job(), AbortClean(request_id=_REQUEST - 1, reason="late")).outcome == "cleaned"


@pytest.mark.parametrize("accepted", [True, False])
def test_whoever_is_told_to_stop_while_a_group_is_at_the_owners_waits_for_the_answer(
    scene: Scene, accepted: bool
) -> None:
    asked: list[GroupReady] = []

    def answer(message: Message) -> None:
        if isinstance(message, GroupReady):
            asked.append(message)
            scene.channel.put(AbortClean(request_id=_REQUEST, reason="it was paused"))

    looks = 0

    def idle() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            # Nothing may be taken away while the owner may still be about to swap it in.
            assert names.log_name(0) + CLEANED in scene.names(CLEANED)
            if accepted:
                scene.owner(asked[0])
            else:
                scene.channel.put(swapped(asked[0], accepted=False, reason="no"))
        elif looks > 3:
            scene.channel.stop()

    scene.channel.answer, scene.channel.idle = answer, idle
    done = scene.run()
    assert done.outcome == "aborted" and looks >= 3
    assert not scene.names(CLEANED)
    assert bool(scene.names(DELETED)) is accepted


def test_output_of_a_cleaner_that_died_is_dropped_first(scene: Scene) -> None:
    stale = scene.directory / (names.log_name(4) + CLEANED)
    stale.write_bytes(b"half")
    foreign = scene.directory / "notes.cleaned"
    foreign.write_bytes(b"mine")
    seen: list[bool] = []
    scene.reply = lambda _: seen.append(stale.exists())  # type: ignore[func-returns-value]
    assert scene.run().outcome == "cleaned"
    assert seen == [False] and foreign.exists()


def test_damage_is_reported_with_file_and_position_and_nothing_is_swapped(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    path = scene.directory / names.log_name(4)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        done = scene.run()
    assert (done.outcome, done.next_dirty_offset) == ("faulty", -1)
    assert done.fields["error"] == "CorruptBatchError" and done.fields["path"] == str(path)
    assert done.fields["position"] == "0" and str(path) in done.reason
    assert not scene.channel.of(GroupReady) and not scene.names(CLEANED)
    assert "users-0 was not cleaned" in caplog.text


def test_damage_in_what_is_clean_is_found_before_the_first_group_goes(scene: Scene) -> None:
    path = scene.directory / names.log_name(0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = scene.run(scene.job(first_dirty_offset=8))
    assert done.outcome == "faulty" and done.fields["path"] == str(path)
    assert not scene.channel.of(GroupReady)


def test_a_segment_that_is_missing_fails_the_job_and_not_the_cleaner(scene: Scene) -> None:
    job = scene.job()
    (scene.directory / names.log_name(4)).unlink()
    done = scene.run(job)
    assert done.outcome == "failed" and done.fields["io"] == str(errno.ENOENT)


def test_a_directory_that_is_gone_is_no_fault(scene: Scene, tmp_path: Path) -> None:
    done = scene.run(scene.job(directory=str(tmp_path / "users-0")))
    assert (done.outcome, done.reason) == ("aborted", "its directory is gone")


def test_no_space_for_the_largest_group(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    done = scene.run()
    assert done.fields["error"] == "NoSpaceError" and done.outcome != "cleaned"
    assert not scene.names(CLEANED) and not scene.channel.of(GroupReady)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_while_the_output_is_written(scene: Scene, code: int) -> None:
    layer = FaultyLayer()
    layer.fail("fsync", code, part=CLEANED)
    with files.replaced(layer):
        done = scene.run()
    assert done.outcome == "failed" and done.fields["io"] == str(code)
    assert not scene.names(CLEANED) and not scene.names(DELETED)


def test_a_tombstone_goes_by_the_jobs_time(fast_dir: Path) -> None:
    scene = Scene(fast_dir, delete_retention_ms=60_000)
    with LogBuilder(scene.directory.with_name("gone-0"), scene.config) as log:
        log.append([("a", "1"), ("b", "1")])
        log.append([("a", None)])
        log.roll()
        scene.bases, scene.end, scene.active_base = [0], 3, 3
    scene.directory = scene.directory.with_name("gone-0")
    assert scene.run().outcome == "cleaned"
    assert scene.records() == {b"a": None, b"b": b"1"}
    scene.channel = ScriptedChannel()
    scene.channel.answer = scene.owner
    assert scene.run(scene.job(first_dirty_offset=3, now_ms=NOW_MS + 60_001)).outcome == "cleaned"


def test_the_last_batch_of_an_active_producer_stays_though_its_records_go(fast_dir: Path) -> None:
    scene = Scene(fast_dir, segments=1)
    scene.directory = scene.directory.with_name("pid-0")
    with LogBuilder(scene.directory, scene.config) as log:
        log.append([("a", "1")], pid=9)
        log.append([("a", "2")])
        log.roll()
        scene.bases, scene.end, scene.active_base = [0], 2, 2
    producer = ActiveProducerState(producer_id=9, producer_epoch=0, last_data_offset=0)
    assert scene.run(scene.job(active_producers=(producer,))).outcome == "cleaned"
    batches = list(iter_batches((scene.directory / names.log_name(0)).read_bytes()))
    assert [(batch.header.producer_id, batch.header.record_count) for batch in batches] == [(9, 0), (-1, 1)]


def test_the_throttle_may_be_changed_while_it_works(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    moment = 100.0

    def sleep(seconds: float) -> None:
        nonlocal moment
        moment += seconds
        slept.append(seconds)
        if len(slept) == 3:
            scene.channel.put(CleanThrottle(bytes_per_second=1e12))

    monkeypatch.setattr("compactd.workers.throttle.time.sleep", sleep)
    monkeypatch.setattr("compactd.workers.throttle.time.monotonic", lambda: moment)
    assert scene.run(scene.job(bytes_per_second=1.0)).outcome == "cleaned"
    # A byte a second would have taken minutes; the new rate holds from the next slice on.
    assert slept[:3] == [0.2] * 3 and sum(slept[3:]) < 1e-6


def test_an_abort_wakes_a_cleaner_that_the_throttle_holds_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene.channel.put(AbortClean(request_id=_REQUEST, reason="enough"))

    monkeypatch.setattr("compactd.workers.throttle.time.sleep", sleep)
    assert scene.run(scene.job(bytes_per_second=1.0)).outcome == "aborted"
    assert len(slept) == 1 and slept[0] < 1


def test_new_settings_of_io_pressure(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[str] = []
    monkeypatch.setattr(
        "compactd.workers.cleaner.IoPressure.of",
        lambda settings: limits.append(settings.get("cleaner.io.pressure.limit", "none")) or _NoPressure(),
    )
    assert scene.run(Reconfigure(settings={"cleaner.io.pressure.limit": "20"}), scene.job()).outcome == "cleaned"
    assert limits == ["none", "20"]


class _NoPressure:
    def wait(self, _check: Callable[[], None]) -> None:
        return


def test_a_map_that_does_not_fit_into_memory_fails_the_job_and_not_the_cleaner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("12 GB")

    monkeypatch.setattr("compactd.workers.cleaner.CleaningRound.build_map", refuse)
    done = scene.run()
    assert done.outcome == "failed" and "12 GB" in done.reason


def test_a_partition_with_more_keys_than_its_map_takes_is_cleaned_in_rounds(fast_dir: Path) -> None:
    scene = Scene(fast_dir, segments=4)
    with LogBuilder(scene.directory.with_name("many-0"), scene.config) as log:
        for number in range(4):
            log.append([(f"key-{number}-{key}", "v") for key in range(50)])
            log.roll()
        scene.bases, scene.end, scene.active_base = log.segment_bases[:-1], log.log_end_offset, log.active_base
    scene.directory = scene.directory.with_name("many-0")
    done = scene.run(scene.job(map_memory_bytes=2400))
    assert done.outcome == "cleaned" and 0 < done.next_dirty_offset < scene.active_base
