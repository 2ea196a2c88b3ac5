"""Compute the number of partitions of each member: the most even loads that the subscriptions allow.

The model is a flow from *lots* (sets of interchangeable partitions: one or several topics with the same subscribers) to classes
of members with equal subscriptions. A flow is *balanced* if no partition can move from one member to another that has at least
two partitions fewer, not even along a chain of members. All balanced flows of a group have the same loads, except that two
members may exchange the loads n and n + 1.

The method is the dense decomposition. Take a set of classes and its mean load L, and push partitions from classes above L to
classes below L (a maximum flow). When the push cannot continue, the set splits into a fuller and an emptier part that no longer
affect each other. Classes are bits of an integer, so that a step of the search is an intersection of two sets and not a walk
along a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from assignors.bits import bit_set, from_flags, lowest_in, numbers_in
from consumer_coord import lazy_attrs as attrs


@attrs.define
class Flow:
    """The number of partitions of each lot that are assigned to each class of members.

    ``supply``: the number of partitions of each lot; ``subscribers``: for each lot the set of classes that may have its
    partitions; ``sizes``: the number of members of each class. ``given``: for each lot, class -> number of partitions;
    ``loads``: for each class the total number of partitions of its members.
    """

    supply: Sequence[int]
    subscribers: Sequence[int]
    sizes: Sequence[int]
    given: list[dict[int, int]]
    loads: list[int]
    _owners: list[int] = attrs.field(init=False, factory=list)  # For each lot, the classes with partitions of the lot.
    _held: list[int] = attrs.field(init=False, factory=list)  # For each class, the lots from which it has partitions.

    @classmethod
    def empty(cls, supply: Sequence[int], subscribers: Sequence[int], sizes: Sequence[int]) -> Flow:
        """Return a flow in which no partition is assigned."""
        return cls(supply, subscribers, sizes, [{} for _ in supply], [0] * len(sizes))

    def fill(self, run: int = 1) -> None:
        """Assign the remaining partitions of each lot to its subscribers, always to the subscribers with the fewest partitions.

        ``run``: the approximate number of partitions of one lot that a member gets at a time; evenness has priority.
        """
        left = [supply - sum(given.values()) for supply, given in zip(self.supply, self.given, strict=True)]
        if max(self.sizes, default=1) == 1:
            self._fill_singles(left, run)
            return
        heights = [load / size for load, size in zip(self.loads, self.sizes, strict=True)]
        for lot, number in enumerate(left):
            if number:
                self._fill_lot(lot, number, heights)

    def _fill_singles(self, left_of: Sequence[int], run: int) -> None:
        """Assign as :meth:`fill` does if each class has one member; classes with equal loads get partitions together."""
        at_height: dict[int, list[int]] = {}
        for c, load in enumerate(self.loads):
            at_height.setdefault(load, []).append(c)
        standing = {height: bit_set(classes, len(self.loads)) for height, classes in at_height.items()}
        # Runs make loads differ by up to the length of a run, so the last lots are assigned without runs to even out the loads.
        runs = sum(left_of) * 4 // 5 if run > 1 else 0
        for lot, left in enumerate(left_of):
            if not left:
                continue
            rising = height = 0
            for floor in sorted(standing):
                reached = standing[floor] & self.subscribers[lot]
                if reached:
                    if rising:
                        if (floor - height) * rising.bit_count() >= left:
                            break
                        self._raise(lot, rising, height, floor, standing)
                        left -= (floor - height) * rising.bit_count()
                    rising |= reached
                    height = floor
            up, rest = divmod(left, rising.bit_count())
            runs -= left
            self._raise(lot, rising, height, height + up, standing)
            height += up
            step = run if runs > 0 else 1
            if rest >= step:
                rising ^= self._raise(lot, rising, height, height + step, standing, rest // step)
            if rest % step:
                self._raise(lot, rising, height, height + rest % step, standing, 1)

    def _raise(self, lot: int, rising: int, start: int, end: int, standing: dict[int, int], first: int | None = None) -> int:
        """Assign partitions of a lot to the classes ``rising``, so that the load of each class rises from ``start`` to ``end``.

        ``first``: assign only to the first classes of ``rising``, up to this number. Return the classes whose load is now
        ``end``.
        """
        if start == end:
            return rising
        given, loads, step = self.given[lot], self.loads, end - start
        numbers = list(islice(numbers_in(rising), first))
        if first is not None:
            rising &= (1 << (numbers[-1] + 1)) - 1
        standing[start] &= ~rising
        standing[end] = standing.get(end, 0) | rising
        if not standing[start]:
            del standing[start]
        for c in numbers:
            given[c] = given.get(c, 0) + step
            loads[c] = end
        return rising

    def _fill_lot(self, lot: int, left: int, heights: list[float]) -> None:
        loads, sizes, given = self.loads, self.sizes, self.given[lot]
        takers = sorted(numbers_in(self.subscribers[lot]), key=heights.__getitem__)
        # Assign partitions to the classes with the fewest partitions per member until they have as many as the next classes.
        # Then continue with all these classes.
        members = sizes[takers[0]]
        volume = left + loads[takers[0]]
        reached = 1
        for taker in takers[1:]:
            if heights[taker] * members >= volume:
                break
            members += sizes[taker]
            volume += loads[taker]
            reached += 1
        height = volume // members
        for taker in takers[:reached]:
            number = height * sizes[taker] - loads[taker]
            if number > 0:
                given[taker] = given.get(taker, 0) + number
                loads[taker] += number
                heights[taker] = float(height)
                left -= number
        for taker in takers[:reached]:
            if not left:
                break
            number = min(left, (height + 1) * sizes[taker] - loads[taker])
            if number > 0:
                given[taker] = given.get(taker, 0) + number
                loads[taker] += number
                heights[taker] = loads[taker] / sizes[taker]
                left -= number

    def balance(self) -> None:
        """Move partitions until the flow is balanced."""
        pending = [self._all_classes()]
        while pending:
            part = pending.pop()
            if not part:
                continue
            inside = list(numbers_in(part))
            mean = sum([self.loads[c] for c in inside]) // sum([self.sizes[c] for c in inside])
            if not self._above(inside, mean + 1) and not self._below(inside, mean):
                continue
            self._index()
            for height in (mean, mean + 1):
                self._push(part, inside, height)
                stuck = self._above(inside, height)
                if stuck and (height > mean or self._below(inside, height)):
                    fuller = self._reach(part, stuck)
                    pending += [fuller, part & ~fuller]
                    break

    def least_loads(self) -> list[int]:
        """Return, for each class of a balanced flow, the least number of partitions that one of its members can have.

        In every balanced flow each member has this number or one more. The number is the smallest load of a member that
        partitions of the class could reach along chains of members.
        """
        floors = [load // size for load, size in zip(self.loads, self.sizes, strict=True)]
        least = list(floors)
        all_classes = self._all_classes()
        inside = list(numbers_in(all_classes))
        if len({floors[c] for c in inside}) <= 1:
            return least
        self._index()
        unlabelled = all_classes
        lots = (1 << len(self.supply)) - 1
        for floor in sorted({floors[c] for c in inside}):
            fresh = bit_set([c for c in inside if floors[c] == floor], len(floors)) & unlabelled
            while fresh:
                unlabelled &= ~fresh
                for c in numbers_in(fresh):
                    least[c] = floor
                givers = 0
                for lot in numbers_in(lots):
                    if self.subscribers[lot] & fresh:
                        lots &= ~(1 << lot)
                        givers |= self._owners[lot]
                fresh = givers & unlabelled
        return least

    def _all_classes(self) -> int:
        """Return the classes that subscribe to at least one lot."""
        all_classes = 0
        for subscribers in self.subscribers:
            all_classes |= subscribers
        return all_classes

    def _above(self, inside: Sequence[int], height: int) -> int:
        loads, sizes = self.loads, self.sizes
        return bit_set([c for c in inside if loads[c] > sizes[c] * height], len(loads))

    def _below(self, inside: Sequence[int], height: int) -> int:
        loads, sizes = self.loads, self.sizes
        return bit_set([c for c in inside if loads[c] < sizes[c] * height], len(loads))

    def _index(self) -> None:
        """Compute, on the first call, which classes have partitions of which lots; the searches use this index."""
        if self._owners:
            return
        rows = [bytearray(len(self.loads)) for _ in self.supply]
        columns = [bytearray(len(self.supply)) for _ in self.loads]
        for lot, given in enumerate(self.given):
            row = rows[lot]
            for c, number in given.items():
                if number:
                    row[c] = 1
                    columns[c][lot] = 1
        self._owners = [from_flags(row) for row in rows]
        self._held = [from_flags(column) for column in columns]

    def _reach(self, part: int, start: int) -> int:
        """Return the classes in ``part`` to which partitions of classes in ``start`` can move along a chain."""
        reached = start
        fresh = start
        seen_lots = 0
        while fresh:
            lots = 0
            for c in numbers_in(fresh):
                lots |= self._held[c]
            lots &= ~seen_lots
            seen_lots |= lots
            targets = 0
            for lot in numbers_in(lots):
                targets |= self.subscribers[lot]
            fresh = targets & part & ~reached
            reached |= fresh
        return reached

    def _push(self, part: int, inside: Sequence[int], height: int) -> None:
        """Move as many partitions as possible from classes above a load per member to classes below it (Dinic's algorithm)."""
        while True:
            sources, sinks = self._above(inside, height), self._below(inside, height)
            layers = self._layers(part, sources, sinks)
            if layers is None:
                return
            classes, lots = layers
            for source in numbers_in(classes[-1] & sources):
                while self.loads[source] > self.sizes[source] * height:
                    path = self._path(source, classes, lots)
                    if path is None:
                        break
                    sink = path[-1][1]
                    self._hand_on(source, path, height)
                    if self.loads[sink] >= self.sizes[sink] * height:
                        classes[0] &= ~(1 << sink)

    def _layers(self, part: int, sources: int, sinks: int) -> tuple[list[int], list[int]] | None:
        """Return classes and lots by their distance from a sink, up to the distance of the nearest source.

        ``classes[k]`` are k steps away; ``lots[k]`` lead from ``classes[k]`` to ``classes[k - 1]``.
        """
        classes, lots = [sinks], [0]
        unseen = part & ~sinks
        unseen_lots = (1 << len(self.supply)) - 1
        while not classes[-1] & sources:
            layer = givers = 0
            for lot in numbers_in(unseen_lots):
                if self.subscribers[lot] & classes[-1]:
                    layer |= 1 << lot
                    givers |= self._owners[lot]
            unseen_lots &= ~layer
            givers &= unseen
            if not givers:
                return None
            unseen &= ~givers
            classes.append(givers)
            lots.append(layer)
        return classes, lots

    def _path(self, source: int, classes: list[int], lots: list[int]) -> list[tuple[int, int]] | None:
        """Return a path from a source down the layers to a sink, as (lot, to class) steps; remove dead ends from the layers."""
        path: list[tuple[int, int]] = []
        at = source
        while len(path) < len(classes) - 1:
            layer = len(classes) - 1 - len(path)
            candidates = self._held[at] & lots[layer]
            while candidates:
                lot = lowest_in(candidates)
                targets = self.subscribers[lot] & classes[layer - 1]
                if targets:
                    break
                candidates ^= 1 << lot
                lots[layer] ^= 1 << lot
            if candidates:
                at = lowest_in(targets)
                path.append((lot, at))
                continue
            classes[layer] &= ~(1 << at)
            if not path:
                return None
            path.pop()
            at = path[-1][1] if path else source
        return path

    def _hand_on(self, source: int, path: Sequence[tuple[int, int]], height: int) -> None:
        """Send as many partitions along a path as it can carry."""
        sink = path[-1][1]
        number = min(self.loads[source] - self.sizes[source] * height, self.sizes[sink] * height - self.loads[sink])
        giver = source
        for lot, taker in path:
            number = min(number, self.given[lot][giver])
            giver = taker
        giver = source
        for lot, taker in path:
            given = self.given[lot]
            given[giver] -= number
            if not given[giver]:
                self._owners[lot] &= ~(1 << giver)
                self._held[giver] &= ~(1 << lot)
            given[taker] = given.get(taker, 0) + number
            self._owners[lot] |= 1 << taker
            self._held[taker] |= 1 << lot
            giver = taker
        self.loads[source] -= number
        self.loads[sink] += number
