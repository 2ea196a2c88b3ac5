"""CRC-32C (Castagnoli), the checksum of Kafka's record batches.

Python's standard library has only another kind of CRC-32. If the package ``crc32c`` is installed, it computes the checksum in
C. Otherwise this module computes the checksum from a table at about 15 MB/s, which is enough for the batches that an
embedded broker writes itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


def table_crc32c(data: Buffer) -> int:
    """Compute the checksum in Python."""
    table = _TABLE
    value = 0xFFFFFFFF
    for byte in memoryview(data):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _choose() -> tuple[Callable[[Buffer], int], bool]:
    try:
        from crc32c import crc32c as native
    except ImportError:
        return table_crc32c, False
    return native, True


#: The checksum function, and whether it runs in C and is therefore fast enough to check every batch of a producer.
crc32c: Callable[[Buffer], int]
IS_NATIVE: bool
crc32c, IS_NATIVE = _choose()
