"""Damaged and made-up bytes: an error with a reason, never another exception, never much memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.storage.metadata import decode_record
from compactd.storage.metadata.offsets import OFFSETS_RECORDS
from compactd.storage.metadata.schema import MAX_VALUES, Schema, array, decode, read_uvarint
from compactd.storage.records.varint import MalformedError
from tests.storage.metadata.golden import every_value, golden

TOPICS = ("__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state")
GOLDEN = every_value()


@given(
    topic=st.sampled_from(TOPICS),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=80),
    control=st.booleans(),
)
def test_any_bytes_are_decoded_or_give_an_error(
    topic: str, key: bytes | None, value: bytes | None, control: bool
) -> None:
    decoded = decode_record(topic, key, value, control=control)
    assert decoded is not None
    assert ("error" in decoded) != ("type" in decoded)


@given(data=st.data())
def test_real_records_with_changed_bytes_are_decoded_or_give_an_error(data: st.DataObject) -> None:
    value = bytearray(data.draw(st.sampled_from(GOLDEN)))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    number = data.draw(st.sampled_from(sorted(OFFSETS_RECORDS)))
    key = number.to_bytes(2, "big") + b"\0\1g\0\1m"
    for decoded in (
        decode_record("__cluster_metadata", None, cut),
        decode_record("__consumer_offsets", key, cut),
        decode_record("__transaction_state", b"\0\0\0\1t", cut),
    ):
        assert decoded is not None
        assert ("error" in decoded) != ("type" in decoded)


@pytest.mark.parametrize("name", ["topic gamma", "partition v2", "delegationtoken", "scram 256", "quota user"])
def test_a_record_that_is_cut_off_anywhere_gives_an_error(name: str) -> None:
    value = golden(name)
    for size in range(len(value)):
        decoded = decode_record("__cluster_metadata", None, value[:size])
        assert decoded is not None
        assert decoded["error"]


def test_a_huge_count_takes_no_memory() -> None:
    key = b"\0\7\0\1g\0\1m"
    value = b"\0\0" + b"\xff\xff\xff\xff\x0f" + bytes(100)
    tracemalloc.start()
    try:
        decoded = decode_record("__consumer_offsets", key, value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded is not None
    assert "needs 4294967294 bytes" in decoded["error"]
    assert peak < 1 << 20


def test_a_count_that_fits_the_bytes_but_no_real_record_is_refused() -> None:
    schema = Schema("X", (array("texts", "str"),), flexible_since=None)
    count = MAX_VALUES + 1
    data = count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(MalformedError, match="more than 1000000 values"):
        decode(schema, 0, data, 0)


def test_tags_out_of_order_or_of_another_size_are_refused() -> None:
    begin = b"\x01\x17\x00"
    for body, reason in (
        (b"\x02\x01\x01x\x00\x01\x00", "comes after tag 1"),
        (b"\x01\x00\x03\x02ab", "has 3 bytes, but its content has another size"),
        (b"\x01\x00\x7f\x02a", "needs 127 bytes"),
    ):
        decoded = decode_record("__cluster_metadata", None, begin + body)
        assert decoded is not None
        assert reason in decoded["error"]


def test_unknown_tags_are_passed_over() -> None:
    decoded = decode_record("__cluster_metadata", None, b"\x01\x17\x00\x02\x00\x02\x02a\x09\x03xyz")
    assert decoded is not None
    assert decoded["data"] == {"name": "a"}


def test_unsigned_varints() -> None:
    assert read_uvarint(b"\xff\xff\xff\xff\x0f", 0) == (0xFFFFFFFF, 5)
    assert read_uvarint(b"x\x80\x01", 1) == (128, 3)
    for data in (b"", b"\x80", b"\xff\xff\xff\xff\x1f", b"\x80" * 6):
        with pytest.raises(MalformedError):
            read_uvarint(data, 0)
