"""Checksums of the record formats: CRC-32C for RecordBatch V2, CRC-32 for message sets V0 and V1."""

from __future__ import annotations

import zlib

import crc32c as _crc32c


def crc32c(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Castagnoli CRC as an unsigned int. `start` is the CRC of the bytes before."""
    return _crc32c.crc32c(data, start)


def crc32(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """IEEE CRC as an unsigned int. `start` is the CRC of the bytes before."""
    return zlib.crc32(data, start)
