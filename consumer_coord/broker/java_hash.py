"""Java's string hash and the order of its hash map, where Kafka's behaviour depends on them."""

from __future__ import annotations

from collections.abc import Iterable


def string_hash(text: str) -> int:
    """``String.hashCode()``: 32 bits, signed, over UTF-16 code units."""
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
    """The partition of ``__consumer_offsets`` that holds a group (``Utils.abs(groupId.hashCode) % partitions``)."""
    value = string_hash(group_id)
    # Java cannot negate the least integer; Kafka takes 0 for it.
    return 0 if value == -(1 << 31) else abs(value) % partitions


def hash_map_order(keys: Iterable[str]) -> list[str]:
    """The order in which ``java.util.HashMap`` iterates over a few strings that were put in in this order."""
    unique = list(dict.fromkeys(keys))
    buckets = 16
    while len(unique) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        value = string_hash(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(unique, key=bucket)
