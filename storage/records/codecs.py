"""The compression codecs of record batches, with Kafka's framing and default levels (facts 2.10).

Compressing gives Kafka 4.4.0's bytes. Decompressing accepts what Kafka's readers accept and never grows past a limit, so
that a small hostile batch cannot take the machine's memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam
import zstandard

from compactd.storage.records import snappy
from compactd.storage.records.varint import MalformedError
from compactd.storage.records.xxh32 import xxh32

#: Decompressed bytes that are accepted unless a caller says otherwise: the default of max.decompressed.message.bytes.
MAX_DECOMPRESSED_BYTES: Final = 2147483639

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK = 32768
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_DESCRIPTOR = b"\x60\x40"
_LZ4_CHUNK = 65536
_LZ4_STORED = 0x80000000
#: The zstd decoder is fed in slices: what one slice can grow to stays small beside the limit.
_SLICE = 4096


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name in Kafka's settings and tools: none, gzip, snappy, lz4, zstd."""
        return self.name.lower()


#: Levels that Kafka takes when none is set; level 9 of lz4 stands for its fast compressor, any other for its HC one.
DEFAULT_LEVELS: Final = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}


def compress(codec_id: int, data: bytes, magic: int = 2, level: int | None = None) -> bytes:
    """One compressed stream. `magic` 0 gives lz4 the header checksum of that format.

    `level`: as in compression.gzip.level and its like; None for the default. Snappy has none.
    """
    codec = Codec(codec_id)
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.GZIP:
            return _gzip(data, level)
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.LZ4:
            return _lz4(data, magic, level)
        case Codec.ZSTD:
            return _zstd(data, level)
        case Codec.NONE:
            return data


def decompress(codec_id: int, data: bytes, magic: int = 2, limit: int | None = None) -> bytes:
    """The whole decompressed stream, at most `limit` bytes (default MAX_DECOMPRESSED_BYTES). Raises MalformedError."""
    most = MAX_DECOMPRESSED_BYTES if limit is None else limit
    match codec_id:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gunzip(data, most)
        case Codec.SNAPPY:
            return _unsnappy(data, most)
        case Codec.LZ4:
            return _unlz4(data, magic, most)
        case Codec.ZSTD if magic >= 2:
            return _unzstd(data, most)
        case Codec.ZSTD:
            raise MalformedError(f"zstd in a batch of magic {magic}, which has no zstd")
        case _:
            raise MalformedError(f"unknown compression codec {codec_id}")


def _over(limit: int) -> MalformedError:
    return MalformedError(f"its records decompress to more than {limit} bytes")


def _gzip(data: bytes, level: int) -> bytes:
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15, 8)
    body = deflate.compress(data) + deflate.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _gunzip(data: bytes, limit: int) -> bytes:
    out = bytearray()
    rest = data
    while True:
        member = zlib.decompressobj(31)
        try:
            while not member.eof:
                piece = member.decompress(rest, limit + 1 - len(out))
                out += piece
                if len(out) > limit:
                    raise _over(limit)
                rest = member.unconsumed_tail
                if not member.eof and not piece and not rest:
                    raise MalformedError("its gzip stream ends early")
        except zlib.error as error:
            raise MalformedError(f"its gzip stream is damaged ({error})") from None
        rest = member.unused_data
        # Members may follow one another; like Java's GZIPInputStream, anything else after a member is ignored.
        if not rest.startswith(_GZIP_HEADER[:3]):
            return bytes(out)


def _snappy(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(data), _XERIAL_CHUNK):
        block = snappy.compress_block(data[at : at + _XERIAL_CHUNK])
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def _unsnappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC) or len(data) < len(_XERIAL_HEADER):
        return _unsnappy_block(data, limit)
    if struct.unpack_from(">i", data, 8)[0] < 1:
        raise MalformedError("its snappy stream has an unknown version")
    out = bytearray()
    at = len(_XERIAL_HEADER)
    while at + 4 <= len(data):
        if data.startswith(_XERIAL_MAGIC, at):  # streams may follow one another
            at += len(_XERIAL_HEADER)
            continue
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 <= size <= len(data) - at:
            raise MalformedError(f"its snappy stream has a chunk of {size} bytes where {len(data) - at} are left")
        out += _unsnappy_block(data[at : at + size], limit, len(out))
        at += size
    return bytes(out)


