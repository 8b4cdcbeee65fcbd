"""A deleted key never comes back, and no value is lost: whatever is written, however small the map, after every swap.

Field report A6: a tombstone may only go when no older record of its key can be left. The rounds do that without looking:
a tombstone goes at the earliest in the round after one that mapped it, and that one dropped every older record of its key.
The property below is that argument put to the test; the scenarios are the ways in which it could fail.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compactd.config.settings import TopicConfig
from compactd.storage.cleaning.cleanable import log_to_clean, offsets_to_clean
from compactd.storage.kernel.interface import Kernel
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import aborted_in, batches_of, pairs_in
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import ShortLog
from tests.strategies import examples

RETENTION_MS = 1000

Values = dict[bytes, bytes]


@dataclass(frozen=True)
class Put:
    """A batch of one record; a None value deletes the key."""

    key: str
    value: int | None
    pid: int = -1
    magic: int = 2


@dataclass(frozen=True)
class End:
    pid: int
    commit: bool


@dataclass(frozen=True)
class Roll:
    pass


@dataclass(frozen=True)
class Round:
    """A round of cleaning with so many keys in the map, so much later."""

    slots: int = 100
    advance_ms: int = 0


Step = Put | End | Roll | Round

keys = st.sampled_from(["a", "b", "c", "d"])
values = st.one_of(st.none(), st.integers(0, 9))
rounds = st.builds(
    Round, st.sampled_from([100, 3, 4, 5, 6]), st.sampled_from([0, RETENTION_MS - 1, RETENTION_MS, 86_400_001])
)
steps = st.one_of(
    st.builds(Put, keys, values),
    st.builds(Put, keys, values, st.sampled_from([5, 6])),
    st.builds(Put, keys, values, magic=st.sampled_from([0, 1])),
    st.builds(End, st.sampled_from([5, 6]), st.booleans()),
    st.just(Roll()),
    rounds,
)


@dataclass
class Model:
    """What a reader of committed data should find."""

    written: list[tuple[Put, bool]] = field(default_factory=list)
    #: Positions in `written` of each open transaction.
    open: dict[int, list[int]] = field(default_factory=dict)

    def put(self, put: Put) -> None:
        self.written.append((put, put.pid < 0))
        if put.pid >= 0:
            self.open.setdefault(put.pid, []).append(len(self.written) - 1)

    def end(self, end: End) -> None:
        for position in self.open.pop(end.pid, []):
            self.written[position] = (self.written[position][0], end.commit)

    def values(self) -> Values:
        found: Values = {}
        for put, visible in self.written:
            if visible:
                found.pop(put.key.encode(), None)
                if put.value is not None:
                    found[put.key.encode()] = str(put.value).encode()
        return found


def committed(directory: Path) -> Values:
    """What a reader of committed data finds: by the markers, and by the transaction indexes, which must agree."""
    batches = list(batches_of(directory))
    aborted = aborted_in(directory)
    found: Values = {}
    for number, batch in enumerate(batches):
        header = batch.header
        if header.is_control:
            continue
        if header.is_transactional and batch.records():
            ends = (b for b in batches[number:] if b.header.is_control and b.header.producer_id == header.producer_id)
            marker = next(ends, None)
            if marker is None:
                continue  # open
            is_aborted = marker.records()[0].key == b"\0\0\0\0"
            indexed = any(
                pid == header.producer_id and first <= header.last_offset <= last for pid, first, last, _ in aborted
            )
            assert indexed == is_aborted, f"the transaction index contradicts the marker of {header.base_offset}"
            if is_aborted:
                continue
        for record in batch.records():
            assert record.key is not None
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
    return found


def play(directory: Path, config: TopicConfig, sequence: list[Step], kernel: Kernel) -> list[int]:
    """Writes and cleans as told, and compares with the model after every swap; the next dirty offset of each round."""
    log, model, checkpoint, ends = ShortLog(directory, config), Model(), None, []

    def agree(_: Any = None) -> None:
        assert committed(directory) == model.values()

    for step in sequence:
        match step:
            case Put():
                model.put(step)
                log.append((step.key, step.value), pid=step.pid, transactional=step.pid >= 0, magic=step.magic)
            case End():
                model.end(step)
                (log.commit if step.commit else log.abort)(step.pid)
            case Roll():
                log.roll()
            case Round():
                log.now_ms += step.advance_ms
                partition = load(log, now_ms=log.now_ms, expiration_ms=86_400_000)
                offsets = offsets_to_clean(partition, checkpoint, log.now_ms)
                dirty = log_to_clean(
                    partition, offsets.first_dirty_offset, offsets.first_uncleanable_offset, log.now_ms
                )
                if dirty.cleanable_bytes:
                    cleaned = clean(
                        log,
                        kernel,
                        offsets.first_dirty_offset,
                        offsets.first_uncleanable_offset,
                        now_ms=log.now_ms,
                        slots=step.slots,
                        partition=partition,
                        before_swap=agree,
                    )
                    assert cleaned.next_dirty > offsets.first_dirty_offset, "every round gets on"
                    checkpoint = cleaned.next_dirty
                    ends.append(checkpoint)
                agree()
    return ends


#: An abort behind which the second round begins to read, then a delete by the same producer: see the test of that name.
OLD_ABORT: list[Step] = [
    Put("k", 1),
    Put("x", 1, pid=5),
    End(5, commit=False),
    Put("f", 1),
    Put("g", 1),
    Put("k", None, pid=5),
    End(5, commit=True),
    Roll(),
    Round(slots=3),
    Round(slots=3),
    Put("h", 1),
    Roll(),
    Round(slots=3, advance_ms=RETENTION_MS),
    Put("h", 2),
    Roll(),
    Round(slots=3, advance_ms=RETENTION_MS),
]
OLD_ABORT_TOPIC = {"segment_bytes": 1 << 20, "index_interval_bytes": 0, "delete_retention_ms": RETENTION_MS}


@settings(max_examples=examples(600), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sequence=st.lists(steps, max_size=40),
    final=st.lists(rounds, min_size=3, max_size=3),
    topic=st.fixed_dictionaries(
        {
            # Every segment a group of its own, a few a group, all one group.
            "segment_bytes": st.sampled_from([1, 400, 1 << 20]),
            "index_interval_bytes": st.sampled_from([0, 4096]),
            "delete_retention_ms": st.sampled_from([RETENTION_MS, 0]),
        }
    ),
)
@example(
    sequence=OLD_ABORT,
    final=[],
    topic={"segment_bytes": 1 << 20, "index_interval_bytes": 0, "delete_retention_ms": RETENTION_MS},
)
def test_latest_committed_values_never_change(
    fast_dir: Path, kernel: Kernel, sequence: list[Step], final: list[Round], topic: dict[str, int]
) -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), **topic)
    more: list[Step] = []
    for last in final:
        more += [Put("d", 7), Roll(), last]
    ends: list[Step] = [End(5, commit=True), End(6, commit=False), Roll()]
    shutil.rmtree(fast_dir / "t-0", ignore_errors=True)
    play(fast_dir / "t-0", config, [*sequence, *ends, *more], kernel)


def test_an_abort_before_the_first_dirty_offset_hides_no_later_delete(fast_dir: Path, kernel: Kernel) -> None:
    """Kafka 4.4.0 brings k=1 back here: its pass one takes the committed delete for aborted, since it is told of an abort
    whose marker lies before the batches that it reads. So the delete is not mapped, k=1 stays below it, and when the
    tombstone's time has come it goes alone."""
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), **OLD_ABORT_TOPIC)
    assert play(fast_dir / "t-0", config, OLD_ABORT, kernel) == [4, 7, 8, 9]
    assert pairs_in(fast_dir / "t-0") == [("f", "1", 3), ("g", "1", 4), ("h", "2", 8)]


def test_a_tombstone_beyond_a_full_map_starts_its_time_but_stays_until_mapped(
    make_log: LogMaker, kernel: Kernel
) -> None:
    """Its batch gets a horizon in a round that does not reach it. When its time is over it goes with what it deletes."""
    log = make_log(delete_retention_ms=RETENTION_MS)
    log.append(("k", 1))
    log.append(("f", 1))
    log.append(("g", 1))
    log.append(("k", None))
    log.roll()
    first = clean(log, kernel, now_ms=NOW_MS, slots=3)
    assert (first.next_dirty, first.mapped.full) == (2, True)
    assert ("k", None, 3) in pairs_in(log.directory) and ("k", "1", 0) in pairs_in(log.directory)
    # Long after the horizon: the tombstone is mapped now, so k=1 goes; both in one round.
    second = clean(log, kernel, 2, now_ms=NOW_MS + 10 * RETENTION_MS, slots=4)
    assert second.next_dirty == 4
    assert pairs_in(log.directory) == [("f", "1", 1), ("g", "1", 2)]
