"""The hash function XXH3 (64 bits, without a seed), by which Kafka hashes the topics of a group (KIP-1101)."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX = 0x165667919E3779F9
_MIX_SHORT = 0x9FB21C651E98DF25
_STRIPE = 64
_STRIPES_PER_BLOCK = (len(_SECRET) - _STRIPE) // 8
_LANES = struct.Struct("<8Q")


def xxh3_64(data: bytes) -> int:
    """Return the hash as a signed 64-bit integer, as in Java."""
    length = len(data)
    if length <= 16:
        value = _short(data, length)
    elif length <= 128:
        value = _medium(data, length)
    elif length <= 240:
        value = _longer(data, length)
    else:
        value = _long(data, length)
    return value - (1 << 64) if value >> 63 else value


def _u64(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 8], "little")


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product ^ product >> 64) & _MASK


def _avalanche(value: int) -> int:
    value &= _MASK
    value ^= value >> 37
    value = value * _MIX & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _MASK
    value ^= value >> 29
    value = value * _PRIME64_3 & _MASK
    return value ^ value >> 32


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _short(data: bytes, length: int) -> int:
    if length > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, length - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        return _avalanche(length + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _fold(low, high))
    if length >= 4:
        value = _u32(data, length - 4) + (_u32(data, 0) << 32) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        value ^= _rotate(value, 49) ^ _rotate(value, 24)
        value = value * _MIX_SHORT & _MASK
        value ^= (value >> 35) + length
        value = value * _MIX_SHORT & _MASK
        return value ^ value >> 28
    if length:
        value = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return _avalanche_64(value ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _mix(data: bytes, position: int, key: int) -> int:
    return _fold(_u64(data, position) ^ _u64(_SECRET, key), _u64(data, position + 8) ^ _u64(_SECRET, key + 8))


def _medium(data: bytes, length: int) -> int:
    value = length * _PRIME64_1
    for step in reversed(range((length - 1) // 32 + 1)):
        value += _mix(data, 16 * step, 32 * step) + _mix(data, length - 16 * (step + 1), 32 * step + 16)
    return _avalanche(value)


def _longer(data: bytes, length: int) -> int:
    value = length * _PRIME64_1
    for step in range(8):
        value += _mix(data, 16 * step, 16 * step)
    value = _avalanche(value)
    for step in range(8, length // 16):
        value += _mix(data, 16 * step, 16 * (step - 8) + 3)
    return _avalanche(value + _mix(data, length - 16, 136 - 17))


def _accumulate(lanes: list[int], data: bytes, position: int, key: int) -> None:
    values, keys = _LANES.unpack_from(data, position), _LANES.unpack_from(_SECRET, key)
    for lane in range(8):
        keyed = values[lane] ^ keys[lane]
        lanes[lane ^ 1] = lanes[lane ^ 1] + values[lane] & _MASK
        lanes[lane] = lanes[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & _MASK


def _long(data: bytes, length: int) -> int:
    lanes = [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1]
    last_key = len(_SECRET) - _STRIPE
    for stripe in range((length - 1) // _STRIPE):
        place = stripe % _STRIPES_PER_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE, 8 * place)
        if place == _STRIPES_PER_BLOCK - 1:
            keys = _LANES.unpack_from(_SECRET, last_key)
            lanes = [(lane ^ lane >> 47 ^ key) * _PRIME32_1 & _MASK for lane, key in zip(lanes, keys, strict=True)]
    _accumulate(lanes, data, length - _STRIPE, last_key - 7)
    value = length * _PRIME64_1
    for pair in range(4):
        value += _fold(lanes[2 * pair] ^ _u64(_SECRET, 11 + 16 * pair), lanes[2 * pair + 1] ^ _u64(_SECRET, 19 + 16 * pair))
    return _avalanche(value)
