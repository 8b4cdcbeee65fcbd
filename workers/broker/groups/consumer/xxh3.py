"""XXH3 of 64 bits with seed 0, as the xxHash specification has it: Kafka's hash of what a group reads (facts B2.3)."""

from __future__ import annotations

import struct

_M32, _M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRETS = [int.from_bytes(_SECRET[at : at + 8], "little") for at in range(len(_SECRET) - 7)]
_LANES = struct.Struct("<8Q")
_STRIPE, _STEP = 64, 8
_BLOCK = (len(_SECRET) - _STRIPE) // _STEP * _STRIPE
#: Up to these lengths there are shorter ways.
_SHORT, _MIDDLE = 128, 240


def xxh3_64(data: bytes) -> int:
    """The hash, unsigned."""
    size = len(data)
    if size > _MIDDLE:
        return _long(data)
    if size > _SHORT:
        return _middle(data)
    if size > 16:
        return _medium(data)
    return _tiny(data)


def _tiny(data: bytes) -> int:
    size = len(data)
    if size > 8:
        low = int.from_bytes(data[:8], "little") ^ _SECRETS[24] ^ _SECRETS[32]
        high = int.from_bytes(data[-8:], "little") ^ _SECRETS[40] ^ _SECRETS[48]
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((size + swapped + high + _folded(low, high)) & _M64)
    if size >= 4:
        first, last = int.from_bytes(data[:4], "little"), int.from_bytes(data[-4:], "little")
        value = (last + (first << 32)) ^ _SECRETS[8] ^ _SECRETS[16]
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * _MX2 & _M64
        value ^= (value >> 35) + size
        value = value * _MX2 & _M64
        return value ^ value >> 28
    if size:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        secret = (_SECRETS[0] & _M32) ^ (_SECRETS[4] & _M32)
        return _avalanche_64(combined ^ secret)
    return _avalanche_64(_SECRETS[56] ^ _SECRETS[64])


def _medium(data: bytes) -> int:
    size = len(data)
    total = size * _P64_1
    for step in range((size - 1) // 32, -1, -1):
        total += _mixed(data, 16 * step, 32 * step)
        total += _mixed(data, size - 16 * (step + 1), 32 * step + 16)
    return _avalanche(total & _M64)


def _middle(data: bytes) -> int:
    size = len(data)
    total = size * _P64_1
    for step in range(8):
        total += _mixed(data, 16 * step, 16 * step)
    total = _avalanche(total & _M64)
    for step in range(8, size // 16):
        total += _mixed(data, 16 * step, 16 * (step - 8) + 3)
    total += _mixed(data, size - 16, 136 - 17)
    return _avalanche(total & _M64)


def _long(data: bytes) -> int:
    size = len(data)
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    stripes_per_block = _BLOCK // _STRIPE
    blocks = (size - 1) // _BLOCK
    for block in range(blocks):
        for stripe in range(stripes_per_block):
            _accumulate(lanes, data, block * _BLOCK + stripe * _STRIPE, stripe * _STEP)
        _scramble(lanes)
    start = blocks * _BLOCK
    for stripe in range((size - 1 - start) // _STRIPE):
        _accumulate(lanes, data, start + stripe * _STRIPE, stripe * _STEP)
    _accumulate(lanes, data, size - _STRIPE, len(_SECRET) - _STRIPE - 7)
    total = size * _P64_1
    for pair in range(4):
        at = 11 + 16 * pair
        total += _folded(lanes[2 * pair] ^ _SECRETS[at], lanes[2 * pair + 1] ^ _SECRETS[at + 8])
    return _avalanche(total & _M64)


def _accumulate(lanes: list[int], data: bytes, position: int, secret: int) -> None:
    for lane, value in enumerate(_LANES.unpack_from(data, position)):
        keyed = value ^ _SECRETS[secret + 8 * lane]
        lanes[lane ^ 1] = (lanes[lane ^ 1] + value) & _M64
        lanes[lane] = (lanes[lane] + (keyed & _M32) * (keyed >> 32)) & _M64


def _scramble(lanes: list[int]) -> None:
    first = len(_SECRET) - _STRIPE
    for lane, value in enumerate(lanes):
        value ^= value >> 47
        value ^= _SECRETS[first + 8 * lane]
        lanes[lane] = value * _P32_1 & _M64


def _mixed(data: bytes, position: int, secret: int) -> int:
    low = int.from_bytes(data[position : position + 8], "little")
    high = int.from_bytes(data[position + 8 : position + 16], "little")
    return _folded(low ^ _SECRETS[secret], high ^ _SECRETS[secret + 8])


def _folded(first: int, second: int) -> int:
    product = first * second
    return product & _M64 ^ product >> 64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _M64


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MX1 & _M64
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value ^= value >> 33
    value = value * _P64_2 & _M64
    value ^= value >> 29
    value = value * _P64_3 & _M64
    return value ^ value >> 32
