"""The check of an incoming batch: the native one and its twin in Python agree, on whole batches and on damaged ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.config.settings import TopicConfig
from compactd.storage.kernel.reference.validate import validate_batch as reference
from compactd.storage.kernel.timestamps import record_at_time, search
from compactd.storage.kernel.validating import make_admission
from compactd.storage.kernel.validating import validate_batch as chosen
from compactd.storage.producer_append import Origin
from compactd.storage.records.batch import Batch, read_header
from compactd.storage.records.builder import build_batch
from compactd.storage.records.crc import crc32c
from compactd.storage.records.record import Record
from compactd.storage.validator import AppendRules, admission_of, read_batches_of, validate_for_leader
from tests.strategies import examples

NOW = 1_700_000_000_000

pytestmark = pytest.mark.skipif(chosen is reference, reason="the native kernel is not built")

records = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=5)),
        st.one_of(st.none(), st.binary(max_size=60)),
        st.sampled_from([NOW, NOW - 5, NOW + 5, NOW + 10**10, -1, 0]),
        st.lists(
            st.tuples(st.sampled_from(["", "h", "\u00e9"]), st.one_of(st.none(), st.binary(max_size=3))), max_size=2
        ),
    ),
    min_size=1,
    max_size=5,
)


def made(drawn: list[Any], codec: int) -> bytearray:
    batch = [Record(n, time, key, value, tuple(headers)) for n, (key, value, time, headers) in enumerate(drawn)]
    return bytearray(build_batch(batch, base_offset=0, codec=codec))


def answer(check: Any, *arguments: Any) -> Any:
    """The result, or that it was refused; the words of the two differ."""
    try:
        return check(*arguments)
    except ValueError:
        return "refused"


@settings(max_examples=examples(400), deadline=None)
@given(
    drawn=records,
    codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
    append_time=st.sampled_from([None, NOW]),
    keys=st.booleans(),
    window=st.sampled_from([(NOW - 5, NOW + 5), (-(2**63), 2**63 - 1), (0, 0)]),
    largest=st.sampled_from([2**31, 20]),
    damage=st.one_of(st.none(), st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))),
    count=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_both_answer_the_same(
    drawn: list[Any],
    codec: int,
    append_time: int | None,
    keys: bool,
    window: tuple[int, int],
    largest: int,
    damage: tuple[float, int] | None,
    count: int,
) -> None:
    data = made(drawn, codec)
    if damage is not None:
        data[61 + int(damage[0] * (len(data) - 61))] ^= damage[1]
        data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    header = read_header(data, 0)
    arguments = (
        header.crc,
        codec,
        header.record_count + count,
        header.base_timestamp,
        append_time,
        keys,
        *window,
        largest,
    )
    theirs, ours = answer(reference, data, *arguments), answer(chosen, data, *arguments)
    if theirs != ours and codec in (2, 3, 4):
        # Libraries differ in what they make of damage; a refusal on one side is enough there.
        assert damage is not None and "refused" in (theirs, ours)
        return
    assert theirs == ours
    assert chosen(data, header.crc ^ 1, *arguments[1:]) == (False, -1, False, [])


@settings(max_examples=examples(200), deadline=None)
@given(
    drawn=records,
    codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
    append_time=st.sampled_from([None, NOW]),
    base=st.sampled_from([0, 1000]),
    timestamp=st.sampled_from([-1, 0, NOW - 5, NOW, NOW + 1, NOW + 10**10, NOW + 10**11]),
    first=st.integers(-1, 6),
)
def test_a_lookup_by_time_finds_the_same_record(
    drawn: list[Any], codec: int, append_time: int | None, base: int, timestamp: int, first: int
) -> None:
    batch = [Record(base + n, time, key, value, tuple(headers)) for n, (key, value, time, headers) in enumerate(drawn)]
    data = build_batch(batch, base_offset=base, codec=codec, log_append_time_ms=append_time)
    whole = Batch(read_header(data, 0), data)
    assert record_at_time(whole, timestamp, base + first) == search(whole, timestamp, base + first)


@settings(max_examples=examples(300), deadline=None)
@given(
    drawn=records,
    codec=st.sampled_from([0, 1, 3, 4]),
    topic=st.fixed_dictionaries(
        {
            "cleanup.policy": st.sampled_from(["delete", "compact"]),
            "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
            "compression.type": st.sampled_from(["producer", "lz4"]),
            "max.message.bytes": st.sampled_from([1 << 20, 150]),
            "message.timestamp.after.max.ms": st.sampled_from([1000, 2**62]),
        }
    ),
    twist=st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(1, 255))),
    sealed=st.booleans(),
)
def test_the_short_cut_admits_what_the_long_way_takes_and_nothing_else(
    drawn: list[Any], codec: int, topic: dict[str, object], twist: tuple[int, int] | None, sealed: bool
) -> None:
    """Stamped alike, byte for byte; what the short cut leaves alone is unchanged."""
    config = TopicConfig.from_strings(topic)
    data = made(drawn, codec)
    if twist is not None:
        data[twist[0]] ^= twist[1]
        if sealed:
            data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    admission = admission_of(config)
    assert admission is not None
    short = bytearray(data)
    admitted = admission.admit(short, 1000, 7, NOW)
    if admitted is None:
        assert short == data
        return
    rules = AppendRules("t-0", config, Origin.CLIENT, NOW, 7, 1000)
    valid = validate_for_leader(data, read_batches_of(data, "t-0"), rules)
    assert bytes(valid.data) == bytes(short)
    [header] = valid.headers
    assert admitted == (
        header.last_offset,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
    )
    assert read_header(short, 0).crc == crc32c(memoryview(short)[21:])


def test_the_usual_batch_takes_the_short_cut() -> None:
    admission = make_admission(
        keys_required=True,
        append_time=False,
        before_ms=10,
        after_ms=10,
        largest_body=100,
        largest_batch=500,
        codec=None,
    )
    assert admission is not None
    data = made([(b"k", b"v", NOW, []), (b"k", None, NOW + 10, [])], 0)
    assert admission.admit(memoryview(data), 5, 3, NOW) == (6, NOW + 10, -1, -1, -1, False)
    with pytest.raises(BufferError):
        admission.admit(bytes(data), 5, 3, NOW)  # type: ignore[arg-type]
