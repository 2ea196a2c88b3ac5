"""Even out the loads of members if partitions have different loads.

This is a problem like bin packing: the best plan is too expensive to find. A good approximation has two steps: assign heavy
partitions first, each to the lightest eligible member; then move and swap partitions between a heavy and a light member while
this makes their loads more even.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from assignors.bits import numbers_in

#: For one move: the number of light members to try, and the number of partitions to try on either side of the wanted load.
_TRIES = 16
#: The minimum improvement of a move, as a fraction of the mean load. With smaller improvements, rounding errors could prolong
#: the search.
_WORTHWHILE = 0.005


class Item(NamedTuple):
    """A partition; ``owner`` is the member that owned it before this assignment, or None."""

    load: float
    topic: str
    partition: int
    owner: int | None

    @property
    def key(self) -> tuple[float, str, int]:
        """The sort key of partitions."""
        return self.load, self.topic, self.partition


_load_of = attrgetter("load")

#: A move or a swap: the improvement in evenness, the partition that moves, and the partition that moves back (None for a move).
_Exchange = tuple[float, Item, Item | None]


class Snapshot(NamedTuple):
    """The members' partitions and loads at one moment, and the gap in load between the fullest and the emptiest member."""

    held: list[list[Item]]
    totals: list[float]
    gap: float


