from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("604800000", 604_800_000),
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        (" 3 d ", 259_200_000),
    ],
)
def test_a_duration_is_read_in_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("128MiB", 128 << 20),
        ("1GiB", 1 << 30),
        ("4KiB", 4096),
        ("5kB", 5000),
        ("7B", 7),
    ],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "  ", "d", "7days", "1.5", "7d!", "--1", "1e3", "0x10", "1_000", "7D", "٣"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["128M", "1G", "4k", "1mib", "MiB"])
def test_ambiguous_and_unknown_size_units_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|unit"):
        parse_size(text)


def test_what_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of milliseconds"):
        parse_duration("0.5ms")
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_size("0.3KiB")


@given(st.integers(0, 1 << 62))
def test_what_is_printed_reads_back(number: int) -> None:
    assert parse_duration(format_duration(number)) == number
    assert parse_size(format_size(number)) == number


def test_the_largest_unit_that_fits_is_printed() -> None:
    assert format_duration(604_800_000) == "7d"
    assert format_duration(1500) == "1500ms"
    assert format_size(1 << 30) == "1GiB"
    assert format_size(1_048_588) == "1048588B"
