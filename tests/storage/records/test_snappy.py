from __future__ import annotations

import random

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.storage.records.snappy import compress_block


def decode(block: bytes) -> bytes:
    return bytes(cramjam.snappy.decompress_raw(block))


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"a", b"abcdefgh", b"key-1", b"\x00" * 70, b"xyz" * 9]), max_size=60), st.binary())
def test_round_trip(pieces: list[bytes], tail: bytes) -> None:
    data = b"".join(pieces) + tail
    assert decode(compress_block(data)) == data


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 59, 60, 61, 255, 256, 257, 258, 16384, 32768, 65536])
def test_sizes_at_which_something_changes(size: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size), (b"0123456789abcde" * 5000)[:size]):
        assert decode(compress_block(data)) == data


def test_one_fragment_only() -> None:
    with pytest.raises(ValueError, match="65537 bytes"):
        compress_block(bytes(65537))


def test_copies_as_libsnappy_splits_them() -> None:
    """Runs of every length: 64 at a time, but never fewer than 4 left (known from Kafka 4.4.0's own batches)."""
    assert compress_block(bytes(100)).hex() == "64" + "0000" + "fe0100" + "8a0100"
    assert compress_block(bytes(66)).hex() == "42" + "0000" + "ee0100" + "0501"
    assert compress_block(bytes(20)).hex() == "14" + "0000" + "4a0100"
