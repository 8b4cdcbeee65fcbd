from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.storage.records.varint import MalformedError, read_varint, read_varlong, write_varint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (300, "d804"),
        (-(1 << 31), "ffffffff0f"),
    ],
)
def test_known_encodings(value: int, encoded: str) -> None:
    assert write_varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@settings(deadline=None)
@given(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_int32_round_trip(value: int, before: bytes, after: bytes) -> None:
    data = before + write_varint(value) + after
    assert read_varint(data, len(before)) == (value, len(data) - len(after))


@settings(deadline=None)
@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_int64_round_trip(value: int) -> None:
    data = write_varint(value)
    assert len(data) <= 10
    assert read_varlong(data, 0) == (value, len(data))


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_beyond_int64_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        write_varint(value)


def test_bits_beyond_the_width_are_dropped() -> None:
    assert read_varint(bytes.fromhex("ffffffff7f"), 0) == (-(1 << 31), 5)
    assert read_varlong(b"\xff" * 9 + b"\x7f", 0) == (-(1 << 63), 10)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_cut_off(data: bytes) -> None:
    with pytest.raises(MalformedError, match="past the end"):
        read_varint(data, 0)


def test_too_long() -> None:
    with pytest.raises(MalformedError, match="longer than 5"):
        read_varint(b"\x80" * 5 + b"\x00", 0)
    with pytest.raises(MalformedError, match="longer than 10"):
        read_varlong(b"\x80" * 10 + b"\x00", 0)
