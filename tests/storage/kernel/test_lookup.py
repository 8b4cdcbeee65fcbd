"""Index lookups and the search for a batch: native and reference agree, on damaged bytes too."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.storage.kernel import lookup
from compactd.storage.kernel.reference import lookup as reference
from compactd.storage.kernel.reference.lookup import DAMAGED, ELSEWHERE, FOUND, GO_ON
from compactd.storage.records.builder import build_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from tests.strategies import examples

needs_native = pytest.mark.skipif(lookup.find_batch is reference.find_batch, reason="the native kernel is not built")


@needs_native
@settings(max_examples=examples(200), deadline=None)
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40),
    target=st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([-(2**63), 2**63 - 1])),
    extra=st.binary(max_size=7),
    in_order=st.booleans(),
)
def test_floor_entry(values: list[int], target: int, extra: bytes, in_order: bool) -> None:
    ordered = sorted(values) if in_order else values
    narrow = b"".join(struct.pack(">ii", value, 7) for value in ordered) + extra
    assert lookup.floor_entry(bytearray(narrow), 8, 0, 4, target) == reference.floor_entry(narrow, 8, 0, 4, target)
    wide = b"".join(struct.pack(">qi", value << 20, value) for value in ordered) + extra
    assert lookup.floor_entry(wide, 12, 0, 8, target) == reference.floor_entry(wide, 12, 0, 8, target)
    found = lookup.floor_entry(wide, 12, 8, 4, target)
    assert found == reference.floor_entry(wide, 12, 8, 4, target)
    if in_order:
        assert found == sum(value <= target for value in ordered) - 1


def some_batches() -> bytes:
    data, offset = b"", 0
    for count, gap, magic in ((1, 0, 2), (3, 2, 2), (1, 0, 1), (2, 0, 0), (1, 5, 2)):
        made = [Record(offset + n, 5, b"k", b"v" * n) for n in range(count)]
        if magic == 2:
            data += build_batch(made, base_offset=offset, last_offset=offset + count - 1 + gap)
        else:
            data += build_message_set(made, magic)
        offset += count + gap
    return data


@needs_native
@settings(max_examples=examples(300), deadline=None)
@given(
    length=st.integers(0, 600),
    offset=st.integers(-1, 20),
    expected=st.one_of(st.none(), st.integers(0, 3)),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 300), st.integers(0, 255))),
    more=st.integers(0, 100),
)
def test_find_batch(length: int, offset: int, expected: int | None, damage: tuple[int, int] | None, more: int) -> None:
    data = bytearray(some_batches()[:length])
    if damage is not None and damage[0] < len(data):
        data[damage[0]] = damage[1]
    left = len(data) + more
    found = lookup.find_batch(bytes(data), left, offset, expected)
    assert found == reference.find_batch(bytes(data), left, offset, expected)


@pytest.mark.parametrize("find", [reference.find_batch, lookup.find_batch])
def test_every_outcome(find: object) -> None:
    data = some_batches()
    assert callable(find)
    assert find(data, len(data), 0, None)[:2] == (FOUND, 0)
    assert find(data, len(data), 0, 0)[:2] == (FOUND, 0)
    # An older broker's entry for several batches leads to the first of them.
    assert find(data, len(data), 9, 9)[3:] == find(data, len(data), 9, None)[3:]
    second = find(data, len(data), 1, None)[1]
    assert find(data[second:], len(data) - second, 5, 4)[0] == ELSEWHERE
    assert find(data[second:], len(data) - second, 5, 5)[:2] == (FOUND, 0)
    assert find(data, len(data), 5, None)[3:] == (1, 5)  # inside the gap behind offset 3
    assert find(data, len(data), 99, None)[:2] == (GO_ON, len(data))
    assert find(data[:100], len(data), 5, None)[0] in (FOUND, GO_ON)
    assert find(data, 10, 0, None)[0] == DAMAGED
    assert find(b"\xff" * 80, 80, 0, None)[0] == DAMAGED
    assert find(b"", 80, 0, None)[0] == GO_ON
