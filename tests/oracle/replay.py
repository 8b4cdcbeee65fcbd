"""Plays a scenario on Kafka: writes the log, keeps a copy of it as it stood before each clean, cleans it.

What comes out is the pair of directories that every differential test starts from.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.oracle.driver import Answer, Oracle, OracleError
from tests.oracle.scenario import EPOCH_MS, Clean, Scenario, Writer

#: Kafka's map: a 16-byte digest and an 8-byte offset a slot.
KAFKA_SLOT_BYTES = 24
PARTITION = "t-0"
#: So that appends are never refused for their time; 2^60 is about the greatest that is drawn.
_WRITE_DEFAULTS = {
    "cleanup.policy": "delete",
    "message.timestamp.after.max.ms": 2**62,
    "segment.index.bytes": 4096,
    "segment.ms": 2**62,
}
_CLEAN_DEFAULTS = {"cleanup.policy": "compact", "segment.index.bytes": 4096}


@dataclass(frozen=True)
class Image:
    """A partition's directory before a round, the same for Kafka to clean, and what its log dir would say of it."""

    before: Path
    #: Kafka cleans this one; when the round is handed out it has done so.
    after: Path
    config: dict[str, object]
    now_ms: int
    log_start_offset: int
    #: The cleaner's checkpoint before the round; None: none.
    checkpoint: int | None
    clean_shutdown: bool = True
    recovery_point: int = 0

    def opening(self) -> dict[str, Any]:
        """What Kafka is told when it loads this partition."""
        return {
            "config": self.config,
            "now": self.now_ms,
            "logStartOffset": self.log_start_offset,
            "cleanShutdown": self.clean_shutdown,
            "recoveryPoint": self.recovery_point,
        }


@dataclass(frozen=True)
class Cleaning:
    """One round of Kafka's cleaner and everything it went by."""

    image: Image
    log_end_offset: int
    high_watermark: int
    #: Kafka's cleanable(), and its producers() after loading at the image's clock.
    cleanable: Answer
    producers: Answer
    first_dirty_offset: int
    first_uncleanable_offset: int
    map_slots: int
    load_factor: float
    #: None where there was nothing to clean, or Kafka's cleaner threw (`error`).
    stats: Answer | None = None
    error: str | None = None


@dataclass(frozen=True)
class Kill:
    """The broker does not stop in order before a clean."""

    #: The recovery point, in percent of the log.
    recovery_percent: int
    #: The machine went down as well: of the segments above the recovery point the .log is on disk and nothing else.
    indexes_lost: bool