class Balance:
    """An assignment of partitions to members; ``held`` has each member's partitions, ordered by load."""

    def __init__(self, members: int, may_have: Mapping[str, int]) -> None:
        """Start without assigned partitions; ``may_have`` is topic -> the set of eligible members (see ``bits``)."""
        self.held: list[list[Item]] = [[] for _ in range(members)]
        self._may_have = may_have
        self._totals = [0.0] * members
        concerned = 0
        for members_of_topic in may_have.values():
            concerned |= members_of_topic
        #: Members that are eligible for at least one topic.
        self._concerned = list(numbers_in(concerned))

    @property
    def mean(self) -> float:
        """The mean load of the members that are eligible for at least one topic."""
        return sum(self._totals) / max(1, len(self._concerned))

    @property
    def gap(self) -> float:
        """The difference in load between the fullest member and the emptiest member."""
        totals = [self._totals[member] for member in self._concerned]
        return max(totals, default=0.0) - min(totals, default=0.0)

    def snapshot(self) -> Snapshot:
        """Return a copy of the current assignment, for :meth:`restore`."""
        return Snapshot([list(items) for items in self.held], list(self._totals), self.gap)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the assignment of a snapshot."""
        self.held, self._totals, _ = snapshot

    def give(self, item: Item, member: int) -> None:
        """Assign a partition to a member."""
        insort(self.held[member], item, key=lambda held: held.key)
        self._totals[member] += item.load

    def place(self, items: Sequence[Item]) -> None:
        """Assign each partition, the heaviest first, to the lightest eligible member."""
        heaps: dict[int, list[tuple[float, int]]] = {}
        for item in sorted(items, key=lambda item: (-item.load, item.topic, item.partition)):
            takers = self._may_have[item.topic]
            heap = heaps.get(takers)
            if heap is None:
                heap = heaps[takers] = [(self._totals[member], member) for member in numbers_in(takers)]
                heapq.heapify(heap)
            while heap[0][0] != self._totals[heap[0][1]]:
                # The load in the heap is out of date, because the member got a partition of another topic.
                member = heap[0][1]
                heapq.heapreplace(heap, (self._totals[member], member))
            member = heap[0][1]
            self.give(item, member)
            heapq.heapreplace(heap, (self._totals[member], member))

    def improve(self, moves: int | None) -> None:
        """Even out the loads by moves and swaps.

        ``moves`` is the maximum number of owned partitions that may be away from their owners. If ``moves`` is None, only
        partitions without an owner move.
        """
        order = sorted((self._totals[member], member) for member in self._concerned)
        mean = self.mean
        away = sum(item.owner not in (None, member) for member, items in enumerate(self.held) for item in items)
        while True:
            left = None if moves is None else moves - away
            step = self._step(order, mean, left)
            if step is None:
                return
            heavy, light, down, up = step
            for member in (heavy, light):
                del order[bisect_left(order, (self._totals[member], member))]
            away += self._move(down, heavy, light)
            if up is not None:
                away += self._move(up, light, heavy)
            for member in (heavy, light):
                insort(order, (self._totals[member], member))

    def _step(
        self, order: Sequence[tuple[float, int]], mean: float, left: int | None
    ) -> tuple[int, int, Item, Item | None] | None:
        """Return (heavy member, light member, partition for the light member, partition in return); None if no move helps."""
        for total, heavy in reversed(order):
            if total <= mean * (1 + _WORTHWHILE):
                return None
            for light_total, light in order[:_TRIES]:
                gap = total - light_total
                if gap <= mean * _WORTHWHILE:
                    break
                found = self._exchange(heavy, light, gap, mean * _WORTHWHILE, left)
                if found is not None:
                    return heavy, light, *found
        return None

    def _exchange(self, heavy: int, light: int, gap: float, least: float, left: int | None) -> tuple[Item, Item | None] | None:
        """Return the move that makes the loads of two members as equal as possible.

        If no move helps, return the best swap; None if no swap helps either.
        """
        for exchanges in (self._moves(heavy, light, gap, least, left), self._swaps(heavy, light, gap, least, left)):
            best = max(exchanges, key=itemgetter(0), default=None)
            if best is not None:
                return best[1], best[2]
        return None

    def _moves(self, heavy: int, light: int, gap: float, least: float, left: int | None) -> Iterator[_Exchange]:
        """Yield moves of one partition that make the loads more even by more than ``least``."""
        for item in _around(self.held[heavy], gap / 2, self._may_go(heavy, light, 1, left)):
            evened = min(item.load, gap - item.load)
            if evened > least:
                yield evened, item, None

    def _swaps(self, heavy: int, light: int, gap: float, least: float, left: int | None) -> Iterator[_Exchange]:
        """Yield swaps of two partitions that make the loads more even by more than ``least``."""
        may_go, may_come = self._may_go(heavy, light, 2, left), self._may_go(light, heavy, 2, left)
        for item in _around(self.held[heavy], math.inf, may_go):
            for other in _around(self.held[light], item.load - gap / 2, may_come):
                evened = min(item.load - other.load, gap - item.load + other.load)
                if evened > least:
                    yield evened, item, other

    def _may_go(self, source: int, target: int, moves: int, left: int | None) -> Callable[[Item], bool]:
        """Return a function that checks whether a partition may move, if it takes ``moves`` of ``left`` allowed moves."""

        def check(item: Item) -> bool:
            if not self._may_have[item.topic] >> target & 1:
                return False
            if left is None:
                return item.owner is None
            return item.owner is None or item.owner == target or item.owner != source or left >= moves

        return check

    def _move(self, item: Item, source: int, target: int) -> int:
        """Move a partition; return the change in the number of owned partitions that are not assigned to their owners."""
        held = self.held[source]
        del held[bisect_left(held, item.key, key=lambda held: held.key)]
        self._totals[source] -= item.load
        self.give(item, target)
        if item.owner is None:
            return 0
        return (item.owner == source) - (item.owner == target)


def _around(items: Sequence[Item], load: float, wanted: Callable[[Item], bool]) -> Sequence[Item]:
    """Return the ``wanted`` partitions with the loads nearest to ``load``, up to ``_TRIES`` partitions on either side."""
    place = bisect_left(items, load, key=_load_of)
    lighter, heavier = map(items.__getitem__, range(place - 1, -1, -1)), map(items.__getitem__, range(place, len(items)))
    return [*islice(filter(wanted, lighter), _TRIES), *islice(filter(wanted, heavier), _TRIES)]
