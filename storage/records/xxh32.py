"""XXH32 with seed 0 for inputs below 16 bytes: the header checksum of LZ4 frames."""

from __future__ import annotations

import struct

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def xxh32(data: bytes) -> int:
    """The 32-bit hash of up to 15 bytes as an unsigned int. Raises ValueError for longer input."""
    if len(data) > 15:
        raise ValueError(f"{len(data)} bytes are more than a frame header has")
    value = (_P5 + len(data)) & _MASK
    words = len(data) // 4
    for word in struct.unpack_from(f"<{words}I", data):
        value = _rotate((value + word * _P3) & _MASK, 17) * _P4 & _MASK
    for byte in data[words * 4 :]:
        value = _rotate((value + byte * _P5) & _MASK, 11) * _P1 & _MASK
    value = (value ^ (value >> 15)) * _P2 & _MASK
    value = (value ^ (value >> 13)) * _P3 & _MASK
    return value ^ (value >> 16)
