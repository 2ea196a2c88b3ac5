"""How far a fetcher reads ahead of its caller: which partitions a Fetch omits, and how many bytes it asks for.

Every broker has an equal share of a fetcher's ``queued_max_bytes``; ``fetcher.py`` states the rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.fetch.values import DEFAULT_PARTITION_BYTES, FetchConfig

#: The bytes of a response to aim at if its partitions have many more records. A response costs the same work whatever its size,
#: so with less a partition of large records takes twice the CPU time; more would leave the processor's cache before it is read.
_BACKLOG_BYTES = 4 << 20
_MOST_DOUBLINGS = 2


def share_bytes(config: FetchConfig, brokers: int) -> int:
    """Return the share of each of ``brokers`` in a fetcher's buffer, in bytes."""
    return config.queued_max_bytes // max(1, brokers)


def is_full(held: int, share: int) -> bool:
    """Return whether records of ``held`` bytes from one broker leave no room for a response: half of the broker's share."""
    return held > share // 2


def has_enough(config: FetchConfig, state: FetchState) -> bool:
    """Return whether so many records of a partition wait to be taken that a Fetch omits it."""
    return state.untaken_records >= config.queued_min_messages


def response_bytes(config: FetchConfig, share: int, largest: int) -> int:
    """Return the bytes to ask for in a response of which ``largest`` bytes can be received; ``share`` is the least one."""
    # A part of the largest response is left for the fields of its rows.
    return max(1, min(config.fetch_max_bytes, share // 2, largest * 15 // 16))


def partition_bytes(config: FetchConfig, states: Iterable[FetchState]) -> list[int]:
    """Return the bytes to ask for of each partition of one Fetch."""
    states = tuple(states)
    most = least = config.max_partition_fetch_bytes
    if least == DEFAULT_PARTITION_BYTES:
        most = max(least, _BACKLOG_BYTES // max(1, sum(not state.at_end for state in states)))
    return [min(most, least << state.full) for state in states]


def fullness(state: FetchState, size: int, complete: int) -> int:
    """Return how often to double the bytes to ask for, after a response of ``size`` bytes, ``complete`` of them usable."""
    asked = 0 if state.wanted is None else state.wanted.max_bytes
    if 8 * (size - complete) > size:
        # Much of the response was in vain: with larger batches than asked for, a response has exactly one.
        return max(0, state.full - 1)
    if 2 * size <= asked or state.at_end:
        return 0
    return state.full if size > asked else min(state.full + 1, _MOST_DOUBLINGS)
