from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError, StorageIOError
from compactd.storage.records.batch import Batch, Record, iter_batches, read_batches, read_header, scan_headers
from compactd.storage.records.builder import build_batch, control_batch, empty_batch
from compactd.storage.records.codecs import Codec
from compactd.storage.records.control import parse_end_transaction
from compactd.storage.records.crc import crc32c
from compactd.storage.records.legacy import build_message_set

HELLO = b"hello hello hello"
TWO = [Record(0, 1000, b"k1", HELLO), Record(1, 1001, b"k2", HELLO)]
#: Facts 2.2, 2.3, 5.7.
GOLDEN_TWO = (
    "00000000000000000000006500000000025385cd0200000000000100000000000003e800000000000003e9ffffffffffffffffffffffffffff"
    "0000000232000000046b312268656c6c6f2068656c6c6f2068656c6c6f0032000202046b322268656c6c6f2068656c6c6f2068656c6c6f00"
)
GOLDEN_COMMIT = (
    "000000000000000000000042ffffffff022a7ad2ff00300000000000000000000013880000000000001388"
    "00000000000000070001ffffffff000000012000000008000000010c00000000000300"
)
GOLDEN_EMPTY = (
    "000000000000000700000031000000010294928148000000000000ffffffffffffffff0000000000000258"
    "000000000000000900000000000000000000"
)
GOLDEN_HORIZON = (
    "00000000000000040000003e0000000002062cd18a0040000000000000018bcfe56be80000000000000190"
    "ffffffffffffffffffffffffffff000000011800afa9abfef9620002620100"
)


def only(data: bytes) -> Batch:
    (batch,) = iter_batches(data, 0, "some.log")
    batch.check()
    return batch


