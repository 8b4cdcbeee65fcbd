"""Stops at every call of the file layer while a log is appended to, rolled, truncated, retained, swapped and closed.

Afterwards, with what was never fsynced lost or not: every record that was acknowledged after its fsync is there with its
own value, none comes twice, no temporary file is left, and the log goes on. compactd loads it, and Kafka does.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactd.storage import files
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.file_faults import FaultyLayer, PowerCut
from tests.oracle.driver import Oracle, decode, topic_settings
from tests.storage.log.cleaned import write_cleaned
from tests.storage.log.logs import NOW, config, contents

SETTINGS = {
    "internal.segment.bytes": 400,
    "index.interval.bytes": 0,
    "file.delete.delay.ms": 0,
    "flush.messages": 2**62,
}


def value_of(offset: int, generation: int) -> bytes:
    return b"%d/%d" % (offset, generation)


@dataclass
class Story:
    """One run of a log, and what has to be true of it however it ends."""

    log: PartitionLog
    #: Fsynced and acknowledged: offset to value.
    durable: dict[int, bytes] = field(default_factory=dict)
    #: Acknowledged, not fsynced: there unless the machine lost its power.
    written: dict[int, bytes] = field(default_factory=dict)
    #: What the log dir's checkpoints say.
    recovery_point: int = 0
    log_start_offset: int = 0
    generation: int = 0

    def append(self, count: int = 1, producer: int | None = None) -> None:
        offset = self.log.log_end_offset
        values = {offset + n: value_of(offset + n, self.generation) for n in range(count)}
        made = [Record(at - offset, NOW + at, b"k", value) for at, value in values.items()]
        ids = {}
        if producer is not None:
            known = self.log.producers.get(producer)
            ids = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": known.last_sequence + 1 if known else 0,
            }
        self.log.append_as_leader(build_batch(made, base_offset=0, **ids), leader_epoch=self.generation, now_ms=NOW)  # type: ignore[arg-type]
        self.log.update_high_watermark(self.log.log_end_offset)
        self.written.update(values)

    def flush(self) -> None:
        self.log.flush()
        self.durable.update(self.written)

    def checkpoint(self) -> None:
        """Every minute a broker notes how far the disk is; here, now."""
        self.recovery_point = self.log.recovery_point
        self.log_start_offset = self.log.log_start_offset

    def forget(self, gone: Callable[[int], bool]) -> None:
        """These offsets may be there or not from now on."""
        for known in (self.durable, self.written):
            for offset in [offset for offset in known if gone(offset)]:
                del known[offset]


def appends(story: Story) -> None:
    for _ in range(3):
        story.append()
        story.flush()
    story.append(2)
    story.append()
    story.flush()


def rolls(story: Story) -> None:
    for number in range(7):
        story.append(2, producer=5)
        if number % 3 == 1:
            story.flush()
            story.checkpoint()
    story.log.roll(now_ms=NOW)
    story.durable.update({o: v for o, v in story.written.items() if o < story.log.recovery_point})
    story.append()
    story.flush()


def truncates(story: Story) -> None:
    for _ in range(8):
        story.append(2)
    story.flush()
    story.checkpoint()
    story.forget(lambda offset: offset >= 6)
    story.log.truncate_to(7, NOW)
    story.checkpoint()
    story.generation += 1
    story.append()
    story.append()
    story.flush()
    story.forget(lambda offset: True)
    story.log.truncate_fully_and_start_at(20, NOW)
    story.log_start_offset = 20
    story.checkpoint()
    story.generation += 1
    story.append()
    story.flush()


def retains(story: Story) -> None:
    for _ in range(9):
        story.append(2)
    story.flush()
    story.checkpoint()
    story.forget(lambda offset: offset < 9)
    story.log.maybe_increment_log_start_offset(9)
    story.checkpoint()
    story.log.delete_old_segments(NOW)
    story.log.save()
    story.log.remove_due(NOW)
    story.append()
    story.flush()


def swaps(story: Story) -> None:
    for _ in range(9):
        story.append(2)
    story.flush()
    story.checkpoint()
    closed = [segment.base_offset for segment in story.log.segments[:-1]]
    group = closed[:2]
    base = write_cleaned(story.log, group, lambda record: record.offset % 2 == 0)
    for name in story.log.directory.glob("*.cleaned"):
        with files.open_existing(name) as output:
            output.sync()
    upper = closed[2] if len(closed) > 2 else story.log.active_segment.base_offset
    story.forget(lambda offset: offset < upper and offset % 2 == 1)
    story.log.replace_segments([base], group, NOW)
    story.log.remove_due(NOW)
    story.append()
    story.flush()


def closes(story: Story) -> None:
    for _ in range(4):
        story.append(2, producer=6)
    story.log.close()
    story.durable.update(story.written)


SCENES = {scene.__name__: scene for scene in (appends, rolls, truncates, retains, swaps, closes)}


def play(directory: Path, scene: Callable[[Story], None], layer: FaultyLayer) -> Story:
    """Runs a scene until it ends or the layer stops it."""
    log = PartitionLog.create(directory, config(**{k.replace(".", "_"): v for k, v in SETTINGS.items()}), now_ms=NOW)
    story = Story(log)
    with files.replaced(layer):
        for step in (lambda: scene(story), lambda: log.close(orderly=False)):
            with contextlib.suppress(PowerCut):
                step()
    return story


def endings(root: Path, scene: Callable[[Story], None], every: int = 1) -> Iterator[tuple[str, Path, Story, bool]]:
    """Every place to stop, with what a dead process and what a dead machine leaves."""
    first = FaultyLayer()
    play(root / "t-0", scene, first)
    shutil.rmtree(root / "t-0")
    for number in range(0, first.count, every):
        for lost in (None, "all", number, number + 1000):
            layer = FaultyLayer()
            layer.stop_at(number)
            story = play(root / "t-0", scene, layer)
            if lost is None:
                layer.close_all()
            else:
                layer.lose_unsynced(None if lost == "all" else int(lost))
            yield (
                f"call {number} of {first.count} ({layer.calls[-1]}), lost {lost}",
                root / "t-0",
                story,
                lost is not None,
            )
            shutil.rmtree(root / "t-0", ignore_errors=True)


def check(records: list[tuple[int, bytes | None]], start: int, story: Story, power_lost: bool, where: str) -> None:
    offsets = [offset for offset, _ in records]
    assert offsets == sorted(set(offsets)), f"{where}: offsets {offsets}"
    there = dict(records)
    must = story.durable if power_lost else story.durable | story.written
    for offset, value in must.items():
        if offset >= start:
            assert there.get(offset) == value, f"{where}: offset {offset} has {there.get(offset)!r}, not {value!r}"
    for offset, found in records:
        assert found is not None and found.split(b"/")[0] == b"%d" % offset, f"{where}: {found!r} at {offset}"


@pytest.mark.parametrize("name", SCENES)
def test_compactd_comes_up(fast_dir: Path, name: str) -> None:
    for where, directory, story, power_lost in endings(fast_dir, SCENES[name]):
        if not directory.exists():
            continue
        loaded = load_log(
            directory,
            story.log.config,
            clean_shutdown=False,
            recovery_point=story.recovery_point,
            log_start_offset=story.log_start_offset,
            now_ms=NOW,
        )
        log = PartitionLog(loaded, now_ms=NOW)
        log.update_high_watermark(log.log_end_offset)
        try:
            left = [
                path.name for path in directory.iterdir() if path.suffix in (".deleted", ".swap", ".cleaned", ".tmp")
            ]
            unexpected = [name for name in left if name not in {path.name for path in loaded.deleted_files}]
            assert not unexpected, f"{where}: {unexpected}"
            found = [(record.offset, record.value) for each in contents(log) for record in each.records()]
            check(found, log.log_start_offset, story, power_lost, where)
            end = log.log_end_offset
            log.append_as_leader(
                build_batch([Record(0, NOW, b"k", value_of(end, 99))], base_offset=0), leader_epoch=99, now_ms=NOW
            )
            again = [record.offset for each in contents(log) for record in each.records()]
            assert again == [offset for offset, _ in found] + [end], where
        finally:
            log.close(orderly=False)


@pytest.mark.kafka
@pytest.mark.parametrize("name", SCENES)
def test_kafka_comes_up(oracle: Oracle, fast_dir: Path, name: str) -> None:
    for where, directory, story, power_lost in endings(fast_dir, SCENES[name], every=2):
        if not directory.exists():
            continue
        state = oracle.open(
            directory,
            topic_settings(SETTINGS),
            now=NOW,
            cleanShutdown=False,
            recoveryPoint=story.recovery_point,
            logStartOffset=story.log_start_offset,
        )
        found = [
            (record["offset"], decode(record["value"]))
            for each in oracle.dump()
            for record in each["records"]
            if not each["control"]
        ]
        check(found, state["logStartOffset"], story, power_lost, where)
        oracle.abandon()
