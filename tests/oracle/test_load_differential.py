"""Kafka's loader and compactd's on the same damaged directories: the same log, and the same files once it is closed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from compactd.config.errors import CompactdError
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.loader import load_log
from compactd.storage.orderly_close import close_orderly
from tests.oracle.driver import Answer, Oracle, OracleError
from tests.oracle.load_damage import Damage, apply, damages
from tests.oracle.ours import topic_config
from tests.oracle.scenario import EPOCH_MS, Writer
from tests.strategies import KINDS, TIMEOUT, examples, write_configs

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

_DEFAULTS = {
    "cleanup.policy": "delete",
    "message.timestamp.after.max.ms": 2**62,
    "segment.index.bytes": 4096,
    "segment.ms": 2**62,
}


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Any], dict[str, object]]:
    """Operations and the settings they are written with."""
    pieces = draw(st.lists(KINDS[draw(st.sampled_from(list(KINDS)))], min_size=1, max_size=10))
    config = draw(write_configs)
    # Preallocation and tiny indexes belong to the writer; a full index while recovering is an error of Kafka's own.
    config.pop("segment.index.bytes", None)
    config.pop("preallocate", None)
    return [operation for piece in pieces for operation in piece], {**_DEFAULTS, **config}


@settings(max_examples=examples(600), suppress_health_check=list(HealthCheck))
@given(
    log=logs(),
    done=damages,
    clean=st.booleans(),
    orderly=st.booleans(),
    recovery=st.integers(0, 110),
    start=st.sampled_from([0, 0, 0, 30, 100, 130]),
    later=st.sampled_from([0, 1000, 86_400_001]),
)
def test_the_same_log_and_files(
    oracle: Oracle,
    fast_dir: Path,
    log: tuple[list[Any], dict[str, object]],
    done: list[Damage],
    clean: bool,
    orderly: bool,
    recovery: int,
    start: int,
    later: int,
) -> None:
    operations, config = log
    shutil.rmtree(fast_dir / "work", ignore_errors=True)
    source = fast_dir / "work" / "source" / "t-0"
    source.mkdir(parents=True)
    now_ms = _write(oracle, source, operations, config, orderly or clean) + later
    end = oracle.open(_copy(source, "end"), config, now=now_ms, cleanShutdown=False)["logEndOffset"]
    oracle.reset()
    bases = sorted(int(path.stem) for path in source.glob("*.log"))
    recovery_point = end * recovery // 100
    log_start = end * start // 100
    floor = max((base for base in bases if base <= recovery_point), default=0)
    for damage in done:
        apply(source, damage, floor, clean)
    note(f"clean {clean}, recovery point {recovery_point}, log start {log_start}, end {end}, bases {bases}")
    theirs, mine = _copy(source, "kafka"), _copy(source, "ours")
    checkpoints: dict[str, Any] = {"recoveryPoint": recovery_point, "logStartOffset": log_start}
    try:
        state = oracle.open(theirs, config, now=now_ms, cleanShutdown=clean, **checkpoints)
    except OracleError as error:
        event(f"Kafka: {error.kind}")
        oracle.reset()
        state = None
    try:
        loaded = load_log(
            mine,
            topic_config(config),
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start,
            now_ms=now_ms,
        )
    except CompactdError:
        if state is not None:
            raise
        return
    if state is None:
        return
    event("loaded by both")
    assert _state(loaded) == _expected(state, loaded), [str(action) for action in loaded.actions]
    producers = oracle.producers()["producers"]
    # Kafka forgets the expired ones later, by a task of its own.
    ours = loaded.producers.active_producers(-(2**62))
    assert {p["pid"]: (p["epoch"], p["lastDataOffset"]) for p in producers} == {
        pid: (active.producer_epoch, active.last_data_offset) for pid, active in ours.items()
    }
    oracle.close()
    close_orderly(loaded)
    assert _files(mine) == _files(theirs), [str(action) for action in loaded.actions]


def _write(oracle: Oracle, directory: Path, operations: list[Any], config: dict[str, object], orderly: bool) -> int:
    writer = Writer(EPOCH_MS, int(str(config.get("internal.segment.bytes", 1 << 20))))
    oracle.open(directory, config, now=writer.now_ms)
    oracle.many(writer.requests(operations))
    if orderly:
        oracle.close()
    oracle.reset()
    return writer.now_ms


def _copy(source: Path, name: str) -> Path:
    target = source.parent.parent / name / source.name
    shutil.copytree(source, target)
    return target


def _state(loaded: LoadedLog) -> dict[str, object]:
    return {
        "start": loaded.log_start_offset,
        "end": loaded.log_end_offset,
        "stable": loaded.producers.last_stable_offset(loaded.log_end_offset, loaded.log_start_offset),
        "segments": [(segment.base_offset, segment.size) for segment in loaded.segments],
        "timestamps": [segment.max_timestamp for segment in loaded.segments if segment.max_timestamp >= 0],
    }


def _expected(state: Answer, loaded: LoadedLog) -> dict[str, object]:
    segments = state["segments"]
    # Without a timestamp it is the file's time, that of the copy or of the cut.
    stamped = {segment.base_offset for segment in loaded.segments if segment.max_timestamp >= 0}
    stable = loaded.producers.last_stable_offset(loaded.log_end_offset, loaded.log_start_offset)
    # Where the log starts inside an open transaction Kafka names the start of the batch that holds the log start or, in a
    # gap, of the one that follows it.
    if stable != loaded.log_start_offset:
        stable = state["lastStableOffset"]
    return {
        "start": state["logStartOffset"],
        "end": state["logEndOffset"],
        "stable": stable,
        "segments": [(segment["baseOffset"], segment["size"]) for segment in segments],
        "timestamps": [s["largestTimestamp"] for s in segments if s["baseOffset"] in stamped],
    }


def _files(directory: Path) -> dict[str, bytes]:
    """Indexes that wait to be removed are left out: Kafka rebuilt some of them first."""
    return {
        path.name: path.read_bytes() for path in sorted(directory.iterdir()) if not path.name.endswith("index.deleted")
    }
