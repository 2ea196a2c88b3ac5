"""Find balanced loads that move the fewest owned partitions.

The search is a minimum-cost flow from lots (sets of interchangeable partitions, see ``lots.py``) to members. A partition that
the member owned costs nothing; any other partition costs 1. A partition without a replica in the member's rack costs more than
all moves together, so that racks come before stickiness, as in Kafka (KIP-881). At first every member keeps all owned
partitions. These assignments cost nothing, but some lots have unassigned partitions, and some members have too many or too few
partitions. The primal-dual method then sends each surplus along a shortest path to a member with too few partitions. The result
is optimal: no balanced plan has fewer moves.

Every member ends with ``least[m]`` partitions or with one more. A common account, a node in addition to the lots and the
members, supplies the extra partitions, because any member may get an extra partition that another member does not need.

Distances, potentials and searches work on sets of members and lots, as bits of integers; see ``bits``.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from assignors.bits import bit_set, lowest_in, numbers_in

_LOT, _MEMBER, _ACCOUNT = range(3)
_Node = tuple[int, int]


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
        self._lot_potentials = {0: (1 << len(supply)) - 1}
        self._member_potentials = {0: (1 << len(least)) - 1}
        self._potential_of_lot = [0] * len(supply)
        self._potential_of_member = [0] * len(least)
        self._potential_of_account = 0
        self._seen_lots = self._seen_members = 0
        self._seen_account = False

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
        lots, members, account = self._surpluses()
        if not lots and not members and not account:
            return False
        search = _Search(self._lot_potentials, self._member_potentials, self._potential_of_account)
        search.add(0, lots, members, account)
        while True:
            distance, lots, members, account = search.pop()
            if members & self._lacking or (account and self._account > 0):
                break
            search.visited.append((distance, lots, members, account))
            self._reach_next(search, distance, lots, members)
            if members & self._open:
                search.reach_account(distance, members & self._open)
            if account:
                search.reach_members(distance + self._potential_of_account, self._topped)
        self._lot_potentials, self._member_potentials, self._potential_of_account = search.potentials(distance)
        for of_nodes, potentials in (
            (self._potential_of_lot, self._lot_potentials),
            (self._potential_of_member, self._member_potentials),
        ):
            for potential, found in potentials.items():
                for node in numbers_in(found):
                    of_nodes[node] = potential
        return True

    def _surpluses(self) -> tuple[int, int, bool]:
        """Return the lots and the members with a surplus, and whether the common account has a surplus."""
        lots = bit_set([lot for lot, free in enumerate(self._free) if free], len(self._free))
        members = 0
        for m in numbers_in(self._topped):
            if self._loads[m] > self._least[m] + 1:
                members |= 1 << m
        return lots, members, self._account < 0

    def _reach_next(self, search: _Search, distance: int, lots: int, members: int) -> None:
        """Extend the search from these lots to members, and from these members to lots; all are at ``distance``."""
        for lot in numbers_in(lots):
            base = distance + self._potential_of_lot[lot]
            for cost, takers in self._offers(lot):
                search.reach_members(base + cost, takers)
        if not search.lots:
            return
        for member in numbers_in(members):
            base = distance + self._potential_of_member[member]
            for cost, returned in self._returns(member):
                search.reach_lots(base + cost, returned)
            if not search.lots:
                return

    # Flow is sent only along arcs of reduced cost 0.

    def _takers(self, lot: int) -> int:
        """Return the members to which arcs of reduced cost 0 lead from this lot."""
        potential = self._potential_of_lot[lot]
        takers = 0
        for cost, members in self._offers(lot):
            takers |= members & self._member_potentials.get(potential + cost, 0)
        return takers

    def _givable(self, member: int) -> int:
        """Return the lots to which arcs of reduced cost 0 lead from this member."""
        potential = self._potential_of_member[member]
        givable = 0
        for cost, lots in self._returns(member):
            givable |= lots & self._lot_potentials.get(potential + cost, 0)
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
        self._seen_lots = self._seen_members = 0
        self._seen_account = False
        any_sent = False
        for lot, free in enumerate(self._free):
            while free and not self._seen_lots >> lot & 1:
                self._free[lot] = free = free - self._send((_LOT, lot), free)
                any_sent |= not self._seen_lots >> lot & 1
        for member in list(numbers_in(self._topped)):
            while not self._seen_members >> member & 1:
                surplus = self._loads[member] - self._least[member] - 1
                if surplus <= 0:
                    break
                sent = self._send((_MEMBER, member), surplus)
                self._load(member, -sent)
                any_sent |= sent > 0
        while self._account < 0 and not self._seen_account:
            sent = self._send((_ACCOUNT, 0), -self._account)
            self._account += sent
            any_sent |= sent > 0
        return any_sent

    def _send(self, source: _Node, surplus: int) -> int:
        """Send as many partitions as possible along one path; return their number. Dead ends remain marked as seen."""
        path = self._path(source)
        if path is None:
            return 0
        number = min(surplus, self._capacity(path))
        for (kind, at), (next_kind, to) in itertools.pairwise(path):
            if kind == _LOT:
                self._change(at, to, number)
            elif kind == _MEMBER and next_kind == _LOT:
                self._change(to, at, -number)
            elif kind == _MEMBER:
                self._load(at, number)
            else:
                self._load(to, -number)
        kind, at = path[-1]
        if kind == _MEMBER:
            self._load(at, number)
        else:
            self._account -= number
        return number

    def _capacity(self, path: Sequence[_Node]) -> int:
        """Return how many partitions a path can carry or its last node needs, whichever is smaller."""
        kind, at = path[-1]
        capacity = self._least[at] - self._loads[at] if kind == _MEMBER else self._account
        for (kind, at), (next_kind, to) in itertools.pairwise(path):
            if kind == _LOT:
                if self._regain[at] >> to & 1:
                    capacity = min(capacity, -self.changes[at][to])
            elif kind == _MEMBER and next_kind == _LOT:
                more = self.changes[to].get(at, 0)
                capacity = min(capacity, more if more > 0 else len(self._owned[at][to]) + more)
            else:
                capacity = min(capacity, 1)
        return capacity

    def _path(self, source: _Node) -> list[_Node] | None:
        path = [source]
        self._mark(source, True)
        while path:
            kind, at = path[-1]
            step = self._step(kind, at)
            if step is None:
                path.pop()
                continue
            path.append(step)
            self._mark(step, True)
            kind, at = step
            if (kind == _MEMBER and self._lacking >> at & 1) or (kind == _ACCOUNT and self._account > 0):
                for node in path:
                    self._mark(node, False)
                return path
        return None

    def _step(self, kind: int, at: int) -> _Node | None:
        """Return an unseen neighbour of this node, preferably a member with too few partitions; None if there is none."""
        if kind == _LOT:
            takers = self._takers(at) & ~self._seen_members
            takers = takers & self._lacking or takers
            return (_MEMBER, lowest_in(takers)) if takers else None
        if kind == _MEMBER:
            may_draw = self._open >> at & 1 and self._potential_of_member[at] == self._potential_of_account
            if may_draw and not self._seen_account:
                return _ACCOUNT, 0
            lots = self._givable(at) & ~self._seen_lots
            return (_LOT, lowest_in(lots)) if lots else None
        topped = self._topped & self._member_potentials.get(self._potential_of_account, 0) & ~self._seen_members
        return (_MEMBER, lowest_in(topped)) if topped else None

    def _mark(self, node: _Node, seen: bool) -> None:
        kind, at = node
        if kind == _LOT:
            self._seen_lots = self._seen_lots | 1 << at if seen else self._seen_lots & ~(1 << at)
        elif kind == _MEMBER:
            self._seen_members = self._seen_members | 1 << at if seen else self._seen_members & ~(1 << at)
        else:
            self._seen_account = seen

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

    def __init__(self, lots: Mapping[int, int], members: Mapping[int, int], account: int) -> None:
        self._lot_potentials = lots
        self._member_potentials = members
        self._potential_of_account = account
        self._heap: list[int] = []
        self._frontier: dict[int, tuple[int, int, bool]] = {}
        #: Lots without a final distance.
        self.lots = _union(lots)
        self._members = _union(members)
        self._account = True
        self.visited: list[tuple[int, int, int, bool]] = []

    def add(self, distance: int, lots: int, members: int, account: bool) -> None:
        known = self._frontier.get(distance)
        if known is None:
            heapq.heappush(self._heap, distance)
            known = (0, 0, False)
        self._frontier[distance] = (known[0] | lots, known[1] | members, known[2] or account)

    def pop(self) -> tuple[int, int, int, bool]:
        """Return the nearest nodes without a final distance, and make that distance final."""
        while True:
            distance = heapq.heappop(self._heap)
            lots, members, account = self._frontier.pop(distance)
            lots, members, account = lots & self.lots, members & self._members, account and self._account
            if lots or members or account:
                self.lots ^= lots
                self._members ^= members
                self._account = self._account and not account
                return distance, lots, members, account

    def reach_members(self, base: int, members: int) -> None:
        """Add members to the frontier, each at the distance ``base`` minus the member's potential."""
        members &= self._members
        if members:
            for potential, having in self._member_potentials.items():
                if members & having:
                    self.add(base - potential, 0, members & having, False)

    def reach_lots(self, base: int, lots: int) -> None:
        """Add lots to the frontier, each at the distance ``base`` minus the lot's potential."""
        lots &= self.lots
        if lots:
            for potential, having in self._lot_potentials.items():
                if lots & having:
                    self.add(base - potential, lots & having, 0, False)

    def reach_account(self, distance: int, members: int) -> None:
        """Add the common account to the frontier, as a neighbour of these members, which are at ``distance``."""
        if self._account:
            for potential, having in self._member_potentials.items():
                if members & having:
                    self.add(distance + potential - self._potential_of_account, 0, 0, True)

    def potentials(self, last: int) -> tuple[dict[int, int], dict[int, int], int]:
        """Return the new potentials: each old potential plus the distance of its node, but at most plus ``last``."""
        lots: dict[int, int] = {}
        members: dict[int, int] = {}
        account = self._potential_of_account + last
        seen_lots = seen_members = 0
        for distance, at_lots, at_members, at_account in self.visited:
            seen_lots |= at_lots
            seen_members |= at_members
            _shift(self._lot_potentials, at_lots, distance, lots)
            _shift(self._member_potentials, at_members, distance, members)
            if at_account:
                account = self._potential_of_account + distance
        _shift(self._lot_potentials, ~seen_lots, last, lots)
        _shift(self._member_potentials, ~seen_members, last, members)
        return lots, members, account


def _union(sets: Mapping[int, int]) -> int:
    union = 0
    for one in sets.values():
        union |= one
    return union


def _shift(old: Mapping[int, int], which: int, by: int, new: dict[int, int]) -> None:
    for potential, having in old.items():
        if having & which:
            new[potential + by] = new.get(potential + by, 0) | (having & which)
