"""Java's string hash, and the iteration order of Java's hash map, because Kafka's behaviour sometimes depends on them."""

from __future__ import annotations

from collections.abc import Iterable

_FIBONACCI = -7046029254386353131
_LONG_MASK = (1 << 64) - 1


def string_hash(text: str) -> int:
    """Compute Java's ``String.hashCode()``, a signed 32-bit number over UTF-16 code units."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(units), 2):
            value = (value * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` for a group (``Utils.abs(groupId.hashCode) % partitions``)."""
    value = string_hash(group_id)
    # Java cannot negate the smallest integer, so Kafka uses 0.
    return 0 if value == -(1 << 31) else abs(value) % partitions


def hash_map_order(keys: Iterable[str], copied: int = 0) -> list[str]:
    """Return keys in the iteration order of a ``java.util.HashMap`` into which they were inserted in this order.

    ``copied`` is the size of the original if the map is a copy, because a copy is created with the minimum number of buckets.
    """
    unique = list(dict.fromkeys(keys))
    buckets = 16
    if copied:
        buckets = 2
        while buckets < copied / 0.75 + 1:
            buckets *= 2
    while len(unique) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        value = string_hash(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(unique, key=bucket)


def timeline_map_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the iteration order of a Kafka ``TimelineHashMap`` into which they were inserted in this order."""
    unique = list(dict.fromkeys(keys))
    bits = 1
    while len(unique) > (1 << bits) / 0.75:
        bits += 1

    def slot(key: str) -> int:
        # Fibonacci hashing uses the highest bits of a product.
        return (string_hash(key) * _FIBONACCI & _LONG_MASK) >> (64 - bits)

    return sorted(unique, key=slot)
