from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from compactd.storage.records.codecs import Codec, compress, decompress
from compactd.storage.records.varint import MalformedError
from compactd.storage.records.xxh32 import xxh32

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"key-%d hello hello %d\n" % (n % 37, n * n) for n in range(12000))
NOISE = b"".join(struct.pack(">Q", pow(3, n, (1 << 61) - 1)) for n in range(20000))

#: The record area of the batch of facts 2.2, and what Kafka 4.4.0 makes of it (2.10).
GOLDEN_RECORDS = bytes.fromhex(
    "32000000046b312268656c6c6f2068656c6c6f2068656c6c6f0032000202046b322268656c6c6f2068656c6c6f2068656c6c6f00"
)
GOLDEN = {
    Codec.GZIP: "1f8b08000000000000ff3362606060c93654ca48cdc9c9574022198c18989858b28db0c80000e5d632ba34000000",
    Codec.SNAPPY: "82534e41505059000000000100000001"
    "0000001e343432000000046b312268656c6c6f201d061c0032000202046b324a1a00",
    Codec.LZ4: "04224d1860408222000000e732000000046b312268656c6c6f2006008a0032000202046b321a0050656c6c6f0000000000",
    Codec.ZSTD: "28b52ffd0058fc0000b032000000046b312268656c6c6f200032000202046b3202003d1317a32801010000",
}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_golden_bytes_of_kafka(codec: Codec) -> None:
    assert compress(codec, GOLDEN_RECORDS).hex() == GOLDEN[codec]
    assert decompress(codec, bytes.fromhex(GOLDEN[codec])) == GOLDEN_RECORDS


@settings(deadline=None)
@given(st.sampled_from(COMPRESSED), st.binary(max_size=2000), st.integers(1, 60))
def test_round_trip(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [TEXT, NOISE, bytes(65536), bytes(65537)], ids=["text", "noise", "block", "block+1"])
def test_round_trip_of_several_blocks(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


def test_none_is_the_data_itself() -> None:
    assert compress(Codec.NONE, TEXT) == TEXT == decompress(Codec.NONE, TEXT)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_growth_stops_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(1 << 20))
    assert decompress(codec, bomb, limit=1 << 20) == bytes(1 << 20)
    with pytest.raises(MalformedError, match="more than 1048575 bytes"):
        decompress(codec, bomb, limit=(1 << 20) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_truncation_is_noticed(codec: Codec) -> None:
    whole = compress(codec, GOLDEN_RECORDS)
    for size in range(1, len(whole)):
        if codec is Codec.SNAPPY and 16 <= size < 20:
            continue  # a snappy stream has no end mark: to Kafka too, these are streams of nothing
        with pytest.raises(MalformedError):
            decompress(codec, whole[:size])


@pytest.mark.parametrize("codec", COMPRESSED)
@settings(deadline=None)
@given(noise=st.binary(max_size=200), keep=st.integers(0, 40))
def test_damage_never_gets_out_as_another_error(codec: Codec, noise: bytes, keep: int) -> None:
    try:
        data = decompress(codec, compress(codec, GOLDEN_RECORDS)[:keep] + noise, limit=1 << 16)
    except MalformedError:
        return
    assert len(data) <= 1 << 16


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(MalformedError, match="unknown compression codec"):
        decompress(codec, b"")


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_needs_magic_2(magic: int) -> None:
    with pytest.raises(MalformedError, match="zstd"):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT), magic)


class TestGzip:
    def test_members_and_rubbish_after_a_member_as_java_reads_them(self) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd")) == b"abcd"
        assert decompress(Codec.GZIP, gzip.compress(b"ab") + b"rubbish") == b"ab"

    def test_wrong_trailer(self) -> None:
        data = bytearray(gzip.compress(TEXT))
        data[-6] ^= 1
        with pytest.raises(MalformedError, match="gzip stream is damaged"):
            decompress(Codec.GZIP, bytes(data))

    def test_the_default_level_of_zlib(self) -> None:
        assert zlib.decompressobj(31).decompress(compress(Codec.GZIP, TEXT)) == TEXT
        assert compress(Codec.GZIP, TEXT)[:10].hex() == "1f8b08000000000000ff"


