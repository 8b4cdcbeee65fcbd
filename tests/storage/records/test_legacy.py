from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError
from compactd.storage.records.batch import Batch, Record, iter_batches
from compactd.storage.records.codecs import Codec, compress
from compactd.storage.records.crc import crc32
from compactd.storage.records.legacy import build_message, build_message_set

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
THREE = [Record(40, 1000, b"a", b"x"), Record(41, 3000, b"b", None), Record(44, 2000, None, b"")]


def batches(data: bytes) -> list[Batch]:
    found = list(iter_batches(data, 0, "old.log"))
    for batch in found:
        batch.check()
    return found


def records(data: bytes) -> list[Record]:
    return [record for batch in batches(data) for record in batch.records()]


def wrap(offset: int, inner: bytes, magic: int, codec: Codec = Codec.GZIP, timestamp: int = 9) -> bytes:
    return build_message(Record(offset, timestamp, None, compress(codec, inner, magic)), magic, codec)


def test_golden_v0() -> None:
    body = "0000" + "0000000161" + "ffffffff"
    expected = "0000000000000007" + "0000000f" + f"{crc32(bytes.fromhex(body)):08x}" + body
    assert build_message(Record(7, 5, b"a", None), 0).hex() == expected


def test_golden_v1() -> None:
    body = "0108" + "0000000000000005" + "ffffffff" + "0000000161"
    expected = "0000000000000007" + "00000017" + f"{crc32(bytes.fromhex(body)):08x}" + body
    assert build_message_set([Record(7, 1, None, b"a")], 1, log_append_time_ms=5).hex() == expected


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.integers(0, 1 << 42), st.none() | st.binary(max_size=9), st.none() | st.binary()
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 1 << 40),
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.none() | st.integers(0, 1 << 42),
)
def test_round_trip(
    fields: list[tuple[int, int, bytes | None, bytes | None]], base: int, magic: int, codec: Codec, append: int | None
) -> None:
    made, offset = [], base
    for step, timestamp, key, value in fields:
        offset += step
        stamp = -1 if magic == 0 else timestamp if append is None else append
        made.append(Record(offset, stamp, key, value))
    data = build_message_set(made, magic, codec, append if magic else None)
    assert records(data) == made
    assert len(batches(data)) == (1 if codec else len(made))


def test_a_wrapper_knows_its_last_offset_and_finds_its_first() -> None:
    (batch,) = batches(build_message_set(THREE, 1, Codec.LZ4))
    assert (batch.header.base_offset, batch.header.last_offset, batch.header.record_count) == (44, 44, -1)
    assert batch.base_offset == 40
    assert batch.header.max_timestamp == 3000
    assert batches(build_message_set(THREE, 1))[0].base_offset == 40


def test_v1_relative_offsets_may_have_holes() -> None:
    assert [r.offset for r in records(build_message_set(THREE, 1, Codec.GZIP))] == [40, 41, 44]


def test_v1_wrapper_at_offset_0_has_base_0() -> None:
    inner = b"".join(build_message(Record(n, 5, b"k", b"v"), 1) for n in range(3))
    assert [r.offset for r in records(wrap(0, inner, 1))] == [0, 1, 2]


def test_v0_inner_offsets_are_absolute() -> None:
    inner = b"".join(build_message(Record(n, 5, b"k", b"v"), 0) for n in (10, 12))
    assert [r.offset for r in records(wrap(12, inner, 0))] == [10, 12]


def test_append_time_of_the_wrapper_overrides_that_of_its_records() -> None:
    (batch,) = batches(build_message_set(THREE, 1, Codec.SNAPPY, log_append_time_ms=777))
    assert batch.header.timestamp_type == "LogAppendTime"
    assert [r.timestamp for r in batch.records()] == [777] * 3


def test_a_v1_wrapper_with_v0_records_as_old_cleaners_wrote_it() -> None:
    assert records(build_message_set(THREE, 1, Codec.GZIP, inner_magic=0)) == [r._replace(timestamp=-1) for r in THREE]


def test_lz4_of_magic_0_has_the_old_header_checksum() -> None:
    data = build_message_set(THREE, 0, Codec.LZ4)
    assert data[data.index(b"\x04\x22\x4d\x18") + 6] == 0x1A
    assert [r.offset for r in records(data)] == [40, 41, 44]


ONE = build_message(Record(0, 5, b"k", b"v"), 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wrap(1, build_message(Record(2, 5, b"k", b"v"), 1), 1), "offset 1 whose last inner offset is 2"),
        (wrap(5, wrap(5, ONE, 1), 1), "inside another one"),
        (wrap(5, b"", 1), "without inner records"),
        (build_message(Record(5, 5, None, None), 1, Codec.GZIP), "without a value"),
        (build_message(Record(5, 5, None, b"rubbish"), 1, Codec.GZIP), "gzip stream"),
        (build_message(Record(5, 5, None, b""), 1, Codec.ZSTD), "unknown compression codec 4 for magic 1"),
        (wrap(5, ONE[:11], 1), "11 bytes are left"),
        (wrap(5, ONE[:-1], 1), "a message of 36 bytes where 35 are left"),
        (wrap(5, ONE[:8] + struct.pack(">i", -50) + ONE[12:], 1), "a message of -38 bytes"),
        (wrap(5, ONE[:8] + struct.pack(">i", 0x7FFFFFFF) + ONE[12:], 1), "a message of 2147483659 bytes"),
        (wrap(5, ONE[:16] + b"\x02" + ONE[17:], 1), "magic 2"),
        (wrap(5, ONE[:26] + struct.pack(">i", 0x7FFFFFFF) + ONE[30:], 1), "key has length 2147483647"),
        (wrap(5, ONE[:31] + struct.pack(">i", 9) + ONE[35:], 1), "value has length 9"),
        (wrap(5, ONE[:31] + struct.pack(">i", -1) + ONE[35:], 1), "1 bytes after its value"),
        (wrap(5, ONE[:26] + struct.pack(">i", 4) + ONE[30:], 1), "ends before its value"),
    ],
)
def test_damage(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        records(data)
    assert caught.value.path == "old.log"


@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_bit_behind_the_length_is_noticed(magic: int) -> None:
    whole = build_message(Record(5, 5, b"key", b"value"), magic)
    for bit in range(12 * 8, len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            records(bytes(damaged))


@pytest.mark.parametrize("magic", [0, 1])
def test_every_truncated_prefix(magic: int) -> None:
    whole = build_message_set(THREE, magic, Codec.GZIP)
    for size in range(1, len(whole)):
        with pytest.raises(CorruptBatchError, match="truncated"):
            records(whole[:size])


def test_what_the_formats_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="magic 2"):
        build_message(THREE[0], 2)
    with pytest.raises(ValueError, match="no zstd"):
        build_message_set(THREE, 1, Codec.ZSTD)