def _unsnappy_block(block: bytes, limit: int, before: int = 0) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if before + size > limit:
            raise _over(limit)
        # The densest element copies 64 bytes and takes 3, so a larger claim is damage: nothing is allocated for it.
        if size > len(block) * 22:
            raise MalformedError(f"its snappy block of {len(block)} bytes claims to hold {size}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise MalformedError(f"its snappy block is damaged ({error})") from None


def _lz4(data: bytes, magic: int, level: int) -> bytes:
    if level != DEFAULT_LEVELS[Codec.LZ4] and magic > 0 and (hard := _native_lz4()) is not None:
        return hard(data, level)
    # Message format 0 computed the header checksum over the frame's magic too (KAFKA-3160).
    checksum = xxh32(_LZ4_DESCRIPTOR if magic > 0 else _LZ4_MAGIC + _LZ4_DESCRIPTOR) >> 8 & 0xFF
    out = bytearray(_LZ4_MAGIC + _LZ4_DESCRIPTOR + bytes((checksum,)))
    for at in range(0, len(data), _LZ4_CHUNK):
        chunk = data[at : at + _LZ4_CHUNK]
        block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        if len(block) < len(chunk):
            out += struct.pack("<I", len(block)) + block
        else:
            out += struct.pack("<I", len(chunk) | _LZ4_STORED) + chunk
    return bytes(out + bytes(4))


def _native_lz4() -> Callable[[bytes, int], bytes] | None:
    """The HC compressor, which only the native kernel has; without it every level compresses as the default one."""
    try:
        from compactd.storage.kernel import _native  # noqa: PLC0415

        return _native.lz4_frame
    except (ImportError, AttributeError):
        return None


def _unlz4(data: bytes, magic: int, limit: int) -> bytes:
    """Decodes one frame. As in Kafka, its content size, its content checksum and what follows it are ignored."""
    flags, descriptor = _lz4_header(data, magic)
    start = at = 15 if flags & 0x08 else 7
    while True:
        if len(data) - at < 4:
            raise MalformedError("its lz4 frame ends early")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if size == 0:
            break
        size = (size & ~_LZ4_STORED) + (4 if flags & 0x10 else 0)
        if size > len(data) - at:
            raise MalformedError(f"its lz4 frame has a block of {size} bytes where {len(data) - at} are left")
        at += size
    plain = bytes((flags & ~0x0C, descriptor))
    frame = _LZ4_MAGIC + plain + bytes((xxh32(plain) >> 8 & 0xFF,)) + data[start:at]
    try:
        # An lz4 block expands 255 times at most, which bounds the output before the limit is looked at.
        out = bytes(cramjam.lz4.decompress(frame))
    except cramjam.DecompressionError as error:
        raise MalformedError(f"its lz4 frame is damaged ({error})") from None
    if len(out) > limit:
        raise _over(limit)
    return out


def _lz4_header(data: bytes, magic: int) -> tuple[int, int]:
    """Flags and block descriptor of a frame. Message format 0 has another header checksum, which is not checked."""
    if not data.startswith(_LZ4_MAGIC) or len(data) < 7:
        raise MalformedError("its lz4 frame has no header")
    flags, descriptor = data[4], data[5]
    if flags >> 6 != 1 or flags & 0x03 or descriptor & 0x8F or descriptor >> 4 < 4:
        raise MalformedError(f"its lz4 frame has an unknown descriptor {flags:#04x} {descriptor:#04x}")
    end = 14 if flags & 0x08 else 6
    if len(data) <= end:
        raise MalformedError("its lz4 frame has no header")
    if magic > 0 and data[end] != xxh32(data[4:end]) >> 8 & 0xFF:
        raise MalformedError("its lz4 frame has a wrong header checksum")
    return flags, descriptor


def _zstd(data: bytes, level: int) -> bytes:
    stream = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    # Java's stream flushes before it ends, which leaves an empty last block.
    return (
        stream.compress(data)
        + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
    )


def _unzstd(data: bytes, limit: int) -> bytes:
    out = bytearray()
    rest = memoryview(data)
    decompressor = zstandard.ZstdDecompressor()
    try:
        while rest:  # frames may follow one another
            frame = decompressor.decompressobj()
            at = 0
            while not frame.eof:
                if at >= len(rest):
                    raise MalformedError("its zstd frame ends early")
                out += frame.decompress(rest[at : at + _SLICE])
                at += _SLICE
                if len(out) > limit:
                    raise _over(limit)
            rest = rest[min(at, len(rest)) - len(frame.unused_data) :]
    except zstandard.ZstdError as error:
        raise MalformedError(f"its zstd frame is damaged ({error})") from None
    return bytes(out)
