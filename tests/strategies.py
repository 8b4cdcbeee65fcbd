"""Hypothesis strategies: logs and rounds of cleaning, as tests.oracle.scenario has them.

Everything is drawn from few and telling values: a handful of keys so that they meet again, clocks that step just
before, onto and just past a delete horizon, maps of two to five keys so that a round ends in the middle of a batch.
The first value of each choice is the plainest one, so that failing examples shrink to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.oracle.scenario import (
    DAY_MS,
    Append,
    Clean,
    DeleteRecords,
    Empty,
    End,
    Fence,
    Operation,
    Payload,
    Rec,
    Roll,
    Round,
    Scenario,
    Tick,
)

#: How many times CI's number of examples a profile runs (tests/conftest.py registers the profiles).
SCALES = {"quick": 0.05, "default": 0.4, "ci": 1.0, "soak": 20.0}


def profile() -> str:
    """HYPOTHESIS_PROFILE, or "ci" where CI is set, or "default"."""
    return os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")


def examples(usual: int) -> int:
    """The number of examples for a test that runs `usual` of them in CI."""
    return max(1, round(usual * SCALES.get(profile(), 1.0)))


#: Seconds that a test over many examples may take; none where soaking.
TIMEOUT = 0 if profile() == "soak" else 900

HOUR_MS = 3_600_000
BIG_GAP = 2**31 - 3

keys = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"]),
    st.sampled_from([b"", None]),
    # The bytes of a COMMIT marker's key, and one longer than a hash.
    st.sampled_from([b"\x00\x00\x00\x01", b"k" * 200]),
    st.binary(max_size=3),
)
payloads = st.one_of(
    st.just(Payload(3)),
    st.none(),
    st.builds(Payload, st.sampled_from([0, 1, 20, 100]), st.sampled_from([0, 1, 2])),
    # Past snappy's chunks of 32 KiB and lz4's blocks of 64 KiB, only now and then: such an example is slow.
    st.builds(Payload, st.sampled_from([1000, 3000]), st.sampled_from([0, 3])),
)
big_payloads = st.builds(Payload, st.sampled_from([40_000, 70_000]), st.sampled_from([0, 4]))
headers = st.one_of(
    st.just(()),
    st.lists(
        st.tuples(st.sampled_from(["", "h", "trace-id", "\u00e9"]), st.sampled_from([b"x", b"", None])), max_size=2
    ).map(tuple),
)
#: (ts, absolute): mostly near the clock, sometimes none at all, the epoch, far away in both directions.
timestamps = st.one_of(
    st.just((0, False)),
    st.sampled_from([-1, 1, -HOUR_MS, HOUR_MS]).map(lambda ms: (ms, False)),
    st.sampled_from([-8 * DAY_MS, 40 * DAY_MS]).map(lambda ms: (ms, False)),
    st.sampled_from([-1, 0, 1, 2**60]).map(lambda ms: (ms, True)),
)


@st.composite
def records(draw: st.DrawFn, values: st.SearchStrategy[Payload | None] = payloads, skips: bool = False) -> Rec:
    ts, absolute = draw(timestamps)
    skip = draw(st.sampled_from([0, 0, 1, 5])) if skips else 0
    return Rec(draw(keys), draw(values), ts, absolute, draw(headers), skip)


producers = st.sampled_from([0, 0, 1, 2])
codecs = st.sampled_from(["none", "none", "lz4", "zstd", "gzip", "snappy"])
gaps = st.one_of(st.none(), st.none(), st.sampled_from([0, 1, 7, 1000]), st.just(BIG_GAP))


@st.composite
def plain_batches(draw: st.DrawFn) -> Append:
    gap = draw(gaps)
    return Append(
        tuple(draw(st.lists(records(skips=gap is not None), min_size=1, max_size=5))),
        codec=draw(codecs),
        log_append_time=gap is not None and draw(st.booleans()),
        gap=gap,
        new_leader=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def legacy_batches(draw: st.DrawFn) -> Append:
    gap = draw(gaps)
    return Append(
        tuple(draw(st.lists(records(), min_size=1, max_size=4))),
        codec=draw(st.sampled_from(["none", "gzip", "lz4", "snappy"])),
        magic=draw(st.sampled_from([0, 1])),
        gap=gap,
        log_append_time=gap is not None and draw(st.booleans()),
    )


@st.composite
def producer_batches(draw: st.DrawFn, transactional: st.SearchStrategy[bool]) -> Append:
    gap = draw(gaps)
    return Append(
        tuple(draw(st.lists(records(skips=gap is not None), min_size=1, max_size=3))),
        codec=draw(codecs),
        producer=draw(producers),
        transactional=draw(transactional),
        gap=gap,
        new_leader=draw(st.sampled_from([False, False, False, False, True])),
    )


big_batches = st.builds(
    Append,
    st.lists(records(values=st.one_of(big_payloads, payloads)), min_size=1, max_size=3).map(tuple),
    codec=st.sampled_from(["none", "lz4", "zstd", "gzip", "snappy"]),
)

ends = st.builds(End, producers, st.booleans(), st.sampled_from([False, False, True]))
ticks = st.builds(Tick, st.sampled_from([1, 1000, HOUR_MS, DAY_MS + 1]))
empties = st.builds(Empty, st.sampled_from([1, 4]), st.one_of(st.none(), producers), st.booleans())
fences = st.builds(Fence, producers)
deletions = st.builds(DeleteRecords, st.sampled_from([10, 50, 90]))


@st.composite
def transactions(draw: st.DrawFn) -> tuple[Operation, ...]:
    """A transaction from its first batch to its marker, sometimes over several segments, sometimes left open."""
    producer = draw(producers)
    batches = draw(st.lists(producer_batches(st.just(True)), min_size=1, max_size=3))
    between = draw(st.sampled_from([(), (), (Roll(),)]))
    commit, abort = End(producer, True), End(producer, False)
    # A second marker, of a transaction that had no data here, is needless from its first round on.
    end = draw(st.sampled_from([(commit,), (abort,), (abort,), (), (commit, commit), (commit, abort), (abort, commit)]))
    written = [replace(batch, producer=producer) for batch in batches]
    return (*written[:1], *between, *written[1:], *end)


def _one(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Operation, ...]]:
    return strategy.map(lambda operation: (operation,))


_roll = _one(st.just(Roll()))
_tick = _one(ticks)
_plain = _one(plain_batches())
_legacy = _one(legacy_batches())

#: Kinds of logs; each draws pieces of one or several operations.
KINDS: dict[str, st.SearchStrategy[tuple[Operation, ...]]] = {
    "plain": st.one_of(_plain, _plain, _plain, _roll, _tick),
    "transactional": st.one_of(
        transactions(),
        transactions(),
        _one(producer_batches(st.sampled_from([True, True, False]))),
        _one(ends),
        _roll,
        _plain,
        _tick,
        _one(fences),
    ),
    "idempotent": st.one_of(_one(producer_batches(st.just(False))), _roll, _plain, _tick, _one(fences), _one(empties)),
    "legacy": st.one_of(_legacy, _legacy, _plain, _roll, _tick),
    "mixed": st.one_of(
        _plain,
        _one(producer_batches(st.booleans())),
        _one(ends),
        transactions(),
        _roll,
        _legacy,
        _one(empties),
        _tick,
        _one(fences),
        _one(deletions),
        _one(big_batches),
    ),
}

write_configs = st.fixed_dictionaries(
    {
        "internal.segment.bytes": st.sampled_from([1 << 20, 300, 600, 1500, 6000]),
        "index.interval.bytes": st.sampled_from([4096, 0, 1, 100]),
    },
    optional={
        "segment.index.bytes": st.just(48),
        "message.timestamp.type": st.just("LogAppendTime"),
        "preallocate": st.just(True),
        "segment.ms": st.sampled_from([1000, DAY_MS]),
    },
)
clean_configs = st.fixed_dictionaries(
    {
        "internal.segment.bytes": st.sampled_from([1 << 20, 1, 300, 1000, 5000]),
        "index.interval.bytes": st.sampled_from([4096, 0, 1, 100]),
        "delete.retention.ms": st.sampled_from([DAY_MS, 0, 1000]),
    },
    optional={
        "segment.index.bytes": st.sampled_from([4096, 120, 72, 48]),
        "preallocate": st.just(True),
        "min.compaction.lag.ms": st.sampled_from([1, HOUR_MS]),
    },
)
cleans = st.builds(
    Clean,
    # Kafka wants room for two keys at least.
    slots=st.sampled_from([1000, 1000, 3, 4, 6, 12]),
    load_factor=st.sampled_from([0.9, 0.75, 1.0]),
    lost_checkpoint=st.sampled_from([False, False, False, True]),
    high_watermark_back=st.sampled_from([0, 0, 0, 1, 3]),
    config=st.one_of(
        st.just({}), st.just({}), st.fixed_dictionaries({"internal.segment.bytes": st.sampled_from([1 << 20, 200])})
    ),
    full_group=st.sampled_from([0, 0, 0, 2, 3]),
    full_index=st.sampled_from([0, 0, 0, 1, 2, 3]),
    index_slack=st.sampled_from([0, 8, 12, 24]),
)
#: Onto, around and past the horizons that delete.retention.ms gives; past the day after which a producer is forgotten.
advances = st.sampled_from([0, 1, 999, 1000, 1001, DAY_MS - 1, DAY_MS, DAY_MS + 1, 10 * DAY_MS])
mtimes = st.one_of(
    st.just(()), st.lists(st.sampled_from([0, 500, 1000, DAY_MS, 2 * DAY_MS]), min_size=1, max_size=3).map(tuple)
)


@st.composite
def scenarios(draw: st.DrawFn, max_rounds: int = 4, kinds: Sequence[str] = tuple(KINDS)) -> Scenario:
    """A log of one of the `kinds` with one to `max_rounds` rounds of writing and cleaning; later ones may write nothing."""
    operations = KINDS[draw(st.sampled_from(list(kinds)))]
    first = draw(st.lists(operations, min_size=1, max_size=14))
    later = draw(st.lists(st.one_of(st.just([]), st.lists(operations, max_size=6)), max_size=max_rounds - 1))
    rounds = []
    for pieces in [first, *later]:
        written = [operation for piece in pieces for operation in piece]
        # Without a roll at the end most of what was written would sit in the active segment.
        rolls = draw(st.sampled_from([(Roll(),), (Roll(),), ()])) if written else ()
        clean = draw(cleans)
        if not written:
            # Nothing new is dirty: only reading all of it again cleans anything.
            clean = replace(clean, lost_checkpoint=True)
        rounds.append(Round((*written, *rolls), clean, draw(advances), draw(mtimes)))
    write_config = draw(write_configs)
    if any(isinstance(operation, Append) and operation.magic < 2 for step in rounds for operation in step.operations):
        # A message set is several batches: Kafka looks for room in the index once, then fails in the middle of it.
        write_config.pop("segment.index.bytes", None)
    return Scenario(tuple(rounds), write_config, draw(clean_configs))
