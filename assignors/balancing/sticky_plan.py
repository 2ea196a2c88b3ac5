"""The plan of the sticky assignors: even loads first, then racks, then as few moves as possible.

Each step has a module: ``claims`` finds the owners, ``levels`` the number of partitions of each member, and ``least_moves`` the
partitions that the members keep. If all subscriptions are equal and racks do not matter, simple arithmetic replaces ``levels``
and ``least_moves``. At the end, ``dealing`` distributes the partitions without an owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors.balancing.claims import Claims, MemberClaims, resolve
from assignors.balancing.dealing import add, deal, level, one_range, run_length
from assignors.balancing.least_moves import LeastMoves
from assignors.balancing.levels import Flow
from assignors.balancing.lots import Lots, racks_of_members
from assignors.base import Cluster, Member, Plan
from assignors.bits import bit_set
from assignors.subscriptions import Subscriptions
from consumer_coord import lazy_attrs as attrs


@attrs.frozen
class Draft:
    """A plan in two parts: the partitions that members keep, and their new partitions.

    ``kept``: for each member, topic -> the owned partitions that it keeps; ``gains``: for each member, topic -> the partitions
    that are new to the member. ``to_revoke``: topic -> partitions that a member of the group must revoke, or that several
    members claim.
    """

    members: Sequence[str]
    kept: list[Mapping[str, Sequence[int]]]
    gains: list[dict[str, Sequence[int]]]
    to_revoke: dict[str, set[int]]

    def plan(self) -> Plan:
        """Return the complete plan: every member gets all its partitions at once."""
        return {
            member_id: _join(kept, gains) if gains else kept
            for member_id, kept, gains in zip(self.members, self.kept, self.gains, strict=True)
        }

    def plan_without_hand_over(self) -> Plan:
        """Return the plan of a cooperative round, without partitions that another member still owns (KIP-429)."""
        if self.to_revoke:
            for gains in self.gains:
                for topic in [topic for topic in gains if topic in self.to_revoke]:
                    held = self.to_revoke[topic]
                    if not held.isdisjoint(gains[topic]):
                        gains[topic] = [partition for partition in gains[topic] if partition not in held]
                        if not gains[topic]:
                            del gains[topic]
        return self.plan()


def draft(cluster: Cluster, members: Mapping[str, Member], claims_by_id: Mapping[str, MemberClaims]) -> Draft:
    """Compute the plan; ``claims_by_id``: for each member id the partitions that it claims to own.

    Raise :class:`assignors.subscriptions.InvalidInputError` for invalid input.
    """
    subscriptions = Subscriptions.of(cluster, members)
    claims = resolve(cluster, subscriptions, [claims_by_id[member_id] for member_id in subscriptions.members])
    rack_of = racks_of_members(cluster, subscriptions, members)
    takers = [positions for positions, row in zip(subscriptions.classes, subscriptions.rows, strict=True) if row]
    gains: list[dict[str, Sequence[int]]] = [{} for _ in subscriptions.members]
    result = Draft(subscriptions.members, claims.kept, gains, claims.bound)
    if not takers:
        return result
    if rack_of is not None:
        _plan_by_flow(result, subscriptions, Lots.by_rack(cluster, subscriptions, claims, rack_of))
    elif len(takers) == 1:
        _plan_alike(result, claims, takers[0])
    elif any(claims.kept):
        _plan_by_flow(result, subscriptions, Lots.by_topic(cluster, subscriptions, claims))
    else:
        _plan_afresh(result, subscriptions, Lots.by_topic(cluster, subscriptions, claims))
    return result


def _plan_alike(result: Draft, claims: Claims, takers: Sequence[int]) -> None:
    """Plan for equal subscriptions: each member keeps at most its quota of partitions.

    Some quotas are higher by one, preferably those of members that would otherwise lose a partition.
    """
    loads = {member: sum(map(len, result.kept[member].values())) for member in takers}
    free = claims.free
    total = sum(loads.values()) + sum(map(len, free.values()))
    quota, over = divmod(total, len(takers))
    fuller = [member for member in takers if loads[member] > quota][:over]
    if len(fuller) < over:
        chosen = set(fuller)
        fuller += [member for member in takers if member not in chosen][: over - len(fuller)]
    quotas = dict.fromkeys(takers, quota) | dict.fromkeys(fuller, quota + 1)
    revoked: dict[str, list[int]] = {}
    wanted = []
    for place, (member, load) in enumerate(loads.items()):
        if load > quotas[member]:
            _cut(result, member, quotas[member], place, revoked)
        elif load < quotas[member]:
            wanted.append((member, quotas[member] - load))
    for topic, partitions in revoked.items():
        result.to_revoke.setdefault(topic, set()).update(partitions)
        free[topic] = sorted([*free.get(topic, ()), *partitions])
    deal({topic: free[topic] for topic in sorted(free)} if revoked else free, wanted, result.gains)


def _cut(result: Draft, member: int, keep: int, place: int, revoked: dict[str, list[int]]) -> None:
    """Reduce a member to ``keep`` partitions; revoke partitions of the topics of which the member has most."""
    kept = result.kept[member]
    height, rest = level([len(partitions) for partitions in kept.values()], keep)
    topics = sorted(kept)
    larger = [topic for topic in topics if len(kept[topic]) > height]
    # The topics that keep one more partition differ between members, so that not all members revoke partitions of the same
    # topic.
    first = place * rest % len(larger)
    lucky = set((larger[first:] + larger[:first])[:rest])
    left: dict[str, Sequence[int]] = {}
    for topic in topics:
        partitions = kept[topic]
        stop = height + (topic in lucky)
        if len(partitions) > stop:
            if not isinstance(partitions, range):
                partitions = sorted(partitions)
            revoked.setdefault(topic, []).extend(partitions[stop:])
            partitions = partitions[:stop]
        if partitions:
            left[topic] = partitions
    result.kept[member] = left


def _plan_afresh(result: Draft, subscriptions: Subscriptions, lots: Lots) -> None:
    """Plan for members that own nothing: balanced loads, and each topic spread over as many members as balance allows."""
    groups = _Groups.of(subscriptions, lots)
    flow = groups.flow(subscriptions, lots)
    flow.fill(run_length(sum(lots.supply)))
    flow.balance()
    alone = subscriptions.all_differ
    shares: list[dict[str, Sequence[int]]] = result.gains if alone else [{} for _ in subscriptions.classes]
    for given, inside in zip(flow.given, groups.lots, strict=True):
        if len(inside) == 1:
            topic, start = lots.topics[inside[0]], 0
            for number, wanted in given.items():
                if wanted:
                    stop = start + wanted
                    shares[number][topic] = range(start, stop)
                    start = stop
            continue
        takers = iter(given.items())
        number, wanted = next(takers)
        for lot in inside:
            topic, start, supply = lots.topics[lot], 0, lots.supply[lot]
            while start < supply:
                if not wanted:
                    number, wanted = next(takers)
                stop = min(start + wanted, supply)
                shares[number][topic] = range(start, stop)
                wanted -= stop - start
                start = stop
    if alone:
        return
    for positions, share, load in zip(subscriptions.classes, shares, flow.loads, strict=True):
        quota, over = divmod(load, len(positions))
        deal(share, [(member, quota + (place < over)) for place, member in enumerate(positions)], result.gains)


def _plan_by_flow(result: Draft, subscriptions: Subscriptions, lots: Lots) -> None:
    """Plan for different subscriptions, or with racks: compute the balanced loads, then the fewest moves to reach them."""
    groups = _Groups.of(subscriptions, lots)
    flow = groups.flow(subscriptions, lots)
    given_of_lot = [flow.given[group] for group in groups.group_of]
    for number, of_member in zip(subscriptions.class_of, lots.owned, strict=True):
        for lot, partitions in of_member.items():
            given = given_of_lot[lot]
            given[number] = given.get(number, 0) + len(partitions)
        flow.loads[number] += sum(map(len, of_member.values()))
    flow.fill()
    flow.balance()
    least_of_class = flow.least_loads()
    with_least: dict[int, list[int]] = {}
    for number, least in enumerate(least_of_class):
        with_least.setdefault(least, []).append(number)
    sets = [bit_set(with_least[least], len(least_of_class)) for least in sorted(with_least)]
    # Only the emptiest subscribers of a lot may get its partitions, because another subscriber would make the plan unbalanced.
    emptiest = [next(classes & which for which in sets if classes & which) for classes in groups.classes]
    allowed = list(map(subscriptions.member_set, emptiest))
    search = LeastMoves(
        lots.supply,
        list(map(len, lots.free)),
        [allowed[group] for group in groups.group_of],
        [least_of_class[number] for number in subscriptions.class_of],
        lots.owned,
        lots.nearness,
        all_may_stay=lots.nearness is None and emptiest == groups.classes,
    )
    search.run()
    _apply(result, lots, search.changes)


def _apply(result: Draft, lots: Lots, changes: Sequence[Mapping[int, int]]) -> None:
    """Select partitions for these changes: revoke the highest numbers, assign the lowest free numbers."""
    revoked: dict[tuple[int, str], set[int]] = {}
    for lot, of_lot in enumerate(changes):
        topic, free = lots.topics[lot], lots.free[lot]
        dropped: list[int] = []
        for member, change in of_lot.items():
            if change < 0:
                partitions = sorted(lots.owned[member][lot])[change:]
                dropped += partitions
                revoked.setdefault((member, topic), set()).update(partitions)
        if dropped:
            result.to_revoke.setdefault(topic, set()).update(dropped)
            free = sorted([*free, *dropped])
        start = 0
        for member in sorted(of_lot):
            if of_lot[member] > 0:
                add(result.gains[member], topic, free[start : start + of_lot[member]])
                start += of_lot[member]
    for (member, topic), gone in revoked.items():
        kept = dict(result.kept[member])
        left = sorted(set(kept[topic]) - gone)
        if left:
            kept[topic] = left
        else:
            del kept[topic]
        result.kept[member] = kept


def _join(kept: Mapping[str, Sequence[int]], gains: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[int]]:
    if not kept:
        return gains
    joined = dict(kept)
    for topic, partitions in gains.items():
        before = joined.get(topic)
        if before is None:
            joined[topic] = partitions
        else:
            joined[topic] = one_range(before, partitions) or sorted([*before, *partitions])
    return joined


@attrs.frozen
class _Groups:
    """Lots with the same subscribers, which the computation of loads treats as one lot."""

    group_of: Sequence[int]
    lots: Sequence[Sequence[int]]
    classes: Sequence[int]

    @classmethod
    def of(cls, subscriptions: Subscriptions, lots: Lots) -> _Groups:
        """Group the lots by their subscribers."""
        number_of: dict[int, int] = {}
        group_of = [number_of.setdefault(subscriptions.subscribers[topic], len(number_of)) for topic in lots.topics]
        inside: list[list[int]] = [[] for _ in number_of]
        for lot, group in enumerate(group_of):
            inside[group].append(lot)
        return cls(group_of, inside, list(number_of))

    def flow(self, subscriptions: Subscriptions, lots: Lots) -> Flow:
        """Return a flow from these groups of lots to the classes of members, in which no partition is assigned."""
        return Flow.empty(
            [sum([lots.supply[lot] for lot in inside]) for inside in self.lots],
            self.classes,
            list(map(len, subscriptions.classes)),
        )
