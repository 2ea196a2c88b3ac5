"""Sets of small numbers as Python integers, one bit each.

A set of subscribers among 2,000 members takes 250 bytes. A union or an intersection of two such sets takes about 50 ns.
Searches over the graph of members and topics are therefore affordable in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, count

_FLAGS = bytes.maketrans(b"01", b"\0\1")
_DIGITS = bytes.maketrans(b"\0\1", b"01")


def bit_set(numbers: Iterable[int], size: int) -> int:
    """Return the set of these numbers, each below ``size``."""
    flags = bytearray(size)
    for number in numbers:
        flags[number] = 1
    return from_flags(flags)


def from_flags(flags: bytearray) -> int:
    """Return the set of the positions at which a flag is 1; all other flags must be 0."""
    return int(flags[::-1].translate(_DIGITS) or b"0", 2)


def numbers_in(bits: int) -> Iterator[int]:
    """Yield the numbers in a set, ascending."""
    return compress(count(), f"{bits:b}"[::-1].encode().translate(_FLAGS))


def lowest_in(bits: int) -> int:
    """Return the smallest number in a set that is not empty."""
    return (bits & -bits).bit_length() - 1