def play(
    oracle: Oracle,
    scenario: Scenario,
    work: Path,
    kill: Kill | None = None,
    keep: bool = False,
    without_indexes: int = 0,
) -> Iterator[Cleaning]:
    """Every round of the scenario in turn. `work`: an empty directory; its log dirs stay valid until the next round.

    `kill`: how the broker stops before each clean; None: in order. `keep`: directories stay when the next round begins.
    `without_indexes`: bit n is set where somebody removes all indexes of the n-th segment after the stop.
    """
    log_dir = work / "kafka"
    directory = log_dir / PARTITION
    directory.mkdir(parents=True)
    write_config = {**_WRITE_DEFAULTS, **scenario.write_config}
    writer = Writer(EPOCH_MS, int(str(write_config.get("internal.segment.bytes", 1 << 20))))
    checkpoint: int | None = None
    start = 0
    for number, step in enumerate(scenario.rounds):
        oracle.open(directory, write_config, now=writer.now_ms, logStartOffset=start)
        requests = writer.requests(step.operations)
        for request, answer in zip(requests, oracle.many(requests), strict=True):
            if "error" in answer:
                raise OracleError(request, answer)
        start = _raise_start(oracle, writer)
        end = oracle.state()["logEndOffset"]
        oracle.request("close" if kill is None else "abandon")

        writer.now_ms += step.advance_ms
        set_mtimes(directory, step.mtimes_ms)
        config = {**_CLEAN_DEFAULTS, **scenario.clean_config, **step.clean.config}
        config |= _exact_limits(directory, step.clean)
        # A broker doesn't open an active segment whose index is longer than it may be.
        longest = max(
            (path.stat().st_size for path in directory.glob(f"{_active_base(directory):020}.*index")), default=0
        )
        config["segment.index.bytes"] = max(int(str(config["segment.index.bytes"])), longest)
        if kill is None:
            # A start as the broker's settles the producer snapshots; both sides begin with what lies there then.
            oracle.open(directory, config, now=writer.now_ms, logStartOffset=start)
            oracle.close()
        for place, path in enumerate(sorted(directory.glob("*.log"))):
            if without_indexes >> place & 1:
                for index in directory.glob(f"{path.stem}.*index"):
                    index.unlink()
        before = work / f"before-{number}" / PARTITION
        image = Image(before, directory, config, writer.now_ms, start, checkpoint)
        if kill is not None:
            image = replace(image, clean_shutdown=False, recovery_point=end * kill.recovery_percent // 100)
            if kill.indexes_lost:
                _lose_indexes(directory, image.recovery_point)
        shutil.copytree(directory, before)
        cleaning = _clean(oracle, image, max(start, end - step.clean.high_watermark_back), step.clean)
        if cleaning.stats is not None:
            checkpoint = cleaning.stats["nextDirtyOffset"]
        yield cleaning
        if not keep:
            shutil.rmtree(before.parent)
        if cleaning.error is not None:
            return


def _raise_start(oracle: Oracle, writer: Writer) -> int:
    state = oracle.state()
    start: int = state["logStartOffset"]
    if writer.start_percent:
        # Not past the start of an open transaction: Kafka then reports the base offset of whatever batch comes next as its
        # last stable offset, sometimes below the log start, where compactd says the log start.
        end = max(start, state["lastStableOffset"])
        start += (end - start) * writer.start_percent // 100
        writer.start_percent = 0
        oracle.start_offset(start)
    return start


def _exact_limits(directory: Path, step: Clean) -> dict[str, object]:
    """Limits of a segment that some of the first segments reach and do not pass."""

    def total(suffix: str, count: int) -> int:
        return sum(path.stat().st_size for path in sorted(directory.glob(f"*.{suffix}"))[:count])

    limits: dict[str, object] = {}
    if step.full_group:
        limits["internal.segment.bytes"] = max(1, total("log", step.full_group))
    if step.full_index:
        longest = max(total("index", step.full_index), total("timeindex", step.full_index))
        limits["segment.index.bytes"] = max(24, longest + step.index_slack)
    return limits


def _active_base(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))


def _lose_indexes(directory: Path, recovery_point: int) -> None:
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    floor = max((base for base in bases if base <= recovery_point), default=bases[0])
    for path in directory.glob("*index"):
        if int(path.stem) >= floor:
            path.write_bytes(b"") if path.suffix != ".txnindex" else path.unlink()


def set_mtimes(directory: Path, mtimes_ms: Sequence[int]) -> None:
    """Gives the .log files of a partition these times in turn, counted from the start of the scenarios' clock."""
    if not mtimes_ms:
        return
    for number, path in enumerate(sorted(directory.glob("*.log"))):
        at = (EPOCH_MS + mtimes_ms[number % len(mtimes_ms)]) * 1_000_000
        os.utime(path, ns=(at, at))


def _clean(oracle: Oracle, image: Image, high_watermark: int, step: Clean) -> Cleaning:
    state = oracle.open(image.after, **image.opening(), highWatermark=high_watermark)
    if step.lost_checkpoint:
        image = replace(image, checkpoint=None)
    cleanable = oracle.cleanable(image.checkpoint)
    cleaning = Cleaning(
        image,
        log_end_offset=state["logEndOffset"],
        high_watermark=state["highWatermark"],
        cleanable=cleanable,
        producers=oracle.producers(),
        first_dirty_offset=cleanable["firstDirtyOffset"],
        first_uncleanable_offset=cleanable["firstUncleanableOffset"],
        map_slots=step.slots,
        load_factor=step.load_factor,
    )
    # Kafka's cleaner wants room for two keys; its manager never hands it a log without dirty bytes.
    if cleanable["cleanableBytes"] > 0 and math.floor(step.slots * step.load_factor) > 1:
        request: dict[str, Any] = {
            "first": cleaning.first_dirty_offset,
            "uncleanable": cleaning.first_uncleanable_offset,
            "dedupe": step.slots * KAFKA_SLOT_BYTES,
            "loadFactor": step.load_factor,
        }
        try:
            cleaning = replace(cleaning, stats=oracle.clean(**request))
        except OracleError as error:
            cleaning = replace(cleaning, error=f"{error.kind}: {error.message}")
    oracle.run_delayed()
    oracle.close()
    return cleaning
