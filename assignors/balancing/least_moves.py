"""Find balanced loads that move the fewest owned partitions.

The search is a minimum-cost flow from lots (sets of interchangeable partitions, see ``lots.py``) to members. A partition that
the member owned costs nothing; any other partition costs 1. A partition without a replica in the member's rack costs more than
all moves together, so that racks come before stickiness, as in Kafka (KIP-881). At first every member keeps all owned
partitions. These assignments cost nothing, but some lots have unassigned partitions, and some members have too many or too few
partitions. The primal-dual method then sends each surplus along a shortest path to a member with too few partitions. The result
is optimal: no balanced plan has fewer moves.

Every member ends with ``least[m]`` partitions or with one more. A common account, a node in addition to the lots and the
members, supplies the extra partitions, because any member may get an extra partition that another member does not need.

A node is a number: first the members, then the common account, then the lots. Distances, potentials and searches work on sets
of nodes, as bits of integers; see ``bits``.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence

from assignors.bits import bit_set, lowest_in, numbers_in
from consumer_coord import lazy_attrs as attrs


@attrs.frozen
class Nearness:
    """The members near to each lot (a set of interchangeable partitions), and the lots near to each member.

    A member is near a lot if a replica of the lot is in the member's rack, or if the member has no rack. ``members``: for each
    lot the set of members. ``lots``: for each member the set of lots.
    """

    members: Sequence[int]
    lots: Sequence[int]


class LeastMoves:
    """The search. Its result ``changes[lot]`` maps a member to the change in its number of partitions of the lot."""

    def __init__(
        self,
        supply: Sequence[int],
        free: Sequence[int],
        allowed: Sequence[int],
        least: Sequence[int],
        owned: Sequence[Mapping[int, Sequence[int]]],
        nearness: Nearness | None = None,
        *,
        all_may_stay: bool = False,
    ) -> None:
        """Start from the partitions that the members own.

        ``supply``: for each lot the number of its partitions; ``free``: for each lot the number of its partitions without an
        owner; ``allowed``: for each lot the set of members that may have its partitions in a balanced plan; ``least``: for each
        member the smaller of its two possible loads; ``owned``: for each member, lot -> the partitions that it owns;
        ``all_may_stay``: whether every owner may keep its partitions and is near them.
        """
        self.changes: list[dict[int, int]] = [{} for _ in supply]
        self._allowed = allowed
        self._least = least
        self._owned = owned
        self._nearness = nearness
        self._far = 1 + sum(supply)
        #: The nodes of the common account and of the first lot.
        self._account_node = len(least)
        self._first_lot = len(least) + 1
        self._loads = [sum(map(len, of_member.values())) for of_member in owned]
        self._free = list(free)
        self._regain = [0] * len(supply)  # For each lot, the members that have fewer of its partitions than they owned.
        self._extra = [0] * len(least)  # For each member, the lots of which it has more partitions than it owned.
        #: For each member, the lots of which it has partitions; None until this set is computed.
        self._held: list[int | None] = [None] * len(least)
        if not all_may_stay:
            self._take_away()
        self._account = sum(supply) - sum(
            [low + min(max(load - low, 0), 1) for low, load in zip(least, self._loads, strict=True)]
        )
        levels = list(zip(range(len(least)), least, self._loads, strict=True))
        self._lacking = bit_set([m for m, low, load in levels if load < low], len(least))
        self._open = bit_set([m for m, low, load in levels if load == low], len(least))
        self._topped = bit_set([m for m, low, load in levels if load > low], len(least))
        nodes = self._first_lot + len(supply)
        #: Potential -> the nodes with this potential; and the potential of each node.
        self._potentials = {0: (1 << nodes) - 1}
        self._potential_of = [0] * nodes
        self._seen = 0

    def run(self) -> None:
        """Send every surplus to members with too few partitions."""
        while self._update_potentials():
            self._spread()
            while self._augment():
                pass

    def _take_away(self) -> None:
        """Take partitions from owners that cannot keep them because of balance or racks."""
        for member, owned in enumerate(self._owned):
            near = self._nearness.lots[member] if self._nearness else -1
            bit = 1 << member
            for lot, partitions in owned.items():
                may_stay = self._allowed[lot] & bit
                if may_stay and near >> lot & 1:
                    continue
                if may_stay:
                    self._regain[lot] |= bit
                self.changes[lot][member] = -len(partitions)
                self._free[lot] += len(partitions)
                self._loads[member] -= len(partitions)

    # The costs of assigning a partition of a lot to a member, and of returning a partition to a lot.

    def _offers(self, lot: int) -> Iterator[tuple[int, int]]:
        """Yield (cost, members): the cost of assigning one more partition of this lot to one of these members."""
        allowed, regain = self._allowed[lot], self._regain[lot]
        if self._nearness is None:
            yield 0, regain
            yield 1, allowed & ~regain
            return
        near = self._nearness.members[lot]
        yield 0, regain & near
        yield 1, allowed & ~regain & near
        yield self._far, regain & ~near
        yield self._far + 1, allowed & ~regain & ~near

    def _returns(self, member: int) -> Iterator[tuple[int, int]]:
        """Yield (cost, lots): the negative cost of returning one of the member's partitions to one of these lots."""
        extra = self._extra[member]
        held = self._held_by(member)
        if self._nearness is None:
            yield -1, extra
            yield 0, held & ~extra
            return
        near = self._nearness.lots[member]
        yield -1, extra & near
        yield 0, held & ~extra & near
        yield -self._far - 1, extra & ~near
        yield -self._far, held & ~extra & ~near

    def _held_by(self, member: int) -> int:
        held = self._held[member]
        if held is None:
            held = self._extra[member]
            for lot, partitions in self._owned[member].items():
                if len(partitions) + self.changes[lot].get(member, 0) > 0:
                    held |= 1 << lot
            self._held[member] = held
        return held

    # Shortest distances (Dijkstra's algorithm over reduced costs, many nodes at a time).

    def _update_potentials(self) -> bool:
        """Update the potentials; return False if no surplus remains.

        Afterwards, arcs of reduced cost 0 connect each surplus to the nearest members with too few partitions.
        """
        nodes = self._surpluses()
        if not nodes:
            return False
        search = _Search(self._potentials)
        search.add(0, nodes)
        while True:
            distance, nodes = search.pop()
            if nodes & self._lacking or (nodes >> self._account_node & 1 and self._account > 0):
                break
            search.visited.append((distance, nodes))
            self._reach_next(search, distance, nodes)
        self._potentials = search.new_potentials(distance)
        for potential, found in self._potentials.items():
            for node in numbers_in(found):
                self._potential_of[node] = potential
        return True

    def _surpluses(self) -> int:
        """Return the nodes with a surplus."""
        nodes = bit_set([lot for lot, free in enumerate(self._free) if free], len(self._free)) << self._first_lot
        for m in numbers_in(self._topped):
            if self._loads[m] > self._least[m] + 1:
                nodes |= 1 << m
        return nodes | (self._account < 0) << self._account_node

    def _reach_next(self, search: _Search, distance: int, nodes: int) -> None:
        """Extend the search from these nodes, which are all at ``distance``, to their neighbours."""
        account = 1 << self._account_node
        for lot in numbers_in(nodes >> self._first_lot):
            base = distance + self._potential_of[self._first_lot + lot]
            for cost, takers in self._offers(lot):
                search.reach(base + cost, takers)
        if nodes & account:
            search.reach(distance + self._potential_of[self._account_node], self._topped)
        elif search.left & account:
            for potential, having in self._potentials.items():
                if having & nodes & self._open:
                    search.reach(distance + potential, account)
        for member in numbers_in(nodes & (account - 1)):
            if not search.left >> self._first_lot:
                return
            base = distance + self._potential_of[member]
            for cost, returned in self._returns(member):
                search.reach(base + cost, returned << self._first_lot)

    # Flow is sent only along arcs of reduced cost 0.

    def _takers(self, lot: int) -> int:
        """Return the members to which arcs of reduced cost 0 lead from this lot."""
        potential = self._potential_of[self._first_lot + lot]
        takers = 0
        for cost, members in self._offers(lot):
            takers |= members & self._potentials.get(potential + cost, 0)
        return takers

    def _givable(self, member: int) -> int:
        """Return the nodes of the lots to which arcs of reduced cost 0 lead from this member."""
        potential = self._potential_of[member]
        givable = 0
        for cost, lots in self._returns(member):
            givable |= lots << self._first_lot & self._potentials.get(potential + cost, 0)
        return givable

    def _spread(self) -> None:
        """Assign free partitions directly to members with too few partitions; spread each lot over many members."""
        for lot, free in enumerate(self._free):
            while free:
                takers = self._takers(lot) & self._lacking
                regaining = takers & self._regain[lot]
                takers = regaining or takers
                if not takers:
                    break
                share = max(1, free // takers.bit_count())
                for member in numbers_in(takers):
                    number = min(share, self._least[member] - self._loads[member], free)
                    if regaining:
                        number = min(number, -self.changes[lot][member])
                    self._change(lot, member, number)
                    free -= number
                    self._load(member, number)
                    if not free:
                        break
                self._free[lot] = free

    def _augment(self) -> bool:
        """Send partitions of every surplus along all paths of this round; return False if no partition was sent."""
        self._seen = 0
        any_sent = False
        for lot, free in enumerate(self._free):
            node = self._first_lot + lot
            while free and not self._seen >> node & 1:
                self._free[lot] = free = free - self._send(node, free)
                any_sent |= not self._seen >> node & 1
        for member in list(numbers_in(self._topped)):
            while not self._seen >> member & 1:
                surplus = self._loads[member] - self._least[member] - 1
                if surplus <= 0:
                    break
                sent = self._send(member, surplus)
                self._load(member, -sent)
                any_sent |= sent > 0
        while self._account < 0 and not self._seen >> self._account_node & 1:
            sent = self._send(self._account_node, -self._account)
            self._account += sent
            any_sent |= sent > 0
        return any_sent

    def _send(self, source: int, surplus: int) -> int:
        """Send as many partitions as possible along one path; return their number. Dead ends remain marked as seen."""
        path = self._path(source)
        if path is None:
            return 0
        number = min(surplus, self._capacity(path))
        account, first_lot = self._account_node, self._first_lot
        for at, to in itertools.pairwise(path):
            if at > account:
                self._change(at - first_lot, to, number)
            elif to > account:
                self._change(to - first_lot, at, -number)
            elif to == account:
                self._load(at, number)
            else:
                self._load(to, -number)
        if path[-1] == account:
            self._account -= number
        else:
            self._load(path[-1], number)
        return number

    def _capacity(self, path: Sequence[int]) -> int:
        """Return how many partitions a path can carry or its last node needs, whichever is smaller."""
        account, first_lot, end = self._account_node, self._first_lot, path[-1]
        capacity = self._account if end == account else self._least[end] - self._loads[end]
        for at, to in itertools.pairwise(path):
            if at > account:
                if self._regain[at - first_lot] >> to & 1:
                    capacity = min(capacity, -self.changes[at - first_lot][to])
            elif to > account:
                more = self.changes[to - first_lot].get(at, 0)
                capacity = min(capacity, more if more > 0 else len(self._owned[at][to - first_lot]) + more)
            else:
                capacity = min(capacity, 1)
        return capacity

    def _path(self, source: int) -> list[int] | None:
        path = [source]
        self._seen |= 1 << source
        while path:
            step = self._step(path[-1])
            if step is None:
                path.pop()
                continue
            path.append(step)
            self._seen |= 1 << step
            if self._lacking >> step & 1 or (step == self._account_node and self._account > 0):
                for node in path:
                    self._seen &= ~(1 << node)
                return path
        return None

    def _step(self, node: int) -> int | None:
        """Return an unseen neighbour of this node, preferably a member with too few partitions; None if there is none."""
        account, potential = self._account_node, self._potential_of[node]
        if node > account:
            found = self._takers(node - self._first_lot) & ~self._seen
            found = found & self._lacking or found
        elif node == account:
            found = self._topped & self._potentials.get(potential, 0) & ~self._seen
        elif self._open >> node & 1 and potential == self._potential_of[account] and not self._seen >> account & 1:
            return account
        else:
            found = self._givable(node) & ~self._seen
        return lowest_in(found) if found else None

    def _change(self, lot: int, member: int, number: int) -> None:
        changes = self.changes[lot]
        change = changes[member] = changes.get(member, 0) + number
        member_bit, lot_bit = 1 << member, 1 << lot
        owned = len(self._owned[member].get(lot, ()))
        held = self._held_by(member)
        self._held[member] = held | lot_bit if owned + change > 0 else held & ~lot_bit
        self._extra[member] = self._extra[member] | lot_bit if change > 0 else self._extra[member] & ~lot_bit
        self._regain[lot] = self._regain[lot] | member_bit if change < 0 else self._regain[lot] & ~member_bit

    def _load(self, member: int, number: int) -> None:
        self._loads[member] += number
        over = self._loads[member] - self._least[member]
        bit = 1 << member
        self._lacking = self._lacking | bit if over < 0 else self._lacking & ~bit
        self._open = self._open | bit if over == 0 else self._open & ~bit
        self._topped = self._topped | bit if over > 0 else self._topped & ~bit


class _Search:
    """The frontier of one search for shortest distances: sets of nodes by their distance."""

    def __init__(self, potentials: Mapping[int, int]) -> None:
        self._potentials = potentials
        self._heap: list[int] = []
        self._frontier: dict[int, int] = {}
        #: The nodes without a final distance.
        self.left: int = sum(potentials.values())
        self.visited: list[tuple[int, int]] = []

    def add(self, distance: int, nodes: int) -> None:
        if distance not in self._frontier:
            heapq.heappush(self._heap, distance)
        self._frontier[distance] = self._frontier.get(distance, 0) | nodes

    def pop(self) -> tuple[int, int]:
        """Return the nearest nodes without a final distance, and make that distance final."""
        while True:
            distance = heapq.heappop(self._heap)
            nodes = self._frontier.pop(distance) & self.left
            if nodes:
                self.left ^= nodes
                return distance, nodes

    def reach(self, base: int, nodes: int) -> None:
        """Add nodes to the frontier, each at the distance ``base`` minus the node's potential."""
        nodes &= self.left
        if nodes:
            for potential, having in self._potentials.items():
                if nodes & having:
                    self.add(base - potential, nodes & having)

    def new_potentials(self, last: int) -> dict[int, int]:
        """Return the new potentials: each old potential plus the distance of its node, but at most plus ``last``."""
        new: dict[int, int] = {}
        unseen = -1
        for distance, nodes in self.visited:
            unseen &= ~nodes
            self._shift(nodes, distance, new)
        self._shift(unseen, last, new)
        return new

    def _shift(self, nodes: int, by: int, new: dict[int, int]) -> None:
        for potential, having in self._potentials.items():
            if having & nodes:
                new[potential + by] = new.get(potential + by, 0) | (having & nodes)