def reseal(data: bytes) -> bytes:
    """Gives a changed V2 batch the CRC that fits it."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


class TestGolden:
    def test_two_records(self) -> None:
        assert build_batch(TWO, base_offset=0, leader_epoch=0).hex() == GOLDEN_TWO
        batch = only(bytes.fromhex(GOLDEN_TWO))
        assert batch.records() == TWO
        header = batch.header
        assert (header.size, header.base_offset, header.last_offset, header.record_count) == (113, 0, 1, 2)
        assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (1000, 1001, 0)
        assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
            -1,
            -1,
            -1,
            -1,
        )
        assert header.delete_horizon_ms is None
        assert not header.is_control

    def test_commit_marker(self) -> None:
        assert control_batch("commit", 0, 5000, 7, 1, coordinator_epoch=3).hex() == GOLDEN_COMMIT
        batch = only(bytes.fromhex(GOLDEN_COMMIT))
        assert batch.header.is_control
        assert batch.header.is_transactional
        (record,) = batch.records()
        assert parse_end_transaction(record.key, record.value) == (1, 3)

    def test_empty_batch(self) -> None:
        full = build_batch(
            [Record(7, 600, b"k", b"v")],
            base_offset=7,
            leader_epoch=1,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
        )
        empty = empty_batch(only(full).header)
        assert empty.hex() == GOLDEN_EMPTY
        assert only(empty).records() == []
        assert empty_batch(only(empty).header) == empty

    def test_delete_horizon(self) -> None:
        tombstone = Record(4, 400, b"b", None)
        built = build_batch([tombstone], base_offset=4, leader_epoch=0, delete_horizon_ms=1700000001000)
        assert built.hex() == GOLDEN_HORIZON
        batch = only(built)
        assert batch.header.delete_horizon_ms == 1700000001000
        assert batch.records() == [tombstone]


class TestHeader:
    def test_an_empty_batch_loses_codec_and_horizon_and_keeps_the_rest(self) -> None:
        full = build_batch(
            [Record(5, 10, b"k", None)],
            base_offset=5,
            last_offset=9,
            codec=Codec.LZ4,
            transactional=True,
            control=True,
            producer_id=3,
            producer_epoch=2,
            base_sequence=0x7FFFFFFE,
            log_append_time_ms=77,
            delete_horizon_ms=1000,
        )
        before = only(full).header
        after = only(empty_batch(before)).header
        assert before.attributes == 0x7B
        assert after.attributes == 0x38
        assert (after.base_offset, after.last_offset, after.max_timestamp, after.base_timestamp) == (5, 9, 77, -1)
        assert (after.producer_id, after.producer_epoch, after.base_sequence) == (3, 2, 0x7FFFFFFE)
        assert after.last_sequence == before.last_sequence == 2

    def test_timestamp_types(self) -> None:
        created, appended = (
            build_batch([Record(0, 5, b"k", b"v")], base_offset=0, log_append_time_ms=ms) for ms in (None, 900)
        )
        assert only(created).header.timestamp_type == "CreateTime"
        assert only(appended).header.timestamp_type == "LogAppendTime"
        assert only(appended).records()[0].timestamp == 900
        assert only(build_message_set([Record(0, 5, b"k", b"v")], 0)).header.timestamp_type == "NoTimestampType"

    def test_empty_batches_need_magic_2(self) -> None:
        with pytest.raises(ValueError, match="magic 1"):
            empty_batch(only(build_message_set([Record(0, 5, b"k", b"v")], 1)).header)


headers = st.lists(st.tuples(st.text(max_size=4).map(str.encode), st.none() | st.binary(max_size=4)), max_size=3).map(
    tuple
)
timestamps = st.sampled_from([-1, 0, 1, 1700000000000, (1 << 63) - 1]) | st.integers(0, 1 << 42)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    offsets = draw(st.lists(st.integers(0, 5000), min_size=1, max_size=12, unique=True).map(sorted))
    base = draw(st.sampled_from([0, 7, 1 << 40]))
    optional = st.none() | st.binary(max_size=40)
    return [Record(base + o, draw(timestamps), draw(optional), draw(optional), draw(headers)) for o in offsets]


@settings(deadline=None)
@given(
    record_lists(),
    st.sampled_from(list(Codec)),
    st.integers(0, 3),
    st.none() | st.integers(0, 1 << 45),
    st.tuples(st.booleans(), st.integers(-1, 1 << 40), st.integers(-1, 32767), st.integers(-1, (1 << 31) - 1)),
)
def test_round_trip(
    records: list[Record], codec: Codec, slack: int, horizon: int | None, producer: tuple[bool, int, int, int]
) -> None:
    transactional, producer_id, epoch, sequence = producer
    data = build_batch(
        records,
        base_offset=records[0].offset - min(slack, records[0].offset),
        last_offset=records[-1].offset + slack,
        codec=codec,
        leader_epoch=slack,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        delete_horizon_ms=horizon,
    )
    batch = only(data)
    assert batch.records() == records
    header = batch.header
    assert header.codec == codec
    assert header.delete_horizon_ms == horizon
    assert header.last_offset == records[-1].offset + slack
    assert header.next_offset == header.last_offset + 1
    assert header.max_timestamp == max(r.timestamp for r in records)
    assert (header.is_transactional, header.producer_id) == (transactional, producer_id)
    assert (header.producer_epoch, header.base_sequence, header.leader_epoch) == (epoch, sequence, slack)


class TestBuilderRefuses:
    def test_offsets_that_do_not_increase(self) -> None:
        with pytest.raises(ValueError, match="offsets must increase"):
            build_batch([TWO[1], TWO[0]], base_offset=0)
        with pytest.raises(ValueError, match="offsets must increase"):
            build_batch(TWO, base_offset=1)

    def test_spans_that_do_not_fit(self) -> None:
        with pytest.raises(ValueError, match="last offset 0"):
            build_batch(TWO, base_offset=0, last_offset=0)
        with pytest.raises(ValueError, match="last offset 2147483648"):
            build_batch(TWO, base_offset=0, last_offset=1 << 31)

    def test_negative_timestamps(self) -> None:
        with pytest.raises(ValueError, match="timestamp -2"):
            build_batch([Record(0, -2, b"k", b"v")], base_offset=0)


class TestDamage:
    @pytest.mark.parametrize("codec", list(Codec))
    def test_every_truncated_prefix(self, codec: Codec) -> None:
        whole = build_batch(TWO, base_offset=0, codec=codec)
        for size in range(1, len(whole)):
            with pytest.raises(CorruptBatchError, match="truncated") as caught:
                list(iter_batches(whole + whole[:size], 0, "x.log"))
            assert caught.value.position == len(whole)
            assert caught.value.path == "x.log"

    def test_every_flipped_bit_behind_the_length_is_noticed(self) -> None:
        whole = build_batch(TWO, base_offset=0)
        for bit in range(17 * 8, len(whole) * 8):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptBatchError):
                only(bytes(damaged))

    def test_a_wrong_crc_names_both(self) -> None:
        damaged = bytearray(build_batch(TWO, base_offset=0))
        damaged[-1] ^= 0xFF
        with pytest.raises(CorruptBatchError) as caught:
            only(bytes(damaged))
        error = caught.value
        assert error.expected_crc == struct.unpack_from(">I", damaged, 17)[0]
        assert error.found_crc == crc32c(damaged[21:])
        assert (error.path, error.position, error.base_offset, error.last_offset) == ("some.log", 0, 0, 1)
        assert f"{error.expected_crc:#010x}" in str(error)

    @pytest.mark.parametrize("length", [0, 13, 48, -1, -(1 << 31), 0x7FFFFFFF, 102])
    def test_length_fields(self, length: int) -> None:
        data = bytes.fromhex(GOLDEN_TWO)
        damaged = data[:8] + struct.pack(">i", length) + data[12:]
        with pytest.raises(CorruptBatchError, match=r"length field|truncated") as caught:
            only(damaged)
        assert caught.value.base_offset == 0
        assert caught.value.expected_crc is None

    @pytest.mark.parametrize("magic", [3, 0x7F, 0xFF])
    def test_unknown_magic(self, magic: int) -> None:
        data = bytearray.fromhex(GOLDEN_TWO)
        data[16] = magic
        with pytest.raises(CorruptBatchError, match=f"unknown magic {magic}"):
            only(bytes(data))

    @pytest.mark.parametrize(
        ("at", "form", "value", "reason"),
        [
            (0, ">q", -1, "offsets are out of range"),
            (0, ">q", (1 << 63) - 2, "offsets are out of range"),
            (21, ">h", 5, "unknown compression codec 5"),
            (23, ">i", -1, "offsets are out of range"),
            (23, ">i", 0, "has offset 1, which is not between 1 and 0"),
            (57, ">i", -1, "record count is -1"),
            (57, ">i", 0, "52 bytes are left after its 0 records"),
            (57, ">i", 1, "26 bytes are left after its 1 records"),
            (57, ">i", 3, "past the end"),
            (57, ">i", 0x7FFFFFFF, "past the end"),
        ],
    )
    def test_header_fields_under_a_right_crc(self, at: int, form: str, value: int, reason: str) -> None:
        data = bytearray.fromhex(GOLDEN_TWO)
        struct.pack_into(form, data, at, value)
        with pytest.raises(CorruptBatchError, match=reason):
            only(reseal(bytes(data))).records()

    @pytest.mark.parametrize(
        ("at", "value", "reason"),
        [
            (61, b"\x7f", "has length -64"),
            (61, b"\x7e", "has length 63 where"),
            (61, b"\x30", "has length 24 and fields of 25 bytes"),
            (64, b"\x08", "has offset 4, which is not between 0 and 1"),
            (64, b"\x01", "not between 0 and 1"),
            (65, b"\x40", "key has length 32"),
            (68, b"\x40", "value has length 32"),
            (86, b"\x40", "has 32 headers where 0 bytes are left"),
            (86, b"\x01", "has -1 headers"),
            (112, b"\x80", "past the end"),
        ],
    )
    def test_record_lengths_under_a_right_crc(self, at: int, value: bytes, reason: str) -> None:
        data = bytes.fromhex(GOLDEN_TWO)
        batch = only(reseal(data[:at] + value + data[at + 1 :]))
        with pytest.raises(CorruptBatchError, match=reason):
            batch.records()

    def test_a_header_without_a_key(self) -> None:
        data = build_batch([Record(0, 0, b"k", b"v", ((b"h", b"w"),))], base_offset=0)
        at = data.index(b"\x02h\x02w")
        with pytest.raises(CorruptBatchError, match="header has no key"):
            only(reseal(data[:at] + b"\x01" + data[at + 1 :])).records()

    @settings(deadline=None)
    @given(st.data())
    def test_damaged_records_give_records_or_a_named_error(self, data: st.DataObject) -> None:
        whole = bytearray.fromhex(GOLDEN_TWO)
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(61, len(whole) - 1))] = data.draw(st.integers(0, 255))
        batch = only(reseal(bytes(whole)))
        try:
            assert [r.offset for r in batch.records()] == [0, 1]
        except CorruptBatchError as error:
            assert error.reason

    def test_a_tail_of_zeros_counts_as_truncated(self) -> None:
        with pytest.raises(CorruptBatchError, match="truncated, only zeros") as caught:
            list(iter_batches(bytes.fromhex(GOLDEN_TWO) + bytes(4096)))
        assert caught.value.position == 113

    def test_short_data_in_a_batch(self) -> None:
        batch = only(bytes.fromhex(GOLDEN_TWO))
        with pytest.raises(CorruptBatchError, match="truncated, 100 of its 113"):
            Batch(batch.header, batch.data[:100], "x").check()


class TestFiles:
    @pytest.fixture
    def log(self, tmp_path: Path) -> tuple[Path, list[bytes]]:
        batches = [
            build_batch(TWO, base_offset=0),
            build_message_set([Record(2, 5, b"k", b"")], 0),
            build_message_set([Record(3, 5, b"k", None), Record(4, 6, b"k", None)], 1, Codec.GZIP),
            build_batch([Record(5, 0, b"big", bytes(3 << 20))], base_offset=5),
            control_batch("abort", 6, 1, 2, 3),
        ]
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(b"".join(batches))
        return path, batches

    @pytest.mark.parametrize("check_crc", [False, True])
    def test_scanning(self, log: tuple[Path, list[bytes]], check_crc: bool) -> None:
        path, batches = log
        found = list(scan_headers(path, check_crc=check_crc))
        assert [h.size for h in found] == [len(b) for b in batches]
        assert [h.position for h in found] == [sum(map(len, batches[:i])) for i in range(len(batches))]
        assert [(h.magic, h.last_offset) for h in found] == [(2, 1), (0, 2), (1, 4), (2, 5), (2, 6)]

    def test_reading(self, log: tuple[Path, list[bytes]]) -> None:
        path, batches = log
        assert [b.data for b in read_batches(path)] == batches
        assert [b.data for b in read_batches(path, len(batches[0]))] == batches[1:]
        assert [b.data for b in read_batches(path, 0, len(batches[0]) + len(batches[1]))] == batches[:2]

    def test_a_torn_tail(self, log: tuple[Path, list[bytes]]) -> None:
        path, batches = log
        whole = path.read_bytes()
        start = len(whole) - len(batches[-1])
        for size in range(start + 1, len(whole)):
            path.write_bytes(whole[:size])
            for read in (scan_headers, read_batches):
                with pytest.raises(CorruptBatchError, match="truncated") as caught:
                    list(read(path))
                assert (caught.value.position, caught.value.path) == (start, str(path))

    def test_a_damaged_body(self, log: tuple[Path, list[bytes]]) -> None:
        path, batches = log
        whole = bytearray(path.read_bytes())
        at = sum(map(len, batches[:3])) + (2 << 20)
        whole[at] ^= 1
        path.write_bytes(whole)
        assert len(list(scan_headers(path))) == 5
        with pytest.raises(CorruptBatchError) as caught:
            list(scan_headers(path, check_crc=True))
        assert (caught.value.base_offset, caught.value.position) == (5, sum(map(len, batches[:3])))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(StorageIOError, match="reading failed: No such file"):
            list(scan_headers(tmp_path / "none.log"))
        with pytest.raises(StorageIOError, match="reading failed: No such file"):
            list(read_batches(tmp_path / "none.log"))


def test_reading_a_header_out_of_a_part_of_a_file() -> None:
    data = bytes.fromhex(GOLDEN_TWO)
    assert read_header(b"xx" + data[:61], 2, file_position=500).position == 500
    with pytest.raises(CorruptBatchError, match="truncated, 60 bytes") as caught:
        read_header(data[:60], 0, "x", file_position=500)
    assert caught.value.position == 500