class TestSnappy:
    def test_a_raw_block_without_framing(self) -> None:
        assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT

    def test_streams_that_follow_one_another(self) -> None:
        assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"ab") + compress(Codec.SNAPPY, b"cd")) == b"abcd"

    def test_chunks_of_32_kib(self) -> None:
        framed = compress(Codec.SNAPPY, TEXT)
        (size,) = struct.unpack_from(">i", framed, 16)
        assert len(bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + size]))) == 32768

    @pytest.mark.parametrize("size", [-1, 0x7FFFFFFF, 100])
    def test_a_chunk_larger_than_what_is_left(self, size: int) -> None:
        framed = compress(Codec.SNAPPY, b"ab")
        with pytest.raises(MalformedError, match=f"chunk of {size} bytes"):
            decompress(Codec.SNAPPY, framed[:16] + struct.pack(">i", size) + framed[20:])

    def test_a_claim_that_no_block_can_hold_is_refused_before_memory_is_taken(self) -> None:
        with pytest.raises(MalformedError, match="claims to hold 2000000000"):
            decompress(Codec.SNAPPY, b"\x80\xa8\xd6\xb9\x07" + b"\x00" * 20)

    def test_an_old_version(self) -> None:
        with pytest.raises(MalformedError, match="unknown version"):
            decompress(Codec.SNAPPY, b"\x82SNAPPY\x00" + bytes(8))


class TestLz4:
    def test_header_checksum_of_magic_0(self) -> None:
        assert compress(Codec.LZ4, TEXT, magic=0)[:7].hex() == "04224d1860401a"
        assert compress(Codec.LZ4, TEXT, magic=1)[:7].hex() == "04224d18604082"

    def test_a_wrong_header_checksum_is_accepted_for_magic_0_only(self) -> None:
        frame = compress(Codec.LZ4, TEXT, magic=0)
        assert decompress(Codec.LZ4, frame, magic=0) == TEXT
        for magic in (1, 2):
            with pytest.raises(MalformedError, match="header checksum"):
                decompress(Codec.LZ4, frame, magic)

    def test_blocks_that_do_not_shrink_are_stored(self) -> None:
        frame = compress(Codec.LZ4, NOISE)
        assert struct.unpack_from("<I", frame, 7)[0] == 65536 | 0x80000000

    def test_linked_blocks_and_a_content_checksum(self) -> None:
        frame = bytes(cramjam.lz4.compress(TEXT, level=4))
        assert frame[4] & 0x20 == 0, "the encoder is expected to link its blocks"
        assert decompress(Codec.LZ4, frame) == TEXT

    def test_content_size_is_skipped_even_when_it_lies(self) -> None:
        frame = compress(Codec.LZ4, TEXT)
        descriptor = b"\x68\x40" + struct.pack("<Q", 1 << 62)
        assert (
            decompress(Codec.LZ4, frame[:4] + descriptor + bytes((xxh32(descriptor) >> 8 & 0xFF,)) + frame[7:]) == TEXT
        )

    def test_bytes_after_the_end_mark_are_ignored(self) -> None:
        assert decompress(Codec.LZ4, compress(Codec.LZ4, TEXT) + b"rest") == TEXT

    @pytest.mark.parametrize(("at", "value"), [(4, 0x20), (4, 0x61), (5, 0x30), (5, 0xC0), (0, 0)])
    def test_unknown_descriptors(self, at: int, value: int) -> None:
        frame = bytearray(compress(Codec.LZ4, TEXT))
        frame[at] = value
        with pytest.raises(MalformedError, match="lz4 frame has"):
            decompress(Codec.LZ4, bytes(frame))

    def test_a_block_larger_than_what_is_left(self) -> None:
        frame = compress(Codec.LZ4, b"abc")
        with pytest.raises(MalformedError, match="has a block of"):
            decompress(Codec.LZ4, frame[:7] + struct.pack("<I", 0x7FFFFFFF) + frame[11:])

    @pytest.mark.parametrize(("data", "digest"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)])
    def test_xxh32(self, data: bytes, digest: int) -> None:
        assert xxh32(data) == digest

    def test_xxh32_is_for_headers(self) -> None:
        with pytest.raises(ValueError, match="16 bytes"):
            xxh32(bytes(16))


class TestZstd:
    def test_frames_may_follow_one_another(self) -> None:
        two = zstandard.ZstdCompressor().compress(b"ab") + zstandard.ZstdCompressor(write_checksum=True).compress(b"cd")
        assert decompress(Codec.ZSTD, two) == b"abcd"

    def test_the_frame_ends_with_an_empty_block_as_java_writes_it(self) -> None:
        frame = compress(Codec.ZSTD, TEXT)
        assert frame[:6].hex() == "28b52ffd0058"
        assert frame[-3:] == b"\x01\x00\x00"

    def test_a_window_beyond_128_mib_is_refused(self) -> None:
        with pytest.raises(MalformedError, match="zstd frame is damaged"):
            decompress(Codec.ZSTD, bytes.fromhex("28b52ffd00a8010000"))
