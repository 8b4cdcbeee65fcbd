"""The transaction index (TransactionIndexTest; facts 2.8)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import CorruptFileError
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.transaction_index import collect_aborted, encode_transaction, read_transaction_index

GOLDEN = bytes.fromhex("0000 0000000000000005 0000000000000000 0000000000000002 0000000000000003")

#: Entries whose markers increase: (gap to the last marker, length, producer, how far the stable offset reaches).
transactions = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 9)), max_size=12
).map(lambda steps: list(_chain(steps)))


def _chain(steps: list[tuple[int, int, int, int]]) -> Iterator[AbortedTransaction]:
    marker = 10
    for gap, length, producer, stable in steps:
        marker += gap
        yield AbortedTransaction(producer, marker - length, marker, max(0, marker + 1 - stable))


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(data)
    return path


def test_golden(tmp_path: Path) -> None:
    entry = AbortedTransaction(producer_id=5, first_offset=0, last_offset=2, last_stable_offset=3)
    assert encode_transaction(entry) == GOLDEN
    assert len(GOLDEN) == 34
    assert read_transaction_index(written(tmp_path, GOLDEN)) == [entry]


def test_absent_and_empty(tmp_path: Path) -> None:
    assert read_transaction_index(tmp_path / "absent") == []
    assert read_transaction_index(written(tmp_path, b"")) == []


@given(transactions)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: list[AbortedTransaction]) -> None:
    path = written(tmp_path_factory.getbasetemp(), b"".join(map(encode_transaction, entries)))
    assert read_transaction_index(path, 0) == entries


@pytest.mark.parametrize(
    ("data", "reason", "position"),
    [
        (struct.pack(">hqqqq", 1, 5, 0, 2, 3), "entry 0 has version 1", 0),
        (GOLDEN + struct.pack(">hqqqq", -1, 5, 3, 4, 3), "entry 1 has version -1", 34),
        (GOLDEN + GOLDEN, "entry 1 ends at 2, not after 2", 34),
        (struct.pack(">hqqqq", 0, 5, 9, 8, 3), "entry 0 ends at 8, before its start 9", 0),
        (struct.pack(">hqqqq", 0, 5, -1, 8, 3), "entry 0 ends at 8, before its start -1", 0),
        (GOLDEN + GOLDEN[:20], "20 bytes are left after entry 1", 34),
        (b"\0", "1 bytes are left after entry 0", 0),
    ],
)
def test_damage(tmp_path: Path, data: bytes, reason: str, position: int) -> None:
    with pytest.raises(CorruptFileError) as caught:
        read_transaction_index(written(tmp_path, data))
    assert reason in str(caught.value)
    assert caught.value.position == position


def test_an_entry_below_the_segment_is_damage_when_the_base_is_known(tmp_path: Path) -> None:
    path = written(tmp_path, GOLDEN)
    assert len(read_transaction_index(path, 2)) == 1
    with pytest.raises(CorruptFileError, match="below the segment's base 3"):
        read_transaction_index(path, 3)


def test_a_torn_tail_beside_a_running_broker(tmp_path: Path) -> None:
    assert len(read_transaction_index(written(tmp_path, GOLDEN + GOLDEN[:33]), torn_ok=True)) == 1


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, b"")
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptFileError, match="more than"):
        read_transaction_index(path)


@given(st.binary(max_size=120))
def test_any_bytes_read_or_raise_the_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = written(tmp_path_factory.getbasetemp(), data)
    try:
        found = read_transaction_index(path)
    except CorruptFileError as error:
        assert 0 <= error.position <= len(data)
    else:
        assert b"".join(map(encode_transaction, found)) == data


def test_collect_takes_what_overlaps() -> None:
    """TransactionIndexTest.testCollectAbortedTransactions."""
    entries = [AbortedTransaction(0, 0, 10, 11), AbortedTransaction(1, 5, 15, 13), AbortedTransaction(2, 18, 35, 25)]
    entries.append(AbortedTransaction(3, 32, 50, 40))
    assert collect_aborted([entries], 0, 100) == entries
    assert collect_aborted([entries], 0, 32) == entries[:3]
    assert collect_aborted([entries], 0, 35) == entries
    assert collect_aborted([entries], 10, 35) == entries
    assert collect_aborted([entries], 11, 35) == entries[1:]
    assert collect_aborted([entries], 20, 41) == entries[2:]


def test_collect_stops_reading_once_complete() -> None:
    read = []

    def segments() -> Iterator[list[AbortedTransaction]]:
        for number in range(3):
            read.append(number)
            yield [AbortedTransaction(number, number * 10, number * 10 + 5, number * 10 + 6)]

    assert [entry.producer_id for entry in collect_aborted(segments(), 0, 16)] == [0, 1]
    assert read == [0, 1]


@given(transactions, st.integers(0, 120), st.integers(0, 120), st.lists(st.integers(0, 12), max_size=3))
def test_collect_against_the_definition(
    entries: list[AbortedTransaction], first: int, upper: int, cuts: list[int]
) -> None:
    """How the entries lie in segments does not matter, and the early end only leaves out what cannot overlap."""
    bounds = [0, *sorted(cuts), len(entries)]
    segments = [entries[low:high] for low, high in pairwise(bounds)]
    end = next((i + 1 for i, entry in enumerate(entries) if entry.last_stable_offset >= upper), len(entries))
    expected = [entry for entry in entries[:end] if entry.last_offset >= first and entry.first_offset < upper]
    assert collect_aborted(segments, first, upper) == expected
