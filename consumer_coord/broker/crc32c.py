"""CRC-32C (Castagnoli), the checksum of Kafka's record batches.

Python's standard library has only the other CRC-32. The ``crc32c`` package computes it in C and is used if installed. Otherwise
a table is used, at about 15 MB/s: enough for the batches that a broker writes itself.
"""

from __future__ import annotations

from collections.abc import Callable

_POLYNOMIAL = 0x82F63B78


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def table_crc32c(data: bytes | memoryview) -> int:
    """Compute the checksum in Python."""
    table = _TABLE
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _choose() -> tuple[Callable[[bytes | memoryview], int], bool]:
    try:
        from crc32c import crc32c as native
    except ImportError:
        return table_crc32c, False
    return native, True


#: The checksum function, and whether it runs in C (fast enough to check every batch that a producer sends).
crc32c: Callable[[bytes | memoryview], int]
IS_NATIVE: bool
crc32c, IS_NATIVE = _choose()
